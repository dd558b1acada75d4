"""Files of token ids, which other programs or an earlier run made: where they are, and which documents are in them.

| tokens | beside them | written by |
|---|---|---|
| `NAME.bin` | `NAME.offsets.npy`, perhaps `NAME.documents.parquet` | the stage `tokenize` (docs/architecture.md) |
| `NAME.bin` | `NAME.idx` | Megatron-LM, NeMo, and datatrove's MegatronDocumentTokenizer |
| `NAME.ds` | `NAME.ds.index` | datatrove's DocumentTokenizer |

The files beside them say where each document ends. Without one, nobody can tell documents apart, so a file of tokens
alone is not read. Formats: Megatron-LM's `indexed_dataset.py`, datatrove's `TokenizedFile`.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from training.contract.job import DataError
from training.data.sources import expand, is_remote, read_rows, resolve
from training.data.words.byte_level import byte_values

SUFFIXES: Final = (".bin", ".ds")
OFFSETS, SIDECAR, MEGATRON, DATATROVE = ".offsets.npy", ".documents.parquet", ".idx", ".index"
TOKENIZER_FILE: Final = "tokenizer.json"
MEGATRON_MAGIC: Final = b"MMIDIDX\x00\x00"
MEGATRON_TYPES: Final = {4: "<i4", 5: "<i8", 8: "<u2"}  # the others hold no token ids


def base_of(name: str) -> str:
    """Return the name that a token file shares with the files that belong to it."""
    return name if name.endswith(".ds") else name.removesuffix(".bin")


def beside(name: str) -> tuple[str, ...]:
    """Return the names that the files belonging to a token file may have."""
    base = base_of(name)
    return (base + DATATROVE,) if name.endswith(".ds") else (base + OFFSETS, base + SIDECAR, base + MEGATRON)


def located(paths: Iterable[str]) -> list[str]:
    """Return the token files behind these paths, and the files that belong to them.

    Raise DataError for a path without such a file, and for one that is not on this machine.
    """
    found: list[str] = []
    for location in expand(paths, SUFFIXES):
        if is_remote(location):
            raise DataError(f"{location}: token shards are read from this machine only; download the folder first")
        found += [location, *(other for other in beside(location) if os.path.isfile(other))]
    return found


def tokenizer_file(place: str) -> str:
    """Return the path of the `tokenizer.json` that a path or a `data://` URI names, itself or by its folder."""
    location = resolve(place)
    if is_remote(location):
        raise DataError(f"{place}: a tokenizer is read from this machine only; download it first")
    file = os.path.join(location, TOKENIZER_FILE) if os.path.isdir(location) else location
    if not os.path.isfile(file):
        raise DataError(f"{place}: no {TOKENIZER_FILE}; token shards are read with the tokenizer that made them")
    return file


class TokenDocument(NamedTuple):
    """A document of a file of tokens: its ids, and the address and sha256 of its text, or "" if they are not known."""

    ids: list[int]
    url: str = ""
    sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFile:
    """An open token file, memory-mapped: the ids, and for each document its first token and the token after it."""

    tokens: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    sidecar: Path | None  # with the documents' addresses, if there is one

    def documents(self) -> Iterator[TokenDocument]:
        """Yield the documents in order."""
        for start, end, (url, sha256) in zip(self.starts.tolist(), self.ends.tolist(), self._known(), strict=True):
            yield TokenDocument(self.tokens[start:end].tolist(), url, sha256)

    def _known(self) -> Iterator[tuple[str, str]]:
        if self.sidecar is None:
            yield from (("", "") for _ in self.starts)
            return
        yield from ((row.get("url") or "", row.get("sha256") or "") for row in read_rows(str(self.sidecar)))


def open_token_file(path: Path) -> TokenFile:
    """Open a token file. Raise DataError if no file beside it says where documents end, or if sizes contradict."""
    base = Path(base_of(str(path)))
    if path.name.endswith(".ds"):
        return _with_ends(path, _ends(Path(f"{base}{DATATROVE}"), np.dtype("<u8")))
    if (index := Path(f"{base}{MEGATRON}")).is_file():
        return _megatron(path, index)
    offsets = Path(f"{base}{OFFSETS}")
    if not offsets.is_file():
        raise DataError(
            f"{path.name}: neither {offsets.name} nor {index.name} beside it, which say where documents end"
        )
    try:
        bounds = np.load(offsets, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{offsets.name}: not an array of offsets: {error}") from None
    sidecar = Path(f"{base}{SIDECAR}")
    return _with_ends(path, bounds[1:], sidecar=sidecar if sidecar.is_file() else None)


def _ends(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if not path.is_file():
        raise DataError(f"no {path.name}, which says where documents end")
    if path.stat().st_size % dtype.itemsize:
        raise DataError(f"{path.name}: {path.stat().st_size} bytes; the file was cut off")
    return np.fromfile(path, dtype)


def _with_ends(path: Path, ends: npt.NDArray[Any], *, sidecar: Path | None = None) -> TokenFile:
    """Return the token file whose documents follow each other and end at `ends`.

    The number of bytes of an id follows from the size of the file.
    """
    ends = ends.astype(np.int64)
    total, size = int(ends[-1]) if len(ends) else 0, path.stat().st_size
    if total < 1 or size not in (2 * total, 4 * total) or (np.diff(ends, prepend=0) < 1).any():
        raise DataError(f"{path.name}: {size} bytes, and documents that end at {total} tokens; one of them is cut off")
    tokens = np.memmap(path, "<u2" if size == 2 * total else "<u4", "r").view(np.ndarray)
    return TokenFile(tokens=tokens, starts=np.append(0, ends[:-1]), ends=ends, sidecar=sidecar)


def _megatron(path: Path, index: Path) -> TokenFile:
    """Open a token file by Megatron's index, in which a document is one or more sequences."""
    content = index.read_bytes()
    try:
        if not content.startswith(MEGATRON_MAGIC):
            raise DataError(f"{index.name}: not an index of Megatron-LM")
        version, code, sequences, documents = struct.unpack_from("<QBQQ", content, len(MEGATRON_MAGIC))
        if version != 1 or code not in MEGATRON_TYPES:
            raise DataError(f"{index.name}: version {version}, type {code}; read are version 1 and ids of 2 to 8 bytes")
        at = len(MEGATRON_MAGIC) + 25
        lengths = np.frombuffer(content, "<i4", sequences, at).astype(np.int64)
        pointers = np.frombuffer(content, "<i8", sequences, at + 4 * sequences)
        of_documents = np.frombuffer(content, "<i8", documents, at + 12 * sequences)
    except (struct.error, ValueError):
        raise DataError(f"{index.name}: {len(content)} bytes; the file was cut off") from None
    dtype = np.dtype(MEGATRON_TYPES[code])
    bounds = np.append(0, np.cumsum(lengths))
    if (pointers != bounds[:-1] * dtype.itemsize).any() or path.stat().st_size != bounds[-1] * dtype.itemsize:
        raise DataError(f"{path.name}: {path.stat().st_size} bytes, {index.name} says {bounds[-1] * dtype.itemsize}")
    if not documents or of_documents[0] != 0 or of_documents[-1] != sequences or (np.diff(of_documents) < 1).any():
        raise DataError(f"{index.name}: its documents are not in the order of its {sequences} sequences")
    tokens = np.memmap(path, dtype, "r").view(np.ndarray)
    ends = bounds[of_documents]
    return TokenFile(tokens=tokens, starts=ends[:-1], ends=ends[1:], sidecar=None)


@dataclass(frozen=True, slots=True)
class Spelling:
    """The bytes that each id of a byte-level vocabulary stands for, and which ids are special tokens."""

    bytes_of: Mapping[int, bytes]
    special: frozenset[int] = field(default_factory=frozenset)


def read_spelling(path: Path) -> Spelling:
    """Return the spelling in a `tokenizer.json`. Raise DataError if it is not of a byte-level vocabulary."""
    try:
        content = json.loads(path.read_text("utf-8"))
        vocabulary, added = content["model"]["vocab"], content.get("added_tokens") or []
        steps = json.dumps([content.get("pre_tokenizer"), content.get("decoder")])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path.name}: not a tokenizer.json: {error}") from None
    if steps.count('"ByteLevel"') < 2 or content["model"].get("byte_fallback"):
        raise DataError(f"{path.name}: not byte-level, so its tokens do not give back every text")
    pairs = (
        vocabulary.items() if isinstance(vocabulary, dict) else ((one[0], id_) for id_, one in enumerate(vocabulary))
    )
    values = byte_values()
    own = {token["id"]: token for token in added}
    spelled = {id_: bytes(values.get(sign, 0) for sign in token) for token, id_ in pairs if id_ not in own}
    spelled |= {id_: token["content"].encode("utf-8") for id_, token in own.items()}
    return Spelling(spelled, frozenset(id_ for id_, token in own.items() if token["special"]))

"""Look for texts in every byte under a folder, in another way than `pedigree takedown` does, and by none of its code.

    from benchmarks.second_scan import places, windows

Both lists are of eight words in a row, made of letters and digits alone, in lower case. A file is read as UTF-8, also
without its zero bytes, and unpacked whatever its name: gzip, zstd, bzip2, xz, members of a zip, and parquet wherever
they begin, also within each other; SQLite's own dump, token files by the tokenizer beside them, and suffix arrays,
which give their tokens back. Escapes of JSON, entities of HTML and percent signs are undone. What cannot be
unpacked was still read as it is.
"""

from __future__ import annotations

import bz2
import html
import json
import lzma
import re
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from tokenizers import Tokenizer

LENGTH = 8
WORD = re.compile(r"[^\W_]+")
ESCAPED = re.compile(r"\\+u([0-9a-fA-F]{4})|\\+[nrt]")
TAG = re.compile(r"<[^<>]{0,2000}>")
PACKED: dict[bytes, Callable[[], Any]] = {  # by the first bytes
    b"\x1f\x8b\x08": partial(zlib.decompressobj, 31),
    b"\x28\xb5\x2f\xfd": lambda: zstandard.ZstdDecompressor().decompressobj(),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\0": lzma.LZMADecompressor,
}
ZIPPED = b"PK\3\4"  # the header of a member of a zip, 30 bytes before its name

Window = tuple[str, ...]


def windows(text: str) -> set[Window]:
    """Return all runs of eight words of a text, also without escapes, tags and percent signs, that have a letter."""
    found = set[Window]()
    for view in _views(text):
        words = WORD.findall(view.lower())
        found.update(zip(*(words[at:] for at in range(LENGTH)), strict=False))
    return {run for run in found if not all(map(str.isdigit, run))}


def _views(text: str) -> Iterator[str]:
    yield text
    if "\\" in text:
        yield ESCAPED.sub(lambda one: chr(int(one[1], 16)) if one[1] else " ", text)
    if "<" in text or "&" in text:
        yield html.unescape(TAG.sub(" ", text))
    if "%" in text:
        yield unquote_plus(text, errors="ignore")


class Wanted:
    """Runs of words to look for: first by sums over the letters of eight words in a row, then by the words."""

    def __init__(self, runs: set[Window]) -> None:
        self.runs = runs
        self._sums = np.unique(_runs_of(" ".join(chain.from_iterable(runs)))[0][::LENGTH])

    def within(self, text: str) -> set[Window]:
        """Return those that a text has, as it is, without escapes, without tags, or without percent signs."""
        found = set[Window]()
        for view in _views(text) if len(self._sums) else ():
            lowered = view.lower()
            sums, begins, ends = _runs_of(lowered)
            places = np.minimum(np.searchsorted(self._sums, sums), len(self._sums) - 1)
            hits = np.flatnonzero(self._sums[places] == sums).tolist()
            words = (
                [lowered[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)] if hits else []
            )
            found.update(tuple(words[at : at + LENGTH]) for at in hits)
        return found & self.runs


def _runs_of(text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a sum for each run of eight words of a text, in 64 bits, and where each word begins and ends."""
    letters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    is_edge = np.diff(np.concatenate([[False], _is_letter()[letters], [False]]).astype(np.int8))
    begins, ends = np.flatnonzero(is_edge == 1), np.flatnonzero(is_edge == -1)
    powers, inverse = _powers(1 << len(letters).bit_length())
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(letters * powers[: len(letters)], dtype=np.uint64)])
    words = (sums[ends] - sums[begins]) * inverse[begins]
    found = np.zeros(max(0, len(words) - LENGTH + 1), np.uint64)
    for at in range(LENGTH):
        found = found * np.uint64(1_000_003) + words[at : at + len(found)]
    return found, begins, ends


@cache
def _is_letter() -> np.ndarray:
    return np.array([chr(number).isalnum() for number in range(0x110000)])


@cache
def _powers(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the powers of an odd number and those of its inverse, modulo 2 ** 64."""
    base = 6_364_136_223_846_793_005
    found = [np.full(length, one, np.uint64) for one in (base, pow(base, -1, 1 << 64))]
    for one in found:
        one[0] = 1
    return np.cumprod(found[0], dtype=np.uint64), np.cumprod(found[1], dtype=np.uint64)


def places(paths: Iterable[Path], runs: set[Window]) -> tuple[dict[Path, int], int, int]:
    """Return those of some files that hold one of these runs, with their number, and the files and bytes read."""
    found: dict[Path, int] = {}
    wanted, files, size = Wanted(runs), 0, 0
    for path in paths:
        if not path.exists():
            continue  # SQLite keeps it beside a database that is open
        files, size = files + 1, size + path.stat().st_size
        if hits := {run for text in texts_of(path) for run in wanted.within(text)}:
            found[path] = len(hits)
    return found, files, size


def files_in(root: Path) -> list[Path]:
    """Return every file under a folder."""
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def texts_of(path: Path) -> Iterator[str]:
    """Yield everything in a file that may be text."""
    data = path.read_bytes()
    for one in chain([data], unpacked(data)):
        yield from _decoded(one)
        yield from _tables_in(one)
    if data.startswith(b"SQLite format 3"):
        with closing(sqlite3.connect(path)) as database:
            yield "\n".join(database.iterdump())
    if (tokens := tokens_of(path)) is not None:
        yield tokens


def _decoded(data: bytes) -> Iterator[str]:
    yield data.decode("utf-8", "ignore")
    if b"\0" in data:
        yield data.replace(b"\0", b"").decode("utf-8", "ignore")  # ASCII in UTF-16, UTF-32 or an array of NumPy


def _tables_in(data: bytes) -> Iterator[str]:
    """Yield the columns of every parquet table in some bytes; it begins and ends with the same four."""
    for begin, end in pairwise(found.start() for found in re.finditer(b"PAR1", data)):
        with suppress(pa.ArrowException, OSError):
            for column in pq.read_table(pa.BufferReader(data[begin : end + 4])).columns:
                values = [one for one in column.to_pylist() if one is not None]
                yield "\n".join(
                    one if isinstance(one, str) else json.dumps(one, default=str, ensure_ascii=False) for one in values
                )


def unpacked(data: bytes) -> Iterator[bytes]:
    """Yield what is packed in some bytes, wherever it begins, and what is packed in that.

    Of a zip each member that is deflated is looked for by its own header; one that is only stored is there already.
    """
    for found in re.finditer(b"|".join(map(re.escape, (*PACKED, ZIPPED))), data):
        begin, plain = found.start(), None
        if found[0] == ZIPPED:
            name, extra = struct.unpack_from("<HH", data.ljust(begin + 30, b"\0"), begin + 26)
            begin, unpacker = begin + 30 + name + extra, zlib.decompressobj(-15)
        else:
            unpacker = PACKED[found[0]]()
        with suppress(zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, ValueError):
            plain = unpacker.decompress(data[begin:])
        if plain:
            yield plain
            yield from unpacked(plain)


def tokens_of(path: Path) -> str | None:
    """Return the text of a file of tokens or of a suffix array; None for any other file."""
    folder = path.parent.parent
    shards, index = folder / "shards.json", folder / "text_index.json"
    if path.suffix == ".bin" and shards.exists():
        return _text_of(folder, np.fromfile(path, json.loads(shards.read_text("utf-8"))["dtype"]))
    if path.parent.name == "suffixes" and not path.name.endswith(".first.npy") and index.exists():
        # The suffixes that begin with one token stand together: where they stand, the token stands in the text.
        suffixes, first = np.load(path), np.load(path.with_suffix(".first.npy"))
        tokens = np.zeros(len(suffixes), np.int64)
        for token in np.flatnonzero(np.diff(first)).tolist():
            tokens[suffixes[first[token] : first[token + 1]]] = token
        return _text_of(_input_of(folder, "token_shards"), tokens)
    return None


def _text_of(shards: Path, tokens: Any) -> str:
    return _tokenizer(_input_of(shards, "tokenizer") / "tokenizer.json").decode(tokens.tolist())


@cache
def _tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def _input_of(folder: Path, asset: str) -> Path:
    """Return the folder of an artifact's input, also of an artifact that is unfinished or lies in the trash."""
    said = next(path for name in ("artifact.json", "job.json") if (path := folder / name).exists())
    (name,) = [one["fingerprint"] for one in json.loads(said.read_text("utf-8"))["inputs"] if one["asset"] == asset]
    return next(place for one in folder.parents if (place := one / asset / name).is_dir())

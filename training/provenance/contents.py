"""Read every file under a root as texts, whatever its kind, to look for what should not be in it.

| kind | read as |
|---|---|
| parquet, under any name | every column of text, but addresses and ids, which stay of a withdrawn page |
| token shards, suffix arrays | the tokens, decoded by the tokenizer in the lineage |
| WARC | header and block of every record, the block also without transfer and content encoding |
| a damaged WARC record | what can be read of it |
| gzip, zstd, zip, bzip2, xz, tar, under any name and within each other | what is packed in it |
| LZ4, lzip, compress, Snappy, 7-Zip, RAR, CAB, ar, RPM, PDF | not at all: such a file is named as not read |
| SQLite | every value of every table, and the file's own bytes, in which removed rows remain |
| a tokenizer's files | each entry by itself, because the order of entries is no text |
| NumPy | the texts of an array; an array of numbers as any other binary file |
| safetensors | the header alone: of weights no text can be read |
| other | as UTF-8 and, where it is none, as Windows-1252, or, if it is binary, every run of readable characters |
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import mmap
import re
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from tokenizers import Tokenizer

from training.contract.files.writing import regular_bytes
from training.data.crawl.warc import (
    HEADER_END,
    MAX_HEADER_BYTES,
    VERSION,
    Damage,
    Record,
    damaged_part,
    parse_headers,
    read_warc,
)
from training.data.documents import decompressed
from training.data.extract.responses import PayloadError, parse_response, payload
from training.data.tokens.shards import OFFSETS, SHARDS_FILE, TOKENS
from training.data.tokens.tokenizer import TOKENIZER_FILE, load_tokenizer
from training.provenance.text.build import INDEX_FILE

WEIGHTS = (".safetensors",)
SQLITE = b"SQLite format 3\x00"
# Files of a tokenizer, which list words in an order of their own and are no text.
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "vocab.bpe", "encoder.json", "merges.txt"),
)
ADDRESSES = frozenset({"id", "url", "snapshot", "warc_file", "duplicate_of", "survivor"})
AT_ONCE = 4 << 20  # bytes of a text that are looked at together
OVERLAP = 4 << 10  # bytes that are looked at twice, so that nothing is cut in two
PACKED = {  # kinds of packed files, by how they begin
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "zip": re.compile(rb"PK\x03\x04"),
    "bzip2": re.compile(rb"BZh[1-9]1AY&SY"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "parquet": re.compile(rb"PAR1"),
    "LZ4": re.compile(rb"\x04\x22\x4d\x18"),
    "lzip": re.compile(rb"LZIP\x01"),
    "compress": re.compile(rb"\x1f\x9d"),
    "Snappy": re.compile(rb"\xff\x06\x00\x00sNaPpY"),
    "7-Zip": re.compile(rb"7z\xbc\xaf\x27\x1c"),
    "RAR": re.compile(rb"Rar!\x1a\x07"),
    "CAB": re.compile(rb"MSCF\x00\x00\x00\x00"),
    "ar": re.compile(rb"!<arch>\n"),
    "RPM": re.compile(rb"\xed\xab\xee\xdb"),
    "PDF": re.compile(rb"%PDF-"),
}
OPENED: Mapping[str, Callable[[Any], Any]] = {
    "gzip": lambda stream: decompressed(stream, ".gz"),
    "zstd": lambda stream: decompressed(stream, ".zst"),
    "bzip2": bz2.open,
    "xz": lzma.open,
}
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError)
MOST_DEPTH = 4  # of files packed in each other
WIDE = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}  # by the mark with which a file begins
READABLE = re.compile(rb"[\t\n\r\x20-\x7e\x80-\xf4]{24,}")
MOST_BLOCK = 64 << 20  # bytes of a WARC record


class NotRead(Exception):
    """A file cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Texts that lie at one place of a file, with the name of the place, and for a WARC record its offset."""

    place: str
    texts: list[str]
    offset: int | None = None
    is_damaged: bool = False  # the block of a damaged WARC record


def pieces_of(path: Path) -> Iterator[TextPiece]:
    """Yield everything in a file that can be read as text. Raise NotRead if its kind is known and it is damaged."""
    try:
        yield from _pieces(path)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, pa.ArrowException, sqlite3.Error) as error:
        raise NotRead(f"{type(error).__name__}: {error}") from None
    except (ValueError, KeyError, TypeError, RuntimeError, *DAMAGED) as error:
        raise NotRead(f"{type(error).__name__}: {error}") from None


def _pieces(path: Path) -> Iterator[TextPiece]:
    name = path.name
    if name.endswith(".tmp"):
        name = name.rsplit(".", 2)[0].removeprefix(".")  # of a writer at work or killed: what it is to become
    if name.endswith(".parquet"):
        yield from _parquet(path)
    elif name.endswith(TOKENS) and path.with_name(name.removesuffix(TOKENS) + OFFSETS).exists():
        yield from _tokens(path, name)
    elif path.parent.name == "suffixes" and name.endswith(".npy") and not name.endswith(".first.npy"):
        yield from _suffixes(path)
    elif name.endswith(".npy") and (array := _array_of_texts(path)) is not None:
        yield TextPiece("array", [" ".join(one if isinstance(one, str) else _readable(one) for one in array)])
    elif name.endswith(WEIGHTS):
        with open(path, "rb") as stream:
            yield TextPiece(
                "header", [_readable(stream.read(min(int.from_bytes(stream.read(8), "little"), MOST_BLOCK)))]
            )
    elif ".warc" in name:
        yield from _warc(path)
    elif name in TOKENIZER_FILES:
        yield from _vocabulary(path)
    else:
        with open(path, "rb") as stream:
            if stream.read(16) == SQLITE:
                yield from _sqlite(path)
            stream.seek(0)
            yield from _unpacked(stream)


def _unpacked(stream: io.BufferedReader, inside: str = "", depth: int = 0) -> Iterator[TextPiece]:
    """Yield what is in a file, whose kind its first bytes tell, and in the files that are packed in it."""
    head = stream.peek(tarfile.BLOCKSIZE)
    kind = next((name for name, sign in PACKED.items() if sign.match(head)), "tar" if _begins_tar(head) else "")
    if kind and (kind not in (*OPENED, *MEMBERS, "parquet") or depth == MOST_DEPTH):
        raise NotRead(f"{inside}packed as {kind}, which is not unpacked here")
    if not kind:
        yield from _bytes(stream, inside)
    elif kind in OPENED:
        with OPENED[kind](stream) as opened, io.BufferedReader(opened) as plain:
            yield from _unpacked(plain, inside, depth + 1)
    else:
        is_sought = depth < 2 and stream.seekable()  # deeper ones say so too, and cannot go back
        yield from _members(stream if is_sought else io.BytesIO(stream.read()), kind, inside, depth)


def _members(stream: IO[bytes], kind: str, inside: str, depth: int) -> Iterator[TextPiece]:
    """Yield what is in the members of a zip or tar, or in the columns of a table."""
    if kind == "parquet":
        yield from _parquet(stream, inside)
    else:
        yield from _bytes(stream, inside)  # names and comments, and what belongs to no member
        stream.seek(0)
        for name, plain in MEMBERS[kind](stream):
            with plain:
                yield from _unpacked(plain, f"{inside}{name}, ", depth + 1)


def _begins_tar(head: bytes) -> bool:
    """Whether bytes begin with the header of a member of a tar, which its checksum tells."""
    with suppress(tarfile.HeaderError):
        return bool(tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape"))
    return False


def _members_of_zip(stream: IO[bytes]) -> Iterator[tuple[str, io.BufferedReader]]:
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():  # several may have one name
            yield member.filename, io.BufferedReader(cast(Any, archive.open(member)))


def _members_of_tar(stream: IO[bytes]) -> Iterator[tuple[str, io.BufferedReader]]:
    with tarfile.open(fileobj=stream, mode="r:", ignore_zeros=True) as archive:  # also tars behind each other
        for member in archive:
            if (plain := archive.extractfile(member) if member.isfile() else None) is not None:
                yield member.name, cast(io.BufferedReader, plain)


MEMBERS = {"zip": _members_of_zip, "tar": _members_of_tar}


def _bytes(stream: IO[bytes], inside: str = "") -> Iterator[TextPiece]:
    at, before, coding = 0, b"", ""
    while block := stream.read(AT_ONCE):
        coding = coding if at else WIDE.get(block[:2], "")
        wide = [(before + block).decode(coding, "ignore")] if coding else []
        yield TextPiece(f"{inside}byte {at - len(before)}", [*wide, *_texts_in(before + block)])
        at, before = at + len(block), block[-OVERLAP:]


def _texts_in(block: bytes) -> list[str]:
    text = block.decode("utf-8", "ignore")
    if b"\x00" not in block and 2 * len(text) > len(block):
        is_whole = len(text.encode()) == len(block)
        return [text] if is_whole else [text, block.decode("cp1252", "replace")]
    if block[:1024].count(0) * 3 > len(block[:1024]) and (wide := block.decode("utf-16-le", "ignore")).isprintable():
        return [wide]
    narrow = [block, block.replace(b"\x00", b"")] if block.count(0) * 3 > len(block) else [block]
    return [run.decode("utf-8", "replace") for one in narrow for run in READABLE.findall(one)]


def _array_of_texts(path: Path) -> list[str | bytes] | None:
    """Return the texts of an array; None if it has none, or is one of Python's objects."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        return None
    return array.ravel().tolist() if array.dtype.kind in "US" else None


def _vocabulary(path: Path) -> Iterator[TextPiece]:
    """Yield the entries of a tokenizer's vocabulary, its merges and its settings, each as a text of its own."""
    content = path.read_text("utf-8")
    entries = strings_in(json.loads(content)) if path.suffix == ".json" else content.splitlines()
    yield TextPiece("entries", list(entries))


def strings_in(value: Any) -> Iterator[str]:
    """Yield all texts in what was read of JSON, keys and values, each alone."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for one in chain(value, value.values() if isinstance(value, dict) else ()):
            yield from strings_in(one)


def _parquet(source: Path | IO[bytes], inside: str = "") -> Iterator[TextPiece]:
    with pq.ParquetFile(source) as parquet:
        names = [one.name for one in parquet.schema_arrow if one.name not in ADDRESSES]
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=names, use_threads=False)
            for name in rows.column_names:
                if texts := list(_strings(rows[name])):
                    yield TextPiece(f"{inside}row group {number}, column {name}", texts)
        if metadata := parquet.metadata.metadata:
            yield TextPiece(f"{inside}metadata", [_readable(b" ".join([*metadata, *metadata.values()]))])


def _strings(column: pa.ChunkedArray) -> Iterator[str]:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return
    for value in column.to_pylist():
        if isinstance(value, str):
            yield value
        elif isinstance(value, bytes):
            yield value.decode("utf-8", "replace")
        elif value is not None:
            yield json.dumps(value, ensure_ascii=False, default=str)


def _sqlite(path: Path) -> Iterator[TextPiece]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.text_factory = _readable
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in database.execute(f"SELECT * FROM {in_sql(table)}"):
                texts = [one if isinstance(one, str) else None for one in row]
                texts += [one.decode("utf-8", "replace") for one in row if isinstance(one, bytes)]
                if found := [one for one in texts if one and len(one) > WORDS_AT_LEAST]:
                    yield TextPiece(f"table {table}", found)


def in_sql(name: str) -> str:
    """Return the name of a table or column as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def _readable(data: bytes) -> str:
    return data.decode("utf-8", "replace")


WORDS_AT_LEAST = 15  # characters of eight words


def _warc(path: Path) -> Iterator[TextPiece]:
    for record in read_warc(path, max_content_bytes=MOST_BLOCK):
        if not isinstance(record, Record):
            yield from _damaged(path, record)
            continue
        texts = [_fields(record.headers), *_texts_in(record.content)]
        if record.type == "response":
            try:
                response = parse_response(record.buffer, record.start, record.end)
                texts += _texts_in(payload(response, max_bytes=MOST_BLOCK))
            except PayloadError:
                pass  # the block as it is was looked at
        yield TextPiece(f"record at {record.offset}", texts, record.offset)


def _damaged(path: Path, damage: Damage) -> Iterator[TextPiece]:
    """Yield what can be read of a damaged record: its block, and its header if it has one."""
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        plain, _ = damaged_part(data, damage.offset)
    head = HEADER_END.search(plain, 0, MAX_HEADER_BYTES) if VERSION.match(plain) else None
    place = f"damage at {damage.offset}"
    if head is not None:
        yield TextPiece(place, [_fields(parse_headers(plain[: head.start()]))], damage.offset)
    yield TextPiece(place, _texts_in(plain[head.end() if head else 0 :]), damage.offset, is_damaged=True)


def _fields(headers: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in headers.items() if name != "warc-target-uri")


# Tokens


def _tokens(path: Path, name: str) -> Iterator[TextPiece]:
    folder = path.parent.parent
    listing = json.loads((folder / SHARDS_FILE).read_text("utf-8"))
    tokens = np.memmap(path, listing["dtype"], "r") if path.stat().st_size else np.empty(0, listing["dtype"])
    offsets = np.load(path.with_name(name.removesuffix(TOKENS) + OFFSETS), allow_pickle=False)
    yield from _decoded(tokens, offsets, _tokenizer_of(folder))


def _suffixes(path: Path) -> Iterator[TextPiece]:
    """Yield the documents that a suffix array gives back.

    The token at a place is the one whose range of the array holds the place's suffix. The last one ends a document.
    """
    folder = path.parent.parent
    listing = json.loads((folder / INDEX_FILE).read_text("utf-8"))
    entry = next(one for one in listing["shards"] if one["suffixes"].endswith(path.name))
    suffixes = np.load(path, mmap_mode="r", allow_pickle=False)
    first = np.load(folder / entry["first"], allow_pickle=False)
    tokens = np.empty(len(suffixes), np.uint32)
    tokens[suffixes] = np.repeat(np.arange(len(first) - 1, dtype=np.uint32), np.diff(first))
    shards = folder.parent.parent / "token_shards"
    (name,) = (one["fingerprint"] for one in _record(folder)["inputs"] if one["asset"] == "token_shards")
    ends = np.flatnonzero(tokens == tokens[-1]) if len(tokens) else np.empty(0, np.int64)  # of documents
    yield from _decoded(tokens, np.concatenate([[0], ends + 1]), _tokenizer_of(shards / name))


def _decoded(tokens: Any, offsets: np.ndarray, tokenizer: Tokenizer) -> Iterator[TextPiece]:
    size = max(1, AT_ONCE // 64)
    for start in range(0, len(offsets) - 1, size):
        ends = offsets[start : start + size + 1].tolist()
        documents = [np.asarray(tokens[one:two]).tolist() for one, two in pairwise(ends)]
        yield TextPiece(f"documents from {start}", tokenizer.decode_batch(documents, skip_special_tokens=False))


def _record(folder: Path) -> dict[str, Any]:
    return json.loads(regular_bytes(folder / "artifact.json"))


_TOKENIZERS: dict[Path, Tokenizer] = {}


def _tokenizer_of(shards: Path) -> Tokenizer:
    """Return the tokenizer of a folder of shards. Raise NotRead if it is not there any more."""
    for name in ("artifact.json", "job.json"):
        try:
            record = json.loads(regular_bytes(shards / name))
        except (OSError, ValueError):
            continue
        for one in record.get("inputs", ()):
            if one["asset"] == "tokenizer":
                path = shards.parent.parent / "tokenizer" / one["fingerprint"] / TOKENIZER_FILE
                if path.exists():
                    return _TOKENIZERS.setdefault(path, load_tokenizer(path))
    raise NotRead("its tokenizer is not under the root any more")

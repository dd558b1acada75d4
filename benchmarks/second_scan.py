"""Look for texts in every byte under a folder, in another way than `pedigree takedown` does, and by none of its code.

    from benchmarks.second_scan import places, windows

Both lists are of eight words in a row, made of ASCII letters and digits alone, in lower case. A file is read as it is,
and unpacked by what its first bytes say, whatever its name: gzip and zstd members wherever they begin, zip, parquet,
SQLite's own dump, NumPy arrays and token files by the tokenizer beside them. Escapes of JSON and entities of HTML are
undone. What cannot be unpacked was still read as it is.
"""

from __future__ import annotations

import html
import json
import re
import sqlite3
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from tokenizers import Tokenizer

LENGTH = 8
WORD = re.compile(r"[a-z0-9]+")
ESCAPED = re.compile(r"\\+u([0-9a-fA-F]{4})|\\+[nrt]")
TAG = re.compile(r"<[^<>]{0,2000}>")
GZIP, ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"

Window = tuple[str, ...]


def windows(text: str) -> set[Window]:
    """Return all runs of eight words of a text that have a letter."""
    found = WORD.findall(text.lower())
    runs = {tuple(found[at : at + LENGTH]) for at in range(len(found) - LENGTH + 1)}
    return {run for run in runs if any(not word.isdigit() for word in run)}


def places(root: Path, wanted: set[Window], *, without: Iterable[str] = ()) -> tuple[dict[str, int], int, int]:
    """Return the files under a root that hold one of these runs, with their number, and the files and bytes read.

    Files in the folders `without` of the root, and weights, are left out.
    """
    found: dict[str, int] = {}
    files = size = 0
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if not path.is_file() or path.is_symlink() or name.split("/")[0] in without or path.suffix == ".safetensors":
            continue
        files, size = files + 1, size + path.stat().st_size
        hits = {run for text in texts_of(path) for run in windows_in(text) & wanted}
        if hits:
            found[name] = len(hits)
    return found, files, size


def windows_in(text: str) -> set[Window]:
    """Return the runs of a text as it is, without escapes, and without tags."""
    found = windows(text)
    if "\\" in text:
        plain = ESCAPED.sub(lambda one: chr(int(one[1], 16)) if one[1] else " ", text)
        found |= windows(plain)
    if "<" in text or "&" in text:
        found |= windows(html.unescape(TAG.sub(" ", text)))
    return found


def texts_of(path: Path) -> Iterator[str]:
    """Yield everything in a file that may be text."""
    data = path.read_bytes()
    yield data.decode("utf-8", "ignore")
    yield from (one.decode("utf-8", "ignore") for one in unpacked(data))
    if data.startswith(b"PK"):
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as packed:
            yield from (packed.read(name).decode("utf-8", "ignore") for name in packed.namelist())
    if data.startswith(b"PAR1"):
        with suppress(pa.ArrowException):
            for column in pq.read_table(path).columns:
                yield from (json.dumps(value, default=str, ensure_ascii=False) for value in column.to_pylist())
    if data.startswith(b"SQLite format 3"):
        with closing(sqlite3.connect(path)) as database:
            yield "\n".join(database.iterdump())
    if (tokens := tokens_of(path)) is not None:
        yield tokens


def unpacked(data: bytes) -> Iterator[bytes]:
    """Yield what is packed by gzip or zstd in some bytes, wherever it begins, and what is packed in that."""
    for found in re.finditer(re.escape(GZIP) + b"|" + re.escape(ZSTD), data):
        rest = data[found.start() :]
        with suppress(zlib.error, zstandard.ZstdError):
            plain = (
                zlib.decompressobj(31).decompress(rest)
                if rest.startswith(GZIP)
                else zstandard.ZstdDecompressor().decompressobj().decompress(rest)
            )
            yield plain
            yield from unpacked(plain)


def tokens_of(path: Path) -> str | None:
    """Return the text of a file of tokens; None for any other file."""
    listing = path.parent.parent / "shards.json"
    if path.suffix != ".bin" or not listing.exists():
        return None
    record = json.loads((listing.parent / "artifact.json").read_text("utf-8"))
    (name,) = [one["fingerprint"] for one in record["inputs"] if one["asset"] == "tokenizer"]
    tokenizer = Tokenizer.from_file(str(listing.parents[2] / "tokenizer" / name / "tokenizer.json"))
    return tokenizer.decode(np.fromfile(path, json.loads(listing.read_text("utf-8"))["dtype"]).tolist())

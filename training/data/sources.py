"""Data by URI: its location, rows and checksum.

`data://benchmarks/arc_easy.jsonl.gz` is a file in the folder that PEDIGREE_DATA names. `kitchen://cloze` is written by
a generated source when it is read (training/data/generated.py). `made://base_model/kitchen/model` is an artifact of a
recipe. Anything else is a path or an fsspec URL (s3://, https://, memory://).
"""

from __future__ import annotations

import codecs
import glob
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from training.contract.artifact import MADE, sha256_of
from training.contract.files.objects import store_errors
from training.contract.job import DataError, Job
from training.contract.records import RecipeError
from training.contract.secrets import masked
from training.data import generated
from training.data.checksum_cache import table_in_use

DATA_VARIABLE = "PEDIGREE_DATA"
# Object stores that fsspec may open. Endpoints and credentials are in fsspec's own configuration.
STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss", "hdfs", "memory")
MOST_SHOWN = 80  # characters of a key in an error
# Of a text that is taken for Windows-1252: the most letters beyond ASCII, as a share of the text, where they are of
# several languages; how many tell nothing; the share of them that may be of other languages.
WESTERN_SHARE, WESTERN_LETTERS, FOREIGN_SHARE = 0.08, 8, 0.03
ALPHABETS = (  # beyond ASCII, of languages that it writes
    *("äöüßé", "åäöéàü", "åæøéèêóòôüäö", "äéèêëïîóôöûü", "âêîôûäëïöüéàè"),
    *("àâæçéèêëîïôœùûüÿ", "áéíóúüñïç", "áâãàçéêíóôõúü", "àáèéìíîïòóùúüç"),
)
ALPHABETS_ALONE = ("áéíóúýðþæöø", "äöõüšž")  # Icelandic, Estonian: beside others they may be of another charset
SIGNS = frozenset("ªºµƒ")  # letters by Unicode that any text may have
MISREAD = re.compile(r"[¹³¼¾](?<=[^\W\d_].)(?=[^\W\d_])")  # as Polish letters look in it
MARKS = (  # the longer ones first
    *((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32")),
    *((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8-sig")),
)
ASCII = bytes(range(128))
MOSTLY = 2 / 3  # of the bytes beyond ASCII; of a text in another charset at most half look like UTF-8
ZEROS = 1 / 8  # more of a text's bytes are 0 in UTF-16 alone
MAX_WHOLE_BYTES = 256 << 20  # of a text that is read as a whole
CHARACTERS = 1 << 20  # of a list in JSON that are read at once
BLANKS = " \t\n\r"  # of JSON
_BEHIND = re.compile(rf"[{BLANKS}]*([,\]])[{BLANKS}]*")
FORMATS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".parquet", ".txt", ".txt.gz", ".zip")


def is_remote(location: str) -> bool:
    """Whether a resolved location is a URL and not a path on this machine."""
    return "://" in location


def is_http(location: str) -> bool:
    """Whether the location is on a web server, which cannot list its files and must be asked politely."""
    return location.lower().startswith(("http://", "https://"))


def resolve(uri: str) -> str:
    """Return the path or fsspec URL behind a URI, without checking that the file exists.

    Raise RecipeError for a generated file, which has no location. Raise DataError for a `made://` URI, and for a
    `data://` URI if PEDIGREE_DATA is not set.
    """
    if source := generated.source_of(uri):
        raise RecipeError(f"{uri}: the {source.name} makes it; it has no file")
    if uri.startswith(MADE):
        raise DataError(f"{uri}: not made under this root yet; run the recipe that makes it first")
    if uri.startswith("file://"):
        return uri.removeprefix("file://")
    if not uri.startswith("data://"):
        return uri
    folder = os.environ.get(DATA_VARIABLE, "")
    if not folder:
        raise DataError(
            f"{uri}: the environment variable {DATA_VARIABLE} is not set; set it to the folder that holds the data"
        )
    return os.path.join(folder, uri.removeprefix("data://"))


@contextmanager
def open_uri(uri: str) -> Iterator[BinaryIO]:
    """Open the bytes behind a URI as a stream. Raise DataError if nothing is there."""
    location = resolve(uri)
    if not is_remote(location):
        _check_file(uri, location)
        with open(location, "rb") as stream:
            yield stream
        return
    if is_http(location):
        from training.data.web import Body

        with _http_response("GET", location) as response, io.BufferedReader(Body(response), 1 << 20) as stream:
            yield stream
        return
    with in_store(location) as (system, place):
        stream = system.open(place, "rb")
    with stream, store_errors(location, reading=True):
        yield stream


@contextmanager
def in_store(location: str) -> Iterator[tuple[Any, str]]:
    """Context manager with fsspec's file system of an object store, and the place of a URL in it.

    Raise DataError if it is no object store, and for whatever the store answers.
    """
    import fsspec

    check_store(location)
    with store_errors(location):
        yield fsspec.core.url_to_fs(location)


def check_store(location: str) -> None:
    """Raise DataError unless fsspec would read the URL from an object store, and from nothing else on the way.

    fsspec's other file systems open web addresses, connections and local files without this project's checks.
    """
    scheme = location.partition("://")[0].lower()
    if scheme not in STORES or "::" in location:
        raise DataError(
            f"{location}: {scheme}: is not read; there are paths, data://, kitchen://, http://, https:// and the stores"
            f" {', '.join(STORES)}"
        )


@contextmanager
def _http_response(method: str, url: str) -> Iterator[Any]:
    from training.data.web import requests, response

    try:
        with response(method, url, headers={"Accept-Encoding": "identity"}) as answer:
            if answer.status_code != 200:
                raise DataError(f"{masked(url)}: HTTP {answer.status_code} {answer.reason}")
            yield answer
    except requests.RequestException as error:
        raise DataError(f"{masked(url)}: no answer: {masked(str(error))}") from None


def _check_file(uri: str, location: str) -> None:
    if os.path.isfile(location):
        with suppress(OSError), open(location, "rb") as stream:
            stream.read(1)
            return
    hint = f" ({DATA_VARIABLE}={os.environ.get(DATA_VARIABLE)})" if uri.startswith("data://") else ""
    there = "is a folder, not a file" if os.path.isdir(location) else "is no file that can be opened"
    what = there if os.path.lexists(location) else "no such file"
    raise DataError(f"{uri}: {what}{hint}")


def expand(paths: Iterable[str], suffixes: Sequence[str] = ()) -> list[str]:
    """Return the files behind paths, folders, globs, `data://` and fsspec URLs, without repeats.

    They are sorted by file name, then location. Folders (without subfolders) and globs contribute the files that end in
    one of `suffixes` and are not hidden; a path to a single file is always taken. Raise DataError for a path without
    any file.
    """
    found: set[str] = set()
    for path in paths:
        location = resolve(path)
        names = _expand_remote(location, suffixes) if is_remote(location) else _expand_local(location, suffixes)
        if not names:
            wanted = f" that ends in {' or '.join(suffixes)}" if suffixes else ""
            hint = f" ({DATA_VARIABLE}={os.environ.get(DATA_VARIABLE)})" if path.startswith("data://") else ""
            raise DataError(f"{path}: no such file, or a folder or pattern without a file{wanted}{hint}")
        found.update(names)
    return sorted(found, key=lambda name: (name.rpartition("/")[2], name))


def _expand_local(location: str, suffixes: Sequence[str]) -> list[str]:
    if os.path.isfile(location):
        return [location]
    pattern = os.path.join(glob.escape(location), "*") if os.path.isdir(location) else location
    return [name for name in glob.glob(pattern, recursive=True) if os.path.isfile(name) and _wanted(name, suffixes)]


def _expand_remote(location: str, suffixes: Sequence[str]) -> list[str]:
    if is_http(location):
        return [location]  # whether the file exists is found out when it is read
    with in_store(location) as (system, path):
        if system.isfile(path):
            return [system.unstrip_protocol(path)]
        names = system.find(path, maxdepth=1) if system.isdir(path) else system.glob(path)
        return [system.unstrip_protocol(name) for name in names if system.isfile(name) and _wanted(name, suffixes)]


def _wanted(name: str, suffixes: Sequence[str]) -> bool:
    base = name.rpartition("/")[2]
    return not base.startswith(".") and (not suffixes or base.endswith(tuple(suffixes)))


def checksum_of(uri: str) -> str:
    """Return the sha256 (hex) of the file behind a URI, which is read only if its checksum is not stored yet.

    A table (training.data.checksum_cache) stores checksums: that of a local file is valid while its path, size, time of
    change and inode are the same, that of a remote file while its size and ETag are the same. Without a table each
    process reads a file once.
    """
    location = resolve(uri)
    if is_remote(location):
        return _checksum_of_remote(uri, _tag_of(location) if table_in_use() else "")
    _check_file(uri, location)
    status = os.stat(location)
    return _checksum_of_local(os.path.abspath(location), status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=4096)
def _checksum_of_local(location: str, size: int, mtime_ns: int, inode: int) -> str:
    table, identity = table_in_use(), f"{size} {mtime_ns} {inode}"
    if table and (known := table.find(location, identity)):
        return known
    found = sha256_of(Path(location))
    if table:
        table.keep(location, identity, found, changed_ns=mtime_ns)
    return found


@lru_cache(maxsize=4096)
def _checksum_of_remote(uri: str, tag: str) -> str:
    table = table_in_use() if tag else None
    if table and (known := table.find(masked(uri), tag)):
        return known
    digest = hashlib.sha256()
    with open_uri(uri) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    if table:
        table.keep(masked(uri), tag, digest.hexdigest())
    return digest.hexdigest()


def _tag_of(location: str) -> str:
    """Return the size and ETag of a remote file; empty if its server or store gives no strong ETag."""
    try:
        size, tag = size_and_tag(location)
    except DataError:
        return ""  # a server without HEAD; one that refuses everything says so when the file is read
    return f"{size} {tag}" if tag else ""


def size_and_tag(location: str) -> tuple[int, str]:
    """Return the size in bytes of a remote file (-1 if not known) and its strong ETag, or "".

    A weak ETag says nothing about single bytes, so it counts as none. Raise DataError if nothing is there.
    """
    if is_http(location):
        from training.data.web import declared_bytes

        with _http_response("HEAD", location) as response:
            size, tag = declared_bytes(response), response.headers.get("ETag", "")
    else:
        with in_store(location) as (system, place):
            said = system.info(place)
        size, tag = said.get("size", -1), str(said.get("ETag") or "")
    return size, strong(tag)


def strong(tag: str) -> str:
    """Return an ETag if it is strong, otherwise ""."""
    return "" if tag.startswith("W/") else tag


def size_of(uri: str) -> int:
    """Size in bytes of the file behind a URI."""
    location = resolve(uri)
    if is_http(location):
        from training.data.web import declared_bytes

        with _http_response("HEAD", location) as response:
            if (declared := declared_bytes(response)) < 0:
                raise DataError(f"{uri}: the server does not say how large it is")
            return declared
    if is_remote(location):
        with in_store(location) as (system, place):
            return int(system.size(place))
    _check_file(uri, location)
    return os.path.getsize(location)


def check_unchanged(uri: str, job: Job) -> None:
    """Raise DataError if the file behind a URI is not the one for which the job was written."""
    expected = job.settings.get("data", {}).get(uri)
    if expected and (found := checksum_of(uri)) != expected:
        raise DataError(
            f"{uri}: sha256 {found[:12]}…, the job was written for {expected[:12]}…; run again to read what is there"
            " (if that changes nothing, `pedigree verify` reads every source again)"
        )


class UnreadRow(dict[str, Any]):
    """Stands for a line that could not be read, and says which and why."""

    reason = ""


def read_rows(
    uri: str, *, settings: Mapping[str, Any] | None = None, with_unread: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the rows behind a URI in file order, read by its suffix (FORMATS); JSON and parquet rows stay as they are.

    A text file is one row `{"text", "name"}`; a zip file is one such row for each of its `.txt` files, sorted by name.
    A generated file needs the job's `settings`. Raise DataError if the file is missing or damaged, or is not made of
    rows; `with_unread`, a line that is no row, or too long to be held, is an `UnreadRow` instead.
    """
    if generated.is_generated(uri):
        with generated.opened(uri, settings or {}) as stream:
            yield from json_lines(stream, uri, with_unread=with_unread)
        return
    if why := why_no_format(uri):
        raise DataError(f"{uri}: {why}")
    name = uri.rpartition("/")[2]
    with open_uri(uri) as stream:
        if name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")):
            yield from json_lines(stream, uri, with_unread=with_unread)
        elif name.endswith(".json"):
            yield from _json_rows(stream, uri, with_unread=with_unread)
        elif name.endswith(".parquet"):
            yield from _parquet_rows(seekable(stream), uri)
        elif name.endswith(".zip"):
            yield from _zip_rows(seekable(stream), uri)
        else:
            yield {"text": decoded(_whole(stream, uri), uri), "name": name}


def why_no_format(uri: str) -> str:
    """Return why the name of a file of rows names no format; empty if it names one, or the rows are generated."""
    if generated.is_generated(uri) or uri.endswith(FORMATS):
        return ""
    return f"unknown format; the name must end in one of {', '.join(FORMATS)}"


def json_lines(stream: BinaryIO, uri: str, *, with_unread: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of JSON lines, compressed by the suffix of `uri`; `with_unread` as in `read_rows`."""
    import zstandard

    from training.data.documents import TOO_LONG, bounded_lines, decompressed  # pyarrow comes with them

    number = 0
    try:
        with decompressed(stream, uri) as lines:
            for number, line in enumerate(bounded_lines(lines), 1):
                if line is None:
                    row = _unread(TOO_LONG)
                elif line.isspace():
                    continue
                else:
                    row = _row_of_line(line)
                if type(row) is UnreadRow:
                    if not with_unread:
                        raise DataError(f"{uri}: line {number} {row.reason}")
                    row = _unread_at(number, row.reason)
                yield row
    except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{uri}: damaged after line {number}: {error}") from None


def _row_of_line(line: bytes) -> dict[str, Any]:
    """Return the row of a line, or an `UnreadRow` that says why it is none."""
    try:
        value = json_of_row(str(line, "utf-8"))
    except UnicodeDecodeError:
        return _unread("is not UTF-8")
    except KeyTwice as error:
        return _unread(str(error))
    except RecursionError:
        return _unread("is nested too deep")
    except ValueError as error:
        return _unread(f"is not JSON: {error}")
    return value if isinstance(value, dict) else _unread(_no_object(value))


def _no_object(value: Any) -> str:
    return f"is no JSON object but {type(value).__name__}"


class KeyTwice(ValueError):
    """A key stands twice in one object of JSON, where a reader would keep the last value and drop the others."""


class WrittenFloat(float):
    """A number as a row has it: its text is the one in the row, such as 1.10."""

    _text: str

    def __new__(cls, text: str) -> WrittenFloat:
        """Return the number of a text."""
        found = super().__new__(cls, text)
        found._text = text
        return found

    def __str__(self) -> str:
        """Return the text of the number."""
        return self._text

    def __reduce__(self) -> tuple[type[WrittenFloat], tuple[str]]:
        """Return how the number is made again in another process."""
        return WrittenFloat, (self._text,)


def row_json(value: Any, *, sort_keys: bool = False, allow_nan: bool = False, default: Any = None) -> str:
    """Return a value of a row as JSON on one line, with its numbers as the row has them; options are json.dumps's."""
    if isinstance(value, WrittenFloat):
        return str(value)
    options = {"sort_keys": sort_keys, "allow_nan": allow_nan, "default": default}
    if isinstance(value, dict):
        named = sorted(value.items()) if sort_keys else value.items()
        return f"{{{', '.join(f'{row_json(str(name))}: {row_json(one, **options)}' for name, one in named)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(row_json(one, **options) for one in value)}]"
    return json.dumps(value, ensure_ascii=False, **options)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise KeyTwice(f"has the key {twice[:MOST_SHOWN]!r} twice in one object")
    return found


_AS_WRITTEN: Any = {"object_pairs_hook": _object, "parse_float": WrittenFloat}


def json_of_row(text: str | bytes) -> Any:
    """Return the value of a row's JSON. Raise ValueError if it is none, and KeyTwice if a key stands twice."""
    return json.loads(text, **_AS_WRITTEN)


_DECODER = json.JSONDecoder(**_AS_WRITTEN)


def _unread(reason: str) -> UnreadRow:
    row = UnreadRow()
    row.reason = reason
    return row


def _unread_at(number: int, reason: str) -> UnreadRow:
    row = _unread(reason)
    row |= {"line": number, "unread": reason}
    return row


def seekable(stream: BinaryIO) -> BinaryIO:
    """Return the stream if it is seekable, as parquet and zip need; otherwise a copy of it in a temporary file."""
    if stream.seekable():
        return stream
    whole = tempfile.TemporaryFile()  # noqa: SIM115 - removed when its last reader is gone
    shutil.copyfileobj(stream, whole, 1 << 20)
    whole.seek(0)
    return whole


def _json_rows(stream: BinaryIO, uri: str, *, with_unread: bool) -> Iterator[dict[str, Any]]:
    number = 0
    try:
        for number, value in enumerate(_listed(stream), 1):
            row = value if isinstance(value, dict) else _unread(_no_object(value))
            if type(row) is UnreadRow:
                if not with_unread:
                    raise DataError(f"{uri}: value {number} of the list {row.reason}")
                row = _unread_at(number, row.reason)
            yield row
    except (ValueError, RecursionError) as error:
        said = error.msg if isinstance(error, json.JSONDecodeError) else error
        place = f"behind value {number} of it" if number else "at its beginning"
        raise DataError(f"{uri}: expected a list of JSON objects; {place}: {said}") from None


def _listed(stream: BinaryIO) -> Iterator[Any]:
    """Yield the values of a list in JSON, of which few are held at once; one with a key twice is an `UnreadRow`.

    Raise ValueError if it is no whole list, or if a value has more than MAX_LINE_BYTES characters.
    """
    from training.data.documents import MAX_LINE_BYTES, TOO_LONG

    buffered = io.BufferedReader(cast(Any, stream))
    with io.TextIOWrapper(buffered, json.detect_encoding(buffered.peek(4)), "surrogatepass", newline="\n") as text:
        held, wanted = "", CHARACTERS
        while len(held) < 2 and (more := text.read(CHARACTERS)):
            held = (held + more).lstrip(BLANKS)
            held = held[:1] + held[1:].lstrip(BLANKS)
        if held[:1] != "[":
            raise ValueError("there is no [")
        at, sign = (2, "]") if held[1:2] == "]" else (1, "")
        while sign != "]":
            try:
                value, sign, at = _value_at(held, at)
            except ValueError:  # it may be cut
                if len(held) - at > MAX_LINE_BYTES:
                    raise ValueError(f"the next value {TOO_LONG}, or is none") from None
                if not (more := text.read(wanted)):
                    raise
                held, at = (held[at:] + more).lstrip(BLANKS), 0
                wanted = min(2 * wanted, MAX_LINE_BYTES // 4)
            else:
                wanted = CHARACTERS
                yield value
        if held[at:] or any(more.strip(BLANKS) for more in iter(partial(text.read, CHARACTERS), "")):
            raise ValueError("there is more behind its end")


def _value_at(text: str, at: int) -> tuple[Any, str, int]:
    """Parse the JSON value at an offset of a list's text; return it, the `,` or `]` behind it, and the next offset."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except KeyTwice as error:
        value, end = _unread(str(error)), json.JSONDecoder().raw_decode(text, at)[1]
    if not (behind := _BEHIND.match(text, end)):
        raise ValueError("neither , nor ] is behind it")
    return value, behind[1], behind.end()


def _parquet_rows(stream: BinaryIO, uri: str) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    from training.data.parquet_pages import RowTooLarge, UntrustedParquet

    parquet = UntrustedParquet(stream, uri)
    try:
        for group in range(len(parquet.group_rows)):
            yield from parquet.rows(group)
    except (pa.ArrowException, OSError, RowTooLarge) as error:
        raise DataError(f"{uri}: not a readable parquet file: {error}") from None


def _zip_rows(stream: BinaryIO, uri: str) -> Iterator[dict[str, Any]]:
    try:
        with zipfile.ZipFile(stream) as archive:
            texts = [one for one in archive.infolist() if one.filename.endswith(".txt")]
            if not texts:
                raise DataError(f"{uri}: no .txt file in it")
            for one in sorted(texts, key=lambda one: one.filename):  # by the entry: two may have the same name
                name = f"{uri}: {one.filename}"
                with archive.open(one) as member:
                    yield {"text": decoded(_bounded(member, name), name), "name": one.filename}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{uri}: not a readable zip file: {error}") from None


def _whole(stream: BinaryIO, uri: str) -> bytes:
    try:
        from training.data.documents import decompressed

        with decompressed(stream, uri) as raw:
            return _bounded(raw, uri)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{uri}: damaged: {error}") from None


def _bounded(stream: IO[bytes], name: str) -> bytes:
    """Return the bytes of a file that is read as a whole. Raise DataError if there are too many."""
    data = stream.read(MAX_WHOLE_BYTES + 1)
    if len(data) > MAX_WHOLE_BYTES:
        raise DataError(f"{name}: more than {MAX_WHOLE_BYTES >> 20} MiB to be held at once; write it as lines of JSON")
    return data


def decoded(data: bytes, name: str) -> str:
    """Return a text file's bytes as text: by a byte-order mark of Unicode, as UTF-8, otherwise as Windows-1252.

    Line ends become newlines. Raise DataError where the last is likely wrong: of a byte that it lacks, of signs
    between letters, of letters that no language has together which it can write, of a byte 0, or of UTF-8 with a broken
    byte; and of a text that has so many bytes 0 as UTF-16 without a mark.
    """
    charset = next((charset for mark, charset in MARKS if data.startswith(mark)), "utf-8")
    if charset == "utf-8" and data.count(0) > len(data) * ZEROS:
        raise DataError(f"{name}: byte {data.index(0)} is 0, as in UTF-16 without a mark; save it as UTF-8")
    try:
        text = data.decode(charset)
    except UnicodeDecodeError as error:
        if charset != "utf-8":
            wrong = f"begins as {charset.upper()} does, and is not from byte {error.start} on"
            raise DataError(f"{name}: {wrong}") from None
        text = data.decode("cp1252", errors="replace")
        if "\ufffd" in text or b"\0" in data or is_mostly_utf_8(data) or not _is_western(data, text):
            raise DataError(f"{name}: not UTF-8 from byte {error.start} on; save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_mostly_utf_8(data: bytes) -> bool:
    """Whether two thirds of the bytes beyond ASCII belong to whole characters of UTF-8, and some do."""
    whole = len(data.decode("utf-8", "ignore").encode().translate(None, ASCII))
    return whole > 0 and whole >= MOSTLY * len(data.translate(None, ASCII))


def _is_western(data: bytes, text: str) -> bool:
    """Whether the letters beyond ASCII, save a few, are those of one Western language, or not many and of several."""
    beyond, found = data.translate(None, ASCII), Counter[str]()
    for byte in range(128, 256):  # counting a gigabyte's characters one by one takes minutes
        letter = bytes([byte]).decode("cp1252", "replace").lower()
        if letter.isalpha() and letter not in SIGNS:
            found[letter] += beyond.count(byte)
    total = found.total()
    few = FOREIGN_SHARE * total

    def fits(letters: str) -> bool:
        return sum(number for letter, number in found.items() if letter not in letters) <= max(1, few)

    if len(MISREAD.findall(text)) > few:
        return False
    if total <= WESTERN_LETTERS or any(map(fits, (*ALPHABETS, *ALPHABETS_ALONE))):
        return True
    return total <= WESTERN_SHARE * len(text) and fits("".join(ALPHABETS))

"""Choose records of archives by index files: CDX files or the columnar index, as Common Crawl publishes both.

A line of a CDX file ends in a JSON object with `filename`, `offset`, `length`, `url`, `mime-detected` and `languages`;
a row of the columnar index has the columns of COLUMNS. One process reads the index files, one after another; it holds
16 bytes for each selected record. An index that is damaged, ends early or lacks a field used by a filter is refused,
because it would silently select too few records.

Formats: https://github.com/commoncrawl/cc-index-table, https://pywb.readthedocs.io/en/latest/manual/indexing.html.
"""

from __future__ import annotations

import gzip
import json
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa

from training.contract.job import DataError
from training.data.address_lists import address_list
from training.data.crawl.settings import SelectionRecipe
from training.data.documents import TOO_LONG, bounded_lines, decompressed
from training.data.parquet_pages import UntrustedParquet
from training.data.sources import open_uri, seekable

PARQUET = (".parquet",)
CDX = (".cdx", ".cdx.gz", ".cdxj", ".cdxj.gz", ".json", ".jsonl", ".json.gz", ".jsonl.gz", ".gz")
SUFFIXES = (*PARQUET, *CDX)
PLACE = ("filename", "offset", "length")
FILTERS = {"hosts": "url", "languages": "languages", "mime_types": "mime-detected"}
COLUMNS = {
    "filename": "warc_filename",
    "offset": "warc_record_offset",
    "length": "warc_record_length",
    "url": "url_host_name",
    "languages": "content_languages",
    "mime-detected": "content_mime_detected",
}
"""Names in a CDX file, and the columns of the columnar index with the same content (of `url`, the host)."""

Row = dict[str, Any]  # by the names of a CDX file


@dataclass(slots=True)
class Chosen:
    """The selected records of one archive, in the order of the index."""

    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("Q"))

    def in_order(self, name: str) -> tuple[list[int], list[int]]:
        """Return the offsets and lengths by offset, each record once. Raise DataError if two records overlap."""
        pairs = sorted(set(zip(self.offsets, self.lengths, strict=True)))
        for (offset, length), (following, _) in pairwise(pairs):
            if offset + length > following:
                raise DataError(
                    f"snapshots.select.index: {name}: the record at {offset} has {length} bytes, and another begins at"
                    f" {following}; the index is damaged"
                )
        return [offset for offset, _ in pairs], [length for _, length in pairs]


def selected(
    recipe: SelectionRecipe, files: Iterable[str], names: Collection[str]
) -> tuple[dict[str, Chosen], Counter[str]]:
    """Return the selected records of the archives `names`, by archive, and the counts of the index's records.

    The counts are `records`, `elsewhere` (of other archives), `refused` (by a filter) and `selected`.
    """
    wanted = {place: FILTERS[place] for place in FILTERS if getattr(recipe, place)}
    accepts = _filter(recipe)
    chosen: dict[str, Chosen] = {}
    counts: Counter[str] = Counter()
    for file in files:
        read = _parquet_rows if file.endswith(PARQUET) else _cdx_rows
        for row in read(file, wanted):
            counts["records"] += 1
            name = row["filename"].rpartition("/")[2]
            if name not in names:
                counts["elsewhere"] += 1
            elif not accepts(row):
                counts["refused"] += 1
            else:
                counts["selected"] += 1
                one = chosen.setdefault(name, Chosen())
                one.offsets.append(row["offset"])
                one.lengths.append(row["length"])
    return chosen, counts


def _filter(recipe: SelectionRecipe) -> Callable[[Row], bool]:
    hosts = address_list(recipe.hosts, "domain")
    languages, mime_types = frozenset(recipe.languages), frozenset(recipe.mime_types)

    def accepts(row: Row) -> bool:
        if mime_types and (row["mime-detected"] or "").lower() not in mime_types:
            return False
        if languages and languages.isdisjoint((row["languages"] or "").lower().split(",")):
            return False
        return not recipe.hosts or hosts.find(row["url"] or "") is not None

    return accepts


def _checked(row: Row, where: str) -> Row:
    """Return a row of an index whose file name, offset and length are usable. Raise DataError for any other row."""
    name = row["filename"]
    try:
        row["offset"], row["length"] = int(row["offset"]), int(row["length"])
    except (TypeError, ValueError):
        row["offset"], row["length"] = -1, 0
    if not isinstance(name, str) or not name or row["offset"] < 0 or row["length"] <= 0:
        raise DataError(f"{where}: no place of a record: file {name!r}, offset and length must be whole numbers")
    return row


# CDX


def _cdx_rows(file: str, wanted: dict[str, str]) -> Iterator[Row]:
    """Yield the records of a CDX file. `wanted` are the filters in use, with the names that they need.

    Only HTML pages have languages, so a single record may lack them; if all records do, the index is of another kind.
    """
    number = 0
    missing = set(wanted)
    for number, line in enumerate(_lines(file), 1):
        row = _object(line, f"{file}, line {number}")
        missing -= {place for place in missing if row.get(wanted[place]) is not None}
        for name in (*PLACE, *({"url"} if "hosts" in wanted else ())):
            if name not in row:
                raise DataError(f"{file}, line {number}: no {name!r}; this is not a whole CDX record")
        yield _checked({name: row.get(name) for name in COLUMNS}, f"{file}, line {number}")
    if number == 0:
        raise DataError(f"{file}: no records; an index that lists nothing selects nothing")
    if missing:
        place = min(missing)
        raise DataError(f"{file}: none of {number} records has {wanted[place]!r}, which snapshots.select.{place} needs")


def _lines(file: str) -> Iterator[bytes]:
    """Yield the lines of a CDX file. Raise DataError if the file is damaged or ends in the middle of a line."""
    line = b"\n"
    try:
        with open_uri(file) as stream, decompressed(stream, file) as lines:
            for number, found in enumerate(bounded_lines(lines), 1):
                if found is None:
                    raise DataError(f"{file}: line {number} {TOO_LONG}")
                line = found
                yield line
    except (EOFError, OSError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{file}: the index is damaged or ends early: {error}") from None
    if not line.endswith(b"\n"):
        raise DataError(f"{file}: the index ends in the middle of a line: {line[-60:]!r}")


def _object(line: bytes, where: str) -> Row:
    """Return the JSON object at the end of a line of a CDX file.

    Before the object, the line may have the key and the time of the capture.
    """
    start = line.find(b"{")
    try:
        row = json.loads(line[start:]) if start >= 0 else None
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}; the index is damaged or ends early") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: no JSON object; a line of a CDX file ends in one")
    return row


# The columnar index


def _parquet_rows(file: str, wanted: dict[str, str]) -> Iterator[Row]:
    """Yield the records of a parquet file. Raise DataError if it is damaged or lacks a column that is needed."""
    names = [*PLACE, *wanted.values()]
    columns = [COLUMNS[name] for name in names]
    try:
        with open_uri(file) as stream:
            parquet = UntrustedParquet(seekable(stream), file)
            if lacking := [column for column in columns if column not in parquet.names]:
                raise DataError(
                    f"{file}: no column {lacking[0]!r}, which snapshots.select needs; it has {', '.join(parquet.names)}"
                )
            groups = range(len(parquet.group_rows))
            for batch in chain.from_iterable(parquet.batches(group, columns) for group in groups):
                values = [batch.column(column).to_pylist() for column in columns]
                for row in zip(*values, strict=True):
                    found = dict(zip(names, row, strict=True))
                    yield _checked(found | {"url": f"//{found.get('url') or ''}"}, file)
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{file}: the index is damaged or ends early: {error}") from None

"""Compare the speed of reading WARC files by warcio, FastWARC and this project: the figures of docs/extraction.md.

    PEDIGREE_DATA=… python -m benchmarks.reading [--pairs 5] [FILE …]

Each reader reads every record with its whole block, once with HTTP headers of responses parsed, and once with unparsed
blocks (warcio's `no_record_parse`, its fastest way). CPU time of one process, in interleaved rounds; a ratio is the
median over the rounds. Before anything is timed, all three must find the same records with the same bytes, by a digest
over all of them, and every response must have the bytes of its WARC digests.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from training.data.crawl.warc import Record, read_warc
from training.data.extract.extract import _check_digests, _response
from training.data.extract.responses import PayloadError, parse_response
from training.data.sources import resolve

FILES = ("data://crawl/snapshot-1/web-00-00000.warc.gz", "data://crawl/snapshot-2/web-00-00000.warc.gz")


Take = Callable[[bytes], object]
"""What is done with each record's bytes: its HTTP body, or its block where there is none."""


def by_warcio(path: Path, take: Take, *, parsed: bool) -> int:
    """Read every record with warcio, passing its bytes to `take`; return the number of records."""
    from warcio.archiveiterator import ArchiveIterator

    records = 0
    with open(path, "rb") as stream:
        for record in ArchiveIterator(stream, no_record_parse=not parsed):
            records += 1
            take(record.raw_stream.read())
    return records


def by_fastwarc(path: Path, take: Take, *, parsed: bool) -> int:
    """Read every record with FastWARC, passing its bytes to `take`; return the number of records."""
    from fastwarc.warc import ArchiveIterator

    records = 0
    with open(path, "rb") as stream:
        for record in ArchiveIterator(stream, parse_http=parsed):
            records += 1
            take(record.reader.read())
    return records


def by_us(path: Path, take: Take, *, parsed: bool) -> int:
    """Read every record with this project's reader, passing its bytes to `take`; return the number of records."""
    records = 0
    for item in read_warc(path, max_content_bytes=1 << 30):
        assert isinstance(item, Record), item
        records += 1
        is_http = parsed and item.headers.get("content-type", "").startswith("application/http")
        if is_http and item.type == "response":
            take(parse_response(item.buffer, item.start, item.end).body)
        elif is_http:
            take(item.buffer[item.buffer.index(b"\r\n\r\n", item.start) + 4 : item.end])
        else:
            take(item.content)
    return records


READERS: dict[str, Callable[..., int]] = {"warcio": by_warcio, "FastWARC": by_fastwarc, "ours": by_us}


def found(read: Callable[..., int], path: Path, *, parsed: bool) -> tuple[int, int, str]:
    """Return the number of records, of bytes, and a digest over the bytes and lengths of all records in order."""
    sizes: list[int] = []
    digest = sha256()

    def take(data: bytes) -> None:
        sizes.append(len(data))
        digest.update(len(data).to_bytes(8, "big") + data)

    return read(path, take, parsed=parsed), sum(sizes), digest.hexdigest()[:16]


def check_digests(path: Path) -> int:
    """Exit with a message if a response does not have the bytes of its WARC digests; return how many state a digest."""
    stated = 0
    for item in read_warc(path, max_content_bytes=1 << 30):
        if isinstance(item, Record) and item.type == "response" and "warc-payload-digest" in item.headers:
            stated += 1
            try:
                _check_digests(item, _response(item))
            except PayloadError as error:
                raise SystemExit(f"{path}, record at {item.offset}: {error}") from None
    return stated


def main() -> None:
    """Compare the three readers on each file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    for uri in options.files:
        path = Path(resolve(uri))
        size, digests = path.stat().st_size / 1e6, check_digests(path)
        print(f"{uri}: {size:.1f} MB, {digests} responses with the bytes of their digests")
        for parsed in (True, False):
            compare(path, options.pairs, parsed=parsed)


def compare(path: Path, pairs: int, *, parsed: bool) -> None:
    """Time the three readers on one file, with HTTP headers parsed or not.

    Exits with a message if their records differ.
    """
    made = {name: found(read, path, parsed=parsed) for name, read in READERS.items()}
    if len(set(made.values())) != 1:
        raise SystemExit(f"{path}: the readers differ, so there is nothing to compare: {made}")
    records, size, digest = made["ours"]
    seconds: dict[str, list[float]] = {name: [] for name in READERS}
    for _ in range(pairs):
        for name, read in READERS.items():
            started = time.process_time()
            read(path, len, parsed=parsed)
            seconds[name].append(time.process_time() - started)
    what = "HTTP headers parsed" if parsed else "blocks as they are"
    print(f" {what}: {records} records, {size} bytes alike by all ({digest})")
    for name, own in seconds.items():
        ratios = sorted(first / mine for first, mine in zip(seconds["warcio"], own, strict=True))
        print(
            f"  {name}: {records / statistics.median(own):.0f} records/s/core,"
            f" {statistics.median(ratios):.2f} [{ratios[0]:.2f}-{ratios[-1]:.2f}] times warcio"
        )


if __name__ == "__main__":
    main()

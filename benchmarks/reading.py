"""WARC files read by warcio, FastWARC and ours: the figures of docs/extraction.md.

    PEDIGREE_DATA=… python -m benchmarks.reading [--pairs 5] [FILE …]

Each reads every record and its whole block, and parses the HTTP headers of responses. CPU time of one process, in
interleaved rounds; a ratio is the median over the rounds. All three must find the same bytes, or the ratio is void.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from training.data.responses import parse_response
from training.data.sources import resolve
from training.data.warc import Record, read_warc

FILES = ("data://crawl/snapshot-1/web-00-00000.warc.gz", "data://crawl/snapshot-2/web-00-00000.warc.gz")


def by_warcio(path: Path) -> tuple[int, int]:
    """Records, and bytes of HTTP bodies and other blocks."""
    from warcio.archiveiterator import ArchiveIterator

    records = size = 0
    with open(path, "rb") as stream:
        for record in ArchiveIterator(stream):
            records += 1
            size += len(record.raw_stream.read())
    return records, size


def by_fastwarc(path: Path) -> tuple[int, int]:
    """The same by FastWARC."""
    from fastwarc.warc import ArchiveIterator

    records = size = 0
    with open(path, "rb") as stream:
        for record in ArchiveIterator(stream, parse_http=True):
            records += 1
            size += len(record.reader.read())
    return records, size


def by_us(path: Path) -> tuple[int, int]:
    """The same by the reader of this package."""
    records = size = 0
    for item in read_warc(path, max_content_bytes=1 << 30):
        assert isinstance(item, Record), item
        records += 1
        is_http = item.headers.get("content-type", "").startswith("application/http")
        if is_http and item.type == "response":
            size += len(parse_response(item.buffer, item.start, item.end).body)
        elif is_http:
            size += item.end - item.buffer.index(b"\r\n\r\n", item.start) - 4
        else:
            size += item.end - item.start
    return records, size


READERS: dict[str, Callable[[Path], tuple[int, int]]] = {"warcio": by_warcio, "FastWARC": by_fastwarc, "ours": by_us}


def main() -> None:
    """Time the three readers on each file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    for uri in options.files:
        path = Path(resolve(uri))
        found = {name: read(path) for name, read in READERS.items()}
        seconds: dict[str, list[float]] = {name: [] for name in READERS}
        for _ in range(options.pairs):
            for name, read in READERS.items():
                started = time.process_time()
                read(path)
                seconds[name].append(time.process_time() - started)
        print(f"{uri}: {path.stat().st_size / 1e6:.1f} MB, {found}")
        for name, own in seconds.items():
            ratios = sorted(first / mine for first, mine in zip(seconds["warcio"], own, strict=True))
            print(
                f"  {name}: {found[name][0] / statistics.median(own):.0f} records/s/core,"
                f" {statistics.median(ratios):.2f} [{ratios[0]:.2f}-{ratios[-1]:.2f}] times warcio"
            )


if __name__ == "__main__":
    main()

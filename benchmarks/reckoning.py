"""Reckon what a crawl of 90,000 WARC files costs on 100 nodes: hours, bytes, money, and numbers that may break it.

    python -m benchmarks.reckoning --root ROOT --recipe webdocs [--nodes 100 --cores 32 --price 0.04]

Processor seconds and bytes come from the records of the recipe's artifacts under the root, as they stand. Two things
do not. The time of extracting, scoring and filtering is that of `benchmarks.pipeline`, because a record leaves out what
the isolated extractor took. What a crawl is (`--files`, `--terabytes`, `--pages`) is an assumption, as cores and price
are. All is reckoned twice, by page and by byte of archive, because a page of Common Crawl is not one of the recipe.
Costs that do not grow (starts of processes, loading of compiled loops) are reckoned as if they did.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from training.data.dedup import shuffle
from training.data.dedup.blocks import packed, unpacked
from training.data.dedup.corpus import GROUP_BYTES, KEY_BYTES, MOST_GROUPS, MOST_RANGES, RANGE_BYTES

# `python -m benchmarks.pipeline --every 1 --pairs 5`, blocks, 2026-11-22: docs/log/benchmarks.md.
PIPELINE_SECONDS, PIPELINE_PAGES, PIPELINE_BYTES = 24.9, 2_749, 25_832_016
STAGES = ("document_signatures", "deduplicated_documents", "decontaminated_documents", "token_shards")
FIRST = ("extracted_documents", "document_scores", "filtered_documents")
EMPTY_SLICE_BYTES = 80  # sizes of six arrays, checksum and place (training/data/dedup/shuffle.py)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured, for all snapshots of a recipe together."""

    archive_bytes: int
    pages: int  # extracted
    signed: int  # documents that were signed
    seconds: Mapping[str, float]  # processor seconds by asset
    written: Mapping[str, int]  # bytes by asset


def main() -> None:
    """Print the reckoning by page and by byte."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--recipe", default="webdocs")
    parser.add_argument("--files", type=int, default=90_000)
    parser.add_argument("--terabytes", type=float, default=90)
    parser.add_argument("--pages", type=float, default=2.7e9)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--cores", type=int, default=32, help="of a node")
    parser.add_argument("--price", type=float, default=0.04, help="of a core for an hour")
    options = parser.parse_args()
    found = measured(options.root, options.recipe)
    print(f"measured: {found}")
    by_page = reckoned(found, options, options.pages / found.pages, options.pages / PIPELINE_PAGES)
    archive_bytes = options.terabytes * 1e12
    by_byte = reckoned(found, options, archive_bytes / found.archive_bytes, archive_bytes / PIPELINE_BYTES)
    print("| | by page | by byte |\n|---|---|---|")
    for name in by_page:
        print(f"| {name} | {by_page[name]:,.1f} | {by_byte[name]:,.1f} |")
    written, read, size = empty_slices(20_000)
    print(f"an empty slice of {size:.0f} bytes: {written * 1e6:.0f} µs to write, {read * 1e6:.0f} µs to read")


def measured(root: Path, recipe: str) -> Measured:
    """Return what the records of a recipe's artifacts say. Raise FileNotFoundError if it has none."""
    seconds = {asset: sum(one["cost"]["cpu_seconds"] for one in records(root, recipe, asset)) for asset in STAGES}
    written = {asset: sum(_bytes(one) for one in records(root, recipe, asset)) for asset in (*FIRST, *STAGES)}
    pages, signed = (
        sum(one["counts"]["kept"] for one in records(root, recipe, asset))
        for asset in ("extracted_documents", "document_signatures")
    )
    archive_bytes = sum(_bytes(one) for one in records(root, recipe, "crawl_archives"))
    return Measured(archive_bytes=archive_bytes, pages=pages, signed=signed, seconds=seconds, written=written)


def records(root: Path, recipe: str, asset: str) -> Iterator[dict[str, Any]]:
    """Yield the record of each of the recipe's artifacts of an asset."""
    places = sorted((root / "refs" / asset).glob(f"{recipe}@*.json"))
    if not places:
        raise FileNotFoundError(
            f"{root}: no artifact of {asset} of the recipe {recipe}; `pedigree run {recipe}` makes it"
        )
    for place in places:
        fingerprint = json.loads(place.read_text("utf-8"))["fingerprint"]
        yield json.loads((root / asset / fingerprint / "artifact.json").read_text("utf-8"))


def _bytes(record: Mapping[str, Any]) -> int:
    return sum(entry["bytes"] for entry in record["files"])


def reckoned(found: Measured, options: argparse.Namespace, times: float, pipeline_times: float) -> dict[str, float]:
    """Return what `times` as much as was measured costs, by what it is. The first stages are scaled for themselves."""
    core_hours = {"extract, score, filter": PIPELINE_SECONDS * pipeline_times / 3600}
    core_hours |= {asset: seconds * times / 3600 for asset, seconds in found.seconds.items()}
    total = sum(core_hours.values())
    node_hours = total / options.cores
    documents = found.signed * times
    filtered, signatures = (found.written[asset] * times for asset in ("filtered_documents", "document_signatures"))
    groups = min(options.files, filtered / GROUP_BYTES, MOST_GROUPS)
    ranges = min(MOST_RANGES, 1 << int(signatures * KEY_BYTES // RANGE_BYTES).bit_length())
    written = sum(found.written.values()) * times
    keys = signatures * KEY_BYTES
    return {
        **{f"core-hours: {name}": hours for name, hours in core_hours.items()},
        "core-hours": total,
        "node-hours": node_hours,
        "hours, all nodes busy": node_hours / options.nodes,
        "money": total * options.price,
        "TB of archives, read once": options.terabytes,
        "GB/s of archives, over these hours": options.terabytes * 1e3 / (node_hours / options.nodes * 3600),
        "TB written and kept": written / 1e12,
        "TB of keys handed over, written and read": keys / 1e12,
        "million documents signed": documents / 1e6,
        "dedup: groups": groups,
        "dedup: ranges": ranges,
        "dedup: GB of keys in a range": keys / ranges / 1e9,
        "dedup: million slices for candidates": 3 * groups * ranges / 1e6,
        "dedup: million slices of texts": groups * groups / 1e6,
        "dedup: GB of these slices if they are empty": groups * groups * EMPTY_SLICE_BYTES / 1e9,
    }


def empty_slices(count: int) -> tuple[float, float, float]:
    """Return the processor seconds that it takes to write and to read an empty slice of six arrays, and its bytes."""
    arrays = [np.empty(0, np.int64)] * 6
    with tempfile.TemporaryDirectory() as folder:
        job: Any = SimpleNamespace(fingerprint="0" * 32, output=folder)
        work: Any = SimpleNamespace(path=Path(folder))
        start = time.process_time()
        with shuffle.writing_slices(job, work, "texts", 0) as slices:
            for _ in range(count):
                slices.add(*packed(arrays))
        written = time.process_time()
        for place in range(count):
            unpacked(shuffle.read_slice(job, work, "texts", 0, place), [np.int64] * 6)
        read = time.process_time()
        size = Path(folder, shuffle.name_of("texts", 0)).stat().st_size
    return (written - start) / count, (read - written) / count, size / count


if __name__ == "__main__":
    main()

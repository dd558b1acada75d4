"""WARC files to filtered documents, beside datatrove's own pipeline on the same files.

    PEDIGREE_DATA=… python -m benchmarks.pipeline [--every 3] [--pairs 3] [--workers 2] [--extractors blocks …]

Every n-th HTML page of a real snapshot is copied into WARC files of one a worker with the header that says what they
are, without which datatrove's reader leaves pages out; copying is not counted. Then in turn: datatrove in a process of
its own, and the stages `extracted_documents`, `document_scores` and `filtered_documents` with each extractor, each in
its own process, starts included. Prints seconds by the clock, pages a second, the medians of paired ratios, and how far
the kept pages agree.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from warcio.archiveiterator import ArchiveIterator
from warcio.warcwriter import WARCWriter

from benchmarks.chain import PEDIGREE
from training.data.documents import read_documents, read_lines
from training.data.sources import resolve

FOLDER = "data://crawl/snapshot-1"
STAGES = ("extracted_documents", "document_scores", "filtered_documents")
RULES = ["url", "language", "gopher_repetition", "gopher_quality", "c4", "fineweb", "personal_data"]


@dataclass(frozen=True)
class Took:
    """One run: seconds by the clock, and the addresses of the pages that were kept. Both sides start processes of
    processes, whose processor time is not all told to whoever waits for them."""

    wall: float
    kept: frozenset[str]


def main() -> int:
    """Copy, run in turn, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--extractors", nargs="+", default=["blocks", "trafilatura"])
    options = parser.parse_args()
    runs: dict[str, list[Took]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pages = copy_pages(folder / "warc", options.every, options.workers)
        for number in range(options.pairs):
            runs["datatrove"].append(theirs(folder / "warc", folder / f"theirs-{number}", options.workers))
            for extractor in options.extractors:
                root = folder / f"ours-{number}-{extractor}"
                runs[extractor].append(ours(folder / "warc", root, extractor, options.workers))
            print(f"pair {number + 1}: {', '.join(f'{n} {r[-1].wall:.1f} s' for n, r in runs.items())}", flush=True)
    print(f"\n{pages} pages, {options.workers} workers, {options.pairs} rounds in turn\n")
    print("| | seconds | pages/s | ratio | kept | kept by both |")
    print("|---|---|---|---|---|---|")
    for name, took in runs.items():
        print(line_of(name, took, runs["datatrove"], pages))
    return 0


def line_of(name: str, took: list[Took], peer: list[Took], pages: int) -> str:
    """One row: medians; ratios are medians of pairs."""
    wall = statistics.median(one.wall for one in took)
    ratios = sorted(theirs.wall / own.wall for theirs, own in zip(peer, took, strict=True))
    shown = f"{statistics.median(ratios):.1f} [{ratios[0]:.1f}-{ratios[-1]:.1f}]"
    both = len(took[-1].kept & peer[-1].kept)
    return f"| {name} | {wall:.1f} | {pages / wall:.0f} | {shown} | {len(took[-1].kept)} | {both} |"


def copy_pages(folder: Path, every: int, files: int) -> int:
    """Copy every n-th HTML page into so many WARC files, with its payload type said. How many pages there are."""
    folder.mkdir()
    pages = 0
    with ExitStack() as stack:
        paths = [folder / f"{number:02d}.warc.gz" for number in range(files)]
        sinks = [WARCWriter(stack.enter_context(open(path, "wb")), gzip=True) for path in paths]
        for record in html_pages():
            if pages % every == 0:
                record.rec_headers.replace_header("WARC-Identified-Payload-Type", "text/html")
                sinks[pages // every % files].write_record(record)
            pages += 1
    return -(-pages // every)


def html_pages() -> Iterator[Any]:
    """warcio's records of HTML pages that were found, in order."""
    for path in sorted(Path(resolve(FOLDER)).glob("web-*-00000.warc.gz")):
        with open(path, "rb") as stream:
            for record in ArchiveIterator(stream):
                http = record.http_headers
                is_page = record.rec_type == "response" and http is not None and http.get_statuscode() == "200"
                if is_page and "html" in (http.get_header("content-type") or ""):
                    yield record


def theirs(source: Path, output: Path, workers: int) -> Took:
    """datatrove's pipeline, its start included."""
    started = time.monotonic()
    argv = [sys.executable, "-m", "benchmarks.datatrove_pipeline", str(source), str(output), str(workers)]
    subprocess.run(argv, check=True, capture_output=True)
    wall = time.monotonic() - started
    rows = [row for path in sorted(output.glob("*.jsonl.gz")) for row in read_lines(path)]
    return Took(wall, frozenset(row["metadata"]["url"] for row in rows))


def ours(source: Path, root: Path, extractor: str, workers: int) -> Took:
    """The three stages, by what their artifacts say they took; what the orchestrator adds is in docs/benchmarks.md."""
    root.mkdir()
    (root / "recipe.yaml").write_text(yaml.safe_dump(recipe(source, extractor)), "utf-8")
    (root / "profile.yaml").write_text(
        yaml.safe_dump({"name": "benchmark", "default": {"backend": "local", "workers": workers}}), "utf-8"
    )
    argv = [*PEDIGREE, "run", str(root / "recipe.yaml"), "--profile", str(root / "profile.yaml"), "--root", str(root)]
    done = subprocess.run(
        [*argv, "--until", STAGES[-1], "--json"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    made = json.loads(done.stdout.splitlines()[-1])["assets"]
    folders = [Path(cell["uri"]) for stage in STAGES for cell in made[stage].values()]
    cost = [json.loads((folder / "artifact.json").read_text("utf-8"))["cost"] for folder in folders]
    kept = {row["url"] for path in folders[-1].glob("documents/*.parquet") for row in read_documents(path, ["url"])}
    return Took(sum(one["wall_seconds"] for one in cost), frozenset(kept))


def recipe(source: Path, extractor: str) -> dict[str, object]:
    """The kitchen's filters with the rules and thresholds of datatrove's FineWeb example, on these files."""
    return {
        "extends": "kitchen",
        "name": "fineweb-rules",
        "snapshots": [{"name": "snapshot-1", "source": "warc", "label": "web", "paths": [f"{source}/*.warc.gz"]}],
        "extract": {"extractor": extractor},
        "quality": {"reference": ["data://text/c4_demo.jsonl.gz"], "snapshots": ["snapshot-1"], "negatives": 200},
        "filter": {
            "rules": RULES,
            "gopher_min_alphabetic_fraction": 0.8,
            "personal_data": ["email", "ip"],
            "min_kept_fraction": 0.01,
        },
        "tokenizer": {"snapshots": ["snapshot-1"]},
    }


if __name__ == "__main__":
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    sys.exit(main())

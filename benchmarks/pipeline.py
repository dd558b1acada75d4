"""Compare the stages from WARC files to filtered documents with datatrove's own pipeline on the same files.

    PEDIGREE_DATA=… python -m benchmarks.pipeline [--every 3] [--pairs 3] [--workers 2] [--extractors blocks …]
    PEDIGREE_DATA=… python -m benchmarks.pipeline --snapshots snapshot-1 snapshot-2 --responses --every 1

Every n-th HTML page of real snapshots (with `--responses` every n-th response of any kind, of which both have 4,688) is
copied into one WARC file per worker, with the header that states its type, without which datatrove's reader skips
pages; copying is not counted. Then run in turns: datatrove in a process of its own, and the stages that make
`extracted_documents`, `document_scores` and `filtered_documents` with each extractor, each in its own process, starts
included. Printed are processor seconds of all processes, wall seconds, the medians of paired ratios of both, how far
the kept pages agree, and the quality of each side's extractor on pages whose main text is known.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from warcio.archiveiterator import ArchiveIterator
from warcio.warcwriter import WARCWriter

from benchmarks import extraction
from benchmarks.chain import PEDIGREE
from benchmarks.rounds import ratios, spread
from training.contract.job import read_job, write_job
from training.data.documents import document_id, read_documents, read_lines
from training.data.sources import resolve

FOLDER = "data://crawl"
SNAPSHOT = "snapshot-1"  # what the copies of whichever are called
STAGES = ("extracted_documents", "document_scores", "filtered_documents")
RULES = ["url", "language", "gopher_repetition", "gopher_quality", "c4", "fineweb"]
EXTRACT: dict[str, dict[str, Any]] = {
    "resiliparse": {"extractor": "resiliparse"},
    "blocks": {"extractor": "blocks"},
    "blocks_or_trafilatura": {"extractor": "blocks_or_trafilatura"},
    "trafilatura": {"extractor": "trafilatura", "languages": ["en"]},
    "trafilatura, every page": {"extractor": "trafilatura"},
}
"""What the recipe says under `extract`. The peer looks at languages after extraction; before it is part of ours."""
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Took:
    """Results of one run.

    They are processor and wall seconds, and the record ids of the kept pages.
    """

    cpu: float
    wall: float
    kept: frozenset[str]


def main() -> None:
    """Copy the pages, run both sides in turns, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--extractors", nargs="+", default=["blocks", "trafilatura"], choices=EXTRACT)
    parser.add_argument("--snapshots", nargs="+", default=["snapshot-1"], help="folders of the crawl")
    parser.add_argument("--responses", action="store_true", help="of every kind and status, not HTML pages alone")
    parser.add_argument("--peer-fast", action="store_true", help="datatrove with trafilatura's fast way")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pages = copy_pages(folder / "warc", options)
        jobs = {name: prepared(folder, name) for name in options.extractors}
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)  # so that processes whose parents ended are told to this one
        compared(jobs, pages, folder, options)


Pages = Mapping[str, str]
"""Our document id of each copied record, and its WARC-Record-ID, by which the peer knows it."""


def compared(jobs: Mapping[str, list[Path]], pages: Pages, folder: Path, options: argparse.Namespace) -> None:
    """Run both sides in turns, and print times, agreement and the quality of both sides' extractors."""
    runs: dict[str, list[Took]] = defaultdict(list)
    mode = ("fast",) if options.peer_fast else ()
    for number in range(options.pairs):
        runs["datatrove"].append(theirs(folder / "warc", folder / f"theirs-{number}", options.workers, *mode))
        for name, some in jobs.items():
            runs[name].append(ours(some, options.workers, pages))
        shown = (f"{n} {r[-1].cpu:.1f} s CPU, {r[-1].wall:.1f} s" for n, r in runs.items())
        print(f"pair {number + 1}: {'; '.join(shown)}", flush=True)
    print(f"\n{len(pages)} records, {options.workers} workers, {options.pairs} rounds in turn\n")
    print("| | processor seconds | ratio | seconds by the clock | ratio | records/s/core | kept | kept by both |")
    print("|---|---|---|---|---|---|---|---|")
    for name, took in runs.items():
        print(line_of(name, took, runs["datatrove"], len(pages)))
    print("\n| F1 on labelled pages | part | articles | readability | segments |\n|---|---|---|---|---|")
    peer = "trafilatura-datatrove-fast" if options.peer_fast else "trafilatura-datatrove"
    for name in dict.fromkeys([peer, *(EXTRACT[name]["extractor"] for name in jobs)]):
        for part, found in quality(name).items():
            print(f"| {name} | {part} | {' | '.join(f'{value:.3f}' for value in found)} |", flush=True)


def quality(name: str) -> dict[str, list[float]]:
    """Return an extractor's F1 on each set of labelled pages, for the held-out part and for all pages."""
    extract = extraction.make_extractor(name)
    chosen = extraction.pages()
    texts = {page.id: extract(page.html) for page in chosen}
    made = {}
    for part in ("held-out", "all"):
        groups = ([p for p in chosen if p.group == group and part in (p.part, "all")] for group in extraction.GROUPS)
        made[part] = [extraction.score(group, texts)[2] for group in groups]
    return made


def rows_of(output: Path, folder: str, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one folder of an artifact's documents, such as `dropped`."""
    for path in sorted(output.glob(f"{folder}/*.parquet")):
        yield from read_documents(path, columns)


def line_of(name: str, took: list[Took], peer: list[Took], pages: int) -> str:
    """Return one row of the table: median seconds, and medians of paired ratios with their range."""
    cells = []
    for unit in ("cpu", "wall"):
        own = [getattr(one, unit) for one in took]
        cells += [f"{median(own):.1f}", spread(ratios([getattr(one, unit) for one in peer], own))]
    rate = pages / median(one.cpu for one in took)
    both = len(took[-1].kept & peer[-1].kept)
    return f"| {name} | {' | '.join(cells)} | {rate:.0f} | {len(took[-1].kept)} | {both} |"


def measured(*commands: list[str]) -> tuple[float, float]:
    """Run commands one after the other; return processor seconds of all their processes, and wall seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    for command in commands:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.monotonic() - started
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:  # none is left
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def copy_pages(folder: Path, options: argparse.Namespace) -> dict[str, str]:
    """Copy every n-th record into one WARC file per worker, with its type stated for HTML.

    Return the WARC-Record-ID, which datatrove uses, for each document id of this project.
    """
    folder.mkdir()
    made = {}
    paths = [folder / f"{number:02d}.warc.gz" for number in range(options.workers)]
    with ExitStack() as stack:
        sinks = [stack.enter_context(open(path, "wb")) for path in paths]
        for number, record in enumerate(responses(options.snapshots, every_kind=options.responses)):
            if number % options.every:
                continue
            turn = number // options.every % options.workers
            if is_html(record):
                record.rec_headers.replace_header("WARC-Identified-Payload-Type", "text/html")
            id = document_id(SNAPSHOT, paths[turn].name, sinks[turn].tell())
            made[id] = record.rec_headers.get_header("WARC-Record-ID")
            WARCWriter(sinks[turn], gzip=True).write_record(record)
    return made


def responses(snapshots: list[str], *, every_kind: bool) -> Iterator[Any]:
    """Yield warcio's records of HTML pages with status 200, or of every response, in order."""
    for snapshot in snapshots:
        for path in sorted(Path(resolve(f"{FOLDER}/{snapshot}")).glob("web-*-00000.warc.gz")):
            with open(path, "rb") as stream:
                for record in ArchiveIterator(stream):
                    is_response = record.rec_type == "response" and record.http_headers is not None
                    if is_response and (every_kind or (is_html(record) and status_of(record) == "200")):
                        yield record


def is_html(record: Any) -> bool:
    return "html" in (record.http_headers.get_header("content-type") or "")


def status_of(record: Any) -> str:
    return record.http_headers.get_statuscode()


def theirs(source: Path, output: Path, workers: int, *mode: str) -> Took:
    """Run datatrove's pipeline in a process of its own; return its results."""
    argv = [sys.executable, "-m", "benchmarks.datatrove_pipeline", str(source), str(output), str(workers), *mode]
    cpu, wall = measured(argv)
    kept = (row["id"] for path in output.glob("*.jsonl.gz") for row in read_lines(path))
    return Took(cpu, wall, frozenset(kept))


def prepared(folder: Path, name: str) -> list[Path]:
    """Run the recipe once; return the job files of the three stages."""
    root = folder / name
    root.mkdir()
    (root / "recipe.yaml").write_text(yaml.safe_dump(recipe(folder / "warc", EXTRACT[name])), "utf-8")
    done = subprocess.run(
        [*PEDIGREE, "run", str(root / "recipe.yaml"), "--root", str(root), "--until", STAGES[-1], "--json"],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    made = json.loads(done.stdout.splitlines()[-1])["assets"]
    (root / "jobs").mkdir()
    jobs = []
    for stage in STAGES:
        (cell,) = made[stage].values()
        jobs.append(Path(shutil.copy(Path(cell["uri"], "job.json"), root / "jobs" / f"{stage}.json")))
    return jobs


def ours(jobs: list[Path], workers: int, pages: Pages) -> Took:
    """Run this project's three stages from their job files, as a compute backend starts them; return the results."""
    outputs = []
    for path in jobs:
        job = read_job(path)
        write_job(replace(job, run=replace(job.run, workers=workers)), path)
        outputs.append(Path(job.output))
        shutil.rmtree(outputs[-1])
    cpu, wall = measured(*([sys.executable, "-m", "training", str(path)] for path in jobs))
    kept = frozenset(pages[row["id"]] for row in rows_of(outputs[-1], "documents", ["id"]))
    return Took(cpu, wall, kept)


def recipe(source: Path, extract: Mapping[str, Any]) -> dict[str, object]:
    """Write a recipe for these files with the rules and thresholds of datatrove's FineWeb example; return its path."""
    return {
        "extends": "kitchen",
        "name": "fineweb-rules",
        "snapshots": [{"name": SNAPSHOT, "source": "warc", "label": "web", "paths": [f"{source}/*.warc.gz"]}],
        "extract": dict(extract),
        "quality": {"reference": ["data://text/c4_demo.jsonl.gz"], "snapshots": [SNAPSHOT], "negatives": 200},
        "filter": {
            "rules": [*RULES, "personal_data"],
            "personal_data": ["email", "ip"],
            "gopher_min_alphabetic_fraction": 0.8,
            "c4_min_words_per_line": 3,
            "min_kept_fraction": 0.01,
        },
        "tokenizer": {"snapshots": [SNAPSHOT]},
    }


if __name__ == "__main__":
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    main()

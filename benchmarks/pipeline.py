"""WARC files to filtered documents, beside datatrove's own pipeline on the same files.

    PEDIGREE_DATA=… python -m benchmarks.pipeline [--every 3] [--pairs 3] [--workers 2] [--extractors blocks …]
    PEDIGREE_DATA=… python -m benchmarks.pipeline --steady [--every 10]

Every n-th HTML page of a real snapshot is copied into WARC files of one a worker with the header that says what they
are, without which datatrove's reader leaves pages out; copying is not counted. Then in turn: datatrove in a process of
its own, and the stages `extracted_documents`, `document_scores` and `filtered_documents` with each extractor, each in
its own process, starts included. Prints processor seconds of everything that was started, seconds by the clock, the
medians of paired ratios of both, and how far the kept pages agree.

`--steady` runs ours alone, with one worker, with two, and with two beside two loops that take a core each: exit code 1
when one artifact differs in a byte.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
EXTRACT: dict[str, dict[str, Any]] = {
    "blocks": {"extractor": "blocks"},
    "trafilatura": {"extractor": "trafilatura", "languages": ["en"]},
    "trafilatura, every page": {"extractor": "trafilatura"},
}
"""What the recipe says under `extract`. The peer looks at languages after extraction; before it is part of ours."""
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Took:
    """One run: processor seconds of all its processes, seconds by the clock, the addresses of the pages that were kept,
    and the digests of what was made."""

    cpu: float
    wall: float
    kept: frozenset[str]
    digests: tuple[str, ...] = ()


def main() -> int:
    """Copy, run in turn, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--extractors", nargs="+", default=["blocks", "trafilatura"], choices=EXTRACT)
    parser.add_argument("--steady", action="store_true", help="whether load and workers change anything")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pages = copy_pages(folder / "warc", options.every, options.workers)
        jobs = {name: prepared(folder / "warc", folder / name, EXTRACT[name]) for name in options.extractors}
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)  # so that processes whose parents ended are told to this one
        return steady(jobs, pages) if options.steady else compared(jobs, pages, folder, options)


def compared(jobs: Mapping[str, list[Path]], pages: int, folder: Path, options: argparse.Namespace) -> int:
    """Both sides in turn."""
    runs: dict[str, list[Took]] = defaultdict(list)
    for number in range(options.pairs):
        runs["datatrove"].append(theirs(folder / "warc", folder / f"theirs-{number}", options.workers))
        for name, some in jobs.items():
            runs[name].append(ours(some, options.workers))
        shown = (f"{n} {r[-1].cpu:.1f} s CPU, {r[-1].wall:.1f} s" for n, r in runs.items())
        print(f"pair {number + 1}: {'; '.join(shown)}", flush=True)
    print(f"\n{pages} pages, {options.workers} workers, {options.pairs} rounds in turn\n")
    print("| | processor seconds | ratio | seconds by the clock | ratio | pages/s/core | kept | kept by both |")
    print("|---|---|---|---|---|---|---|---|")
    for name, took in runs.items():
        print(line_of(name, took, runs["datatrove"], pages))
    return 0


def line_of(name: str, took: list[Took], peer: list[Took], pages: int) -> str:
    """One row: medians; ratios are medians of pairs, with their range."""
    cells = []
    for unit in ("cpu", "wall"):
        own = [getattr(one, unit) for one in took]
        ratios = sorted(getattr(one, unit) / mine for one, mine in zip(peer, own, strict=True))
        cells += [
            f"{statistics.median(own):.1f}",
            f"{statistics.median(ratios):.1f} [{ratios[0]:.1f}-{ratios[-1]:.1f}]",
        ]
    rate = pages / statistics.median(one.cpu for one in took)
    both = len(took[-1].kept & peer[-1].kept)
    return f"| {name} | {' | '.join(cells)} | {rate:.0f} | {len(took[-1].kept)} | {both} |"


def steady(jobs: Mapping[str, list[Path]], pages: int) -> int:
    """Whether what is made depends on workers or on load."""
    differ = False
    for name, some in jobs.items():
        runs = {}
        for workers, loops in ((1, 0), (2, 0), (2, 2)):
            runs[workers, loops] = ours(some, workers, loops)
            print(f"{name}, {workers} workers, {loops} loops: {runs[workers, loops].wall:.1f} s", flush=True)
        same = len({took.digests for took in runs.values()}) == 1
        differ |= not same
        kept = len(runs[1, 0].kept)
        print(f"{name}: {pages} pages, {kept} kept; {'the same bytes' if same else 'OTHER BYTES'} in {len(runs)} runs")
    return 1 if differ else 0


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that each take a core."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def measured(*commands: list[str], loops: int = 0) -> tuple[float, float]:
    """Processor seconds and seconds by the clock of commands one after the other, and of all that they start, busy
    loops beside them too."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with busy(loops):
        for command in commands:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall = time.monotonic() - started
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:  # none is left
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


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
    """datatrove's pipeline."""
    argv = [sys.executable, "-m", "benchmarks.datatrove_pipeline", str(source), str(output), str(workers)]
    cpu, wall = measured(argv)
    rows = [row for path in sorted(output.glob("*.jsonl.gz")) for row in read_lines(path)]
    return Took(cpu, wall, frozenset(row["metadata"]["url"] for row in rows))


def prepared(source: Path, root: Path, extract: Mapping[str, Any]) -> list[Path]:
    """The job files of the three stages, after one run of the recipe."""
    root.mkdir()
    (root / "recipe.yaml").write_text(yaml.safe_dump(recipe(source, extract)), "utf-8")
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


def ours(jobs: list[Path], workers: int, loops: int = 0) -> Took:
    """The three stages from their job files, as any backend starts them."""
    outputs = []
    for path in jobs:
        job = json.loads(path.read_text("utf-8"))
        job["run"]["workers"] = workers
        path.write_text(json.dumps(job), "utf-8")
        outputs.append(Path(job["output"]))
        shutil.rmtree(outputs[-1])
    cpu, wall = measured(*([sys.executable, "-m", "training", str(path)] for path in jobs), loops=loops)
    digests = tuple(json.loads((folder / "artifact.json").read_text("utf-8"))["digest"] for folder in outputs)
    kept = {row["url"] for path in outputs[-1].glob("documents/*.parquet") for row in read_documents(path, ["url"])}
    return Took(cpu, wall, frozenset(kept), digests)


def recipe(source: Path, extract: Mapping[str, Any]) -> dict[str, object]:
    """The kitchen's filters with the rules and thresholds of datatrove's FineWeb example, on these files."""
    return {
        "extends": "kitchen",
        "name": "fineweb-rules",
        "snapshots": [{"name": "snapshot-1", "source": "warc", "label": "web", "paths": [f"{source}/*.warc.gz"]}],
        "extract": dict(extract),
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

"""Measure what a stage costs before its work counts: processor seconds of its job on a root with few pages.

    pedigree run kitchen-small --root ROOT      (with PEDIGREE_RECIPES=tests/recipes)
    python -m benchmarks.starts ROOT [--assets extracted_documents sft_model] [--rounds 3]

Each artifact's job is made again in a new folder by a process of its own. Counted are all processes that it starts,
also workers that no process waits for. The least of the rounds counts. Work on the small root's data is included, so
the figure is an upper bound of imports and starts.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.dedup import processor_seconds
from evaluation.stages import STAGES
from training.job import Job, read_job, write_job

PR_SET_CHILD_SUBREAPER = 36  # orphans of the jobs become children of this process, which waits for them


def main() -> None:
    """Print the processor seconds of every artifact's job, in the order in which they were made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="a finished root")
    parser.add_argument("--assets", nargs="+", default=[], help="only these assets")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        sys.exit("prctl: this kernel lets no process adopt orphans, so workers would not be counted")
    for job in jobs(options.root):
        if not options.assets or job.asset in options.assets:
            print(f"{job.partition} {job.asset}: {min(seconds(job) for _ in range(options.rounds)):.2f} s", flush=True)


def jobs(root: Path) -> Iterator[Job]:
    """Yield the jobs of all artifacts under a root, oldest first."""
    for path in sorted(root.glob("*/*/job.json"), key=lambda path: path.stat().st_mtime):
        yield read_job(path)


def seconds(job: Job) -> float:
    """Make a job in a new folder; return the processor seconds of all processes that this starts."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, job.asset, job.fingerprint)
        folder.mkdir(parents=True)
        write_job(replace(job, output=str(folder)), folder / "job.json")
        package = STAGES[job.stage].package if job.stage in STAGES else "training"
        began = processor_seconds()
        done = subprocess.run([sys.executable, "-m", package, str(folder / "job.json")], capture_output=True, text=True)
        while any_child_left():
            pass
        if done.returncode:
            sys.exit(f"{job.asset}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        return processor_seconds() - began


def any_child_left() -> bool:
    """Wait for the next child of this process to end; return False if it has none."""
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main()

"""`make faults`: kill every stage of the small kitchen at random moments, run it again, compare the digests.

Prints, for each stage, how often it was killed and whether the artifact came out with the same digest. Exit code 1 when
one differed, or could not be caught running. SIGKILL goes to the whole process group, so nothing gets a chance to tidy
up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.chain import PEDIGREE
from training.job import read_job, write_job

MOST_ATTEMPTS = 4  # to catch it running, for each kill
RECIPES = Path(__file__).parent.parent / "tests" / "recipes"


def main() -> int:
    """Kill, repeat, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5, help="of each stage")
    parser.add_argument("--until", default="", help="stop after this asset")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        reference = run(Path(temporary) / "reference", options.until)
        print("| asset | partition | kills | same digest |", "|---|---|---|---|", sep="\n", flush=True)
        rows = [
            row
            for asset, cells in reference["assets"].items()
            for row in disturb(asset, cells, options.kills, random.Random(options.seed))
        ]
    return 0 if rows and all(row["same"] and row["kills"] for row in rows) else 1


def line_of(row: dict[str, Any]) -> str:
    """One row of the table."""
    return f"| {row['asset']} | {row['partition']} | {row['kills']} | {'yes' if row['same'] else 'NO'} |"


def run(root: Path, until: str) -> dict[str, Any]:
    """The small kitchen, undisturbed."""
    argv = [*PEDIGREE, "run", "kitchen-small", "--root", str(root), "--json", *(["--until", until] if until else [])]
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, "PEDIGREE_RECIPES": str(RECIPES)}
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def disturb(asset: str, cells: dict[str, Any], kills: int, chance: random.Random) -> list[dict[str, Any]]:
    """Run the stage's own job again in another folder, killing it at random moments, until it is through."""
    rows = []
    for partition, entry in cells.items():
        source = Path(entry["uri"])
        job = read_job(source / "job.json")
        with tempfile.TemporaryDirectory() as temporary:
            job_file = Path(temporary) / "job.json"
            write_job(replace(job, output=str(Path(temporary) / asset / job.fingerprint)), job_file)
            found = killed_often(job_file, entry["digest"], kills, chance)
            rows.append({"asset": asset, "partition": partition} | found)
            print(line_of(rows[-1]), flush=True)
    return rows


def killed_often(job_file: Path, digest: str, kills: int, chance: random.Random) -> dict[str, Any]:
    """How often the stage was killed, and whether every artifact it then made has the digest."""
    job = json.loads(job_file.read_text("utf-8"))
    asset, output = job["asset"], Path(job["output"])

    def is_same() -> bool:
        found: str = json.loads((output / "artifact.json").read_text("utf-8"))["digest"]
        shutil.rmtree(output)
        return found == digest

    # Its first run's seconds would not do: what a machine does once, compiling say, is in them.
    seconds = finish(job_file, asset)
    same, killed = is_same(), 0
    for _ in range(MOST_ATTEMPTS * kills):
        if killed_once(job_file, asset, chance.uniform(0.2, 1.0) * seconds):
            killed += 1
        else:
            same = is_same() and same
        if killed == kills:
            break
    finish(job_file, asset)
    return {"kills": killed, "same": is_same() and same}


def command(job_file: Path, asset: str) -> list[str]:
    """What runs the stage without Dagster."""
    from assets.chain import CHAIN

    return [sys.executable, "-m", *CHAIN[asset].argv, str(job_file)]


def killed_once(job_file: Path, asset: str, seconds: float) -> bool:
    """Start the stage and kill its process group after `seconds`; whether it was still running then."""
    process = subprocess.Popen(command(job_file, asset), start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def finish(job_file: Path, asset: str) -> float:
    """Run the stage to its end. Seconds that it took."""
    started = time.monotonic()
    subprocess.run(command(job_file, asset), check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())

"""Kill runs that keep steps of a training at random moments, and compare the kept steps with those of a whole run.

`python -m benchmarks.kept_kills --kills 20`. The small kitchen keeps seven of its base model's 40 steps. SIGKILL ends
all processes of a run a random time after the weights or the record of a further step appeared, so that about every
second kill falls between the two. The same command then goes on, and from the plan again when a run came to its end.
The exit code is 1 if a digest differs from those of the run that nobody killed.
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
from contextlib import suppress
from pathlib import Path

import psutil

PROJECT = Path(__file__).resolve().parent.parent
STEPS = range(5, 40, 5)
RECIPE = f"""
extends: kitchen-small
name: keep
pretrain: {{tokens: 163840, keep: {{steps: {[*STEPS]}}}}}
"""


def main() -> int:
    """Run the recipe whole, then with kills; print what was there at each kill, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, kills, rounds = random.Random(options.seed), 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "keep.yaml").write_text(RECIPE)
        finished(folder / "planned", "training_plan")
        wanted = ended(folder, "whole")
        while kills < options.kills or not rounds:
            kills, found = disturbed(folder, chance, kills, options.kills)
            rounds += 1
            print(f"round {rounds}, {kills} kills: {'the same digests' if found == wanted else f'DIFFERENT: {found}'}")
            if found != wanted:
                return 1
    print(f"{kills} kills in {rounds} rounds: {len(wanted)} digests are those of the run that nobody killed")
    return 0


def disturbed(folder: Path, chance: random.Random, kills: int, most: int) -> tuple[int, dict[str, str]]:
    """Run from the plan on to the end, with kills until there were `most`; return their number and the digests."""
    root = copied(folder, "killed")
    while kills < most:
        run = started(root, "kept_steps")
        wanted = sum(there(root)) + chance.randint(1, 3)
        while run.poll() is None and sum(there(root)) < wanted:
            time.sleep(0.004)
        time.sleep(chance.choice((0.0, chance.uniform(0, 0.05), chance.uniform(0, 0.5))))
        if run.poll() is not None:
            return kills, digests(root)
        kill(run, root)
        kills += 1
        print("kill {}: the weights of {} steps, the records of {}".format(kills, *there(root)), flush=True)
    return kills, ended(folder, "killed")


def ended(folder: Path, name: str) -> dict[str, str]:
    """Return the digests of a root after a run of it, from the plan on if there is none."""
    root = folder / name if (folder / name).exists() else copied(folder, name)
    finished(root, "kept_steps")
    return digests(root)


def copied(folder: Path, name: str) -> Path:
    """Return a new root in which all is made up to the plan."""
    shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(folder / "planned", folder / name, symlinks=True)
    return folder / name


def started(root: Path, until: str) -> subprocess.Popen[bytes]:
    """Start the run of a root, in a session of its own."""
    command = ("from assets.commands.cli import main; main()", "run", str(root.parent / "keep.yaml"))
    return subprocess.Popen(
        [sys.executable, "-c", *command, "--root", str(root), "--until", until],
        env={**os.environ, "PEDIGREE_RECIPES": str(PROJECT / "tests" / "recipes"), "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def finished(root: Path, until: str) -> None:
    """Run a root to its end. Raise RuntimeError if that fails."""
    if code := started(root, until).wait():
        raise RuntimeError(f"{root}: exit code {code}")


def kill(run: subprocess.Popen[bytes], root: Path) -> None:
    """Kill every process that names the root, the run among them."""
    for process in psutil.process_iter(["cmdline"]):
        if process.pid != os.getpid() and any(str(root) in word for word in process.info["cmdline"] or ()):
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
    run.wait()


def there(root: Path) -> tuple[int, int]:
    """Return how many kept steps have their weights, and how many their record."""
    kept = root / "kept_steps"
    return len([*kept.glob("*/model/*.safetensors")]), len([*kept.glob("*/artifact.json")])


def digests(root: Path) -> dict[str, str]:
    """Return the digest of the base model and of each kept step, by partition."""
    files = [file for asset in ("base_model", "kept_steps") for file in (root / asset).glob("*/artifact.json")]
    records = [json.loads(file.read_text("utf-8")) for file in files]
    return {f"{one['asset']} {one['partition']}": one["digest"] for one in records}


if __name__ == "__main__":
    sys.exit(main())

"""`make soak`: run a recipe again and again while processes are killed about every minute, and compare the results.

Each round starts with an empty root. At random moments, `--every` seconds apart on average, one process group gets
SIGKILL: the orchestrator or a running stage. The command is then started again, as a person would do. It prints the
effective time (seconds of an undisturbed run ÷ seconds of the killed one) and exits with 1 if a digest differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.chain import PEDIGREE
from benchmarks.faults import RECIPES

Digests = dict[tuple[str, str], str]


@dataclass(kw_only=True)
class Round:
    """One run from an empty root to its end.

    It has the wall seconds, the number of commands, what was killed, and the resulting digests.
    """

    seconds: float = 0.0
    commands: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    digests: Digests = field(default_factory=dict)


def main() -> int:
    """Run rounds until the time is over, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=480, help="begin no further round after this")
    parser.add_argument("--every", type=float, default=60, help="mean seconds between faults")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    ends = time.monotonic() + 60 * options.minutes
    reference = one_round(None, chance)
    print(f"undisturbed: {reference.seconds:.0f} s, {len(reference.digests)} artifacts", flush=True)
    rounds: list[Round] = []
    while not rounds or time.monotonic() < ends:
        rounds.append(one_round(options.every, chance))
        print(line_of(rounds[-1], reference), flush=True)
    effective = statistics.fmean(reference.seconds / one.seconds for one in rounds)
    killed = sum((one.killed for one in rounds), Counter[str]())
    print(f"{len(rounds)} rounds, killed {dict(killed)}: effective time {effective:.0%}")
    return 0 if all(one.digests == reference.digests for one in rounds) else 1


def line_of(one: Round, reference: Round) -> str:
    """Return a round as one line of text."""
    differ = sorted(
        key for key in reference.digests | one.digests if reference.digests.get(key) != one.digests.get(key)
    )
    verdict = "same digests" if not differ else f"DIFFERENT: {differ}"
    return f"{one.seconds:.0f} s, {one.commands} commands, killed {dict(one.killed)}: {verdict}"


def one_round(every: float | None, chance: random.Random) -> Round:
    """Run the recipe in a new folder, with kills `every` seconds on average; without `every` it is undisturbed."""
    result = Round()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        root = Path(temporary)
        started = time.monotonic()
        while not result.digests:
            result.commands += 1
            result.digests = attempt(root, every, chance, result.killed)
        result.seconds = time.monotonic() - started
    return result


def attempt(root: Path, every: float | None, chance: random.Random, killed: Counter[str]) -> Digests:
    """Start the command once, with kills; return the digests if it succeeded, otherwise nothing."""
    argv = [*PEDIGREE, "run", "kitchen-small", "--root", str(root), "--json"]
    environment = {**os.environ, "PEDIGREE_RECIPES": str(RECIPES)}
    with (root / "progress.log").open("ab") as log:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True)
        output = b""
        while process.poll() is None:
            try:
                output, _ = process.communicate(timeout=chance.expovariate(1 / every) if every else None)
            except subprocess.TimeoutExpired:
                killed[kill_something(process.pid, root, chance)] += 1
    if process.returncode != 0:
        return {}
    assets = json.loads(output.splitlines()[-1])["assets"]
    return {(asset, key): cell["digest"] for asset, cells in assets.items() for key, cell in cells.items()}


def kill_something(orchestrator: int, root: Path, chance: random.Random) -> str:
    """Send SIGKILL to the orchestrator or a running stage, with everything that it started; return what was killed."""
    name, victim = chance.choice([("orchestrator", orchestrator), *stages_under(root)])
    try:
        os.killpg(os.getpgid(victim), signal.SIGKILL)
    except ProcessLookupError:
        return "nothing"  # it had just ended
    return name


def stages_under(root: Path) -> Iterator[tuple[str, int]]:
    """Return the running stages of this root: name of the asset and process id."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "-m" in words and words[-1].startswith(str(root)) and words[-1].endswith("job.json"):
            yield Path(words[-1]).parent.parent.name, process.pid


if __name__ == "__main__":
    sys.exit(main())

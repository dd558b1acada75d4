"""`make faults`: kill single processes of every kind while a real run makes a stage, and look at what is left.

Each cycle removes the artifact of one stage (a data stage, a training, a post-training, the promotion) from a copy of a
finished root, gives `pedigree run` again, and sends SIGKILL to one process of one kind at a random moment. A run that
did not come through is given again, as a person would. Then the digest must be that of an undisturbed run, and no
process, lease or temporary file may be left. Every kill is a line of the ledger, which adds up over releases;
`--summary` prints its table. Exit code 1 when a digest differed or something was left.
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
import uuid
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.chain import PEDIGREE

RECIPES = Path(__file__).parent.parent / "tests" / "recipes"
LEDGER = Path("runs/faults.jsonl")
VARIABLE = "PEDIGREE_FAULTS"  # carried by every process of a cycle, wherever it hides
END_SECONDS = 90.0  # what the tracker's writer may take to send what is left
MOST_COMMANDS = 6

EVERYWHERE = ("orchestrator", "supervisor", "tracker's writer")
IN_RANKS, BY_TORCHRUN = ("stage", "fork server", "worker", "extraction child"), ("torchrun", "rank")
TARGETS = {
    "extracted_documents": (*EVERYWHERE, *IN_RANKS),
    "base_model": (*EVERYWHERE, *BY_TORCHRUN),
    "sft_model": (*EVERYWHERE, *BY_TORCHRUN),
    "promoted_model": (*EVERYWHERE, "stage"),
}
WORDS = {
    "orchestrator": "from assets.cli import main",
    "supervisor": "supervise.py",
    "tracker's writer": "resources.tracking",
    "extraction child": "training.data.isolation",
    "torchrun": "torch.distributed.run",
    "fork server": "multiprocessing.forkserver",
    "resource tracker": "multiprocessing.resource_tracker",
    "stage": "job.json",
}
PROFILE = """\
name: faults
default: {workers: 2, threads: 1}
stages:
  base_model: {processes: 2, checkpoint_seconds: 0.3}
  sft_model: {processes: 2, checkpoint_seconds: 0.3}
"""


@dataclass(kw_only=True)
class Cycle:
    """One kill, and what came of it: a line of the ledger."""

    target: str
    kind: str
    killed: bool
    same: bool
    commands: int
    seconds: float
    left_processes: list[str]
    left_files: list[str]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost and nothing is left."""
        return self.same and not self.left_processes and not self.left_files


def main() -> int:
    """Kill until the number or the time is reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, help="a finished root of kitchen-small to copy; without, it is made first")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--ledger", type=Path, default=LEDGER, help="lines are added to this file")
    parser.add_argument("--summary", action="store_true", help="only print what the ledger holds")
    options = parser.parse_args()
    if options.summary:
        print(table(read_ledger(options.ledger)))
        return 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        cycles = kill_often(Path(temporary), options)
    print(table([asdict(cycle) for cycle in cycles]))
    return 0 if cycles and all(cycle.is_clean for cycle in cycles) else 1


def kill_often(folder: Path, options: argparse.Namespace) -> list[Cycle]:
    """One cycle after another, over targets and kinds in turn."""
    chance, deadline, cycles = random.Random(options.seed), time.monotonic() + 60 * options.minutes, []
    (folder / "faults.yaml").write_text(PROFILE)
    roots = {target: prepared(folder, target, options.root) for target in options.targets}
    pairs = [(target, kind) for target in options.targets for kind in TARGETS[target]]
    while sum(cycle.killed for cycle in cycles) < options.kills and time.monotonic() < deadline:
        target, kind = pairs[len(cycles) % len(pairs)]
        cycles.append(roots[target].cycle(kind, chance))
        note(options.ledger, cycles[-1])
        print(f"{len(cycles)}: {asdict(cycles[-1])}", flush=True)
    return cycles


def note(ledger: Path, cycle: Cycle) -> None:
    """Add a line to the ledger."""
    from assets.stage import code_revision

    ledger.parent.mkdir(parents=True, exist_ok=True)
    line = {"time": round(time.time()), "revision": code_revision()[:12], **asdict(cycle)}
    with open(ledger, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def read_ledger(ledger: Path) -> list[dict[str, Any]]:
    """Every line of the ledger."""
    return [json.loads(line) for line in ledger.read_text("utf-8").splitlines()]


def table(cycles: list[dict[str, Any]]) -> str:
    """Kills by target and kind, with what went wrong."""
    lines = ["| stage | process | kills | digest differs | processes left | files left |", "|---|---|---|---|---|---|"]
    kills: Counter[tuple[str, str, str]] = Counter()
    for cycle in cycles:
        key = cycle["target"], cycle["kind"]
        kills[*key, "kills"] += cycle["killed"]
        kills[*key, "differs"] += not cycle["same"]
        kills[*key, "processes"] += bool(cycle["left_processes"])
        kills[*key, "files"] += bool(cycle["left_files"])
    for key in dict.fromkeys((target, kind) for target, kind, _ in kills):
        numbers = " | ".join(str(kills[*key, what]) for what in ("kills", "differs", "processes", "files"))
        lines.append(f"| {key[0]} | {key[1]} | {numbers} |")
    return "\n".join([*lines, f"{sum(cycle['killed'] for cycle in cycles)} kills in {len(cycles)} cycles"])


def prepared(folder: Path, target: str, source: Path | None) -> Prepared:
    """A root of its own for a target, and what an undisturbed run makes there."""
    place = folder / target
    if source is not None:
        shutil.copytree(source, place, symlinks=True)
    root = Prepared(root=place, target=target, profile=folder / "faults.yaml")
    for _ in range(MOST_COMMANDS):
        # The first decision in a root may find another champion than all later ones; what is compared is what stays.
        before = root.digests
        root.make_undisturbed()
        if root.digests == before:
            return root
    raise RuntimeError(f"{target} comes out otherwise each time, with nobody in its way")


class Prepared:
    """A finished root in which one asset is made again and again."""

    def __init__(self, *, root: Path, target: str, profile: Path) -> None:
        self._root, self._target, self._profile = root, target, profile
        self.digests: dict[str, str] = {}
        self.seconds = 0.0

    def remove(self) -> None:
        """Take the target's artifacts away."""
        shutil.rmtree(self._root / self._target, ignore_errors=True)

    def make_undisturbed(self) -> None:
        """Make the target again with nobody in its way, and note what came out and how long that took."""
        self.remove()
        ran = self.start(str(uuid.uuid4()))
        output, _ = ran.communicate()
        found = json.loads(output.splitlines()[-1])
        if ran.returncode or self._target not in found["assets"]:
            raise RuntimeError(f"the undisturbed run of {self._target} failed: {found}")
        cells = found["assets"][self._target]
        self.digests = {key: cell["digest"] for key, cell in cells.items()}
        self.seconds = max(cell["seconds"] for cell in cells.values())

    def start(self, mark: str) -> subprocess.Popen[bytes]:
        """Give the command; everything that it starts carries the mark."""
        argv = [*PEDIGREE, "run", "kitchen-small", "--root", str(self._root), "--profile", str(self._profile)]
        environment = {**os.environ, "PEDIGREE_RECIPES": str(RECIPES), VARIABLE: mark}
        with open(self._root.with_suffix(".log"), "ab") as log:
            return subprocess.Popen(
                [*argv, "--until", self._target, "--json"], stdout=subprocess.PIPE, stderr=log, env=environment
            )

    def cycle(self, kind: str, chance: random.Random) -> Cycle:
        """Make the target again while one process of the kind is killed."""
        self.remove()
        mark, began = str(uuid.uuid4()), time.monotonic()
        run, commands, killed = self.start(mark), 1, False
        victim = await_kind(mark, kind, run)
        if victim:
            time.sleep(chance.uniform(0, self.seconds))
            killed = kill_one(living(mark).get(kind, []), chance)
        output, _ = run.communicate()
        while run.returncode and commands < MOST_COMMANDS:
            run, commands = self.start(mark), commands + 1
            output, _ = run.communicate()
        found = json.loads(output.splitlines()[-1])["assets"].get(self._target, {}) if output.strip() else {}
        return Cycle(
            target=self._target,
            kind=kind,
            killed=killed,
            same={key: cell["digest"] for key, cell in found.items()} == self.digests,
            commands=commands,
            seconds=round(time.monotonic() - began, 1),
            left_processes=left_processes(mark),
            left_files=self._left_files(),
        )

    def _left_files(self) -> list[str]:
        patterns = ("*/*/lease.json*", "*/*/scratch", "*/*/ranks", "**/.*.tmp", "**/*.part")
        return [str(path.relative_to(self._root)) for one in patterns for path in self._root.glob(one)]


def await_kind(mark: str, kind: str, run: subprocess.Popen[bytes]) -> bool:
    """Whether a process of the kind lives while the stage is made; False when the run ended without."""
    while run.poll() is None:
        there = living(mark)
        if kind in there and "supervisor" in there:
            return True
        time.sleep(0.02)
    return False


def kill_one(pids: list[int], chance: random.Random) -> bool:
    """SIGKILL for one of them; whether there was one."""
    if not pids:
        return False
    try:
        os.kill(chance.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def living(mark: str) -> dict[str, list[int]]:
    """The living processes that carry the mark, by kind."""
    found: dict[str, list[int]] = {}
    kinds: dict[int, str] = {}
    for pid in sorted(int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
        seen = _look_at(pid, mark)
        if seen is None:
            continue
        parent, said = seen
        kind = next((kind for kind, words in WORDS.items() if words in said), said)
        if kind == "fork server" and kinds.get(parent) == "fork server":
            kind = "worker"
        elif kind == "stage" and kinds.get(parent) == "torchrun":
            kind = "rank"
        kinds[pid] = kind
        found.setdefault(kind, []).append(pid)
    return found


def _look_at(pid: int, mark: str) -> tuple[int, str] | None:
    """Parent and command line of a living process that carries the mark."""
    place = Path(f"/proc/{pid}")
    try:
        if f"{VARIABLE}={mark}".encode() not in (place / "environ").read_bytes().split(b"\0"):
            return None
        state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
        said = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return None
    return None if state == "Z" else (int(parent), said)


def left_processes(mark: str) -> list[str]:
    """The kinds of processes that live on when the last command has ended and the tracker's writer had its time."""
    deadline = time.monotonic() + END_SECONDS
    while (there := living(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = sorted(there)
    for pid in (pid for pids in there.values() for pid in pids):
        os.kill(pid, signal.SIGKILL)
    return left


if __name__ == "__main__":
    sys.exit(main())

"""`make faults`: kill processes while real runs make an artifact, and check that the result is right.

Processes of every kind are killed, one at a time.

Each cycle removes the artifact of one stage (a data stage, a training, a post-training, the promotion) from a copy of a
finished root, starts `pedigree run` again, and sends SIGKILL to one process of one kind at a random moment. When that
process has a successor, a process of another kind is killed. A run that failed is started again, as a person would do.
In the end the result must equal that of an undisturbed run, and no process or file may be left that such a run does not
leave. Every cycle is a line of a ledger, which grows over the releases; `--summary` prints it as a table. The exit code
is 1 if a result differed or anything was left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.chain import PEDIGREE

RECIPES = Path(__file__).parent.parent / "tests" / "recipes"
LEDGER = Path(__file__).with_name("faults.jsonl")
VARIABLE = "PEDIGREE_FAULTS"  # carried by every process of a cycle, wherever it hides
END_SECONDS = 600.0  # what the tracker's writer may take to send what is left, on a machine that others use
LOOK_SECONDS = 0.05
MOST_FAILURES = 6  # commands of a cycle that end without having been killed
CYCLE_SECONDS = 1800.0

EVERYWHERE = ("orchestrator", "supervisor", "tracker's writer")
IN_RANKS, BY_TORCHRUN = ("stage", "fork server", "worker", "extraction child"), ("torchrun", "rank")
TARGETS = {
    "extracted_documents": (*EVERYWHERE, *IN_RANKS),
    "base_model": (*EVERYWHERE, *BY_TORCHRUN),
    "sft_model": (*EVERYWHERE, *BY_TORCHRUN),
    "promoted_model": (*EVERYWHERE, "stage"),
}
WORDS = {
    "orchestrator": "from assets.commands.cli import main",
    "supervisor": "supervise.py",
    "tracker's writer": "resources.tracking",
    "extraction child": "training.data.extract.isolation",
    "torchrun": "torch.distributed.run",
    "fork server": "multiprocessing.forkserver",
    "resource tracker": "multiprocessing.resource_tracker",
    "stage": "job.json",
}
# Retries by the orchestrator itself are what a month's training lives by; without them a person gives the command.
PROFILE = """\
name: faults
default: {workers: 2, threads: 1, retries: 20}
stages:
  base_model: {processes: 2, checkpoint_seconds: 0.3}
  sft_model: {processes: 2, checkpoint_seconds: 0.3}
"""


@dataclass(kw_only=True)
class Cycle:
    """One making of a target asset with kills, and its result; it is a line of the ledger.

    `kills` are the kinds of the processes that were killed, in order; `commands` is how often `pedigree run` was
    started.
    """

    target: str
    kills: list[str]
    same: bool
    commands: int
    seconds: float
    load: float
    left_processes: list[str]
    left_files: list[str]

    @property
    def is_clean(self) -> bool:
        """Whether the result was right and no process or file was left."""
        return self.same and not self.left_processes and not self.left_files


def main() -> int:
    """Run cycles until their number or the time is reached; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--in-a-row", type=int, default=12, help="most kills while a target is made once")
    parser.add_argument("--parallel", type=int, default=2, help="targets that are made at once")
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
    """Run cycles for several target assets at once; the next target is always the one with the least time so far."""
    (folder / "faults.yaml").write_text(PROFILE)
    source = options.root or finished(folder)
    began, cycles, spent = time.monotonic(), [], dict.fromkeys(options.targets, 0.0)
    with ThreadPoolExecutor(options.parallel) as threads:
        roots = {one: Prepared(folder, one, source, random.Random(f"{options.seed} {one}")) for one in options.targets}
        ready = dict(zip(roots, threads.map(Prepared.prepare, roots.values()), strict=True))
        under_way: dict[Future[Cycle], str] = {}
        while True:
            is_over = sum(len(one.kills) for one in cycles) >= options.kills
            is_over = is_over or time.monotonic() - began > 60 * options.minutes
            free = sorted((one for one in ready if one not in under_way.values()), key=spent.__getitem__)
            for target in [] if is_over else free[: options.parallel - len(under_way)]:
                under_way[threads.submit(ready[target].cycle, options.in_a_row)] = target
            if not under_way:
                return cycles
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for one in done:
                cycles.append(one.result())
                spent[under_way.pop(one)] += cycles[-1].seconds
                note(options.ledger, cycles[-1])
                kills = sum(len(one.kills) for one in cycles)
                print(f"{kills} kills, {time.monotonic() - began:.0f} s: {asdict(cycles[-1])}", flush=True)


def note(ledger: Path, cycle: Cycle) -> None:
    """Append a cycle to the ledger as a line."""
    from assets.materialize.jobs import code_revision

    ledger.parent.mkdir(parents=True, exist_ok=True)
    line = {"time": round(time.time()), "revision": code_revision()[:12], **asdict(cycle)}
    with open(ledger, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def read_ledger(ledger: Path) -> list[dict[str, Any]]:
    """Return every cycle in the ledger."""
    return [json.loads(line) for line in ledger.read_text("utf-8").splitlines()]


def table(cycles: list[dict[str, Any]]) -> str:
    """Return a table by target and kind of process.

    It has the kills, and the cycles with such a kill in which something failed.
    """
    lines = ["| stage | process | kills | result differs | processes left | files left |", "|---|---|---|---|---|---|"]
    counts: Counter[tuple[str, str, str]] = Counter()
    for cycle in cycles:
        for kind, kills in Counter(cycle["kills"]).items():
            key = cycle["target"], kind
            counts[*key, "kills"] += kills
            counts[*key, "differs"] += not cycle["same"]
            counts[*key, "processes"] += bool(cycle["left_processes"])
            counts[*key, "files"] += bool(cycle["left_files"])
    for target, kinds in TARGETS.items():
        for kind in kinds:
            numbers = [counts[target, kind, what] for what in ("kills", "differs", "processes", "files")]
            lines.append(f"| {target} | {kind} | {' | '.join(map(str, numbers))} |")
    bad = sum(not cycle["same"] or bool(cycle["left_processes"] or cycle["left_files"]) for cycle in cycles)
    kills = sum(len(cycle["kills"]) for cycle in cycles)
    return "\n".join([*lines, f"{kills} kills in {len(cycles)} cycles, {bad} of them not clean"])


def finished(folder: Path) -> Path:
    """Make a root in which the whole recipe is finished, and return its path."""
    subprocess.run(
        [*PEDIGREE, "run", "kitchen-small", "--root", str(folder / "finished")],
        env={**os.environ, "PEDIGREE_RECIPES": str(RECIPES)},
        check=True,
    )
    return folder / "finished"


class Prepared:
    """A copy of a finished root in which one asset is made again and again.

    It has a folder for temporary files of its own.
    """

    def __init__(self, folder: Path, target: str, source: Path, chance: random.Random) -> None:
        self._root, self._temporary = folder / target, folder / target[0]  # the paths of sockets are short
        self._target, self._profile, self._chance = target, folder / "faults.yaml", chance
        self._made: dict[str, Any] = {}
        self._files: set[str] = set()
        self._lives: dict[str, float] = {}
        self._turns: list[str] = []
        shutil.copytree(source, self._root, symlinks=True)
        if target != "promoted_model":
            # Without a model no command asks the registry, which costs it most of its time.
            shutil.rmtree(self._root / "aligned_model")
        self._temporary.mkdir()

    def prepare(self) -> Prepared:
        """Make the target once without kills, and record what came of it.

        Recorded are the result, the files, and how long each kind of process lives.
        """
        for _ in range(MOST_FAILURES):
            before, mark = self._made, str(uuid.uuid4())
            self._remove()
            run = self._start(mark)
            self._lives = lives(mark, run)
            output, _ = run.communicate()
            self._made = self._result(output)
            if run.returncode or not self._made["cells"] or left_processes(mark):
                raise RuntimeError(f"the undisturbed run of {self._target} failed: {output.decode()}")
            self._files = self._present()
            # The first decision in a root may find another champion than all later ones; what stays is compared.
            if self._target != "promoted_model" or self._made == before:
                return self
        raise RuntimeError(f"{self._target} comes out otherwise each time, with nobody in its way")

    def cycle(self, most_kills: int) -> Cycle:
        """Make the target again, and kill up to `most_kills` processes on the way, one at a time."""
        self._remove()
        mark, began = str(uuid.uuid4()), time.monotonic()
        command = Command(lambda: self._start(mark))
        kills: list[str] = []
        try:
            while len(kills) < most_kills and (kind := self._strike(mark, command)):
                kills.append(kind)
            output = command.result()
        finally:
            left = left_processes(mark)
        return Cycle(
            target=self._target,
            kills=kills,
            same=self._result(output) == self._made,
            commands=command.given,
            seconds=round(time.monotonic() - began, 1),
            load=round(os.getloadavg()[0], 1),
            left_processes=left,
            left_files=sorted(self._present() - self._files),
        )

    def _strike(self, mark: str, command: Command) -> str:
        """Kill a process of the next kind, at a random moment of its life, and wait for its successor; return the kind.

        If the target was made before that, return "", and the same kind is next again.
        """
        if not self._turns:
            self._turns = self._chance.sample(TARGETS[self._target], len(TARGETS[self._target]))
        kind = self._turns[-1]
        # Often early in its life: a target that was made before the next kill has to be made again for it.
        delay = self._chance.expovariate(6 / max(self._lives.get(kind, 0.0), LOOK_SECONDS))
        has_begun, due = False, 0.0
        for there in command.looks(mark):
            if not has_begun and "supervisor" in there and kind in there:
                has_begun, due = True, time.monotonic() + delay
            if has_begun and time.monotonic() >= due and kill_one(there.get(kind, []), self._chance):
                self._turns.pop()
                if kind != "tracker's writer":  # what it has not sent waits in a file for the next one
                    before = set(there[kind])
                    next((later for later in command.looks(mark) if set(later.get(kind, [])) - before), None)
                return kind
        return ""

    def _remove(self) -> None:
        shutil.rmtree(self._root / self._target, ignore_errors=True)

    def _start(self, mark: str) -> subprocess.Popen[bytes]:
        """Start `pedigree run`; every process that it starts has `mark` in its environment."""
        argv = [*PEDIGREE, "run", "kitchen-small", "--root", str(self._root), "--profile", str(self._profile)]
        environment = {
            **os.environ,
            "PEDIGREE_RECIPES": str(RECIPES),
            "TMPDIR": str(self._temporary),
            VARIABLE: mark,
        }
        with open(self._root.with_suffix(".log"), "ab") as log:
            return subprocess.Popen(
                [*argv, "--until", self._target, "--json"], stdout=subprocess.PIPE, stderr=log, env=environment
            )

    def _result(self, output: bytes) -> dict[str, Any]:
        """Return what a command made, from its JSON output.

        This is the digests of the target's artifacts and the state of the promotion.
        """
        answer = json.loads(output.splitlines()[-1]) if output.strip() else {}
        cells = answer.get("assets", {}).get(self._target, {})
        return {"cells": {key: cell["digest"] for key, cell in cells.items()}, "promotion": answer.get("promotion")}

    def _present(self) -> set[str]:
        """Return every file under the root, except those of Dagster and MLflow, and every temporary file.

        The journal of MLflow's database is the database's own: whoever opens it next undoes by it what a killed writer
        had begun. Files in `attempts/` have another name in each attempt, so their numbers are replaced.
        """
        own = (path.relative_to(self._root) for path in self._root.rglob("*"))
        others = (path.relative_to(self._temporary.parent) for path in self._temporary.rglob("*"))
        kept = {str(path) for path in own if path.parts[0] not in ("dagster", "tracking", "mlflow.db-journal")}
        return {re.sub(r"attempts/\d+", "attempts/N", path) for path in kept} | set(map(str, others))


class Command:
    """A command that is started again until it succeeds."""

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._start, self._run = start, start()
        self.given, self._failures = 1, 0
        self._deadline = time.monotonic() + CYCLE_SECONDS

    def looks(self, mark: str) -> Iterator[dict[str, list[int]]]:
        """Yield the living processes by kind, again and again until the command has succeeded."""
        while self._goes_on():
            yield living(mark)
            time.sleep(LOOK_SECONDS)

    def result(self) -> bytes:
        """Return the output of the command when it has succeeded."""
        while self._goes_on():
            time.sleep(LOOK_SECONDS)
        return self._run.communicate()[0]

    def _goes_on(self) -> bool:
        """Whether the command is still running; it is started again if it was killed or failed because of a kill."""
        code = self._run.poll()
        if code == 0 or self._failures > MOST_FAILURES:
            return False
        if time.monotonic() > self._deadline:
            self._run.kill()
            return False
        if code is not None:
            self._failures += code != -signal.SIGKILL
            if self._failures > MOST_FAILURES:
                return False
            self._run.communicate()
            self._run, self.given = self._start(), self.given + 1
        return True


def lives(mark: str, run: subprocess.Popen[bytes]) -> dict[str, float]:
    """Return for how many seconds processes of each kind lived.

    The time begins when the stage's own process is there.
    """
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    while run.poll() is None:
        there, now = living(mark), time.monotonic()
        for kind in there if "supervisor" in there or first else ():
            first.setdefault(kind, now)
            last[kind] = now
        time.sleep(LOOK_SECONDS)
    return {kind: last[kind] - first[kind] for kind in first}


def kill_one(pids: list[int], chance: random.Random) -> bool:
    """Send SIGKILL to one of the processes, chosen at random; return whether there was one."""
    if not pids:
        return False
    try:
        os.kill(chance.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def living(mark: str) -> dict[str, list[int]]:
    """Return the living processes that have the mark in their environment, by kind."""
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
    """Return parent and command line of a process if it is alive and has the mark in its environment.

    Otherwise the result is None.
    """
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
    """Return the kinds of processes that still live after the last command ended.

    MLflow's writer is given time to finish.
    """
    deadline = time.monotonic() + END_SECONDS
    while (there := living(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = sorted(there)
    for pid in (pid for pids in there.values() for pid in pids):
        os.kill(pid, signal.SIGKILL)
    return left


if __name__ == "__main__":
    sys.exit(main())

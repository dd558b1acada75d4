"""How long the running assets and the whole recipe will still take: from progress, earlier artifacts, or the plan.

A time for which there is none of these is None, not a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets.state.cell import Cell
from assets.state.chain import CHAIN
from training.contract import artifact
from training.contract.files.writing import read_sealed
from training.contract.progress import METRICS_FILE, read_metrics

PRIOR_SECONDS = 10.0  # as if assets that should take so long had taken so long: one short asset decides little
READ_RECORDS = 5  # newest artifacts of an asset whose records are read


@dataclass(frozen=True, slots=True)
class Expected:
    """Seconds that an asset is expected to take, and of them those after its last step, if they are known.

    `is_planned` says that nothing like it was made before: the seconds follow from the recipe and measured rates.
    """

    seconds: float
    after_steps: float | None = None
    is_planned: bool = False


class Running:
    """The asset that is being made: its last reported numbers, its phase, and the seconds that remain."""

    def __init__(self, cell: Cell, expected: Expected | None, clock: Callable[[], float]) -> None:
        self.cell = cell
        self.numbers: dict[str, float] = {}
        self.expected = expected
        self._clock = clock
        self._started = clock()
        self._first: tuple[float, dict[str, float]] | None = None  # time and numbers of the first row
        self._last_at = self._started
        self._phase = ""
        self._phase_at = self._started

    def see(self, row: dict[str, Any]) -> None:
        """Take into account a row of numbers that the job reported."""
        self.numbers |= {name: value for name, value in row.items() if isinstance(value, (int, float))}
        self._last_at = self._clock()
        self._first = self._first or (self._last_at, dict(self.numbers))

    def enter(self, phase: str) -> None:
        """Take into account that the job does something from now on that is not one of its steps."""
        self._phase, self._phase_at = phase, self._clock()

    @property
    def seconds(self) -> float:
        """The seconds for which the asset has been running."""
        return self._clock() - self._started

    @property
    def phase(self) -> tuple[str, float] | None:
        """What the job does besides its steps, and for how many seconds; None while it makes steps."""
        return (self._phase, self._clock() - self._phase_at) if self._phase else None

    @property
    def steps(self) -> tuple[int, int] | None:
        """Return (finished, total) steps or ranks; None if the job does not report the total."""
        total = self.numbers.get("steps", self.numbers.get("ranks"))
        return None if total is None else (int(self.numbers["step"]), int(total))

    @property
    def is_stepping(self) -> bool:
        """Whether steps or ranks are under way, and are not all finished."""
        return self.steps is not None and self.steps[0] < self.steps[1] and not self._phase

    def per_second(self, name: str) -> float | None:
        """Return how fast a reported number has risen since the first row; None as long as it has not risen."""
        if self._first is None or self._last_at <= self._first[0]:
            return None
        risen = self.numbers.get(name, 0.0) - self._first[1].get(name, 0.0)
        return risen / (self._last_at - self._first[0]) if risen > 0 else None

    @property
    def is_planned(self) -> bool:
        """Whether the remaining seconds follow from the plan, and not from its own steps or an earlier artifact."""
        return self.expected is not None and self.expected.is_planned and self._of_steps() is None

    @property
    def is_late(self) -> bool:
        """Whether the asset takes longer than expected, and nothing but this expectation was known."""
        return self.expected is not None and self._of_steps() is None and self.expected.seconds < self.seconds

    @property
    def seconds_left(self) -> float | None:
        """Return the remaining seconds: from the pace of the steps so far, from an earlier artifact, or from the plan.

        The result is None if none of these is known, or if the asset has taken longer than expected.
        """
        after = self.expected.after_steps if self.expected else None
        if (steps := self._of_steps()) is not None:
            return steps + (after or 0.0)
        if self.expected is None:
            return None
        if self.steps is not None and not self.is_stepping:
            left = None if after is None else after - (self._clock() - max(self._last_at, self._phase_at))
        else:
            left = self.expected.seconds - self.seconds
        return left if left is not None and left > 0 else None

    def _of_steps(self) -> float | None:
        """Return the seconds that the remaining steps take at the pace of those so far."""
        pace = self.per_second("step")
        if self.steps is None or pace is None or not self.is_stepping:
            return None
        return max(0.0, (self.steps[1] - self.steps[0]) / pace - (self._clock() - self._last_at))


class TimeLeft:
    """The cells that a run has to make, with the seconds that each is expected to take.

    `planned_seconds` returns the seconds of a cell that nothing like it was made before, or None. These estimates are
    multiplied by how much longer this run's assets have taken than they should have.
    """

    def __init__(
        self,
        root: Path,
        clock: Callable[[], float],
        planned_seconds: Callable[[Cell], float | None] = lambda cell: None,
    ) -> None:
        self._root, self._clock, self._planned_seconds = root, clock, planned_seconds
        self._expected: dict[tuple[str, str], Expected | None] = {}  # of the cells that are not made yet
        self._planned: dict[tuple[str, str], Cell] = {}
        self._started: dict[tuple[str, str], Running] = {}
        self._gaps: list[float] = []  # seconds between the end of an asset and the start of the next
        self._ended_at = clock()
        self._took, self._should = PRIOR_SECONDS, PRIOR_SECONDS  # of the planned assets that are made
        self.num_ended = 0

    def plan(self, cell: Cell) -> None:
        """Record that the run has to make this cell (an asset in a partition)."""
        self._planned[cell.key] = cell
        self._expected[cell.key] = self._expect(cell)

    def start(self, cell: Cell) -> Running:
        """Record that the run makes this cell (an asset in a partition) now."""
        self._gaps.append(self._clock() - self._ended_at)
        running = Running(cell, self._expected.pop(cell.key, None), self._clock)
        self._started[cell.key] = running
        return running

    def end(self, cell: Cell) -> None:
        """Record that this cell is made, or that an existing artifact is used for it."""
        self._planned.pop(cell.key, None)
        self._expected.pop(cell.key, None)
        running = self._started.pop(cell.key, None)
        if running and running.expected and running.expected.is_planned and (should := self._planned_seconds(cell)):
            self._took, self._should = self._took + running.seconds, self._should + should
        for key, one in self._planned.items():  # what is made now may tell how long others take
            if key in self._expected and ((expected := self._expected[key]) is None or expected.is_planned):
                self._expected[key] = self._expect(one)
        self._ended_at = self._clock()
        self.num_ended += 1

    def _expect(self, cell: Cell) -> Expected | None:
        if (earlier := earlier_expected(cell, self._root)) is not None:
            return earlier
        seconds = self._planned_seconds(cell)
        return None if seconds is None else Expected(seconds * self._took / self._should, is_planned=True)

    def num_cells(self, running: Sequence[Running]) -> int:
        """Return the number of cells (assets in partitions) of the whole run."""
        return self.num_ended + len(running) + len(self._expected)

    def of_recipe(self, running: Sequence[Running]) -> tuple[float, bool]:
        """Return seconds until everything is made, and whether the time of each cell is known.

        Cells whose time is unknown are left out. If several cells are being made at the same time, nobody knows how
        long as many will; the result is then the least that is possible with so many, and counts as not known.
        """
        parts = [one.seconds_left for one in running]
        parts += [one.seconds if one else None for one in self._expected.values()]
        known = [part for part in parts if part is not None]
        gaps = len(self._expected) * sum(self._gaps) / len(self._gaps) if known else 0.0
        if len(running) > 1:
            longest = max((one.seconds_left or 0.0 for one in running), default=0.0)
            return max(longest, (sum(known) + gaps) / len(running)), False
        return sum(known) + gaps, len(known) == len(parts)

    def is_planned(self, running: Sequence[Running]) -> bool:
        """Whether a part of the recipe's remaining time follows from the plan."""
        return any(one.is_planned for one in running) or any(one and one.is_planned for one in self._expected.values())


def earlier_expected(cell: Cell, root: Path) -> Expected | None:
    """Return what the earlier artifact that is most like the cell took, whole and after its last step."""
    found = _earlier(cell, root)
    return None if found is None else Expected(_seconds(*found), _after_steps(found[0]))


def earlier_seconds(cell: Cell, root: Path) -> float | None:
    """Seconds from submission to commit of the earlier artifact that is most like the cell; None without one.

    That is the artifact to which the partition's reference points; else the newest one of another snapshot of the
    recipe; else the newest one with equal settings.
    """
    found = _earlier(cell, root)
    return _seconds(*found) if found else None


def _earlier(cell: Cell, root: Path) -> tuple[Path, dict[str, Any]] | None:
    place, recipe = root / cell.asset, _recipe(cell.partition)
    own = place / cell.reference.fingerprint if cell.reference else place / cell.fingerprint
    by_snapshot = CHAIN[cell.asset].scope == "snapshot"
    others = list(_newest(place))
    alike = [
        *_records([own]),
        *((path, record) for path, record in others if by_snapshot and _recipe(record["partition"]) == recipe),
        *((path, record) for path, record in others if record["settings"] == cell.settings),
    ]
    return alike[0] if alike else None


def _recipe(partition: str) -> str:
    return partition.partition("@")[0]


def _newest(place: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    made = sorted(place.glob(f"*/{artifact.ARTIFACT_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    return _records([path.parent for path in made[:READ_RECORDS]])


def _records(folders: list[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in folders:
        try:
            record = read_sealed(folder / artifact.ARTIFACT_FILE)
        except (OSError, ValueError):
            continue  # not made, or damaged: `compare` reports it
        if {"seconds", "partition", "settings"} <= record.keys():
            yield folder, record


def _seconds(folder: Path, record: dict[str, Any]) -> float:
    """Return the seconds that a job took, including attempts that were resumed.

    Without a bill the record has only the seconds of the last attempt. The time of submission is that of the recipe's
    file, which is written then.
    """
    if "elapsed_seconds" in record.get("cost", {}):
        return record["cost"]["elapsed_seconds"]
    try:
        submitted = (folder / "recipe.json").stat().st_mtime
    except FileNotFoundError:
        return record["seconds"]
    return max(record["seconds"], (folder / artifact.ARTIFACT_FILE).stat().st_mtime - submitted)


def _after_steps(folder: Path) -> float | None:
    """Return the seconds between the last step that a job reported and its commit; None if it reported no steps."""
    rows = [row for row in read_metrics(folder / METRICS_FILE) if "steps" in row or "ranks" in row]
    if not rows:
        return None
    return max(0.0, (folder / artifact.ARTIFACT_FILE).stat().st_mtime - rows[-1]["time"])


def roughly(seconds: float | None) -> str:
    """An estimated duration in words; from one minute on it is rounded to minutes: `45 s`, `3 min`, `1 h 05 min`."""
    if seconds is None or seconds < 60:
        return in_words(seconds)
    return in_words(60 * max(1, round(seconds / 60))).removesuffix(" 00 s")


def in_words(seconds: float | None) -> str:
    """A duration such as `45 s`, `3 min 20 s` or `1 h 05 min`; `unknown` for None."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02} min"

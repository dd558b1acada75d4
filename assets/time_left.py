"""How long the running assets and the whole recipe will still take, from progress and from earlier artifacts.

A time for which there is neither progress nor an earlier artifact is None, not a guess.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from assets.chain import CHAIN
from assets.status import Cell
from training import artifact

READ_RECORDS = 5  # newest artifacts of an asset whose records are read


class Running:
    """The asset that is being made: its last reported numbers, and the seconds that remain."""

    def __init__(self, cell: Cell, expected: float | None, clock: Callable[[], float]) -> None:
        self.cell = cell
        self.numbers: dict[str, float] = {}
        self._expected, self._clock = expected, clock
        self._started = clock()
        self._first: tuple[float, dict[str, float]] | None = None  # time and numbers of the first row
        self._last_at = self._started

    def see(self, row: dict[str, Any]) -> None:
        """Take into account a row of numbers that the job reported."""
        self.numbers |= {name: value for name, value in row.items() if isinstance(value, (int, float))}
        self._last_at = self._clock()
        self._first = self._first or (self._last_at, dict(self.numbers))

    @property
    def seconds(self) -> float:
        """The seconds for which the asset has been running."""
        return self._clock() - self._started

    @property
    def steps(self) -> tuple[int, int] | None:
        """Return (finished, total) steps or ranks; None if the job does not report the total."""
        total = self.numbers.get("steps", self.numbers.get("ranks"))
        return None if total is None else (int(self.numbers["step"]), int(total))

    def per_second(self, name: str) -> float | None:
        """Return how fast a reported number has risen since the first row; None as long as it has not risen."""
        if self._first is None or self._last_at <= self._first[0]:
            return None
        risen = self.numbers.get(name, 0.0) - self._first[1].get(name, 0.0)
        return risen / (self._last_at - self._first[0]) if risen > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Return the remaining seconds, from the pace of the steps so far, or else from an earlier artifact.

        The result is None if neither is known.
        """
        pace = self.per_second("step")
        if self.steps is not None and pace is not None and self.steps[0] < self.steps[1]:
            return max(0.0, (self.steps[1] - self.steps[0]) / pace - (self._clock() - self._last_at))
        if self._expected is None or self._expected < self.seconds:
            return None
        return self._expected - self.seconds


class TimeLeft:
    """The cells that a run has to make, with the seconds that each is expected to take."""

    def __init__(self, root: Path, clock: Callable[[], float]) -> None:
        self._root, self._clock = root, clock
        self._expected: dict[tuple[str, str], float | None] = {}  # of the cells that are not made yet
        self._planned: dict[tuple[str, str], Cell] = {}
        self._gaps: list[float] = []  # seconds between the end of an asset and the start of the next
        self._ended_at = clock()
        self.num_ended = 0

    def plan(self, cell: Cell) -> None:
        """Record that the run has to make this cell (an asset in a partition)."""
        self._planned[cell.key] = cell
        self._expected[cell.key] = earlier_seconds(cell, self._root)

    def start(self, cell: Cell) -> Running:
        """Record that the run makes this cell (an asset in a partition) now."""
        self._gaps.append(self._clock() - self._ended_at)
        return Running(cell, self._expected.pop(cell.key, None), self._clock)

    def end(self, cell: Cell) -> None:
        """Record that this cell is made, or that an existing artifact is used for it."""
        self._planned.pop(cell.key, None)
        self._expected.pop(cell.key, None)
        for one in self._planned.values():  # the artifact of one snapshot tells how long that of another takes
            if one.asset == cell.asset and self._expected.get(one.key, 0.0) is None:
                self._expected[one.key] = earlier_seconds(one, self._root)
        self._ended_at = self._clock()
        self.num_ended += 1

    def num_cells(self, running: Sequence[Running]) -> int:
        """Return the number of cells (assets in partitions) of the whole run."""
        return self.num_ended + len(running) + len(self._expected)

    def of_recipe(self, running: Sequence[Running]) -> tuple[float, bool]:
        """Return seconds until everything is made, and whether the time of each cell is known.

        Cells whose time is unknown are left out. If several cells are being made at the same time, nobody knows how
        long as many will; the result is then the least that is possible with so many, and counts as not known.
        """
        parts = [one.seconds_left for one in running] + list(self._expected.values())
        known = [part for part in parts if part is not None]
        gaps = len(self._expected) * sum(self._gaps) / len(self._gaps) if known else 0.0
        if len(running) > 1:
            longest = max((one.seconds_left or 0.0 for one in running), default=0.0)
            return max(longest, (sum(known) + gaps) / len(running)), False
        return sum(known) + gaps, len(known) == len(parts)


def earlier_seconds(cell: Cell, root: Path) -> float | None:
    """Seconds from submission to commit of the earlier artifact that is most like the cell; None without one.

    That is the artifact to which the partition's reference points; else the newest one of another snapshot of the
    recipe; else the newest one with equal settings.
    """
    place, recipe = root / cell.asset, _recipe(cell.partition)
    own = place / cell.reference.fingerprint if cell.reference else place / cell.fingerprint
    by_snapshot = CHAIN[cell.asset].scope == "snapshot"
    others = list(_newest(place))
    alike = [
        *_records([own]),
        *((path, record) for path, record in others if by_snapshot and _recipe(record["partition"]) == recipe),
        *((path, record) for path, record in others if record["settings"] == cell.settings),
    ]
    return _seconds(*alike[0]) if alike else None


def _recipe(partition: str) -> str:
    return partition.partition("@")[0]


def _newest(place: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    made = sorted(place.glob(f"*/{artifact.ARTIFACT_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    return _records([path.parent for path in made[:READ_RECORDS]])


def _records(folders: list[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in folders:
        try:
            record = json.loads((folder / artifact.ARTIFACT_FILE).read_text("utf-8"))
        except (OSError, ValueError):
            continue  # not made, or damaged: `compare` reports it
        if isinstance(record, dict) and {"seconds", "partition", "settings"} <= record.keys():
            yield folder, record


def _seconds(folder: Path, record: dict[str, Any]) -> float:
    """Return the seconds that a job took, including attempts that were resumed.

    The record has only the seconds of the last attempt. The time of submission is that of the recipe's file, which
    is written then.
    """
    try:
        submitted = (folder / "recipe.json").stat().st_mtime
    except FileNotFoundError:
        return record["seconds"]
    return max(record["seconds"], (folder / artifact.ARTIFACT_FILE).stat().st_mtime - submitted)


def in_words(seconds: float | None) -> str:
    """A duration such as `45 s`, `3 min 20 s` or `1 h 05 min`; `unknown` for None."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02} min"

"""What `pedigree run` shows on standard error: a line for each finished asset, and the progress of those under way.

In a terminal the progress is bars at the bottom; elsewhere it is a line every 30 seconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from assets.services.stores import dagster_home
from assets.state.cell import Cell
from assets.terminal.first_run import FirstRun
from assets.terminal.time_left import Running, TimeLeft, in_words, roughly
from resources.profile import Profile
from training.contract.files.checksums import at_once
from training.contract.running import reuse
from training.contract.secrets import Masked
from training.recipe.recipe import Recipe

PLAIN_SECONDS = 30.0  # between two lines about what runs now, without a terminal
REFRESHES_PER_SECOND = 2.0
STDERR_LOG = "stderr.log"
INDENT = 10  # columns of the seconds before a line
MOST_BARS = 6

Key = tuple[str, str]  # of a cell: asset and partition


class Display:
    """Prints a line for each finished asset, and the progress of those under way.

    While a step runs, Dagster redirects the file descriptor of standard error to a log, so this class writes to a
    duplicate that was made before. `clock` returns seconds. With a profile, the times of a first run are estimated.
    """

    def __init__(
        self, recipe: Recipe, root: Path, clock: Callable[[], float] = time.monotonic, profile: Profile | None = None
    ) -> None:
        self._file = _duplicate_of_stderr()
        self._console = _Terminal(file=cast(IO[str], self._file))
        self._name, self._clock = recipe.name, clock
        self._started = self._said_at = clock()
        planned = FirstRun(recipe, root, profile.size_for).seconds if profile else lambda cell: None
        self._left = TimeLeft(root, clock, planned)
        self._now: dict[Key, Running] = {}  # the cells that are being made
        self._doing = "starting"  # what the run does while no asset is made
        self._waiting: dict[Key, tuple[str, float]] = {}  # what a cell waits for, and since when
        self._ended = threading.Event()
        self._ticking = threading.Thread(target=self._tick_until_ended, daemon=True)
        self._root = root
        self._stack = ExitStack()
        # One thread at a time: a line that is printed while the bar is redrawn may be erased with the bar.
        self._drawing = threading.RLock()
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self._bar,
                console=self._console,
                auto_refresh=False,  # its own thread takes no lock while a line is printed
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> Display:
        if self._live is not None:
            self._stack.enter_context(_elsewhere(self._root))
            self._live.start()
        self._ticking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._ticking.join()
        if self._live is not None:
            self._live.stop()
        self._stack.close()
        if self._file is not sys.stderr:
            self._file.close()

    def announce(self, kind: str, cell: Cell, values: dict[str, Any]) -> None:
        """Show one event of a cell (an asset in a partition); assets/materialize/events.py lists the kinds."""
        if kind == "planned":
            self._left.plan(cell)
        elif kind == "started":
            self._now[cell.key] = self._left.start(cell)
            self._waiting.pop(cell.key, None)
        elif kind == "waits":
            self._waiting.pop(cell.key, None)
            if values["for"]:
                self._waiting[cell.key] = (f"{_name(cell)} waits for {values['for']}", self._clock())
        elif kind == "waiting" and (self._live is None or values["is_stuck"]):
            self._print(f"{_name(cell)}: {values['state']} for {values['seconds']:.0f} s: {values['reason']}")
        elif kind == "told":
            self._print(f"{_name(cell)}: {values['text']}")
        elif kind == "phase" and cell.key in self._now:
            self._now[cell.key].enter(values["name"])
        elif kind == "progress" and cell.key in self._now:
            self._now[cell.key].see(values)
            self._waiting.pop(cell.key, None)
        elif kind in ("made", "reused"):
            self._left.end(cell)
            self._forget(cell)
            self._doing = "reporting to Dagster"
            self._print(*_ending(kind, cell, values))
        elif kind == "failed":
            self._forget(cell)
            if values["others"]:
                self._print(f"{_name(cell)}: failed; nothing new begins, {values['others']} under way go on", "red")

    def _forget(self, cell: Cell) -> None:
        self._now.pop(cell.key, None)
        self._waiting.pop(cell.key, None)

    def say(self, doing: str) -> None:
        """Show what the run is doing while it makes no asset."""
        self._doing = doing

    def refresh(self) -> None:
        """Redraw the progress bar now, if there is one. It is also redrawn automatically, twice a second."""
        if self._live is not None:
            with self._drawing:
                self._live.refresh()

    def tick(self) -> None:
        """Print a line about what the run is doing, if nothing was printed for PLAIN_SECONDS."""
        if self._clock() - self._said_at < PLAIN_SECONDS:
            return
        self._print(", ".join(part for part in (self._what(), self._times()) if part))

    def _tick_until_ended(self) -> None:
        while not self._ended.wait(1 / REFRESHES_PER_SECOND):
            self.tick() if self._live is None else self.refresh()

    def _print(self, text: str, style: str = "") -> None:
        self._said_at = self._clock()
        line = f"{self._said_at - self._started:6.1f} s  {text}"
        if self._live is not None:  # a log keeps each line whole
            line = _divided(line, self._console.width)
        with self._drawing:
            self._console.print(Text(line, style=style), highlight=False, soft_wrap=self._live is None)

    def _what(self) -> str:
        """Return what is made now, or what is waited for, as text."""
        return "; ".join(text for text, _ in self._rows())

    def _rows(self) -> list[tuple[str, tuple[int, int] | None]]:
        """Return a text for each cell that is made now or waits, with its (finished, total) steps if it is made."""
        waiting, now = dict(self._waiting), dict(self._now)  # other threads may change both meanwhile
        rows: list[tuple[str, tuple[int, int] | None]] = [
            (f"{text}, for {in_words(self._clock() - since)}", None) for text, since in waiting.values()
        ]
        rows += [(f"{_name(one.cell)}: {_progress(one)}", one.steps) for key, one in now.items() if key not in waiting]
        return rows or [(f"{self._name}: {self._doing}", None)]

    def _times(self) -> str:
        """Return the time that the assets under way and the whole recipe still need, as text.

        It is empty while nothing is made.
        """
        now = list(self._now.values())
        if not now:
            return ""
        first, last, total = self._left.num_ended + 1, self._left.num_ended + len(now), self._left.num_cells(now)
        seconds, is_whole = self._left.of_recipe(now)
        is_planned = self._left.is_planned(now)
        least = (roughly if is_planned else in_words)(seconds)
        recipe = least if is_whole else f"more than {least}" if seconds >= 1 else in_words(None)
        by_plan = " by plan" if is_planned else ""
        if len(now) > 1:
            return f"time left of the recipe{by_plan}: {recipe} (assets {first} to {last} of {total})"
        one, place = now[0], f"(asset {first} of {total})"
        if one.seconds_left is None and one.is_late and one.expected is not None:
            late = "longer than planned" if one.expected.is_planned else "longer than last time"
            return f"{late}; of the recipe {recipe} left {place}" if seconds >= 1 else f"{late} {place}"
        if one.seconds_left is None and one.expected is not None:  # it is in a phase of which no time is known
            return f"time left of the recipe{by_plan}: {recipe} {place}"
        if one.is_planned:
            return f"time left by plan: {roughly(one.seconds_left)}; of the recipe: {recipe} {place}"
        return f"time left: {in_words(one.seconds_left)}; of the recipe{by_plan}: {recipe} {place}"

    def _bar(self) -> Group:
        """Return the lines at the bottom of the terminal.

        They show what is made now, each cell with a progress bar, and below it the time left.
        """
        table = Table.grid(expand=True, padding=(0, 1))
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(ratio=1)
        rows = self._rows()
        for text, steps in rows[:MOST_BARS]:
            table.add_row(Text(text), ProgressBar(total=steps[1] or 1, completed=steps[0]) if steps else "")
        if len(rows) > MOST_BARS:
            table.add_row(Text(f"and {len(rows) - MOST_BARS} more"), "")
        times = self._times()
        return Group(table, *([Text(f"  {times}", "dim", no_wrap=True, overflow="ellipsis")] if times else []))


class _Terminal(Console):
    """A rich console that measures the width of its own output file.

    By default rich measures the standard streams, which Dagster may have redirected.
    """

    @property
    def size(self) -> ConsoleDimensions:  # pyrefly: ignore[bad-override]  # nobody sets it
        """The terminal's number of columns and lines."""
        try:
            return ConsoleDimensions(*os.get_terminal_size(self.file.fileno()))
        except (OSError, ValueError):
            return super().size


def _duplicate_of_stderr() -> Masked | IO[str]:
    """Return a new stream that writes to the present target of standard error.

    It is standard error itself if that has no descriptor.
    """
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):
        return sys.stderr
    return Masked(open(descriptor, "w", encoding="utf-8", errors="replace"))


@contextmanager
def _elsewhere(root: Path) -> Iterator[None]:
    """Send standard error to `dagster/stderr.log` under the root, so that no other text disturbs the display.

    Such text comes from libraries, and from the processes with which Dagster copies the output of its steps. If the
    file cannot be written, that text appears between the lines of the display.
    """
    try:
        descriptor = sys.stderr.fileno()
        log = open(dagster_home(root) / STDERR_LOG, "ab", opener=at_once)  # noqa: SIM115 - closed below
    except (OSError, ValueError):
        yield
        return
    with log, os.fdopen(os.dup(descriptor), "wb") as before:
        os.dup2(log.fileno(), descriptor)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before.fileno(), descriptor)


def _divided(line: str, width: int) -> str:
    """Break a line that is too wide into several, after commas; all but the first are indented."""
    first, *parts = line.split(", ")
    lines = [first]
    for part in parts:
        if len(lines[-1]) + len(part) + 3 <= width:  # a comma before the part, and one behind it
            lines[-1] += f", {part}"
        else:
            lines[-1] += ","
            lines.append(f"{' ' * INDENT}{part}")
    return "\n".join(lines)


def _name(cell: Cell) -> str:
    return f"{cell.asset} [{cell.partition}]"


def _progress(now: Running) -> str:
    if now.phase is not None:
        what, seconds = now.phase
        return f"{what} for {in_words(seconds)}"
    if now.steps is None:
        return f"running for {in_words(now.seconds)}"
    unit = "step" if "steps" in now.numbers else "rank"
    if not now.is_stepping:
        return f"{now.steps[1]:,} {unit}s done, finishing"
    parts = [f"{unit} {now.steps[0]:,} of {now.steps[1]:,}"]
    if "loss" in now.numbers:
        parts.append(f"loss {now.numbers['loss']:.4g}")
    if (documents := now.per_second("documents")) is not None:
        parts.append(f"{documents:,.3g} documents/s")
    return ", ".join(parts)


def _ending(kind: str, cell: Cell, record: dict[str, Any]) -> tuple[str, str]:
    """Return the line about a finished asset, and the style in which it is printed."""
    record = record or (cell.artifact.record if cell.artifact else {})
    counts = record.get("counts")
    note = "reused" if kind == "reused" else f"{record.get('seconds', 0):.1f} s"
    kept = f", {counts['kept']:,} of {counts['in']:,} kept" if counts else ""
    refused = [gate["name"] for gate in record.get("gates", []) if not gate["passed"]]
    told = f"  REFUSED by gate {', '.join(refused)}" if refused else ""
    taken = f", {said}" if kind == "made" and (said := reuse.in_words(record)) else ""
    return f"{_name(cell)}: {note}{taken}{kept}{told}", "red" if refused else ""

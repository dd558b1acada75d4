"""Which cells `pedigree run` makes next, and how many at the same time.

A cell is an asset in a partition. Cells are executed in groups; each group is one run of Dagster.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import TYPE_CHECKING, cast

from assets.materialize.events import Listener
from assets.run.result import Ended
from assets.state.cell import Cell, Comparison
from assets.state.chain import CHAIN, partitions_of, trains
from training.contract.process.exit_codes import FAILED

if TYPE_CHECKING:
    import dagster as dg

    from assets.run.launch import Launch


@dataclass(kw_only=True)
class Schedule:
    """The cells that a run has not made yet, in groups that can be executed now.

    With `at_once` 1, a group is as large as possible: cells of one partition whose inputs are made or in the group. All
    its assets have the same partitions, as a run of Dagster asks: `step_scores` has more than one of the `kept_steps`.
    With more, each group is one cell, so that as many as possible go on side by side, of them at most `trainings`
    trainings. `left_in` returns the cells that a comparison shows as not made, inputs first. When nothing is left, the
    assets in `again` are made once, although they are made.

    The schedule ends (`has_ended`) at the first refusal by a gate, or at a cell that was executed without an error and
    is still not made.
    """

    look: Callable[[], Comparison]
    left_in: Callable[[Comparison], list[Cell]]
    again: tuple[str, ...] = ()
    at_once: int = 1
    trainings: int = 1
    has_ended: bool = False
    _attempted: set[tuple[str, str]] = field(default_factory=set)

    def next_group(self, under_way: Iterable[list[Cell]]) -> list[Cell]:
        """Return the next group to execute beside the groups `under_way`; empty if there is none now."""
        if self.has_ended:
            return []
        comparison = self.look()
        left = self.left_in(comparison) or self._once_more(comparison)
        self.has_ended = any(comparison.refused_by(cell) for cell in left)
        if self.has_ended:
            return []
        busy = [cell for group in under_way for cell in group]
        group = self._one_cell(comparison, left, busy) if self.at_once > 1 else _largest_group(comparison, left)
        self.has_ended = any(cell.key in self._attempted for cell in group)
        if self.has_ended:
            return []
        self._attempted |= {cell.key for cell in group}
        return group

    def _once_more(self, comparison: Comparison) -> list[Cell]:
        name = comparison.recipe.name
        return [comparison.cells[asset, name] for asset in self.again if (asset, name) not in self._attempted]

    def _one_cell(self, comparison: Comparison, left: list[Cell], busy: list[Cell]) -> list[Cell]:
        undone = {cell.key for cell in comparison.to_do()} | {cell.key for cell in busy}
        may_train = sum(trains(CHAIN[cell.asset]) for cell in busy) < self.trainings
        for cell in left:
            is_ready = cell.key not in {one.key for one in busy} and undone.isdisjoint(cell.waits_for)
            if is_ready and (may_train or not trains(CHAIN[cell.asset])):
                return [cell]
        return []


def _largest_group(comparison: Comparison, left: list[Cell]) -> list[Cell]:
    group: list[Cell] = []
    inside: set[tuple[str, str]] = set()
    undone = {cell.key for cell in comparison.to_do()}

    def fits(cell: Cell) -> bool:
        of = [set(partitions_of(CHAIN[one.asset], comparison.recipe)) for one in (cell, group[0])]
        return cell.partition == group[0].partition and of[0] == of[1]

    for cell in left:
        ready = all(key in inside or key not in undone for key in cell.waits_for)
        if ready and comparison.refused_by(cell) is None and (not group or fits(cell)):
            group.append(cell)
            inside.add(cell.key)
    return group


class InThisProcess:
    """Executes one group at a time, in this process and its main thread, which signals can interrupt."""

    def __init__(self, launch: Launch, instance: dg.DagsterInstance) -> None:
        self._launch, self._instance = launch, instance
        self._ended: list[tuple[list[Cell], Ended]] = []

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @property
    def under_way(self) -> list[list[Cell]]:
        """The group of cells whose end the caller has not heard of yet, in a list; empty if there is none."""
        return [group for group, _ in self._ended]

    @property
    def has_room(self) -> bool:
        """Whether another group may be started."""
        return not self._ended

    def start(self, group: list[Cell]) -> None:
        """Execute a group, to its end."""
        self._ended.append((group, self._launch.execute(_assets(group), group[0].partition, self._instance)))

    def ended(self) -> Iterator[tuple[list[Cell], Ended]]:
        """Yield the group that has ended, and how."""
        while self._ended:
            yield self._ended.pop()


class InProcesses:
    """Executes up to `at_once` groups at the same time, each in a process of its own.

    Dagster redirects the output of its whole process while a step runs, and threads that share its storage come to wait
    for each other for ever, so threads would not do. The processes are forked from a server that has imported Dagster.
    Their announcements go to `announce`, in this process.

    If the context is left because of an exception, such as Ctrl-C, each process is interrupted once: it ends its job,
    or leaves it to its other watchers. The exception goes on when all have ended.

    A process that was killed reports nothing. Its run of Dagster is ended here.
    """

    def __init__(self, launch: Launch, at_once: int, announce: Listener, instance: dg.DagsterInstance) -> None:
        self._launch, self._at_once, self._announce, self._instance = launch, at_once, announce, instance
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(["training.contract.engines.fork_server", "assets.run.launch"])
        self._running: dict[Connection, tuple[BaseProcess, list[Cell]]] = {}

    def __enter__(self) -> InProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, _ in self._running.values():
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGINT)
        while self._running:
            for _ in self.ended():
                pass

    @property
    def under_way(self) -> list[list[Cell]]:
        """Groups of cells that are being made, or whose end the caller has not heard of yet."""
        return [group for _, group in self._running.values()]

    @property
    def has_room(self) -> bool:
        """Whether another group may be started."""
        return len(self._running) < self._at_once

    def start(self, group: list[Cell]) -> None:
        """Start a process that executes a group; returns at once."""
        from assets.run.launch import execute_apart

        receiver, sender = self._context.Pipe(duplex=False)
        launch = replace(self._launch)  # without what it has cached, which cannot be sent
        asked = (launch, _assets(group), group[0].partition, sender, dict(os.environ))
        process = self._context.Process(target=execute_apart, args=asked)
        process.start()
        sender.close()
        self._running[receiver] = process, group

    def ended(self) -> Iterator[tuple[list[Cell], Ended]]:
        """Wait until something is announced or a process ends; yield each group that has ended, and how."""
        for receiver in cast(list[Connection], wait(list(self._running))):
            is_killed = False
            try:
                said = receiver.recv()
            except Exception as problem:  # no message has an end if Ctrl-C came while it was read
                is_killed = isinstance(problem, EOFError)
                how = "was killed" if is_killed else f"cannot be heard any more: {problem}"
                error = f"the process that made {_names(self._running[receiver][1])} {how}"
                said = Ended(error=error, exit_code=FAILED)
            if isinstance(said, tuple):
                kind, asset, values = said
                self._announce(kind, next(cell for cell in self._running[receiver][1] if cell.asset == asset), values)
                continue
            process, group = self._running.pop(receiver)
            receiver.close()  # first, so that a process that would still write does not wait for a reader
            process.join()
            if is_killed:
                said = self._launch.end_killed(_assets(group), group[0].partition, said.error, self._instance)
            yield group, said


def _assets(group: list[Cell]) -> list[str]:
    return [cell.asset for cell in group]


def _names(group: list[Cell]) -> str:
    return ", ".join(f"{cell.asset} [{cell.partition}]" for cell in group)

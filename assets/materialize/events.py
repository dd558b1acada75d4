"""Announcements of what happens to cells, for one listener in this process: the terminal display of `pedigree run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from assets.state.cell import Cell

Listener = Callable[[str, Cell, dict[str, Any]], None]


def silent(kind: str, cell: Cell, values: dict[str, Any]) -> None:
    """A listener that ignores everything, for runs without a terminal; they have Dagster's event log."""


_listener: Listener = silent


def announce(kind: str, cell: Cell, values: dict[str, Any]) -> None:
    """Pass an event of a cell (an asset in a partition) to the listener.

    `kind` is one of:

    | kind | values |
    |---|---|
    | `planned` | none; the run has to make the cell |
    | `started` | none |
    | `waits` | `for`: what the cell waits for, which may change at any moment; empty if it no longer waits |
    | `waiting` | `state`, `reason`, `is_stuck` and `seconds` of a job that has not started for a while |
    | `told` | `text`: a message |
    | `phase` | `name`: what the job does now, if this is not one of its steps |
    | `progress` | a row of numbers that the job reported |
    | `made` | the artifact's record |
    | `reused` | none |
    | `failed` | `others`: the number of other cells that are being made |
    """
    _listener(kind, cell, values)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Context manager that passes every announcement in this process to `listener`."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before

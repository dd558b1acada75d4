"""Who hears what happens to cells in this process: `pedigree run` shows it in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from assets.status import Cell

Listener = Callable[[str, Cell, dict[str, Any]], None]


def silent(kind: str, cell: Cell, values: dict[str, Any]) -> None:
    """Announce nothing, for runs without a terminal; they have Dagster's event log."""


_listener: Listener = silent


def announce(kind: str, cell: Cell, values: dict[str, Any]) -> None:
    """Say that something happened to a cell: `started`, `waiting`, `told`, `progress`, `made` or `reused`."""
    _listener(kind, cell, values)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let `listener` hear every announcement meanwhile."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before

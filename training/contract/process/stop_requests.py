"""Notice that a process is asked to stop, so that what it computes can be saved first. Standard library only."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Yield a list to which each SIGTERM or SIGUSR1 (Slurm's early warning) is added; restore the old handlers after.

    A trainer checks the list after each step, saves its state and raises StopRequested. Only the main thread of a
    process receives signals; in other threads the list stays empty.
    """
    asked: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        asked.append(number)

    is_main = threading.current_thread() is threading.main_thread()
    listened = (signal.SIGTERM, signal.SIGUSR1) if is_main else ()
    previous: dict[int, Any] = {number: signal.signal(number, note) for number in listened}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

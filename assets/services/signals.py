"""Handling of Ctrl-C and SIGTERM: the message of an interrupted command, and its exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from resources.compute.supervise import die_with

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_noted() -> Iterator[Callable[[], int]]:
    """Make SIGTERM raise KeyboardInterrupt as Ctrl-C does.

    Yields a function that returns the number of the first signal, or 0 if none came.

    Dagster replaces the handlers of both signals while it runs. The numbers are therefore read from the pipe into
    which Python writes every signal that one of its handlers receives. Afterwards Dagster gives SIGTERM the handler of
    SIGINT. So both have the same one here, also where SIGINT is ignored, as by a command that a script starts with `&`.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def first() -> int:
        with suppress(BlockingIOError):
            received.extend(os.read(reading, 1024))
        return next((number for number in received if number in SIGNALS), 0)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and handlers[signal.SIGINT] == signal.SIG_IGN:
            first()
            received.remove(number)
        else:
            signal.default_int_handler(number, frame)

    received: list[int] = []
    for number in SIGNALS:
        signal.signal(number, interrupt)
    try:
        yield first
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


@contextmanager
def signals_collected() -> Iterator[list[int]]:
    """Yield a list to which the number of each SIGINT or SIGTERM is added; restore the old handlers after.

    This is for commands that watch other processes: a signal does not interrupt them, because they check the list.
    """
    received: list[int] = []
    before = {number: signal.signal(number, lambda sent, _: received.append(sent)) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ends_with_this() -> Callable[[], None]:
    """Return what a child process must call first, so that it ends when this process ends, in whatever way."""
    pid = os.getpid()
    return lambda: die_with(pid)


def exit_code_of(number: int) -> int:
    """Return the exit code of a command that a signal ended, as shells define it: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + number


def by_signal(number: int) -> str:
    """Return, in words, how a signal ended a command."""
    return "interrupted by Ctrl-C" if number == signal.SIGINT else "ended by SIGTERM"

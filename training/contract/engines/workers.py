"""Spread calls over worker processes, and notice a worker's death at once.

The workers end with their parent. A pool of the standard library notices the death of its newest worker only at the
next result, which may be an hour away. Here each worker has its own pipe, which the kernel closes when the worker ends.
Standard library only.
"""

from __future__ import annotations

import copy
import gc
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing import connection, get_context
from typing import Any

from training.contract.process.lifetime import die_with_parent
from training.contract.secrets import masked_output


class WorkerDied(RuntimeError):
    """A worker process ended in the middle of its work."""


def each_result(
    work: Callable[[Any], Any],
    arguments: Iterable[Any],
    *,
    workers: int,
    modules: Sequence[str],
    begin: Callable[[], object],
) -> Iterator[tuple[Any, Any]]:
    """Yield the argument and the result of each call of `work`, in the order in which the calls end.

    `modules` are imported once for all workers, and `begin` runs first in each worker. If a call fails, no further call
    begins; the error is raised when the running calls have ended. If a worker dies, WorkerDied is raised and the
    running calls are killed. An argument is taken from `arguments` when a worker is free for it.
    """
    # forkserver: a child starts clean (no inherited threads or locks), and the preloaded modules are imported once.
    context = get_context("forkserver")
    context.set_forkserver_preload(["training.contract.engines.fork_server", *modules])
    left, failure, team = iter(arguments), None, list[_Worker]()
    try:
        for argument in islice(left, workers):
            team.append(_Worker(context, work, begin))
            team[-1].give(argument)
        while busy := [one for one in team if one.is_busy]:
            for pipe in connection.wait([one.pipe for one in busy]):
                one = next(one for one in busy if one.pipe is pipe)
                argument, result, error = one.take()
                if error is not None:
                    failure = failure or error
                    continue
                if failure is None:
                    for following in islice(left, 1):
                        one.give(following)
                yield argument, result
        if failure is not None:
            raise failure
    finally:
        for one in team:
            one.end()


class _Worker:
    """A worker process, and the call that it is making at present."""

    def __init__(self, context: Any, work: Callable[[Any], Any], begin: Callable[[], object]) -> None:
        self.pipe, theirs = context.Pipe()
        self.is_busy = False
        self._argument: Any = None
        self._process = context.Process(target=_serve, args=(theirs, work, begin), daemon=True)
        self._process.start()
        theirs.close()

    def give(self, argument: Any) -> None:
        """Let the worker make one call of its function with `argument`."""
        self._argument, self.is_busy = argument, True
        with suppress(BrokenPipeError):  # it died; `take` says so
            self.pipe.send(argument)

    def take(self) -> tuple[Any, Any, BaseException | None]:
        """Return the argument, result and error of the call that has ended. Raise WorkerDied if the process died."""
        try:
            result, error, told = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerDied(f"a worker {self._ending()} while it was at rank {self._argument}") from None
        if error is not None:
            error.add_note(told)
        self.is_busy = False
        return self._argument, result, error

    def _ending(self) -> str:
        self._process.join()
        code = self._process.exitcode
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL; a machine that runs out of memory does so)"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        """End the worker: an idle worker ends by itself when its pipe closes, a busy worker is killed."""
        self.pipe.close()
        if self.is_busy:
            self._process.kill()
        self._process.join()


def _serve(pipe: connection.Connection, work: Callable[[Any], Any], begin: Callable[[], object]) -> None:
    """Make calls, in a worker, until the parent closes the pipe."""
    die_with_parent()
    gc.freeze()  # what the fork server imported stays, and stays in memory that the workers share
    gc.enable()
    with masked_output():
        begin()
        _answer_all(pipe, work)


def _answer_all(pipe: connection.Connection, work: Callable[[Any], Any]) -> None:
    while True:
        try:
            argument = pipe.recv()
        except EOFError:
            return
        try:
            answer = (work(argument), None, "")
        except Exception as error:
            answer = (None, sendable(error), f"in a worker:\n{traceback.format_exc()}")
        try:
            pipe.send(answer)
        except Exception as error:  # the answer cannot be pickled, and nothing was sent
            pipe.send((None, RuntimeError(f"{type(error).__name__}: {error}"), answer[2]))


def sendable(error: Exception) -> Exception:
    """Return the error, or a RuntimeError with its text if its class cannot be copied to the parent."""
    try:
        return copy.copy(error)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")

"""Whether programs that a model wrote pass their tests, each in a sandbox of its own.

Tests and program run in two confined processes that share nothing, and this process carries plain values between them.
The program never sees a test, and the tests see nothing of the program but its answers, so there is no verdict that it
could write, patch or guess. A program that ends, says too much or takes too long has failed.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import comb
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from training.contract.errors import DataError
from training.contract.process.cores import available_cores
from training.contract.sandbox.confined import Confined, Ending, Limits, Nursery, check_sandbox
from training.contract.sandbox.inside.plain import shown

Given = TypeVar("Given")
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program with the test that decides. `given` is the part that was shown to the model, which nobody doubts."""

    code: str
    test: str
    given: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a program passed its test; if not, why, as text and as one of few kinds.

    Tests and kernel say that a program failed, and how. Only class, text and line of an error in a program are what its
    own process says, shown as one printable line.
    """

    passed: bool
    why: str = ""
    kind: str = ""


TIMEOUT, MEMORY, WRONG, NO_ANSWER = "timeout", "memory", "wrong result", "no answer"


def check_tests(tests: Iterable[str]) -> None:
    """Raise DataError if nothing can be confined here, or if a test imports what the sandbox lacks.

    Such a test would fail every program, right or wrong.
    """
    check_sandbox("a suite of programs")
    for test in tests:
        try:
            imports = [one for one in ast.walk(ast.parse(test)) if isinstance(one, (ast.Import, ast.ImportFrom))]
        except (SyntaxError, ValueError, RecursionError):  # the verdicts say so
            continue
        modules = [one.name for place in imports if isinstance(place, ast.Import) for one in place.names]
        modules += [place.module or "" for place in imports if isinstance(place, ast.ImportFrom)]
        lacking = sorted({name.partition(".")[0] for name in modules} - sys.stdlib_module_names)
        if lacking:
            raise DataError(
                f"a test imports {', '.join(lacking)}; the sandbox has Python's own library only; take rows whose tests"
                " need no more"
            )


def judged(programs: Iterable[Program], limits: Limits | None = None, *, at_once: int | None = None) -> list[Verdict]:
    """Return the verdict on each program, in order; `at_once` are examined side by side, as many as there are cores.

    Raise DataError where nothing can be confined.
    """
    check_sandbox("a suite of programs")
    return side_by_side(programs, partial(_examiner, limits or Limits()), at_once=at_once)


def side_by_side(
    given: Iterable[Given],
    worker: Callable[[], AbstractContextManager[Callable[[Given], Found]]],
    *,
    at_once: int | None = None,
) -> list[Found]:
    """Return what workers find for each of the given, in order; there are `at_once`, or as many as cores."""
    queue = SimpleQueue[tuple[int, Given]]()
    number = 0
    for number, one in enumerate(given, start=1):
        queue.put((number, one))
    if not number:
        return []
    found = dict[int, Found]()
    workers = min(at_once or available_cores(), number)
    with ThreadPoolExecutor(workers) as pool:
        for share in [pool.submit(_all_of, queue, worker) for _ in range(workers)]:
            found |= share.result()
    return [found[place] for place in range(1, number + 1)]


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of `k` programs is right (Chen et al., arXiv 2107.03374)."""
    return 1.0 - comb(num_samples - num_right, k) / comb(num_samples, k)


def _all_of(
    queue: SimpleQueue[tuple[int, Given]], worker: Callable[[], AbstractContextManager[Callable[[Given], Found]]]
) -> dict[int, Found]:
    """Take from the queue until it is empty."""
    found = dict[int, Found]()
    with worker() as find:
        while True:
            try:
                place, one = queue.get_nowait()
            except Empty:
                return found
            found[place] = find(one)


@contextmanager
def _examiner(limits: Limits) -> Iterator[Callable[[Program], Verdict]]:
    """Context manager around what judges programs. One process for tests serves until a program outlasts it."""
    with closing(_Examiner(limits)) as examiner:
        yield examiner.verdict


class _Examiner:
    """The confined processes that run tests and start programs.

    They are started when first needed, and the one for tests again after tests that did not end.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._tests, self._nursery = limits, None, None

    _tests: Confined | None
    _nursery: Nursery | None

    def close(self) -> None:
        """End the processes, if they run."""
        self._close_tests()
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None

    def _close_tests(self) -> None:
        if self._tests is not None:
            self._tests.close()
            self._tests = None

    def verdict(self, program: Program) -> Verdict:
        """Return the verdict on one program, in a new process of its own."""
        deadline = time.monotonic() + self._limits.wall_seconds
        start = {"program": program.code, **self._limits.as_settings()}
        self._nursery = nursery = self._nursery or Nursery(self._limits)
        with nursery.program() as candidate:
            sent = candidate.send(line_of(start), deadline)
            tests = self._ready(deadline)
            if not (sent and tests.send(line_of({"test": program.test, "prelude": program.given}), deadline)):
                self._close_tests()
                return Verdict(False, "the program does not start", NO_ANSWER)
            while (said := tests.receive(deadline)) is not None:
                message = json.loads(said)  # of the tests' side, which runs no word of the program
                if "ask" not in message:
                    return _verdict(message)
                asked = candidate.send(line_of(message["ask"]), deadline)
                answer = candidate.receive(deadline) if asked else None
                if answer is None:
                    silent = Ending(f"no answer within {self._limits.wall_seconds:g} s", is_late=True)
                    return self._gone(tests, silent if time.monotonic() >= deadline else nursery.ending(candidate))
                tests.send(answer + b"\n", deadline)
            if time.monotonic() >= deadline:
                verdict = Verdict(False, f"the tests do not end within {self._limits.wall_seconds:g} s", TIMEOUT)
            else:
                verdict = Verdict(False, f"the tests gave no verdict: {tests.ending().why}", NO_ANSWER)
            self._close_tests()
            return verdict

    def _ready(self, deadline: float) -> Confined:
        if self._tests is None:
            self._tests = Confined("examiner", self._limits)
            self._tests.send(line_of(self._limits.as_settings(endless=True)), deadline)
        return self._tests

    def _gone(self, tests: Confined, ending: Ending) -> Verdict:
        """Return the verdict on a program that gives no answer. The tests are told, and decide nothing."""
        until = time.monotonic() + 1.0
        said = tests.receive(until) if tests.send(line_of({"gone": True}), until) else None
        if said is None or "ask" in json.loads(said):  # it is still at work
            self._close_tests()
        return Verdict(False, f"the program gave no answer: {ending.why}", TIMEOUT if ending.is_late else NO_ANSWER)


def _verdict(message: dict[str, Any]) -> Verdict:
    """Return the verdict that the tests' side gives. A failed assertion of theirs is a wrong result."""
    if message["passed"] is True:
        return Verdict(True)
    raised = message.get("raised")
    is_wrong = raised == AssertionError.__name__ and not message["by_program"]
    kind = NO_ANSWER if raised is None else WRONG if is_wrong else kind_of_error(raised)
    return Verdict(False, shown(message["why"]), kind)


def kind_of_error(name: str) -> str:
    """Return the kind of a failure by the name of an error's class; the names of a program's own classes are none."""
    if name == MemoryError.__name__:
        return MEMORY
    found = getattr(builtins, name, None)
    is_known = isinstance(found, type) and issubclass(found, BaseException)
    return f"exception {name}" if is_known else "exception of another class"


def line_of(message: Any) -> bytes:
    """Return a message as a line of a channel."""
    return json.dumps(message).encode() + b"\n"

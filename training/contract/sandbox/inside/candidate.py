"""The side of the program: it runs code that nobody trusts, and answers what it is asked by values.

It never sees a test. Whatever the code does to this process changes only the values that it answers with.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import types
from collections.abc import Callable
from operator import getitem

from training.contract.sandbox.inside.plain import decoded, encoded

PROGRAM = "program"  # the file that tracebacks name
TYPE_CHECKING = False  # typing's own import would delay each program
if TYPE_CHECKING:
    from typing import Any


def held(limits: dict[str, int]) -> None:
    """Limit this process for good: processor time, memory, files, and the size of one of them."""
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))


def channel() -> tuple[Any, Any]:
    """Return the streams of the examination. What is printed from then on goes nowhere, and no input is left."""
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    return asked, answers


def main() -> None:
    """Run the program that arrives first, then answer what is asked of it until nothing more comes."""
    asked, answers = channel()
    start = json.loads(asked.readline())
    held(start["limits"])
    sys.setrecursionlimit(start["depth"])
    module = types.ModuleType("program")
    sys.modules["program"] = module
    kept: list[Any] = []

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    def defined(*names: str) -> dict[str, Any]:
        return {name: vars(module)[name] for name in names if name in vars(module)}

    operations: dict[str, Callable[..., Any]] = {
        "call": _called,
        "names": defined,
        "get": getattr,
        "iter": iter,
        "next": next,
        "len": len,
        "item": getitem,
        "true": bool,
    }
    problem: dict[str, Any] = {}
    try:
        exec(compile(start["program"], PROGRAM, "exec"), vars(module))
    except BaseException as error:  # exits too: the program is asked nothing then
        problem = _raised(error)
    while line := asked.readline():
        said = problem
        try:
            if not problem:
                ask = json.loads(line)
                given = [decoded(one, kept.__getitem__) for one in ask["given"]]
                named = {name: decoded(one, kept.__getitem__) for name, one in ask["named"].items()}
                said = {"value": encoded(operations[ask["do"]](*given, **named), keep)}
        except BaseException as error:
            said = _raised(error)
        answers.write(json.dumps(said).encode() + b"\n")
        answers.flush()


def _called(of: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return of(*given, **named)


def _raised(error: BaseException) -> dict[str, Any]:
    try:
        text = error.msg if isinstance(error, SyntaxError) else error  # its own text ends in the line
        return {"raised": [type(error).__name__, str(text)[:1000]], "line": line_of(error, PROGRAM)}
    except BaseException:  # of an error that has its own ideas of text
        return {"raised": ["Exception", ""]}


def line_of(error: BaseException, file: str) -> int:
    """Return the innermost line of a source at which an error came up; 0 if it came up elsewhere."""
    line = error.lineno or 0 if isinstance(error, SyntaxError) and error.filename == file else 0
    place = error.__traceback__
    while place is not None:
        line = place.tb_lineno if place.tb_frame.f_code.co_filename == file else line
        place = place.tb_next
    return line

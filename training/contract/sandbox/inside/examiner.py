"""The side of the tests: it runs them on values that the program answers with, and says whether they hold.

Of the program it gets plain data only, so every comparison is Python's own. Names that a test uses and does not define
are the program's; the part of the program that was given to the model defines its names here, where the model's text
cannot change them. One examiner serves many programs, each in names of its own.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import random
import symtable
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from training.contract.sandbox.inside.candidate import channel, held, line_of
from training.contract.sandbox.inside.plain import decoded, encoded

TEST = "test"  # the file that tracebacks name
SAID = 200  # characters of an error's text
MOST_LINES = 1_000_000  # a program says itself at which of its lines an error came up


class ProgramRaised(Exception):
    """The program raised an error that is none of Python's own."""


class ProgramGone(BaseException):
    """The program gives no answers any more, or none that can be read."""


class Line:
    """The channel to the program, by way of the process that started both sides."""

    def __init__(self, asked: Any, answers: Any) -> None:
        self._in, self._out, self.is_gone = asked, answers, False
        self.raised: tuple[BaseException | None, Any] = (None, 0)  # the program's last error, and the line that it says

    def ask(self, do: str, *given: Any, **named: Any) -> Any:
        """Return the program's answer, or raise the error that it raised."""
        coded = [encoded(one, _number_of) for one in given]
        message = {"do": do, "given": coded, "named": {name: encoded(one, _number_of) for name, one in named.items()}}
        self.tell({"ask": message})
        answer = self.hear()
        try:
            if "raised" in answer:
                name, text = map(str, answer["raised"])
                error = _error_of(name, text)
                self.raised = (error, answer.get("line"))
                raise error
            return decoded(answer["value"], lambda number: ProgramValue(self, number))
        except (KeyError, ValueError, TypeError, RecursionError, ArithmeticError) as error:
            if "raised" in answer:
                raise
            self.is_gone = True
            raise ProgramGone("an answer that is none") from error

    def tell(self, message: Any) -> None:
        """Send a message to the process that started this one."""
        self._out.write(json.dumps(message).encode() + b"\n")
        self._out.flush()

    def hear(self) -> dict[str, Any]:
        """Return the next message. Raise ProgramGone if the program has ended or said no JSON."""
        line = self._in.readline()
        if not line:
            raise SystemExit
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or "gone" in found:
            self.is_gone = True
            raise ProgramGone("no answer")
        return found


class ProgramValue:
    """A value of the program's that is no plain data: it can be called and read, and never compared."""

    def __init__(self, line: Line, number: int) -> None:
        self._line, self._number = line, number

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._line.ask("call", self, *given, **named)

    def __getattr__(self, name: str) -> Any:
        return self._line.ask("get", self, name)

    def __getitem__(self, key: Any) -> Any:
        return self._line.ask("item", self, key)

    def __len__(self) -> int:
        return int(self._line.ask("len", self))

    def __bool__(self) -> bool:
        return self._line.ask("true", self) is True

    def __iter__(self) -> Iterator[Any]:
        each = self._line.ask("iter", self)
        while True:
            try:
                yield self._line.ask("next", each)
            except StopIteration:
                return

    def __eq__(self, other: object) -> bool:
        raise TypeError("the program's value is no plain data and cannot be compared")

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def main() -> None:
    """Examine the programs that are named one after another, until nothing more comes."""
    asked, answers = channel()
    line = Line(asked, answers)
    start = line.hear()
    held(start["limits"])
    sys.setrecursionlimit(start["depth"])
    while True:
        task = line.hear()
        line.is_gone, line.raised = False, (None, 0)
        random.seed(0)
        gone: dict[str, Any] = {"passed": False, "why": "the program gave no answer"}
        found = gone
        try:
            examine(line, task["test"], task["prelude"])
            found = {"passed": True, "why": ""}
        except ProgramGone:
            pass
        except BaseException as error:
            found = {"passed": False, **_told(error, line, task["test"])}
        line.tell(gone if line.is_gone else found)


def _told(error: BaseException, line: Line, test: str) -> dict[str, Any]:
    """Return what came up: an error of the program's, which says its class, text and line, or one of the test's."""
    own, place = line.raised
    name, text = type(error).__name__, str(error)[:SAID]
    if error is own:
        where = f"line {place} of the program" if type(place) is int and 0 < place < MOST_LINES else ""
    else:
        number = line_of(error, TEST)
        source = "".join(test.splitlines()[number - 1 : number]).strip()[:SAID] if number else ""
        where = f"line {number} of the test: {source}" if source else ""
    said = f"{name}: {text}" if text else name
    return {"why": f"{said} ({where})" if where else said, "raised": name, "by_program": error is own}


def examine(line: Line, test: str, prelude: str) -> None:
    """Run a test. Raise whatever it raises."""
    names: dict[str, Any] = {"__name__": "test", "__builtins__": builtins}
    trusted = _whole_definitions(prelude)
    exec(compile(trusted, "prompt", "exec"), names)
    tree = ast.parse(test)
    wanted = [name for name in _asked_names(test) if name not in names]
    attributes = _names_of(one.value for one in ast.walk(tree) if isinstance(one, ast.Attribute))
    called = _names_of(one.func for one in ast.walk(tree) if isinstance(one, ast.Call))
    foreign = [name for name in wanted if not hasattr(builtins, name)]
    libraries = [name for name in foreign if name in sys.stdlib_module_names and name in attributes - called]
    names |= {name: importlib.import_module(name) for name in libraries}
    foreign = [name for name in foreign if name not in libraries] or [name for name in wanted if name in called]
    given = line.ask("names", *foreign)  # the program may say more, which nobody asked for
    names |= {name: given[name] for name in foreign if name in given}
    exec(compile(tree, TEST, "exec"), names)


def _asked_names(test: str) -> list[str]:
    """Return the names that a test reads and nowhere sets at its outermost level, in the order of the alphabet."""
    top = symtable.symtable(test, "test", "exec")
    own = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported() or one.is_namespace()}
    read = {one.get_name() for one in top.get_symbols() if one.is_referenced()}
    tables = list(top.get_children())
    for table in tables:  # the list grows during the loop
        read |= {one.get_name() for one in table.get_symbols() if one.is_referenced() and one.is_global()}
        tables += table.get_children()
    return sorted(read - own)


def _names_of(places: Iterable[ast.expr]) -> set[str]:
    return {one.id for one in places if isinstance(one, ast.Name)}


def _whole_definitions(text: str) -> ast.Module:
    """Return what a prompt defines, without the functions that it leaves to the model; nothing if it is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])
    return ast.Module(body=[one for one in tree.body if not _is_left_open(one)], type_ignores=[])


def _is_left_open(one: ast.stmt) -> bool:
    """Whether a function has no body but its description."""
    if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    return all(
        isinstance(part, ast.Pass) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        for part in one.body
    )


def _number_of(value: Any) -> int:
    if isinstance(value, ProgramValue):
        return value._number
    raise TypeError(f"a test cannot give a {type(value).__name__} to the program")


def _error_of(name: str, text: str) -> Exception:
    """Return an error of Python's own class of that name; its text is empty if the class takes more than a text."""
    found = getattr(builtins, name, None)
    own = isinstance(found, type) and issubclass(found, Exception)
    kind: type[Exception] = found if own else ProgramRaised
    try:
        return kind(text)
    except TypeError:
        return kind.__new__(kind)

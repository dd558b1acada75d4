"""Which statements changed since the versions of stages were last recorded, and which of them a run enters.

Two versions of a module are compared as syntax trees, so comments, docstrings and layout do not count, and neither does
a definition that only moved to another module, or a check that only refuses. Before each changed statement stands a
mark, which notes that its line was entered; a mark also stands where statements were removed. So these lines count as
entered:

- in a function: when the statement is run; the head of a function when the function is called;
- in a class or at the level of a module, such as an import or a constant: when the module is imported;
- a packaged file that is no Python code: when it is opened.

A kernel (`@native`) is compiled without marks, so its changed lines count as not entered. Nothing is told apart within
a statement, such as the two branches of `a if b else c`.
"""

from __future__ import annotations

import ast
import marshal
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Any

from training.contract.identity.refusals import refusing_statements

TRACER = Path(__file__).parent / "tracing" / "sitecustomize.py"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = ("body", "orelse", "finalbody")
BRANCHES = ("handlers", "cases")


# What was there before


@dataclass(frozen=True)
class Base:
    """The sources of the commit in which a file, the record, changed last."""

    checkout: Path
    record: Path

    @cached_property
    def commit(self) -> str:
        """The commit's name."""
        return self._git("log", "-1", "--format=%H", "--", str(self.record)).strip()

    def source(self, path: Path) -> str:
        """Return the source of a file in the commit; empty if it was not there."""
        return self._git("show", f"{self.commit}:{self.name(path)}", check=False)

    def name(self, path: Path) -> str:
        """Return the path of a file in the checkout."""
        return path.resolve().relative_to(self.checkout.resolve()).as_posix()

    @cached_property
    def definitions(self) -> frozenset[str]:
        """The functions and classes, as text, of each module that has changed since, or is gone."""
        names = self._git("diff", "--name-only", "--no-renames", self.commit, "--", "*.py").splitlines()
        bodies = (ast.parse(self.source(self.checkout / name)).body for name in names)
        return frozenset(_text(one) for body in bodies for one in body if isinstance(one, (*FUNCTIONS, ast.ClassDef)))

    def _git(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.checkout, check=check, capture_output=True, text=True)
        return "" if done.returncode else done.stdout


# What changed


@dataclass(frozen=True)
class Marker:
    """Puts marks into the tree of a module's new source, and collects the `lines` that changed."""

    name: str
    moved: frozenset[str] = frozenset()  # definitions that were there before, in any module
    refusing: list[ast.stmt] = field(default_factory=list)  # statements that only refuse, which are no code of a stage
    lines: list[int] = field(default_factory=list)

    def marked(self, before: str, after: str) -> ast.Module:
        """Return the tree of the new source with its marks."""
        old, new = ast.parse(before), ast.parse(after)
        self.refusing.extend((*refusing_statements(old), *refusing_statements(new)))
        self._into_blocks(old, new, is_marked=True)
        return ast.fix_missing_locations(new)

    def _into_blocks(self, old: ast.AST | None, new: ast.AST, *, is_marked: bool) -> None:
        """Put marks into the blocks of a statement, which is compared with an old one; None: all of it is new."""
        if isinstance(new, ast.If) and ast.unparse(new.test) == "TYPE_CHECKING":
            return
        is_marked = is_marked and not any(ast.unparse(one) == "native" for one in getattr(new, "decorator_list", ()))
        for name in BLOCKS:
            if isinstance(statements := getattr(new, name, None), list):
                setattr(new, name, self._block(getattr(old, name, []), statements, is_marked))
        for name in BRANCHES:
            before = getattr(old, name, [])
            for index, branch in enumerate(getattr(new, name, ())):
                partner = before[index] if index < len(before) else None
                self._into_blocks(partner, branch, is_marked=is_marked)
                if partner is None or _head(partner) != _head(branch):
                    branch.body[:0] = self._mark(branch.body[0], is_marked)
        if isinstance(new, FUNCTIONS) and (old is None or _head(old) != _head(new)):
            lead = _lead(new.body)
            new.body[lead:lead] = self._mark(new, is_marked)

    def _block(self, old: Sequence[ast.stmt], new: Sequence[ast.stmt], is_marked: bool) -> list[ast.stmt]:
        lead = _lead(new)
        found, old, new = list(new[:lead]), old[_lead(old) :], new[lead:]
        same = SequenceMatcher(None, [_text(one) for one in old], [_text(one) for one in new], autojunk=False)
        for kind, start, end, first, last in same.get_opcodes():
            if kind == "equal":
                found += new[first:last]
                continue
            statements, gone = [], [one for one in old[start:end] if one not in self.refusing]
            for one in new[first:last]:
                partner = next((other for other in gone if _kind(other) == _kind(one)), None)
                if partner:
                    gone.remove(partner)
                statements += self._statement(partner, one, is_marked)
            if gone and (at := new[first : first + 1] or found[-1:]):
                found += self._mark(at[0], is_marked)
            found += statements
        return found

    def _statement(self, old: ast.stmt | None, new: ast.stmt, is_marked: bool) -> list[ast.stmt]:
        """Return a statement that changed, or a part of which changed, with its marks."""
        if new in self.refusing or (old is None and _text(new) in self.moved):
            return [new]
        self._into_blocks(old, new, is_marked=is_marked)
        has_mark_inside = isinstance(new, FUNCTIONS)
        is_same = has_mark_inside or (old is not None and _head(old) == _head(new))
        return [new] if is_same else [*self._mark(new, is_marked), new]

    def _mark(self, at: ast.stmt, is_marked: bool) -> list[ast.stmt]:
        self.lines.append(at.lineno)
        mark = ast.parse(f"__entered__({f'{self.name}:{at.lineno}'!r})").body[0]
        return [ast.copy_location(mark, at)] if is_marked else []


def _lead(body: Sequence[ast.stmt]) -> int:
    """Return how many statements must stay first: a docstring, and imports from `__future__`."""
    count = int(bool(body) and _is_text(body[0]))
    while count < len(body) and getattr(body[count], "module", "") == "__future__":
        count += 1
    return count


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _kind(node: ast.stmt) -> tuple[type, str]:
    return type(node), getattr(node, "name", "")


def _head(node: ast.AST) -> str:
    """Return a statement as text without what its blocks hold; nothing of a text that stands alone."""
    fields = {name: value for name, value in ast.iter_fields(node) if not _is_text(node)}
    fields |= {name: bool(fields[name]) for name in BLOCKS if isinstance(fields.get(name), list)}
    fields |= {name: len(fields[name]) for name in BRANCHES if name in fields}
    return f"{type(node).__name__} { {name: _text(value) for name, value in fields.items()} }"


def _text(value: Any) -> str:
    """Return a part of a tree as text, without layout and comments."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return ast.dump(value) if isinstance(value, ast.AST) else repr(value)


# What a run enters


@dataclass(frozen=True)
class Trace:
    """The changed places of each file, which are `path:line`, or the path of a packaged file; and what was entered."""

    changed: dict[str, list[str]] = field(default_factory=dict)
    entered: set[str] = field(default_factory=set)

    def missed(self, name: str) -> list[str]:
        """Return the changed places of a file that were not entered."""
        return [place for place in self.changed.get(name, ()) if place not in self.entered]


@contextmanager
def traced(base: Base, files: Mapping[str, Path]) -> Iterator[Trace]:
    """Mark what changed in the files, for every process that starts meanwhile; the trace is whole at the end.

    Processes find the marked code by the environment variable PYTHONPATH, which they must pass on.
    """
    trace, codes, opened = Trace(), {}, {}
    for name, path in files.items():
        place = base.name(path)
        if path.suffix == ".py":
            marker = Marker(place, base.definitions)
            tree = marker.marked(base.source(path), path.read_text("utf-8"))
            codes[os.path.realpath(path)] = compile(tree, path, "exec", dont_inherit=True)
            trace.changed[name] = [f"{place}:{line}" for line in sorted({*marker.lines})]
        else:
            opened[str(path)] = place
            trace.changed[name] = [place]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(TRACER, folder)
        Path(folder, "marked").write_bytes(marshal.dumps((codes, opened)))
        entered, before = Path(folder, "entered"), os.environ.get("PYTHONPATH")
        entered.touch()
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *([before] if before else [])])
        try:
            yield trace
        finally:
            os.environ.pop("PYTHONPATH")
            os.environ.update({"PYTHONPATH": before} if before else {})
        trace.entered.update(entered.read_text("utf-8").splitlines())

"""The parts that a package offers by name, one file a part: a new file there is a new part, and no list names it.

`parts_in` imports all of them. Where importing takes long, `part_names` lists them, `declaration` reads what a part
says about itself without importing it, and `load_part` imports one. `training.closure` knows both ways: who asks for
such a package contains the code of all its modules. Standard library only.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def parts_in(package: str) -> dict[str, ModuleType]:
    """Every module directly inside a package by its name, imported, in alphabetical order.

    A package calls it with its own `__name__` in its `__init__`; `training.closure` reads no other argument.
    """
    return {name: import_module(f"{package}.{name}") for name in part_names(package)}


def part_names(package: str) -> tuple[str, ...]:
    """The names of the modules directly inside a package, in alphabetical order."""
    return tuple(sorted(module.name for module in iter_modules(import_module(package).__path__)))


@cache
def declaration(package: str, name: str, cls: type[T]) -> T:
    """The record of class `cls` that a part makes at its top level from literals, such as `METHOD = Method(a="b")`."""
    found = find_spec(f"{package}.{name}")
    assert found is not None and found.origin, f"{package} has no part {name}"
    for node in ast.parse(Path(found.origin).read_text("utf-8")).body:
        made = node.value if isinstance(node, ast.Assign) else None
        if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == cls.__name__:
            return cls(**{word.arg: ast.literal_eval(word.value) for word in made.keywords if word.arg})
    raise TypeError(f"{found.origin}: a part of {package} declares itself by {cls.__name__}(…) at its top level")


def load_part(modules: str, name: str) -> ModuleType:
    """The module of one part, imported.

    `modules` is the package followed by `.*`, written out where this is called: `training.closure` reads that text.
    """
    return import_module(modules.replace("*", name))

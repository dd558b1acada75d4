"""Packages of parts with one file for each part: a new file in the package is a new part, and no list names it.

`parts_in` imports all parts. For packages that are slow to import, `part_names` lists the parts, `declaration` reads
the record that a part declares without importing it, and `load_part` imports one part. With both ways
`training.contract.identity.closure` counts all modules of the package as imported. Standard library only.
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
    """Import every module directly inside a package; return them by name, in alphabetical order.

    A package calls this with its own `__name__` in its `__init__`; `training.contract.identity.closure` understands no
    other argument.
    """
    return {name: import_module(f"{package}.{name}") for name in part_names(package)}


@cache
def part_names(package: str) -> tuple[str, ...]:
    """Return the names of the modules directly inside a package, in alphabetical order."""
    return tuple(sorted(module.name for module in iter_modules(import_module(package).__path__)))


@cache
def declaration(package: str, name: str, cls: type[T]) -> T:
    """Return the record of class `cls` that a part declares at its top level, without importing the part.

    The declaration must consist of literals, such as `METHOD = Method(a="b")`. Raise TypeError if there is none.
    """
    found = find_spec(f"{package}.{name}")
    assert found is not None and found.origin, f"{package} has no part {name}"
    for node in ast.parse(Path(found.origin).read_text("utf-8")).body:
        made = node.value if isinstance(node, ast.Assign) else None
        if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == cls.__name__:
            return cls(**{word.arg: ast.literal_eval(word.value) for word in made.keywords if word.arg})
    raise TypeError(f"{found.origin}: a part of {package} declares itself by {cls.__name__}(…) at its top level")


def load_part(modules: str, name: str) -> ModuleType:
    """Import one part and return its module.

    `modules` is the package's name followed by `.*`. It must be a literal in the call, because
    `training.contract.identity.closure` reads it from the source.
    """
    return import_module(modules.replace("*", name))

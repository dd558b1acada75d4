"""The parts that a package offers by name, one file a part: a new file there is a new part, and no list names it.

`training.closure` knows `parts_in`: who imports such a package imports all of its modules. Standard library only.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def parts_in(package: str) -> dict[str, ModuleType]:
    """Every module directly inside a package by its name, imported, in alphabetical order.

    A package calls it with its own `__name__` in its `__init__`; `training.closure` reads no other argument.
    """
    names = sorted(module.name for module in iter_modules(import_module(package).__path__))
    return {name: import_module(f"{package}.{name}") for name in names}

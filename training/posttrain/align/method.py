"""The declaration of a preference method, and functions that list and read the declarations.

Each module of training/posttrain/methods is a method. Recipes are checked against the declarations without importing
TRL or torch. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from training.parts import declaration, part_names
from training.records import RecipeError, unknown_names

PACKAGE = "training.posttrain.methods"


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """The declaration of one preference method.

    The method learns from preference pairs, from single answers that are desired or not, or from rewards of answers
    that it samples. `start_gates` are the names of the gates on its start, of which each training has one; empty if
    nothing about the start is known in advance.
    """

    config: str  # name of TRL's class of settings, whose fields `align.trl` may set
    learns_from: Literal["pairs", "answers", "samples"]
    start_gates: tuple[str, ...] = ()
    decides: Mapping[str, Any] = field(default_factory=dict)  # fields of `config` that define the method, with values
    because: str = ""  # why other values of these fields are refused, for the error message

    def check_trl(self, trl: Mapping[str, Any]) -> None:
        """Raise RecipeError if `align.trl` gives another value to a field that the method decides."""
        for name, value in self.decides.items():
            if name in trl and trl[name] != value and [trl[name]] != value:
                alike = [other for other in method_names() if method_of(other).config == self.config]
                raise RecipeError(
                    f"align.trl: {' and '.join(self.decides)} stay as they are; {self.because};"
                    f" align.method may be {' or '.join(alike)}"
                )


def method_names() -> tuple[str, ...]:
    """Return the names that `align.method` accepts, sorted."""
    return part_names(PACKAGE)


def method_of(name: str) -> Method:
    """Return the declaration of a method. Raise RecipeError, with a list of all methods, if there is none."""
    if name not in method_names():
        raise RecipeError(*unknown_names("align.method", name, method_names()))
    return declaration(PACKAGE, name, Method)


def sampling_methods() -> list[str]:
    """Return the names of the methods that sample answers."""
    return [name for name in method_names() if method_of(name).learns_from == "samples"]


def start_gates() -> tuple[str, ...]:
    """Return the names of all methods' gates on their start."""
    return tuple(dict.fromkeys(gate for name in method_names() for gate in method_of(name).start_gates))

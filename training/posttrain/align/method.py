"""The declaration of a preference method, and functions that list and read the declarations.

Each module of training/posttrain/methods is a method; another one is a part from outside. Recipes are checked against
the declarations without importing TRL or torch. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from training.contract.parts.outside import NoSettings, PartsOf
from training.contract.parts.packages import declaration, part_names
from training.contract.records import RecipeError

PACKAGE = "training.posttrain.methods"
KIND = "methods"
NAMED = 10  # fields of a method that an error message lists


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """The declaration of one preference method.

    The method learns from preference pairs, from single answers that are desired or not, or from rewards of answers
    that it samples. `start_gates` are the names of the gates on its start, of which each training has one; empty if
    nothing about the start is known in advance.

    A method from outside also has its function `train(given)`, and a record of its own `settings`, whose fields have
    defaults. Pedigree's methods have `train` in their module.
    """

    config: str  # name of TRL's class of settings, whose fields `align.trl` may set
    learns_from: Literal["pairs", "answers", "samples"]
    start_gates: tuple[str, ...] = ()
    compares_answers: bool = False  # the two that are sampled for each prompt, with the reference
    decides: Mapping[str, Any] = field(default_factory=dict)  # fields of `config` that define the method, with values
    train: Callable[[Any], Any] | None = None
    settings: type = NoSettings
    because: str = ""  # why other values of these fields are refused, for the error message

    def check_trl(self, trl: Mapping[str, Any]) -> None:
        """Raise RecipeError if `align.trl` gives another value to a field that the method decides."""
        for name, value in self.decides.items():
            if name in trl and trl[name] != value and [trl[name]] != value:
                fields = " and ".join(self.decides) + " stay as they are"
                fields = fields if len(self.decides) < NAMED else f"{name} stays as it is"
                alike = [other for other in method_names() if method_of(other).config == self.config]
                raise RecipeError(f"align.trl: {fields}; {self.because}; align.method may be {' or '.join(alike)}")


def method_names() -> tuple[str, ...]:
    """Return the names that `align.method` accepts, sorted."""
    return part_names(PACKAGE)


def method_of(name: str) -> Method:
    """Return the declaration of one of Pedigree's methods."""
    return declaration(PACKAGE, name, Method)


def outside_method(name: str, parts: PartsOf) -> Method:
    """Return the method from outside that `align.method` names. Raise RecipeError if it is none."""
    found = parts.load(KIND, name, method_names(), field="method", cls=Method)
    if not callable(found.train):
        raise RecipeError(f"align.method: {name} has no function `train`")
    if unknown := [gate for gate in found.start_gates if gate not in start_gates()]:
        raise RecipeError(f"align.method: {name}'s gate {unknown[0]!r} is not one of {', '.join(start_gates())}")
    return found


def sampling_methods() -> list[str]:
    """Return the names of the methods that sample answers."""
    return [name for name in method_names() if method_of(name).learns_from == "samples"]


def start_gates() -> tuple[str, ...]:
    """Return the names of all methods' gates on their start."""
    return tuple(dict.fromkeys(gate for name in method_names() for gate in method_of(name).start_gates))

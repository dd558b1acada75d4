"""What a preference method declares about itself, and the methods that there are: the modules of
training/posttrain/methods.

A recipe is checked by these declarations without TRL and torch. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from training.parts import declaration, part_names
from training.records import RecipeError

PACKAGE = "training.posttrain.methods"


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One preference method.

    It learns from the preference pairs, or from answers that it samples itself and that are rewarded. `start_gate` is
    the gate on its loss before the first step; None where that loss is not known.
    """

    config: str  # TRL's class of settings, whose fields `align.trl` may set
    learns_from: Literal["pairs", "samples"]
    start_gate: str | None = None
    decides: Mapping[str, Any] = field(default_factory=dict)  # fields of `config` with the value that makes the method
    because: str = ""  # why no other value of these fields is accepted

    def check_trl(self, trl: Mapping[str, Any]) -> None:
        """RecipeError when `align.trl` sets a field that the method decides to another value."""
        for name, value in self.decides.items():
            if name in trl and trl[name] != value and [trl[name]] != value:
                alike = [other for other in method_names() if method_of(other).config == self.config]
                raise RecipeError(
                    f"align.trl: {' and '.join(self.decides)} stay as they are; {self.because};"
                    f" align.method may be {' or '.join(alike)}"
                )


def method_names() -> tuple[str, ...]:
    """The names that `align.method` may have, sorted."""
    return part_names(PACKAGE)


def method_of(name: str) -> Method:
    """The declaration of a method. RecipeError lists the methods that there are."""
    if name not in method_names():
        raise RecipeError(f"align.method: {name!r} is not one of {', '.join(map(repr, method_names()))}")
    return declaration(PACKAGE, name, Method)


def sampling_methods() -> list[str]:
    """The names of the methods that sample answers."""
    return [name for name in method_names() if method_of(name).learns_from == "samples"]


def start_gates() -> tuple[str, ...]:
    """The names of the gates on a method's loss before its first step."""
    return tuple(gate for name in method_names() if (gate := method_of(name).start_gate))

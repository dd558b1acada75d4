"""The recipe section `pretrain.watch`: what is measured while the base model is trained, and at which steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.contract.records import RecipeError
from training.pretrain.watch.steps_settings import spaced_by_logarithm


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchRecipe:
    """What is measured of the base model during its training: no weight, order or fingerprint depends on it."""

    # Steps between two looks. log: two at each doubling; null: nothing is watched. First and last step always count.
    every: int | Literal["log"] | None = None
    suites: tuple[str, ...] = ()  # of `evaluation.suites`; those that are asked by likelihood
    items: int | Literal["auto"] = "auto"  # of each suite; auto: as many as the profile's `watch_share` pays for
    seed: int = 0  # draws the items
    languages: bool = False  # the loss on held-out text also by language

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("items", self.items)):
            if isinstance(value, int) and value < 1:
                raise RecipeError(f"pretrain.watch.{name}={value}; at least 1 is right")
        if len(set(self.suites)) != len(self.suites):
            raise RecipeError(f"pretrain.watch.suites: {', '.join(self.suites)}; name each suite once")
        asked = {
            "suites": self.suites,
            "items": self.items != "auto",
            "seed": self.seed,
            "languages": self.languages,
        }
        given = [name for name, is_set in asked.items() if is_set]
        if given and self.every is None:
            raise RecipeError(_idle(given, "every is null; log or a number of steps is right"))
        given = [name for name in given if name != "languages"]
        if given and not self.suites:
            raise RecipeError(_idle(given, "suites is empty"))

    def steps_of(self, steps: int) -> frozenset[int]:
        """Return the steps, from 0 to `steps`, after which the model is measured; empty if nothing is watched."""
        if self.every is None:
            return frozenset()
        places = spaced_by_logarithm(steps) if self.every == "log" else range(0, steps, self.every)
        return frozenset((0, *places, steps))


def _idle(names: list[str], why: str) -> str:
    return f"{', '.join(f'pretrain.watch.{name}' for name in names)}: without effect, because {why}"

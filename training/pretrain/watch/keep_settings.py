"""The recipe section `pretrain.keep`: after which steps the base model stays as an artifact of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.contract.records import RecipeError
from training.pretrain.watch.settings import spaced_by_logarithm


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepRecipe:
    """After which steps the base model is kept: no weight, order or fingerprint of its training depends on it."""

    steps: tuple[int, ...] | Literal["log"] = ()  # log: two at each doubling
    every: int | None = None  # or every so many; None: only `steps`

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise RecipeError(f"pretrain.keep.every={self.every}; at least 1 is right, or null for none")
        if self.steps and self.every:
            raise RecipeError("pretrain.keep: steps and every; name one of them")
        if self.steps != "log" and any(step < 1 for step in self.steps):
            raise RecipeError(f"pretrain.keep.steps: {min(self.steps)}; at least 1 is right")

    @property
    def is_asked(self) -> bool:
        """Whether any step is to be kept."""
        return bool(self.steps or self.every)

    def steps_of(self, steps: int) -> tuple[int, ...]:
        """Return the kept steps of a training of so many steps, ascending. After the last step there is its model.

        Raise RecipeError for a step that the training does not reach.
        """
        if self.steps == "log":
            return tuple(sorted(set(spaced_by_logarithm(steps))))
        every = self.every
        asked = self.steps if every is None else range(every, max(steps, every + 1), every)
        if late := [step for step in asked if step >= steps]:
            raise RecipeError(f"pretrain.keep: {late[0]}; the training ends after step {steps:,} with its own model")
        return tuple(sorted(set(asked)))

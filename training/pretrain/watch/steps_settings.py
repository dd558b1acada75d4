"""Which steps of a training are meant: by number, every so many, two at each doubling, or whole epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from training.contract.records import RecipeError

POINTS_PER_DOUBLING = 2  # of the steps that `log` means


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptStepsRecipe:
    """After which steps a model is kept: no weight, order or fingerprint of its training depends on it."""

    steps: tuple[int, ...] | Literal["log"] = ()  # log: two at each doubling
    every: int | None = None  # or every so many; None: only `steps`

    def check_steps(self, where: str) -> None:
        """Raise RecipeError for fields that contradict each other. `where` is the section of the recipe."""
        if self.every is not None and self.every < 1:
            raise RecipeError(f"{where}.every={self.every}; at least 1 is right, or null for none")
        if self.steps and self.every:
            raise RecipeError(f"{where}: steps and every; name one of them")
        if self.steps != "log" and any(step < 1 for step in self.steps):
            raise RecipeError(f"{where}.steps: {min(self.steps)}; at least 1 is right")

    @property
    def is_asked(self) -> bool:
        """Whether any step is to be kept."""
        return bool(self.steps or self.every)

    def steps_of(self, steps: int, where: str) -> tuple[int, ...]:
        """Return the kept steps of a training of so many steps, ascending. After the last step there is its model.

        Raise RecipeError for a step that the training does not reach.
        """
        if self.steps == "log":
            return tuple(sorted(set(spaced_by_logarithm(steps))))
        every = self.every
        asked = self.steps if every is None else range(every, max(steps, every + 1), every)
        if late := [step for step in asked if step >= steps]:
            raise RecipeError(f"{where}: {late[0]}; the training ends after step {steps:,} with its own model")
        return tuple(sorted(set(asked)))


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptEpochsRecipe(KeptStepsRecipe):
    """Kept steps of a training on rows. How many steps an epoch has is known only when its rows are."""

    # Or after as many rows as so many epochs have; all: at the end of each epoch but the last one.
    epochs: tuple[int, ...] | Literal["all"] = ()

    @property
    def is_asked(self) -> bool:
        """Whether any step is to be kept."""
        return bool(self.steps or self.every or self.epochs)

    def kept(self, where: str, *, epochs: float, max_steps: int | None = None) -> tuple[str, ...]:
        """Return what is kept of a training of so many epochs, or of `max_steps`, such as `step-50` or `epoch-1`.

        Raise RecipeError for an epoch or step that the training does not reach, or if that cannot be known.
        """
        self.check_steps(where)
        if self.epochs and (self.steps or self.every):
            raise RecipeError(f"{where}: epochs and steps; name one of them")
        if self.epochs and max_steps:
            raise RecipeError(f"{where}.epochs: the training ends after {max_steps} steps, not epochs; name steps")
        if max_steps:
            return tuple(f"step-{step}" for step in self.steps_of(max_steps, where))
        if self.steps == "log" or self.every:
            raise RecipeError(f"{where}: only the rows say how many steps there will be; list steps, or name epochs")
        last = math.ceil(epochs) - 1
        asked = range(1, last + 1) if self.epochs == "all" else sorted(set(self.epochs))
        if (self.epochs and not asked) or any(one > last for one in asked):
            named = "all" if self.epochs == "all" else asked[-1]
            raise RecipeError(f"{where}.epochs: {named}; the training has {epochs:g}, and ends with its own model")
        return (*(f"step-{step}" for step in sorted(set(self.steps))), *(f"epoch-{one}" for one in asked))


def spaced_by_logarithm(steps: int) -> Iterator[int]:
    """Yield 1, 2, 3, 4, 6, 8, 11 and so on below `steps`: POINTS_PER_DOUBLING steps at each doubling."""
    for number in count():
        place = round(2 ** (number / POINTS_PER_DOUBLING))
        if place >= steps:
            return
        yield place

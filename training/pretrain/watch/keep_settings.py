"""The recipe section `pretrain.keep`: after which steps the base model stays as an artifact of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from training.contract.records import RecipeError
from training.pretrain.watch.settings import spaced_by_logarithm

DECAY = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class StepAverageRecipe:
    """Which kept steps are averaged into one model, and with which weights."""

    steps: tuple[int, ...] | Literal["all"] = ()  # none: no average is made
    kind: Literal["uniform", "ema"] = "uniform"
    decay: float = DECAY  # ema: the share of the mean that the next step keeps

    def __post_init__(self) -> None:
        if self.steps != "all" and len(set(self.steps)) == 1:
            raise RecipeError(f"pretrain.keep.average.steps: {list(self.steps)}; an average needs two steps, or all")
        if not 0 < self.decay < 1:
            raise RecipeError(f"pretrain.keep.average.decay={self.decay:g}; between 0 and 1 is right")
        if self.kind == "uniform" and self.decay != DECAY:
            raise RecipeError("pretrain.keep.average.decay: without effect, because kind is uniform; ema has a decay")
        if self.kind == "ema" and not self.steps:
            raise RecipeError("pretrain.keep.average.kind: without effect, because no steps are averaged; name some")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepRecipe:
    """After which steps the base model is kept: no weight, order or fingerprint of its training depends on it."""

    steps: tuple[int, ...] | Literal["log"] = ()  # log: two at each doubling
    every: int | None = None  # or every so many; None: only `steps`
    optimizer: bool = False  # also the optimizer's state, from which a later step can be made
    average: StepAverageRecipe = field(default_factory=StepAverageRecipe)

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise RecipeError(f"pretrain.keep.every={self.every}; at least 1 is right, or null for none")
        if self.steps and self.every:
            raise RecipeError("pretrain.keep: steps and every; name one of them")
        if self.optimizer and not self.is_asked:
            raise RecipeError("pretrain.keep.optimizer: without effect, because no step is kept; name steps or every")
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

    def averaged(self, kept: tuple[int, ...]) -> tuple[int, ...]:
        """Return the steps that are averaged if these are kept, ascending."""
        return tuple(sorted(set(kept if self.average.steps == "all" else self.average.steps)))

"""The recipe sections `keep`: after which steps of a training its model stays as an artifact of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from training.contract.records import RecipeError
from training.pretrain.watch.steps_settings import KeptStepsRecipe

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
class KeptStatesRecipe(KeptStepsRecipe):
    """Kept steps of a training on pages, whose optimizer can be kept too."""

    optimizer: bool = False  # also the optimizer's state, from which a later step can be made

    def check_steps(self, where: str) -> None:
        """Raise RecipeError for fields that contradict each other. `where` is the section of the recipe."""
        KeptStepsRecipe.check_steps(self, where)
        if self.optimizer and not self.is_asked:
            raise RecipeError(f"{where}.optimizer: without effect, because no step is kept; name steps or every")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepRecipe(KeptStatesRecipe):
    """Kept steps of the base model, and their average."""

    average: StepAverageRecipe = field(default_factory=StepAverageRecipe)

    def __post_init__(self) -> None:
        self.check_steps("pretrain.keep")

    def averaged(self, kept: tuple[int, ...]) -> tuple[int, ...]:
        """Return the steps that are averaged if these are kept, ascending."""
        return tuple(sorted(set(kept if self.average.steps == "all" else self.average.steps)))

"""The settings of a distillation, and the fields of `pretrain` that a loss reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.contract.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class DistillRecipe:
    """Distillation from a teacher's probabilities (arXiv 1503.02531); no distillation if `teacher` is None.

    The loss is (1 - weight) times that of the next token plus weight · temperature² times the Kullback-Leibler
    divergence of the model's softened probabilities from the teacher's.
    """

    teacher: str | None = None  # made://base_model/RECIPE, or a folder of a model with the same tokenizer
    temperature: float = 1.0
    weight: float = 0.5

    def __post_init__(self) -> None:
        if self.temperature <= 0 or not 0 < self.weight <= 1:
            raise RecipeError(
                f"pretrain.distill: temperature={self.temperature} must be above 0, weight={self.weight} above 0, to 1"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LossRecipe:
    """The fields of `pretrain` that Pedigree's losses read. Settings of a loss from outside are in its own record."""

    z_loss: float = 0.0
    distill: DistillRecipe = field(default_factory=DistillRecipe)

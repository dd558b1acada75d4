"""The recipe section `promote`: the registered model's name and the conditions for promotion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from training.contract.records import RecipeError
from training.contract.user_input.names import check_model_name


@dataclass(frozen=True, kw_only=True, slots=True)
class PromoteRecipe:
    """Conditions under which the registered model's alias `champion` moves to this recipe's last model.

    `above_chance`: with `required`, the model must be above chance on at least one suite; with `if_scored`, a model
    that took no exam is let through; with `not_required`, so is one at chance.

    `max_score_drop`: the 95 % interval of the drop from a champion's score must end at or below it, on every suite. 0
    asks for a model that is shown to be better, 1 permits any drop.

    `best_by`: the model is the best on this suite of the kept steps of the last training, their average and its last
    model. Its score on the suite is then too high on average, as everything that shows it says.
    """

    model_name: str
    min_scores: dict[str, float] = field(default_factory=dict)  # suite: lowest score of the last model, in [0, 1]
    max_score_drop: float = 0.05
    best_by: str | None = None  # a suite of `evaluation.suites`; None: the last model
    above_chance: Literal["required", "if_scored", "not_required"] = "required"

    def __post_init__(self) -> None:
        check_model_name(self.model_name, "promote.model_name")
        if not 0 <= self.max_score_drop <= 1:
            raise RecipeError(f"promote.max_score_drop={self.max_score_drop}: must be a share from 0 to 1")

"""The recipe section `promote`: the registered model's name and the conditions for promotion."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.names import check_model_name


@dataclass(frozen=True, kw_only=True, slots=True)
class PromoteRecipe:
    """Conditions under which the registered model's alias `champion` moves to this recipe's aligned model."""

    model_name: str
    min_scores: dict[str, float] = field(default_factory=dict)  # suite: lowest score of the aligned model, in [0, 1]
    max_score_drop: float = 0.05  # largest drop from the present champion's score, on any suite

    def __post_init__(self) -> None:
        check_model_name(self.model_name, "promote.model_name")

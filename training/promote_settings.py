"""The section `promote`."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.names import check_model_name


@dataclass(frozen=True, kw_only=True, slots=True)
class PromoteRecipe:
    """Under which conditions the champion alias moves."""

    model_name: str
    min_scores: dict[str, float] = field(default_factory=dict)  # suite: score of the aligned model, 0 to 1
    max_score_drop: float = 0.05  # against the present champion, on any suite
    require_clean: bool = True

    def __post_init__(self) -> None:
        check_model_name(self.model_name, "promote.model_name")

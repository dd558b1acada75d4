"""The recipe section `automation`: what may be rebuilt without a person, and the budget for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.contract.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class AutomationRecipe:
    """Settings of automatic runs: which assets of the recipe the sensor and the schedule may make, and their budget.

    `rebuild: corpus` allows the assets of the group `corpus`. `rebuild: all` allows every asset except the promotion,
    which also needs `promote`. The section is part of no fingerprint, and variants do not inherit it.
    """

    rebuild: Literal["none", "corpus", "all"] = "none"
    promote: bool = False
    node_hours_per_day: float = 0.0  # budget: node-hours that automatic runs may take in any 24 hours

    def __post_init__(self) -> None:
        if self.promote and self.rebuild != "all":
            raise RecipeError(f"automation.promote: true needs rebuild: all, got rebuild: {self.rebuild}")
        if not 0 <= self.node_hours_per_day < float("inf"):
            raise RecipeError(f"automation.node_hours_per_day={self.node_hours_per_day}; it must be 0 or more")
        if self.rebuild == "none" and self.node_hours_per_day:
            raise RecipeError("automation.node_hours_per_day: rebuild: none takes no node-hours; leave the budget at 0")
        if self.rebuild != "none" and not self.node_hours_per_day:
            raise RecipeError(f"automation.rebuild: {self.rebuild} needs a budget; set automation.node_hours_per_day")

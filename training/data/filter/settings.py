"""The recipe section `filter`: the settings that all rules share, and those of every rule."""

from __future__ import annotations

from dataclasses import dataclass

from training.data.filter.rules import RULES
from training.records import RecipeError

_OF_RULES = [rule.settings for rule in RULES.values()]


# Reversed, so that the fields come in the order of the rules.
@dataclass(frozen=True, kw_only=True)
class FilterRecipe(*reversed(_OF_RULES)):  # pyrefly: ignore[invalid-inheritance]
    """Settings of the filter. Rules are applied in the order of `rules`; the first failed rule gives the reason.

    The settings of each rule are declared in its file in `training/data/filter/rules/`.
    """

    min_kept_fraction: float = 0.0  # gate: lower survival, also of one language or source, stops the chain
    max_kept_fraction: float = 1.0

    def __post_init__(self) -> None:
        for place, name in enumerate(self.rules):
            if name not in RULES:
                raise RecipeError(f"filter.rules[{place}]: {name!r} is not one of {', '.join(map(repr, RULES))}")
        if len(set(self.rules)) != len(self.rules):
            raise RecipeError(f"filter.rules: {', '.join(self.rules)}; each rule at most once")
        for rule in RULES.values():
            rule.check(self)
        if not 0 <= self.min_kept_fraction <= self.max_kept_fraction <= 1:
            raise RecipeError(
                f"filter: min_kept_fraction={self.min_kept_fraction}, max_kept_fraction={self.max_kept_fraction};"
                " fractions from 0 to 1, the first not above the second"
            )

    def measured(self) -> FilterRecipe:
        """Return the settings that decide the scores: the rules that measure, and the fields that they measure by.

        All limits have their default values.
        """
        fields = {name: getattr(self, name) for rule in RULES.values() for name in ("languages", *rule.measured_by)}
        fields["rules"] = tuple(name for name in self.rules if RULES[name].columns)
        return FilterRecipe(**fields)

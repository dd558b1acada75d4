"""The recipe section `filter`: the settings that all rules share, and those of every rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal

from training.data.filter.language_limits import published_limits
from training.data.filter.rule import CommonSettings
from training.data.filter.rules import RULES
from training.data.filter.rules.personal_data import KINDS as PERSONAL_DATA
from training.data.words.languages import check_languages
from training.records import RecipeError, all_of, check_names, read_record

_OF_RULES = [rule.settings for rule in RULES.values()]
_COMMON = frozenset(field.name for field in fields(CommonSettings))
_DEFAULTS = {field.name: field.default for settings in _OF_RULES for field in fields(settings)}
LIMITS = frozenset(_DEFAULTS) - _COMMON - {name for rule in RULES.values() for name in rule.measured_by}
"""Fields of the rules that decide without changing what is measured. Only these may differ by language or kind."""
KINDS = ("prose", "code", "table", "list")
"""The kinds of pages that extraction tells (column `kind` of documents)."""


# Reversed, so that the fields come in the order of the rules.
@dataclass(frozen=True, kw_only=True)
class FilterRecipe(*reversed(_OF_RULES)):  # pyrefly: ignore[invalid-inheritance]
    """Settings of the filter. Rules are applied in the order of `rules`; the first failed rule gives the reason.

    The settings of each rule are declared in its file in `training/data/filter/rules/`. A page is judged by the limits
    of its kind and language: those of `by_kind`; else those of `by_language`; else the recipe's own; else, where the
    recipe has the value of the English papers, the one that `language_limits` gives for the language.
    """

    language_limits: Literal["fineweb-2", "none"] = "fineweb-2"
    by_language: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)  # limits by language code
    by_kind: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)  # limits by kind of page: KINDS
    min_kept_fraction: float = 0.0  # gate: lower survival, also of one language or source, stops the chain
    max_kept_fraction: float = 1.0

    NAMES: ClassVar[Mapping[str, Iterable[str]]] = {"rules": RULES, "personal_data": PERSONAL_DATA, "by_kind": KINDS}

    def __post_init__(self) -> None:
        all_of(
            lambda: check_names(self, "filter"),
            *(partial(rule.check, self) for rule in RULES.values()),
            self._check_shares,
            self._check_overrides,
        )

    def _check_shares(self) -> None:
        if len(set(self.rules)) != len(self.rules):
            raise RecipeError(f"filter.rules: {', '.join(self.rules)}; each rule at most once")
        if not 0 <= self.min_kept_fraction <= self.max_kept_fraction <= 1:
            raise RecipeError(
                f"filter: min_kept_fraction={self.min_kept_fraction}, max_kept_fraction={self.max_kept_fraction};"
                " fractions from 0 to 1, the first not above the second"
            )

    def _check_overrides(self) -> None:
        """Raise RecipeError for an override by language or kind that names no limit, or that can apply to no page."""
        check_languages("filter.by_language", self.by_language)
        for code in self.by_language:
            if self.languages and code not in self.languages:
                raise RecipeError(f"filter.by_language.{code}: without effect; add {code!r} to filter.languages")
        for name in ("by_language", "by_kind"):
            for key in getattr(self, name):
                self._overrides(name, key)

    def _overrides(self, name: str, key: str) -> dict[str, Any]:
        """Return the limits that a language or a kind of page overrides, often none.

        `name` is the field that holds them: `by_language` or `by_kind`.
        """
        given, where = getattr(self, name).get(key, {}), f"filter.{name}.{key}"
        if wrong := sorted(given.keys() - LIMITS):
            raise RecipeError(f"{where}.{wrong[0]}: not a limit of a rule; limits are {', '.join(sorted(LIMITS))}")
        read = read_record(FilterRecipe, {**given, "rules": self.rules}, where=where)
        return {limit: getattr(read, limit) for limit in given}

    def for_pages(self, language: str, kind: str = "") -> FilterRecipe:
        """Return the settings by which pages of a language and a kind are judged; either may be "" for unknown."""
        published = published_limits().get(language, {}) if self.language_limits == "fineweb-2" else {}
        unchanged = {name: value for name, value in published.items() if getattr(self, name) == _DEFAULTS[name]}
        given = {**self._overrides("by_language", language), **self._overrides("by_kind", kind)}
        return replace(self, by_language={}, by_kind={}, **{**unchanged, **given})

    def measured(self) -> FilterRecipe:
        """Return the settings that decide what is measured, for the fingerprint of the stage `score`.

        These are the rules, in order, and the settings that change a measurement; all limits have their default values.
        """
        fields = {name: getattr(self, name) for rule in RULES.values() for name in ("languages", *rule.measured_by)}
        fields["rules"] = tuple(name for name in self.rules if RULES[name].columns)
        return FilterRecipe(**fields)

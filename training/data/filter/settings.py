"""The recipe section `filter`: the settings that all rules share, and those of every rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal

from training.contract.parts.outside import FROM, OutsidePart, place_of
from training.contract.records import RecipeError, all_of, check_names, read_record
from training.data.filter.language_limits import published_limits
from training.data.filter.outside_rules import OutsideRule, outside_rule
from training.data.filter.rule import CommonSettings, Rule
from training.data.filter.rules import RULES
from training.data.filter.rules.personal_data import KINDS as PERSONAL_DATA
from training.data.words.languages import check_languages

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

    The settings of each rule are declared in its file in `training/data/filter/rules/`.

    A page is judged by the limits of its kind (`by_kind`), else of its language (`by_language`), else by the
    recipe's own. Where the recipe's own limit is the default of the English papers, the limit that
    `language_limits` gives for the language takes its place.

    `parts` has the settings of rules from outside, by their names in `rules`. The setting `from` is the rule's
    place, `package.module:name`; it is left out for a rule that an installed package registers by name.
    """

    language_limits: Literal["fineweb-2", "none"] = "fineweb-2"
    by_language: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)  # limits by language code
    by_kind: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)  # limits by kind of page: KINDS
    parts: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)
    min_kept_fraction: float = 0.0  # gate: lower survival, also of one language or source, stops the chain
    max_kept_fraction: float = 1.0

    NAMES: ClassVar[Mapping[str, Iterable[str]]] = {"personal_data": PERSONAL_DATA, "by_kind": KINDS}

    def __post_init__(self) -> None:
        all_of(
            lambda: check_names(self, "filter"),
            *(partial(self._check_rule, name) for name in dict.fromkeys((*self.rules, *self.parts))),
            *(partial(rule.check, self) for rule in RULES.values()),
            self._check_shares,
            self._check_overrides,
        )

    def rule(self, name: str) -> Rule[Any]:
        """Return the rule of this name. Raise RecipeError if it is neither Pedigree's nor one from outside."""
        return RULES.get(name) or self._outside(name).rule

    def in_order(self) -> dict[str, Rule[Any]]:
        """Return the recipe's rules by name, in the order in which they are applied."""
        return {name: self.rule(name) for name in self.rules}

    def settings_of(self, name: str) -> Any:
        """Return the settings that a rule's functions receive: this record, or the rule's own if it is from outside."""
        if name in RULES:
            return self
        given = {key: value for key, value in self.parts.get(name, {}).items() if key != FROM}
        return self._outside(name).settings(given, self, f"filter.parts.{name}")

    def outside_parts(self) -> dict[str, OutsidePart]:
        """Return the rules that are not Pedigree's, by name."""
        return {name: self._outside(name).part for name in self.rules if name not in RULES}

    def _outside(self, name: str) -> OutsideRule:
        return outside_rule(name, place_of(self.parts, name), tuple(RULES))

    def _check_rule(self, name: str) -> None:
        """Raise RecipeError if a rule cannot be found, or does not accept the settings that `parts` holds for it."""
        if name in self.parts and name not in self.rules:
            raise RecipeError(f"filter.parts.{name}: without effect; add {name!r} to filter.rules")
        if name in self.parts and name in RULES:
            raise RecipeError(f"filter.parts.{name}: {name!r} is a rule of Pedigree's; name yours otherwise")
        if name in RULES:
            return
        if ":" in name:
            raise RecipeError(
                f"filter.rules: {name!r}; give the rule a short name here, and filter.parts.NAME: {{from: {name}}}"
            )
        try:
            _ = self.rule(name).check(self.settings_of(name))
        except RecipeError as error:
            where = f"filter.rules[{self.rules.index(name)}]: "
            raise RecipeError(*(one if one.startswith("filter.") else where + one for one in error.problems)) from None
        others = {column.name for other in self.rules[: self.rules.index(name)] for column in self.rule(other).columns}
        if twice := others & {column.name for column in self.rule(name).columns}:
            raise RecipeError(f"filter.rules: {name!r} has the column {min(twice)!r} of a rule before it")

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
                _ = self._overrides(name, key)  # checks itself

    def _overrides(self, name: str, key: str) -> dict[str, Any]:
        """Return the limits that a language or a kind of page overrides, often none.

        `name` is the field that holds them: `by_language` or `by_kind`.
        """
        given, where = getattr(self, name).get(key, {}), f"filter.{name}.{key}"
        if wrong := sorted(given.keys() - LIMITS):
            raise RecipeError(f"{where}.{wrong[0]}: not a limit of a rule; limits are {', '.join(sorted(LIMITS))}")
        read = read_record(FilterRecipe, {**given, "rules": self.rules, "parts": self.parts}, where=where)
        return {limit: getattr(read, limit) for limit in given}

    def for_pages(self, language: str, kind: str = "") -> FilterRecipe:
        """Return the settings by which pages of a language and a kind are judged; either may be "" for unknown."""
        published = published_limits().get(language, {}) if self.language_limits == "fineweb-2" else {}
        unchanged = {name: value for name, value in published.items() if getattr(self, name) == _DEFAULTS[name]}
        given = {**self._overrides("by_language", language), **self._overrides("by_kind", kind)}
        return replace(self, by_language={}, by_kind={}, **{**unchanged, **given})

    def measured(self) -> FilterRecipe:
        """Return the settings that decide what is measured, for the fingerprint of the stage `score`.

        These are the filter rules in their order, and the settings that change a measurement. Limits decide only what
        is dropped, so they are replaced by their defaults.
        """
        fields = {name: getattr(self, name) for rule in RULES.values() for name in ("languages", *rule.measured_by)}
        fields["rules"] = tuple(name for name in self.rules if name not in RULES or RULES[name].columns)
        fields["parts"] = {name: self._measured(name, given) for name, given in self.parts.items()}
        return FilterRecipe(**fields)

    def _measured(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        rule = self.rule(name)
        return {key: value for key, value in given.items() if key in (FROM, *rule.measured_by) or rule.read}

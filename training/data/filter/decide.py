"""Apply a recipe's limits to measured pages: the part of the rules that runs again when a limit changes.

The other part is `training.data.filter.judge`, which measures pages. This module reads no text and imports nothing
heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache

from training.data.filter.rule import Answer, Limit, Page
from training.data.filter.settings import FilterRecipe


def make_decisions(recipe: FilterRecipe) -> dict[str, Answer]:
    """Return for each rule of the recipe, in order, a function that applies its limits to a measured page.

    The limits are those of the page's language and kind.
    """

    @cache
    def answers(language: str, kind: str) -> Mapping[str, Answer]:
        settings = recipe.for_pages(language, kind)
        return {name: rule.decision(settings.settings_of(name)) for name, rule in recipe.in_order().items()}

    def answer_of(name: str) -> Answer:
        return lambda page: answers(page.language, page.kind)[name](page)

    return {name: answer_of(name) for name in recipe.rules}


def limits_of(recipe: FilterRecipe, language: str, kind: str) -> dict[str, tuple[Limit, ...]]:
    """Return each rule's limits for pages of a language and kind, in the order in which rules and limits apply."""
    settings = _for_pages(recipe, language, kind)
    return {name: rule.limits(settings.settings_of(name)) for name, rule in recipe.in_order().items()}


def broken_limit(recipe: FilterRecipe, page: Page, reason: str) -> Limit | None:
    """Return the limit that a page dropped for `rule:reason` broke; None if the rule has no limit with this reason."""
    rule, _, why = reason.partition(":")
    settings = _for_pages(recipe, page.language, page.kind)
    limits = recipe.rule(rule).limits(settings.settings_of(rule))
    return next((limit for limit in limits if limit.reason == why), None)


@lru_cache(maxsize=256)
def _for_pages(recipe: FilterRecipe, language: str, kind: str) -> FilterRecipe:
    return recipe.for_pages(language, kind)

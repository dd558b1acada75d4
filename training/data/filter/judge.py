"""A recipe's rules made ready, once a process, and asked page by page.

A rule measures and then decides by the recipe's limits, so that what was measured outlives a change of a limit. Gopher,
C4 and FineWeb decide as datatrove's blocks of those names do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from training.data.filter import toxicity
from training.data.filter.decide import make_decisions
from training.data.filter.rule import KEPT, Answer, Page, Tools, page_of
from training.data.filter.rules import RULES
from training.data.filter.settings import FilterRecipe
from training.data.quality.quality import QualityModels
from training.data.words.language import identify
from training.data.words.table import Words, table_of


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyRule:
    """`measure` writes what it finds on the page and may edit its text; it says why the page goes whatever the limits.

    `decide` compares what was measured with the recipe's limits. Both give "" for a page that stays.
    """

    name: str
    measure: Answer
    decide: Answer


def make_rules(recipe: FilterRecipe, models: QualityModels | None) -> tuple[ReadyRule, ...]:
    """The recipe's rules in its order. RecipeError for a rule that needs the models when there are none."""
    tools = Tools(models=models, identify=identify, words=lambda page: words_of(page, recipe))
    measured = recipe.measured()
    return tuple(
        ReadyRule(name=name, measure=RULES[name].measure(measured, tools), decide=decide)
        for name, decide in make_decisions(recipe).items()
    )


def judge(row: Mapping[str, Any], rules: Iterable[ReadyRule]) -> tuple[Page, str]:
    """The page as the rules left it, and `rule:why` of the first that says no; measures no further than that."""
    page = page_of(row)
    for rule in rules:
        if reason := rule.measure(page) or rule.decide(page):
            return page, f"{rule.name}:{reason}"
    return page, KEPT


# Words


def words_of(page: Page, recipe: FilterRecipe) -> Words:
    """The words of the page's text as it is now, cut once for all rules."""
    if page.words is None or page.words.text is not page.text:
        code = language_of_words(page, recipe)
        page.words = table_of(code, stop_words().get(code, ())).words(page.text)
    return page.words


def language_of_words(page: Page, recipe: FilterRecipe) -> str:
    """The language whose words a page is cut into: its own where the recipe wants it, else the recipe's first."""
    if page.language in recipe.languages or not recipe.languages:
        return page.language
    return recipe.languages[0]


@lru_cache(maxsize=1)
def stop_words() -> dict[str, tuple[str, ...]]:
    """Per language the words of the stop-word test."""
    entries = (line.partition(":") for line in toxicity.read_list(toxicity.LISTS / "stop_words.txt"))
    return {code.strip(): tuple(words.split()) for code, _, words in entries}

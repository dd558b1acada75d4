"""Prepare a recipe's rules, once per process, and apply them page by page.

A rule first measures a page and then compares it with the recipe's limits, so measurements stay valid when a limit
changes. The rules called Gopher, C4 and FineWeb drop the pages that datatrove's filters of the same name drop.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from training.data.filter import toxicity
from training.data.filter.decide import make_decisions
from training.data.filter.rule import Answer, Page, Tools
from training.data.filter.settings import FilterRecipe
from training.data.quality.quality import QualityModels
from training.data.words.language import identify
from training.data.words.table import Words, table_of


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyRule:
    """A rule prepared for one recipe.

    `measure` writes its measurements on the page and may edit the text; it returns a reason to drop the page whatever
    the limits are. `decide` compares the measurements with the recipe's limits. Both return "" for a page that stays.
    """

    name: str
    measure: Answer
    decide: Answer


def make_rules(recipe: FilterRecipe, models: QualityModels | None) -> tuple[ReadyRule, ...]:
    """Return the recipe's filter rules in order, ready to measure pages.

    Raise RecipeError for a rule that needs quality models if there are none.
    """
    tools = Tools(models=models, identify=identify, words=lambda page: words_of(page, recipe))
    measured, decisions = recipe.measured(), make_decisions(recipe)
    return tuple(
        ReadyRule(name=name, measure=rule.measure(measured.settings_of(name), tools), decide=decisions[name])
        for name, rule in recipe.in_order().items()
    )


# Words


def words_of(page: Page, recipe: FilterRecipe) -> Words:
    """Return the words of the page's current text; the text is split only once, for all rules."""
    if page.words is None or page.words.text is not page.text:
        code = language_of_words(page, recipe)
        page.words = table_of(code, stop_words().get(code, ())).words(page.text)
    return page.words


def language_of_words(page: Page, recipe: FilterRecipe) -> str:
    """Return the language whose word rules split the page.

    It is the page's own language if the recipe wants it, else the recipe's first.
    """
    if page.language in recipe.languages or not recipe.languages:
        return page.language
    return recipe.languages[0]


@lru_cache(maxsize=1)
def stop_words() -> dict[str, tuple[str, ...]]:
    """Return the lists of stop words, by language."""
    entries = (line.partition(":") for line in toxicity.read_list(toxicity.LISTS / "stop_words.txt"))
    return {code.strip(): tuple(words.split()) for code, _, words in entries}

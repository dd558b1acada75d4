"""The rules that decide which pages go on, each made from the recipe once a process and asked page by page.

A rule measures (language, scores, an edited text) and then decides by the recipe's limits, so that what was measured
outlives a change of a limit. Gopher, C4 and FineWeb decide as datatrove's blocks of those names do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from training.data.filter import heuristics, personal_data, toxicity
from training.data.filter.bad_words import has_bad_word, read_patterns
from training.data.filter.limits import COLUMNS_OF_RULE, KEPT, Page, make_decisions, page_of
from training.data.filter.settings import FilterRecipe
from training.data.quality.classifier import FastTextClassifier, LinearClassifier
from training.data.quality.quality import QualityModels
from training.data.words import language
from training.data.words.table import Words, table_of
from training.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """`measure` writes what it finds on the page and may edit its text; it says why the page goes whatever the limits.

    `decide` compares what was measured with the recipe's limits. Both give "" for a page that stays.
    """

    name: str
    measure: Callable[[Page], str]
    decide: Callable[[Page], str]


MEASURED_BY_RULE = {
    "language": ("language", "language_score"),
    "gopher_repetition": tuple(f"gopher_repetition.{name}" for name in heuristics.REPETITION),
    "gopher_quality": tuple(f"gopher_quality.{name}" for name in heuristics.QUALITY),
    "c4": ("c4.sentences",),
    "refinedweb": ("refinedweb.removed_words",),
    "fineweb": tuple(f"fineweb.{name}" for name in heuristics.LINES),
    **COLUMNS_OF_RULE,
}
"""What a rule writes in `Page.columns`: numbers, but for the language, the bucket and the redactions."""


def make_rules(recipe: FilterRecipe, models: QualityModels | None) -> tuple[Rule, ...]:
    """The recipe's rules in its order. RecipeError for a rule that needs the models when there are none."""
    makers: dict[str, Callable[[], Callable[[Page], str]]] = {
        "url": lambda: lambda page: KEPT,
        "language": lambda: language_measure(recipe),
        "gopher_repetition": lambda: _heuristic(recipe, "gopher_repetition", heuristics.repetition),
        "gopher_quality": lambda: _heuristic(recipe, "gopher_quality", heuristics.quality),
        "c4": lambda: c4_measure(recipe),
        "refinedweb": lambda: refinedweb_measure(recipe),
        "fineweb": lambda: _heuristic(recipe, "fineweb", _fineweb_lines(recipe)),
        "classifier": lambda: score_measure("quality_score", _present(models, "classifier").classifier),
        "perplexity": lambda: perplexity_measure(_present(models, "perplexity")),
        "toxicity": lambda: toxicity_measure,
        "toxicity_classifier": lambda: score_measure("toxicity_score", _toxicity_model(models)),
        "personal_data": lambda: personal_data_measure(recipe),
    }
    decisions = make_decisions(recipe)
    return tuple(Rule(name=name, measure=makers[name](), decide=decisions[name]) for name in recipe.rules)


def judge(row: Mapping[str, Any], rules: Iterable[Rule]) -> tuple[Page, str]:
    """The page as the rules left it, and `rule:why` of the first that says no; measures no further than that."""
    page = page_of(row)
    for rule in rules:
        if reason := rule.measure(page) or rule.decide(page):
            return page, f"{rule.name}:{reason}"
    return page, KEPT


def _present(models: QualityModels | None, rule: str) -> QualityModels:
    if models is None or models.classifier is None:
        raise RecipeError(
            f"filter.rules: {rule!r} needs the quality models, but quality.reference is empty; name reference texts"
            f" there (and quality.snapshots), or leave {rule!r} out"
        )
    return models


def _toxicity_model(models: QualityModels | None) -> LinearClassifier:
    if models is None or models.toxicity is None:
        raise RecipeError(
            "filter.rules: 'toxicity_classifier' needs a model, but quality.toxicity.positive is empty; name texts"
            " there and in quality.toxicity.negative, or leave the rule out"
        )
    return models.toxicity


# Language


def language_measure(recipe: FilterRecipe) -> Callable[[Page], str]:
    """Writes language and score; drops pages of other languages. With no language named every language stays."""
    wanted = frozenset(recipe.languages)

    def measure(page: Page) -> str:
        code, score = language.identify(page.text)
        page.columns["language"], page.columns["language_score"] = code, score
        return "other_language" if wanted and code not in wanted else KEPT

    return measure


# Gopher, C4, FineWeb


def _heuristic(
    recipe: FilterRecipe, rule: str, measured: Callable[[str, Words], Mapping[str, float]]
) -> Callable[[Page], str]:
    """Writes what a rule measures of the text; drops an empty page."""

    def measure(page: Page) -> str:
        if not page.text.strip():
            return "empty"
        values = measured(page.text, words_of(page, recipe))
        page.columns.update({f"{rule}.{name}": value for name, value in values.items()})
        # without a list of stop words for the language that test is left out: English ones would drop every page
        if "stop_words" in values and not stop_words_of(page, recipe):
            page.columns[f"{rule}.stop_words"] = math.nan
        return KEPT

    return measure


def _fineweb_lines(recipe: FilterRecipe) -> Callable[[str, Words], Mapping[str, float]]:
    return partial(heuristics.lines, short_line_length=recipe.fineweb_short_line_length)


def language_of_words(page: Page, recipe: FilterRecipe) -> str:
    """The language whose words a page is cut into: its own where the recipe wants it, else the recipe's first."""
    if page.language in recipe.languages or not recipe.languages:
        return page.language
    return recipe.languages[0]


def stop_words_of(page: Page, recipe: FilterRecipe) -> tuple[str, ...]:
    """The stop words of the page's language, none where there is no list."""
    return stop_words().get(language_of_words(page, recipe), ())


def words_of(page: Page, recipe: FilterRecipe) -> Words:
    """The words of the page's text as it is now, cut once for all rules."""
    if page.words is None or page.words.text is not page.text:
        page.words = table_of(language_of_words(page, recipe), stop_words_of(page, recipe)).words(page.text)
    return page.words


@lru_cache(maxsize=1)
def stop_words() -> dict[str, tuple[str, ...]]:
    """Per language the words of the stop-word test."""
    entries = (line.partition(":") for line in toxicity.read_list(toxicity.LISTS / "stop_words.txt"))
    return {code.strip(): tuple(words.split()) for code, _, words in entries}


def edits_of(recipe: FilterRecipe) -> dict[str, Callable[[str], str]]:
    """What those of the recipe's rules that take something out make of a text, in their order; nothing is measured."""
    c4, correct = _c4_lines(recipe), _refinedweb_lines(recipe)
    edits: dict[str, Callable[[str], str]] = {
        "c4": lambda text: "\n".join(heuristics.c4_lines(text, c4)[0]).strip(),
        "refinedweb": lambda text: correct(text)[0],
    }
    return {rule: edits[rule] for rule in recipe.rules if rule in edits}


def _c4_lines(recipe: FilterRecipe) -> heuristics.C4Lines:
    return heuristics.C4Lines(
        min_words=recipe.c4_min_words_per_line or 0,
        max_word_length=recipe.c4_max_word_length,
        end_with_punctuation=recipe.c4_lines_end_with_punctuation,
        drop_javascript=recipe.c4_drop_javascript_lines,
        drop_policy=recipe.c4_drop_policy_lines,
        drop_curly_brackets=recipe.c4_drop_curly_brackets,
        drop_lorem_ipsum=recipe.c4_drop_lorem_ipsum,
        drop_citations=recipe.c4_drop_citations,
        strip=recipe.c4_strip_lines,
    )


def _refinedweb_lines(recipe: FilterRecipe) -> Callable[[str], tuple[str, float]]:
    return partial(
        heuristics.refinedweb_lines,
        max_uppercase=recipe.refinedweb_max_uppercase,
        short_line_words=recipe.refinedweb_short_line_words,
    )


def c4_measure(recipe: FilterRecipe) -> Callable[[Page], str]:
    """Takes lines out of the page and counts the sentences left; drops the page for what it says."""
    lines = _c4_lines(recipe)
    bad_words = read_patterns(recipe.c4_bad_words) if recipe.c4_bad_words else {}

    def measure(page: Page) -> str:
        if not page.text.strip():
            return "empty"
        kept, reason = heuristics.c4_lines(page.text, lines)
        if reason:
            return reason
        text = "\n".join(kept).strip()
        if has_bad_word(text, page.language, bad_words):
            return "bad_word"
        page.text = page.text if page.text == text else text  # the same object, so that its words are known
        page.columns["c4.sentences"] = words_of(page, recipe).sentences(kept)
        return KEPT

    return measure


def refinedweb_measure(recipe: FilterRecipe) -> Callable[[Page], str]:
    """Takes lines and phrases out of the page and writes the share of its words that went."""
    correct = _refinedweb_lines(recipe)

    def measure(page: Page) -> str:
        if not page.text.strip():
            return "empty"
        page.text, page.columns["refinedweb.removed_words"] = correct(page.text)
        return KEPT

    return measure


# Models of this pipeline


def score_measure(column: str, model: LinearClassifier | FastTextClassifier | None) -> Callable[[Page], str]:
    """Writes a classifier's score."""
    assert model is not None

    def measure(page: Page) -> str:
        page.columns[column] = model.score(page.text)
        return KEPT

    return measure


def perplexity_measure(models: QualityModels) -> Callable[[Page], str]:
    """Writes perplexity and bucket."""

    def measure(page: Page) -> str:
        value, bucket = models.perplexity(page.text, page.language)
        page.columns["perplexity"], page.columns["perplexity_bucket"] = value, bucket
        return KEPT

    return measure


def toxicity_measure(page: Page) -> str:
    """Writes the share of toxic words."""
    page.columns["toxicity"] = toxicity.toxic_fraction(page.text, page.language)
    return KEPT


def personal_data_measure(recipe: FilterRecipe) -> Callable[[Page], str]:
    """Replaces personal data by placeholders."""

    def measure(page: Page) -> str:
        text = page.text
        page.text, page.redactions = personal_data.redact(text, recipe.personal_data)
        page.redacted = (text, page.text)
        if page.redactions:
            page.columns["redactions"] = json.dumps(page.redactions, sort_keys=True)
        return KEPT

    return measure

"""Drops pages in languages that the recipe does not want, and pages whose language is uncertain.

Languages are those of fastText's lid.176 (arXiv 1607.01759); 0.65 is FineWeb's limit. Code is no language, so a page is
identified by its text outside of code, where extraction says what is code and enough other text is left. A page of code
without such text has the language `zxx` (ISO 639: no linguistic content) and stays.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.data.filter.rule import KEPT, Answer, Column, CommonSettings, Limit, Page, Rule, Tools
from training.data.words.languages import check_languages

MIN_PROSE_CHARACTERS = 200  # with less text outside of code the whole text is identified
CODE = "zxx"


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """The lowest probability that a page's language must have; `filter.languages` lists the accepted languages."""

    min_language_score: float = 0.65


def check(settings: Settings) -> None:
    """Raise RecipeError for a language that no page is identified as."""
    check_languages("filter.languages", settings.languages)


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that writes language and probability into a page's columns, and drops pages in other languages.

    If `languages` is empty, every language stays.
    """
    wanted = frozenset(settings.languages)

    def measured(page: Page) -> str:
        prose = page.prose
        if page.kind == "code" and len(prose) < MIN_PROSE_CHARACTERS:
            page.columns["language"], page.columns["language_score"] = CODE, 1.0
            return KEPT
        text = prose if len(prose) >= MIN_PROSE_CHARACTERS else page.text
        code, score = tools.identify(text)
        page.columns["language"], page.columns["language_score"] = code, score
        return "other_language" if wanted and code not in wanted else KEPT

    return measured


def limits(settings: Settings) -> tuple[Limit, ...]:
    """Return the lowest probability of the language of a page that stays."""
    return (Limit("uncertain", "language_score", least=settings.min_language_score),)


RULE = Rule(
    settings=Settings,
    reasons=("other_language",),
    check=check,
    columns=(Column("language", is_text=True, on_document=True), Column("language_score", on_document=True)),
    measure=measure,
    limits=limits,
)

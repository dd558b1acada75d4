"""Drops pages of languages that the recipe does not want, and pages whose language is uncertain.

The languages are fastText's lid.176 (arXiv 1607.01759); 0.65 is FineWeb's limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.data.filter.rule import KEPT, Answer, Column, CommonSettings, Limit, Page, Rule, Tools


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """How certain the language of a page must be; the languages are those of the section."""

    min_language_score: float = 0.65


def measure(settings: Settings, tools: Tools) -> Answer:
    """Writes language and score; drops pages of other languages. With no language named every language stays."""
    wanted = frozenset(settings.languages)

    def measured(page: Page) -> str:
        code, score = tools.identify(page.text)
        page.columns["language"], page.columns["language_score"] = code, score
        return "other_language" if wanted and code not in wanted else KEPT

    return measured


def limits(settings: Settings) -> tuple[Limit, ...]:
    """One on the probability."""
    return (Limit("uncertain", "language_score", least=settings.min_language_score),)


RULE = Rule(
    settings=Settings,
    columns=(Column("language", is_text=True, on_document=True), Column("language_score", on_document=True)),
    measure=measure,
    limits=limits,
)

"""Drops pages with too many words from the lists of abuse and sex, and pages with such a word in their URL."""

from __future__ import annotations

from dataclasses import dataclass

from training.data.filter.rule import KEPT, Answer, Column, CommonSettings, Limit, Page, Rule, Tools, first_broken


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """The largest fraction of words from the toxicity lists in a page that stays."""

    max_toxic_word_fraction: float = 0.02


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that writes the fraction of listed words into a page's column `toxicity`."""
    from training.data.filter.toxicity import toxic_fraction

    def measured(page: Page) -> str:
        page.columns["toxicity"] = toxic_fraction(page.text, page.language)
        return KEPT

    return measured


def limits(settings: Settings) -> tuple[Limit, ...]:
    """Return the largest fraction of words from the toxicity lists in a page that stays."""
    return (Limit("toxic_words", "toxicity", most=settings.max_toxic_word_fraction),)


def decide(settings: Settings) -> Answer:
    """Return a function that decides about a page: first by its URL, then by the fraction of listed words."""
    from training.data.filter.toxicity import is_toxic_url

    most = limits(settings)
    return lambda page: "url" if is_toxic_url(page.url) else first_broken(most, page)


RULE = Rule(
    settings=Settings,
    reasons=("url",),
    columns=(Column("toxicity", on_document=True),),
    measure=measure,
    limits=limits,
    decide=decide,
)

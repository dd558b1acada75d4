"""Drops pages that the classifier trained on reference texts scores low, as GPT-3 and DCLM do (arXiv 2406.11794)."""

from __future__ import annotations

from dataclasses import dataclass

from training.data.filter.rule import KEPT, Answer, Column, CommonSettings, Limit, Page, Rule, Tools


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """The lowest score by the quality classifier of a page that stays."""

    min_quality_score: float = 0.2


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that writes a page's score into the column `quality_score`."""
    model = tools.reference_models("classifier").classifier
    assert model is not None

    def measured(page: Page) -> str:
        page.columns["quality_score"] = model.score(page.text)
        return KEPT

    return measured


def limits(settings: Settings) -> tuple[Limit, ...]:
    """Return the lowest score by the quality classifier of a page that stays."""
    return (Limit("low_score", "quality_score", least=settings.min_quality_score),)


RULE = Rule(settings=Settings, columns=(Column("quality_score", on_document=True),), measure=measure, limits=limits)

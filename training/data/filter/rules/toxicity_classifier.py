"""Drops pages with a high score of the classifier trained on the texts of `quality.toxicity`."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import RecipeError
from training.data.filter.rule import KEPT, Answer, Column, CommonSettings, Limit, Page, Rule, Tools


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """The highest score that the toxicity classifier may give to a page that stays."""

    max_toxicity_score: float = 0.5  # of the classifier that `quality.toxicity` trains


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that writes a page's score into the column `toxicity_score`.

    Raise RecipeError if there is no classifier.
    """
    model = tools.models.toxicity if tools.models else None
    if model is None:
        raise RecipeError(
            "filter.rules: 'toxicity_classifier' needs a model, but quality.toxicity.positive is empty; name texts"
            " there and in quality.toxicity.negative, or leave the rule out"
        )

    def measured(page: Page) -> str:
        page.columns["toxicity_score"] = model.score(page.text)
        return KEPT

    return measured


def limits(settings: Settings) -> tuple[Limit, ...]:
    """Return the highest score by the toxicity classifier of a page that stays."""
    return (Limit("too_high", "toxicity_score", most=settings.max_toxicity_score),)


RULE = Rule(settings=Settings, columns=(Column("toxicity_score", on_document=True),), measure=measure, limits=limits)

"""Records a page's perplexity under an n-gram model of the reference texts, and drops pages above a limit.

Source: CCNet (arXiv 1911.00359).
"""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import check_above_zero
from training.data.filter.rule import KEPT, Answer, Column, CommonSettings, Limit, Page, Rule, Tools


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """The highest perplexity of a page that stays."""

    max_perplexity: float | None = None  # None: record buckets, drop nothing


def check(settings: Settings) -> None:
    """Raise RecipeError for a limit that is not above 0."""
    check_above_zero(settings, "filter", "max_perplexity")


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that writes a page's perplexity and its quality bucket into the page's columns."""
    models = tools.reference_models("perplexity")

    def measured(page: Page) -> str:
        value, bucket = models.perplexity(page.text, page.language)
        page.columns["perplexity"], page.columns["perplexity_bucket"] = value, bucket
        return KEPT

    return measured


def limits(settings: Settings) -> tuple[Limit, ...]:
    """The largest perplexity that a page may have, if the recipe sets one."""
    return (Limit("too_high", "perplexity", most=settings.max_perplexity),) if settings.max_perplexity else ()


RULE = Rule(
    settings=Settings,
    reasons=("too_high",),
    check=check,
    columns=(Column("perplexity", on_document=True), Column("perplexity_bucket", is_text=True, on_document=True)),
    measure=measure,
    limits=limits,
)

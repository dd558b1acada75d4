"""What the recipe's limits say of a measured page: the half of a rule that a changed limit asks again.

The other half, measuring, is `training.data.filter.rules`. This one reads no text and imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from training.data.filter import toxicity
from training.data.filter.settings import FilterRecipe

KEPT = ""


@dataclass(slots=True)
class Page:
    """One document on its way through the rules. `text` and `columns` are what the document will be written with."""

    text: str
    url: str
    columns: dict[str, Any]
    redactions: dict[str, int] = field(default_factory=dict)
    redacted: tuple[str, str] = ("", "")  # the text that personal data was replaced in, and what it became
    words: Any = None  # `training.data.words.table.Words` of a text that it had

    @property
    def language(self) -> str:
        """Language code, "" when unknown."""
        return self.columns.get("language") or ""


def page_of(row: Mapping[str, Any]) -> Page:
    """An extracted document as the rules take it."""
    hints = {name: row[name] for name in ("language", "language_score")}
    return Page(text=row["text"], url=row["url"] or "", columns=hints)


COLUMNS_OF_RULE = {
    "classifier": ("quality_score",),
    "perplexity": ("perplexity", "perplexity_bucket"),
    "toxicity": ("toxicity",),
    "toxicity_classifier": ("toxicity_score",),
    "personal_data": ("redactions",),
}
"""Columns that a rule adds to a document beside those that every document has."""


def make_decisions(recipe: FilterRecipe) -> dict[str, Callable[[Page], str]]:
    """Per rule of the recipe, in its order, what its limits say of a measured page."""
    limits = limits_of(recipe)
    decisions: dict[str, Callable[[Page], str]] = {
        "url": url_decision(recipe),
        "toxicity": lambda page: "url" if toxicity.is_toxic_url(page.url) else first_broken(limits["toxicity"], page),
    }
    return {name: decisions.get(name) or partial(first_broken, limits[name]) for name in recipe.rules}


@dataclass(frozen=True, slots=True)
class Limit:
    """What a measured column may be. `least` and `most` are None where there is no limit on that side."""

    reason: str
    column: str
    least: float | None = None
    most: float | None = None

    def is_broken(self, columns: Mapping[str, Any]) -> bool:
        """Whether the value is outside; one that is not a number is not."""
        value = columns[self.column]
        return (self.least is not None and value < self.least) or (self.most is not None and value > self.most)


def first_broken(limits: Iterable[Limit], page: Page) -> str:
    """The reason of the first limit that the page breaks, KEPT when all hold."""
    return next((limit.reason for limit in limits if limit.is_broken(page.columns)), KEPT)


def limits_of(recipe: FilterRecipe) -> dict[str, tuple[Limit, ...]]:
    """Per rule its limits, in the order in which they are asked."""
    return {
        "language": (Limit("uncertain", "language_score", least=recipe.min_language_score),),
        "gopher_repetition": _of("gopher_repetition", _repetition_limits(recipe)),
        "gopher_quality": _of("gopher_quality", _quality_limits(recipe)),
        "c4": (Limit("too_few_sentences", "c4.sentences", least=recipe.c4_min_sentences),),
        "refinedweb": (
            Limit("too_many_removed_words", "refinedweb.removed_words", most=recipe.refinedweb_max_removed_words),
        ),
        "fineweb": _of("fineweb", _fineweb_limits(recipe)),
        "classifier": (Limit("low_score", "quality_score", least=recipe.min_quality_score),),
        "perplexity": (Limit("too_high", "perplexity", most=recipe.max_perplexity),) if recipe.max_perplexity else (),
        "toxicity": (Limit("toxic_words", "toxicity", most=recipe.max_toxic_word_fraction),),
        "toxicity_classifier": (Limit("too_high", "toxicity_score", most=recipe.max_toxicity_score),),
        "personal_data": (),
    }


def _of(rule: str, limits: Iterable[Limit]) -> tuple[Limit, ...]:
    return tuple(replace(limit, column=f"{rule}.{limit.column}") for limit in limits)


def _repetition_limits(recipe: FilterRecipe) -> tuple[Limit, ...]:
    """Gopher's table A1. A limit of 0 on paragraphs or lines is none, as in datatrove."""
    parts = {
        "duplicate_paragraphs": recipe.gopher_max_duplicate_paragraphs,
        "duplicate_paragraph_characters": recipe.gopher_max_duplicate_paragraph_characters,
        "duplicate_lines": recipe.gopher_max_duplicate_lines,
        "duplicate_line_characters": recipe.gopher_max_duplicate_line_characters,
    }
    ngrams = {f"top_{size}_gram": limit for size, limit in enumerate(recipe.gopher_max_top_ngrams, 2)}
    ngrams |= {f"duplicate_{size}_grams": limit for size, limit in enumerate(recipe.gopher_max_duplicate_ngrams, 5)}
    set_parts = {name: limit for name, limit in parts.items() if limit}
    return tuple(Limit(name, name, most=limit) for name, limit in (set_parts | ngrams).items())


def _quality_limits(recipe: FilterRecipe) -> tuple[Limit, ...]:
    """Gopher's other rules. A limit of 0 is none, as in datatrove."""
    limits = (
        Limit("too_few_words", "words", least=recipe.gopher_min_words),
        Limit("too_many_words", "words", most=recipe.gopher_max_words),
        Limit("words_too_short", "mean_word_length", least=recipe.gopher_min_mean_word_length),
        Limit("words_too_long", "mean_word_length", most=recipe.gopher_max_mean_word_length),
        Limit("too_many_hashes", "hashes_per_word", most=recipe.gopher_max_symbol_ratio),
        Limit("too_many_ellipses", "ellipses_per_word", most=recipe.gopher_max_symbol_ratio),
        Limit("too_many_bullets", "bullet_lines", most=recipe.gopher_max_bullet_fraction),
        Limit("too_many_lines_end_in_ellipsis", "ellipsis_lines", most=recipe.gopher_max_ellipsis_fraction),
        Limit("too_few_alphabetic_words", "alphabetic_words", least=recipe.gopher_min_alphabetic_fraction),
        Limit("too_few_stop_words", "stop_words", least=recipe.gopher_min_stop_words),
    )
    return tuple(limit for limit in limits if limit.least or limit.most)


def _fineweb_limits(recipe: FilterRecipe) -> tuple[Limit, ...]:
    """FineWeb's rules."""
    punctuation = recipe.fineweb_min_line_punctuation
    return (
        Limit("too_few_lines_end_in_punctuation", "lines_end_in_punctuation", least=punctuation),
        Limit("too_many_short_lines", "short_lines", most=recipe.fineweb_max_short_lines),
        Limit("duplicate_line_characters", "duplicate_line_characters", most=recipe.fineweb_max_duplicate_characters),
        Limit("too_many_line_breaks", "line_ends_per_word", most=recipe.fineweb_max_newline_ratio),
    )


# Address


def url_decision(recipe: FilterRecipe) -> Callable[[Page], str]:
    """Drops pages of blocked domains and their subdomains, and blocked addresses: equal, or below one ending in /."""
    domains = frozenset(domain.lower().removeprefix("www.").strip(".") for domain in recipe.blocked_domains)
    addresses = frozenset(map(_plain_url, recipe.blocked_urls))
    folders = tuple(sorted(address for address in addresses if address.endswith("/")))

    def rule(page: Page) -> str:
        host = (urlsplit(page.url).hostname or "") if _has_host(page.url) else ""
        labels = host.lower().strip(".").split(".")
        if any(".".join(labels[i:]) in domains for i in range(len(labels))):
            return "blocked_domain"
        plain = _plain_url(page.url)
        return "blocked_url" if plain in addresses or (folders and plain.startswith(folders)) else KEPT

    return rule


def _has_host(url: str) -> bool:
    try:
        return urlsplit(url).hostname is not None
    except ValueError:  # "http://[broken": an address that cannot be read is in no list
        return False


def _plain_url(url: str) -> str:
    """An address without scheme, `www.` and fragment: what stays the same between two ways to write it."""
    rest = url.partition("#")[0].partition("://")[2] or url.partition("#")[0]
    return rest.removeprefix("www.")

"""Gopher's rules on words, symbols and lines (arXiv 2112.11446, A.1.1), measured as in datatrove's block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.data.filter.counting import fraction
from training.data.filter.rule import Answer, Column, CommonSettings, Limit, Rule, Tools, numbers

if TYPE_CHECKING:
    from training.data.words.table import Words

NUMBERS = (
    *("words", "mean_word_length", "hashes_per_word", "ellipses_per_word", "bullet_lines", "ellipsis_lines"),
    *("alphabetic_words", "stop_words"),
)


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """The limits of Gopher's quality rules, with the paper's values as defaults. 0 means no limit, as in datatrove."""

    gopher_min_words: int = 50
    gopher_max_words: int = 100_000
    gopher_min_mean_word_length: float = 3.0
    gopher_max_mean_word_length: float = 10.0
    gopher_max_symbol_ratio: float = 0.1
    gopher_max_bullet_fraction: float = 0.9
    gopher_max_ellipsis_fraction: float = 0.3
    gopher_min_alphabetic_fraction: float = 0.8
    gopher_min_stop_words: int = 2


def quality(text: str, words: Words) -> dict[str, float]:
    """Return the measurements NUMBERS of a text. As in datatrove, punctuation marks count as words.

    The text must not be blank. The mean word length is NaN if there are no words. The stop words are NaN for a language
    without a list, so that their limit is not applied: the English list would drop every page.
    """
    counts = words.counts
    lines = text.splitlines()
    ellipses = text.count("...") + text.count("…")
    values = (
        counts.written,
        counts.letters / counts.written if counts.written else math.nan,
        fraction(text.count("#"), counts.words),
        fraction(ellipses, counts.words),
        sum(line.lstrip().startswith(("•", "-")) for line in lines) / len(lines),
        sum(line.rstrip().endswith(("...", "…")) for line in lines) / len(lines) if ellipses else 0.0,
        fraction(counts.alphabetic, counts.words),
        counts.stop_words if words.has_stop_words else math.nan,
    )
    return dict(zip(NUMBERS, values, strict=True))


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that writes the measurements NUMBERS into a page's columns."""
    return numbers("gopher_quality", lambda page: quality(page.text, tools.words(page)))


def limits(settings: Settings) -> tuple[Limit, ...]:
    """Return the limits of Gopher's quality rules (section A.1.1 of the paper)."""
    symbols = settings.gopher_max_symbol_ratio
    bounds = (
        ("too_few_words", "words", settings.gopher_min_words, None),
        ("too_many_words", "words", None, settings.gopher_max_words),
        ("words_too_short", "mean_word_length", settings.gopher_min_mean_word_length, None),
        ("words_too_long", "mean_word_length", None, settings.gopher_max_mean_word_length),
        ("too_many_hashes", "hashes_per_word", None, symbols),
        ("too_many_ellipses", "ellipses_per_word", None, symbols),
        ("too_many_bullets", "bullet_lines", None, settings.gopher_max_bullet_fraction),
        ("too_many_lines_end_in_ellipsis", "ellipsis_lines", None, settings.gopher_max_ellipsis_fraction),
        ("too_few_alphabetic_words", "alphabetic_words", settings.gopher_min_alphabetic_fraction, None),
        ("too_few_stop_words", "stop_words", settings.gopher_min_stop_words, None),
    )
    return tuple(
        Limit(reason, f"gopher_quality.{name}", least, most) for reason, name, least, most in bounds if least or most
    )


RULE = Rule(
    settings=Settings,
    columns=tuple(Column(f"gopher_quality.{name}") for name in NUMBERS),
    measure=measure,
    limits=limits,
)

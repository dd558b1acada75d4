"""Gopher's rules against repetition (arXiv 2112.11446, table A1), measured as in datatrove's block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.contract.records import RecipeError
from training.data.filter.counting import repeated_parts
from training.data.filter.rule import Answer, Column, CommonSettings, Limit, Rule, Tools, numbers

if TYPE_CHECKING:
    from training.data.words.table import Words

TOP_SIZES = (2, 3, 4)
DUPLICATE_SIZES = (5, 6, 7, 8, 9, 10)
NUMBERS = (
    *("duplicate_paragraphs", "duplicate_paragraph_characters", "duplicate_lines", "duplicate_line_characters"),
    *(f"top_{size}_gram" for size in TOP_SIZES),
    *(f"duplicate_{size}_grams" for size in DUPLICATE_SIZES),
)


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Largest fractions of repeated lines, paragraphs and characters.

    A limit of 0 on lines or paragraphs means no limit, as in datatrove.
    """

    gopher_max_duplicate_lines: float = 0.3
    gopher_max_duplicate_paragraphs: float = 0.3
    gopher_max_duplicate_line_characters: float = 0.2
    gopher_max_duplicate_paragraph_characters: float = 0.2
    gopher_max_top_ngrams: tuple[float, ...] = (0.2, 0.18, 0.16)  # characters in the most frequent 2-, 3-, 4-gram
    gopher_max_duplicate_ngrams: tuple[float, ...] = (0.15, 0.14, 0.13, 0.12, 0.11, 0.1)  # in repeated 5- to 10-grams


def check(settings: Settings) -> None:
    """Raise RecipeError if more limits are given than there are n-gram sizes."""
    top, duplicate = settings.gopher_max_top_ngrams, settings.gopher_max_duplicate_ngrams
    if len(top) > len(TOP_SIZES) or len(duplicate) > len(DUPLICATE_SIZES):
        raise RecipeError(
            "filter: gopher_max_top_ngrams has at most 3 values (2- to 4-grams), gopher_max_duplicate_ngrams at "
            "most 6 (5- to 10-grams)"
        )


def repetition(text: str, words: Words) -> dict[str, float]:
    """Return the fractions of paragraphs, lines and characters that repeat earlier ones, in [0, 1].

    The text must not be empty.
    """
    paragraphs = [paragraph.lstrip("\n") for paragraph in text.strip().split("\n\n") if paragraph]
    # datatrove splits at runs of line ends, so a line end at either end of the text leaves an empty line there
    lines = [line for line in text.split("\n") if line] + [""] * (text.startswith("\n") + text.endswith("\n"))
    repeated_paragraphs, paragraph_characters = repeated_parts(paragraphs)
    repeated_lines, line_characters = repeated_parts(lines)
    values = (
        repeated_paragraphs / len(paragraphs),
        paragraph_characters / len(text),
        repeated_lines / len(lines),
        line_characters / len(text),
        *(characters / len(text) for characters in words.repeated),
    )
    return dict(zip(NUMBERS, values, strict=True))


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that writes the fractions NUMBERS into a page's columns."""
    return numbers("gopher_repetition", lambda page: repetition(page.text, tools.words(page)))


def limits(settings: Settings) -> tuple[Limit, ...]:
    """Return the limits of Gopher's repetition rules (table A1 of the paper)."""
    parts = {
        "duplicate_paragraphs": settings.gopher_max_duplicate_paragraphs,
        "duplicate_paragraph_characters": settings.gopher_max_duplicate_paragraph_characters,
        "duplicate_lines": settings.gopher_max_duplicate_lines,
        "duplicate_line_characters": settings.gopher_max_duplicate_line_characters,
    }
    most = {name: limit for name, limit in parts.items() if limit}
    most |= {f"top_{size}_gram": limit for size, limit in enumerate(settings.gopher_max_top_ngrams, TOP_SIZES[0])}
    duplicate = enumerate(settings.gopher_max_duplicate_ngrams, DUPLICATE_SIZES[0])
    most |= {f"duplicate_{size}_grams": limit for size, limit in duplicate}
    return tuple(Limit(name, f"gopher_repetition.{name}", most=limit) for name, limit in most.items())


RULE = Rule(
    settings=Settings,
    check=check,
    columns=tuple(Column(f"gopher_repetition.{name}") for name in NUMBERS),
    measure=measure,
    limits=limits,
)

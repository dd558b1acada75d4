"""FineWeb's rules on lines (arXiv 2406.17557), measured as in datatrove's block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.data.filter.counting import fraction, repeated_parts
from training.data.filter.rule import Answer, Column, CommonSettings, Limit, Page, Rule, Tools, numbers

if TYPE_CHECKING:
    from training.data.words.table import Words

NUMBERS = ("lines_end_in_punctuation", "short_lines", "duplicate_line_characters", "line_ends_per_word")


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Limits of FineWeb's rules: on fractions of lines and of characters, and on line ends per word."""

    fineweb_min_line_punctuation: float = 0.12
    fineweb_max_short_lines: float = 0.67
    fineweb_short_line_length: int = 30  # characters up to which a line is short
    fineweb_max_duplicate_characters: float = 0.01
    fineweb_max_newline_ratio: float = 0.3


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that writes the four measurements NUMBERS into a page's columns."""
    from datatrove.utils.text import TERMINAL_PUNCTUATION

    def lines(page: Page) -> dict[str, float]:
        words = tools.words(page)
        return line_numbers(page.text, words, settings.fineweb_short_line_length, TERMINAL_PUNCTUATION)

    return numbers("fineweb", lines)


def line_numbers(text: str, words: Words, short_line_length: int, ends: set[str]) -> dict[str, float]:
    """Return the measurements NUMBERS of a text.

    `ends` is the punctuation that ends a line, and lines of at most `short_line_length` characters are short. The text
    must not be blank.
    """
    written = [line for line in text.split("\n") if line and not line.isspace()]
    line_ends = text.count("\n")
    values = (
        sum(line[-1] in ends for line in written) / len(written),
        sum(len(line) <= short_line_length for line in written) / len(written),
        repeated_parts(written)[1] / (len(text) - line_ends),
        fraction(line_ends, words.counts.words),
    )
    return dict(zip(NUMBERS, values, strict=True))


def limits(settings: Settings) -> tuple[Limit, ...]:
    """Return the limits on FineWeb's four measurements."""
    return (
        Limit(
            "too_few_lines_end_in_punctuation",
            "fineweb.lines_end_in_punctuation",
            least=settings.fineweb_min_line_punctuation,
        ),
        Limit("too_many_short_lines", "fineweb.short_lines", most=settings.fineweb_max_short_lines),
        Limit(
            "duplicate_line_characters",
            "fineweb.duplicate_line_characters",
            most=settings.fineweb_max_duplicate_characters,
        ),
        Limit("too_many_line_breaks", "fineweb.line_ends_per_word", most=settings.fineweb_max_newline_ratio),
    )


RULE = Rule(
    settings=Settings,
    measured_by=("fineweb_short_line_length",),
    columns=tuple(Column(f"fineweb.{name}") for name in NUMBERS),
    measure=measure,
    limits=limits,
)

"""RefinedWeb's corrections of lines (arXiv 2306.01116, appendix G.2), and its limit on how much they remove."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.data.filter.rule import KEPT, Answer, Column, CommonSettings, Limit, Page, Rule, Tools

_COUNTER = re.compile(
    r"(?i)\W*\d[\d.,]*\s?[km]?\+?\s+(?:likes?|shares?|comments?|repl(?:y|ies)|retweets?|reposts?|views?|followers?|votes?"
    r"|upvotes?|downloads?)\W*"
)
_BOILERPLATE = re.compile(r"(?i)\A\W*sign[ -]in\b|\bread more\b\W*\Z|\bitems? in (?:the |your )?cart\b")


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Settings of RefinedWeb's corrections: which lines are corrected, and how much of a page they may remove."""

    refinedweb_max_uppercase: float = 0.5  # of a line's characters; with more, the line is removed
    refinedweb_short_line_words: int = 10  # `sign in`, `read more` and so on are cut from lines of at most this length
    refinedweb_max_removed_words: float = 0.05  # of the page's words; if more are removed, the page is dropped


def refinedweb_lines(text: str, *, max_uppercase: float, short_line_words: int) -> tuple[str, float]:
    """Return the text after RefinedWeb's corrections of lines, and the share of its words that they removed.

    A line is removed if more than `max_uppercase` of its characters are capitals, or if it is a number, a counter (`3
    likes`) or a single word. From a line of at most `short_line_words` words, `sign in` at the start, `read more` at
    the end and `items in cart` anywhere are cut. The paper gives these three phrases as examples, not its whole list.
    """
    kept, words, left = [], 0, 0
    for line in text.split("\n"):
        pieces = line.split()
        words += len(pieces)
        if pieces and _is_boilerplate(line, pieces, max_uppercase):
            continue
        bare = _BOILERPLATE.sub("", line) if len(pieces) <= short_line_words else line
        if bare != line and not bare.strip():
            continue
        left += len(bare.split())
        kept.append(bare)
    return "\n".join(kept), (words - left) / words if words else 0.0


def _is_boilerplate(line: str, pieces: Sequence[str], max_uppercase: float) -> bool:
    if len(pieces) == 1 or all(map(str.isdigit, pieces)) or _COUNTER.fullmatch(line):
        return True
    return sum(map(str.isupper, line)) > max_uppercase * len(line.strip())


def _correct(settings: Settings, text: str) -> tuple[str, float]:
    return refinedweb_lines(
        text,
        max_uppercase=settings.refinedweb_max_uppercase,
        short_line_words=settings.refinedweb_short_line_words,
    )


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that corrects the page's lines and writes the share of its words that were removed."""

    def measured(page: Page) -> str:
        if not page.text.strip():
            return "empty"
        page.text, page.columns["refinedweb.removed_words"] = _correct(settings, page.text)
        return KEPT

    return measured


def edit(settings: Settings) -> Callable[[str], str]:
    """Return a function that applies RefinedWeb's corrections to the lines of a text."""
    return lambda text: _correct(settings, text)[0]


def limits(settings: Settings) -> tuple[Limit, ...]:
    """Return the limit on the share of a page's words that the corrections of lines removed."""
    removed = settings.refinedweb_max_removed_words
    return (Limit("too_many_removed_words", "refinedweb.removed_words", most=removed),)


RULE = Rule(
    settings=Settings,
    measured_by=("refinedweb_max_uppercase", "refinedweb_short_line_words"),
    columns=(Column("refinedweb.removed_words"),),
    measure=measure,
    limits=limits,
    edit=edit,
)

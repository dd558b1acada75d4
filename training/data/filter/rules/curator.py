"""Drops pages that are mostly numbers, URLs, white space or brackets, such as tables, lists of links and dumps.

These are four filters of NeMo Curator (`NumbersFilter`, `UrlsFilter`, `WhiteSpaceFilter`, `ParenthesesFilter`), with
the limits of its `config/heuristic_filter_en.yaml`. Not included are its `NonAlphaNumericFilter`, which takes every
non-ASCII letter for a symbol, and the filters that it took from Gopher.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from training.data.filter.rule import Answer, Column, CommonSettings, Limit, Rule, Tools, numbers

_ADDRESS = re.compile(r"https?://\S+")
_BRACKET = re.compile(r"[(){}\[\]⟨⟩]")


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """The largest fractions of a page's characters that may be digits, URLs, white space or brackets.

    1 means no limit.
    """

    curator_max_digits: float = 0.15
    curator_max_addresses: float = 0.2  # characters of http:// and https:// URLs, up to the next white space
    curator_max_white_space: float = 0.25
    curator_max_brackets: float = 0.1


def shares(text: str) -> dict[str, float]:
    """Return the fractions, in [0, 1], of a text's characters that are digits, URLs, white space and brackets."""
    counts = {
        "digits": sum(map(str.isdecimal, text)),
        "addresses": sum(map(len, _ADDRESS.findall(text))),
        "white_space": len(text) - sum(map(len, text.split())),
        "brackets": len(_BRACKET.findall(text)),
    }
    return {name: count / len(text) for name, count in counts.items()}


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that writes the four fractions into a page's columns."""
    return numbers("curator", lambda page: shares(page.text))


def limits(settings: Settings) -> tuple[Limit, ...]:
    """Return the limits on the fractions of digits, URLs, white space and brackets."""
    return (
        Limit("too_many_digits", "curator.digits", most=settings.curator_max_digits),
        Limit("too_many_addresses", "curator.addresses", most=settings.curator_max_addresses),
        Limit("too_much_white_space", "curator.white_space", most=settings.curator_max_white_space),
        Limit("too_many_brackets", "curator.brackets", most=settings.curator_max_brackets),
    )


RULE = Rule(
    settings=Settings,
    columns=tuple(Column(f"curator.{name}") for name in ("digits", "addresses", "white_space", "brackets")),
    measure=measure,
    limits=limits,
)

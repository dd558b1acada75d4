"""Measure how much of a text is abuse or explicit sex, by word lists; recognize URLs with words for pornography.

The share of listed words decides, not a single word, so that a text about abuse, or with a quotation, stays. C4
(arXiv 1910.10683) drops a page for a single listed word, which was shown to remove health and minority pages
(arXiv 2104.08758).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

LISTS = Path(__file__).parent / "lists"
LANGUAGES = ("en", "de", "fr", "es", "it")
"""Languages that have a list. A text in another one is measured by the English list."""

_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_URL_PART = re.compile(r"[^\W_]+")


def toxic_fraction(text: str, language: str = "en") -> float:
    """Fraction in [0, 1] of the text's words that are in the list of its language, or else in the English list.

    Every word of a listed phrase counts. A text without words scores 0.
    """
    lowered = text.lower()
    words = Counter(_WORD.findall(lowered))
    num_words = words.total()
    if num_words == 0:
        return 0.0
    entries = _entries(language if language in LANGUAGES else "en")
    listed = sum(number for word, number in words.items() if word in entries.words or word.startswith(entries.stems))
    for phrase in entries.phrases:
        if phrase.first in words:
            listed += phrase.num_words * len(phrase.pattern.findall(lowered))
    return min(listed / num_words, 1.0)


def is_toxic_url(url: str) -> bool:
    """Whether a whole part of the URL (between dots, slashes, dashes) is a word for pornography."""
    return not _url_words().isdisjoint(_URL_PART.findall(url.lower()))


def read_list(path: Path) -> list[str]:
    """Return the entries of a word list, which has one per line; comments and blank lines are skipped."""
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line]


@lru_cache(maxsize=1)
def _url_words() -> frozenset[str]:
    return frozenset(read_list(LISTS / "toxic.urls.txt"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Phrase:
    """A word-list entry of several words. It is only searched for in texts that contain its first word."""

    first: str
    num_words: int
    pattern: re.Pattern[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entries:
    """The word-list entries of one language and of English: whole words, beginnings of words, and phrases."""

    words: frozenset[str]
    stems: tuple[str, ...]
    phrases: tuple[Phrase, ...]


@lru_cache(maxsize=len(LANGUAGES))
def _entries(language: str) -> Entries:
    entries = sorted({*read_list(LISTS / "toxic.en.txt"), *read_list(LISTS / f"toxic.{language}.txt")})
    single = [entry for entry in entries if " " not in entry]
    return Entries(
        words=frozenset(entry for entry in single if not entry.endswith("*")),
        stems=tuple(entry.removesuffix("*") for entry in single if entry.endswith("*")),
        phrases=tuple(_phrase(entry) for entry in entries if " " in entry),
    )


def _phrase(entry: str) -> Phrase:
    words = entry.split()
    first, rest = re.escape(words[0]), "".join(r"\s+" + re.escape(word).replace(r"\*", r"\w*") for word in words[1:])
    # The lookbehind comes after the first word, so that the search is for plain letters, which is fast.
    pattern = re.compile(rf"{first}(?<![\w'’-]{first}){rest}(?!\w)")
    return Phrase(first=words[0], num_words=len(words), pattern=pattern)

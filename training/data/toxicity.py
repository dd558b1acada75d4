"""How much of a text is abuse or explicit sex, by lists of words; and addresses that say so themselves.

The share of listed words decides, not one word, so that a text about abuse, or a quotation, stays. C4
(arXiv 1910.10683) drops a page for a single listed word, which was shown to remove health and minority pages
(arXiv 2104.08758).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

LISTS = Path(__file__).parent / "lists"
LANGUAGES = ("en", "de", "fr", "es", "it")
"""Languages that have a list. A text in another one is measured by the English list."""

_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_URL_PART = re.compile(r"[^\W_]+")


def toxic_fraction(text: str, language: str = "en") -> float:
    """Fraction in [0, 1] of the text's words that are in the list of its language, or in the English one.

    Of a listed phrase every word counts. A text without words scores 0.
    """
    lowered = text.lower()
    num_words = sum(1 for _ in _WORD.finditer(lowered))
    if num_words == 0:
        return 0.0
    pattern = _pattern(language if language in LANGUAGES else "en")
    listed = sum(len(match[0].split()) for match in pattern.finditer(lowered))
    return min(listed / num_words, 1.0)


def is_toxic_url(url: str) -> bool:
    """Whether a whole part of the address (between dots, slashes, dashes) is a word for pornography."""
    return not _url_words().isdisjoint(_URL_PART.findall(url.lower()))


def read_list(path: Path) -> list[str]:
    """The entries of a word list: one a line, without comments and blank lines."""
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line]


@lru_cache(maxsize=1)
def _url_words() -> frozenset[str]:
    return frozenset(read_list(LISTS / "toxic.urls.txt"))


@lru_cache(maxsize=len(LANGUAGES))
def _pattern(language: str) -> re.Pattern[str]:
    entries = set(read_list(LISTS / "toxic.en.txt")) | set(read_list(LISTS / f"toxic.{language}.txt"))
    return re.compile(rf"(?<![\w'’-])(?:{'|'.join(_as_pattern(entries))})(?![\w])")


def _as_pattern(entries: Iterable[str]) -> list[str]:
    # longest first, because the first alternative that matches wins
    ordered = sorted(entries, key=lambda entry: (-len(entry), entry))
    return [r"\s+".join(re.escape(word).replace(r"\*", r"\w*") for word in entry.split()) for entry in ordered]

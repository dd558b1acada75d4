"""Split text into words by Unicode's default word boundaries (UAX 29), for languages without rules of their own.

The boundaries need no dictionary. Scripts that put spaces between words give words. In scripts without spaces every Han
or Hiragana character is a word, Katakana is split at other scripts only, and Thai, Lao, Khmer and Burmese are split
into grapheme clusters: a letter with its vowel signs and tone marks.
"""

from __future__ import annotations

from functools import cache
from typing import Any


def split(chunk: str) -> list[str]:
    """Return the words of a chunk, punctuation marks included. The chunk must not contain white space."""
    return _pattern().findall(chunk)


@cache
def _pattern() -> Any:
    """A pattern of one word: as few whole grapheme clusters as reach a word boundary.

    The word boundaries of UAX 29 alone would separate Khmer vowel signs from their consonants.
    """
    import regex

    return regex.compile(r"\X+?\b", regex.WORD)

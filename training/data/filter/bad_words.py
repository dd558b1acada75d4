"""C4's list rule: whether a page holds a word or phrase of a list that the recipe names (arXiv 1910.10683).

One listed word is enough, whatever it is used for; `training.data.filter.toxicity` measures a share instead and says
why.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache

from training.data.sources import read_rows
from training.job import DataError

UNSPACED = ("ja", "th", "zh")
"""Languages written without spaces: an entry is looked for anywhere, as in C4's own code, elsewhere as a whole word."""


@lru_cache(maxsize=2)
def read_patterns(uri: str) -> Mapping[str, re.Pattern[str]]:
    """Per language what finds an entry of the list in lower-cased text.

    Rows have `word` and `lang`; a text file is one entry a line, in a list for every language, under "". DataError for
    other rows and for a list without entries.
    """
    entries: defaultdict[str, set[str]] = defaultdict(set)
    for number, row in enumerate(read_rows(uri)):
        words = row["text"].splitlines() if "name" in row and "text" in row else [row.get("word")]
        if not all(isinstance(word, str) for word in words):
            raise DataError(f"{uri}: row {number} has no text in 'word'; its fields are {', '.join(sorted(row))}")
        entries[row.get("lang") or ""].update(filter(None, (word.strip().lower() for word in words)))
    found = {code: _pattern(code, words) for code, words in entries.items() if words}
    if not found:
        raise DataError(f"{uri}: no words in it")
    return found


def _pattern(code: str, words: set[str]) -> re.Pattern[str]:
    any_word = "|".join(map(re.escape, sorted(words)))
    return re.compile(any_word if code in UNSPACED else rf"(?<!\w)(?:{any_word})(?!\w)")


def has_bad_word(text: str, language: str, patterns: Mapping[str, re.Pattern[str]]) -> bool:
    """Whether an entry for the text's language, or for every language, stands in it. Without a list it holds none."""
    chosen = [patterns[code] for code in ("", language) if code in patterns]
    lowered = text.lower() if chosen else ""
    return any(pattern.search(lowered) for pattern in chosen)

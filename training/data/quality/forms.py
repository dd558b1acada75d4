"""Cut text into word forms for the quality models: lower case, every digit as 0, signs as separate words.

Each chunk between white space is cut into words once and then looked up by its characters. A text becomes an array of
form numbers, and what a model knows about forms is an array indexed by these numbers. `words_of` gives the same words
with plain Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from training.data.words.chunks import ChunkIndex, code_points, extended
from training.data.words.native import native

MAX_CHUNKS = 300_000  # about 70 MB, measured over made chunks of 10 characters
MAX_CHARACTERS = 8_000_000  # of all chunks together, because a single chunk may be as long as a page

# A run of letters and marks with inner apostrophes, a run of digits, or one other sign.
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*|\d+|[^\w\s]|_")
_DIGIT = re.compile(r"\d")


def words_of(line: str) -> list[str]:
    """Return the words and punctuation marks of a line in lower case; each digit becomes 0 (as in CCNet)."""
    return _TOKEN.findall(_plain(line))


def _plain(text: str) -> str:
    return _DIGIT.sub("0", text.lower())


@dataclass(frozen=True, slots=True, eq=False)
class Formed:
    """A text's form numbers, int32 [forms], and the index in them at which each line with words ends, int64 [lines]."""

    numbers: np.ndarray
    line_ends: np.ndarray


class _Numbers(dict[str, int]):
    """Maps each word form to its number; a new form gets the next number."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self._words)
        self._words.append(word)
        return number


class Forms:
    """Numbers of all word forms (normalized words) and chunks seen so far. Their numbers never change."""

    def __init__(self) -> None:
        self.words: list[str] = []  # indexed by the form's number
        self._numbers = _Numbers(self.words)
        self._index = ChunkIndex()
        self._cut = np.zeros(4096, np.int32)  # the forms of every chunk, end to end
        self._cut_ends = np.zeros(1024, np.int64)  # end of each chunk's forms in `_cut`
        self._characters = 0
        self._last: tuple[str, Formed] | None = None  # cached, because two models judge the same text in turn

    @property
    def is_full(self) -> bool:
        """Whether to start again with an empty `Forms`, because a crawl has an unlimited number of chunks."""
        return self._index.size > MAX_CHUNKS or self._characters > MAX_CHARACTERS

    def of(self, text: str) -> Formed:
        """Return the numbers of the word forms in a text."""
        if self._last is None or self._last[0] is not text:
            codes = code_points(text)
            chunks, bounds = self._index.learned(text, codes, self._learn)
            self._last = text, Formed(*_spread(codes, chunks, bounds, self._cut, self._cut_ends))
        return self._last[1]

    def _learn(self, chunks: list[str]) -> dict[str, int]:
        """Add new chunks and return their numbers. Words and lower-casing do not depend on anything outside a chunk."""
        first = self._index.size
        filled = int(self._cut_ends[first - 1]) if first else 0
        cut = [_TOKEN.findall(chunk) for chunk in _plain("\n".join(chunks)).split("\n")]
        self._index.add(chunks)
        self._characters += sum(map(len, chunks))
        numbers = [*map(self._numbers.__getitem__, chain.from_iterable(cut))]
        self._cut = extended(self._cut, filled, numbers)
        self._cut_ends = extended(self._cut_ends, first, filled + np.cumsum([len(words) for words in cut]))
        return dict(zip(chunks, range(first, first + len(chunks)), strict=True))


class FormColumn:
    """An array with a value for each word form, indexed by form number; it grows when new forms appear."""

    def __init__(self, ask: Callable[[str], int], dtype: Any) -> None:
        self._ask = ask
        self._forms: Forms | None = None
        self._size = 0
        self._values = np.zeros(1024, dtype)

    def of(self, forms: Forms) -> np.ndarray:
        """Return the values of all forms seen so far; the array may be longer than their number."""
        if forms is not self._forms:
            self._forms, self._size = forms, 0
        if new := forms.words[self._size :]:
            more = np.fromiter(map(self._ask, new), self._values.dtype, len(new))
            self._values = extended(self._values, self._size, more)
            self._size += len(new)
        return self._values


_SHARED = [Forms()]


def shared_forms() -> Forms:
    """Return the `Forms` of this process, replaced by new ones when full. Results do not depend on their content."""
    if _SHARED[0].is_full:
        _SHARED[0] = Forms()
    return _SHARED[0]


@native
def _spread(codes, chunks, bounds, cut, cut_ends):
    """Return the numbers of a text's word forms, and where its lines end.

    The numbers are joined from those of its chunks. The ends are the indexes at which lines with words end.
    """
    total = 0
    for chunk in chunks:
        total += cut_ends[chunk] - (cut_ends[chunk - 1] if chunk else 0)
    numbers = np.empty(total, np.int32)
    line_ends = np.empty(len(chunks), np.int64)
    count = lines = last = behind = 0
    for place in range(len(chunks)):
        is_next = False
        for code in codes[behind : bounds[place, 0]]:
            is_next = is_next or is_line_end(code)
        if is_next and count > last:
            line_ends[lines] = last = count
            lines += 1
        behind = bounds[place, 1]
        first = cut_ends[chunks[place] - 1] if chunks[place] else 0
        for form in cut[first : cut_ends[chunks[place]]]:
            numbers[count] = form
            count += 1
    if count > last:
        line_ends[lines] = count
        lines += 1
    return numbers, line_ends[:lines].copy()


@native
def is_line_end(code):
    """Whether `str.splitlines` ends a line at this character code."""
    return 10 <= code <= 13 or 28 <= code <= 30 or code == 0x85 or code == 0x2028 or code == 0x2029

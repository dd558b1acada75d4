"""The forms of a text's words, by which models judge it: lower-cased, every digit as 0, signs as words of their own.

Each chunk between white space is cut into words once, and found again by its characters; a text is then a row of
numbers, and what a model knows of a form is an array over them. `words_of` is the plain way to the same words.
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
MAX_CHARACTERS = 8_000_000  # of all chunks: one may be as long as a page

# A run of letters and marks with inner apostrophes, a run of digits, or one other sign.
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*|\d+|[^\w\s]|_")
_DIGIT = re.compile(r"\d")


def words_of(line: str) -> list[str]:
    """The words and signs of a line, lower-cased, every digit as 0 (as in CCNet), so that numbers share their form."""
    return _TOKEN.findall(_plain(line))


def _plain(text: str) -> str:
    return _DIGIT.sub("0", text.lower())


def lines_of(text: str) -> list[list[str]]:
    """The words of each line that has any, as `words_of` gives them. A line is what models take for a sentence."""
    return [words for line in text.splitlines() if (words := words_of(line))]


@dataclass(frozen=True, slots=True, eq=False)
class Formed:
    """A text's forms by number, int32 [forms], and where each line that has any ends in them, int64 [lines]."""

    numbers: np.ndarray
    line_ends: np.ndarray


class _Numbers(dict[str, int]):
    """Maps each form of a word to its number; a new form gets the next number."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self._words)
        self._words.append(word)
        return number


class Forms:
    """The forms that were seen so far. A form, and a chunk, keeps its number."""

    def __init__(self) -> None:
        self.words: list[str] = []  # by number
        self._numbers = _Numbers(self.words)
        self._index = ChunkIndex()
        self._cut = np.zeros(4096, np.int32)  # the forms of every chunk, end to end
        self._cut_ends = np.zeros(1024, np.int64)  # of each chunk in `_cut`
        self._characters = 0
        self._last: tuple[str, Formed] | None = None  # two models are asked about the same text

    @property
    def is_full(self) -> bool:
        """Whether it is time to begin anew: a crawl has no end of chunks."""
        return self._index.size > MAX_CHUNKS or self._characters > MAX_CHARACTERS

    def of(self, text: str) -> Formed:
        """The forms of a text."""
        if self._last is None or self._last[0] is not text:
            codes = code_points(text)
            chunks, bounds = self._index.learned(text, codes, self._learn)
            self._last = text, Formed(*_spread(codes, chunks, bounds, self._cut, self._cut_ends))
        return self._last[1]

    def _learn(self, chunks: list[str]) -> dict[str, int]:
        """The numbers of new chunks. Neither a word nor a rule of lower-casing sees beyond a chunk."""
        first = self._index.size
        filled = int(self._cut_ends[first - 1]) if first else 0
        cut = [_TOKEN.findall(chunk) for chunk in _plain("\n".join(chunks)).split("\n")]
        self._index.add(chunks)
        self._characters += sum(map(len, chunks))
        numbers = [*map(self._numbers.__getitem__, chain.from_iterable(cut))]
        self._cut = extended(self._cut, filled, numbers)
        self._cut_ends = extended(self._cut_ends, first, filled + np.cumsum([len(words) for words in cut]))
        return dict(zip(chunks, range(first, first + len(chunks)), strict=True))


class Column:
    """What someone knows of each form: an array over their numbers that grows with them."""

    def __init__(self, ask: Callable[[str], int], dtype: Any) -> None:
        self._ask = ask
        self._forms: Forms | None = None
        self._size = 0
        self._values = np.zeros(1024, dtype)

    def of(self, forms: Forms) -> np.ndarray:
        """The values of all forms seen so far, and room behind them."""
        if forms is not self._forms:
            self._forms, self._size = forms, 0
        if new := forms.words[self._size :]:
            more = np.fromiter(map(self._ask, new), self._values.dtype, len(new))
            self._values = extended(self._values, self._size, more)
            self._size += len(new)
        return self._values


_SHARED = [Forms()]


def shared_forms() -> Forms:
    """This process's forms, new ones when the last are full. No answer depends on what they have seen."""
    if _SHARED[0].is_full:
        _SHARED[0] = Forms()
    return _SHARED[0]


@native
def _spread(codes, chunks, bounds, cut, cut_ends):
    """The forms of the chunks of a text one by one, and where each line that has any ends in them."""
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
    """Whether str.splitlines ends a line at a character."""
    return 10 <= code <= 13 or 28 <= code <= 30 or code == 0x85 or code == 0x2028 or code == 0x2029

"""Find runs of eight words in any text, whether it is plain, escaped in JSON, or marked up, and take them out.

Words are those of `training.data.words.ngrams`: case, punctuation and line ends do not matter. A text is looked at in
several *views*: as it is, with JSON's escapes undone, again for JSON within JSON, and without tags and entities. A view
says for each of its characters where it stands in the text, so that what is found in it can be taken out of the text.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from training.data.words.hashes import hash_words
from training.data.words.ngrams import Hashes, ngram_hashes, word_hashes, words_with_spans

WORDS = 8
COMPILED_FROM = 2_000_000  # characters; loading the compiled loop takes 2 s, and plain Python reads 3 MB a second
MASK = "█"
MOST_DEEP = 4  # JSON in a string of JSON in a string ...
ESCAPE = re.compile(r'\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|["\\/bfnrt])')
MARKUP = re.compile(r"<[^<>]{0,2000}>|&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,31});")


@dataclass(frozen=True, slots=True)
class View:
    """A text in which some pieces were replaced; `starts` and `ends` say where each character stands in the original.

    Both are None if nothing was replaced.
    """

    text: str
    starts: np.ndarray | None = None
    ends: np.ndarray | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return where the characters `start` to `end` - 1 stand in the original."""
        if self.starts is None or self.ends is None:
            return start, end
        return int(self.starts[start]), int(self.ends[end - 1])


def views_of(text: str) -> Iterator[View]:
    """Yield the views of a text that may differ in their words."""
    yield (escaped := View(text))
    for _ in range(MOST_DEEP):
        if not ESCAPE.search(escaped.text):
            break
        yield (escaped := _replaced(escaped, ESCAPE, _unescaped))
    if "<" in escaped.text or "&" in escaped.text:
        yield _replaced(escaped, MARKUP, lambda piece: " " if piece[0] == "<" else html.unescape(piece))


def _unescaped(piece: str) -> str:
    return json.loads(f'"{piece}"').encode("utf-8", "replace").decode("utf-8")


def _replaced(view: View, pattern: re.Pattern[str], put: Callable[[str], str]) -> View:
    pieces: list[str] = []
    lengths: list[tuple[int, int, int]] = []  # of the new piece, and where it stands in the view's text
    at = 0
    for found in pattern.finditer(view.text):
        pieces += [view.text[at : found.start()], put(found.group())]
        lengths += [(found.start() - at, at, -1), (len(pieces[-1]), found.start(), found.end())]
        at = found.end()
    pieces.append(view.text[at:])
    lengths.append((len(view.text) - at, at, -1))
    starts, ends = np.empty(sum(map(len, pieces)), np.int64), np.empty(sum(map(len, pieces)), np.int64)
    to = 0
    for length, start, end in lengths:
        own = slice(to, to + length)
        starts[own] = np.arange(start, start + length) if end < 0 else start
        ends[own] = np.arange(start + 1, start + length + 1) if end < 0 else end
        to += length
    if view.starts is not None and view.ends is not None:
        starts, ends = view.starts[starts], view.ends[ends - 1]
    return View("".join(pieces), starts, ends)


def grams_of(texts: Sequence[str]) -> tuple[Hashes, np.ndarray]:
    """Return the hashes of all runs of eight words of texts, and the number of the text of each run."""
    if not any(texts):
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    if sum(map(len, texts)) < COMPILED_FROM:
        parts = [word_hashes(text) for text in texts]
        hashes, starts = np.concatenate(parts), np.cumsum([0, *map(len, parts)])
    else:
        data = [text.encode("utf-8", "replace") for text in texts]
        offsets = np.cumsum([0, *map(len, data)])
        hashes, starts = hash_words(np.frombuffer(b"".join(data), np.uint8), offsets)
    of = np.repeat(np.arange(len(texts)), np.diff(starts))
    grams = ngram_hashes(hashes, WORDS)
    is_one = of[: len(grams)] == of[WORDS - 1 :][: len(grams)]
    return grams[is_one], of[: len(grams)][is_one]


def is_in(grams: Hashes, wanted: Hashes) -> np.ndarray:
    """Return which of `grams` are in the sorted `wanted`, bool."""
    if not len(wanted):
        return np.zeros(len(grams), np.bool_)
    places = np.searchsorted(wanted, grams)
    places[places == len(wanted)] = 0
    return wanted[places] == grams


def count_in(texts: Sequence[str], wanted: Hashes) -> tuple[int, Hashes]:
    """Return how many different runs of `wanted` stand in the texts in any view, and these, sorted."""
    found = [np.empty(0, np.uint64)]
    seen: list[str] = []
    for text in texts:
        seen += [view.text for view in views_of(text)]
    grams, _ = grams_of(seen)
    found.append(grams[is_in(grams, wanted)])
    every = np.unique(np.concatenate(found))
    return len(every), every


def masked(text: str, wanted: Hashes) -> str:
    """Return the text with the words of every run of `wanted` replaced by a block, in all views."""
    spans: set[tuple[int, int]] = set()
    for view in views_of(text):
        hashes, places = words_with_spans(view.text)
        for first in np.flatnonzero(is_in(ngram_hashes(hashes, WORDS), wanted)).tolist():
            spans |= {view.span(*place) for place in places[first : first + WORDS].tolist()}
    pieces, at = [], 0
    for start, end in sorted(spans):
        if start >= at:
            pieces += [text[at:start], MASK]
            at = end
    return "".join([*pieces, text[at:]])

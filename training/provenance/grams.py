"""Find runs of eight words in any text, whether it is plain, escaped in JSON, or marked up, and take them out.

Words are those of `training.data.words.ngrams`: case, punctuation and line ends do not matter. A text is looked at in
several *views*: as it is, with JSON's escapes undone, again for JSON within JSON, with percent-encoding undone, and
without tags and entities. A view says for each of its characters where it stands in the text, so that what is found in
it can be taken out of the text.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

import numpy as np

from training.data.exams.search.folding import folded_hashes, folding, readable
from training.data.words.hashes import hash_words
from training.data.words.ngrams import Hashes, ngram_hashes, word_hashes, words_with_spans

WORDS = 8
COMPILED_FROM = 500_000  # characters; loading the compiled loop takes 2 s, and plain Python reads 3 MB a second
MASK = "█"
MOST_DEEP = 4  # JSON in a string of JSON in a string ...
ESCAPE = re.compile(r'\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|["\\/bfnrt])')
PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2})+")
MARKUP = re.compile(r"<[^<>]{0,2000}>|&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,31});")


@dataclass(frozen=True, slots=True)
class View:
    """A text in which some pieces of another view were replaced.

    `spans` has, for each of them, the length of the new piece and where the old one begins and ends.
    """

    text: str
    of: View | None = None
    spans: Sequence[tuple[int, int, int]] = ()

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Return where each character begins and ends in the text that the first view shows."""
        if self.of is None:
            own = np.arange(len(self.text), dtype=np.int64)
            return own, own + 1
        starts, ends = np.empty(len(self.text), np.int64), np.empty(len(self.text), np.int64)
        at = to = 0
        for length, start, end in (*self.spans, (0, len(self.of.text), len(self.of.text))):
            same = slice(to, to + start - at)
            starts[same] = np.arange(at, start)
            ends[same] = starts[same] + 1
            new = slice(same.stop, same.stop + length)
            starts[new], ends[new] = start, end
            at, to = end, new.stop
        if not len(self.text):
            return starts, ends
        before = self.of.places()
        return before[0][starts], before[1][ends - 1]


def views_of(text: str) -> Iterator[View]:
    """Yield the views of a text that may differ in their words."""
    yield (escaped := View(text))
    for _ in range(MOST_DEEP):
        if not ESCAPE.search(escaped.text):
            break
        yield (escaped := _replaced(escaped, ESCAPE, _unescaped))
    shown = [escaped]
    if PERCENT.search(escaped.text):
        yield (quoted := _replaced(escaped, PERCENT, unquote))
        shown.append(quoted)  # and the other: %3E within a tag would end it
    for one in shown:
        if "<" in one.text or "&" in one.text:
            yield _replaced(one, MARKUP, lambda piece: " " if piece[0] == "<" else html.unescape(piece))


@lru_cache(maxsize=4096)
def _unescaped(piece: str) -> str:
    return json.loads(f'"{piece}"').encode("utf-8", "replace").decode("utf-8")


def _replaced(view: View, pattern: re.Pattern[str], put: Callable[[str], str]) -> View:
    """Return a view of a view in which `put` has replaced what the pattern finds."""
    spans: list[tuple[int, int, int]] = []  # length of the new piece, and where the old one begins and ends

    def note(found: re.Match[str]) -> str:
        new = put(found.group())
        spans.append((len(new), found.start(), found.end()))
        return new

    return View(pattern.sub(note, view.text), view, spans)


def stretches(has: np.ndarray) -> list[tuple[int, int]]:
    """Return where stretches of True begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], has.astype(np.int8), [0]])))
    return [(int(first), int(stop)) for first, stop in edges.reshape(-1, 2)]


def longest(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges that do not lie within another one, in order."""
    found = list[tuple[int, int]]()
    for start, stop in sorted(set(ranges), key=lambda one: (one[0], -one[1])):
        if not found or stop > found[-1][1]:
            found.append((start, stop))
    return found


def grams_of(texts: Sequence[str], *, folds: bool = False) -> tuple[Hashes, np.ndarray]:
    """Return the hashes of all runs of eight words of texts, and the number of the text of each run.

    With `folds`, words are those that a person reads as the same (data/exams/search/folding.py): soft hyphens, small
    capitals and accents do not matter.
    """
    if not any(texts):
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    texts = [readable(text) for text in texts] if folds else texts
    if sum(map(len, texts)) < COMPILED_FROM:
        parts = [folded_hashes(text) if folds else word_hashes(text) for text in texts]
        hashes, starts = np.concatenate(parts), np.cumsum([0, *map(len, parts)])
    else:
        data = [text.encode("utf-8", "replace") for text in texts]
        offsets = np.cumsum([0, *map(len, data)])
        hashes, starts = hash_words(np.frombuffer(b"".join(data), np.uint8), offsets, folding() if folds else None)
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
    """Return the number of different runs of `wanted` that occur in any view of the texts, and these runs, sorted."""
    found = [np.empty(0, np.uint64)]
    seen: list[str] = []
    for text in texts:
        seen += [view.text for view in views_of(text)]
    grams, _ = grams_of(seen)
    found.append(grams[is_in(grams, wanted)])
    every = np.unique(np.concatenate(found))
    return len(every), every


def spans_of(text: str, wanted: Hashes) -> list[tuple[int, int]]:
    """Return where the words of every run of `wanted` begin and end in a text, in all views, sorted."""
    spans: set[tuple[int, int]] = set()
    for view in views_of(text):
        hashes, places = words_with_spans(view.text)
        known: tuple[np.ndarray, np.ndarray] | None = None
        for first in np.flatnonzero(is_in(ngram_hashes(hashes, WORDS), wanted)).tolist():
            begins, ends = known if known else (known := view.places())
            spans |= {(int(begins[start]), int(ends[end - 1])) for start, end in places[first : first + WORDS].tolist()}
    return sorted(spans)


def masked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return a text with a block in the place of each of these spans, which are sorted."""
    pieces, at = [], 0
    for start, end in spans:
        if start >= at:
            pieces += [text[at:start], MASK]
            at = end
    return "".join([*pieces, text[at:]])


def runs_with_letters(texts: Iterable[str]) -> Hashes:
    """Return the hashes of those runs of eight words of texts that have a letter, each once, sorted.

    A run of numbers alone is nobody's text: vocabularies, tables and logs are full of them.
    """
    found = [np.empty(0, np.uint64)]
    for text in texts:
        hashes, places = words_with_spans(text)
        if len(hashes) >= WORDS:
            lettered = np.array([any(map(str.isalpha, text[start:end])) for start, end in places.tolist()], np.int64)
            found.append(ngram_hashes(hashes, WORDS)[np.convolve(lettered, np.ones(WORDS, np.int64), "valid") > 0])
    return np.unique(np.concatenate(found))

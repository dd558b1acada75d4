"""Words and word n-grams as 64-bit hashes: one definition for deduplication, decontamination and the reports.

A word is a run of letters, digits and combining marks, or several joined by apostrophes, which are left out; everything
else, the underscore too, stands between words. Scripts written without spaces (Han, kana, Thai, Lao, Khmer, Burmese)
give one word a character. Words compare in lower case after NFKC, so `Café`, `café` in either Unicode form, and
full-width letters are equal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

Hashes = npt.NDArray[np.uint64]

_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
_MARKS: Final = "".join(chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
# Marks of the unspaced scripts come first, as words of their own; the order of the alternatives sees to it.
LETTER: Final = f"(?:[^\\W_{_UNSPACED}]|[{_MARKS}])"  # of a word of several characters, as a pattern
SINGLE: Final = f"[{_UNSPACED}]"  # a character that is a word
_RUN: Final = f"{LETTER}+"
_WORD: Final = re.compile(f"{SINGLE}|{_RUN}(?:['’]{_RUN})*")
_SINGLE: Final = re.compile(SINGLE)
_ASCII_WORD: Final = re.compile("[A-Za-z0-9]+(?:'[A-Za-z0-9]+)*")

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT: Final = np.uint64(33)


class _WordHashes(dict[str, int]):
    """Spelling → hash of the normalized word. Emptied when full: a crawl has no end of distinct words."""

    LIMIT: Final = 1_000_000

    def __missing__(self, word: str) -> int:
        if len(self) >= self.LIMIT:
            self.clear()
        value = self[word] = xxhash.xxh3_64_intdigest(normalized_word(word))
        return value


_HASHES: Final = _WordHashes()


def normalized_word(word: str) -> str:
    """The form in which words are compared: NFKC, lower case, no apostrophe."""
    plain = word.lower() if word.isascii() else unicodedata.normalize("NFKC", word.lower()).replace("’", "")
    return plain.replace("'", "")


def words(text: str) -> list[str]:
    """The normalized words of a text, in order."""
    return [normalized_word(word) for word in _pattern(text).findall(text)]


def word_hash(word: str) -> int:
    """The hash of one word as it is spelled in a text."""
    return _HASHES[word]


def letters() -> Iterator[tuple[str, bool]]:
    """Every character that words are made of, and whether it stands at a word's begin for a word of its own."""
    text = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    for character in re.findall(f"{SINGLE}|{LETTER}", text):
        yield character, bool(_SINGLE.match(character))


def word_hashes(text: str) -> Hashes:
    """The hash (uint64) of each word, in order."""
    found = _pattern(text).findall(text)
    return np.fromiter(map(_HASHES.__getitem__, found), np.uint64, len(found))


def words_with_spans(text: str) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """One uint64 a word, and [words, 2] character offsets (start, end) of each word in the text."""
    found = [(match.group(), match.start(), match.end()) for match in _pattern(text).finditer(text)]
    hashes = np.fromiter((_HASHES[word] for word, _, _ in found), np.uint64, len(found))
    spans = np.array([(start, end) for _, start, end in found], np.int64).reshape(-1, 2)
    return hashes, spans


def _pattern(text: str) -> re.Pattern[str]:
    # Equal on ASCII text and three times as fast.
    return _ASCII_WORD if text.isascii() else _WORD


def ngram_hashes(hashes: Hashes, num_words: int) -> Hashes:
    """One uint64 for each run of `num_words` words, at the run's first word; empty when the text is shorter."""
    length = len(hashes) - num_words + 1
    if length <= 0:
        return np.empty(0, np.uint64)
    combined = hashes[:length].copy()
    for offset in range(1, num_words):
        combined *= _MULTIPLIER
        combined += hashes[offset : offset + length]
    return mixed(combined)


def ngram_set(text: str, num_words: int) -> Hashes:
    """The distinct n-grams of a text, sorted.

    A text shorter than one n-gram counts as one n-gram of all its words; one without a word has none.
    """
    hashes = word_hashes(text)
    if not len(hashes):
        return hashes
    return np.unique(ngram_hashes(hashes, min(num_words, len(hashes))))


def jaccard(left: Hashes, right: Hashes) -> float:
    """Size of the intersection over size of the union of two sorted sets of distinct hashes; 0 when one is empty."""
    if not len(left) or not len(right):
        return 0.0
    small, large = (left, right) if len(left) <= len(right) else (right, left)
    positions = np.searchsorted(large, small)
    positions[positions == len(large)] = 0
    shared = int(np.count_nonzero(large[positions] == small))
    return shared / (len(left) + len(right) - shared)


def mixed(values: Hashes) -> Hashes:
    """Each value with its bits spread over all 64 (MurmurHash3's finalizer); a permutation, done in place."""
    values ^= values >> _SHIFT
    values *= _MIX_1
    values ^= values >> _SHIFT
    values *= _MIX_2
    values ^= values >> _SHIFT
    return values


def digest(parts: Iterable[bytes]) -> tuple[int, int]:
    """128-bit xxh3 of the joined parts, as two numbers of 64 bits."""
    hasher = xxhash.xxh3_128()
    for part in parts:
        hasher.update(part)
    high, low = divmod(hasher.intdigest(), 1 << 64)
    return high, low

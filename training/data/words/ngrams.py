"""Words and word n-grams as 64-bit hashes: the definition used by deduplication, decontamination and the reports.

A word is a run of letters, digits and combining marks, or several such runs joined by apostrophes, which are removed.
Everything else, including the underscore, separates words. In scripts written without spaces (Han, kana, Thai, Lao,
Khmer, Burmese) each character is a word. Words are compared in lower case after NFKC, so `Café`, `café` in either
Unicode form, and full-width letters are equal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

Hashes = npt.NDArray[np.uint64]

_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
# All planes that have characters, without surrogates. What is private is no letter, no digit and no format character.
CODES: Final = (*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xF0000))
_MARKS: Final = "".join(chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
# In _WORD, SINGLE comes first, so that a mark of an unspaced script is a word by itself.
LETTER: Final = f"(?:[^\\W_{_UNSPACED}]|[{_MARKS}])"  # pattern of a character in a word of several characters
SINGLE: Final = f"[{_UNSPACED}]"  # pattern of a character that is a word by itself
_RUN: Final = f"{LETTER}+"
_WORD: Final = re.compile(f"{SINGLE}|{_RUN}(?:['’]{_RUN})*")
_SINGLE: Final = re.compile(SINGLE)
_ASCII_WORD: Final = re.compile("[A-Za-z0-9]+(?:'[A-Za-z0-9]+)*")

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT: Final = np.uint64(33)


class _WordHashes(dict[str, int]):
    """Maps a spelling to the hash of its normalized word; cleared when full, as a crawl has unlimited words."""

    LIMIT: Final = 1_000_000

    def __missing__(self, word: str) -> int:
        if len(self) >= self.LIMIT:
            self.clear()
        value = self[word] = xxhash.xxh3_64_intdigest(normalized_word(word))
        return value


_HASHES: Final = _WordHashes()


def normalized_word(word: str) -> str:
    """Return the form in which words are compared: NFKC, lower case, without apostrophes."""
    plain = word.lower() if word.isascii() else unicodedata.normalize("NFKC", word.lower()).replace("’", "")
    return plain.replace("'", "")


def words(text: str) -> list[str]:
    """The normalized words of a text, in order."""
    return [normalized_word(word) for word in _pattern(text).findall(text)]


def word_hash(word: str) -> int:
    """The hash of one word as spelled in a text."""
    return _HASHES[word]


def letters() -> Iterator[tuple[str, bool]]:
    """Yield every character that can be part of a word, and whether it is a word by itself at the start of a word."""
    for character in re.findall(f"{SINGLE}|{LETTER}", "".join(map(chr, CODES))):
        yield character, bool(_SINGLE.match(character))


def word_hashes(text: str) -> Hashes:
    """The hash of each word of a text, uint64 [words], in order."""
    found = _pattern(text).findall(text)
    return np.fromiter(map(_HASHES.__getitem__, found), np.uint64, len(found))


def words_with_spans(text: str) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Return the hash of each word, uint64 [words], and its character offsets (start, end), int64 [words, 2]."""
    found = [(match.group(), match.start(), match.end()) for match in _pattern(text).finditer(text)]
    hashes = np.fromiter((_HASHES[word] for word, _, _ in found), np.uint64, len(found))
    spans = np.array([(start, end) for _, start, end in found], np.int64).reshape(-1, 2)
    return hashes, spans


def _pattern(text: str) -> re.Pattern[str]:
    # The ASCII pattern gives equal words on ASCII text and is three times as fast.
    return _ASCII_WORD if text.isascii() else _WORD


def ngram_hashes(hashes: Hashes, num_words: int) -> Hashes:
    """Hash of each run of `num_words` words, uint64, in the order of the runs; empty if the text is shorter."""
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

    A text shorter than one n-gram has one n-gram, made of all its words; a text without words has none.
    """
    hashes = word_hashes(text)
    if not len(hashes):
        return hashes
    return np.unique(ngram_hashes(hashes, min(num_words, len(hashes))))


def jaccard(left: Hashes, right: Hashes) -> float:
    """Jaccard similarity (intersection over union) of two sorted sets of distinct hashes; 0 if one is empty."""
    if not len(left) or not len(right):
        return 0.0
    small, large = (left, right) if len(left) <= len(right) else (right, left)
    positions = np.searchsorted(large, small)
    positions[positions == len(large)] = 0
    shared = int(np.count_nonzero(large[positions] == small))
    return shared / (len(left) + len(right) - shared)


def mixed(values: Hashes) -> Hashes:
    """Spread each value's bits over all 64 (MurmurHash3's finalizer, which is a permutation); works in place."""
    values ^= values >> _SHIFT
    values *= _MIX_1
    values ^= values >> _SHIFT
    values *= _MIX_2
    values ^= values >> _SHIFT
    return values

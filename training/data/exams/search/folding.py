"""The words by which a text is compared with exams: spellings that a person reads as the same word are the same word.

These words are folded further than those of training.data.words.ngrams:

- format characters (soft hyphens, zero width, direction), variation selectors and diacritics are removed, also inside a
  word;
- compatibility forms (full width, mathematical, enclosed letters) and digits of every script become plain ones;
- letters that look alike become the same letter, an ASCII one if there is one (training.data.exams.search.lookalikes).

The steps run in this order: decompose, remove, compose, replace look-alikes, fold case. All other characters still
separate words, so words that are glued together or cut into letters are different words.

Before its words are taken, a text is made `readable`: what is left over of HTML's entities (`&nbsp;`, `&#97;`) is the
character for which it stands, and an invisible letter of Hangul that stands between words is a blank.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from html.entities import html5
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import xxhash

from training.data.exams.search.lookalikes import lookalikes
from training.data.words import ngrams
from training.data.words.ngrams import Hashes

if TYPE_CHECKING:
    from training.data.words.hashes import Folding

_CODES: Final = ngrams.CODES[0x80:]
# Combining marks for letters of any script, and variation selectors. Marks of a single script count as its letters.
_DIACRITICS: Final = (
    "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U000e0100-\U000e01ef"
)
_FORMATS: Final = "".join(chr(code) for code in _CODES if unicodedata.category(chr(code)) == "Cf")
_JAMO: Final = frozenset(map(chr, (*range(0x1160, 0x1200), *range(0xD7B0, 0xD800))))  # vowels and finals of Hangul
FILLERS: Final = "\u115f\u1160\u3164\uffa0"  # invisible letters of Hangul
_IGNORED: Final = f"{_DIACRITICS}{re.escape(_FORMATS)}{FILLERS}"
_IS_IGNORED: Final = re.compile(f"[{_IGNORED}]+")
_LOOKALIKES: Final = lookalikes()
# Unicode classes letters in circles and squares as symbols.
_ENCLOSED: Final = "".join(
    chr(code)
    for code in (*range(0x2460, 0x2500), *range(0x1F130, 0x1F170))
    if len(plain := unicodedata.normalize("NFKC", chr(code))) == 1 and plain.isalnum()
) + "".join(
    letter for letter, plain in _LOOKALIKES.items() if plain.isascii() and unicodedata.category(letter) in ("So", "No")
)
_APOSTROPHES: Final = "'’‘ʼ＇´′"
_IN_WORDS: Final = f"[^\\W_{ngrams.SINGLE[1:-1]}{FILLERS}{_APOSTROPHES}]"
_MARKS: Final = "".join(
    chr(code)
    for code in range(0x300, 0x10000)
    if unicodedata.category(chr(code)) in ("Mn", "Mc") and not _IS_IGNORED.match(chr(code))
)
_LETTER: Final = f"(?:{_IN_WORDS}|[{_MARKS}{_ENCLOSED}])"
_LETTERS: Final = f"(?:{_IN_WORDS}+|[{_MARKS}{_ENCLOSED}])"
_RUN: Final = f"{_LETTERS}(?:[{_IGNORED}]*{_LETTERS})*"
_WORD: Final = re.compile(f"{ngrams.SINGLE}|{_RUN}(?:[{_IGNORED}]*[{_APOSTROPHES}][{_IGNORED}]*{_RUN})*")
_ASCII_WORD: Final = re.compile("[A-Za-z0-9]+(?:'[A-Za-z0-9]+)*")


def _plain_letters() -> dict[int, str]:
    """Return a table that replaces letters by those that they look like, and the decimal digits of all scripts.

    The table maps code points to characters.
    """
    digits = {
        code: str(unicodedata.decimal(chr(code))) for code in _CODES if unicodedata.decimal(chr(code), None) is not None
    }
    return {ord(letter): plain for letter, plain in _LOOKALIKES.items()} | digits


_PLAIN: Final = _plain_letters()
# A lunate sigma looks like c, but is decomposed into another sigma.
_WITHOUT_APOSTROPHES: Final = str.maketrans("ϲϹ", "cc", _APOSTROPHES)

_PAD: Final = "\u2060"  # ignored inside of words
_FILLER: Final = re.compile(f"[{FILLERS}]")
_FILLED: Final = re.compile(rf"[^\s{FILLERS}]*[{FILLERS}][^\s]*")  # a stretch of text without a blank
_ENTITY: Final = re.compile(r"&(?:amp;)*(#(?:[0-9]{1,7}|[xX][0-9a-fA-F]{1,6})|[A-Za-z][A-Za-z0-9]{1,31})(;?)")


def folded_word(word: str) -> str:
    """Return the normalized form by which a word is compared."""
    if word.isascii():
        return word.lower().translate(_WITHOUT_APOSTROPHES)
    seen = _IS_IGNORED.sub("", unicodedata.normalize("NFKD", word.translate(_WITHOUT_APOSTROPHES)))
    return unicodedata.normalize("NFC", seen).translate(_PLAIN).casefold()


class _FoldedHashes(dict[str, int]):
    """Cache of spelling → hash of the folded word. It is emptied when full, since new words in a crawl never end."""

    LIMIT: Final = 1_000_000

    def __missing__(self, word: str) -> int:
        if len(self) >= self.LIMIT:
            self.clear()
        value = self[word] = xxhash.xxh3_64_intdigest(folded_word(word))
        return value


_HASHES: Final = _FoldedHashes()


def folded_hash(word: str) -> int:
    """Return the hash of one word in its original spelling."""
    return _HASHES[word]


def readable(text: str) -> str:
    """Return a text as a person sees it, with as many characters, so that spans of words stay the same.

    An entity becomes its character, filled up by characters that are no part of words. An invisible letter of Hangul
    becomes a blank, unless it stands between single letters.
    """
    if "&" in text:
        text = _ENTITY.sub(_character, text)
    return text if text.isascii() or not _FILLER.search(text) else _FILLED.sub(_blanks, text)


def _character(entity: re.Match[str]) -> str:
    name, end = entity.groups()
    if name[0] != "#" and f"{name}{end}" not in html5:
        return entity.group()
    return html.unescape(f"&{name};").ljust(len(entity.group()), _PAD)


def _blanks(stretch: re.Match[str]) -> str:
    words = [word for word in _FILLER.split(stretch.group()) if word]
    between_words = sum(map(len, words)) > 1.5 * len(words)
    return _FILLER.sub(" ", stretch.group()) if between_words else stretch.group()


def end_of_character(text: str, end: int) -> int:
    """Return where the character that ends at `end` of a readable text ends in the text as it was written."""
    while text[end : end + 1] == _PAD:
        end += 1
    return end


def folded_words(text: str) -> list[str]:
    """Return the words of a text in order, normalized for comparison (the module's docstring says how)."""
    text = readable(text)
    return [folded_word(word) for word in _pattern(text).findall(text)]


def folded_hashes(text: str) -> Hashes:
    """Return the hash (uint64) of each folded word of a readable text, in order."""
    found = _pattern(text).findall(text)
    return np.fromiter(map(_HASHES.__getitem__, found), np.uint64, len(found))


def word_spans(text: str) -> npt.NDArray[np.int64]:
    """Return [words, 2] character offsets (start, end) of each word in a readable text."""
    return np.array([match.span() for match in _pattern(text).finditer(text)], np.int64).reshape(-1, 2)


def _pattern(text: str) -> re.Pattern[str]:
    # On ASCII text both patterns find the same words, and the first is three times as fast.
    return _ASCII_WORD if text.isascii() else _WORD


# Compiled


@lru_cache(maxsize=1)
def folding() -> Folding:
    """Return the rule for folding words in the form that the compiled training.data.words.hashes.hash_words takes."""
    from training.data.words.hashes import Folding, fold_table

    ignored = _IS_IGNORED.findall("".join(map(chr, _CODES)))
    table = fold_table(_letters(), _folded_letter, _APOSTROPHES, "".join(ignored))
    return Folding(table=table, word_hash=folded_hash)


def _folded_letter(character: str) -> str:
    """Return the normalized form of a letter; empty for a look-alike that combines with the letter before it."""
    if character in _LOOKALIKES and (character in _JAMO or unicodedata.category(character)[0] == "M"):
        return ""
    return folded_word(character)


def _letters() -> Iterator[tuple[str, bool]]:
    single = re.compile(ngrams.SINGLE)
    for character in re.findall(f"{ngrams.SINGLE}|{_LETTER}", "".join(map(chr, ngrams.CODES))):
        yield character, bool(single.match(character))

"""Hash the words of UTF-8 text in a compiled loop: the same hashes as words.ngrams.word_hashes, but faster.

A table folds the characters whose normal form is a single character that does not combine with its neighbours. A word
with any other character (a letter with a combining accent, a final sigma, a ligature) or of more than 128 bytes is
passed to ngrams.normalized_word. The hash is XXH3 with 64 bits (Yann Collet; github.com/Cyan4973/xxHash,
doc/xxhash_spec.md), implemented here for up to 128 bytes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from training.data.words import ngrams
from training.data.words.native import native

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

# A table entry has the folded character in its low 21 bits, then the character's kind, then the flags _ODD and _MARK.
_KIND_SHIFT: Final = 24
_RUN, _SINGLE, _SINGLE_MARK, _APOSTROPHE, _IGNORED = 1, 2, 3, 4, 5
_ODD: Final = 1 << 31  # Python must hash any word with this character
_MARK: Final = 1 << 30  # two of these in a row may be reordered, so Python must hash their word
_LONGEST: Final = 128  # bytes of the longest word that the loop hashes


@dataclass(frozen=True, kw_only=True, slots=True)
class Folding:
    """How characters are folded before words are compared.

    `table` is used by the loop; `word_hash` hashes the words with a character that the table leaves to Python.
    """

    table: npt.NDArray[np.uint32]
    word_hash: Callable[[str], int]


def hash_words(data: Bytes, offsets: Offsets, folding: Folding | None = None) -> tuple[ngrams.Hashes, Offsets]:
    """Return the hash of each word of all texts, uint64 [words], and where each text's words begin, [texts + 1].

    `data` is valid UTF-8, and `offsets` [texts + 1] holds the start of each text. Without a `folding`, words are those
    of training.data.words.ngrams.
    """
    folding = folding or _as_ngrams()
    size = int(offsets[-1] - offsets[0])
    most = (size + 1) // 2 + len(offsets)  # a word and its separator have at least two bytes
    hashes, odd = np.empty(most, np.uint64), np.empty((most, 3), np.int64)
    starts = np.zeros(len(offsets), np.int64)
    num_words, num_odd = _scan(data, offsets, folding.table, _secret(), hashes, starts, odd)
    for place, start, end in odd[:num_odd].tolist():
        hashes[place] = folding.word_hash(data[start:end].tobytes().decode("utf-8"))
    return hashes[:num_words], starts


@lru_cache(maxsize=1)
def _as_ngrams() -> Folding:
    """Return the folding under which words are those of training.data.words.ngrams."""

    def folded(character: str) -> str:
        # A capital sigma becomes one of two small letters, depending on its place in the word.
        return "" if character == "Σ" else unicodedata.normalize("NFKC", character.lower())

    return Folding(table=fold_table(ngrams.letters(), folded, "'’"), word_hash=ngrams.word_hash)


def fold_table(
    letters: Iterable[tuple[str, bool]], folded: Callable[[str], str], apostrophes: str, ignored: str = ""
) -> npt.NDArray[np.uint32]:
    """Return the table entry of each code point, uint32 [0x110000]; zero for a character that separates words.

    `letters` are the characters of words, each with whether it is a word by itself. `folded` returns a character's
    folded form; if this is not one character, Python hashes the words with it. `apostrophes` join the parts of a word,
    and `ignored` characters are skipped inside words.
    """
    table = np.zeros(0x110000, np.uint32)
    joining = _joins_the_one_before()
    for character, single in letters:
        code = ord(character)
        mark = unicodedata.category(character)[0] == "M"
        kind = (_SINGLE_MARK if mark and code < 0x10000 else _SINGLE) if single else _RUN
        table[code] = kind << _KIND_SHIFT | _entry(character, folded(character), joining)
    for characters, kind in ((apostrophes, _APOSTROPHE), (ignored, _IGNORED)):
        table[[ord(character) for character in characters]] = kind << _KIND_SHIFT
    return table


def _entry(character: str, folded: str, joining: frozenset[str]) -> int:
    if len(folded) != 1 or len(character.lower()) != 1 or folded in joining:
        return _ODD
    return ord(folded) | (_MARK if unicodedata.combining(folded) else 0)


def _joins_the_one_before() -> frozenset[str]:
    """Characters that Unicode composition can merge with the character before.

    They are the second parts of decomposed pairs, and Hangul vowels and finals.
    """
    seconds = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}
    for code in range(0xC0, 0x30000):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            seconds.add(chr(int(parts[1], 16)))
    return frozenset(seconds)


@lru_cache(maxsize=1)
def _secret() -> npt.NDArray[np.uint64]:
    """The first 128 secret bytes of XXH3, from its specification, as numbers of 8 bytes."""
    text = (
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
        "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
        "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    )
    return np.frombuffer(bytes.fromhex(text), "<u8").astype(np.uint64)


@native
def _scan(data, offsets, table, secret, hashes, starts, odd):
    """Fill `hashes`, `starts` and `odd`; return the number of words and of odd words, which Python must hash.

    A row of `odd` is (number of the word, first byte, end).
    """
    word = np.zeros(_LONGEST + 8, np.uint8)
    num_words = num_odd = 0
    for text in range(len(offsets) - 1):
        position, end = offsets[text], offsets[text + 1]
        begin = last = position
        length = 0  # bytes of the folded word so far; with `inside`, a word is open
        inside = strange = mark = apostrophe = False
        while position <= end:
            if not inside:  # `_short_words` handles nearly all words
                position, value = _short_words(data, position, end, table, secret, hashes, num_words)
                num_words = value
            width, code = 1, 0
            if position < end:
                code = np.int64(data[position])
                if code >= 0x80:
                    width, code = _decoded(data, position, code)
            entry = table[code] if position < end else np.uint32(0)
            kind = entry >> np.uint32(24) & np.uint32(0x3F)
            if inside:
                if kind == _IGNORED:
                    position += width
                    continue
                if kind in (_RUN, _SINGLE_MARK):
                    apostrophe = False
                elif kind == _APOSTROPHE and not apostrophe:
                    apostrophe = True
                    mark = False
                    position += width
                    continue
                else:
                    if strange:
                        odd[num_odd, 0], odd[num_odd, 1], odd[num_odd, 2] = num_words, begin, last
                        num_odd += 1
                    else:
                        hashes[num_words] = _xxh3(word, length, secret)
                    num_words += 1
                    inside = apostrophe = False
            if kind in (0, _APOSTROPHE, _IGNORED):
                position += width
                continue
            if not inside:
                begin, length = position, 0
                strange = mark = False
                inside = True
            both = np.uint32(entry & np.uint32(_MARK)) != 0
            if entry & np.uint32(_ODD) or (both and mark) or length > _LONGEST - 4:
                strange = True
            else:
                length = _encoded(word, length, np.int64(entry & np.uint32(0x1FFFFF)))
            mark = both
            position += width
            last = position
            if kind == _SINGLE or (kind == _SINGLE_MARK and begin == position - width):
                if strange:
                    odd[num_odd, 0], odd[num_odd, 1], odd[num_odd, 2] = num_words, begin, position
                    num_odd += 1
                else:
                    hashes[num_words] = _xxh3(word, length, secret)
                num_words += 1
                inside = False
        starts[text + 1] = num_words
    return num_words, num_odd


@native
def _short_words(data, position, end, table, secret, hashes, num_words):
    """Hash words of at most 16 ASCII letters and digits until another word begins; return (position, words)."""
    while position < end:
        low = high = np.uint64(0)
        length, start = 0, position
        byte, folded = data[position], np.uint64(0)
        while byte < 0x80:
            folded = np.uint64(table[byte])
            if folded >> np.uint64(24) != _RUN:
                break
            folded &= np.uint64(0xFF)
            if length < 8:
                low |= folded << np.uint64(8 * length)
            elif length < 16:
                high |= folded << np.uint64(8 * length - 64)
            length += 1
            position += 1
            if position == end:
                break
            byte = data[position]
        if (position < end and (byte >= 0x80 or byte == 0x27)) or length > 16:
            return start, num_words
        if length:
            hashes[num_words] = _short_hash(low, high, length, secret)
            num_words += 1
        position += 1
    return position, num_words


@native
def _decoded(data, position, lead):
    """Return the number of bytes and the code point of the character that begins with `lead` (at least 0x80)."""
    second = np.int64(data[position + 1] & 0x3F)
    if lead < 0xE0:
        return 2, (lead & 0x1F) << 6 | second
    third = np.int64(data[position + 2] & 0x3F)
    if lead < 0xF0:
        return 3, (lead & 0x0F) << 12 | second << 6 | third
    return 4, (lead & 0x07) << 18 | second << 12 | third << 6 | np.int64(data[position + 3] & 0x3F)


@native
def _encoded(word, length, code):
    """Append a character to the word as UTF-8; return the word's new length in bytes."""
    if code < 0x80:
        word[length] = code
        return length + 1
    if code < 0x800:
        word[length] = 0xC0 | code >> 6
        word[length + 1] = 0x80 | code & 0x3F
        return length + 2
    if code < 0x10000:
        word[length] = 0xE0 | code >> 12
        word[length + 1] = 0x80 | code >> 6 & 0x3F
        word[length + 2] = 0x80 | code & 0x3F
        return length + 3
    word[length] = 0xF0 | code >> 18
    word[length + 1] = 0x80 | code >> 12 & 0x3F
    word[length + 2] = 0x80 | code >> 6 & 0x3F
    word[length + 3] = 0x80 | code & 0x3F
    return length + 4


@native
def _xxh3(word, length, secret):
    """XXH3-64 with seed 0 of the first 1 to 128 bytes of `word`. `secret[i]` holds the secret's bytes from 8·i on."""
    if length <= 16:
        return _short_hash(_read8(word, 0), _read8(word, 8), length, secret)
    total = np.uint64(length) * np.uint64(0x9E3779B185EBCA87)
    for step in range((length - 1) // 32 + 1):
        for place, key in ((16 * step, 4 * step), (length - 16 * (step + 1), 4 * step + 2)):
            total += _folded_product(_read8(word, place) ^ secret[key], _read8(word, place + 8) ^ secret[key + 1])
    return _avalanche(total)


@native
def _short_hash(low, high, length, secret):
    """XXH3-64 of 1 to 16 bytes: the first eight in `low`, the others in `high`. Bytes after `length` are not used."""
    four, eight = np.uint64(0xFFFFFFFF), np.uint64(8)
    size = np.uint64(length)
    if length <= 3:
        middle, last = low >> eight * (size >> np.uint64(1)), low >> eight * (size - np.uint64(1))
        value = (low & np.uint64(0xFF)) << np.uint64(16) | (middle & np.uint64(0xFF)) << np.uint64(24)
        value |= last & np.uint64(0xFF) | size << eight
        value ^= (secret[0] & four) ^ (secret[0] >> np.uint64(32))
        value = (value ^ value >> np.uint64(33)) * np.uint64(0xC2B2AE3D27D4EB4F)
        value = (value ^ value >> np.uint64(29)) * np.uint64(0x165667B19E3779F9)
        return value ^ value >> np.uint64(32)
    if length <= 8:
        last = low >> eight * (size - np.uint64(4)) & four
        value = (last + ((low & four) << np.uint64(32))) ^ (secret[1] ^ secret[2])
        value ^= (value << np.uint64(49) | value >> np.uint64(15)) ^ (value << np.uint64(24) | value >> np.uint64(40))
        value *= np.uint64(0x9FB21C651E98DF25)
        value ^= (value >> np.uint64(35)) + size
        value *= np.uint64(0x9FB21C651E98DF25)
        return value ^ value >> np.uint64(28)
    if length < 16:
        past = eight * (size - eight)
        high = high << np.uint64(64) - past | low >> past
    low ^= secret[3] ^ secret[4]
    high ^= secret[5] ^ secret[6]
    swapped = np.uint64(0)
    for shift in range(0, 64, 8):
        swapped = swapped << eight | (low >> np.uint64(shift) & np.uint64(0xFF))
    return _avalanche(size + swapped + high + _folded_product(low, high))


@native
def _read8(word, place):
    value = np.uint64(0)
    for byte in range(8):
        value |= np.uint64(word[place + byte]) << np.uint64(8 * byte)
    return value


@native
def _avalanche(value):
    value = (value ^ value >> np.uint64(37)) * np.uint64(0x165667919E3779F9)
    return value ^ value >> np.uint64(32)


@native
def _folded_product(left, right):
    """Multiply two 64-bit numbers; return the low half xor the high half of the 128-bit product."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    low = (left & mask) * (right & mask)
    middle = (left >> half) * (right & mask) + (low >> half)
    other = (left & mask) * (right >> half) + (middle & mask)
    high = (left >> half) * (right >> half) + (middle >> half) + (other >> half)
    return left * right ^ high


@native
def mixed(value):
    """Spread a value's bits over all 64, as training.data.words.ngrams.mixed does; compiled version for one value."""
    value = (value ^ value >> np.uint64(33)) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ value >> np.uint64(33)) * np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ value >> np.uint64(33)

"""A text's words by table: each chunk between white space is cut once, and everything a rule asks of words is a sum.

A text becomes the numbers of its chunks; a row of the table says what a chunk's words add to each count. What the rules
ask is then arithmetic on a few arrays, done by kernels. Chunks that are not cut alone (see `training.data.segment`)
share a row. Texts with an exception that holds a blank, and languages that are not cut by spaCy's rules, go the plain
way, word by word, to the same answers. A full table is left for a new one: a crawl has no end of chunks, and no answer
depends on what a table remembers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import NamedTuple

import numpy as np
from datatrove.utils.text import PUNCTUATION_SET

from training.data import segment
from training.data.native import native
from training.data.repetition import repeated_native, repeated_words
from training.data.segment import Rules

MAX_CHUNKS = 500_000  # about 150 MB
_ENDS, _IS_MARK = 1, 2  # of a word: it ends a sentence; it is nothing but punctuation
# What a chunk's row holds
_WORDS, _WRITTEN, _LETTERS, _ALPHABETIC, _STOPS, _OPEN, _FIRST, _PIECES = range(8)
_BREAKS_0, _ENDED_0, _BREAKS_1, _ENDED_1 = range(8, 12)
_COLUMNS = 12
_HAS_SEQUENCE, _MAY_OPEN, _MAY_CLOSE = 1, 2, 4


@dataclass(frozen=True, slots=True)
class WordCounts:
    """What Gopher's quality rules ask of a text's words. A word is written if it is not all punctuation."""

    words: int
    written: int
    letters: int  # characters of the written words
    alphabetic: int  # words with a letter
    stop_words: int  # different ones


class _WordFacts(NamedTuple):
    """What one word adds to each count of a chunk, and what it is to a sentence."""

    written: bool
    letters: int
    alphabetic: bool
    stops: int
    kind: int


class Words:
    """The words of one text. `chunks` are rows of the table and `pieces` their text; or `pieces` are the words."""

    def __init__(self, text: str, table: WordTable, pieces: Sequence[str], chunks: np.ndarray | None) -> None:
        self.text = text
        self._table, self._pieces, self._chunks = table, pieces, chunks

    @cached_property
    def counts(self) -> WordCounts:
        """Sums over all words."""
        return self._table.counts(self._pieces) if self._chunks is None else self._table.sums(self._chunks)

    @cached_property
    def repeated(self) -> list[int]:
        """`training.data.repetition.repeated` of the words."""
        if self._chunks is None:
            return repeated_words(self._pieces)
        return self._table.repeated(self._chunks, "".join(self._pieces))

    def sentences(self, lines: Sequence[str]) -> int:
        """Sentences of the text's lines, each for itself; at least one a line. `lines` have no line ends in them."""
        if self._chunks is None:
            return self._table.plain_sentences(lines)
        return self._table.sentences("\n".join(lines), self._chunks) if lines else 0


class WordTable:
    """The chunks of one language that were seen so far."""

    def __init__(self, code: str, stop_words: Sequence[str] = ()) -> None:
        self._rules: Rules | None = segment.load_rules(code)
        self._code = code
        self._stop_words = {word: 1 << place for place, word in enumerate(stop_words)}
        self._numbers: dict[str, int] = {}
        self._word_numbers: dict[str, int] = {}
        self._word_facts: list[_WordFacts] = []
        self._rows = np.zeros((1024, _COLUMNS), np.int64)
        self._word_lengths = np.zeros(1024, np.int32)
        self._cut = np.zeros(4096, np.int32)  # the words of every chunk, end to end
        self._num_cut = 0
        self._firsts: list[str] = []  # of every chunk: see `segment.Cut`
        self._lasts: list[str] = []

    @property
    def is_full(self) -> bool:
        """Whether it is time for a new one."""
        return len(self._numbers) > MAX_CHUNKS

    def words(self, text: str) -> Words:
        """The words of a text."""
        if self._rules is None:
            plain = segment.library_tokenizer(self._code).word_tokenize(text)
        elif self._has_spaced(text):
            plain = [bare for word in segment.words_of(text, self._rules) if (bare := word.strip())]
        else:
            pieces = text.split()
            return Words(text, self, pieces, self._chunks_of(text, pieces))
        return Words(text, self, plain, None)

    def _has_spaced(self, text: str) -> bool:
        assert self._rules is not None
        return self._rules.spaced is not None and self._rules.spaced.search(text) is not None

    # Learning

    def _chunks_of(self, text: str, pieces: list[str]) -> np.ndarray:
        """The row of each chunk, int32 [chunks]; chunks that are cut together are one. `pieces` are all chunks."""
        chunks = self._numbers_of(pieces)
        places = [place for place in _open_places(chunks, self._rows).tolist() if self._joins(chunks, place)]
        return self._numbers_of(self._joined(text, pieces, chunks, places)) if places else chunks

    def _numbers_of(self, pieces: list[str]) -> np.ndarray:
        numbers = np.fromiter(map(self._numbers.get, pieces, repeat(-1)), np.int32, len(pieces))
        unseen = np.flatnonzero(numbers < 0).tolist()
        if unseen:
            self._learn(dict.fromkeys(pieces[place] for place in unseen))
            numbers[unseen] = [self._numbers[pieces[place]] for place in unseen]
        return numbers

    def _joins(self, chunks: np.ndarray, left: int) -> bool:
        """Whether a sequence of words may run from a chunk into the next."""
        assert self._rules is not None
        return (self._lasts[chunks[left]], self._firsts[chunks[left + 1]]) in self._rules.joints

    def _joined(self, text: str, pieces: list[str], chunks: np.ndarray, places: list[int]) -> list[str]:
        """`pieces` with those that a sequence at `places` may run through made one, with the blanks between them."""
        gaps = _single_blanks(_codes(text), len(pieces))
        result: list[str] = []
        done = 0
        for place in places:
            if place < done or not gaps[place]:
                continue
            first, last = place, place + 1
            while first > done and gaps[first - 1] and self._joins(chunks, first - 1):
                first -= 1
            while last < len(gaps) and gaps[last] and self._joins(chunks, last):
                last += 1
            result += pieces[done:first]
            result.append(" ".join(pieces[first : last + 1]))
            done = last + 1
        return result + pieces[done:]

    def _learn(self, chunks: dict[str, None]) -> None:
        rows, cut = [], []
        for chunk in chunks:
            row, words = self._row(chunk, self._num_cut + len(cut))
            rows.append(row)
            cut += words
        first = len(self._numbers)
        self._numbers.update(zip(chunks, range(first, first + len(rows)), strict=True))
        self._rows = _with_room(self._rows, first + len(rows))
        self._rows[first : first + len(rows)] = rows
        self._cut = _with_room(self._cut, self._num_cut + len(cut))
        self._cut[self._num_cut : self._num_cut + len(cut)] = cut
        self._num_cut += len(cut)

    def _row(self, chunk: str, first: int) -> tuple[list[int], list[int]]:
        """A chunk's row, and the numbers of its words."""
        assert self._rules is not None
        found = segment.cut(chunk, self._rules) if " " not in chunk else _cut_together(chunk, self._rules)
        numbers = [self._word_number(word) for word in found.words]
        self._firsts.append(found.first)
        self._lasts.append(found.last)
        is_open = _HAS_SEQUENCE * found.has_sequence + _MAY_OPEN * bool(found.last) + _MAY_CLOSE * bool(found.first)
        written = letters = alphabetic = stops = 0
        kinds = []
        for number in numbers:
            is_written, size, is_alphabetic, stop, kind = self._word_facts[number]
            written += is_written
            letters += size
            alphabetic += is_alphabetic
            stops |= stop
            kinds.append(kind)
        counts = [len(numbers), written, letters, alphabetic, stops, is_open, first, 1 + chunk.count(" ")]
        if not any(kinds):  # as in most
            return [*counts, 0, 0, 1, 0], numbers
        return [*counts, *_sentence_breaks(kinds, 0), *_sentence_breaks(kinds, 1)], numbers

    def _word_number(self, word: str) -> int:
        number = self._word_numbers.get(word)
        if number is None:
            number = self._word_numbers[word] = len(self._word_numbers)
            self._word_facts.append(self._facts(word))
            self._word_lengths = _with_room(self._word_lengths, number + 1)
            self._word_lengths[number] = len(word)
        return number

    def _facts(self, word: str) -> _WordFacts:
        assert self._rules is not None
        is_written = not PUNCTUATION_SET.issuperset(word)
        return _WordFacts(
            is_written,
            len(word) * is_written,
            word.isalpha() or any(map(str.isalpha, word)),
            self._stop_words.get(word, 0),
            0 if word.isalnum() and word not in self._rules.sentence_ends else _kind(word, self._rules),
        )

    # Asking

    def sums(self, chunks: np.ndarray) -> WordCounts:
        """What the words of these chunks add up to."""
        words, written, letters, alphabetic, stops = _sums(chunks, self._rows).tolist()
        return WordCounts(words, written, letters, alphabetic, stops.bit_count())

    def counts(self, words: Sequence[str]) -> WordCounts:
        """The same for words that are not in the table."""
        written = [word for word in words if not PUNCTUATION_SET.issuperset(word)]
        alphabetic = sum(any(map(str.isalpha, word)) for word in words)
        stop_words = len(self._stop_words.keys() & set(words))
        return WordCounts(len(words), len(written), sum(map(len, written)), alphabetic, stop_words)

    def repeated(self, chunks: np.ndarray, characters: str) -> list[int]:
        """Characters in repeated n-grams, by the kernels; `characters` are those of all words end to end."""
        return repeated_native(_spread(chunks, self._rows, self._cut), self._word_lengths, _codes(characters))

    def sentences(self, text: str, chunks: np.ndarray) -> int:
        """Sentences of the lines of a text whose chunks these are."""
        return _sentences(_codes(text), chunks, self._rows)

    def plain_sentences(self, lines: Sequence[str]) -> int:
        """The same for lines whose chunks are not in the table."""
        rules = self._rules
        if rules is None:
            tokenizer = segment.library_tokenizer(self._code)
            return sum(len(tokenizer.span_tokenize(line)) or 1 for line in lines)
        kinds = ([_kind(word, rules) for word in segment.words_of(line, rules)] for line in lines)
        return sum(1 + _sentence_breaks(line, 0)[0] for line in kinds)


_TABLES: dict[tuple[str, tuple[str, ...]], WordTable] = {}


def table_of(code: str, stop_words: tuple[str, ...] = ()) -> WordTable:
    """This process's table of a language, a new one when the last is full."""
    table = _TABLES.get((code, stop_words))
    if table is None or table.is_full:
        table = _TABLES[code, stop_words] = WordTable(code, stop_words)
    return table


def _cut_together(pieces: str, rules: Rules) -> segment.Cut:
    """Several chunks with single blanks between them, cut as one; nothing runs from them into others."""
    return segment.Cut(segment.words_of(pieces, rules), False, "", "")


def forget() -> None:
    """Leave all tables, as a process begins."""
    _TABLES.clear()


def _kind(word: str, rules: Rules) -> int:
    is_mark = all(unicodedata.category(character)[0] == "P" for character in word)
    return _ENDS * (word in rules.sentence_ends) + _IS_MARK * is_mark


def _sentence_breaks(kinds: Sequence[int], ended: int) -> tuple[int, int]:
    """Sentences that begin among words of these kinds, and whether the last has ended; `ended`: the one before had.

    spaCy's sentencizer: a sentence begins at the first word after an end that is no mark.
    """
    breaks = 0
    for kind in kinds:
        if ended and not kind:
            breaks, ended = breaks + 1, 0
        elif kind & _ENDS:
            ended = 1
    return breaks, ended


def _codes(text: str) -> np.ndarray:
    """Code points, uint32 [characters]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _with_room(array: np.ndarray, size: int) -> np.ndarray:
    """The array, or one at least twice as long that begins with it."""
    if size <= len(array):
        return array
    longer = np.zeros((max(size, 2 * len(array)), *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


@native
def _sums(chunks, rows):  # type: ignore[no-untyped-def]
    """Words, written, letters, alphabetic: sums; stop words: all bits."""
    result = np.zeros(5, np.int64)
    for chunk in chunks:
        for column in range(4):
            result[column] += rows[chunk, column]
        result[4] |= rows[chunk, _STOPS]
    return result


@native
def _open_places(chunks, rows):  # type: ignore[no-untyped-def]
    """Places of chunks from which a sequence may run into the next, where one of the two has a sequence."""
    found = []
    for left in range(len(chunks) - 1):
        one, other = rows[chunks[left], _OPEN], rows[chunks[left + 1], _OPEN]
        if one & _MAY_OPEN and other & _MAY_CLOSE and (one | other) & _HAS_SEQUENCE:
            found.append(left)
    return np.array(found, np.int32)


@native
def _spread(chunks, rows, cut):  # type: ignore[no-untyped-def]
    """The numbers of all words in order, int32."""
    total = 0
    for chunk in chunks:
        total += rows[chunk, _WORDS]
    words = np.empty(total, np.int32)
    place = 0
    for chunk in chunks:
        first = rows[chunk, _FIRST]
        for offset in range(rows[chunk, _WORDS]):
            words[place] = cut[first + offset]
            place += 1
    return words


@native
def _is_space(code):  # type: ignore[no-untyped-def]
    """str.isspace of one character."""
    if code < 128:
        return code == 32 or 9 <= code <= 13 or 28 <= code <= 31
    return (
        code == 0x85
        or code == 0xA0
        or code == 0x1680
        or 0x2000 <= code <= 0x200A
        or code == 0x2028
        or code == 0x2029
        or code == 0x202F
        or code == 0x205F
        or code == 0x3000
    )


@native
def _single_blanks(codes, num_chunks):  # type: ignore[no-untyped-def]
    """Whether one blank, and no other white space, parts each chunk from the next, bool [chunks - 1]."""
    result = np.zeros(max(num_chunks - 1, 0), np.bool_)
    place, number = 0, -1
    while place < len(codes):
        start = place
        while place < len(codes) and _is_space(codes[place]):
            place += 1
        if 0 <= number < len(result):
            result[number] = place == start + 1 and codes[start] == 32
        while place < len(codes) and not _is_space(codes[place]):
            place += 1
        number += 1
    return result


@native
def _sentences(codes, chunks, rows):  # type: ignore[no-untyped-def]
    """Sentences of lines parted by \\n. White space other than one blank is a word to spaCy, and no mark."""
    total, ended, number = 1, 0, 0
    place, end = 0, len(codes)
    while place < end:
        run = place
        while run < end and codes[run] != 10 and _is_space(codes[run]):
            run += 1
        if ended and (run - place > 1 or (run > place and codes[place] != 32)):
            total, ended = total + 1, 0
        if run < end and codes[run] == 10:
            total, ended = total + 1, 0
            place = run + 1
            continue
        place = run
        if place == end:
            break
        row = rows[chunks[number]]
        total += row[_BREAKS_1] if ended else row[_BREAKS_0]
        ended = row[_ENDED_1] if ended else row[_ENDED_0]
        number += 1
        for piece in range(row[_PIECES]):
            place += piece > 0  # the blank before it
            while place < end and not _is_space(codes[place]):
                place += 1
    return total

"""Count a text's words through a table: each chunk between white space is split once, and rules add up table rows.

A text becomes the numbers of its chunks, found by their characters. A row of the table holds what the words of a chunk
add to each count, so the rules' numbers are arithmetic on a few arrays, done by kernels. Chunks that are not split
independently share a row: a sequence, which is an exception that spaCy searches for among the words
(`training.data.words.segment`), may reach from one chunk into the next. Texts with an exception that contains a space
are processed word by word, with the same results. A full table is replaced by an empty one, because a crawl has
unlimited chunks; results do not depend on what a table contains.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from datatrove.utils.text import PUNCTUATION_SET

from training.data.words import segment
from training.data.words.chunks import ChunkIndex, code_points, extended, is_space
from training.data.words.native import native
from training.data.words.repetition import repeated_native, repeated_words
from training.data.words.segment import Rules

MAX_CHUNKS = 500_000  # about 220 MB, measured over made chunks of 10 characters
_ENDS, _IS_MARK = 1, 2  # flags of a word: it ends a sentence; it consists of punctuation only
# Columns of a chunk's row
_WORDS, _WRITTEN, _LETTERS, _ALPHABETIC, _STOPS, _OPEN, _FIRST, _PIECES = range(8)
_BREAKS_0, _ENDED_0, _BREAKS_1, _ENDED_1 = range(8, 12)
_COLUMNS = 12
_FACTS = _WRITTEN_WORD, _LENGTH, _IS_ALPHABETIC, _STOP, _KIND = range(5)  # columns of a word's facts
_HAS_SEQUENCE, _MAY_OPEN, _MAY_CLOSE = 1, 2, 4


@dataclass(frozen=True, slots=True)
class WordCounts:
    """Counts for Gopher's quality rules. A word counts as `written` if it is not all punctuation."""

    words: int
    written: int
    letters: int  # characters of the written words
    alphabetic: int  # words with a letter
    stop_words: int  # number of different stop words


class Words:
    """The words of one text, ready to be counted.

    They are numbers of the table's chunks with the text's code points, or a plain list of words.
    """

    def __init__(
        self,
        text: str,
        table: WordTable,
        *,
        chunks: np.ndarray | None,
        codes: np.ndarray | None,
        plain: Sequence[str] = (),
    ) -> None:
        self.text = text
        self._table, self._chunks, self._codes, self._plain = table, chunks, codes, plain

    @cached_property
    def counts(self) -> WordCounts:
        """Return the counts over all words of the text."""
        return self._table.counts(self._plain) if self._chunks is None else self._table.sums(self._chunks)

    @cached_property
    def repeated(self) -> list[int]:
        """Return the number of characters of the text in repeated n-grams.

        They are counted as by `training.data.words.repetition.repeated`.
        """
        if self._chunks is None:
            return repeated_words(self._plain)
        assert self._codes is not None, "chunks and codes are given together"
        return self._table.repeated(self._chunks, self._codes)

    @property
    def has_stop_words(self) -> bool:
        """Whether the table has a list of stop words for the text's language."""
        return self._table.has_stop_words

    def sentences(self, lines: Sequence[str]) -> int:
        """Number of sentences in the text's lines, counted per line; at least one each. Lines contain no line ends."""
        if self._chunks is None:
            return self._table.plain_sentences(lines)
        return self._table.sentences("\n".join(lines), self._chunks) if lines else 0


class WordTable:
    """All chunks of one language seen so far, with their words and counts."""

    def __init__(self, code: str, stop_words: Sequence[str] = ()) -> None:
        self._rules: Rules = segment.load_rules(code)
        self._stop_words = {word: 1 << place for place, word in enumerate(stop_words)}
        self._word_numbers: dict[str, int] = {}
        self._word_facts = np.zeros((1024, len(_FACTS)), np.int64)
        self._word_lengths = np.zeros(1024, np.int32)
        self._new_facts: list[tuple[int, ...]] = []  # facts of new words, not yet in `_word_facts`
        self._index = ChunkIndex()
        self._together: dict[str, int] = {}  # numbers of chunks that are cut together
        self._rows = np.zeros((1024, _COLUMNS), np.int64)
        self._cut = np.zeros(4096, np.int32)  # the words of every chunk, end to end
        self._num_cut = 0
        self._firsts: list[str] = []  # `first` of every chunk, see `segment.Cut`
        self._lasts: list[str] = []

    @property
    def has_stop_words(self) -> bool:
        """Whether the table was given stop words."""
        return bool(self._stop_words)

    @property
    def is_full(self) -> bool:
        """Whether to replace the table by an empty one."""
        return self._index.size > MAX_CHUNKS

    def words(self, text: str) -> Words:
        """The words of a text."""
        if self._has_spaced(text):
            plain = [bare for word in segment.words_of(text, self._rules) if (bare := word.strip())]
            return Words(text, self, chunks=None, codes=None, plain=plain)
        codes = code_points(text)
        return Words(text, self, chunks=self._chunks_of(text, codes), codes=codes)

    def _has_spaced(self, text: str) -> bool:
        return self._rules.spaced is not None and self._rules.spaced.search(text) is not None

    # Learning

    def _chunks_of(self, text: str, codes: np.ndarray) -> np.ndarray:
        """Return the row number of each chunk, int32 [chunks]; chunks that are cut together count as one."""
        chunks, bounds = self._index.learned(text, codes, self._learn)
        places = [place for place in _open_places(chunks, self._rows).tolist() if self._joins(chunks, place)]
        return self._joined(text, codes, chunks, bounds, places) if places else chunks

    def _joins(self, chunks: np.ndarray, left: int) -> bool:
        """Whether an exception of several words may reach from the chunk at `left` into the next chunk."""
        return (self._lasts[chunks[left]], self._firsts[chunks[left + 1]]) in self._rules.joints

    def _joined(
        self, text: str, codes: np.ndarray, chunks: np.ndarray, bounds: np.ndarray, places: list[int]
    ) -> np.ndarray:
        """Merge chunks through which a sequence at `places` may reach, with the spaces between; return the rows."""
        gaps = _single_blanks(codes, len(chunks))
        result: list[int] = []
        done = 0
        for place in places:
            if place < done or not gaps[place]:
                continue
            first, last = place, place + 1
            while first > done and gaps[first - 1] and self._joins(chunks, first - 1):
                first -= 1
            while last < len(gaps) and gaps[last] and self._joins(chunks, last):
                last += 1
            result += chunks[done:first].tolist()
            result.append(self._number_together(text[bounds[first, 0] : bounds[last, 1]]))
            done = last + 1
        return np.array(result + chunks[done:].tolist(), np.int32)

    def _number_together(self, pieces: str) -> int:
        if pieces not in self._together:
            self._together |= self._learn([pieces])
        return self._together[pieces]

    def _learn(self, chunks: list[str]) -> dict[str, int]:
        """Add rows for new chunks and return their numbers. `ChunkIndex` never finds a chunk that contains spaces."""
        first, num_words = self._index.size, len(self._word_numbers)
        cut, shapes = [], []
        for chunk in chunks:
            words, is_open = self._cut_chunk(chunk)
            cut += [self._word_number(word) for word in words]
            shapes.append((len(words), is_open, 1 + chunk.count(" ")))
        self._index.add(["" if " " in chunk else chunk for chunk in chunks])
        self._word_facts = extended(self._word_facts, num_words, self._new_facts)
        self._word_lengths = extended(self._word_lengths, num_words, [fact[_LENGTH] for fact in self._new_facts])
        self._new_facts.clear()
        self._cut = extended(self._cut, self._num_cut, cut)
        self._rows = extended(self._rows, first, np.zeros((len(chunks), _COLUMNS), np.int64))
        _fill(self._rows, first, np.array(shapes, np.int64), self._cut, self._num_cut, self._word_facts)
        self._num_cut += len(cut)
        return dict(zip(chunks, range(first, first + len(chunks)), strict=True))

    def _cut_chunk(self, chunk: str) -> tuple[Sequence[str], int]:
        """Return a chunk's words, and flags about exceptions of several words.

        The flags (`_OPEN`) say whether the chunk contains, may begin or may end such a sequence.
        """
        found = segment.cut(chunk, self._rules) if " " not in chunk else _cut_together(chunk, self._rules)
        self._firsts.append(found.first)
        self._lasts.append(found.last)
        is_open = _HAS_SEQUENCE * found.has_sequence + _MAY_OPEN * bool(found.last) + _MAY_CLOSE * bool(found.first)
        return found.words, is_open

    def _word_number(self, word: str) -> int:
        number = self._word_numbers.get(word)
        if number is None:
            number = self._word_numbers[word] = len(self._word_numbers)
            self._new_facts.append(self._facts(word))
        return number

    def _facts(self, word: str) -> tuple[int, int, int, int, int]:
        """Return the columns of `_word_facts`: what a word adds to each count, and its role in a sentence."""
        return (
            not PUNCTUATION_SET.issuperset(word),
            len(word),
            word.isalpha() or any(map(str.isalpha, word)),
            self._stop_words.get(word, 0),
            0 if word.isalnum() and word not in self._rules.sentence_ends else _kind(word, self._rules),
        )

    # Results

    def sums(self, chunks: np.ndarray) -> WordCounts:
        """Return the summed counts over the words of these chunks, from the table."""
        words, written, letters, alphabetic, stops = _sums(chunks, self._rows).tolist()
        return WordCounts(words, written, letters, alphabetic, stops.bit_count())

    def counts(self, words: Sequence[str]) -> WordCounts:
        """Return the counts over words that are given as a list, because they are not in the table."""
        written = [word for word in words if not PUNCTUATION_SET.issuperset(word)]
        alphabetic = sum(any(map(str.isalpha, word)) for word in words)
        stop_words = len(self._stop_words.keys() & set(words))
        return WordCounts(len(words), len(written), sum(map(len, written)), alphabetic, stop_words)

    def repeated(self, chunks: np.ndarray, codes: np.ndarray) -> list[int]:
        """Characters in repeated n-grams of the text with these chunks and code points, computed by the kernels."""
        return repeated_native(_spread(chunks, self._rows, self._cut), self._word_lengths, _written(codes))

    def sentences(self, text: str, chunks: np.ndarray) -> int:
        """Number of sentences in the lines of a text that has these chunks."""
        return _sentences(code_points(text), chunks, self._rows)

    def plain_sentences(self, lines: Sequence[str]) -> int:
        """Number of sentences in lines whose chunks are not in the table."""
        rules = self._rules
        kinds = ([_kind(word, rules) for word in segment.words_of(line, rules)] for line in lines)
        return sum(1 + _sentence_breaks(line, 0)[0] for line in kinds)


_TABLES: dict[tuple[str, tuple[str, ...]], WordTable] = {}


def table_of(code: str, stop_words: tuple[str, ...] = ()) -> WordTable:
    """Return this process's table of a language, replaced by an empty one when full."""
    table = _TABLES.get((code, stop_words))
    if table is None or table.is_full:
        table = _TABLES[code, stop_words] = WordTable(code, stop_words)
    return table


def _cut_together(pieces: str, rules: Rules) -> segment.Cut:
    """Cut several chunks, joined by single spaces, as one. No exception of several words may reach beyond them."""
    return segment.Cut(segment.words_of(pieces, rules), False, "", "")


def forget() -> None:
    """Remove all tables of this process, so that the next text starts with empty ones."""
    _TABLES.clear()


def _kind(word: str, rules: Rules) -> int:
    is_mark = all(unicodedata.category(character)[0] == "P" for character in word)
    return _ENDS * (word in rules.sentence_ends) + _IS_MARK * is_mark


def _sentence_breaks(kinds: Sequence[int], ended: int) -> tuple[int, int]:
    """Return how many sentences begin among words of these kinds, and whether the last sentence has ended.

    `ended` is whether the sentence before these words had ended. As in spaCy's sentencizer, a sentence begins at the
    first word after a sentence end that is not punctuation.
    """
    breaks = 0
    for kind in kinds:
        if ended and not kind:
            breaks, ended = breaks + 1, 0
        elif kind & _ENDS:
            ended = 1
    return breaks, ended


@native
def _written(codes):
    """Return the code points of a text without its white space."""
    result = np.empty_like(codes)
    count = 0
    for code in codes:
        if not is_space(code):
            result[count] = code
            count += 1
    return result[:count].copy()


@native
def _fill(rows, first, shapes, cut, start, facts):
    """Compute the table's rows of new chunks, from row `first` on: what the words of each chunk add to each count.

    `shapes` has a row for each new chunk: its number of words, its `_OPEN` flags and its number of pieces. `cut` has
    the numbers of their words, end to end, from index `start` on.
    """
    for number in range(len(shapes)):
        row = rows[first + number]
        row[_WORDS], row[_OPEN], row[_PIECES] = shapes[number, 0], shapes[number, 1], shapes[number, 2]
        row[_FIRST] = start
        ended_0, ended_1 = 0, 1
        for word in cut[start : start + row[_WORDS]]:
            row[_WRITTEN] += facts[word, _WRITTEN_WORD]
            row[_LETTERS] += facts[word, _WRITTEN_WORD] * facts[word, _LENGTH]
            row[_ALPHABETIC] += facts[word, _IS_ALPHABETIC]
            row[_STOPS] |= facts[word, _STOP]
            kind = facts[word, _KIND]
            row[_BREAKS_0] += ended_0 and kind == 0
            row[_BREAKS_1] += ended_1 and kind == 0
            ended_0 = int(kind != 0 and (ended_0 != 0 or kind & _ENDS != 0))
            ended_1 = int(kind != 0 and (ended_1 != 0 or kind & _ENDS != 0))
        row[_ENDED_0], row[_ENDED_1] = ended_0, ended_1
        start += row[_WORDS]


@native
def _sums(chunks, rows):
    """Return sums of words, written words, letters and alphabetic words, and the stop words as bits."""
    result = np.zeros(5, np.int64)
    for chunk in chunks:
        for column in range(4):
            result[column] += rows[chunk, column]
        result[4] |= rows[chunk, _STOPS]
    return result


@native
def _open_places(chunks, rows):
    """Return the indices of chunks from which an exception of several words may reach into the next chunk.

    One of the two chunks must contain a sequence.
    """
    found = []
    for left in range(len(chunks) - 1):
        one, other = rows[chunks[left], _OPEN], rows[chunks[left + 1], _OPEN]
        if one & _MAY_OPEN and other & _MAY_CLOSE and (one | other) & _HAS_SEQUENCE:
            found.append(left)
    return np.array(found, np.int32)


@native
def _spread(chunks, rows, cut):
    """Return the numbers of all words in order, int32."""
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
def _single_blanks(codes, num_chunks):
    """Whether exactly one space, and no other white space, separates each chunk from the next, bool [chunks - 1]."""
    result = np.zeros(max(num_chunks - 1, 0), np.bool_)
    place, number = 0, -1
    while place < len(codes):
        start = place
        while place < len(codes) and is_space(codes[place]):
            place += 1
        if 0 <= number < len(result):
            result[number] = place == start + 1 and codes[start] == 32
        while place < len(codes) and not is_space(codes[place]):
            place += 1
        number += 1
    return result


@native
def _sentences(codes, chunks, rows):
    r"""Number of sentences in newline-separated lines.

    To spaCy, white space other than a single space is a word that is not punctuation.
    """
    total, ended, number = 1, 0, 0
    place, end = 0, len(codes)
    while place < end:
        run = place
        while run < end and codes[run] != 10 and is_space(codes[run]):
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
            place += piece > 0  # skip the space before the piece
            while place < end and not is_space(codes[place]):
                place += 1
    return total

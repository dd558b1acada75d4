"""Which exam items stand in a text: the question with its answer, not a phrase that both happen to use.

The rule. A text *has* an item when it shares with it

- a run of n words that reaches into the answer (an n-gram of question followed by answer with at least one answer
  word), or
- runs of n words of the question that cover at least half of it, and the whole answer within 50 words of them; behind
  a question of fewer than n words, within the 20 that decontamination allows, so that what was removed is not found
  again.

n is the suite's `ngram_words`, or the number of words there are where an item has fewer, but at least 5: an item with
less text, or without a run of its own, cannot be looked for and is counted as *unchecked*. A run that occurs in two
items with different text identifies neither (a common frame: "which of the following is the best explanation of") and
is not used. Passages are not looked for: an encyclopedia page that a reading test quotes gives no answer away.

Source: the distinction of question, answer and passage is that of decon (github.com/allenai/decon); its IDF weighting
and its per-part thresholds are left out. Words are those of training.data.words.ngrams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from evaluation.exams import ExamItem
from training.data.exams.benchmarks import bare_question
from training.data.exams.decontaminate import ANSWER_WINDOW
from training.data.exams.grams import GramTable, Occurrences, occurrences
from training.data.exams.settings import BenchmarkRecipe
from training.data.words.ngrams import Hashes, ngram_hashes, word_hashes, words_with_spans

MIN_NGRAM_WORDS = 5
MIN_QUESTION_SHARE = 0.5
ANSWER_WINDOW_WORDS = 50
SHOWN_CHARACTERS = 400

How = Literal["ngram_with_answer", "question_and_answer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """One item found in one text. `start` and `end` are character offsets; `words` is the longest run in common."""

    item: int
    how: How
    start: int
    end: int
    words: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Item:
    question: Hashes
    answers: tuple[Hashes, ...]

    @property
    def sequences(self) -> list[Hashes]:
        """Question followed by each accepted answer."""
        return [np.concatenate([self.question, answer]) for answer in self.answers if len(answer)]

    @property
    def key(self) -> bytes:
        """Equal for items with the same words."""
        return b"|".join([self.question.tobytes(), *sorted(answer.tobytes() for answer in self.answers)])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grams:
    """The identifying runs of one length: a row each, with its item and whether it reaches into the answer."""

    table: GramTable
    items: npt.NDArray[np.int64]
    reaches_answer: npt.NDArray[np.bool_]


class ExamIndex:
    """The identifying n-grams of one suite."""

    def __init__(self, benchmark: BenchmarkRecipe, items: Sequence[ExamItem]) -> None:
        self.benchmark = benchmark
        self.ids = [item.id for item in items]
        self._items = [_hashed(item) for item in items]
        self._twins = _twins(self._items)
        self._grams = _identifying(self._items, self._twins, benchmark.ngram_words)
        seen = {int(i) for grams in self._grams for i in grams.items}
        self.unchecked = [i for i in range(len(items)) if self._twins[i] not in seen]

    @property
    def tables(self) -> list[GramTable]:
        """What texts are scanned with."""
        return [grams.table for grams in self._grams]

    def matches(self, text: str) -> list[Match]:
        """The items that `text` has, by item number; see the module for the rule."""
        hashes = word_hashes(text)
        return self.judged(text, hashes, occurrences(hashes, self.tables))

    def judged(self, text: str, hashes: Hashes, found_runs: Occurrences) -> list[Match]:
        """The items that a text has, from its words' hashes and where the runs of `tables` occur in it."""
        if not len(found_runs):
            return []
        found = []
        _, spans = words_with_spans(text)
        by_item: dict[int, list[tuple[int, int, bool]]] = {}
        for number, position, row in found_runs.tolist():
            grams = self._grams[number]
            hit = position, grams.table.num_words, bool(grams.reaches_answer[row])
            by_item.setdefault(int(grams.items[row]), []).append(hit)
        for item, mine in by_item.items():
            match = self._judge(item, mine, hashes, spans, text)
            if match is not None:
                found.extend(self._for_twins(match))
        return sorted(found, key=lambda match: match.item)

    def _judge(
        self, number: int, hits: list[tuple[int, int, bool]], hashes: Hashes, spans: npt.NDArray[np.int64], text: str
    ) -> Match | None:
        item = self._items[number]
        covered = np.zeros(len(hashes), dtype=bool)
        for position, length, _ in hits:
            covered[position : position + length] = True
        how: How
        if any(reaches for _, _, reaches in hits):
            how = "ngram_with_answer"
        elif covered.sum() >= MIN_QUESTION_SHARE * len(item.question) and self._is_answered(item, hashes, covered):
            how = "question_and_answer"
        else:
            return None
        first, last = _longest_run(covered)
        start, end = int(spans[first, 0]), int(spans[last, 1])
        words = max(_longest_common_run(hashes, sequence) for sequence in [item.question, *item.sequences])
        return Match(item=number, how=how, start=start, end=end, words=words, text=text[start:end][:SHOWN_CHARACTERS])

    def _is_answered(self, item: _Item, hashes: Hashes, covered: npt.NDArray[np.bool_]) -> bool:
        """Whether an accepted answer stands near the matched words of the question, and outside of them."""
        positions = np.flatnonzero(covered)
        is_short = len(item.question) < self.benchmark.ngram_words
        before, behind = (0, ANSWER_WINDOW) if is_short else (ANSWER_WINDOW_WORDS, ANSWER_WINDOW_WORDS)
        for answer in item.answers:
            for at in _occurrences(answer, hashes):
                distances = at - positions  # negative: the answer comes first
                is_near = bool(((distances >= -before) & (distances <= behind)).any())
                if is_near and not covered[at : at + len(answer)].any():
                    return True
        return False

    def _for_twins(self, match: Match) -> list[Match]:
        twins = [i for i, first in enumerate(self._twins) if first == match.item]
        return [
            Match(item=i, how=match.how, start=match.start, end=match.end, words=match.words, text=match.text)
            for i in twins
        ]


def _hashed(item: ExamItem) -> _Item:
    accepted: Iterable[str] = (item.choices[item.gold],) if item.choices else item.answers
    return _Item(
        question=word_hashes(bare_question(item.question)), answers=tuple(word_hashes(answer) for answer in accepted)
    )


def _twins(items: Sequence[_Item]) -> list[int]:
    """For each item the first one with the same words; most often itself."""
    first: dict[bytes, int] = {}
    return [first.setdefault(item.key, i) for i, item in enumerate(items)]


def _identifying(items: Sequence[_Item], twins: Sequence[int], ngram_words: int) -> list[_Grams]:
    owners: dict[int, dict[int, int]] = {}  # length → hash → item, -1 where several have it
    reaching: dict[int, set[int]] = {}
    for number, item in enumerate(items):
        if twins[number] != number:
            continue
        for length, runs, reaches in _runs(item, ngram_words):
            table = owners.setdefault(length, {})
            for run, reaches_answer in zip(runs.tolist(), reaches, strict=True):
                if table.setdefault(run, number) != number:
                    table[run] = -1
                if reaches_answer:
                    reaching.setdefault(length, set()).add(run)
    result = []
    for length, table in sorted(owners.items()):
        kept = sorted((run, owner) for run, owner in table.items() if owner >= 0)
        hashes = np.array([run for run, _ in kept], dtype=np.uint64)
        numbers = np.array([owner for _, owner in kept], dtype=np.int64)
        flags = np.array([run in reaching.get(length, ()) for run, _ in kept], dtype=bool)
        result.append(_Grams(table=GramTable.of(length, hashes), items=numbers, reaches_answer=flags))
    return result


def _runs(item: _Item, ngram_words: int) -> Iterator[tuple[int, Hashes, list[bool]]]:
    """(length, runs, whether each reaches into the answer) for the question alone and for question with answer."""
    for sequence in [item.question, *item.sequences]:
        length = min(ngram_words, len(sequence))
        if length >= MIN_NGRAM_WORDS:
            runs = ngram_hashes(sequence, length)
            yield length, runs, [position + length > len(item.question) for position in range(len(runs))]


def _occurrences(phrase: Hashes, hashes: Hashes) -> list[int]:
    length = len(phrase)
    if not length or length > len(hashes):
        return []
    starts = np.flatnonzero(hashes[: len(hashes) - length + 1] == phrase[0])
    return [int(at) for at in starts if (hashes[at : at + length] == phrase).all()]


def _longest_run(covered: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """First and last position of the longest run of True; there is at least one."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], covered.astype(np.int8), [0]])))
    starts, ends = edges[::2], edges[1::2]
    best = int(np.argmax(ends - starts))
    return int(starts[best]), int(ends[best]) - 1


def _longest_common_run(left: Hashes, right: Hashes) -> int:
    """Length in words of the longest run that both have. Time and memory len(left) · len(right) / row."""
    best = 0
    previous = np.zeros(len(left) + 1, dtype=np.int32)
    for word in right:
        current = np.zeros_like(previous)
        current[1:] = np.where(left == word, previous[:-1] + 1, 0)
        best = max(best, int(current.max(initial=0)))
        previous = current
    return best

"""The rule that decides whether a text holds an item of an exam, for removing, for gating and for reporting.

Words are those of `folding`, weighted by how rare they are (`rarity`). A text is
scanned for seeds: runs of SEED_WORDS words of an item. If the seeds in one place weigh enough, the item is aligned with
the text. The item's score is the share of its weight that occurs there in order. Changed, added and missing words cost
their weight and hide nothing else.

A high score is not enough, because many questions of a benchmark may share their wording. The text must also have at
least half of the item's numbers, half of the weight of its other words, and most of its own weight. A word's own weight
is its weight divided by the number of questions of the benchmark that share a run of words with it.

A text holds

- an *item*, when the question's share is at least MIN_SHARE and an accepted answer is within ANSWER_REACH words of it,
  or when the share of question and long answer together is at least MIN_SHARE;
- a *question*, when the question's share is at least MIN_SHARE and no answer is near it. An item without an answer is
  found by its question.

Pieces of an item with at most PIECES_REACH words between them add up, in order, if each has words enough that no other
question shares, or if the whole item is there and one piece, of which no other question has all, has much of its own
weight. Short numbers between its words are counters of a list, which runs pass over. A template, which is a long run of
words that many questions of a benchmark share, weighs nothing. The number of texts that hold an item changes nothing: a
leak that was copied ten thousand times is a leak.

A short question, or one with too little own weight, is `joined` to its answers if both together have enough own weight:
it is found when an answer is close after it (at most WEAK_ANSWER_REACH words and those of the item's choices, which may
stand there in any order) and the question's share is at least MIN_SHORT_SHARE. Without its answer it is not found.

Other such questions are found word for word, templates included, with their answer close after them, or with their
passage right before them. They are also found with some words changed if nearly all words that no other question shares
and all numbers are there. Those of little else than numbers have no such words. A question of fewer than MIN_WORDS
words is found only together with its answer. Such items are `weak`: if they are not found, a text may still hold them
with a word changed. Items that are shorter even with their answer are not searched for. Passages are not searched for
either, because a page that an exam quotes gives no answer away.

Where punctuation inside words was deleted (`state-of-the-art`, `1,000`), a text has other words than the item. So an
item with such words has its question a second time, and its answers too, with these signs left out.

A text in a script without spaces has short, common words only, so an item may have no rare run of words. It is then
found by all its runs.

Not found: paraphrases, translations, an item whose numbers or names were exchanged, other words that are glued together
or words cut into letters, and an item whose pieces are too small, too far apart or in another order.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, pairwise
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from training.data.documents import utf8_of
from training.data.exams.search import item_loops
from training.data.exams.search.folding import (
    FILLERS,
    end_of_character,
    folded_hash,
    folded_hashes,
    folded_words,
    readable,
    word_spans,
)
from training.data.exams.search.grams import GramTable, around_counters, is_counter
from training.data.exams.search.rarity import is_number, weight
from training.data.words.ngrams import Hashes, ngram_hashes

SEED_WORDS: Final = 4
MIN_SHARE: Final = 0.7
MIN_TRIED_SHARE: Final = 0.5  # of a part; a text with less of it does not hold its item
MIN_SEEDED: Final = 0.2  # share of a part's weight that nearby seeds must have before it is aligned
GAP: Final = 0.25  # cost of an additional word between an item's words, as a share of their mean weight
COUNTER_COST: Final = 0.2  # of a short number, as a share of GAP: a list counts its lines
FAR: Final = 1.0  # most that all words between two pieces of an item cost, as a share of the mean weight
PIECES_REACH: Final = 400  # words between two pieces
MIN_PIECE_OWN: Final = 0.15  # of an item's weight, in words that no other question shares; less is only its form
MAIN_WORDS: Final = 0.35  # of an item's words, in its main piece
MAIN_OWN: Final = 0.45  # of an item's own weight, in its main piece
MIN_SEEDED_RUNS: Final = 0.8  # of a question's runs of words; of one with fewer, a piece may have no seed
MIN_WORDS: Final = 5
STRONG_WORDS: Final = 8
STRONG_WEIGHT: Final = 25.0
MOST_NUMBERS: Final = 2 / 3  # of a question's weight; tables and versions have the numbers of one with more
MIN_SHARE_OF_BOTH: Final = 0.5  # of the numbers, and of the other words
MIN_OWN_SHARE: Final = 0.7
MIN_OWN_WEIGHT: Final = 16.0  # in nats: how improbable it is that the text has these words by chance
MIN_SHORT_SHARE: Final = 0.85  # of a short question with its answer
WORD_FOR_WORD: Final = 0.95
MIN_NAME: Final = 8.0  # weight of a name, which tells a question from others of the same form
LONG_ANSWER_WORDS: Final = 8
ANSWER_REACH: Final = 120  # words behind a question within which its answer may begin
ANSWER_BEFORE: Final = 50
WEAK_ANSWER_REACH: Final = 20
MIN_ANSWER_SHARE: Final = 0.6  # of a long answer
MIN_ASKED: Final = 0.3  # of a question next to its long answer
TEMPLATE_WORDS: Final = 10  # in a row that many questions of a benchmark share, and that are none of an item's own
TEMPLATE_SHARE: Final = 0.01  # of the benchmark's questions, and at least TEMPLATE_QUESTIONS
TEMPLATE_QUESTIONS: Final = 5
MAX_OWNERS: Final = 64  # parts that have a seed; one with more starts no search, unless a part lacks better seeds
MIN_SEEDS: Final = 3
MIN_SEED_WEIGHT: Final = 6.0
PIECE: Final = 500  # characters of a text of which the words are counted together
MIN_HELD: Final = 2 * MIN_SEEDED  # share of a part's weight that its seeds must hold

QUESTION, ANSWER, WHOLE = 0, 1, 2
INSIDE_WORDS: Final = re.compile(r"(?<=\w)[^\w\s]+(?=\w)")

Kind = Literal["item", "question"]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemText:
    """The texts of an exam item that are searched for: its question, all accepted answers, and its passage if any.

    Its choices are not searched for; the answer of a short question may stand behind them.
    """

    benchmark: str
    id: str
    question: str
    answers: tuple[str, ...] = ()
    passage: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundItem:
    """An item found in a text.

    `share` is the share of the item's weight. `start` and `end` are character offsets, and `words` is the number of
    words between them. `part` says which part of the item was found: `question` or `question+answer`.
    """

    item: int
    kind: Kind
    part: str
    share: float
    start: int
    end: int
    words: int


def strongest_first(found: FoundItem) -> tuple[bool, int, int]:
    """Return a sort key that puts the strongest matches first.

    Questions with answers come before questions alone, and long ones before short ones.
    """
    return found.kind == "question", -found.words, found.item


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemIndex:
    """The parts of items with which texts are aligned, and the seeds by which they are found.

    All fields are flat arrays. Part p belongs to item `items[p]` and has the kind `kinds[p]`; its words and weights are
    entries `begins[p]` to `begins[p + 1]`. Seed s, whose hash is `seeds[s]`, occurs in the parts `owners` at the words
    `offsets`, both from entry `seed_begins[s]` to `seed_begins[s + 1]`. Answer a belongs to item `answer_items[a]` and
    has its words in the same way, and so has each passage. An answer of a short question of item i may begin
    `reaches[i]` words behind it.
    """

    items: Integers
    kinds: Integers
    begins: Integers
    words: Hashes
    weights: Floats
    own: Floats
    numbers: npt.NDArray[np.bool_]
    seeds: Hashes
    seed_begins: Integers
    owners: Integers
    offsets: Integers
    answer_items: Integers
    answer_begins: Integers
    answer_words: Hashes
    answer_weights: Floats
    passage_items: Integers
    passage_begins: Integers
    passage_words: Hashes
    reaches: Integers
    joined: Integers
    weak: Integers
    unsearchable: Integers

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the index's arrays by name, to be stored; `ItemIndex(**arrays)` makes the index again."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


# Building


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    item: int
    kind: int
    words: Hashes
    weights: Floats
    own: Floats
    numbers: npt.NDArray[np.bool_]


def build_items(items: Sequence[ItemText]) -> ItemIndex:
    """Return the index over items of one or several benchmarks; an item's number is its position in `items`."""
    questions = [_spellings(item.question) for item in items]
    answers = [[words for text in item.answers for words in _spellings(text) if words] for item in items]
    shared = _sharing(items, questions)
    parts: list[_Part] = []
    joined_items, weak, unsearchable = [], [], []
    for number, ((question, *joined), accepted) in enumerate(zip(questions, answers, strict=True)):
        whole = [*question, *(accepted[0] if accepted else ())]
        if len(whole) < MIN_WORDS:
            unsearchable.append(number)
            continue
        made = _part(number, QUESTION, question, shared[items[number].benchmark])
        is_short = np.count_nonzero(made.weights) < STRONG_WORDS or made.own.sum() < STRONG_WEIGHT
        is_of_numbers = made.weights[made.numbers].sum() > MOST_NUMBERS * made.weights.sum()
        is_joined = is_short and not is_of_numbers and _joins(made, accepted)
        if is_joined:
            joined_items.append(number)
        is_weak = (is_short or is_of_numbers) and not is_joined
        if is_weak:
            weak.append(number)
        if len(question) < MIN_WORDS:
            parts.append(_part(number, WHOLE, whole))
        else:  # word for word is with the words of a template
            others = (words for words in (question, *joined) if len(words) >= MIN_WORDS)
            known = shared[items[number].benchmark]
            parts += (_part(number, QUESTION, words, known, has_template=bool(is_weak)) for words in others)
        if not is_weak:
            long = (words for words in accepted if len(words) >= LONG_ANSWER_WORDS)
            parts += (_part(number, ANSWER, words) for words in long)
    reaches = (WEAK_ANSWER_REACH + sum(len(folded_words(choice)) for choice in item.choices) for item in items)
    found_how = {"joined": joined_items, "weak": weak, "unsearchable": unsearchable}
    return _indexed(
        parts,
        answers,
        [folded_words(item.passage) for item in items],
        reaches=_integers(reaches),
        **{name: _integers(numbers) for name, numbers in found_how.items()},
    )


def _joins(question: _Part, answers: Sequence[Sequence[str]]) -> bool:
    """Whether a short question and any of its answers have enough own weight together, also after edits."""
    of_its_own = int(np.count_nonzero(question.weights))  # none of them is a template's
    if of_its_own < MIN_WORDS or not answers:
        return False
    words, weight_of_answer = min((len(words), sum(map(weight, words))) for words in answers)
    left = MIN_OWN_SHARE * float(question.own.sum()) + weight_of_answer
    return of_its_own + words >= STRONG_WORDS and left >= MIN_OWN_WEIGHT


def _spellings(text: str) -> list[list[str]]:
    """Return the words of a text, and then those of its other spellings, if they differ.

    Where signs stand inside of words, the text is also spelled without these signs. Two small letters of Greek look
    like other Latin letters than their capitals, so Greek is also spelled in capitals.
    """
    words = folded_words(text)
    others = folded_words(INSIDE_WORDS.sub("", text)), folded_words(text.upper())
    return [words, *(other for other in others if other != words)]


def _hashed(words: Sequence[str]) -> Hashes:
    return np.array([folded_hash(word) for word in words], np.uint64)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shared:
    """In how many questions of a benchmark each run of SEED_WORDS words occurs, by its hash, if in several.

    Words of templates are in at least `template` questions.
    """

    times: Mapping[int, int] = field(default_factory=dict)
    template: float = math.inf


def _sharing(items: Sequence[ItemText], questions: Sequence[list[list[str]]]) -> dict[str, _Shared]:
    """Return, by benchmark, which runs of words its questions share. An item that is there twice is one question."""
    same = {(item.benchmark, item.question, item.answers): place for place, item in enumerate(items)}
    asked = Counter(name for name, *_ in same)
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for item, spellings in ((items[place], questions[place]) for place in same.values()):
        runs = (ngram_hashes(_hashed(words), SEED_WORDS).tolist() for words in spellings)
        counts[item.benchmark].update(set(chain.from_iterable(runs)))
    return {
        name: _Shared(
            times={run: times for run, times in some.items() if times > 1},
            template=max(TEMPLATE_QUESTIONS, TEMPLATE_SHARE * asked[name]),
        )
        for name, some in counts.items()
    }


def _part(
    item: int, kind: int, words: Sequence[str], shared: _Shared = _Shared(), *, has_template: bool = False
) -> _Part:
    """Return a part of an item. Words of a template weigh nothing, unless the part has no others or `has_template`."""
    hashes, weights = _hashed(words), np.array([weight(word) for word in words])
    owners = np.ones(len(words))
    for place, run in enumerate(ngram_hashes(hashes, SEED_WORDS).tolist()):
        here = slice(place, place + SEED_WORDS)
        owners[here] = np.maximum(owners[here], shared.times.get(run, 1))
    numbers = np.array([is_number(word) for word in words], np.bool_)
    template = _long_runs(owners >= shared.template, TEMPLATE_WORDS)
    if not (has_template or template.all()):
        weights, numbers = weights * ~template, numbers & ~template
    return _Part(item=item, kind=kind, words=hashes, weights=weights, own=weights / owners, numbers=numbers)


def _long_runs(flags: npt.NDArray[np.bool_], least: int) -> npt.NDArray[np.bool_]:
    """Return the flags that are in a row with at least `least` others."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    kept = np.zeros(len(flags), np.bool_)
    for first, end in edges.reshape(-1, 2).tolist():
        kept[first:end] = end - first >= least
    return kept


def _indexed(
    parts: Sequence[_Part],
    answers: Sequence[Sequence[Sequence[str]]],
    passages: Sequence[Sequence[str]],
    **of_items: Integers,
) -> ItemIndex:
    seeds, owners, offsets = _seeds(parts)
    firsts = np.flatnonzero(np.append(True, seeds[1:] != seeds[:-1])) if len(seeds) else np.empty(0, np.int64)
    flat = [(item, words) for item, some in enumerate(answers) for words in some]
    quoted = [(item, words) for item, words in enumerate(passages) if words]
    return ItemIndex(
        items=_integers(part.item for part in parts),
        kinds=_integers(part.kind for part in parts),
        begins=_begins(part.words for part in parts),
        words=_joined([part.words for part in parts], np.uint64),
        weights=_joined([part.weights for part in parts], np.float64),
        own=_joined([part.own for part in parts], np.float64),
        numbers=_joined([part.numbers for part in parts], np.bool_),
        seeds=seeds[firsts],
        seed_begins=np.append(firsts, len(seeds)),
        owners=owners,
        offsets=offsets,
        answer_items=_integers(item for item, _ in flat),
        answer_begins=_begins(words for _, words in flat),
        answer_words=_joined([_hashed(words) for _, words in flat], np.uint64),
        answer_weights=_joined([np.array([weight(word) for word in words]) for _, words in flat], np.float64),
        passage_items=_integers(item for item, _ in quoted),
        passage_begins=_begins(words for _, words in quoted),
        passage_words=_joined([_hashed(words) for _, words in quoted], np.uint64),
        **of_items,
    )


def _integers(values: Iterable[int]) -> Integers:
    return np.fromiter(values, np.int64)


def _begins(sequences: Iterable[Sequence[Any] | Hashes]) -> Integers:
    return np.cumsum(np.fromiter((0, *(len(one) for one in sequences)), np.int64))


def _joined(arrays: Sequence[npt.NDArray[Any]], kind: Any) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, kind), *arrays])


def _seeds(parts: Sequence[_Part]) -> tuple[Hashes, Integers, Integers]:
    """Return hash, part and offset of every seed, sorted by hash.

    A seed that many parts have, or that consists of common words, is left out unless its part has too few better seeds.
    If all seeds that are left hold so little of a part that it could not be found after edits, those of common words
    stay.
    """
    runs = [ngram_hashes(part.words, SEED_WORDS) for part in parts]
    hashes = _joined(runs, np.uint64)
    owners = np.repeat(np.arange(len(parts)), [len(run) for run in runs])
    offsets = np.concatenate([np.empty(0, np.int64), *(np.arange(len(run)) for run in runs)])
    weights = _joined([_run_weights(part.weights) for part in parts], np.float64)
    _, places, numbers = np.unique(hashes, return_inverse=True, return_counts=True)
    times = numbers[places]
    cost = times + np.where(weights < MIN_SEED_WEIGHT, MAX_OWNERS, 0)
    order = np.lexsort((cost, owners))
    rank = np.arange(len(order)) - np.searchsorted(owners[order], owners[order])  # of a seed in its part
    kept = np.zeros(len(hashes), np.bool_)
    kept[order] = (cost[order] <= MAX_OWNERS) | (rank < MIN_SEEDS)
    kept |= (times <= MAX_OWNERS) & (_held(parts, owners[kept], offsets[kept]) < MIN_HELD)[owners]
    hashes, owners, offsets = hashes[kept], owners[kept], offsets[kept]
    over, over_owners, over_offsets = _over_counters(parts)
    hashes = np.concatenate([hashes, over])
    owners, offsets = np.concatenate([owners, over_owners]), np.concatenate([offsets, over_offsets])
    by_hash = np.lexsort((offsets, owners, hashes))
    return hashes[by_hash], owners[by_hash], offsets[by_hash]


def _over_counters(parts: Sequence[_Part]) -> tuple[Hashes, Integers, Integers]:
    """Return hash, part and offset of the runs that leave out counters, if few parts have them."""
    words, begins = _joined([part.words for part in parts], np.uint64), _begins(part.words for part in parts)
    runs, firsts = around_counters(words, begins, is_counter(words), SEED_WORDS)
    owners = np.searchsorted(begins, firsts, side="right") - 1
    _, places, numbers = np.unique(runs, return_inverse=True, return_counts=True)
    kept = numbers[places] <= MAX_OWNERS if len(runs) else np.zeros(0, np.bool_)
    return runs[kept], owners[kept], (firsts - begins[owners])[kept]


def _held(parts: Sequence[_Part], owners: Integers, offsets: Integers) -> Floats:
    """Return the fraction of each part's weight that its seeds hold. A seed is given by its part and its offset."""
    begins, weights = _begins(part.words for part in parts), _joined([part.weights for part in parts], np.float64)
    held = np.zeros(len(weights), np.bool_)
    held[(begins[owners] + offsets)[:, None] + np.arange(SEED_WORDS)] = True
    of = np.repeat(np.arange(len(parts)), np.diff(begins))
    return np.bincount(of, weights * held, len(parts)) / np.bincount(of, weights, len(parts))


def _run_weights(weights: Floats) -> Floats:
    if len(weights) < SEED_WORDS:
        return np.empty(0)
    return np.lib.stride_tricks.sliding_window_view(weights, SEED_WORDS).sum(axis=1)


# Finding


class Finder:
    """Finds items in texts, one batch at a time. The division into batches does not change what is found.

    The compiled loops are used after COMPILED_FROM_BYTES of text, because loading them takes as long as scanning that
    much text without them. The uncompiled loops find the same items. Little text with words of many items takes longer
    to align than to scan, so the loop that aligns is loaded on its own after COMPILED_FROM_CELLS (pairs of a word of a
    text and a word of an item).
    """

    COMPILED_FROM_BYTES = 5_000_000
    COMPILED_FROM_CELLS = 1_000_000

    def __init__(
        self, index: ItemIndex, *, compiled_from_bytes: int | None = None, compiled_from_cells: int | None = None
    ) -> None:
        self.index = index
        self._table = GramTable.of(SEED_WORDS, index.seeds)
        self._plain_bytes_left = self.COMPILED_FROM_BYTES if compiled_from_bytes is None else compiled_from_bytes
        self._plain_cells_left = self.COMPILED_FROM_CELLS if compiled_from_cells is None else compiled_from_cells
        self._lengths = np.diff(index.begins)
        sums = np.append(0.0, np.cumsum(index.weights))
        self._sums = sums[index.begins[1:]] - sums[index.begins[:-1]]
        self._needed = MIN_SEEDED * self._sums
        self._seed_weights = index.weights[_seed_places(index)]
        self._reaches = _reaches(index)
        self._answers = _by_item(index.answer_items)
        self._passages = _by_item(index.passage_items)
        self._questions: dict[int, int] = {}  # the first spelling of each
        for part in np.flatnonzero(index.kinds != ANSWER).tolist():
            self._questions.setdefault(int(index.items[part]), part)
        self._weak, self._joined = set(index.weak.tolist()), set(index.joined.tolist())

    def find(self, texts: pa.StringArray) -> Iterator[tuple[int, list[FoundItem]]]:
        """Yield (index of the text, the items found in it, by item number) for each text that holds an item.

        Every text is scanned for candidates. Equal texts have equal items, so only the first of them is aligned.
        """
        texts = _readable(texts)
        data, offsets = utf8_of(texts)
        compiled = self._plain_bytes_left <= 0
        self._plain_bytes_left -= int(offsets[-1] - offsets[0])
        scanned = self._scanned(texts, data, offsets, compiled)
        hashes, starts, costs = scanned.hashes, scanned.starts, scanned.costs
        if not len(scanned.seeds):
            return
        candidates = self._candidates(scanned.seeds, compiled)
        firsts: dict[str, int] = {}
        first_of = {
            place: firsts.setdefault(texts[place].as_py(), place) for place in np.unique(candidates[:, 0]).tolist()
        }
        candidates, groups = _grouped(candidates[np.isin(candidates[:, 0], list(firsts.values()))])
        kept = np.ones(len(groups) - 1, np.bool_)
        if compiled:  # most candidates have too little of the part; the plain path rejects them one by one
            arrays = self.index.begins, self.index.words, self.index.weights, self._reaches
            kept = item_loops.shares(candidates, groups, hashes, costs, starts, *arrays, GAP, FAR) >= MIN_TRIED_SHARE
        found: dict[int, list[Any]] = {}
        for group in np.flatnonzero(kept).tolist():
            rows = candidates[groups[group] : groups[group + 1]]
            text, part = rows[0, :2].tolist()
            found.setdefault(text, []).append((part, rows[:, 2:].tolist()))
        held: dict[int, list[FoundItem]] = {}
        for place, first in first_of.items():
            if place == first and first in found:
                here = slice(starts[place], starts[place + 1])
                text = _Text(self, texts[place].as_py(), hashes[here], costs[here], compiled)
                held[first] = text.held(found[first])
            if some := held.get(first):
                yield place, some

    def aligned(
        self, text: Hashes, costs: Floats, words: Hashes, weights: Floats, compiled: bool
    ) -> tuple[float, int, int, list[tuple[int, int]]]:
        """Align the words of an item and a text by `item_loops.aligned`, compiled once there is work enough for it.

        Return the weight, the first word and the end in the text, and (first, end) of the words between its pieces.
        """
        self._plain_cells_left -= len(text) * len(words)
        loop = item_loops.aligned if compiled or self._plain_cells_left < 0 else item_loops.aligned.py_func
        jumps = np.empty((item_loops.JUMPS, 3), np.int64)
        mean = weights.sum() / np.count_nonzero(weights)
        score, start, end, last = loop(text, costs, words, weights, GAP * mean, FAR * mean, jumps)
        between = []
        while last >= 0:
            between.append((int(jumps[last, 1]), int(jumps[last, 2])))
            last = jumps[last, 0]
        return float(score), int(start), int(end), between

    def _scanned(self, texts: pa.StringArray, data: Any, offsets: Any, compiled: bool) -> _Scanned:
        """Return the hashed words of all texts, and the seeds among them, also over counters."""
        if compiled:
            from training.data.exams.search.gram_loops import are_counters, looked_up, runs_around

            hashes, starts = _compiled_hashes(data, offsets)
            seeds, counters = looked_up(hashes, starts, self._table), are_counters(hashes)
            runs, firsts = runs_around(hashes, starts, counters, SEED_WORDS)
        else:
            words = [folded_hashes(text) for text in texts.to_pylist()]
            hashes, starts = _joined(words, np.uint64), _begins(words)
            found = [np.empty((0, 3), np.int64)]
            for place, some in enumerate(words):
                positions, rows = self._table.first_rows(ngram_hashes(some, SEED_WORDS))
                found.append(np.stack([np.full(len(positions), place), positions, rows], axis=1))
            seeds, counters = np.concatenate(found), is_counter(hashes)
            runs, firsts = around_counters(hashes, starts, counters, SEED_WORDS)
        places, rows = self._table.first_rows(runs)
        if len(places):
            of = np.searchsorted(starts, firsts[places], side="right") - 1
            seeds = np.concatenate([seeds, np.stack([of, firsts[places] - starts[of], rows], axis=1)])
            seeds = seeds[np.lexsort((seeds[:, 2], seeds[:, 1], seeds[:, 0]))]
        return _Scanned(hashes=hashes, starts=starts, costs=np.where(counters, COUNTER_COST, 1.0), seeds=seeds)

    def _candidates(self, seeds: Integers, compiled: bool) -> Integers:
        index, room = self.index, 4096
        loop = item_loops.candidates if compiled else item_loops.candidates.py_func
        while True:
            out = np.empty((room, 4), np.int64)
            total = loop(
                seeds,
                index.seed_begins,
                index.owners,
                index.offsets,
                self._seed_weights,
                self._lengths,
                self._needed,
                out,
            )
            if total <= room:
                return out[:total]
            room = total


def _readable(texts: pa.StringArray) -> pa.StringArray:
    """Return the texts as a person sees them; the same column if none of them has anything to undo."""
    may_change = pc.match_substring_regex(texts, f"&[#A-Za-z]|[{FILLERS}]")
    if not pc.any(may_change).as_py():
        return texts
    changed = pa.array(map(readable, texts.filter(may_change).to_pylist()), pa.string())
    return pc.replace_with_mask(texts, may_change, changed)


def _seed_places(index: ItemIndex) -> Integers:
    """Return [entries of seeds, SEED_WORDS], the places in `index.words` of each seed's words in each part."""
    firsts = index.begins[index.owners] + index.offsets
    places = firsts[:, None] + np.arange(SEED_WORDS)
    if not len(places):
        return places
    runs = ngram_hashes(index.words[places].reshape(-1), SEED_WORDS)[::SEED_WORDS]
    jumps = np.flatnonzero(runs != np.repeat(index.seeds, np.diff(index.seed_begins)))  # over counters
    words = np.flatnonzero(~is_counter(index.words))
    places[jumps] = words[np.searchsorted(words, firsts[jumps])[:, None] + np.arange(SEED_WORDS)]
    return places


def _reaches(index: ItemIndex) -> Integers:
    """Return, for each part, how many words on both sides of its seeds are aligned with it.

    A piece of few words, or of words that many questions share, has no seed, so more is read of such questions.
    """
    seeded = np.zeros(len(index.words), np.bool_)
    seeded[index.begins[index.owners] + index.offsets] = True
    runs = np.diff(index.begins) - SEED_WORDS + 1
    lacks = runs - np.add.reduceat(seeded, index.begins[:-1]) if len(runs) else runs
    has_few = (lacks > (1 - MIN_SEEDED_RUNS) * runs) | (runs <= SEED_WORDS)
    found_alone = ~np.isin(index.items, index.weak) & (index.kinds == QUESTION)
    return np.where(has_few & found_alone, PIECES_REACH, item_loops.REACH)


def _compiled_hashes(data: Any, offsets: Any) -> tuple[Hashes, Integers]:
    from training.data.exams.search.folding import folding
    from training.data.words.hashes import hash_words

    return hash_words(data, offsets, folding())


def _by_item(items: Integers) -> dict[int, range]:
    """Return, for each item, the range of its entries in an array that is sorted by item."""
    firsts = np.flatnonzero(np.append(True, items[1:] != items[:-1])) if len(items) else np.empty(0, np.int64)
    ends = np.append(firsts, len(items))[1:]
    return {int(items[a]): range(int(a), int(b)) for a, b in zip(firsts, ends, strict=True)}


def _grouped(candidates: Integers) -> tuple[Integers, Integers]:
    """Return candidates sorted by text, part and place, and where each group of pieces of one part begins."""
    candidates = candidates[np.lexsort((candidates[:, 2], candidates[:, 1], candidates[:, 0]))]
    is_other = (np.diff(candidates[:, :2], axis=0) != 0).any(axis=1)
    is_far = candidates[1:, 2] - candidates[:-1, 3] > PIECES_REACH
    return candidates, np.unique(np.concatenate([[0], np.flatnonzero(is_other | is_far) + 1, [len(candidates)]]))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scanned:
    """The words of a batch: their hashes, where each text begins in them, and their `costs` between an item's words.

    `seeds` [:, (text, position, row)] are sorted by text, then position.
    """

    hashes: Hashes
    starts: Integers
    costs: Floats
    seeds: Integers


class _Text:
    """One text that may hold exam items, with the methods that decide whether it does."""

    def __init__(self, finder: Finder, text: str, hashes: Hashes, costs: Floats, compiled: bool) -> None:
        self._finder, self._index = finder, finder.index
        self._text, self._hashes, self._costs = text, hashes, costs
        self._compiled = compiled

    def held(self, candidates: Sequence[tuple[int, list[list[int]]]]) -> list[FoundItem]:
        best: dict[int, tuple[Kind, float, int, int]] = {}
        for part, pieces in candidates:
            judged = self._judged(part, pieces)
            item = int(self._index.items[part])
            if judged and (item not in best or _strength(judged) > _strength(best[item])):
                best[item] = judged
        if not best:
            return []
        spans = self._spans({word for _, _, first, end in best.values() for word in (first, end - 1)})
        return [
            FoundItem(
                item=item,
                kind=kind,
                part="question+answer" if kind == "item" and item in self._finder._answers else "question",
                share=round(float(share), 4),
                start=spans[first][0],
                end=end_of_character(self._text, spans[end - 1][1]),
                words=int(end - first),
            )
            for item, (kind, share, first, end) in sorted(best.items())
        ]

    def _spans(self, words: Collection[int]) -> dict[int, tuple[int, int]]:
        """Return the character offsets (start, end) of some words of the text.

        A word never goes beyond a blank. So the compiled loop counts the words of pieces that are divided at blanks,
        and only the pieces with one of these words are read by the pattern, which is slow.
        """
        cuts = [0]
        while self._compiled and (cut := self._text.find(" ", cuts[-1] + PIECE)) >= 0:
            cuts.append(cut)
        if len(cuts) == 1:
            spans = word_spans(self._text)
            return {word: (int(spans[word, 0]), int(spans[word, 1])) for word in words}
        pieces = [self._text[start:end] for start, end in pairwise([*cuts, len(self._text)])]
        firsts = _compiled_hashes(*utf8_of(pa.array(pieces, pa.string())))[1]
        found = {}
        for word in words:
            place = int(np.searchsorted(firsts, word, side="right")) - 1
            start, end = word_spans(pieces[place])[word - firsts[place]].tolist()
            found[word] = cuts[place] + start, cuts[place] + end
        return found

    def _judged(self, part: int, pieces: Sequence[Sequence[int]]) -> tuple[Kind, float, int, int] | None:
        item, kind = int(self._index.items[part]), int(self._index.kinds[part])
        reach = int(self._finder._reaches[part])
        share, start, end, words = self._share(part, [(first - reach, last + reach) for first, last in pieces])
        if kind == ANSWER:
            return self._with_question(item, part, share, start, end)
        if item in self._finder._weak:
            return self._weakly(item, part, share, start, end, words)
        if item in self._finder._joined:
            return self._with_answer(item, part, share, start, end, words)
        if share < MIN_SHARE or not self._is_itself(part, words):
            return None
        if item not in self._finder._answers:
            return "item", share, start, end
        answered = self._has_answer(item, start, end, ANSWER_BEFORE, ANSWER_REACH)
        return ("item" if answered else "question"), share, start, end

    def _share(self, part: int, windows: Sequence[tuple[int, int]]) -> tuple[float, int, int, Hashes]:
        """Return how much of an item's question or answer the words of the text in `windows` (first, end) hold.

        The result is the fraction of its weight, the first word and the end of the matching words, and these words
        without those between the pieces of the item.
        """
        here = slice(int(self._index.begins[part]), int(self._index.begins[part + 1]))
        near = self._places(windows)
        score, start, end, between = self._finder.aligned(
            self._hashes[near], self._costs[near], self._index.words[here], self._index.weights[here], self._compiled
        )
        if not score:
            return 0.0, 0, 0, self._hashes[:0]
        share, words = score / float(self._finder._sums[part]), self._hashes[near[start:end]]
        if between:
            edges = [start, *chain.from_iterable(reversed(between)), end]
            pieces = [self._hashes[near[first:last]] for first, last in zip(edges[::2], edges[1::2], strict=True)]
            whole = share + len(between) * FAR / np.count_nonzero(self._index.weights[here])
            share, words = self._own_pieces(part, pieces, share, whole)
        return share, int(near[start]), int(near[end - 1]) + 1, words

    def _own_pieces(self, part: int, pieces: Sequence[Hashes], share: float, whole: float) -> tuple[float, Hashes]:
        """Return the share of an item in those of its pieces that are not just the form of many questions, and these.

        They are returned as one array of words. Pieces of the form count beside a main piece, which has much of the
        item's own weight and is not whole in another question, if all together hold the `whole` item. `share` is that
        without the cost of what is between.
        """
        here = slice(int(self._index.begins[part]), int(self._index.begins[part + 1]))
        words, weights, own = self._index.words[here], self._index.weights[here], self._index.own[here]
        there = [np.isin(words, piece) for piece in pieces]
        unshared = [float(weights[some & (own == weights)].sum()) for some in there]
        if whole >= WORD_FOR_WORD and any(
            some.sum() >= MAIN_WORDS * len(words)
            and own[some].sum() >= MAIN_OWN * own.sum()
            and self._is_of_one(part, piece)
            for piece, some in zip(pieces, there, strict=True)
        ):
            return whole, np.concatenate(pieces)
        kept = [place for place, alone in enumerate(unshared) if alone >= MIN_PIECE_OWN * weights.sum()]
        held = sum(float(weights[there[place]].sum() / weights.sum()) for place in kept)
        return min(share, held), np.concatenate([self._hashes[:0], *(pieces[place] for place in kept)])

    def _is_of_one(self, part: int, piece: Hashes) -> bool:
        """Whether no single question but that of `part` has all seeds of a piece; it must have some."""
        index = self._index
        _, rows = self._finder._table.first_rows(ngram_hashes(piece, SEED_WORDS))
        parts = [set(index.owners[index.seed_begins[row] : index.seed_begins[row + 1]].tolist()) for row in rows]
        return bool(parts) and all(self._is_same(part, other) for other in set.intersection(*parts))

    def _is_same(self, part: int, other: int) -> bool:
        index = self._index
        words, others = (index.words[index.begins[one] : index.begins[one + 1]] for one in (part, other))
        return index.items[part] == index.items[other] or np.array_equal(words, others)

    def _places(self, windows: Sequence[tuple[int, int]]) -> Integers:
        """Return the numbers of the words in windows that are sorted by their first word, each word once."""
        end, places = 0, [np.empty(0, np.int64)]
        for first, last in windows:
            last = min(last, len(self._hashes))
            places.append(np.arange(max(end, first), max(end, first, last)))
            end = max(end, last)
        return np.concatenate(places)

    def _is_itself(self, part: int, found: Hashes, answer: float = 0.0) -> bool:
        """Whether words that were found are this item, and not just wording that it shares with others.

        `answer` is the weight of an answer that was found with them.

        The words must contain at least half of the item's numbers, half of the weight of its other words, and
        most of the item's own weight. A phrase adds less to the own weight the more questions of the benchmark
        share it.
        """
        here = slice(int(self._index.begins[part]), int(self._index.begins[part + 1]))
        words, own = self._index.words[here].tolist(), self._index.own[here]
        left = Counter(found.tolist())
        there = np.zeros(len(words), np.bool_)
        for place, word in enumerate(words):
            there[place] = left[word] > 0
            left[word] -= 1
        numbers, weights = self._index.numbers[here], self._index.weights[here]
        return bool(
            (there & numbers).sum() >= MIN_SHARE_OF_BOTH * numbers.sum()
            and weights[there & ~numbers].sum() >= MIN_SHARE_OF_BOTH * weights[~numbers].sum()
            and own[there].sum() >= max(MIN_OWN_SHARE * own.sum(), MIN_OWN_WEIGHT - answer)
        )

    def _with_answer(
        self, item: int, part: int, share: float, start: int, end: int, found: Hashes
    ) -> tuple[Kind, float, int, int] | None:
        """Return the whole item if an answer is close behind its short question, at words `start` to `end`."""
        if share >= MIN_SHARE and self._has_passage(item, start):
            return "item", share, start, end
        if share < MIN_SHORT_SHARE:
            return None
        for place in self._finder._answers[item]:
            here = slice(int(self._index.answer_begins[place]), int(self._index.answer_begins[place + 1]))
            words, weights = self._index.answer_words[here], self._index.answer_weights[here]
            behind = slice(end, end + int(self._index.reaches[item]) + len(words))
            is_told = self._has_words(behind, words, weights)
            if is_told and self._is_itself(part, found, float(weights.sum())):
                return "item", share, start, end
        return None

    def _weakly(
        self, item: int, part: int, share: float, start: int, end: int, found: Hashes
    ) -> tuple[Kind, float, int, int] | None:
        """Return the item if it is there word for word, or nearly so with its name, and an answer is close behind."""
        if share >= MIN_SHARE and self._has_passage(item, start):
            return "item", share, start, end
        if share < MIN_SHORT_SHARE or (share < WORD_FOR_WORD and not self._is_named(part, found)):
            return None
        answered = self._has_answer(item, start, end, 0, int(self._index.reaches[item]))
        is_told = self._index.kinds[part] == WHOLE or answered or item not in self._finder._answers
        return ("item", share, start, end) if is_told else None

    def _is_named(self, part: int, found: Hashes) -> bool:
        """Whether words that were found of a weak question tell it from the others of its benchmark.

        These are all of its numbers, and nearly all other words that no other question shares. There must be such
        words, and the question must be long enough that other texts do not have its words by chance.
        """
        here = slice(int(self._index.begins[part]), int(self._index.begins[part + 1]))
        weights, numbers, there = (
            self._index.weights[here],
            self._index.numbers[here],
            np.isin(self._index.words[here], found),
        )
        names = (self._index.own[here] == weights) & ~numbers
        return bool(
            there[numbers].all()
            and weights.sum() >= STRONG_WEIGHT
            and weights[names].sum() >= MIN_NAME
            and weights[names & there].sum() >= MIN_SHORT_SHARE * weights[names].sum()
        )

    def _with_question(
        self, item: int, part: int, share: float, start: int, end: int
    ) -> tuple[Kind, float, int, int] | None:
        """Return the whole item if its question is near a long answer that was found at words `start` to `end`.

        The question is searched for before and after the answer. The result is None if too little of it is there.
        """
        question = self._finder._questions[item]
        reach = ANSWER_REACH + 2 * int(self._finder._lengths[question])
        sides = (self._share(question, [window]) for window in ((start - reach, start), (end, end + reach)))
        asked, first, last, _ = max(sides, key=lambda side: side[:3])
        weights = self._finder._sums[question], self._finder._sums[part]
        both = float((asked * weights[0] + share * weights[1]) / sum(weights))
        if asked < MIN_ASKED or both < MIN_SHARE:
            return None
        return "item", both, min(first, start), max(last, end)

    def _has_answer(self, item: int, start: int, end: int, before: int, behind: int) -> bool:
        """Whether an accepted answer is at most `before` words before `start` or `behind` words behind `end`."""
        index = self._index
        for place in self._finder._answers.get(item, ()):
            here = slice(int(index.answer_begins[place]), int(index.answer_begins[place + 1]))
            words, weights = index.answer_words[here], index.answer_weights[here]
            sides = (
                slice(end, end + behind + len(words)),
                slice(max(0, start - before - len(words)), start if before else 0),
            )
            if any(self._has_words(side, words, weights) for side in sides):
                return True
        return False

    def _has_words(self, side: slice, words: Hashes, weights: Floats) -> bool:
        text, costs = self._hashes[side], self._costs[side]
        if len(words) < LONG_ANSWER_WORDS:
            return has_phrase(text, words) or has_phrase(text[costs == 1.0], words)
        score, _, _, _ = self._finder.aligned(text, costs, words, weights, self._compiled)
        return bool(score >= MIN_ANSWER_SHARE * weights.sum())

    def _has_passage(self, item: int, start: int) -> bool:
        """Whether the item's passage ends right before word `start`."""
        for place in self._finder._passages.get(item, ()):
            words = self._index.passage_words[self._index.passage_begins[place] : self._index.passage_begins[place + 1]]
            tail = words[-SEED_WORDS:]
            return has_phrase(self._hashes[max(0, start - len(tail) - SEED_WORDS) : start], tail)
        return False


def _strength(judged: tuple[Kind, float, int, int]) -> tuple[bool, float]:
    return judged[0] == "item", judged[1]


def has_phrase(hashes: Hashes, phrase: Hashes) -> bool:
    """Whether the words of a phrase occur in `hashes`, one right after another."""
    length = len(phrase)
    starts = np.flatnonzero(hashes[: max(0, len(hashes) - length + 1)] == phrase[0]) if length else ()
    return any(np.array_equal(hashes[at : at + length], phrase) for at in starts)

"""Stage `benchmarks`: the exam items of a recipe, and an index of their word n-grams.

`items.parquet` has a row for each part of each item: `number` (the item's row in the index), `benchmark`, `item` (its
id), `part` (question, answer or passage), `text`. `index.safetensors` holds for each length k of n-grams the sorted
hashes `hash_k`, and beside each the item's number `item_k`, what it proves `kind_k`, and the parts of the item that its
words are of `part_k` (a sum of PARTS).

What is indexed: the n-grams (the benchmark's `ngram_words`) of question and answer read as one text. An item whose
question is shorter has its whole question as one n-gram, of five words at least, which proves something only with the
answer close behind it. An n-gram needs four different words with a letter in them: `1, 2, 3, …` is nobody's question.
An n-gram in more than three items of a benchmark is the form of its questions: it lengthens a match and proves none. Of
a passage only its last words are indexed, ahead of the question's first: that a document holds a public text which an
exam quotes does not give the answer away, the exam's question behind it does. Labels such as `Question:` belong to the
file's form, not to the item.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from training.artifact import written
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.exams.grams import GramTable
from training.data.exams.settings import BenchmarkRecipe
from training.data.sources import read_rows
from training.data.words.ngrams import Hashes, ngram_hashes, word_hashes, words
from training.job import DataError, Job, Outcome, Work

ITEMS_FILE: Final = "items.parquet"
INDEX_FILE: Final = "index.safetensors"
MIN_WORDS: Final = 5
MIN_LETTERED_WORDS: Final = 4

# What an n-gram proves: that a document holds words of question and answer; a whole short item; a whole short question,
# if the answer follows; nothing, as too many items of the benchmark have it.
PLAIN, WHOLE, WITH_ANSWER, FORM = 0, 1, 2, 3
MAX_ITEMS_OF_NGRAM: Final = 3
PARTS: Final = {"passage": 1, "question": 2, "answer": 4}  # in the order in which an item is read

_ITEM_SCHEMA = pa.schema(
    [("number", pa.int32()), *((name, pa.string()) for name in ("benchmark", "item", "part", "text"))]
)
_LEADING_LABEL = re.compile(r"^\s*(?:question|q|problem|passage|context)\s*:\s*", re.IGNORECASE)
_TRAILING_LABEL = re.compile(r"\s*(?:answer|a)\s*:\s*$", re.IGNORECASE)

_LABELLED_PASSAGE = re.compile(
    r"^\s*(?:passage|context)\s*:\s*(.*)\n\s*(?:question|q)\s*:(.*)$", re.IGNORECASE | re.DOTALL
)
_OPTIONS = re.compile(r"\n\s*(?:choices|options)\s*:.*$", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkItem:
    """One exam item, whatever its file looks like.

    `gold` indexes `choices` and is None where there are none. `answers` are those accepted, the one to show first: of
    multiple choice the right choice; empty where the recipe names no `answer_field`. `messages` are the (role, content)
    turns of an item that is a conversation; `question` is then its last user turn. `row` is what the file says.
    """

    benchmark: str
    id: str
    question: str
    choices: tuple[str, ...] = ()
    gold: int | None = None
    answers: tuple[str, ...] = ()
    passage: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    row: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def answer(self) -> str:
        """The first accepted answer; empty when there is none."""
        return self.answers[0] if self.answers else ""


# Reading


def read_items(benchmark: BenchmarkRecipe, settings: Mapping[str, Any] | None = None) -> list[BenchmarkItem]:
    """The items of a benchmark, the first `limit` of them where the recipe sets one.

    Items without the field `id_field` are numbered from 0. DataError names the file, the item and the field that is
    missing or of the wrong form; it also refuses an empty file and ids that repeat. `settings` are the job's, for a
    benchmark that a source generates.
    """
    items: list[BenchmarkItem] = []
    for number, row in enumerate(read_rows(benchmark.uri, settings=settings)):
        if benchmark.limit and number == benchmark.limit:
            break
        items.append(_Row(benchmark, number, row).item())
    if not items:
        raise DataError(f"{benchmark.uri}: benchmark {benchmark.name} has no item")
    if benchmark.passage_field and not any(item.passage for item in items):
        raise DataError(
            f"{benchmark.uri}: benchmark {benchmark.name}: no item has the passage_field {benchmark.passage_field!r};"
            f" the fields of item 0 are {', '.join(map(str, items[0].row))}"
        )
    repeated = [key for key, times in Counter(item.id for item in items).items() if times > 1]
    if repeated:
        raise DataError(
            f"{benchmark.uri}: benchmark {benchmark.name}: id {repeated[0]!r} stands for several items; name another"
            " id_field, or one that the file does not have, so that items are numbered"
        )
    return items


class _Row:
    """One row of a benchmark's file and how its fields are read."""

    def __init__(self, benchmark: BenchmarkRecipe, number: int, row: dict[str, Any]) -> None:
        self._benchmark = benchmark
        self._number = number
        self._row = row

    def item(self) -> BenchmarkItem:
        benchmark = self._benchmark
        messages = self._messages()
        choices, gold = self._choices() if benchmark.kind == "multiple_choice" else ((), None)
        return BenchmarkItem(
            benchmark=benchmark.name,
            id=str(self._row.get(benchmark.id_field, self._number)),
            question=messages[-1][1] if messages else self._text(benchmark.question_field),
            choices=choices,
            gold=gold,
            answers=(choices[gold],) if gold is not None else self._answers(),
            passage=self._passage(),
            messages=messages,
            row=self._row,
        )

    def _messages(self) -> tuple[tuple[str, str], ...]:
        """The turns up to the last user turn, where the question field is a conversation; else none."""
        field_name = "messages" if self._is_conversation() else self._benchmark.question_field
        value = self._field(field_name)
        if not isinstance(value, list):
            return ()
        try:
            turns = [(str(turn["role"]), str(turn["content"])) for turn in value]
        except (TypeError, KeyError):
            raise self._wrong(field_name, "a text, or a list of messages with role and content") from None
        while turns and turns[-1][0] != "user":
            turns.pop()
        if not turns:
            raise self._wrong(field_name, "a conversation with a user's message")
        return tuple(turns)

    def _is_conversation(self) -> bool:
        """A chat item may hold `messages` where it lacks the question field."""
        return (
            self._benchmark.kind == "chat"
            and self._benchmark.question_field not in self._row
            and "messages" in self._row
        )

    def _choices(self) -> tuple[tuple[str, ...], int]:
        name = self._benchmark.choices_field
        value = self._field(name)
        if not isinstance(value, list) or len(value) < 2 or not all(isinstance(choice, str) for choice in value):
            raise self._wrong(name, "a list of at least two texts")
        return tuple(value), self._gold(tuple(value))

    def _gold(self, choices: tuple[str, ...]) -> int:
        """The right choice's index: given as a number, as a letter from A, or as the choice itself."""
        name = self._benchmark.gold_field
        value = self._field(name)
        if isinstance(value, str) and len(value) == 1 and value.isascii() and value.isalpha():
            value = ord(value.upper()) - ord("A")
        elif isinstance(value, str) and choices.count(value) == 1:
            value = choices.index(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(choices):
            raise self._wrong(name, f"an index below {len(choices)}, a letter, or one of the choices")
        return value

    def _answers(self) -> tuple[str, ...]:
        name = self._benchmark.answer_field
        if not name:
            return ()
        value = self._field(name)
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(one, (str, int, float)) and not isinstance(one, bool) for one in values):
            raise self._wrong(name, "a text, a number or a list of them")
        return tuple(str(one) for one in values)

    def _passage(self) -> str:
        """The passage; empty where this item has none."""
        name = self._benchmark.passage_field
        value = self._row.get(name) or ""
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def _text(self, name: str) -> str:
        value = self._field(name)
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(name, "a text that is not empty")
        return value

    def _field(self, name: str) -> Any:
        if name not in self._row:
            raise DataError(
                f"{self._where}: no field {name!r}; the fields there are {', '.join(map(str, self._row))}."
                f" Set the benchmark's *_field names"
            )
        return self._row[name]

    def _wrong(self, name: str, wanted: str) -> DataError:
        return DataError(f"{self._where}: field {name!r} is {self._row[name]!r}; expected {wanted}")

    @property
    def _where(self) -> str:
        return f"{self._benchmark.uri}: benchmark {self._benchmark.name}, item {self._number}"


# The index


@dataclass(frozen=True, kw_only=True, slots=True)
class Grams:
    """The n-grams of one length, sorted by hash, then item: the rows of a table; each one's item, kind and parts."""

    table: GramTable
    items: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    parts: npt.NDArray[np.uint8]

    @property
    def hashes(self) -> Hashes:
        """The n-gram of each row."""
        return self.table.hashes


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkIndex:
    """What a text is scanned with. `names` are (benchmark, item id) by item number; `grams` by number of words.

    `answers` are the answers' word hashes by item number, for items of kind WITH_ANSWER that have one.
    """

    names: tuple[tuple[str, str], ...]
    grams: dict[int, Grams]
    answers: dict[int, Hashes]

    @property
    def tables(self) -> list[GramTable]:
        """What a Scanner scans with."""
        return [grams.table for grams in self.grams.values()]

    @property
    def without_evidence(self) -> list[int]:
        """Items that cannot be found: too short, or without words of their own."""
        telling = (grams.items[grams.kinds != FORM] for grams in self.grams.values())
        indexed = {int(number) for items in telling for number in np.unique(items)}
        return [number for number in range(len(self.names)) if number not in indexed]


def build_index(benchmarks: Sequence[BenchmarkRecipe], items: Sequence[Sequence[BenchmarkItem]]) -> BenchmarkIndex:
    """The index over the items of each benchmark."""
    entries: dict[int, list[tuple[_Ngrams, int, int]]] = {}
    names: list[tuple[str, str]] = []
    answers: dict[int, Hashes] = {}
    for benchmark, some in zip(benchmarks, items, strict=True):
        for item in some:
            texts = zip(PARTS.values(), (item.passage, bare_question(item.question), item.answer), strict=True)
            parts = [_Words.of(text, part) for part, text in texts]
            for length, ngrams, kind in _evidence(*parts, ngram_words=benchmark.ngram_words):
                if len(ngrams.hashes):
                    entries.setdefault(length, []).append((ngrams, len(names), kind))
                if kind == WITH_ANSWER:
                    answers[len(names)] = parts[2].hashes
            names.append((benchmark.name, item.id))
    return BenchmarkIndex(
        names=tuple(names),
        grams={length: _sorted_grams(length, entries[length], names) for length in sorted(entries)},
        answers={number: answer for number, answer in answers.items() if len(answer)},
    )


def bare_question(question: str) -> str:
    """The question without the labels around it (`Question: … Answer:`)."""
    return _TRAILING_LABEL.sub("", _LEADING_LABEL.sub("", question))


def without_passage(question: str) -> tuple[str, str]:
    """The passage and the bare question of a text that may hold both (`Passage: … Question: …`), without its options.

    A passage that a question is asked about is public text, and the options are its answers.
    """
    split = _LABELLED_PASSAGE.match(question)
    passage, asked = split.groups() if split else ("", question)
    return passage, bare_question(_OPTIONS.sub("", asked)).strip()


def part_name(parts: int) -> str:
    """The parts of an item that a stretch holds words of, such as `question+answer`; `parts` is a sum of PARTS."""
    return "+".join(name for name, bit in PARTS.items() if parts & bit)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ngrams:
    """N-grams, and which parts of the item the words of each are of."""

    hashes: Hashes
    parts: npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Words:
    """The words of a piece of text: all hashes, the hashes of words with a letter (0 for the others), and the part of
    the item that each is from."""

    hashes: Hashes
    lettered: Hashes
    parts: npt.NDArray[np.uint8]

    @staticmethod
    def of(text: str, part: int) -> _Words:
        hashes = word_hashes(text)
        with_letter = np.array([any(map(str.isalpha, word)) for word in words(text)], np.bool_)
        return _Words(
            hashes=hashes,
            lettered=np.where(with_letter, hashes, np.uint64(0)),
            parts=np.full(len(hashes), part, np.uint8),
        )

    def __len__(self) -> int:
        return len(self.hashes)

    def last(self, number: int) -> _Words:
        start = max(0, len(self) - number)
        return _Words(hashes=self.hashes[start:], lettered=self.lettered[start:], parts=self.parts[start:])

    def then(self, other: _Words) -> _Words:
        return _Words(
            hashes=np.concatenate([self.hashes, other.hashes]),
            lettered=np.concatenate([self.lettered, other.lettered]),
            parts=np.concatenate([self.parts, other.parts]),
        )

    def ngrams(self, num_words: int) -> _Ngrams:
        """The n-grams with enough different words that have a letter."""
        if len(self) < num_words:
            return _Ngrams(hashes=np.empty(0, np.uint64), parts=np.empty(0, np.uint8))
        windows = np.sort(np.lib.stride_tricks.sliding_window_view(self.lettered, num_words), axis=1)
        distinct = (windows[:, :1] != 0).sum(axis=1) + (windows[:, 1:] != windows[:, :-1]).sum(axis=1)
        telling = distinct >= min(MIN_LETTERED_WORDS, num_words)
        parts = np.bitwise_or.reduce(np.lib.stride_tricks.sliding_window_view(self.parts, num_words), axis=1)
        return _Ngrams(hashes=ngram_hashes(self.hashes, num_words)[telling], parts=parts[telling])


def _evidence(
    passage: _Words, question: _Words, answer: _Words, *, ngram_words: int
) -> Iterator[tuple[int, _Ngrams, int]]:
    """(words, n-grams, kind) that show a document holds the item."""
    whole = question.then(answer)
    shortest = min(MIN_WORDS, ngram_words)
    # Half of the words of an n-gram at least are the item's own.
    yield ngram_words, passage.last(ngram_words // 2).then(whole).ngrams(ngram_words), PLAIN
    if shortest <= len(question) < ngram_words:
        yield len(question), question.ngrams(len(question)), WITH_ANSWER
    elif shortest <= len(whole) < ngram_words:
        yield len(whole), whole.ngrams(len(whole)), WHOLE


def _sorted_grams(
    num_words: int, entries: Sequence[tuple[_Ngrams, int, int]], names: Sequence[tuple[str, str]]
) -> Grams:
    hashes = np.concatenate([some.hashes for some, _, _ in entries])
    parts = np.concatenate([some.parts for some, _, _ in entries])
    lengths = [len(some.hashes) for some, _, _ in entries]
    items = np.repeat(np.array([item for _, item, _ in entries], np.int32), lengths)
    kinds = np.repeat(np.array([kind for _, _, kind in entries], np.uint8), lengths)
    order = np.lexsort((kinds, items, hashes))
    hashes, items, kinds, parts = hashes[order], items[order], kinds[order], parts[order]
    new = np.ones(len(hashes), np.bool_)
    new[1:] = (hashes[1:] != hashes[:-1]) | (items[1:] != items[:-1]) | (kinds[1:] != kinds[:-1])
    # An n-gram that stands in an item several times is one row, of all the parts in which it stands.
    parts = np.bitwise_or.reduceat(parts, np.flatnonzero(new)) if len(parts) else parts
    hashes, items, kinds = hashes[new], items[new], kinds[new]
    kinds[(kinds == PLAIN) & (_items_with_same(hashes, items, names) > MAX_ITEMS_OF_NGRAM)] = FORM
    return Grams(table=GramTable.of(num_words, hashes), items=items, kinds=kinds, parts=parts)


def _items_with_same(
    hashes: Hashes, items: npt.NDArray[np.int32], names: Sequence[tuple[str, str]]
) -> npt.NDArray[np.int64]:
    """For each row (sorted by hash, then item) how many rows of its benchmark have its hash."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(benchmark for benchmark, _ in names))}
    of_item = np.array([numbers[benchmark] for benchmark, _ in names], np.int32)[items]
    begins = np.ones(len(hashes), np.bool_)
    begins[1:] = (hashes[1:] != hashes[:-1]) | (of_item[1:] != of_item[:-1])
    group = np.cumsum(begins) - 1
    return np.bincount(group)[group]


def save_index(index: BenchmarkIndex, path: Path) -> None:
    """Write the arrays of an index, whole or not at all; its names are in `items.parquet`."""
    from safetensors.numpy import save

    numbers = np.array(sorted(index.answers), np.int32)
    arrays: dict[str, npt.NDArray[Any]] = {
        "answer_items": numbers,
        "answer_words": np.array([len(index.answers[number]) for number in numbers.tolist()], np.int32),
        "answer_hashes": np.concatenate([np.empty(0, np.uint64), *(index.answers[n] for n in numbers.tolist())]),
    }
    for length, grams in index.grams.items():
        arrays |= {f"hash_{length}": grams.hashes, f"item_{length}": grams.items}
        arrays |= {f"kind_{length}": grams.kinds, f"part_{length}": grams.parts}
    with written(path) as stream:
        stream.write(save(arrays))


def load_index(folder: Path) -> BenchmarkIndex:
    """The index in an artifact's folder."""
    from safetensors.numpy import load_file

    arrays = load_file(folder / INDEX_FILE)
    lengths = sorted(int(name.removeprefix("hash_")) for name in arrays if name.startswith("hash_"))
    ends = np.cumsum(arrays["answer_words"]).tolist()
    answers = np.split(arrays["answer_hashes"], ends[:-1]) if ends else []
    names: dict[int, tuple[str, str]] = {}
    for row in pq.read_table(folder / ITEMS_FILE, columns=["number", "benchmark", "item"]).to_pylist():
        names[row["number"]] = row["benchmark"], row["item"]
    return BenchmarkIndex(
        names=tuple(names[number] for number in range(len(names))),
        grams={
            k: Grams(
                table=GramTable.of(k, arrays[f"hash_{k}"]),
                items=arrays[f"item_{k}"],
                kinds=arrays[f"kind_{k}"],
                parts=arrays[f"part_{k}"],
            )
            for k in lengths
        },
        answers=dict(zip(arrays["answer_items"].tolist(), answers, strict=True)),
    )


# The stage


def run(job: Job, work: Work) -> Outcome:
    """Read every benchmark of the recipe, write its items and the index, and try what the index finds."""
    from training.data.exams.decontaminate import plant_rates  # which reads this module's indexes

    recipe = job.settings_as(DecontaminateRecipe, "decontaminate")
    items = [read_items(benchmark, job.settings) for benchmark in recipe.benchmarks]
    index = build_index(recipe.benchmarks, items)
    plants = {some[0].benchmark: plant_rates(index, some) for some in items}
    _write_items(items, work.path / ITEMS_FILE)
    save_index(index, work.path / INDEX_FILE)
    silent = index.without_evidence
    return Outcome(
        files=(ITEMS_FILE, INDEX_FILE),
        metrics={
            "benchmarks": len(items),
            "items": len(index.names),
            "items_that_cannot_be_found": len(silent),
            "ngrams": sum(len(grams.hashes) for grams in index.grams.values()),
            "ngrams_of_form": sum(int((grams.kinds == FORM).sum()) for grams in index.grams.values()),
            **{f"items_{benchmark.name}": len(some) for benchmark, some in zip(recipe.benchmarks, items, strict=True)},
            **{f"plants_found_{name}_{how}": share for name, rates in plants.items() for how, share in rates.items()},
        },
        notes={"cannot_be_found": ["/".join(index.names[number]) for number in silent[:20]]},
    )


def _write_items(items: Sequence[Sequence[BenchmarkItem]], path: Path) -> None:
    rows = []
    for number, item in enumerate(item for some in items for item in some):
        parts = {"question": item.question, "answer": item.answer, "passage": item.passage}
        rows += [
            {"number": number, "benchmark": item.benchmark, "item": item.id, "part": part, "text": text}
            for part, text in parts.items()
            if text
        ]
    with written(path) as stream:
        pq.write_table(pa.Table.from_pylist(rows, schema=_ITEM_SCHEMA), stream, compression="zstd")

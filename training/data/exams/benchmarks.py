"""Stage `benchmarks`: the exam items of a recipe, and the index by which texts that hold them are found.

`items.parquet` has a row for each part of each item: `number` (the item's number in the index), `benchmark`, `item`
(its id), `part` (question, answer or passage), `text`. `index.safetensors` holds the arrays of
search.item_rule.ItemIndex. `not_cleared.jsonl` lists the items that the rule finds only word for word with
their answer, or not at all, and those that it does not find when the index plants each of its own items in a text, word
for word and with the middle word that is no name changed. If such an item is not found, a text may still hold it.
Labels such as `Question:` belong to the file's format, not to the item.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from training.contract.artifact import written
from training.contract.job import DataError, Job, Outcome, Work
from training.data.documents import write_lines
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.exams.search.folding import folded_words
from training.data.exams.search.grams import column_of
from training.data.exams.search.item_rule import Finder, ItemIndex, ItemText, build_items
from training.data.exams.search.rarity import weight
from training.data.exams.settings import BenchmarkRecipe
from training.data.exams.task_files import check_row
from training.data.sources import read_rows

ITEMS_FILE: Final = "items.parquet"
INDEX_FILE: Final = "index.safetensors"
NOT_CLEARED_FILE: Final = "not_cleared.jsonl"
PLANTED_AT_ONCE: Final = 2000  # items
PLANTED_IN: Final = "This stands before it. {} And this stands behind it."
PLANTED_CHANGE: Final = "qqq"
RAREST: Final = 8.0  # weight of names, numbers and words that are in no list


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
    """One exam item, independent of the format of its file.

    `gold` indexes `choices` and is None without choices. `answers` are all accepted answers, the one to show first. For
    multiple choice that is the right choice. There are none without choices if the recipe names no `answer_field`.
    `messages` are the (role, content) turns of an item that is a conversation; `question` is then its last user turn.
    `row` is the item's row in the file.
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
    choices_first: bool = False

    @property
    def answer(self) -> str:
        """The item's first accepted answer; empty if it has none."""
        return self.answers[0] if self.answers else ""


# Reading


def read_items(benchmark: BenchmarkRecipe, settings: Mapping[str, Any] | None = None) -> list[BenchmarkItem]:
    """Return the items of a benchmark; only the first `limit` items if the recipe sets a limit.

    Items without the field `id_field` are numbered from 0. `settings` are the job's, for a benchmark that a source
    generates. Raise DataError, with file, item and field, if a field is missing or of the wrong form; also for an empty
    file and for repeated ids.
    """
    items: list[BenchmarkItem] = []
    for number, row in enumerate(read_rows(benchmark.uri, settings=settings)):
        if benchmark.limit and number == benchmark.limit:
            break
        items.append(_Row(benchmark, number, row).item())
    if not items:
        raise DataError(f"{benchmark.uri}: benchmark {benchmark.name} has no item")
    if benchmark.is_task:
        check_row(benchmark, items[0].row)
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
    """Reads the fields of one row of a benchmark's file, as the benchmark's settings name them."""

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
            choices_first=benchmark.choices_first,
        )

    def _messages(self) -> tuple[tuple[str, str], ...]:
        """Return the turns up to the last user turn if the question field is a conversation, else no turns."""
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
        """Whether a chat item has the field `messages` instead of the question field."""
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
        """Return the right choice's index, given by the row as a number, a letter from A, or the choice itself."""
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
        """Return the passage; empty if this item has none."""
        name = self._benchmark.passage_field
        if name is None:
            return ""
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


# The text to search for


def item_text(item: BenchmarkItem) -> ItemText:
    """Return the text of an item to search for: question without labels and options, answers, and passage.

    If the choices come first, the sentence of the right choice and the question is the question, without an answer.
    """
    if item.choices_first:
        whole = f"{item.answer} {item.question}"
        return ItemText(benchmark=item.benchmark, id=item.id, question=whole, answers=(), passage=item.passage)
    passage, question = without_passage(item.question)
    return ItemText(
        benchmark=item.benchmark,
        id=item.id,
        question=question,
        answers=item.answers,
        passage=item.passage or passage,
        choices=item.choices,
    )


def bare_question(question: str) -> str:
    """Return the question without the labels around it (`Question: … Answer:`)."""
    return _TRAILING_LABEL.sub("", _LEADING_LABEL.sub("", question))


def without_passage(question: str) -> tuple[str, str]:
    """Split a text that may hold a passage and a question (`Passage: … Question: …`) into these two, without labels.

    The passage is split off because it is public text. The options are removed, because they hold the answer.
    """
    split = _LABELLED_PASSAGE.match(question)
    passage, asked = split.groups() if split else ("", question)
    return passage, bare_question(_OPTIONS.sub("", asked)).strip()


# The index


def save_index(index: ItemIndex, path: Path) -> None:
    """Write the arrays of an index atomically; the names of its items are in `items.parquet`."""
    from safetensors.numpy import save

    with written(path) as stream:
        stream.write(save(index.arrays()))


def load_index(folder: Path) -> tuple[ItemIndex, list[tuple[str, str]]]:
    """Return the index in an artifact's folder, and (benchmark, item id) by item number."""
    from safetensors.numpy import load_file

    names: dict[int, tuple[str, str]] = {}
    for row in pq.read_table(folder / ITEMS_FILE, columns=["number", "benchmark", "item"]).to_pylist():
        names[row["number"]] = row["benchmark"], row["item"]
    return ItemIndex(**load_file(folder / INDEX_FILE)), [names[number] for number in range(len(names))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plants:
    """How each item is found when it is planted in a text, by item number: word for word, and with a word changed.

    An item is cleared by a search that finds it in neither form, so only items that are found in both can be cleared.
    """

    verbatim: npt.NDArray[np.bool_]
    edited: npt.NDArray[np.bool_]

    @staticmethod
    def of(finder: Finder, items: Sequence[BenchmarkItem]) -> Plants:
        """Plant passage, question and answer of every item, also with a word of the last two changed."""
        found = np.zeros((len(items), 2), np.bool_)
        for first in range(0, len(items), PLANTED_AT_ONCE):
            texts = [text for item in items[first : first + PLANTED_AT_ONCE] for text in _planted(item)]
            for place, some in finder.find(column_of(texts)):
                number = first + place // 2
                found[number, place % 2] = any(hit.item == number for hit in some)
        return Plants(verbatim=found[:, 0], edited=found[:, 1])

    def rates(self, items: Sequence[BenchmarkItem]) -> dict[str, float]:
        """Return the fractions of each benchmark's items that are found: {"BENCHMARK_verbatim", "BENCHMARK_edited"}."""
        names = np.array([item.benchmark for item in items])
        return {
            f"{name}_{how}": float(found[names == name].mean())
            for name in dict.fromkeys(names.tolist())
            for how, found in (("verbatim", self.verbatim), ("edited", self.edited))
        }


def _planted(item: BenchmarkItem) -> tuple[str, str]:
    """Return two texts with an item planted: word for word, and with the middle one of its known words changed.

    Names and numbers are no known words: an item with other ones is another item.
    """
    words = f"{item.question} {item.answer}".split()
    known = [place for place, word in enumerate(words) if 0 < sum(map(weight, folded_words(word))) < RAREST]
    middle = min(known or range(len(words)), key=lambda place: abs(2 * place - len(words)), default=0)
    edited = [*words[:middle], PLANTED_CHANGE, *words[middle + 1 :]]
    verbatim, changed = (PLANTED_IN.format(f"{item.passage} {' '.join(some)}") for some in (words, edited))
    return verbatim, changed


# The stage


def run(job: Job, work: Work) -> Outcome:
    """Read the recipe's benchmarks, write their items and the index, and measure how many planted items are found."""
    recipe = job.settings_as(DecontaminateRecipe, "decontaminate")
    items = [read_items(benchmark, job.settings) for benchmark in recipe.benchmarks]
    flat = [item for some in items for item in some]
    index = build_items([item_text(item) for item in flat])
    plants = Plants.of(Finder(index), flat)
    _write_items(items, work.path / ITEMS_FILE)
    save_index(index, work.path / INDEX_FILE)
    uncleared = not_cleared(index, plants, flat)
    write_lines(work.path / NOT_CLEARED_FILE, uncleared)
    return Outcome(
        files=(ITEMS_FILE, INDEX_FILE, NOT_CLEARED_FILE),
        metrics={
            "benchmarks": len(items),
            "items": len(flat),
            "items_found_with_their_answer_only": len(index.joined),
            "items_found_word_for_word_only": int((~plants.edited)[index.weak].sum()),
            "items_that_cannot_be_found": len(index.unsearchable),
            "items_that_cannot_be_cleared": len(uncleared),
            "seeds": len(index.seeds),
            **{f"items_{benchmark.name}": len(some) for benchmark, some in zip(recipe.benchmarks, items, strict=True)},
            **{f"plants_found_{name}": share for name, share in plants.rates(flat).items()},
        },
    )


def not_cleared(index: ItemIndex, plants: Plants, items: Sequence[BenchmarkItem]) -> list[dict[str, str]]:
    """Return the items whose absence the rule cannot prove, each with a phrase that says how it is found.

    A text in which such an item is not found may still hold it.
    """
    changed = np.flatnonzero(~plants.edited)
    how = dict.fromkeys(changed.tolist(), "not with a word changed")
    how |= dict.fromkeys(np.intersect1d(changed, index.weak).tolist(), "word for word, with the answer close behind")
    how |= dict.fromkeys(np.flatnonzero(~plants.verbatim).tolist(), "not even word for word")
    how |= dict.fromkeys(index.unsearchable.tolist(), "not at all")
    return [{"benchmark": items[n].benchmark, "item": items[n].id, "looked_for": how[n]} for n in sorted(how)]


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

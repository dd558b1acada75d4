"""Search rows for exam items in batches. A row is anything that has texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from training.data.documents import extra_columns
from training.data.exams.search.grams import column_of
from training.data.exams.search.item_rule import Finder, FoundItem

T = TypeVar("T")

BATCH_CHARACTERS: Final = 4_000_000  # searched at once
PROMPT: Final = "prompt"  # column of documents that a model wrote


def with_prompt(document: Mapping[str, Any]) -> str:
    """Return what is searched of a document: its text, behind the prompt that a model answered with it, if any."""
    prompt, text = document.get(PROMPT), str(document["text"])
    return text if not prompt or text.startswith(prompt) else f"{prompt}\n{text}"


def searched_columns(path: Path, columns: Sequence[str]) -> list[str]:
    """Return `columns` and, if a document file has it, the column with prompts."""
    return [*columns, *(name for name in extra_columns(path) if name == PROMPT)]


def searched(
    rows: Iterable[tuple[T, Sequence[str]]], finder: Finder
) -> Iterator[tuple[T, list[tuple[str, FoundItem]]]]:
    """Yield each row, in order, with the exam items found in its texts, as pairs (text, item found)."""
    for batch in _batches(rows):
        texts = [text for _, some in batch for text in some]
        found = dict(finder.find(column_of(texts)))
        first = 0
        for row, some in batch:
            places = range(first, first + len(some))
            yield row, [(texts[place], one) for place in places for one in found.get(place, ())]
            first += len(some)


def _batches(rows: Iterable[tuple[T, Sequence[str]]]) -> Iterator[list[tuple[T, Sequence[str]]]]:
    batch: list[tuple[T, Sequence[str]]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(map(len, row[1]))
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

"""Exam items as the rows that a model in training reads: each request is a document, and several fill a row.

A request is a context with one continuation. Rows have the length of the training's, so that a pass over them is one
like any other, and hold as many requests as fit. Needs only numpy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from training.contract.records import read_record
from training.order.loss_mask import IGNORED
from training.order.packing import best_fit
from training.pretrain.objectives.rewritten import NO_DOCUMENT

ITEMS_FILE = "items.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedItem:
    """An item of a suite as `evaluation/exams/watched_items.py` writes it, which says what the fields mean."""

    suite: str
    item: str
    requests: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    lengths: tuple[float, ...]
    right: tuple[int, ...]
    bytes: int
    is_greedy: bool

    @property
    def sizes(self) -> list[int]:
        """The number of tokens that each request reads; the last token of a continuation is only predicted."""
        return [len(context) + len(continuation) - 1 for context, continuation in self.requests]


def read_items(folder: Path) -> dict[str, list[WatchedItem]]:
    """Return the items of each suite in drawn order."""
    lines = (folder / ITEMS_FILE).read_text("utf-8").splitlines()
    items = [read_record(WatchedItem, json.loads(line), where=ITEMS_FILE) for line in lines]
    return {suite: list(some) for suite, some in groupby(items, key=lambda item: item.suite)}


class ExamRows(NamedTuple):
    """Rows of requests: int64 `[rows, length]` each.

    `requests` has the number of the request whose token is to be predicted at a position; NO_DOCUMENT where none is.
    """

    tokens: np.ndarray
    targets: np.ndarray
    documents: np.ndarray
    requests: np.ndarray


def num_rows(items: Sequence[WatchedItem], length: int) -> int:
    """Return how many rows of `length` positions the requests of all items fill."""
    return len(best_fit(_sizes(items), length).ends)


def rows_of(items: Sequence[WatchedItem], length: int) -> ExamRows:
    """Pack the requests of all items, which are numbered through, into rows of `length` positions.

    Raise ValueError for a request that is longer than a row.
    """
    requests = [request for item in items for request in item.requests]
    sizes = _sizes(items)
    if sizes.max(initial=0) > length:
        raise ValueError(f"a request of {sizes.max()} tokens is longer than a row of {length}")
    pieces, ends = best_fit(sizes, length)
    shape = (len(ends), length)
    rows = ExamRows(
        np.zeros(shape, np.int64), *(np.full(shape, fill, np.int64) for fill in (IGNORED, NO_DOCUMENT, NO_DOCUMENT))
    )
    for row, (first, end) in enumerate(pairwise((0, *ends.tolist()))):
        at = 0
        for document, number in enumerate(pieces[first:end, 0].tolist()):
            context, continuation = requests[number]
            stop = at + int(sizes[number])
            answered = slice(stop - len(continuation), stop)
            rows.tokens[row, at:stop] = (*context, *continuation[:-1])
            rows.documents[row, at:stop] = document
            rows.targets[row, answered] = continuation
            rows.requests[row, answered] = number
            at = stop
    return rows


def _sizes(items: Sequence[WatchedItem]) -> np.ndarray:
    return np.array([size for item in items for size in item.sizes], dtype=np.int64)


def scores(
    items: Mapping[str, Sequence[WatchedItem]], nats: Sequence[float], is_likeliest: Sequence[bool]
) -> Iterator[tuple[str, float, float]]:
    """Yield suite, accuracy and bits per byte of the right answers, from what a model says of each request.

    `nats` are the negative log-likelihoods of the continuations, and `is_likeliest` says whether each is the likeliest
    text. The bits per byte are those of all first right answers together.
    """
    first = 0
    for suite, some in items.items():
        right, bits = 0, 0.0
        for item in some:
            own = slice(first, first + len(item.requests))
            first = own.stop
            right += is_likeliest[own.start] if item.is_greedy else _chosen(item, nats[own]) in item.right
            bits += nats[own.start + item.right[0]] / np.log(2)
        yield suite, right / len(some), float(bits) / sum(item.bytes for item in some)


def _chosen(item: WatchedItem, nats: Sequence[float]) -> int:
    """Return the number of the choice with the largest log-likelihood by its length; of equal ones the first."""
    return int(np.argmax([-one / length for one, length in zip(nats, item.lengths, strict=True)]))

"""A sample of documents that does not depend on their order or files: those whose ids have the lowest hashes.

A rank chooses in its file, and the end of the stage among what the ranks chose, so that one process reads the ids of
all documents nowhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.contract.artifact import written

Column = npt.NDArray[Any]
SORTED_AT_ONCE = 1 << 16  # hashes of documents


class Lowest:
    """The documents with the lowest hashes that fit into a number of bytes, and one more.

    Documents are given as columns of equal length: hashes (uint64), sizes in bytes, and any others, of which `more` is
    the number. No more than about twice as many documents as fit are held, so memory does not grow with the corpus.
    """

    def __init__(self, most_bytes: int, more: int = 0) -> None:
        self._most_bytes = most_bytes
        self._kept: tuple[Column, ...] = (np.empty(0, np.uint64), *(np.empty(0, np.int64) for _ in range(1 + more)))
        self._limit = np.uint64(np.iinfo(np.uint64).max)  # a document with a higher hash is not among them
        self._waiting: list[tuple[Column, ...]] = []
        self._num_waiting = 0

    def add(self, hashes: Column, *columns: Column) -> None:
        """Take documents into account."""
        low = hashes <= self._limit
        self._waiting.append(tuple(column[low] for column in (hashes, *columns)))
        self._num_waiting += int(np.count_nonzero(low))
        if self._num_waiting > max(len(self._kept[0]), SORTED_AT_ONCE):
            self.documents()

    @property
    def held(self) -> int:
        """The number of documents in memory."""
        return len(self._kept[0]) + self._num_waiting

    def documents(self) -> tuple[Column, ...]:
        """Return the columns of the documents, sorted by hash."""
        columns = [np.concatenate(parts) for parts in zip(self._kept, *self._waiting, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        order = order[: self._fitting(columns[1][order]) + 1]
        if len(order) < len(columns[0]):
            self._limit = columns[0][order[-1]]
        self._kept, self._waiting, self._num_waiting = tuple(column[order] for column in columns), [], 0
        return self._kept

    def fitting(self) -> int:
        """Return how many documents, taken in ascending order of their hashes, have at most `most_bytes` together."""
        return self._fitting(self.documents()[1])

    def _fitting(self, sizes: Column) -> int:
        return int(np.searchsorted(np.cumsum(sizes), self._most_bytes, "right"))


def save_columns(path: Path, *columns: Column) -> None:
    """Write columns of equal length, each of 8 bytes a document, to a file, which appears when it is complete."""
    with written(path) as stream:
        np.save(
            stream, np.stack([column.astype(column.dtype).view(np.int64) for column in columns]), allow_pickle=False
        )


def load_columns(path: Path) -> tuple[Column, ...]:
    """Return the columns of a file, the first of them as hashes (uint64)."""
    first, *others = np.load(path, allow_pickle=False)
    return first.view(np.uint64), *others

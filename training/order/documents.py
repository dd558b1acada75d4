"""Positions of the plan's documents in the shards, in two memory-mapped arrays.

There is no object per document, and only numpy is needed.

The documents of each source are neighbours, in the order of the shards. `positions.npy` is uint64 [documents + 1]: the
tokens of all documents before this one, so that two neighbours give a length; the highest bit says that the document is
held out. `runs.npy` is int64 [4, runs]: consecutive documents of a shard; a shard of one source is one run.

An epoch reads the documents of a source in the order of a `Shuffle`. The token at which every block of places begins is
summed up once (`block_starts`). So the document at any token of an epoch is found by one search and by shuffling the
places of one block.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from training.order.shuffle import Shuffle

POSITIONS_FILE = "positions.npy"
RUNS_FILE = "runs.npy"

# Rows of `runs`: the run's first document in the plan, its shard, and its first document and token in the shard.
RUN_FIELDS = 4
FIRST, SHARD, DOCUMENT, TOKEN = range(RUN_FIELDS)

HELD_OUT = np.uint64(1 << 63)
POSITION = np.uint64((1 << 63) - 1)

AT_ONCE = 1 << 14  # documents; larger arrays leave the processor's cache
RELEASED_BYTES = 1 << 28  # arrays of at most this size may stay in the memory of a process as a whole
RELEASED_AFTER = 1 << 24  # documents that are read in turn


class Segment(NamedTuple):
    """Consecutive tokens of one document: its shard, its number there, and the first token within the shard.

    `is_end` means that the last of the `length` tokens is the document's last token.
    """

    shard: int
    document: int
    start: int
    length: int
    is_end: bool


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a plan, as two arrays that may be memory-mapped; `len` gives their number."""

    positions: np.ndarray
    runs: np.ndarray

    def __len__(self) -> int:
        return len(self.positions) - 1

    def tokens(self, first: int, stop: int) -> np.ndarray:
        """Return the number of tokens of the documents `first` to `stop` - 1, held out or not, int64."""
        return np.diff(self.positions[first : stop + 1] & POSITION).astype(np.int64)

    def are_held_out(self, first: int, stop: int) -> np.ndarray:
        """Return which of the documents `first` to `stop` - 1 are held out."""
        return self.positions[first:stop] >= HELD_OUT

    def trained_tokens(self, first: int, stop: int) -> np.ndarray:
        """Return the number of tokens of the documents `first` to `stop` - 1 for training: 0 if held out."""
        return np.where(self.are_held_out(first, stop), 0, self.tokens(first, stop))

    def trained_tokens_of(self, documents: np.ndarray) -> np.ndarray:
        """Return the number of tokens of these documents for training: 0 if held out, int64."""
        here, after = self.positions[documents], self.positions[documents + 1]
        return np.where(here >= HELD_OUT, 0, (after & POSITION) - (here & POSITION)).astype(np.int64)

    def release(self) -> None:
        """Let the process drop the memory pages of the positions that it has read; the system may keep them cached.

        Arrays that are not memory-mapped, or small, stay.
        """
        memory = getattr(self.positions.base, "base", None)
        if isinstance(memory, mmap.mmap) and len(memory) > RELEASED_BYTES and hasattr(memory, "madvise"):
            memory.madvise(mmap.MADV_DONTNEED)

    def segments(self, documents: np.ndarray) -> list[Segment]:
        """Return these documents as segments of all their tokens."""
        own = np.searchsorted(self.runs[FIRST], documents, side="right") - 1
        first, shards, numbers, tokens = (field[own] for field in self.runs)
        begins, ends, run_begins = (
            (self.positions[some] & POSITION).astype(np.int64) for some in (documents, documents + 1, first)
        )
        columns = (shards, numbers + documents - first, tokens + begins - run_begins, ends - begins)
        return list(map(Segment, *(column.tolist() for column in columns), repeat(True)))


def read_documents(folder: Path) -> Documents:
    """Return the documents of the plan in `folder`, memory-mapped."""
    return Documents(*mapped(folder, POSITIONS_FILE, RUNS_FILE))


def mapped(folder: Path, *names: str) -> list[np.ndarray]:
    """Return memory-mapped arrays as plain `ndarray` objects, because indexing a `memmap` is slower."""
    return [np.load(folder / name, mmap_mode="r", allow_pickle=False).view(np.ndarray) for name in names]


def block_starts(documents: Documents, shuffle: Shuffle, *, first: int, size: int) -> np.ndarray:
    """Return the number of training tokens before each block of `size` documents in the shuffled order, int64 [blocks].

    The shuffled documents are `first` and those that follow it. They are read in the order of the file: the inverse of
    the shuffle says to which block each document's tokens are added.
    """
    sums = np.zeros(-(-shuffle.count // size), dtype=np.int64)
    for start in range(0, shuffle.count, AT_ONCE):
        stop = min(start + AT_ONCE, shuffle.count)
        blocks = shuffle.places(np.arange(start, stop)) // size
        np.add.at(sums, blocks, documents.trained_tokens(first + start, first + stop))
        if stop % RELEASED_AFTER == 0:
            documents.release()
    return np.cumsum(sums) - sums

"""Compute which training steps of a plan see a document: the inverse of `training.order.batches.index`.

Nothing is stored for it.

A document's place in an epoch is the inverse of the epoch's shuffle. The tokens before it say which samples of its
source it lies in, and the quotas of the sources at which place of the batch, and so in which step, each sample comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from training.order.batches import Plan, PlanPhase, Segment, index
from training.order.documents import DOCUMENT, FIRST, POSITION, SHARD, TOKEN
from training.order.packing import WINDOW, Rows
from training.order.shuffle import Shuffle


class Seen(NamedTuple):
    """A piece of a document in a batch: its step, the row of the batch, and the epoch of its source.

    `at` is its first token within the row, `start` within the document, and `tokens` their number. The epoch is -1 in
    what `batch_of` returns.
    """

    step: int
    row: int
    epoch: int
    at: int
    start: int
    tokens: int


IN_SHARD = 40  # bits for the number of a document in its shard
Piece = tuple[int, int, int]  # token of the row or of the source's epochs; token of the document; number of tokens


class Steps:
    """The inverse of a plan: from documents to the steps that see them.

    Documents are given by their number in the plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @cached_property
    def _runs(self) -> tuple[np.ndarray, np.ndarray]:
        """The plan's runs of documents sorted by shard and document, and the sort keys.

        A key is shard and first document as one number.
        """
        runs = self.plan.documents.runs
        keys = (runs[SHARD] << IN_SHARD) + runs[DOCUMENT]
        order = np.argsort(keys)
        return runs[:, order], keys[order]

    def number(self, shard: int, document: int) -> int:
        """Return the number in the plan of one document of a shard."""
        return int(self.numbers([shard], [document])[0])

    def numbers(self, shards: Sequence[int], documents: Sequence[int]) -> np.ndarray:
        """Return the numbers in the plan of documents, int64.

        Each document is given by its shard and its number there.
        """
        runs, wanted = self._runs_of(shards, documents)
        return runs[FIRST] + wanted - runs[DOCUMENT]

    def starts(self, shards: Sequence[int], documents: Sequence[int]) -> np.ndarray:
        """Return the first token of documents within their shards, int64. They are given as for `numbers`."""
        runs, wanted = self._runs_of(shards, documents)
        positions = self.plan.documents.positions
        here, begin = positions[runs[FIRST] + wanted - runs[DOCUMENT]], positions[runs[FIRST]]
        return runs[TOKEN] + (here & POSITION).astype(np.int64) - (begin & POSITION).astype(np.int64)

    def _runs_of(self, shards: Sequence[int], documents: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the run of each document, and the documents as an array."""
        runs, keys = self._runs
        wanted = np.array(documents, dtype=np.int64)
        keys_of = (np.array(shards, dtype=np.int64) << IN_SHARD) + wanted
        return runs[:, np.searchsorted(keys, keys_of, side="right") - 1], wanted

    def is_held_out(self, document: int) -> bool:
        """Whether the document is held out, so that no step trains on it."""
        return bool(self.plan.documents.are_held_out(document, document + 1)[0])

    def seen(self, documents: Sequence[int]) -> dict[int, list[Seen]]:
        """Return, for each document, its pieces in all steps of the plan, in the order of the steps."""
        found: dict[int, list[Seen]] = {document: [] for document in documents}
        wanted = np.unique(np.array(documents, dtype=np.int64))
        for number, source in enumerate(self.plan.record.sources):
            own = wanted[(wanted >= source.first_document) & (wanted < source.first_document + source.all_documents)]
            own = own[self.plan.documents.trained_tokens_of(own) > 0]
            pieces = self._in_rows(number, own) if self.plan.packing is not None else self._end_to_end(number, own)
            for document, epoch, piece in pieces:
                found[document] += self._placed(number, epoch, piece)
        return {document: sorted(some, key=lambda one: (one.step, one.row, one.at)) for document, some in found.items()}

    def _epochs(self, number: int, capacity: int) -> int:
        """Return how many epochs of a source the plan begins.

        `capacity` is the length of an epoch, in tokens or, in a packed plan, in positions of rows.
        """
        read = sum(phase.samples[number] * phase.sequence_length for phase in self.plan.phases)
        return -(-read // capacity) if read else 0

    def _shuffle(self, number: int, epoch: int, count: int) -> Shuffle:
        return Shuffle(count, seed=self.plan.record.seed, epoch=epoch, source=self.plan.record.sources[number].name)

    def _end_to_end(self, number: int, documents: np.ndarray) -> Iterator[tuple[int, int, Piece]]:
        """Yield (document, epoch, piece) for the documents of a source in a plan without packing.

        The piece's first token is counted over all epochs of the source.
        """
        source, plan = self.plan.record.sources[number], self.plan
        for epoch in range(self._epochs(number, source.tokens) if len(documents) else 0):
            shuffle = self._shuffle(number, epoch, source.all_documents)
            blocks = shuffle.places(documents - source.first_document) // plan.record.block_documents
            for block in np.unique(blocks).tolist():
                inside, ends = plan.documents_of_block(number, epoch, block)
                at = dict(zip(inside.tolist(), ends.tolist(), strict=True))
                own = documents[blocks == block]
                lengths = plan.documents.trained_tokens_of(own)
                for document, tokens in zip(own.tolist(), lengths.tolist(), strict=True):
                    yield document, epoch, (epoch * source.tokens + at[document] - tokens, 0, tokens)

    def _in_rows(self, number: int, documents: np.ndarray) -> Iterator[tuple[int, int, Piece]]:
        """Yield (document, epoch, piece) for the documents of a source in a packed plan.

        A piece begins with the position of its first token if the packed rows of all epochs stood one after the other.
        """
        source, packing = self.plan.record.sources[number], self.plan.packing
        assert packing is not None
        length, epochs = packing.length, self._epochs(number, source.rows * packing.length)
        for document in documents.tolist():
            tokens = int(self.plan.documents.trained_tokens(document, document + 1)[0])
            for row, start in _pieces(packing, document, source.first_document):
                before = self._before(packing, row, document, start)
                for epoch in range(epochs):
                    shuffle = self._shuffle(number, epoch, source.rows)
                    place = int(shuffle.places(np.array([row - source.first_packed]))[0])
                    first = (epoch * source.rows + place) * length
                    yield document, epoch, (first + before, start, min(length, tokens - start))

    def _before(self, packing: Rows, row: int, document: int, start: int) -> int:
        """Return how many tokens of a packed row come before a piece."""
        documents, starts, _ = packing.pieces_of(np.array([row]))
        sizes = np.minimum(packing.length, self.plan.documents.trained_tokens_of(documents) - starts)
        own = int(np.flatnonzero((documents == document) & (starts == start))[0])
        return int(sizes[:own].sum())

    def _placed(self, number: int, epoch: int, piece: Piece) -> Iterator[Seen]:
        """Cut a piece at the ends of rows, and yield each part with the step that sees it.

        Tokens that no step reads are left out.
        """
        first, start, tokens = piece
        for phase in self.plan.phases:
            length, begin = phase.sequence_length, phase.starts[number]
            low, high = max(first, begin), min(first + tokens, begin + phase.samples[number] * length)
            while low < high:
                sample, at = divmod(low - begin, length)
                taken = min(high - low, length - at)
                place = place_of(phase, number, sample)
                yield Seen(
                    step=phase.first_step + place // phase.rows,
                    row=place % phase.rows,
                    epoch=epoch,
                    at=at,
                    start=start + low - first,
                    tokens=taken,
                )
                low += taken


def place_of(phase: PlanPhase, source: int, sample: int) -> int:
    """Return the place of a source's sample among all samples of a phase.

    It is the inverse of `batches.interleaved`. The samples before it are those of other sources with an earlier
    time and, at the same time, those of earlier sources.
    """
    own, place = phase.samples[source], sample
    for number, quota in enumerate(phase.samples):
        if number != source:
            scaled = (2 * sample + 1) * quota
            most = (scaled if number < source else scaled - 1) // own  # the largest 2k + 1 that comes before
            place += (most + 1) // 2
    return place


def _pieces(packing: Rows, document: int, first_document: int) -> Iterator[tuple[int, int]]:
    """Yield the row of each piece of a document, and the piece's first token in the document.

    Documents are packed in windows, and the pieces of a window lie together: two searches find them.
    """
    window = (document - first_document) // WINDOW * WINDOW + first_document
    low, high = (_first_piece(packing.pieces, bound) for bound in (window, window + WINDOW))
    for piece in (low + np.flatnonzero(packing.pieces[low:high, 0] == document)).tolist():
        yield int(np.searchsorted(packing.ends, piece, side="right")), int(packing.pieces[piece, 1])


def _first_piece(pieces: np.ndarray, document: int) -> int:
    """Return the index of the first of the sorted pieces that belongs to `document` or a later one."""
    low, high = 0, len(pieces)
    while low < high:
        middle = (low + high) // 2
        if int(pieces[middle, 0]) < document:
            low = middle + 1
        else:
            high = middle
    return low


class InBatch(NamedTuple):
    """A document of a batch: its shard, its number in the shard, and its pieces."""

    shard: int
    document: int
    pieces: tuple[Seen, ...]

    @property
    def tokens(self) -> int:
        """The number of the document's tokens in the batch."""
        return sum(piece.tokens for piece in self.pieces)


def batch_of(steps: Steps, step: int) -> list[InBatch]:
    """Return the documents of a step in the order of the batch, even if a ledger says that the step was skipped.

    Raise IndexError for a step that the plan does not have.
    """
    found: dict[tuple[int, int], list[tuple[int, int, Segment]]] = {}
    for row, sample in enumerate(index(steps.plan, step)):
        at = 0
        for segment in sample:
            found.setdefault(segment[:2], []).append((row, at, segment))
            at += segment.length
    starts = steps.starts(*zip(*found, strict=True))
    return [
        InBatch(
            shard,
            document,
            tuple([Seen(step, row, -1, at, own.start - start, own.length) for row, at, own in some]),
        )
        for ((shard, document), some), start in zip(found.items(), starts.tolist(), strict=True)
    ]

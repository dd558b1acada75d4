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

from training.order.batches import Plan, PlannedPhase, index
from training.order.documents import DOCUMENT, FIRST, HELD_OUT, POSITION, SHARD, TOKEN, Segment
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


class PieceColumns(NamedTuple):
    """Pieces of documents in all steps of a plan, as columns: one int64 array for each field, of equal lengths.

    `document` is the number in the plan; the others are as in `Seen`.
    """

    document: np.ndarray
    epoch: np.ndarray
    step: np.ndarray
    row: np.ndarray
    at: np.ndarray
    start: np.ndarray
    tokens: np.ndarray


class _Whole(NamedTuple):
    """Pieces before they are cut at the ends of rows: columns of int64.

    `first` is the token of the source's epochs end to end, or in a packed plan of its rows end to end. `start` is the
    first token within the document.
    """

    document: np.ndarray
    epoch: np.ndarray
    first: np.ndarray
    start: np.ndarray
    tokens: np.ndarray


IN_SHARD = 40  # bits for the number of a document in its shard
BLOCKS_AT_ONCE = 16  # of an epoch; larger arrays leave the processor's cache


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

    def numbers(self, shards: Sequence[int] | np.ndarray, documents: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the numbers in the plan of documents, int64.

        Each document is given by its shard and its number there.
        """
        runs, wanted = self._runs_of(shards, documents)
        return runs[FIRST] + wanted - runs[DOCUMENT]

    def starts(self, shards: Sequence[int] | np.ndarray, documents: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the first token of documents within their shards, int64. They are given as for `numbers`."""
        runs, wanted = self._runs_of(shards, documents)
        positions = self.plan.documents.positions
        here, begin = positions[runs[FIRST] + wanted - runs[DOCUMENT]], positions[runs[FIRST]]
        return runs[TOKEN] + (here & POSITION).astype(np.int64) - (begin & POSITION).astype(np.int64)

    def _runs_of(
        self, shards: Sequence[int] | np.ndarray, documents: Sequence[int] | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the run of each document, and the documents as an array."""
        runs, keys = self._runs
        wanted = np.array(documents, dtype=np.int64)
        keys_of = (np.array(shards, dtype=np.int64) << IN_SHARD) + wanted
        return runs[:, np.searchsorted(keys, keys_of, side="right") - 1], wanted

    def is_held_out(self, document: int) -> bool:
        """Whether the document is held out, so that no step trains on it."""
        return bool(self.are_held_out(np.array([document]))[0])

    def are_held_out(self, documents: np.ndarray) -> np.ndarray:
        """Return which of these documents are held out, bool."""
        return self.plan.documents.positions[documents] >= HELD_OUT

    def seen(self, documents: Sequence[int]) -> dict[int, list[Seen]]:
        """Return, for each document, its pieces in all steps of the plan, in the order of the steps."""
        found: dict[int, list[Seen]] = {document: [] for document in documents}
        for document, epoch, *place in zip(*(one.tolist() for one in self.pieces(documents)), strict=True):
            step, row, at, start, tokens = place
            found[document].append(Seen(step, row, epoch, at, start, tokens))
        return {document: sorted(some, key=lambda one: (one.step, one.row, one.at)) for document, some in found.items()}

    def pieces(self, documents: Sequence[int] | np.ndarray) -> PieceColumns:
        """Return the pieces of all these documents in all steps of the plan, in no particular order."""
        wanted = np.unique(np.asarray(documents, dtype=np.int64))
        found = [PieceColumns(*(np.empty(0, np.int64) for _ in PieceColumns._fields))]
        for number, source in enumerate(self.plan.record.sources):
            own = wanted[(wanted >= source.first_document) & (wanted < source.first_document + source.all_documents)]
            own = own[self.plan.documents.trained_tokens_of(own) > 0]
            if len(own):
                wholes = self._in_rows(number, own) if self.plan.packing is not None else self._end_to_end(number, own)
                found += [piece for whole in wholes for piece in self._placed(number, whole)]
        return PieceColumns(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def _epochs(self, number: int, capacity: int) -> int:
        """Return how many epochs of a source the plan begins.

        `capacity` is the length of an epoch, in tokens or, in a packed plan, in positions of rows.
        """
        read = sum(phase.samples[number] * phase.sequence_length for phase in self.plan.phases)
        return -(-read // capacity) if read else 0

    def _shuffle(self, number: int, epoch: int, count: int) -> Shuffle:
        return Shuffle(count, seed=self.plan.record.seed, epoch=epoch, source=self.plan.record.sources[number].name)

    def _end_to_end(self, number: int, documents: np.ndarray) -> Iterator[_Whole]:
        """Yield the pieces of a source's documents in a plan without packing, some blocks of an epoch at a time."""
        source, size = self.plan.record.sources[number], self.plan.record.block_documents
        for epoch in range(self._epochs(number, source.tokens)):
            shuffle = self._shuffle(number, epoch, source.all_documents)
            places = shuffle.places(documents - source.first_document)
            order = np.argsort(places)
            places, in_order = places[order], documents[order]
            blocks = places // size
            touched = np.unique(blocks)
            for at in range(0, len(touched), BLOCKS_AT_ONCE):
                some = touched[at : at + BLOCKS_AT_ONCE]
                low, high = np.searchsorted(blocks, [some[0], some[-1] + 1])
                before = self._tokens_before(number, epoch, some)
                begins = before[np.searchsorted(some, blocks[low:high]), places[low:high] % size]
                own = in_order[low:high]
                yield _Whole(
                    own,
                    np.full_like(own, epoch),
                    epoch * source.tokens + begins,
                    np.zeros_like(own),
                    self.plan.documents.trained_tokens_of(own),
                )

    def _tokens_before(self, number: int, epoch: int, blocks: np.ndarray) -> np.ndarray:
        """Return how many tokens of an epoch come before each place of some blocks, int64 [blocks, places of a block].

        Places behind the end of the last block have no meaning.
        """
        source, size = self.plan.record.sources[number], self.plan.record.block_documents
        places = np.minimum(blocks[:, None] * size + np.arange(size), source.all_documents - 1)
        numbers = self._shuffle(number, epoch, source.all_documents).numbers(places.ravel())
        tokens = self.plan.documents.trained_tokens_of(source.first_document + numbers).reshape(places.shape)
        return self.plan.starts_of_blocks(number, epoch)[blocks][:, None] + np.cumsum(tokens, axis=1) - tokens

    def _in_rows(self, number: int, documents: np.ndarray) -> Iterator[_Whole]:
        """Yield the pieces of a source's documents in a packed plan, an epoch at a time."""
        source, packing = self.plan.record.sources[number], self.plan.packing
        assert packing is not None
        own = np.sort(_pieces(packing, documents, source.first_document))
        rows, of = np.unique(np.searchsorted(packing.ends, own, side="right"), return_inverse=True)
        all_documents, all_starts, ends = packing.pieces_of(rows)
        sizes = np.minimum(packing.length, self.plan.documents.trained_tokens_of(all_documents) - all_starts)
        counts = np.diff(ends, prepend=0)
        before = np.cumsum(sizes) - sizes
        before -= np.repeat(before[ends - counts], counts)
        # The place of each piece among the pieces of these rows
        chosen = (ends - counts)[of] + own - np.where(rows > 0, packing.ends[rows - 1], 0)[of]
        for epoch in range(self._epochs(number, source.rows * packing.length)):
            places = self._shuffle(number, epoch, source.rows).places(rows - source.first_packed)
            firsts = (epoch * source.rows + places[of]) * packing.length
            yield _Whole(
                all_documents[chosen],
                np.full_like(firsts, epoch),
                firsts + before[chosen],
                all_starts[chosen],
                sizes[chosen],
            )

    def _placed(self, number: int, whole: _Whole) -> Iterator[PieceColumns]:
        """Cut pieces at the ends of rows, and yield the parts with the steps that see them, a phase at a time.

        Tokens that no step reads are left out.
        """
        for phase in self.plan.phases:
            length, begin = phase.sequence_length, phase.starts[number]
            low = np.maximum(whole.first, begin)
            high = np.minimum(whole.first + whole.tokens, begin + phase.samples[number] * length)
            here = np.flatnonzero(low < high)
            low, high = low[here] - begin, high[here] - begin
            sample = low // length
            parts = (high - 1) // length - sample + 1
            of = np.repeat(np.arange(len(here)), parts)
            sample = sample[of] + np.arange(len(of)) - np.repeat(np.cumsum(parts) - parts, parts)
            first = np.maximum(low[of], sample * length)
            tokens = np.minimum(high[of], (sample + 1) * length) - first
            place = place_of(phase, number, sample)
            of = here[of]
            yield PieceColumns(
                document=whole.document[of],
                epoch=whole.epoch[of],
                step=phase.first_step + place // phase.rows,
                row=place % phase.rows,
                at=first - sample * length,
                start=whole.start[of] + first + begin - whole.first[of],
                tokens=tokens,
            )


def place_of(phase: PlannedPhase, source: int, samples: np.ndarray) -> np.ndarray:
    """Return the places of a source's samples among all samples of a phase, int64.

    It is the inverse of `batches.interleaved`. The samples before one are those of other sources with an earlier
    time and, at the same time, those of earlier sources.
    """
    own, places = phase.alternating[source], samples.copy()
    for number, quota in enumerate(phase.alternating):
        if number != source:
            # Python's numbers where a product does not fit into 64 bits
            exact = samples if 2 * own * quota < 1 << 63 else samples.astype(object)
            scaled = (2 * exact + 1) * quota
            most = (scaled if number < source else scaled - 1) // own  # the largest 2k + 1 that comes before
            places += ((most + 1) // 2).astype(np.int64)
    return places


def _pieces(packing: Rows, documents: np.ndarray, first_document: int) -> np.ndarray:
    """Return the numbers of all pieces of these documents of a source, int64.

    Documents are packed in windows, and the pieces of a window lie together: two searches find them.
    """
    windows = (documents - first_document) // WINDOW * WINDOW + first_document
    found = []
    for window in np.unique(windows).tolist():
        low, high = (_first_piece(packing.pieces, bound) for bound in (window, window + WINDOW))
        found.append(low + np.flatnonzero(np.isin(packing.pieces[low:high, 0], documents)))
    return np.concatenate(found)


def _first_piece(pieces: np.ndarray, document: int) -> int:
    """Return the index of the first piece of the window that begins with `document`, or of a later window."""
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
        return sum([piece.tokens for piece in self.pieces])


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

"""Compute which tokens each training step sees, as a pure function of the plan and the step.

World size, micro-batch and worker count are not arguments, so they cannot change the result. Needs only numpy and the
standard library.

A sample is one row of tokens. A source's documents are put end to end in a seeded order, another one in each epoch, and
cut into rows of `sequence_length` tokens. In a packed plan (`training.order.packing`) the rows are fixed, and the order
of the rows changes with each epoch. No order is ever made as a whole: `training.order.shuffle` computes the places that
a step needs, block by block.

A phase is a stretch of steps with one row length, batch size and mixture. Within it the sources are interleaved evenly
by exact integer quotas. The next phase continues in each source where the phase before it ended.
"""

from __future__ import annotations

import heapq
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import groupby, pairwise
from math import ceil, floor
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from training.contract.artifact import sha256_of
from training.contract.files.checked import is_known
from training.contract.files.stored_root import is_here
from training.contract.job import InputArtifact, RefusedInput
from training.contract.records import read_record
from training.order.batch_settings import BatchPhase
from training.order.documents import Documents, Segment, block_starts, mapped, read_documents
from training.order.ledger import Ledger
from training.order.loss_mask import IGNORED
from training.order.packing import Rows, read_rows
from training.order.shuffle import Shuffle

PLAN_FILE = "plan.json"
HELD_OUT_FILE = "held_out.npy"
STARTS_FILE = "block_starts.npy"  # of every source with `stored_epochs`, epoch after epoch

# Columns of the array `held_out`, int64: the documents that a look at held-out text reads. `start` is the document's
# first token within its shard, `tokens` its number of tokens, and `bytes` the length of its text in UTF-8.
COLUMNS = ("shard", "document", "start", "tokens", "bytes")
SHARD, DOCUMENT, START, TOKENS, BYTES = range(len(COLUMNS))

ROWS_AT_ONCE = 64  # packed rows
RELEASED_BLOCKS = 8  # each reads up to 64 MB of a large plan: the system maps 64 KB around every document
OPEN_SHARDS = 256  # token files that are mapped at once, each with what a process has read of it


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedShard:
    """A token file from which the plan was made.

    `artifact` and `digest` are the fingerprint and the digest of the `token_shards` artifact that holds the file.
    """

    partition: str
    artifact: str
    digest: str
    path: str
    bytes: int
    sha256: str
    documents: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSource:
    """One source of the mixture: its share of the samples, and its place in the plan's arrays.

    Held-out documents lie among the documents for training. The fields `look_…` describe the held-out documents that
    each evaluation during training reads.
    """

    name: str
    weight: float  # share of the tokens that the mixture asks for, in [0, 1]
    samples: int  # number over the whole run
    first_document: int
    documents: int  # for training
    tokens: int  # for training, in one epoch
    held_out_documents: int
    held_out_tokens: int
    first_looked_at: int = 0
    look_documents: int = 0
    look_tokens: int = 0
    rows: int = 0  # packed plans only: number of rows in one epoch; the next field is the number of the first row
    first_packed: int = 0
    stored_epochs: int = 0  # epochs whose `block_starts` are in the plan; those of others are computed when needed

    @property
    def all_documents(self) -> int:
        """The number of the source's documents, held-out ones included."""
        return self.documents + self.held_out_documents

    def capacity(self, length: int) -> int:
        """Return how many positions one epoch of the source takes.

        These are its tokens, or in a packed plan all positions of its rows. Packed rows have `length` positions, some
        of them empty.
        """
        return self.rows * length or self.tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPhase:
    """A stretch of steps with one row length, batch size and mixture.

    `samples` is the number of samples of each source in the phase. `mixture` is the number of the set of weights: 0 for
    the recipe's `weights`, 1 and up for its `phases`. `quotas` are the samples of the longer phase whose beginning this
    one is, by which its sources alternate; empty if it is whole. `plan.json` holds these fields. The others are
    computed when the plan is read: the phase's number and first step, and in `starts` each source's tokens in earlier
    phases.
    """

    steps: int
    sequence_length: int
    global_batch_tokens: int
    samples: tuple[int, ...]
    mixture: int = 0
    quotas: tuple[int, ...] = ()
    number: int = 0
    first_step: int = 0
    starts: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """The number of samples (rows) in one global batch of this phase."""
        return self.global_batch_tokens // self.sequence_length

    @property
    def alternating(self) -> tuple[int, ...]:
        """The numbers of samples by which the sources alternate."""
        return self.quotas or self.samples


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRecord:
    """The content of `plan.json`.

    `sequence_length` and `global_batch_tokens` describe the last phase. If `phases` is empty, there is only one phase.
    """

    seed: int
    sequence_length: int
    global_batch_tokens: int
    steps: int
    tokenizer_digest: str
    eos_id: int
    dtype: str
    shards: tuple[PlannedShard, ...]
    sources: tuple[PlannedSource, ...]
    phases: tuple[PlannedPhase, ...] = ()
    packing: Literal["end_to_end", "best_fit"] = "end_to_end"
    block_documents: int = 1024  # places of an epoch that are shuffled at once


Sample = tuple[Segment, ...]
Block = tuple[list[int], list[Segment]]  # documents, and the number of tokens of the epoch up to the end of each


class Plan:
    """A training plan with its arrays. It caches the blocks that were last used.

    `starts` has the arrays of `block_starts.npy` by source and epoch; missing arrays are computed when needed.
    """

    def __init__(
        self,
        record: PlanRecord,
        documents: Documents,
        held_out: np.ndarray,
        *,
        packing: Rows | None = None,
        starts: Mapping[tuple[int, int], np.ndarray] | None = None,
        digest: str = "",
    ) -> None:
        self.record = record
        self.documents = documents
        self.held_out = held_out
        self.packing = packing
        self.digest = digest
        self.phases = tuple(_placed(record))
        self._stored = starts or {}
        self._starts: dict[tuple[int, int], np.ndarray] = {}
        self._blocks: dict[tuple[int, int, int], Block] = {}
        self._rows: dict[tuple[int, int, int], list[Sample]] = {}
        self._made = 0  # blocks

    def with_record(self, record: PlanRecord) -> Plan:
        """Return a plan of the same documents with another record, such as another seed or other sample counts."""
        return Plan(record, self.documents, self.held_out, packing=self.packing, digest=self.digest)

    def phase_at(self, step: int) -> PlannedPhase:
        """Return the phase of a step. Raise IndexError for a step that the plan does not have."""
        if not 0 <= step < self.record.steps:
            raise IndexError(f"step {step}: the plan has steps 0 to {self.record.steps - 1}")
        return next(phase for phase in reversed(self.phases) if phase.first_step <= step)

    def tokens_before(self, step: int) -> int:
        """Return the number of tokens in all batches before `step`."""
        return sum(
            min(max(0, step - phase.first_step), phase.steps) * phase.global_batch_tokens for phase in self.phases
        )

    def block_at(self, source: int, epoch: int, position: int) -> Block:
        """Return the block of a source's epoch that contains the token `position` of the epoch.

        A block is successive documents in the order of the epoch, without held-out ones.
        """
        number = int(np.searchsorted(self.starts_of_blocks(source, epoch), position, side="right")) - 1
        key = (source, epoch, number)
        if key not in self._blocks:
            _forget(self._blocks, source)
            documents, ends = self.documents_of_block(source, epoch, number)
            self._blocks[key] = ends.tolist(), self.documents.segments(documents)
            self._made += 1
            if self._made % RELEASED_BLOCKS == 0:
                self.documents.release()
        return self._blocks[key]

    def documents_of_block(self, source: int, epoch: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the documents for training in a block, and the number of tokens of the epoch up to the end of each."""
        size, chosen = self.record.block_documents, self.record.sources[source]
        shuffle = self._shuffle(source, epoch, chosen.all_documents)
        numbers = shuffle.numbers(np.arange(number * size, min((number + 1) * size, chosen.all_documents)))
        documents = chosen.first_document + numbers
        tokens = self.documents.trained_tokens_of(documents)
        ends = self.starts_of_blocks(source, epoch)[number] + np.cumsum(tokens)
        trained = np.flatnonzero(tokens)
        return documents[trained], ends[trained]

    def starts_of_blocks(self, source: int, epoch: int) -> np.ndarray:
        """Return the token at which each block of a source's epoch begins.

        The numbers are read from the plan's file, or computed if the file lacks this epoch.
        """
        key = (source, epoch)
        if key in self._stored:
            return self._stored[key]
        if key not in self._starts:
            # Neighbouring steps need this epoch, and the next one if a sample crosses into it.
            for old in [kept for kept in self._starts if kept[0] == source and kept[1] < epoch - 1]:
                del self._starts[old]
            self._starts[key] = self.computed_starts(source, epoch)
        return self._starts[key]

    def computed_starts(self, source: int, epoch: int) -> np.ndarray:
        """Compute how many tokens of a source's epoch come before each block of shuffled documents, int64 [blocks].

        This reads the length of every document of the source. For some epochs the plan's file has these numbers stored.
        """
        chosen = self.record.sources[source]
        shuffle = self._shuffle(source, epoch, chosen.all_documents)
        size = self.record.block_documents
        if chosen.all_documents <= size:
            return np.zeros(1, dtype=np.int64)
        return block_starts(self.documents, shuffle, first=chosen.first_document, size=size)

    def packed_row(self, source: int, epoch: int, place: int) -> Sample:
        """Return the packed row at position `place` of a source's epoch, in which the rows are shuffled."""
        number, within = divmod(place, ROWS_AT_ONCE)
        key = (source, epoch, number)
        if key not in self._rows:
            _forget(self._rows, source)
            self._rows[key] = self._packed_rows(source, epoch, number)
        return self._rows[key][within]

    def _packed_rows(self, source: int, epoch: int, number: int) -> list[Sample]:
        assert self.packing is not None, "only a packed plan has rows"
        chosen, length = self.record.sources[source], self.packing.length
        places = np.arange(number * ROWS_AT_ONCE, min((number + 1) * ROWS_AT_ONCE, chosen.rows))
        rows = chosen.first_packed + self._shuffle(source, epoch, chosen.rows).numbers(places)
        documents, offsets, ends = self.packing.pieces_of(rows)
        segments = [
            Segment(shard, document, first + offset, min(length, tokens - offset), tokens - offset <= length)
            for (shard, document, first, tokens, _), offset in zip(
                self.documents.segments(documents), offsets.tolist(), strict=True
            )
        ]
        return [tuple(segments[start:end]) for start, end in pairwise([0, *ends.tolist()])]

    def _shuffle(self, source: int, epoch: int, count: int) -> Shuffle:
        return Shuffle(count, seed=self.record.seed, epoch=epoch, source=self.record.sources[source].name)


def _forget(cache: dict[tuple[int, int, int], Any], source: int) -> None:
    """Remove a source's blocks from the cache except the last one, which neighbouring steps may share."""
    for old in [kept for kept in cache if kept[0] == source][:-1]:
        del cache[old]


def _placed(record: PlanRecord) -> Iterator[PlannedPhase]:
    """Yield the phases of a plan's record, each with its first step and each source's number of earlier tokens."""
    only = PlannedPhase(
        steps=record.steps,
        sequence_length=record.sequence_length,
        global_batch_tokens=record.global_batch_tokens,
        samples=tuple(source.samples for source in record.sources),
    )
    first, starts = 0, (0,) * len(record.sources)
    for number, phase in enumerate(record.phases or (only,)):
        yield replace(phase, number=number, first_step=first, starts=starts)
        first += phase.steps
        starts = tuple(
            start + count * phase.sequence_length for start, count in zip(starts, phase.samples, strict=True)
        )


def shapes(phases: Iterable[PlannedPhase | BatchPhase]) -> tuple[tuple[int, int, int], ...]:
    """Return (sequence length, batch tokens, steps) of the phases. Neighbours of equal shape are joined."""
    key = attrgetter("sequence_length", "global_batch_tokens")
    return tuple((*shape, sum(phase.steps for phase in same)) for shape, same in groupby(phases, key=key))


def read_plan(folder: Path, *, digest: str = "") -> Plan:
    """Return the plan in `folder`. Its arrays are memory-mapped."""
    record = read_record(PlanRecord, json.loads((folder / PLAN_FILE).read_text("utf-8")), where="plan")
    (held_out,) = mapped(folder, HELD_OUT_FILE)
    packing = read_rows(folder, record.sequence_length) if record.packing == "best_fit" else None
    starts = {}
    if any(source.stored_epochs for source in record.sources):
        (stored,) = mapped(folder, STARTS_FILE)
        starts = _cut_starts(record, stored)
    return Plan(record, read_documents(folder), held_out, packing=packing, starts=starts, digest=digest)


def _cut_starts(record: PlanRecord, stored: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """Cut the stored array `block_starts.npy` into the arrays of each source and epoch."""
    found, at = {}, 0
    for number, source in enumerate(record.sources):
        blocks = -(-source.all_documents // record.block_documents)
        for epoch in range(source.stored_epochs):
            found[number, epoch] = stored[at : at + blocks]
            at += blocks
    return found


def index(plan: Plan, step: int, ledger: Ledger = Ledger()) -> list[Sample]:  # noqa: B008 - immutable
    """Return the samples of global batch `step` (from 0), in order; none if the ledger holds the step.

    Raise IndexError for a step that the plan does not have.
    """
    if step in ledger:
        return []
    phase = plan.phase_at(step)
    return [
        _sample(plan, source, start=phase.starts[source] + number * phase.sequence_length, length=phase.sequence_length)
        for source, number in sample_ids(plan, step)
    ]


def sample_ids(plan: Plan, step: int) -> list[tuple[int, int]]:
    """Return (source, sample number within the phase) of each sample of global batch `step`, in order."""
    phase = plan.phase_at(step)
    return interleaved(phase.alternating, first=(step - phase.first_step) * phase.rows, count=phase.rows)


def documents_at(plan: Plan, step: int, ledger: Ledger = Ledger()) -> list[tuple[int, int]]:  # noqa: B008 - immutable
    """Return (shard, document number in the shard) of every document that a step trains on, each once, sorted."""
    return sorted({(segment.shard, segment.document) for sample in index(plan, step, ledger) for segment in sample})


def trained_tokens(samples: Sequence[Sample]) -> int:
    """Return the number of positions with a target: all tokens except the last of each document."""
    return sum(segment.length - segment.is_end for sample in samples for segment in sample)


def interleaved(quotas: Sequence[int], *, first: int, count: int) -> list[tuple[int, int]]:
    """Return (source, sample number in the source) for `count` samples from number `first`.

    Sources alternate evenly. `quotas` is the number of samples of each source. Sample k of a source with n samples is
    at time (2k + 1) / 2n of the run; of equal times the earlier source comes first. The samples before `first` are
    counted without a loop over them.
    """
    total = sum(quotas)
    # A little before the place, so that rounding (half a sample a source) cannot overshoot it.
    before = max(0, first - len(quotas))
    numbers = [(2 * quota * before + total) // (2 * total) for quota in quotas]
    waiting = [
        (Fraction(2 * k + 1, 2 * quota), source)
        for source, (k, quota) in enumerate(zip(numbers, quotas, strict=True))
        if k < quota
    ]
    heapq.heapify(waiting)
    chosen = []
    for place in range(sum(numbers), first + count):
        _, source = waiting[0]
        if place >= first:
            chosen.append((source, numbers[source]))
        numbers[source] += 1
        if numbers[source] < quotas[source]:
            heapq.heapreplace(waiting, (Fraction(2 * numbers[source] + 1, 2 * quotas[source]), source))
        else:
            heapq.heappop(waiting)
    return chosen


def samples_before(quotas: Sequence[int], count: int) -> tuple[int, ...]:
    """Return how many samples of each source the first `count` samples of a phase have, without a loop over them."""
    if count == sum(quotas):
        return tuple(quotas)
    ((source, sample),) = interleaved(quotas, first=count, count=1)  # the first sample that is not read
    time = Fraction(2 * sample + 1, 2 * quotas[source])
    before = []
    for own, quota in enumerate(quotas):
        place = time * quota - Fraction(1, 2)  # samples with a smaller number come before that time
        before.append(floor(place) + 1 if own < source else ceil(place))
    return tuple(before)


def _sample(plan: Plan, source: int, *, start: int, length: int) -> Sample:
    """Return the segments of `length` tokens of a source that begin at token `start` of its epochs end to end.

    In packed plans `start` also counts the empty places of the rows. Raise RefusedInput if the plan's block starts are
    not those of its documents.
    """
    if plan.packing is not None:
        epoch, place = divmod(start // length, plan.record.sources[source].rows)
        return plan.packed_row(source, epoch, place)
    tokens = plan.record.sources[source].tokens
    epoch, position = divmod(start, tokens)
    segments: list[Segment] = []
    while length:
        ends, whole = plan.block_at(source, epoch, position)
        if not (len(ends) and ends[0] - whole[0].length <= position < ends[-1]):
            raise RefusedInput(f"{STARTS_FILE}: no document at token {position} of epoch {epoch}; make the plan again")
        for number in range(bisect_right(ends, position), len(ends)):
            shard, document, first, size, _ = whole[number]
            skipped = position - (ends[number] - size)
            taken = min(length, size - skipped)
            segments.append(Segment(shard, document, first + skipped, taken, skipped + taken == size))
            length, position = length - taken, position + taken
            if not length:
                break
        if position == tokens:
            epoch, position = epoch + 1, 0
    return tuple(segments)


def held_out_samples(plan: Plan, source: int) -> list[Sample]:
    """Return the held-out documents of a source that each evaluation during training reads, joined and cut into rows.

    The documents are in the plan's order. The last row may be short.
    """
    rows = _looked_at(plan, source)
    samples: list[Sample] = []
    segments: list[Segment] = []
    room = plan.record.sequence_length
    for shard, document, start, tokens, _ in rows.tolist():
        done = 0
        while done < tokens:
            taken = min(room, tokens - done)
            segments.append(Segment(shard, document, start + done, taken, done + taken == tokens))
            done, room = done + taken, room - taken
            if room == 0:
                samples.append(tuple(segments))
                segments, room = [], plan.record.sequence_length
    return [*samples, tuple(segments)] if segments else samples


def held_out_bytes(plan: Plan, source: int) -> int:
    """Return the length in UTF-8 bytes of a source's held-out documents that each evaluation during training reads."""
    return int(_looked_at(plan, source)[:, BYTES].sum())


def _looked_at(plan: Plan, source: int) -> np.ndarray:
    chosen = plan.record.sources[source]
    return plan.held_out[chosen.first_looked_at : chosen.first_looked_at + chosen.look_documents]


class Shards:
    """The token files of a plan. `tokens_of` returns the tokens of a file by its number in the plan."""

    def __init__(self, tokens_of: Callable[[int], np.ndarray]) -> None:
        self._tokens_of = tokens_of

    def rows(self, samples: Sequence[Sample], *, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the tokens, targets and document numbers of rows: three int64 arrays `[samples, length]`.

        The target of a position is the next token of its document, or IGNORED at the document's end. Documents are
        numbered from 0 in each row. A short row is filled with token 0, without targets and with document number -1.
        """
        tokens = np.zeros((len(samples), length), dtype=np.int64)
        targets = np.full((len(samples), length), IGNORED, dtype=np.int64)
        documents = np.full((len(samples), length), -1, dtype=np.int64)
        for row, sample in enumerate(samples):
            at = 0
            for number, segment in enumerate(sample):
                stop = at + segment.length
                following = segment.length - segment.is_end
                run = self._tokens_of(segment.shard)[segment.start : segment.start + following + 1]
                tokens[row, at:stop] = run[: segment.length]
                targets[row, at : at + following] = run[1 : following + 1]
                documents[row, at:stop] = number
                at = stop
        return tokens, targets, documents


def open_shards(plan: Plan, inputs: Mapping[str, InputArtifact], *, verify: bool) -> Shards:
    """Open the plan's shards in the `token_shards` artifacts, which `inputs` holds by fingerprint.

    Raise RefusedInput if a shard is missing, belongs to another artifact than the plan's, has another size or, with
    `verify`, another checksum. Shards that were verified before
    (training.pretrain.parallel.input_verification) are not read again.
    """
    paths = []
    for shard in plan.record.shards:
        item = inputs.get(shard.artifact)
        if item is None or item.digest != shard.digest:
            given = f"digest {item.digest[:12]}" if item else "none"
            raise RefusedInput(
                f"token_shards [{shard.partition}]: the plan was made from digest {shard.digest[:12]}, the job gives"
                f" {given}; materialize training_plan again"
            )
        path = Path(item.path, shard.path)
        if not is_here(path, shard.sha256) or path.stat().st_size != shard.bytes:
            given = f"{path.stat().st_size} bytes" if path.exists() else "no file"
            raise RefusedInput(f"{path}: {given}, the plan says {shard.bytes} bytes; materialize token_shards again")
        if verify and not is_known(path, shard.sha256) and sha256_of(path) != shard.sha256:
            raise RefusedInput(
                f"{path}: its content differs from the checksum in the plan; materialize token_shards again"
            )
        paths.append(path)
    dtype = np.dtype(plan.record.dtype).newbyteorder("<")

    @lru_cache(OPEN_SHARDS)  # a file is mapped at its first use, and the last used ones stay mapped
    def tokens_of(shard: int) -> np.ndarray:
        return np.memmap(paths[shard], dtype=dtype, mode="r").view(np.ndarray)

    return Shards(tokens_of)

"""Which tokens each training step sees: a pure function of the plan and the step.

World size, micro-batch and worker count are not arguments, so they cannot change the result. Needs only numpy and the
standard library.

A sample is one row of tokens. A source's documents are put end to end in a seeded order, another one in each epoch, and
cut into rows of `sequence_length` tokens. In a packed plan (`training.order.packing`) the rows are fixed, and the order
of the rows changes with each epoch.

A phase is a stretch of steps with one row length, batch size and mixture. Within it the sources are interleaved evenly
by exact integer quotas. The next phase continues in each source where the phase before it ended.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from training.artifact import sha256_of
from training.checked import is_known
from training.job import InputArtifact, RefusedInput
from training.order.batch_settings import BatchPhase
from training.order.ledger import Ledger
from training.order.loss_mask import IGNORED
from training.order.packing import Packing, row_of
from training.records import read_record

PLAN_FILE = "plan.json"
DOCUMENTS_FILE = "documents.npy"
HELD_OUT_FILE = "held_out.npy"
PIECES_FILE = "pieces.npy"  # `Packing.pieces`; the next file holds `Packing.ends`
ROW_ENDS_FILE = "row_ends.npy"

# Columns of the arrays `documents` and `held_out`, int64. `start` is the document's first token within its shard,
# `tokens` its number of tokens, and `bytes` the length of its text in UTF-8.
COLUMNS = ("shard", "document", "start", "tokens", "bytes")
SHARD, DOCUMENT, START, TOKENS, BYTES = range(len(COLUMNS))


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
    """One source of the mixture: its share of the samples, and its rows in the arrays `documents` and `held_out`."""

    name: str
    weight: float  # share of the tokens that the mixture asks for, in [0, 1]
    samples: int  # number over the whole run
    first_row: int
    documents: int
    tokens: int  # in one epoch
    held_out_first_row: int
    held_out_documents: int
    held_out_tokens: int
    rows: int = 0  # packed plans only: number of rows in one epoch; the next field is the number of the first row
    first_packed: int = 0

    def capacity(self, length: int) -> int:
        """Return how many positions one epoch takes: its tokens, or all places in its packed rows of `length`."""
        return self.rows * length or self.tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPhase:
    """A stretch of steps with one row length, batch size and mixture, as `plan.json` holds it.

    `samples` is the number of samples of each source in the phase. `mixture` is the number of the set of weights: 0 for
    the recipe's `weights`, 1 and up for its `phases`.
    """

    steps: int
    sequence_length: int
    global_batch_tokens: int
    samples: tuple[int, ...]
    mixture: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRecord:
    """The content of `plan.json`.

    `sequence_length` and `global_batch_tokens` describe the last phase. If `phases` is empty, it is the only phase.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A phase with its place in the run: its number, its first step, and in `starts` each source's earlier tokens."""

    number: int
    first_step: int
    steps: int
    sequence_length: int
    global_batch_tokens: int
    samples: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The number of samples in one global batch."""
        return self.global_batch_tokens // self.sequence_length


class Segment(NamedTuple):
    """Consecutive tokens of one document. `is_end` means that the last of them is the document's last token."""

    shard: int
    document: int
    start: int
    length: int
    is_end: bool


Sample = tuple[Segment, ...]


class Plan:
    """A training plan with its arrays. It caches the document orders that were last used."""

    def __init__(
        self,
        record: PlanRecord,
        documents: np.ndarray,
        held_out: np.ndarray,
        *,
        packing: Packing | None = None,
        digest: str = "",
    ) -> None:
        self.record = record
        self.documents = documents
        self.held_out = held_out
        self.packing = packing
        self.digest = digest
        self.phases = tuple(_placed(record))
        self._orders: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def phase_at(self, step: int) -> Phase:
        """Return the phase of a step. Raise IndexError for a step that the plan does not have."""
        if not 0 <= step < self.record.steps:
            raise IndexError(f"step {step}: the plan has steps 0 to {self.record.steps - 1}")
        return next(phase for phase in reversed(self.phases) if phase.first_step <= step)

    def tokens_before(self, step: int) -> int:
        """Return the number of tokens in all batches before `step`."""
        return sum(
            min(max(0, step - phase.first_step), phase.steps) * phase.global_batch_tokens for phase in self.phases
        )

    def order(self, source: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a source's rows of `documents` in the order of an epoch, and the token position where each row ends.

        For a packed plan, return the rows of the packing in the order of the epoch, and an empty array.
        """
        key = (source, epoch)
        if key not in self._orders:
            # Neighbouring steps need this epoch, and the next one if a sample crosses into it.
            for old in [kept for kept in self._orders if kept[0] == source and kept[1] < epoch - 1]:
                del self._orders[old]
            chosen = self.record.sources[source]
            first, count = (chosen.first_packed, chosen.rows) if self.packing else (chosen.first_row, chosen.documents)
            rows = first + permutation(count, seed=self.record.seed, epoch=epoch, source=chosen.name)
            ends = rows[:0] if self.packing else np.cumsum(self.documents[rows, TOKENS])
            self._orders[key] = rows, ends
        return self._orders[key]


def _placed(record: PlanRecord) -> Iterator[Phase]:
    """Yield the phases of a plan's record, each with its first step and the starts of its sources."""
    only = PlannedPhase(
        steps=record.steps,
        sequence_length=record.sequence_length,
        global_batch_tokens=record.global_batch_tokens,
        samples=tuple(source.samples for source in record.sources),
    )
    first, starts = 0, (0,) * len(record.sources)
    for number, phase in enumerate(record.phases or (only,)):
        yield Phase(
            number=number,
            first_step=first,
            steps=phase.steps,
            sequence_length=phase.sequence_length,
            global_batch_tokens=phase.global_batch_tokens,
            samples=phase.samples,
            starts=starts,
        )
        first += phase.steps
        starts = tuple(
            start + count * phase.sequence_length for start, count in zip(starts, phase.samples, strict=True)
        )


def shapes(phases: Iterable[PlannedPhase | Phase | BatchPhase]) -> tuple[tuple[int, int, int], ...]:
    """Return (sequence length, batch tokens, steps) of phases, with neighbours of one length and batch size joined."""
    key = attrgetter("sequence_length", "global_batch_tokens")
    return tuple((*shape, sum(phase.steps for phase in same)) for shape, same in groupby(phases, key=key))


def read_plan(folder: Path, *, digest: str = "") -> Plan:
    """Return the plan in `folder`. Its arrays are memory-mapped."""
    record = read_record(PlanRecord, json.loads((folder / PLAN_FILE).read_text("utf-8")), where="plan")
    documents, held_out = _mapped(folder, DOCUMENTS_FILE, HELD_OUT_FILE)
    packing = Packing(*_mapped(folder, PIECES_FILE, ROW_ENDS_FILE)) if record.packing == "best_fit" else None
    return Plan(record, documents, held_out, packing=packing, digest=digest)


def _mapped(folder: Path, *names: str) -> list[np.ndarray]:
    return [np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in names]


def permutation(count: int, *, seed: int, epoch: int, source: str) -> np.ndarray:
    """Return a shuffle of 0 … count - 1 that depends only on the arguments.

    It sorts raw Philox output, which numpy promises to keep the same over versions, unlike its own `permutation`.
    """
    key = np.frombuffer(hashlib.sha256(f"{seed}/{epoch}/{source}".encode()).digest()[:16], dtype="<u8")
    return np.argsort(np.random.Philox(key=key).random_raw(count), kind="stable")


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
    return interleaved(phase.samples, first=(step - phase.first_step) * phase.rows, count=phase.rows)


def documents_at(plan: Plan, step: int, ledger: Ledger = Ledger()) -> list[tuple[int, int]]:  # noqa: B008 - immutable
    """Return (shard, document number in the shard) of every document that a step trains on, each once, sorted."""
    return sorted({(segment.shard, segment.document) for sample in index(plan, step, ledger) for segment in sample})


def trained_tokens(samples: Sequence[Sample]) -> int:
    """Return the number of positions with a target: all tokens except the last of each document."""
    return sum(segment.length - segment.is_end for sample in samples for segment in sample)


def interleaved(quotas: Sequence[int], *, first: int, count: int) -> list[tuple[int, int]]:
    """Return (source, sample number of the source) for `count` places from `first` of the sources' even interleaving.

    `quotas` is the number of samples of each source. Sample k of a source with n samples is at time (2k + 1) / 2n of
    the run; ties go to the earlier source. The places before `first` are computed without a loop over them.
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


def _sample(plan: Plan, source: int, *, start: int, length: int) -> Sample:
    """Return the segments of `length` tokens of a source that begin at token `start` of its epochs end to end.

    In packed plans `start` also counts the empty places of the rows.
    """
    if plan.packing is not None:
        epoch, place = divmod(start // length, plan.record.sources[source].rows)
        return _packed(plan, plan.packing, int(plan.order(source, epoch)[0][place]))
    epoch, position = divmod(start, plan.record.sources[source].tokens)
    segments: list[Segment] = []
    while length:
        rows, ends = plan.order(source, epoch)
        place = int(np.searchsorted(ends, position, side="right"))
        while length and place < len(rows):
            shard, document, first, tokens, _ = map(int, plan.documents[rows[place]])
            skipped = position - (int(ends[place]) - tokens)
            taken = min(length, tokens - skipped)
            segments.append(Segment(shard, document, first + skipped, taken, skipped + taken == tokens))
            length, position, place = length - taken, position + taken, place + 1
        epoch, position = epoch + 1, 0
    return tuple(segments)


def _packed(plan: Plan, packing: Packing, number: int) -> Sample:
    """Return the segments of one packed row."""
    segments = []
    for document_row, offset, taken in row_of(packing, number):
        shard, document, first, tokens, _ = map(int, plan.documents[document_row])
        segments.append(Segment(shard, document, first + offset, taken, offset + taken == tokens))
    return tuple(segments)


def held_out_samples(plan: Plan, source: int) -> list[Sample]:
    """Return the held-out documents of a source, in the plan's order and end to end, cut into rows.

    The last row may be short.
    """
    chosen = plan.record.sources[source]
    rows = plan.held_out[chosen.held_out_first_row : chosen.held_out_first_row + chosen.held_out_documents]
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
    """Return the length of a source's held-out documents in UTF-8 bytes."""
    chosen = plan.record.sources[source]
    return int(
        plan.held_out[chosen.held_out_first_row : chosen.held_out_first_row + chosen.held_out_documents, BYTES].sum()
    )


class Shards:
    """The plan's token files, memory-mapped."""

    def __init__(self, files: Sequence[np.ndarray]) -> None:
        self._files = files

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
                run = self._files[segment.shard][segment.start : segment.start + following + 1]
                tokens[row, at:stop] = run[: segment.length]
                targets[row, at : at + following] = run[1 : following + 1]
                documents[row, at:stop] = number
                at = stop
        return tokens, targets, documents


def open_shards(plan: Plan, inputs: Mapping[str, InputArtifact], *, verify: bool) -> Shards:
    """Open the plan's shards in the `token_shards` artifacts, which `inputs` holds by fingerprint.

    Raise RefusedInput if a shard is missing, belongs to another artifact than the plan's, has another size or, with
    `verify`, another checksum. A shard that was read for this before (training.pretrain.shares) is not read again.
    """
    files = []
    for shard in plan.record.shards:
        item = inputs.get(shard.artifact)
        if item is None or item.digest != shard.digest:
            given = f"digest {item.digest[:12]}" if item else "none"
            raise RefusedInput(
                f"token_shards [{shard.partition}]: the plan was made from digest {shard.digest[:12]}, the job gives"
                f" {given}; materialize training_plan again"
            )
        path = Path(item.path, shard.path)
        if not path.exists() or path.stat().st_size != shard.bytes:
            given = f"{path.stat().st_size} bytes" if path.exists() else "no file"
            raise RefusedInput(f"{path}: {given}, the plan says {shard.bytes} bytes; materialize token_shards again")
        if verify and not is_known(path, shard.sha256) and sha256_of(path) != shard.sha256:
            raise RefusedInput(
                f"{path}: its content differs from the checksum in the plan; materialize token_shards again"
            )
        files.append(np.memmap(path, dtype=np.dtype(plan.record.dtype).newbyteorder("<"), mode="r"))
    return Shards(files)

"""Which pages the trainings of a recipe read, and how much of each: plan and ledger followed over all steps.

A document in the shards may never be read: a plan can end within an epoch, hold documents out, or give a source a small
share. Every epoch that is read to its end is counted at once; only the last one is followed document by document. For
each document of a plan eight bytes are held, and one document file of a snapshot at a time.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evaluation.hub.sourced import Cited, Origin, Value, derived
from evaluation.report.truth_comparison import Record, of_asset
from training.contract.job import DataError
from training.contract.scopes import CHOSEN_MODEL, KEPT_ON_PAGES
from training.data.tokens.shards import SHARDS_FILE, SIDECAR, TOKENS
from training.data.urls import site_of
from training.order.batches import PLAN_FILE, Plan, index, read_plan, sample_ids, samples_before
from training.order.documents import DOCUMENT, FIRST, SHARD
from training.order.later_steps import ledger_before
from training.order.ledger import LEDGER_FILE, Ledger, read_ledger
from training.order.shuffle import Shuffle
from training.provenance.steps import Steps

ROWS_AT_ONCE = 1 << 14  # packed rows


@dataclass(frozen=True, slots=True)
class TrainedByPlan:
    """A training of a base or long-context model: its plan, and the steps that its ledger skips."""

    plan_from: Origin
    model_from: Origin
    plan: Plan = field(repr=False)
    ledger: Ledger

    @property
    def asset(self) -> str:
        """The asset that was trained."""
        return str(self.model_from.record["asset"])

    @property
    def sources(self) -> tuple[Cited, Cited]:
        """What a count of this training comes from: its plan, and the model, whose ledger names skipped steps."""
        model = self.model_from
        ledger = model.computed(LEDGER_FILE, "") if model.has(LEDGER_FILE) else model.value_at("metrics", of=str)
        return self.plan_from.computed(PLAN_FILE, ""), ledger


def trainings_of(records: Sequence[Record]) -> list[TrainedByPlan]:
    """Return the trainings by a plan among these artifacts, in their order.

    Where a step of one was chosen, the training up to this step counts, which is all that the chosen model read.
    """
    chosen = {record["notes"]["choice"]["last"]: (folder, record) for folder, record in of_asset(records, CHOSEN_MODEL)}
    by_name = {(record["asset"], record["fingerprint"]): (folder, record) for folder, record in records}
    found = []
    for folder, record in records:
        plans = [one for one in record["inputs"] if one["asset"].endswith("_plan")]
        for one in plans[:1] if record["asset"].endswith("_model") or record["asset"] in KEPT_ON_PAGES else ():
            plan = by_name.get((one["asset"], one["fingerprint"]))
            if plan is not None:
                whole, model = Origin(folder, record), Origin(*chosen.get(record["fingerprint"], (folder, record)))
                ledger = read_ledger(folder) if whole.has(LEDGER_FILE) else Ledger()
                opened = read_plan(plan[0], digest=plan[1]["digest"])
                steps = opened.record.steps
                last = record["settings"].get("kept", {}).get("step", steps)
                last = last if model == whole else int(model.record["metrics"]["steps"])
                found.append(TrainedByPlan(Origin(*plan), model, opened, ledger_before(ledger, last, steps=steps)))
    return found


class EpochsRead(NamedTuple):
    """Successive epochs of a source that were read alike: `tokens` are those read of each document in one epoch."""

    source: int
    first: int
    last: int
    tokens: np.ndarray


def epochs_read(plan: Plan, ledger: Ledger) -> Iterator[EpochsRead]:
    """Yield what a training read of each source, epoch by epoch; whole epochs that follow each other are joined.

    Epochs that begin after the last step are left out.
    """
    steps = set(ledger.steps)
    end = next((step for step in range(plan.record.steps, 0, -1) if step - 1 not in steps), 0)
    skipped = _skipped(plan, sorted(step for step in steps if step < end))
    positions = _positions_before(plan, end)
    for number, source in enumerate(plan.record.sources):
        capacity = source.capacity(plan.packing.length if plan.packing else 0)
        read = positions[number]
        whole, rest = divmod(read, capacity) if capacity else (0, 0)
        documents = np.arange(source.first_document, source.first_document + source.all_documents)
        everything = plan.documents.trained_tokens_of(documents)
        changed = sorted({epoch for own, epoch in skipped if own == number and epoch < whole})
        for first, last in _between(changed, whole):
            yield EpochsRead(number, first, last, everything)
        for epoch in changed:
            yield EpochsRead(number, epoch, epoch, everything - skipped[number, epoch])
        if rest:
            tokens = _beginning(plan, number, whole, rest)
            yield EpochsRead(number, whole, whole, tokens - skipped.get((number, whole), 0))


def _positions_before(plan: Plan, step: int) -> list[int]:
    """Return how many positions of each source's epochs the steps before `step` have."""
    found = [0] * len(plan.record.sources)
    for phase in plan.phases:
        taken = min(max(0, step - phase.first_step), phase.steps) * phase.rows
        for number, samples in enumerate(samples_before(phase.alternating, taken)):
            found[number] += samples * phase.sequence_length
    return found


def _between(changed: Sequence[int], stop: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each stretch below `stop` without the numbers in `changed`."""
    for before, after in itertools.pairwise([-1, *changed, stop]):
        if after - before > 1:
            yield before + 1, after - 1


def _beginning(plan: Plan, number: int, epoch: int, positions: int) -> np.ndarray:
    """Return the tokens that the first positions of an epoch have of each document of a source, int64."""
    source = plan.record.sources[number]
    found = np.zeros(source.all_documents, dtype=np.int64)
    if plan.packing is not None:
        shuffle = Shuffle(source.rows, seed=plan.record.seed, epoch=epoch, source=source.name)
        for first in range(0, positions // plan.packing.length, ROWS_AT_ONCE):
            places = np.arange(first, min(first + ROWS_AT_ONCE, positions // plan.packing.length))
            documents, starts, _ = plan.packing.pieces_of(source.first_packed + shuffle.numbers(places))
            tokens = np.minimum(plan.packing.length, plan.documents.trained_tokens_of(documents) - starts)
            np.add.at(found, documents - source.first_document, tokens)
        return found
    starts = plan.starts_of_blocks(number, epoch)
    for block in range(int(np.searchsorted(starts, positions, side="left"))):
        documents, ends = plan.documents_of_block(number, epoch, block)
        begins = ends - plan.documents.trained_tokens_of(documents)
        found[documents - source.first_document] += np.maximum(np.minimum(ends, positions) - begins, 0)
    return found


def _skipped(plan: Plan, skipped: Sequence[int]) -> dict[tuple[int, int], np.ndarray]:
    """Return the tokens that skipped steps would have read of each document, by source and epoch."""
    steps, found = Steps(plan), dict[tuple[int, int], np.ndarray]()
    for step in skipped:
        phase = plan.phase_at(step)
        for (number, sample), row in zip(sample_ids(plan, step), index(plan, step), strict=True):
            source = plan.record.sources[number]
            capacity = source.capacity(plan.packing.length if plan.packing else 0)
            at = phase.starts[number] + sample * phase.sequence_length
            for segment in row:
                own = found.setdefault((number, at // capacity), np.zeros(source.all_documents, dtype=np.int64))
                own[steps.number(segment.shard, segment.document) - source.first_document] += segment.length
                at += segment.length
    return found


# Pages by what they have in common

COUNTED = ("pages", "tokens", "bytes", "pages_read", "tokens_read")
GROUPS = ("snapshot", "source", "host", "language", "licence", "robots", "tdm_reservation")
_OF_PAGES = ("language", "licence", "robots", "tdm_reservation", "date")
FOLDER = "documents"
DOCUMENTS, SHARDS = "decontaminated_documents", "token_shards"
Sums = dict[str, list[int]]  # name → the numbers of COUNTED


@dataclass(kw_only=True, slots=True)
class Reading:
    """The pages in the shards and what the trainings read of them, summed up by each of GROUPS.

    `days` are the first and the last day that pages read name as theirs, by snapshot. `redactions` are placeholders
    for personal data in the pages read, by kind. `sources` say where the numbers come from.
    """

    trainings: Sequence[TrainedByPlan]
    sums: dict[str, Sums] = field(default_factory=lambda: {name: {} for name in GROUPS})
    days: dict[str, tuple[str, str]] = field(default_factory=dict)
    redactions: Counter[str] = field(default_factory=Counter)
    sources: list[Cited] = field(default_factory=list)

    @property
    def whole(self) -> list[int]:
        """The numbers of COUNTED over all pages."""
        return [sum(column) for column in zip(*self.sums["snapshot"].values(), strict=True)] or [0] * len(COUNTED)

    def read(self, group: str) -> list[str]:
        """Return the names in a group, such as the languages, of which tokens were read, the one with most first."""
        own = {name: sums[-1] for name, sums in self.sums[group].items() if sums[-1]}
        return sorted(own, key=lambda name: (-own[name], name))

    def cited(self, value: Value) -> Cited:
        """Return a number of this reading with the artifacts that it comes from."""
        return derived(value, *self.sources)


def reading_of(records: Sequence[Record]) -> Reading | None:
    """Return which pages of the shards were read, or None if there are no shards among these artifacts."""
    shards = [Origin(*one) for one in of_asset(records, SHARDS)]
    if not shards:
        return None
    trainings = trainings_of(records)
    for training in trainings:
        _check_own_counts(training)
    read = _tokens_read(trainings)
    found = Reading(trainings=trainings)
    documents = {record["fingerprint"]: Origin(folder, record) for folder, record in of_asset(records, DOCUMENTS)}
    for shard in shards:
        own = next(documents[one["fingerprint"]] for one in shard.record["inputs"] if one["asset"] == DOCUMENTS)
        found.sources += [shard.computed("shards.json", "shards"), own.computed(FOLDER, "pages")]
        for rank in range(len(_files(own))):
            _add_file(found, own, rank, _sidecars(shard, rank, read))
    found.sources += [source for training in trainings for source in training.sources]
    return found


def _check_own_counts(training: TrainedByPlan) -> None:
    """Raise DataError if a model counted other steps or tokens than its plan and its ledger give."""
    own, plan = training.model_from.record["metrics"], training.plan
    skipped = training.ledger.steps
    later = sum("later" in training.ledger.reasons(step) for step in skipped)
    tokens = plan.tokens_before(plan.record.steps) - sum(plan.phase_at(step).global_batch_tokens for step in skipped)
    expected = {"steps": plan.record.steps - later, "tokens": tokens, "skipped_steps": len(skipped) - later}
    if wrong := [name for name, number in expected.items() if own.get(name, number) != number]:
        raise DataError(
            f"{training.asset}: counted {own[wrong[0]]:.0f} {wrong[0]}, its plan and ledger give {expected[wrong[0]]}"
        )


def tokens_read(plan: Plan, ledger: Ledger) -> np.ndarray:
    """Return how many tokens of each document of a plan a training read, repetitions included, int64."""
    found = np.zeros(len(plan.documents), dtype=np.int64)
    for one in epochs_read(plan, ledger):
        first = plan.record.sources[one.source].first_document
        found[first : first + len(one.tokens)] += (one.last - one.first + 1) * one.tokens
    return found


def _tokens_read(trainings: Sequence[TrainedByPlan]) -> dict[tuple[str, str], np.ndarray]:
    """Return the tokens that all trainings read of each document of a shard, by artifact and path of the shard."""
    found: dict[tuple[str, str], np.ndarray] = {}
    for training in trainings:
        plan, read = training.plan, tokens_read(training.plan, training.ledger)
        ends = [*plan.documents.runs[FIRST][1:], len(plan.documents)]
        for run, end in zip(plan.documents.runs.T, ends, strict=True):
            shard = plan.record.shards[run[SHARD]]
            own = found.setdefault((shard.artifact, shard.path), np.zeros(shard.documents, dtype=np.int64))
            own[run[DOCUMENT] : run[DOCUMENT] + end - run[FIRST]] += read[run[FIRST] : end]
    return found


def _files(documents: Origin) -> list[str]:
    paths = (entry["path"] for entry in documents.record["files"])
    return sorted(path for path in paths if path.startswith(f"{FOLDER}/") and path.endswith(".parquet"))


def _sidecars(shards: Origin, rank: int, read: Mapping[tuple[str, str], np.ndarray]) -> pa.Table:
    """Return the documents in the shards of one document file, with the tokens that were read of each."""
    tables = []
    for entry in json.loads((shards.folder / SHARDS_FILE).read_text("utf-8"))["shards"]:
        if int(entry["name"].partition("-")[0]) == rank:
            path = shards.folder / (entry["path"].removesuffix(TOKENS) + SIDECAR)
            table = pq.read_table(path, columns=["id", "url", "snapshot", "source", "tokens", "bytes"])
            own = read.get((shards.record["fingerprint"], entry["path"]), np.zeros(len(table), dtype=np.int64))
            tables.append(table.append_column("tokens_read", pa.array(own)))
    return pa.concat_tables(tables) if tables else pa.table({"id": pa.array([], pa.string())})


def _add_file(found: Reading, documents: Origin, rank: int, table: pa.Table) -> None:
    """Add the pages of one document file. Raise DataError if a document in the shards is none of them."""
    pages = pq.read_table(documents.folder / _files(documents)[rank], columns=["id", *_OF_PAGES, "redactions"])
    places = pc.index_in(table["id"], pages["id"])
    if places.null_count:
        raise DataError(f"{documents.record['asset']}: the shards hold a document that is not in file {rank}")
    if not len(table):
        return
    is_read = pc.cast(pc.greater(table["tokens_read"], 0), pa.int64())
    own = pages.take(places)
    columns = {name: own[name] for name in _OF_PAGES} | {name: table[name] for name in table.column_names}
    columns |= {
        "host": pa.array([site_of(url or "") for url in table["url"].to_pylist()]),
        "pages": pa.array(np.ones(len(table), dtype=np.int64)),
        "pages_read": is_read,
    }
    whole = pa.table(columns)
    for group in GROUPS:
        grouped = whole.group_by(group).aggregate([(name, "sum") for name in COUNTED])
        for row in grouped.to_pylist():
            sums = found.sums[group].setdefault(row[group] or "", [0] * len(COUNTED))
            for place, name in enumerate(COUNTED):
                sums[place] += row[f"{name}_sum"]
    chosen = pc.equal(is_read, 1)
    _add_days(found, whole.filter(chosen))
    for text in own["redactions"].filter(chosen).to_pylist():
        found.redactions.update(json.loads(text or "{}"))


def _add_days(found: Reading, read: pa.Table) -> None:
    for name in read["snapshot"].unique().to_pylist():
        dated = [day for day in read.filter(pc.equal(read["snapshot"], name))["date"].to_pylist() if day]
        known = [*found.days.get(name, ()), *(day[:10] for day in dated)]
        if known:
            found.days[name] = (min(known), max(known))

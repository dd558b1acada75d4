"""The training plan: which documents are trained on, in which shares, and which are held out.

Reads the sidecars of the token shards and writes `plan.json` and its arrays. `training.order.batches` computes from
these files alone which tokens each step sees.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from training.artifact import write_json, written
from training.job import Counts, DataError, Gate, InputArtifact, Job, Outcome, RefusedInput, Work
from training.order import batches
from training.order.batch_settings import BatchesRecipe, BatchPhase
from training.order.batches import TOKENS, Plan, PlannedPhase, PlannedShard, PlannedSource, PlanRecord
from training.order.held_out import is_held_out
from training.order.packing import Packing, best_fit, cut_documents, joined
from training.order.settings import MixtureRecipe
from training.records import RecipeError, differing_from_defaults

WEIGHTS_FILE = "weights.json"  # file of the artifact `mixture_weights`

# How fast repeated tokens lose their value, in epochs beyond the first (R*_D of Muennighoff et al., arXiv 2305.16264,
# appendix A).
REPETITION_DECAY = 15.387756
MAX_SHARE_DIFFERENCE = 0.005  # largest allowed difference between a source's share in the mixture and in the plan


@dataclass(frozen=True, kw_only=True, slots=True)
class _Documents:
    """The documents of all shards: int64 columns as in `batches.COLUMNS`, their sources, and which are held out."""

    columns: np.ndarray
    sources: np.ndarray
    is_held_out: np.ndarray


class Size(NamedTuple):
    """The size of a source: documents and tokens for training, held-out documents and tokens, and packed rows.

    Without packing `rows` is 0.
    """

    documents: int
    tokens: int
    held_out_documents: int
    held_out_tokens: int
    rows: int = 0

    def capacity(self, length: int) -> int:
        """Return the positions of one epoch in rows of `length`: the tokens, or all positions of packed rows."""
        return self.rows * length or self.tokens

    def fill(self, length: int) -> float:
        """Return the share of positions in the source's rows of `length` tokens that hold a token."""
        return self.tokens / (self.rows * length) if self.rows else 1.0


def run(job: Job, work: Work) -> Outcome:
    """Write the training plan of one recipe, with the gate on its shares."""
    mixture = job.settings_as(MixtureRecipe, "mixture")
    pretrain = job.settings_as(BatchesRecipe, "pretrain")
    tokenizer = job.input_of("tokenizer")
    inputs = job.inputs_of("token_shards")
    tokenizer_digest = tokenizer.digest
    listings = [_listing(item, tokenizer_digest) for item in inputs]
    shards = tuple(shard for item in inputs for shard in _planned_shards(item))
    documents = _read_documents(
        shards, {item.fingerprint: item for item in inputs}, held_out_fraction=mixture.held_out_fraction
    )
    packings = _packings(documents, pretrain)
    sizes = _sizes(documents, packings)
    mixture = _found_weights(job, mixture)
    affordable = job.settings.get("affordable", {}).get("tokens")
    budget = token_budget(sizes, mixture, pretrain, affordable) if pretrain.tokens == "auto" else None
    if budget:
        pretrain = pretrain.of_tokens(budget.tokens)
    phases = plan_phases(sizes, mixture, pretrain.phases)
    sources = plan_sources(sizes, mixture, phases)
    shares = realized_shares(sizes, mixture, phases)
    record = PlanRecord(
        seed=pretrain.seed,
        sequence_length=pretrain.sequence_length,
        global_batch_tokens=pretrain.global_batch_tokens,
        steps=pretrain.steps,
        tokenizer_digest=tokenizer_digest,
        eos_id=_same(listings, "eos_id"),
        dtype=_same(listings, "dtype"),
        shards=shards,
        sources=sources,
        phases=phases if len(phases) > 1 else (),
        packing=pretrain.packing,
    )
    files = _write(work, record, documents, packings)
    plan = batches.read_plan(work.path)
    # `records_in` counts the documents by the shards' offsets, `kept` the documents in the written plan's arrays.
    counts = Counts(records_in=sum(shard.documents for shard in shards), kept=len(plan.documents) + len(plan.held_out))
    notes = {"resolved": str(budget)} if budget else {}
    return _outcome(plan, shares, files, counts, notes)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBudget:
    """The number that `tokens: auto` stands for, and the field of the recipe that limits it."""

    tokens: int
    limited_by: str

    def __str__(self) -> str:
        return f"pretrain.tokens: auto is {self.tokens:,}, limited by {self.limited_by}"


def token_budget(
    sizes: Mapping[str, Size], mixture: MixtureRecipe, pretrain: BatchesRecipe, affordable: int | None
) -> TokenBudget:
    """Return the largest number of tokens, in whole batches, within the epochs of every source and `affordable` tokens.

    Raise RecipeError if that is less than one batch.
    """
    length, batch = pretrain.sequence_length, pretrain.global_batch_tokens
    limits = {"pretrain.compute_budget": float(affordable)} if affordable is not None else {}
    for name, share in _row_weights(sizes, _weights(sizes, mixture)[0], length).items():
        if share:
            allowed = mixture.source_epochs.get(name, mixture.max_epochs) * sizes[name].capacity(length)
            # A source may give one row more than its share, because rows are not divided.
            limits[f"the epochs of source {name}"] = (allowed - length * (len(sizes) > 1)) / share
    limited_by = min(limits, key=lambda name: (limits[name], name))
    tokens = int(limits[limited_by]) // batch * batch
    if tokens < batch:
        raise RecipeError(
            f"pretrain.tokens: auto is less than one batch of {batch:,} tokens; {limited_by} allows"
            f" {max(0, int(limits[limited_by])):,}. Add documents, or lower pretrain.global_batch_tokens"
        )
    return TokenBudget(tokens=tokens, limited_by=limited_by)


def _found_weights(job: Job, mixture: MixtureRecipe) -> MixtureRecipe:
    """Return the mixture, with the weights that DoReMi found if the recipe asks for them."""
    found = job.inputs_of("mixture_weights")
    if not found:
        return mixture
    return replace(mixture, weights=json.loads(found[0].file(WEIGHTS_FILE).read_text("utf-8"))["weights"])


def effective_tokens(unique: float, seen: float) -> float:
    """Return how many unique tokens are worth as much as `seen` tokens that repeat `unique` tokens.

    D' = U + U · R* · (1 - exp(-R / R*)) with R = epochs beyond the first, R* = 15.39 (arXiv 2305.16264, equation 5).
    """
    repeats = max(0.0, seen / unique - 1)
    return min(seen, unique) + unique * REPETITION_DECAY * (1 - exp(-repeats / REPETITION_DECAY))


def plan_phases(
    sizes: Mapping[str, Size], mixture: MixtureRecipe, phases: Sequence[BatchPhase]
) -> tuple[PlannedPhase, ...]:
    """Return the plan's phases, with the number of samples of each source, in alphabetical order of the sources.

    A phase of batches is split where the mixture changes, at the first step that begins at or after the new mixture's
    start. Raise RecipeError if a weight names no source, a source has no weight, or a mixture gets no step.
    """
    weights = _weights(sizes, mixture)
    planned = tuple(
        PlannedPhase(
            steps=steps,
            sequence_length=phase.sequence_length,
            global_batch_tokens=phase.global_batch_tokens,
            samples=tuple(
                _quotas(_row_weights(sizes, weights[number], phase.sequence_length), steps * phase.rows).values()
            ),
            mixture=number,
        )
        for phase, number, steps in _stretches(phases, [later.start for later in mixture.phases])
    )
    idle = set(range(len(weights))) - {phase.mixture for phase in planned}
    if idle:
        starts = ", ".join(f"{later.start:g}" for later in mixture.phases)
        raise RecipeError(f"mixture.phases: starts {starts} leave one of the mixtures without a step; spread them out")
    return planned


def _row_weights(sizes: Mapping[str, Size], weights: Mapping[str, float], length: int) -> Mapping[str, float]:
    """Return the shares of rows that give these shares of tokens: more rows of a source whose rows are emptier."""
    if not any(size.rows for size in sizes.values()):
        return weights  # every row is full
    needed = {name: weight / sizes[name].fill(length) for name, weight in weights.items()}
    return {name: one / sum(needed.values()) for name, one in needed.items()}


def _stretches(phases: Sequence[BatchPhase], starts: Sequence[float]) -> Iterator[tuple[BatchPhase, int, int]]:
    """Yield (phase of batches, number of the mixture, steps) for each stretch with one mixture, in order."""
    total = sum(phase.steps * phase.global_batch_tokens for phase in phases)
    first = 0  # the phase's first token
    for phase in phases:
        before = [-((first - round(start * total)) // phase.global_batch_tokens) for start in starts]
        cuts = [0, *(min(max(steps, 0), phase.steps) for steps in before), phase.steps]
        for number, (begin, end) in enumerate(pairwise(cuts)):
            if end > begin:
                yield phase, number, end - begin
        first += phase.steps * phase.global_batch_tokens


def plan_sources(
    sizes: Mapping[str, Size], mixture: MixtureRecipe, phases: Sequence[PlannedPhase]
) -> tuple[PlannedSource, ...]:
    """Return the sources in alphabetical order, with their number of samples in all phases.

    Raise RecipeError if a source would be read for more epochs than `max_epochs` or its `source_epochs` allows.
    """
    weights = _overall_weights(sizes, mixture, phases)
    if unknown := sorted(set(mixture.source_epochs) - set(sizes)):
        raise RecipeError(
            f"mixture.source_epochs names {', '.join(unknown)}; the shards hold {', '.join(sorted(sizes))}"
        )
    sources = []
    first, held_first, first_packed = 0, 0, 0
    for number, name in enumerate(sorted(sizes)):
        size = sizes[name]
        source = PlannedSource(
            name=name,
            weight=weights[name],
            samples=sum(phase.samples[number] for phase in phases),
            first_row=first,
            documents=size.documents,
            tokens=size.tokens,
            held_out_first_row=held_first,
            held_out_documents=size.held_out_documents,
            held_out_tokens=size.held_out_tokens,
            rows=size.rows,
            first_packed=first_packed,
        )
        wanted = sum(phase.samples[number] * phase.sequence_length for phase in phases)
        available = source.capacity(phases[-1].sequence_length)
        limit = mixture.source_epochs.get(name, mixture.max_epochs)
        _check_epochs(name, available=available, wanted=wanted, max_epochs=limit)
        sources.append(source)
        first, held_first = first + size.documents, held_first + size.held_out_documents
        first_packed += size.rows
    return tuple(sources)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """The shares of tokens by source, in [0, 1], that a mixture asks for and that the plan gives while it holds."""

    steps: int
    tokens: int
    samples: int
    asked: dict[str, float]
    given: dict[str, float]

    @property
    def largest_difference(self) -> float:
        """The largest difference, over all sources, between the share that is asked for and the share that is given."""
        return max(abs(self.given[name] - asked) for name, asked in self.asked.items())

    @property
    def tolerance(self) -> float:
        """MAX_SHARE_DIFFERENCE, or the share of one sample if the mixture has too few samples to come nearer."""
        return max(MAX_SHARE_DIFFERENCE, 1 / self.samples)


def realized_shares(
    sizes: Mapping[str, Size], mixture: MixtureRecipe, phases: Sequence[PlannedPhase]
) -> tuple[Shares, ...]:
    """Return the asked and given shares of each mixture, in the order in which the mixtures are used."""
    return tuple(
        _shares(sizes, weights, [phase for phase in phases if phase.mixture == number])
        for number, weights in enumerate(_weights(sizes, mixture))
    )


def _shares(sizes: Mapping[str, Size], weights: Mapping[str, float], phases: Sequence[PlannedPhase]) -> Shares:
    given = [
        sum(phase.samples[number] * phase.sequence_length * sizes[name].fill(phase.sequence_length) for phase in phases)
        for number, name in enumerate(weights)
    ]
    tokens = sum(given)
    return Shares(
        steps=sum(phase.steps for phase in phases),
        tokens=round(tokens),
        samples=sum(sum(phase.samples) for phase in phases),
        asked=dict(weights),
        given={name: one / tokens for name, one in zip(weights, given, strict=True)},
    )


def _overall_weights(
    sizes: Mapping[str, Size], mixture: MixtureRecipe, phases: Sequence[PlannedPhase]
) -> dict[str, float]:
    """Return the share of all training tokens that the mixtures together ask of each source."""
    weights = _weights(sizes, mixture)
    if len(weights) == 1:
        return weights[0]
    tokens = [sum(p.steps * p.global_batch_tokens for p in phases if p.mixture == n) for n in range(len(weights))]
    return {
        name: sum(part * one[name] for part, one in zip(tokens, weights, strict=True)) / sum(tokens)
        for name in weights[0]
    }


def _weights(sizes: Mapping[str, Size], mixture: MixtureRecipe) -> list[dict[str, float]]:
    """Return the weights of each mixture, by source in alphabetical order, normalized to a sum of 1."""
    by_size = {name: float(size[1]) for name, size in sizes.items()}
    first = _normalized("mixture.weights", mixture.weights or by_size, sizes)
    return [first, *(_normalized("mixture.phases: weights", later.weights, sizes) for later in mixture.phases)]


def _normalized(where: str, given: Mapping[str, float], sizes: Iterable[str]) -> dict[str, float]:
    if set(given) != set(sizes):
        raise RecipeError(
            f"{where} names {', '.join(sorted(given))}; the shards hold {', '.join(sorted(sizes))}."
            " Give each source one weight; 0 leaves it out"
        )
    total = sum(given.values())
    if total <= 0 or min(given.values()) < 0:
        raise RecipeError(f"{where}={dict(sorted(given.items()))}; none may be negative and one must be above 0")
    return {name: given[name] / total for name in sorted(given)}


def _quotas(weights: Mapping[str, float], samples: int) -> dict[str, int]:
    """Divide `samples` among the sources by weight, in whole numbers, by the largest-remainder method."""
    exact = {name: weight * samples for name, weight in weights.items()}
    quotas = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (quotas[name] - exact[name], name))
    for name in by_remainder[: samples - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def _check_epochs(name: str, *, available: int, wanted: int, max_epochs: float) -> None:
    if wanted == 0:
        return
    if available == 0:
        raise RecipeError(f"mixture: source {name!r} has no training documents and should give {wanted} tokens")
    if wanted > max_epochs * available:
        worth = effective_tokens(available, wanted)
        raise RecipeError(
            f"mixture: source {name!r} should give {wanted:,} tokens and has {available:,}:"
            f" {wanted / available:.2f} epochs, above max_epochs={max_epochs:g}. That many would be worth about"
            f" {worth:,.0f} unique tokens. Lower pretrain.tokens or its weight, add documents or"
            " raise mixture.max_epochs or its own of mixture.source_epochs"
        )


def _listing(item: InputArtifact, tokenizer_digest: str) -> dict[str, Any]:
    """Return the content of an input's `shards.json`. Raise RefusedInput if it was made with another tokenizer."""
    listing = json.loads(item.file("shards.json").read_text("utf-8"))
    if listing["tokenizer_digest"] != tokenizer_digest:
        raise RefusedInput(
            f"token_shards [{item.partition}] were made with tokenizer {listing['tokenizer_digest'][:12]}, the"
            f" recipe's is {tokenizer_digest[:12]}; materialize token_shards again"
        )
    return listing


def _same(listings: list[dict[str, Any]], field: str) -> Any:
    values = {listing[field] for listing in listings}
    if len(values) != 1:
        raise DataError(f"token_shards: {field} must be one value for all snapshots, found {sorted(map(str, values))}")
    return values.pop()


def _planned_shards(item: InputArtifact) -> list[PlannedShard]:
    """Return the token files in an input's manifest, sorted by name."""
    return [
        PlannedShard(
            partition=item.partition,
            artifact=item.fingerprint,
            digest=item.digest,
            path=entry["path"],
            bytes=entry["bytes"],
            sha256=entry["sha256"],
            documents=len(np.load(item.file(_beside(entry["path"], ".offsets.npy")), mmap_mode="r")) - 1,
        )
        for entry in sorted(item.record()["files"], key=lambda entry: entry["path"])
        if entry["path"].endswith(".bin")
    ]


def _beside(path: str, suffix: str) -> str:
    return path.removesuffix(".bin") + suffix


def _read_documents(
    shards: tuple[PlannedShard, ...], inputs: dict[str, InputArtifact], *, held_out_fraction: float
) -> _Documents:
    """Return every document of every shard, sorted by source and id, so that the shards' order does not matter."""
    columns, ids, sources = [], [], []
    for number, shard in enumerate(shards):
        item = inputs[shard.artifact]
        offsets = np.load(item.file(_beside(shard.path, ".offsets.npy")))
        sidecar = pq.read_table(item.file(_beside(shard.path, ".documents.parquet")), columns=["id", "source", "bytes"])
        if len(sidecar) != shard.documents:
            raise DataError(
                f"{item.file(shard.path)}: {shard.documents} documents, its sidecar has {len(sidecar)};"
                " materialize token_shards again"
            )
        ids += sidecar["id"].to_pylist()
        sources += sidecar["source"].to_pylist()
        own = np.arange(shard.documents, dtype=np.int64)
        columns.append(
            np.stack(
                [np.full_like(own, number), own, offsets[:-1], np.diff(offsets), sidecar["bytes"].to_numpy()], axis=1
            )
        )
    if not ids:
        raise DataError("token_shards: no documents; every snapshot of the recipe is empty")
    held_out = np.array([is_held_out(id_, held_out_fraction) for id_ in ids])
    order = np.array(sorted(range(len(ids)), key=lambda row: (sources[row], ids[row])))
    return _Documents(
        columns=np.concatenate(columns)[order], sources=np.array(sources)[order], is_held_out=held_out[order]
    )


def _packings(documents: _Documents, pretrain: BatchesRecipe) -> dict[str, Packing]:
    """Return the packing of each source by name; empty if the recipe does not pack by best fit."""
    if pretrain.packing == "end_to_end":
        return {}
    trained = {name: (documents.sources == name) & ~documents.is_held_out for name in np.unique(documents.sources)}
    return {
        str(name): best_fit(documents.columns[chosen, TOKENS], pretrain.sequence_length)
        for name, chosen in trained.items()
    }


def _sizes(documents: _Documents, packings: Mapping[str, Packing]) -> dict[str, Size]:
    """Return the size of each source by name."""
    sizes = {}
    for name in np.unique(documents.sources):
        tokens = documents.columns[:, TOKENS] * (documents.sources == name)
        trained = (documents.sources == name) & ~documents.is_held_out
        held = (documents.sources == name) & documents.is_held_out
        sizes[str(name)] = Size(
            int(trained.sum()),
            int(tokens[trained].sum()),
            int(held.sum()),
            int(tokens[held].sum()),
            len(packings[str(name)].ends) if packings else 0,
        )
    return sizes


def _write(work: Work, record: PlanRecord, documents: _Documents, packings: Mapping[str, Packing]) -> tuple[str, ...]:
    """Write the plan and its arrays; return the names of the files."""
    arrays = {
        batches.DOCUMENTS_FILE: documents.columns[~documents.is_held_out],
        batches.HELD_OUT_FILE: documents.columns[documents.is_held_out],
    }
    if packings:
        packing = joined([(source.first_row, packings[source.name]) for source in record.sources])
        arrays |= {batches.PIECES_FILE: packing.pieces, batches.ROW_ENDS_FILE: packing.ends}
    for name, array in arrays.items():
        with written(work.path / name) as stream:
            np.save(stream, array, allow_pickle=False)
    write_json(work.path / batches.PLAN_FILE, differing_from_defaults(record))
    return (batches.PLAN_FILE, *arrays)


def _outcome(
    plan: Plan, shares: Sequence[Shares], files: tuple[str, ...], counts: Counts, notes: dict[str, Any]
) -> Outcome:
    record = plan.record
    tokens = plan.tokens_before(record.steps)
    metrics: dict[str, float] = {
        "steps": record.steps,
        "tokens": tokens,
        "available_tokens": sum(source.tokens for source in record.sources),
        "held_out_tokens": sum(source.held_out_tokens for source in record.sources),
    }
    effective = 0.0
    seen = _tokens_given(plan)
    for source, given in zip(record.sources, seen, strict=True):
        metrics[f"share_{source.name}"] = given / sum(seen)
        if source.tokens:
            metrics[f"epochs_{source.name}"] = given / source.tokens
            metrics[f"effective_tokens_{source.name}"] = effective_tokens(source.tokens, given)
            effective += effective_tokens(source.tokens, given)
    metrics["effective_tokens"] = effective
    metrics["packing_waste"] = 1 - sum(seen) / tokens
    metrics["cut_documents_share"] = _cut_documents(plan) / max(len(plan.documents), 1)
    empty = [source.name for source in record.sources if not source.held_out_documents]
    notes = notes | ({"sources_without_held_out_documents": empty} if empty else {})
    return Outcome(
        files=files,
        counts=counts,
        metrics=metrics,
        gates=(_shares_gate(shares),),
        notes=notes,
    )


def _cut_documents(plan: Plan) -> int:
    """Return how many documents that would fit a row are cut in the first epoch."""
    if plan.packing:
        return 0
    orders = (plan.order(number, 0)[0] for number in range(len(plan.record.sources)))
    return sum(cut_documents(plan.documents[rows, TOKENS], plan.record.sequence_length) for rows in orders)


def _tokens_given(plan: Plan) -> list[float]:
    """Return the tokens that each source gives over the whole run, with repetitions and without empty places."""
    length = plan.record.sequence_length
    places = [
        sum(phase.samples[number] * phase.sequence_length for phase in plan.phases)
        for number in range(len(plan.record.sources))
    ]
    if not plan.packing:
        return [float(one) for one in places]
    return [
        one * source.tokens / (source.capacity(length) or 1)
        for one, source in zip(places, plan.record.sources, strict=True)
    ]


def _shares_gate(shares: Sequence[Shares]) -> Gate:
    """Return the gate `shares`: every mixture gives the shares that it asks for, within its tolerance."""
    account = [
        {
            "steps": one.steps,
            "tokens": one.tokens,
            "largest_difference": one.largest_difference,
            "tolerance": one.tolerance,
            "sources": {name: {"asked": asked, "given": one.given[name]} for name, asked in one.asked.items()},
        }
        for one in shares
    ]
    passed = all(one.largest_difference <= one.tolerance for one in shares)
    return Gate(name="shares", passed=passed, evidence={"mixtures": account})

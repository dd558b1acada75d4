"""The training plan: which documents are trained on, in which shares, and which are held out.

Reads the sidecars of the token shards (`training.order.corpus`) and writes `plan.json` and its arrays.
`training.order.batches` computes from these files alone which tokens each step sees. Only the files grow with the
number of documents, not the memory needed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from training.contract.artifact import write_json
from training.contract.job import Counts, DataError, Gate, Job, Outcome, Work
from training.contract.records import RecipeError, differing_from_defaults
from training.elementary import exp
from training.order import batches, documents, packing
from training.order.batch_settings import BatchesRecipe, BatchPhase
from training.order.batches import Plan, PlannedPhase, PlannedSource, PlanRecord, samples_before
from training.order.corpus import SourceSize, corpus_of, listing_of, streamed, write_documents
from training.order.documents import read_documents
from training.order.packing import best_fit, cut_documents
from training.order.settings import MixtureRecipe

WEIGHTS_FILE = "weights.json"  # file of the artifact `mixture_weights`

# How fast repeated tokens lose their value, in epochs beyond the first (R*_D of Muennighoff et al., arXiv 2305.16264,
# appendix A).
REPETITION_DECAY = 15.387756
MAX_SHARE_DIFFERENCE = 0.005  # largest allowed difference between a source's share in the mixture and in the plan
# Sources with more documents have the starts of their blocks in the plan; those of others are computed in milliseconds.
COMPUTED_DOCUMENTS = 1 << 16
COUNTED_BLOCKS = 1024  # blocks of documents in which a metric counts cut documents


def run(job: Job, work: Work) -> Outcome:
    """Write the training plan of one recipe, with the gate that every source gets its share of the tokens."""
    mixture = job.settings_as(MixtureRecipe, "mixture")
    pretrain = job.settings_as(BatchesRecipe, "pretrain")
    tokenizer = job.input_of("tokenizer")
    inputs = job.inputs_of("token_shards")
    tokenizer_digest = tokenizer.digest
    listings = [listing_of(item, tokenizer_digest) for item in inputs]
    corpus = corpus_of(inputs)
    sizes, looks = write_documents(
        work.path, corpus, held_out_fraction=mixture.held_out_fraction, look_tokens=mixture.held_out_tokens
    )
    if pretrain.packing == "best_fit":
        sizes = write_rows(work, sizes, pretrain.sequence_length)
    mixture = _found_weights(job, mixture)
    affordable = job.settings.get("affordable", {}).get("tokens")
    budget = token_budget(sizes, mixture, pretrain, affordable) if pretrain.tokens == "auto" else None
    if budget:
        pretrain = pretrain.of_tokens(budget.tokens)
    phases = plan_phases(sizes, mixture, pretrain.phases)
    if continued := job.settings.get("continued"):
        before = [plan_phases(sizes, mixture, pretrain.of_tokens(tokens).phases) for tokens in continued["tokens"]]
        phases = reduce(continue_phases, zip(continued["at"], [*before[1:], phases], strict=True), before[0])
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
        shards=corpus.shards,
        sources=sources if pretrain.packing == "best_fit" else with_stored_epochs(sources, phases),
        phases=phases if len(phases) > 1 else (),
        packing=pretrain.packing,
    )
    files = _write(work.path, record, looks)
    plan = batches.read_plan(work.path)
    # `records_in` counts the documents by the shards' offsets, `kept` the documents in the written plan's arrays.
    counts = Counts(records_in=sum(shard.documents for shard in corpus.shards), kept=len(plan.documents))
    notes = {"resolved": str(budget)} if budget else {}
    return _outcome(plan, shares, files, counts, notes)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBudget:
    """The number of tokens for `tokens: auto`, and the field of the recipe that limits it."""

    tokens: int
    limited_by: str

    def __str__(self) -> str:
        return f"pretrain.tokens: auto is {self.tokens:,}, limited by {self.limited_by}"


def token_budget(
    sizes: Mapping[str, SourceSize], mixture: MixtureRecipe, pretrain: BatchesRecipe, affordable: int | None
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
    """Return the mixture, with the weights that DoReMi found in place of its own if the recipe asks for them."""
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
    sizes: Mapping[str, SourceSize], mixture: MixtureRecipe, phases: Sequence[BatchPhase]
) -> tuple[PlannedPhase, ...]:
    """Return the plan's phases, with the number of samples of each source, in alphabetical order of the sources.

    A phase of batches is split where the mixture changes, at the first step that begins at or after the new
    mixture's start. Raise RecipeError if a weight names no source, if a source has no weight, or if a mixture gets
    no step.
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


def continue_phases(
    first: Sequence[PlannedPhase], longer: tuple[int, Sequence[PlannedPhase]]
) -> tuple[PlannedPhase, ...]:
    """Return the phases of a training of which the first `longer[0]` steps are those of the plan `first`.

    `longer[1]` are its phases if it began anew. It reads as much of each source as that, and no sample twice: a stretch
    that was begun ends with what is left of it. Raise RecipeError if more than that of a source was read already.
    """
    step, phases = longer
    before = tuple(_first_steps(first, step))
    after, begin = [], 0
    for phase in phases:
        end = begin + phase.steps
        if begin >= step:
            after.append(phase)
        elif end > step:
            read = _samples_from(before, begin)
            samples = tuple(whole - part for whole, part in zip(phase.samples, read, strict=True))
            if min(samples) < 0:
                raise RecipeError(
                    f"pretrain.continues: before step {step} {list(read)} rows of the sources are read, more than the"
                    f" {list(phase.samples)} of the whole; more pretrain.tokens, or other weights, are right"
                )
            after.append(replace(phase, steps=end - step, samples=samples))
        begin = end
    return (*before, *after)


def _first_steps(phases: Sequence[PlannedPhase], step: int) -> Iterator[PlannedPhase]:
    """Yield the phases before a step; the last one is cut there, and its sources alternate as in the whole one."""
    left = step
    for phase in phases:
        if left >= phase.steps:
            yield phase
        elif left > 0:
            samples = samples_before(phase.alternating, left * phase.rows)
            yield replace(phase, steps=left, samples=samples, quotas=phase.alternating)
        left -= phase.steps


def _samples_from(phases: Sequence[PlannedPhase], step: int) -> list[int]:
    """Return how many samples of each source the phases that begin at `step` or later have."""
    begins = accumulate((phase.steps for phase in phases), initial=0)
    later = [phase.samples for phase, begin in zip(phases, begins, strict=False) if begin >= step]
    return [sum(numbers) for numbers in zip(*later, strict=True)]


def _row_weights(sizes: Mapping[str, SourceSize], weights: Mapping[str, float], length: int) -> Mapping[str, float]:
    """Convert shares of tokens to shares of rows: a source whose rows are emptier needs more rows."""
    if not any(size.rows for size in sizes.values()):
        return weights  # every row is full
    needed = {name: weight / sizes[name].fill(length) for name, weight in weights.items()}
    return {name: one / sum(needed.values()) for name, one in needed.items()}


def _stretches(phases: Sequence[BatchPhase], starts: Sequence[float]) -> Iterator[tuple[BatchPhase, int, int]]:
    """Yield each stretch of steps with one batch size and one mixture, in order.

    A stretch is (phase, number of the mixture, steps).
    """
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
    sizes: Mapping[str, SourceSize], mixture: MixtureRecipe, phases: Sequence[PlannedPhase]
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
    first, first_looked_at, first_packed = 0, 0, 0
    for number, name in enumerate(sorted(sizes)):
        size = sizes[name]
        source = PlannedSource(
            name=name,
            weight=weights[name],
            samples=sum(phase.samples[number] for phase in phases),
            first_document=first,
            documents=size.documents,
            tokens=size.tokens,
            held_out_documents=size.held_out_documents,
            held_out_tokens=size.held_out_tokens,
            first_looked_at=first_looked_at,
            look_documents=size.look_documents,
            look_tokens=size.look_tokens,
            rows=size.rows,
            first_packed=first_packed,
        )
        wanted = sum(phase.samples[number] * phase.sequence_length for phase in phases)
        available = source.capacity(phases[-1].sequence_length)
        limit = mixture.source_epochs.get(name, mixture.max_epochs)
        _check_epochs(name, available=available, wanted=wanted, max_epochs=limit)
        sources.append(source)
        first += source.all_documents
        first_looked_at += size.look_documents
        first_packed += size.rows
    return tuple(sources)


def with_stored_epochs(sources: Sequence[PlannedSource], phases: Sequence[PlannedPhase]) -> tuple[PlannedSource, ...]:
    """Return the sources with the number of epochs for which the plan's file stores the block starts.

    For large sources these are all epochs that training begins; for small sources there are none.
    """
    read = [sum(phase.samples[number] * phase.sequence_length for phase in phases) for number in range(len(sources))]
    return tuple(
        replace(source, stored_epochs=-(-tokens // source.tokens))
        if tokens and source.all_documents > COMPUTED_DOCUMENTS
        else source
        for source, tokens in zip(sources, read, strict=True)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """The shares of tokens by source, in [0, 1], that a mixture asks for and that the plan gives."""

    steps: int
    tokens: int
    samples: int
    asked: dict[str, float]
    given: dict[str, float]

    @property
    def largest_difference(self) -> float:
        """The largest difference between the share of tokens that a source should have and the share that it has."""
        return max(abs(self.given[name] - asked) for name, asked in self.asked.items())

    @property
    def tolerance(self) -> float:
        """MAX_SHARE_DIFFERENCE, or the share of one sample if that is larger, as in a mixture with few samples."""
        return max(MAX_SHARE_DIFFERENCE, 1 / self.samples)


def realized_shares(
    sizes: Mapping[str, SourceSize], mixture: MixtureRecipe, phases: Sequence[PlannedPhase]
) -> tuple[Shares, ...]:
    """Return the asked and given shares of each mixture, in the order in which the mixtures are used."""
    return tuple(
        _shares(sizes, weights, [phase for phase in phases if phase.mixture == number])
        for number, weights in enumerate(_weights(sizes, mixture))
    )


def _shares(sizes: Mapping[str, SourceSize], weights: Mapping[str, float], phases: Sequence[PlannedPhase]) -> Shares:
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
    sizes: Mapping[str, SourceSize], mixture: MixtureRecipe, phases: Sequence[PlannedPhase]
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


def _weights(sizes: Mapping[str, SourceSize], mixture: MixtureRecipe) -> list[dict[str, float]]:
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


def _same(listings: list[dict[str, Any]], field: str) -> Any:
    values = {listing[field] for listing in listings}
    if len(values) != 1:
        raise DataError(f"token_shards: {field} must be one value for all snapshots, found {sorted(map(str, values))}")
    return values.pop()


def write_rows(work: Work, sizes: Mapping[str, SourceSize], length: int) -> dict[str, SourceSize]:
    """Pack the documents of each source into rows of `length`, window by window, and write the rows.

    Return the sizes with the number of rows. How many there are is known only at the end, so the arrays are collected
    in the scratch folder first.
    """
    planned, first, ends_at = read_documents(work.path), 0, 0
    dtype = np.dtype("<u4" if len(planned) < 1 << 32 else "<u8")
    collected = {name: work.scratch / name for name in (packing.PIECES_FILE, packing.ROW_ENDS_FILE)}
    found = dict(sizes)
    with open(collected[packing.PIECES_FILE], "wb") as pieces, open(collected[packing.ROW_ENDS_FILE], "wb") as ends:
        for name in sorted(sizes):
            stop, rows = first + sizes[name].documents + sizes[name].held_out_documents, 0
            for start in range(first, stop, packing.WINDOW):
                tokens = planned.trained_tokens(start, min(start + packing.WINDOW, stop))
                if tokens.max() >= 1 << 32:
                    raise DataError(
                        f"mixture: source {name!r} has a document of {tokens.max():,} tokens, best_fit packs documents"
                        " of less than 2^32; set pretrain.packing: end_to_end"
                    )
                window = best_fit(tokens, length)
                pieces.write((window.pieces[:, :2] + [start, 0]).astype(dtype).tobytes())
                ends.write((window.ends + ends_at).astype("<i8").tobytes())
                rows, ends_at = rows + len(window.ends), ends_at + len(window.pieces)
            found[name], first = sizes[name]._replace(rows=rows), stop
    num_rows = sum(size.rows for size in found.values())
    _move(collected[packing.PIECES_FILE], work.path, dtype, (ends_at, 2))
    _move(collected[packing.ROW_ENDS_FILE], work.path, np.dtype("<i8"), (num_rows,))
    return found


def _move(collected: Path, folder: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Convert a file of collected numbers into the array file of the same name in `folder`, and remove it."""
    with open(collected, "rb") as source, streamed(folder / collected.name, dtype, shape) as stream:
        shutil.copyfileobj(source, stream, 1 << 20)
    collected.unlink()


def _write(folder: Path, record: PlanRecord, looks: np.ndarray) -> tuple[str, ...]:
    """Write `plan.json` and the plan's remaining arrays into `folder`; return the names of all files of the plan."""
    files = [batches.PLAN_FILE, documents.POSITIONS_FILE, documents.RUNS_FILE, batches.HELD_OUT_FILE]
    with streamed(folder / batches.HELD_OUT_FILE, np.dtype("<i8"), looks.shape) as stream:
        stream.write(looks.astype("<i8").tobytes())
    if record.packing == "best_fit":
        files += [packing.PIECES_FILE, packing.ROW_ENDS_FILE]
    if any(source.stored_epochs for source in record.sources):
        files.append(batches.STARTS_FILE)
        _write_starts(folder, Plan(record, read_documents(folder), looks))
    write_json(folder / batches.PLAN_FILE, differing_from_defaults(record))
    return tuple(files)


def _write_starts(folder: Path, plan: Plan) -> None:
    """Write the first token of each block of documents, for every stored epoch, one epoch after the other."""
    size = plan.record.block_documents
    stored = [
        (number, epoch) for number, source in enumerate(plan.record.sources) for epoch in range(source.stored_epochs)
    ]
    blocks = sum(-(-plan.record.sources[number].all_documents // size) for number, _ in stored)
    with streamed(folder / batches.STARTS_FILE, np.dtype("<i8"), (blocks,)) as stream:
        for number, epoch in stored:
            stream.write(plan.computed_starts(number, epoch).astype("<i8").tobytes())


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
        "look_tokens": sum(source.look_tokens for source in record.sources),
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
    metrics["cut_documents_share"] = _cut_documents_share(plan)
    empty = [source.name for source in record.sources if not source.held_out_documents]
    notes = notes | ({"sources_without_held_out_documents": empty} if empty else {})
    return Outcome(
        files=files,
        counts=counts,
        metrics=metrics,
        gates=(_shares_gate(shares),),
        notes=notes,
    )


def _cut_documents_share(plan: Plan) -> float:
    """Return the share of documents that would fit a row and are cut in the first epoch.

    For a source of more than COUNTED_BLOCKS blocks, only that many blocks are counted, spread evenly over the
    epoch.
    """
    documents_before = sum(source.documents for source in plan.record.sources)
    if plan.packing or not documents_before:
        return 0.0
    cut = 0.0
    for number, source in enumerate(plan.record.sources):
        blocks = -(-source.all_documents // plan.record.block_documents)
        counted = np.unique(np.linspace(0, blocks - 1, min(blocks, COUNTED_BLOCKS)).astype(int)).tolist()
        seen = cuts = 0
        for place in counted if source.tokens else ():
            chosen, ends = plan.documents_of_block(number, 0, place)
            tokens = plan.documents.trained_tokens_of(chosen)
            cuts += cut_documents(tokens, plan.record.sequence_length, int(ends[0] - tokens[0]) if len(ends) else 0)
            seen += len(chosen)
            plan.documents.release()
        cut += source.documents * cuts / max(seen, 1)
    return cut / documents_before


def _tokens_given(plan: Plan) -> list[float]:
    """Return how many tokens of each source the whole run trains on; repeated ones count again, padding does not."""
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

"""The stage `mixture_weights`: find the share of each source with a small proxy model (DoReMi, arXiv 2305.10429).

A reference model was trained on the recipe's own weights. The proxy has the same shape and reads the same number of
samples from every source. At each step a source's weight grows with its excess loss: the amount by which the proxy's
loss exceeds the reference's, averaged over tokens, where a token on which the proxy is better counts 0. The proxy's
loss weighs the sources by these weights, so that it learns most where it is behind. The stage's result is the mean of
the weights over all steps.

Files: `weights.json` (`weights`, the mean; `last`, those of the last step) and `steps.jsonl`, a line for each step with
the `excess` and `weights` of every source, from which the result can be computed again. Checkpoints have the trainer's
form: a killed job resumes from the last one and ends in the same bytes.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from training.contract.artifact import write_json, written
from training.contract.identity import numerics
from training.contract.job import Job, Outcome, RefusedInput, StopRequested, Work
from training.contract.process.precision import dtype_here, replaced_here
from training.contract.process.stop_requests import stop_requests
from training.contract.records import RecipeError, differing_from_defaults
from training.order.batches import Plan, Sample, Shards, index, open_shards, read_plan, sample_ids
from training.order.loss_mask import IGNORED
from training.pretrain.capacity.needs import Pretraining, bytes_beside_reference
from training.pretrain.capacity.room import check_memory
from training.pretrain.capacity.usage import memory_of
from training.pretrain.checkpoint import RETRY_SECONDS, Store, check_identity, data_identity, pack, pack_own, unpack
from training.pretrain.losses.chunked import ChunkedLoss, token_losses
from training.pretrain.models import export
from training.pretrain.models.attention import attention_kind, document_mask
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.optim.average_settings import AverageRecipe
from training.pretrain.optim.clipping import clip_gradients, gradient_norm
from training.pretrain.optim.make import make_optimizers
from training.pretrain.optim.schedule import scheduled_factor, set_learning_rates
from training.pretrain.parallel.world import World, own_device
from training.pretrain.settings import PretrainRecipe
from training.pretrain.stages.doremi_settings import DoremiRecipe

WEIGHTS_FILE = "weights.json"
STEPS_FILE = "steps.jsonl"
CHECKPOINTS_FOLDER = "checkpoints"
MODEL_FOLDER = "model"
LOGGED_STEPS = 200


def run(job: Job, work: Work) -> Outcome:
    """Train the proxy and write the mean weights of the sources."""
    recipe, pretrain = job.settings_as(DoremiRecipe, "doremi"), job.settings_as(PretrainRecipe, "pretrain")
    numerics.use_threads(job.run)
    numerics.note(job, work)
    plan, shards = _open_inputs(job, recipe)
    check_room(pretrain, plan, job)
    proxy = Proxy(
        export.read_model(job.input_of("reference_model").file(MODEL_FOLDER)),
        pretrain,
        plan,
        shards,
        rows_at_once=(job.run.micro_batch_tokens or 0) // plan.record.sequence_length,
    )
    if fallback := replaced_here(pretrain.precision, proxy.device):
        work.progress.message(fallback, level="WARNING")
    weights = SourceWeights([source.name for source in plan.record.sources if source.samples], recipe)
    identity = _identity(job, plan, recipe, pretrain)
    with Store(work.scratch / CHECKPOINTS_FOLDER, proxy.world) as store:
        first = proxy.resume(store, identity, work)
        with stop_requests() as asked, _kept_steps(work.scratch / STEPS_FILE, first, weights) as stream:
            _train(job, work, proxy, weights, first=first, store=store, identity=identity, asked=asked, stream=stream)
    with written(work.path / STEPS_FILE) as stream, open(work.scratch / STEPS_FILE, "rb") as kept:
        shutil.copyfileobj(kept, stream)
    unread = {source.name: 0.0 for source in plan.record.sources if not source.samples}
    found = {"weights": weights.named(weights.mean), "last": weights.named(weights.present)}
    write_json(work.path / WEIGHTS_FILE, {name: unread | values for name, values in found.items()})
    return _outcome(plan, weights)


def _train(
    job: Job,
    work: Work,
    proxy: Proxy,
    weights: SourceWeights,
    *,
    first: int,
    store: Store,
    identity: dict[str, Any],
    asked: list[int],
    stream: BinaryIO,
) -> None:
    """Train the proxy from step `first` on. Raise StopRequested, with the state saved, if a signal asked to stop."""
    steps, saved = proxy.plan.record.steps, time.monotonic()
    logged = max(1, steps // LOGGED_STEPS)
    for step in range(first, steps):
        batch = proxy.batch(step)
        excess = proxy.excess(batch)
        weights.update(excess)
        loss = proxy.learn(batch, weights.present)
        line = {"step": step, "excess": weights.named(excess), "weights": weights.named(weights.present)}
        stream.write((json.dumps(line) + "\n").encode())
        if step % logged == 0 or step == steps - 1:
            work.progress.log(step=step, steps=steps, loss=loss, **_prefixed("weight", line["weights"]))
        if not store.is_writing:
            store.commit()
        if store.tell_failed(partial(work.progress.message, level="WARNING")):
            saved = time.monotonic() - max(0.0, job.run.checkpoint_seconds - RETRY_SECONDS)
        is_due = not store.is_pending and time.monotonic() - saved > job.run.checkpoint_seconds
        if step + 1 < steps and (asked or is_due):
            stream.flush()
            os.fsync(stream.fileno())  # resuming from a checkpoint needs the lines of all steps before it
            store.settle()
            proxy.save(store, step + 1, identity)
            saved = time.monotonic()
            if asked:
                store.settle()
                text = f"checkpoint of step {step + 1} of {steps} saved; the same command goes on there"
                if store.failed:
                    text = f"{store.failed[-1]}; the same command goes on from the newest checkpoint before it"
                work.progress.saved(text)
                raise StopRequested(text)


@contextmanager
def _kept_steps(path: Path, first: int, weights: SourceWeights) -> Iterator[BinaryIO]:
    """Open `steps.jsonl` to append after its first `first` lines, and replay these into `weights`.

    Later lines, which a killed run may have left, are cut off.
    """
    lines = path.read_bytes().splitlines(keepends=True)[:first] if first else []
    for line in lines:
        weights.update(np.array(list(json.loads(line)["excess"].values())))
    with open(path, "r+b" if first else "wb") as stream:
        stream.seek(sum(map(len, lines)))
        stream.truncate()
        yield stream


def _identity(job: Job, plan: Plan, recipe: DoremiRecipe, pretrain: PretrainRecipe) -> dict[str, Any]:
    settings = {
        "doremi": differing_from_defaults(recipe),
        "pretrain": differing_from_defaults(pretrain),
        "reference": job.input_of("reference_model").digest,
    }
    return {"data": data_identity(plan), "settings": settings}


def check_room(pretrain: PretrainRecipe, plan: Plan, job: Job) -> None:
    """Raise RecipeError, showing the calculation, if the known needs of proxy and reference exceed the memory."""
    device, shape = own_device(), export.read_shape(job.input_of("reference_model").file(MODEL_FOLDER))
    trained = Pretraining(shape=shape, recipe=pretrain, phase=plan.phases[0])
    needed = bytes_beside_reference(trained, job.run, probabilities=device.type == "cpu")
    total, where = memory_of(device)
    check_memory("doremi", needed, together=1, total=total, where=where)


def _open_inputs(job: Job, recipe: DoremiRecipe) -> tuple[Plan, Shards]:
    """Return the reference's plan, changed so that all sources have the same share, and its shards.

    Raise RefusedInput if plan and job have different tokenizers.
    """
    item, tokenizer = job.input_of("reference_plan"), job.input_of("tokenizer").digest
    plan = read_plan(item.folder, digest=item.digest)
    if plan.record.tokenizer_digest != tokenizer:
        raise RefusedInput(
            f"reference_plan was made with tokenizer {plan.record.tokenizer_digest[:12]}, the job gives"
            f" {tokenizer[:12]}; materialize token_shards and reference_plan again"
        )
    shards = open_shards(plan, {one.fingerprint: one for one in job.inputs_of("token_shards")}, verify=True)
    return alike(plan, seed=recipe.seed), shards


def alike(plan: Plan, *, seed: int) -> Plan:
    """Return the plan changed for DoReMi, with equally many samples of each source.

    It has one phase, and only sources that have training documents. RecipeError is raised if fewer than two sources
    have training documents, or if a batch has fewer than two rows for each of them.
    """
    record, rows = plan.record, plan.phases[0].rows
    with_text = sum(source.tokens > 0 for source in record.sources)
    if with_text < 2 or rows < 2 * with_text:
        raise RecipeError(
            f"doremi: {with_text} sources with training documents and {rows} rows in a batch; it weighs two sources or"
            " more, and needs two rows of each: raise doremi.global_batch_tokens"
        )
    each, more = divmod(record.steps * rows, with_text)
    sources, number = [], 0
    for source in record.sources:
        samples = each + (number < more) if source.tokens else 0
        number += source.tokens > 0
        sources.append(replace(source, weight=1 / with_text if source.tokens else 0.0, samples=samples))
    changed = replace(record, seed=seed, sources=tuple(sources))
    return plan.with_record(changed)


def _outcome(plan: Plan, weights: SourceWeights) -> Outcome:
    metrics: dict[str, float] = {"steps": plan.record.steps, "tokens": plan.tokens_before(plan.record.steps)}
    metrics |= _prefixed("weight", weights.named(weights.mean))
    metrics |= _prefixed("excess", weights.named(weights.mean_excess))
    for source in plan.record.sources:
        if source.samples:
            metrics[f"epochs_{source.name}"] = (
                source.samples * plan.record.sequence_length / source.capacity(plan.record.sequence_length)
            )
    return Outcome(files=(WEIGHTS_FILE, STEPS_FILE), metrics=metrics)


def _prefixed(prefix: str, values: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in values.items()}


# The weights


def updated(weights: np.ndarray, excess: np.ndarray, *, step_size: float, smoothing: float) -> np.ndarray:
    """Return the weights `[sources]` after a step of size η = `step_size`, mixed with equal weights by c = `smoothing`.

    Each weight is multiplied by exp(η · excess), and the products are normalized to sum 1 before the mixing.
    """
    grown = weights * np.exp(step_size * (excess - excess.max()))  # the maximum cancels in the quotient
    return (1 - smoothing) * grown / grown.sum() + smoothing / len(weights)


class SourceWeights:
    """The weights of the sources over the steps of a run. Before the first step they are equal."""

    def __init__(self, sources: Sequence[str], recipe: DoremiRecipe) -> None:
        self._sources, self._recipe = tuple(sources), recipe
        count = len(self._sources)
        self.present = np.full(count, 1 / count)
        self._steps, self._sum, self._excess = 0, np.zeros(count), np.zeros(count)

    def update(self, excess: np.ndarray) -> None:
        """Update the weights with the excess losses of a step, in nats per token, `[sources]`."""
        recipe = self._recipe
        self.present = updated(self.present, excess, step_size=recipe.step_size, smoothing=recipe.smoothing)
        self._steps, self._sum, self._excess = self._steps + 1, self._sum + self.present, self._excess + excess

    @property
    def mean(self) -> np.ndarray:
        """Return the mean of the source weights after each step so far, `[sources]`."""
        return self._sum / max(1, self._steps)

    @property
    def mean_excess(self) -> np.ndarray:
        """Return the mean of the excess losses of each step so far, `[sources]`."""
        return self._excess / max(1, self._steps)

    def named(self, values: np.ndarray) -> dict[str, float]:
        """Return the given numbers `[sources]` by the names of the sources."""
        return dict(zip(self._sources, values.tolist(), strict=True))


# The proxy


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcedBatch:
    """Packed rows `[rows, L]` of one step, the source of each row, and the number of targets of each source."""

    step: int
    tokens: Tensor
    targets: Tensor
    documents: Tensor
    sources: np.ndarray
    counts: np.ndarray

    def rows(self, chosen: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens, targets and document ids of the chosen rows."""
        return self.tokens[chosen], self.targets[chosen], self.documents[chosen]


class Proxy:
    """DoReMi's proxy: a model trained beside a frozen reference model of the same shape.

    All sources have equal shares.
    """

    def __init__(
        self, reference: Decoder, recipe: PretrainRecipe, plan: Plan, shards: Shards, *, rows_at_once: int = 0
    ) -> None:
        self.world = World(rank=0, size=1, device=own_device())
        self.device = self.world.device
        self.recipe, self.plan, self.shards = replace(recipe, average=AverageRecipe()), plan, shards
        self.model = Decoder(reference.config)
        generator = torch.Generator().manual_seed(plan.record.seed)
        initialise(self.model, zero_outputs=recipe.zero_init_outputs, generator=generator)
        self.model.to(self.device)
        self.reference = reference.to(self.device)
        self.optimizers = make_optimizers(self.model, self.recipe)
        self.loss = ChunkedLoss(recipe.chosen_loss, softcap=self.model.config.logit_softcap)
        self.dtype = dtype_here(recipe.precision, self.device)
        self.rows_at_once = rows_at_once or plan.phases[0].rows
        read = [number for number, source in enumerate(plan.record.sources) if source.samples]
        self._place_of = {number: place for place, number in enumerate(read)}

    def save(self, store: Store, step: int, identity: dict[str, Any]) -> None:
        """Begin to write a checkpoint of the proxy's state before `step`."""
        store.begin(
            step=step,
            tensors=pack(self.model, self.optimizers),
            own=pack_own(self.world),
            state={"ledger": [], **identity},
        )

    def resume(self, store: Store, identity: dict[str, Any], work: Work) -> int:
        """Load the newest whole checkpoint, if there is one, and return the next step to train on.

        This is 0 without a checkpoint. RefusedInput is raised if the checkpoint belongs to another plan, reference or
        recipe.
        """
        store.tidy()
        found = store.newest()
        for line in (*store.lost, *(found.broken if found else ())):
            work.progress.message(f"a checkpoint is damaged: {line}", level="WARNING")
        if found is None:
            return 0
        check_identity(found.state, identity, store.folder)
        unpack(found.tensors, self.model, self.optimizers, self.world)
        return found.state["step"]

    def batch(self, step: int) -> SourcedBatch:
        """Return the rows of a training step, with the source of each."""
        samples: list[Sample] = index(self.plan, step)
        sources = np.array([self._place_of[source] for source, _ in sample_ids(self.plan, step)])
        arrays = self.shards.rows(samples, length=self.plan.record.sequence_length)
        trained = (arrays[1] != IGNORED).sum(axis=1)
        tokens, targets, documents = (torch.from_numpy(array).to(self.device) for array in arrays)
        counts = np.bincount(sources, weights=trained, minlength=len(self._place_of))
        return SourcedBatch(
            step=step, tokens=tokens, targets=targets, documents=documents, sources=sources, counts=counts
        )

    @torch.no_grad()
    def excess(self, batch: SourcedBatch) -> np.ndarray:
        """Return the excess loss of each source in nats per token, `[sources]`.

        A token that the proxy predicts better than the reference counts 0.
        """
        rows = []
        for chosen in self._passes(batch):
            own, others = (self._losses(model, *batch.rows(chosen)) for model in (self.model, self.reference))
            rows.append((own - others).clamp(min=0).double().sum(dim=1).cpu().numpy())
        sums = np.bincount(batch.sources, weights=np.concatenate(rows), minlength=len(batch.counts))
        return sums / np.maximum(batch.counts, 1)

    def learn(self, batch: SourcedBatch, weights: np.ndarray) -> float:
        """Train one step on the weighted sum of the sources' mean losses and return this sum in nats.

        Raise RecipeError if the loss or the gradient is not finite.
        """
        for parameter in self.model.parameters():
            parameter.grad = None
        scales = weights / np.maximum(batch.counts, 1)
        loss = sum(self._backward(batch, chosen, scales) for chosen in self._passes(batch))
        norm = gradient_norm(self.model.parameters()).item()
        if not math.isfinite(loss + norm):
            raise RecipeError(f"doremi: the proxy's loss is not finite at step {batch.step}; lower its learning rates")
        recipe = self.recipe
        clip_gradients(self.model.parameters(), norm=norm, limit=recipe.gradient_clip)
        factor = scheduled_factor(batch.step, steps=self.plan.record.steps, recipe=recipe)
        set_learning_rates(self.optimizers, factor)
        for optimizer in self.optimizers.values():
            optimizer.step()
        return loss

    def _backward(self, batch: SourcedBatch, chosen: slice, scales: np.ndarray) -> float:
        """Add the gradients of the chosen rows to the gradients that the parameters already have.

        The result is the part of the weighted loss that these rows contribute.
        """
        tokens, targets, documents = batch.rows(chosen)
        states = self._states(self.model, tokens, documents)
        head = self.model.head_weight.to(self.dtype)
        sources = batch.sources[chosen]
        parts = []
        for source in np.unique(sources):
            own = torch.from_numpy(np.flatnonzero(sources == source)).to(self.device)
            given = (states[own].flatten(0, 1), head, targets[own].flatten())
            parts.append(self.loss(*given, scale=float(scales[source])))
        torch.stack([objective for objective, _, _ in parts]).sum().backward()
        return sum(likelihood.item() for _, likelihood, _ in parts)

    def _losses(self, model: Decoder, tokens: Tensor, targets: Tensor, documents: Tensor) -> Tensor:
        """Return the loss of each target in nats, `[rows, L]`; 0 where there is no target."""
        states = self._states(model, tokens, documents).flatten(0, 1)
        head = model.head_weight.to(self.dtype)
        return token_losses(states, head, targets.flatten(), softcap=model.config.logit_softcap).view(targets.shape)

    def _states(self, model: Decoder, tokens: Tensor, documents: Tensor) -> Tensor:
        kind = attention_kind(self.device, head_width=model.config.head_width)
        mask = document_mask(documents, dtype=self.dtype, window=model.config.window, kind=kind)
        return model(tokens, mask, dtype=self.dtype).states

    def _passes(self, batch: SourcedBatch) -> list[slice]:
        return [slice(at, at + self.rows_at_once) for at in range(0, len(batch.sources), self.rows_at_once)]

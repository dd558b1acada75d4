"""The training loop: batches by the plan, gradients summed over micro-batches and processes, one update a step.

The loss is the mean over all trained tokens of the global batch, whatever the world size and micro-batch. Weights,
gradients and optimizer state are fp32; the passes run in the recipe's precision.
"""

from __future__ import annotations

import ctypes
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from training.job import RefusedInput
from training.order.batches import Plan, Sample, Shards, held_out_bytes, held_out_samples, index, trained_tokens
from training.order.ledger import Entry, Ledger, keep_ledger
from training.order.loss_mask import IGNORED
from training.pretrain import audit, bundle, checkpoint
from training.pretrain.distill import Teacher
from training.pretrain.dtypes import formats_of, products_in, states_of
from training.pretrain.fp8 import fp8_product
from training.pretrain.loss import next_token_loss, token_losses
from training.pretrain.mesh import gathered, spread
from training.pretrain.models.account import peak_teraflops
from training.pretrain.models.attention import DocumentMask, attention_kind, document_mask, one_document
from training.pretrain.models.decoder import DTYPES, Decoder, Hidden
from training.pretrain.objectives import Batch, Objective
from training.pretrain.optim.averages import Average, average_share, set_average_share
from training.pretrain.optim.clipping import clip_gradients
from training.pretrain.optim.make import make_optimizers
from training.pretrain.optim.schedule import scheduled_factor, set_learning_rates
from training.pretrain.parallel import PARTS_OF_A_ROW, POSITIONS, ROWS, World, micro_batches
from training.pretrain.pipeline import Pipeline
from training.pretrain.settings import PretrainRecipe
from training.pretrain.spikes import Watched
from training.pretrain.usage import peak_memory_bytes, said
from training.progress import Progress
from training.records import differing_from_defaults, read_record, write_record
from training.runner import StopRequested, stop_requests

log = logging.getLogger(__name__)

# How often a run is looked at. None of it changes the weights.
LOGGED_STEPS = 200
EVALUATIONS = 4
TEXT_SAMPLES = 4
EVALUATED_ROWS = 16  # at once, of held-out text
HELD_OUT_BITS = "held_out_bits_per_byte"  # the metric; with a source's name behind it, that source's
LOSS_WINDOW = 10  # steps over which the loss at the end is averaged
RECENT_STEPS = 32  # whose numbers are at hand when a run stops


class Diverged(RuntimeError):
    """Too many steps in a row were not finite, or the loss rose more often than the recipe goes back."""


class Told(NamedTuple):
    """What a process tells the others along with a step's gradients; in a report, what any of them told."""

    stop: bool = False  # a signal asked to stop
    save: bool = False  # a checkpoint is due; the first process has the clock
    writing: bool = False  # the pending checkpoint is not written yet


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What one step did. `loss` is in nats per trained token; `spike` is what the ledger should get."""

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    is_skipped: bool
    was_rerun: bool
    told: Told
    loads: Tensor  # `[expert layers, experts]`, tokens sent to each
    spike: Entry | None = None  # None: the step was not the end of a spike


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """Forward and backward over the global batch. The same bits on every process, so all of them skip or none does."""

    loss: float
    norm: float
    loads: Tensor
    told: Told

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)


@dataclass(kw_only=True, slots=True)
class Position:
    """Where a run stands: all that is neither a tensor nor the ledger. Saved with every checkpoint."""

    step: int = 0
    skipped_in_a_row: int = 0
    rerun_steps: list[int] = field(default_factory=list)  # not finite at first, and finite when made once more
    first_loss: float | None = None  # None before the first step
    last_losses: list[float] = field(default_factory=list)
    watched: Watched = field(default_factory=Watched)
    seconds: float = 0.0


class Trainer:
    """A model with its optimizers at a position in a plan; of a spread model, this process's part."""

    def __init__(
        self,
        model: Decoder,
        recipe: PretrainRecipe,
        plan: Plan,
        shards: Shards,
        world: World,
        *,
        micro_batch_tokens: int = 0,
        objective: Objective | None = None,
        is_audited: bool = False,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.model, self.pieces = model, spread(model, world)
        self.recipe, self.plan, self.shards, self.world = recipe, plan, shards, world
        self.dtype = DTYPES[recipe.precision]
        self.attention = attention_kind(
            world.device, head_width=model.config.head_width, is_cut=world.length("context") > 1
        )
        if recipe.precision == "fp8":
            model.set_product(fp8_product(emulated=world.device.type == "cpu"))
        self.optimizers = make_optimizers(model, recipe, self.pieces)
        self.position, self.ledger = Position(), Ledger()
        self.store: checkpoint.Store | None = None  # None: nothing is kept
        self.recent: list[StepReport] = []
        self.data_seconds = 0.0  # that the last step waited for its rows
        self.products: dict[str, int] = {}  # of this process's first pass, by their format
        self.states_format = ""  # what the layers of that pass gave to each other
        self.passes = [  # of each phase
            micro_batches(
                phase.rows,
                sequence_length=phase.sequence_length,
                micro_batch_tokens=micro_batch_tokens,
                world=world,
                chosen=(lambda count: audit.leaves(count, world)) if is_audited else None,
            )
            for phase in plan.phases
        ]
        self.micro_batch_tokens = micro_batch_tokens
        self.pipeline = Pipeline(world, layers=model.config.layers) if world.length("pipeline") > 1 else None
        self.is_audited = is_audited  # gradients are added in one order whatever the number of processes
        self.alive = alive  # called at every sign of progress
        self.objective = objective  # None: the next token
        self.teacher: Teacher | None = None  # None: the text alone teaches
        self.hidden: Callable[..., Hidden] = model  # a compiled form may stand in

    def run_step(self, told: Told = Told()) -> StepReport:  # noqa: B008 - immutable
        """Train on the global batch of the present step and move to the next that the ledger does not hold.

        A loss or gradient that is not finite is made once more: a fault of the machine does not come twice, one of the
        data or the weights does, and then the step is skipped. Diverged when too many in a row were.
        """
        step, started = self.position.step, time.monotonic()
        samples = index(self.plan, step)
        passes = self.passes[self.plan.phase_at(step).number]
        batches = [self.batch([samples[row] for row in rows], step=step, numbers=rows) for rows in passes]
        self.data_seconds = time.monotonic() - started
        scale = 1.0 / max(1, self._trained_tokens(samples, batches))
        batches += [idle(batches[0]) for _ in range(len(batches), self._common(len(batches)))]
        made = self._pass(batches, scale=scale, told=told)
        was_rerun = not made.is_finite
        if was_rerun:
            made = self._pass(batches, scale=scale, told=told)
        factor = scheduled_factor(step, steps=self.plan.record.steps, recipe=self.recipe)
        if made.is_finite:
            self._update(step, made.norm, factor)
            self.model.rebalance(made.loads)
        report = StepReport(
            step=step,
            loss=made.loss,
            gradient_norm=made.norm,
            learning_rate=factor * self.recipe.learning_rate,
            is_skipped=not made.is_finite,
            was_rerun=was_rerun,
            told=made.told,
            loads=made.loads,
            spike=self._seen(step, made),
        )
        self.recent = [*self.recent, report][-RECENT_STEPS:]
        self._advance(report)
        return report

    def _pass(self, batches: list[Batch], *, scale: float, told: Told) -> _Pass:
        """Leave the gradients of the whole global batch in the parameters."""
        flags = torch.tensor([float(flag) for flag in told], device=self.world.device)
        if self.is_audited:
            flags, sums = self.world.sum(flags), self._audited(batches, scale=scale)
        else:
            self.pieces.forget_gradients()
            sums = self._passes(batches, scale=scale)
            flags, sums = self.pieces.sum_gradients(torch.cat([flags, sums])).tensor_split([len(told)])
        return _Pass(
            loss=sums[0].item(),
            norm=self.pieces.gradient_norm().item(),
            loads=sums[1:].view(-1, max(1, self.model.config.experts.count)),
            told=Told(*(flag > 0 for flag in flags.tolist())),
        )

    def _audited(self, batches: list[Batch], *, scale: float) -> Tensor:
        """The gradients, and what `_backward` gives summed over all micro-batches, in the order that never changes."""
        phase = self.plan.phase_at(self.position.step)
        count = phase.global_batch_tokens // self.micro_batch_tokens
        own, config = audit.leaves(count, self.world), self.model.config
        return audit.sum_gradients(
            self.pieces.tensors,
            lambda number: self._backward(batches[number - own.start], scale=scale),
            own=own,
            count=count,
            extras=1 + config.expert_layers * config.experts.count,
            world=self.world,
        )

    def batch(self, samples: list[Sample], *, step: int, numbers: Sequence[int]) -> Batch:
        """Rows of a step's `samples` under the objective; step -1 is that of held-out text."""
        rows = self._rows(samples) if step < 0 else self._rows(samples, length=self.plan.phase_at(step).sequence_length)
        return Batch(*rows) if self.objective is None else self.objective.batch(rows, step=step, numbers=numbers)

    def _trained_tokens(self, samples: list[Sample], batches: list[Batch]) -> int:
        """Positions with a target in the whole global batch, of which `batches` are this process's."""
        if self.objective is None or self.objective.recipe.kind == "causal":
            return trained_tokens(samples)
        own = torch.tensor(sum(batch.trained_tokens for batch in batches), device=self.world.device)
        return int(self.world.sum(own, *ROWS))

    def _common(self, count: int) -> int:
        """Passes that this process makes with others: as many as any of those that it shares weights with.

        Every process of a spread model must come to every message, so one with fewer rows makes empty passes.
        """
        if not self.world.is_split:
            return count
        counts = torch.tensor(count, device=self.world.device)
        dist.all_reduce(counts, dist.ReduceOp.MAX)
        return int(counts)

    def _passes(self, batches: list[Batch], *, scale: float) -> Tensor:
        """Add the gradients of all passes; their share of the loss and, after it, of the experts' loads."""
        if self.pipeline is None:
            return sum(self._backward(batch, scale=scale) for batch in batches)
        return self._through_stages(self.pipeline, batches, scale=scale)

    def _backward(self, batch: Batch, *, scale: float) -> Tensor:
        """`_passes` of one batch through a whole model."""
        self.alive()
        tokens, targets, mask = self._tensors(batch)
        hidden = self.hidden(tokens, mask, dtype=self.dtype)
        if self.teacher is None:
            objective, likelihood = self._loss(hidden.states, targets, scale=scale)
        else:
            head, softcap = self.model.head_weight.to(self.dtype), self.model.config.logit_softcap
            given = (hidden.states.flatten(0, 1), head, targets.flatten())
            objective, likelihood = self.teacher.loss(tokens, mask, *given, scale=scale, softcap=softcap)
        if (balance := self._balance(batch, hidden)) is not None:
            objective = objective + balance
        self._see(objective, hidden)
        objective.backward()
        return torch.cat((likelihood.detach()[None], _counted(batch) * hidden.loads.flatten()))

    def _see(self, result: Tensor, hidden: Hidden) -> None:
        """Note the formats of the first pass, while the graph that led to its `result` is there."""
        if not self.states_format:
            self.products, self.states_format = products_in(result), formats_of([hidden.states])

    def _loss(self, states: Tensor, targets: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
        """What is minimized of the last states, and the likelihood part of it."""
        return next_token_loss(
            states.flatten(0, 1),
            self.model.head_weight.to(self.dtype),
            targets.flatten(),
            scale=scale,
            softcap=self.model.config.logit_softcap,
            z_loss=self.recipe.z_loss,
        )

    def _balance(self, batch: Batch, hidden: Hidden) -> Tensor | None:
        """What is minimized of the experts' balance; None when nothing is."""
        experts = self.model.config.experts
        if not experts.count or experts.balancing != "auxiliary":
            return None
        rows = self.plan.phase_at(self.position.step).rows
        return _counted(batch) * experts.balance_weight / rows * hidden.balance

    def _through_stages(self, pipeline: Pipeline, batches: list[Batch], *, scale: float) -> Tensor:
        """`_passes` through the layers of which this process has some."""
        batches = [*batches, *(idle(batches[0]) for _ in range(len(batches), pipeline.padded(len(batches))))]
        config = self.model.config
        likelihoods = torch.zeros(1, device=self.world.device)
        loads = torch.zeros(config.layers, max(1, config.experts.count), device=self.world.device)

        def forward(number: int, chunk: int, given: Tensor | None) -> tuple[Tensor, Tensor | None]:
            self.alive()
            batch, layers = batches[number], pipeline.layers[chunk]
            tokens, targets, mask = self._tensors(batch)
            hidden = self.hidden(tokens, mask, dtype=self.dtype, given_BLD=given, layers=layers)
            routed = [layer for layer in layers if config.has_experts(layer)]
            loads[routed] += _counted(batch) * hidden.loads if routed else 0.0
            balance = self._balance(batch, hidden) if routed else None
            if not pipeline.is_last(chunk):
                self._see(hidden.states, hidden)
                return hidden.states, balance
            objective, likelihood = self._loss(hidden.states, targets, scale=scale)
            likelihoods.add_(likelihood.detach())
            self._see(objective, hidden)
            return objective, balance

        pipeline.train(len(batches), forward, lambda number: self._states_like(batches[number]))
        routed = [layer for layer in range(config.layers) if config.has_experts(layer)]
        return torch.cat((likelihoods, loads[routed].flatten()))

    def _states_like(self, batch: Batch) -> Tensor:
        """A tensor in the form of this process's states between two layers."""
        rows, length = batch.tokens.shape
        shape = (rows, length // self.world.length(*POSITIONS), self.model.config.width)
        return torch.empty(shape, dtype=self.dtype, device=self.world.device)

    def _tensors(self, batch: Batch) -> tuple[Tensor, Tensor, DocumentMask]:
        """Tokens, targets and mask on the device: this process's positions of the rows."""
        tokens, targets, documents, prefix = (
            None if array is None else torch.from_numpy(array).to(self.world.device, non_blocking=True)
            for array in batch
        )
        world, length = self.world, tokens.shape[1]
        mask = document_mask(
            documents,
            dtype=self.dtype,
            window=self.model.config.window,
            prefix=prefix,
            own=world.positions(length, "context") if world.length("context") > 1 else None,
            kind=self.attention,
        )
        own = world.positions(length, *POSITIONS)
        return tokens[:, own], targets[:, own], mask

    def _update(self, step: int, norm: float, factor: float) -> None:
        clip_gradients(self.pieces.tensors, norm=norm, limit=self.recipe.gradient_clip)
        set_learning_rates(self.optimizers, factor)
        share = average_share(step, steps=self.plan.record.steps, recipe=self.recipe.average)
        set_average_share(self.optimizers, share)
        for optimizer in self.optimizers.values():
            optimizer.step()

    def _seen(self, step: int, made: _Pass) -> Entry | None:
        """What the detector says of a step. Losses of one phase are not compared with those of another."""
        if not made.is_finite:
            return None
        phase = self.plan.phase_at(step).number
        if self.position.watched.phase != phase:
            self.position.watched = Watched(phase=phase)
        return self.position.watched.see(
            step,
            loss=made.loss,
            norm=made.norm,
            recipe=self.recipe.spikes,
            last_step=self.plan.record.steps - 1,
        )

    def _advance(self, report: StepReport) -> None:
        position = self.position
        if report.is_skipped:
            self._skip(report)
        else:
            position.skipped_in_a_row = 0
            position.rerun_steps += [report.step] if report.was_rerun else []
            position.first_loss = report.loss if position.first_loss is None else position.first_loss
            position.last_losses = [*position.last_losses, report.loss][-LOSS_WINDOW:]
        position.step = report.step + 1
        self._pass_over()

    def _skip(self, report: StepReport) -> None:
        """Enter a step that is not finite; Diverged, with nothing entered, when it is one too many."""
        self.position.skipped_in_a_row += 1
        if self.position.skipped_in_a_row > self.recipe.max_skipped_steps:
            skipped = [*self.ledger.steps, report.step][-self.position.skipped_in_a_row :]
            raise Diverged(
                f"steps {skipped} had a loss or gradient that is not finite, more in a row than"
                f" max_skipped_steps={self.recipe.max_skipped_steps}; lower the learning rate or look at the data"
            )
        loss, norm = (number if math.isfinite(number) else None for number in (report.loss, report.gradient_norm))
        step = report.step
        self._enter(
            Entry(first=step, last=step, reason="not_finite", onset=step, seen_at=step, loss=loss, gradient_norm=norm)
        )

    def _pass_over(self) -> None:
        """Move to the next step that the ledger does not hold; a run that comes here again counts as it did before."""
        while reasons := self.ledger.reasons(self.position.step):
            self.position.skipped_in_a_row += reasons == {"not_finite"}
            self.position.step += 1

    def _enter(self, entry: Entry) -> None:
        self.ledger = self.ledger.with_entry(entry)
        if self.store is not None and self.world.is_first:
            keep_ledger(self.store.folder, self.ledger)

    def use_average(self) -> None:
        """Put the mean of the weights, if the recipe wants one, in their place; training does not go on from there."""
        average = self.optimizers.get("average")
        if isinstance(average, Average):
            average.apply()

    # Saving and resuming

    def save(self) -> None:
        """Begin a checkpoint of the present step."""
        spikes, step = self.recipe.spikes, self.position.step
        self._kept.begin(
            step=step,
            tensors=checkpoint.pack(self.model, self.optimizers),
            own=checkpoint.pack_own(self.world),
            state={
                "position": write_record(self.position),
                "ledger": write_record(self.ledger.entries),
                **self._identity(),
            },
            needed_step=max(0, step - spikes.patience - spikes.rollback_steps) if spikes.deviations else None,
            places=checkpoint.places(self.model, self.optimizers),
        )

    def resume(self, store: checkpoint.Store) -> tuple[str, ...]:
        """Keep checkpoints in `store` and go on from its newest whole one, if there is one.

        Returns a line for each newer one that is broken, and for what was set aside. RefusedInput when it belongs to
        another plan, recipe or model.
        """
        self.store = store
        self.ledger = store.tidy()
        found = store.newest()
        if found is None:
            if self.position.step:
                raise RefusedInput(f"{store.folder}: there is no checkpoint to go back to; someone removed it")
            self._pass_over()
            return store.lost
        checkpoint.check_identity(found.state, self._identity(), store.folder)
        checkpoint.unpack(found.tensors, self.model, self.optimizers, self.world)
        self.position = read_record(Position, found.state["position"], where="position")
        self._pass_over()
        log.info("resumed at step %d", self.position.step)
        return (*store.lost, *found.broken)

    def roll_back(self, spike: Entry) -> tuple[str, ...]:
        """Enter a spike into the ledger and go back to before its first step; steps up to it are made again.

        Returns what `resume` returns. Diverged when the recipe does not go back any more.
        """
        limit = self.recipe.spikes.max_rollbacks
        if self.ledger.rollbacks >= limit:
            raise Diverged(
                f"steps {spike.onset} to {spike.seen_at}: a spike (loss {spike.loss:.4g}, gradient norm"
                f" {spike.gradient_norm:.4g}) after {limit} rollbacks, and max_rollbacks={limit}; lower the learning"
                " rate or look at the data"
            )
        self._kept.settle()
        self._enter(spike)  # from here on a killed run comes out the same
        self.world.wait()
        seconds = self.position.seconds
        broken = self.resume(self._kept)
        self.position.seconds = seconds
        return broken

    @property
    def _kept(self) -> checkpoint.Store:
        assert self.store is not None, "resume(store) says where checkpoints are kept"
        return self.store

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint belongs to."""
        settings = {
            "model": differing_from_defaults(self.model.config),
            "pretrain": differing_from_defaults(self.recipe),
        }
        return {"data": checkpoint.data_identity(self.plan), "settings": settings}

    # Looking at it

    def formats(self) -> dict[str, Any]:
        """The number formats in this process: what is there now, and what its first pass was made of."""
        weights = [*self.model.parameters(), *self.model.buffers()]
        gradients = [weight.grad for weight in self.pieces.tensors if weight.grad is not None]
        named = {"weights": weights, "gradients": gradients, "optimizer": states_of(self.optimizers)}
        found = {name: formats_of(tensors) for name, tensors in named.items()}
        return found | {"passes": self.states_format, "products": self.products}

    def held_out(self) -> dict[str, float]:
        """What is measured on held-out documents, by the name it is logged under."""
        bits = {f"{HELD_OUT_BITS}_{name}": value for name, value in self.held_out_bits_per_byte().items()}
        return bits | {f"held_out_loss_{name}": value for name, value in self.held_out_losses().items()}

    @torch.no_grad()
    def held_out_bits_per_byte(self) -> dict[str, float]:
        """Bits per UTF-8 byte of each source's held-out documents, their end-of-text included.

        The first token of a document has no context and is counted at log2(vocabulary) bits, so this is the length of a
        real code. Contexts are cut at the row's length. Sources without held-out documents are left out; so are all
        when the objective gives no probability to a text.
        """
        if self.objective is not None and not self.objective.recipe.continues_text:
            return {}
        result = {}
        for number, source in enumerate(self.plan.record.sources):
            if source.held_out_documents:
                total, _ = self._held_out_nats(number, lambda samples, _: Batch(*self._rows(samples)))
                first_tokens = source.held_out_documents * math.log(self.model.config.vocab_size)
                result[source.name] = (total + first_tokens) / math.log(2) / max(1, held_out_bytes(self.plan, number))
        return result

    @torch.no_grad()
    def held_out_losses(self) -> dict[str, float]:
        """Nats a target of each source's held-out documents under an objective that gives no probability to a text.

        Its draws are the same at every step. Empty for the other objectives.
        """
        if self.objective is None or self.objective.recipe.continues_text:
            return {}
        result = {}
        for number, source in enumerate(self.plan.record.sources):
            total, count = self._held_out_nats(
                number, lambda samples, numbers: self.batch(samples, step=-1, numbers=numbers)
            )
            if count:
                result[source.name] = total / count
        return result

    def _held_out_nats(
        self, source: int, batch_of: Callable[[list[Sample], Sequence[int]], Batch]
    ) -> tuple[float, float]:
        """Nats of all targets in a source's held-out rows, and how many there are, over all processes."""
        samples = held_out_samples(self.plan, source)
        own = range(self.world.place(*ROWS), len(samples), self.world.length(*ROWS))
        sums = torch.zeros(2, dtype=torch.float64)
        for at in range(0, self._common(len(own)), EVALUATED_ROWS):
            numbers = own[at : at + EVALUATED_ROWS]
            # One that has no row left goes along with those that have, and counts nothing.
            batch = batch_of([samples[number] for number in numbers or [0]], numbers or [0])
            batch = batch if numbers else idle(batch)
            sums += torch.tensor([self._nats(batch), float(batch.trained_tokens)], dtype=torch.float64)
        sums[1] /= self.world.length(*PARTS_OF_A_ROW)  # nats are those of the own positions, and of the last layer's
        total, count = self.world.sum(sums.to(self.world.device)).tolist()
        return total, count

    def _rows(self, samples: list[Sample], *, length: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows of `length` positions; 0: as in the last phase."""
        return self.shards.rows(samples, length=length or self.plan.record.sequence_length)

    def _nats(self, batch: Batch) -> float:
        self.alive()
        tokens, targets, mask = self._tensors(batch)
        states = self._last_states(tokens, mask, like=self._states_like(batch))
        if states is None:
            return 0.0
        head = self.model.head_weight.to(self.dtype)
        losses = token_losses(states.flatten(0, 1), head, targets.flatten(), softcap=self.model.config.logit_softcap)
        return losses.double().sum().item()

    def _last_states(self, tokens: Tensor, mask: DocumentMask, *, like: Tensor) -> Tensor | None:
        """What the last layer makes of rows; None in a process that has not got it."""
        if self.pipeline is None:
            return self.model(tokens, mask, dtype=self.dtype).states
        layers = self.pipeline.layers

        def forward(chunk: int, given: Tensor | None) -> Tensor:
            return self.model(tokens, mask, dtype=self.dtype, given_BLD=given, layers=layers[chunk]).states

        return next(iter(list(self.pipeline.evaluate(forward, like))), None)

    def whole_model(self) -> Decoder | None:
        """The model in the first process, None in the others; all must come here."""
        return gathered(self.model, self.pieces)

    @torch.no_grad()
    def row_loss(self, sample: Sample, *, step: int, number: int) -> float:
        """Nats a target of one row of a step's batch; all processes of a spread model must come here."""
        batch = self.batch([sample], step=step, numbers=[number])
        nats = torch.tensor(self._nats(batch), dtype=torch.float64, device=self.world.device)
        return self.world.sum(nats, *PARTS_OF_A_ROW).item() / max(1, batch.trained_tokens)


class Idle(Batch):
    """A batch of which nothing is learned and nothing counted, for a process that goes along with others."""


def _counted(batch: Batch) -> bool:
    return not isinstance(batch, Idle)


def idle(batch: Batch) -> Idle:
    """Rows like the batch's, without targets."""
    return Idle(*batch._replace(targets=np.full_like(batch.targets, IGNORED)))


@torch.no_grad()
def continued(model: Decoder, prompt: list[int], *, new_tokens: int, eos_id: int, dtype: torch.dtype) -> list[int]:
    """`prompt` followed by a whole model's most likely tokens, up to `new_tokens` or the end of the text."""
    tokens = torch.tensor([prompt], device=model.embedding.device)
    room = min(new_tokens, model.config.max_length - len(prompt))
    for _ in range(room):
        mask = one_document(tokens, dtype=dtype, window=model.config.window)
        states = model(tokens, mask, dtype=dtype).states[:, -1]
        following = (states @ model.head_weight.to(dtype).t()).argmax(dim=-1)
        tokens = torch.cat((tokens, following[:, None]), dim=1)
        if following.item() == eos_id:
            break
    return tokens[0].tolist()


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """Who is told what while a run goes on."""

    progress: Progress
    checkpoint_seconds: float
    bundle: Path  # a folder, made when the run stops itself
    describe: bundle.Describe
    sample: Callable[[Decoder], str] | None = None  # a text of the model at a step
    sample_steps: int = 0  # between two texts; 0: TEXT_SAMPLES in a run
    evaluation_steps: int = 0  # between two looks at held-out text; 0: EVALUATIONS in a run


def train(trainer: Trainer, watch: Watch) -> None:
    """Run the plan's remaining steps, keeping checkpoints where `resume` said.

    StopRequested, with the state saved, when a signal asked for it.
    """
    assert trainer.store is not None, "resume(store) says where checkpoints are kept"
    try:
        with stop_requests() as asked, trainer.store as store:
            if trainer.recipe.spikes.deviations and not checkpoint.checkpoints(store.folder):
                trainer.save()  # a spike may come before the first one that is due
            _run_steps(trainer, watch, store, asked)
    except Diverged as error:
        bundle.write(watch.bundle, trainer, str(error), describe=watch.describe)
        trainer.world.wait()  # the first process that ends in an error ends the others
        raise Diverged(f"{error}. {watch.bundle} has the batch, its documents and the norms") from error


def _run_steps(trainer: Trainer, watch: Watch, store: checkpoint.Store, asked: list[int]) -> None:
    """The steps that are left. What happens at a step's end is what all processes told each other along with it."""
    steps, saved = trainer.plan.record.steps, time.monotonic()
    while trainer.position.step < steps:
        started = time.monotonic()
        is_due = trainer.world.is_first and not store.is_pending and started - saved > watch.checkpoint_seconds
        report = trainer.run_step(Told(stop=bool(asked), save=is_due, writing=store.is_writing))
        trainer.position.seconds += time.monotonic() - started
        _report(trainer, watch, report, seconds=time.monotonic() - started)
        if report.spike is not None:
            _roll_back(trainer, watch, report.spike)
            continue
        if not report.told.writing:
            store.commit()
        if trainer.position.step < steps and (report.told.save or report.told.stop):
            store.settle()
            trainer.save()
            saved = time.monotonic()
            if report.told.stop:
                store.settle()
                step = trainer.position.step
                text = f"checkpoint of step {step} of {steps} saved; the same command goes on from there"
                watch.progress.saved(text)
                trainer.world.wait()  # the first process that ends in an error ends the others
                raise StopRequested(text)


def _roll_back(trainer: Trainer, watch: Watch, spike: Entry) -> None:
    broken = trainer.roll_back(spike)
    for line in broken:
        watch.progress.message(f"a checkpoint is damaged: {line}", level="WARNING")
    watch.progress.message(
        f"a spike at steps {spike.onset} to {spike.seen_at} (loss {spike.loss:.4g}, gradient norm"
        f" {spike.gradient_norm:.4g}): back to step {trainer.position.step}; steps {spike.first} to {spike.last} will"
        " not be trained on",
        level="WARNING",
    )


def _report(trainer: Trainer, watch: Watch, report: StepReport, *, seconds: float) -> None:
    """Write the step's numbers, when it is one of those that are written."""
    steps, step = trainer.plan.record.steps, report.step + 1
    if _is_one_of(step, steps, EVALUATIONS, every=watch.evaluation_steps) and step < steps:
        held_out = trainer.held_out()
        for name, value in held_out.items():
            watch.progress.log(step=step, **{name: value})
        numbers = _numbers(trainer, report, seconds=seconds) | held_out
        watch.progress.message(f"step {step} of {steps}: {said(numbers)}")
    model = trainer.whole_model() if _is_one_of(step, steps, TEXT_SAMPLES, every=watch.sample_steps) else None
    if not trainer.world.is_first:
        return
    if report.was_rerun:
        numbers = f"loss {report.loss}, gradient norm {report.gradient_norm}"
        outcome = f"skipped: {numbers}" if report.is_skipped else f"was not finite at first, then {numbers}"
        watch.progress.message(f"step {report.step} {outcome}", level="WARNING")
    if not report.is_skipped and (step == 1 or _is_one_of(step, steps, LOGGED_STEPS)):
        watch.progress.log(step=step, **_numbers(trainer, report, seconds=seconds))
    if watch.sample is not None and model is not None:
        watch.progress.sample(step=step, text=watch.sample(model))


def _numbers(trainer: Trainer, report: StepReport, *, seconds: float) -> dict[str, float]:
    """What is told of a step that took so many `seconds`."""
    phase = trainer.plan.phase_at(report.step)
    tokens = phase.global_batch_tokens
    flops = trainer.model.config.training_flops_per_token(phase.sequence_length)
    return {
        "loss": report.loss,
        "gradient_norm": report.gradient_norm,
        "learning_rate": report.learning_rate,
        "tokens": trainer.plan.tokens_before(report.step + 1),
        "tokens_per_second": tokens / seconds,
        "teraflops_per_second": flops * tokens / seconds / 1e12,
        **_utilization(trainer, flops * tokens / seconds / 1e12),
        "data_wait_seconds": trainer.data_seconds,
        "peak_memory_bytes": peak_memory_bytes(trainer.world.device),
    }


def _utilization(trainer: Trainer, teraflops: float) -> dict[str, float]:
    """Model FLOPs utilization (MFU): the model's own operations over the devices' peak, where that is known."""
    device = trainer.world.device
    peak = peak_teraflops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return {} if peak is None else {"model_flops_utilization": teraflops / (peak * trainer.world.size)}


def _is_one_of(step: int, steps: int, wanted: int, *, every: int = 0) -> bool:
    """Whether `step` is one of those `every` so many, or of about `wanted` evenly spaced ones; the last always is."""
    return step == steps or step % (every or max(1, steps // wanted)) == 0


def keep_freed_memory() -> None:
    """Ask glibc to reuse large freed blocks instead of giving them back: activations come and go by the megabyte.

    Every page given back is zeroed again by the kernel at the next pass; keeping them was worth 8 % of a step. Does
    nothing with another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    mallopt(mmap_threshold, 32 * 2**20)  # the most that glibc accepts
    mallopt(trim_threshold, 2**31 - 1)

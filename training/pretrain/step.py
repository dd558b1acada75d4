"""One training step: a batch of the plan, its gradients summed over micro-batches and processes, and one update.

The loss is the mean over all trained tokens of the global batch, whatever the world size and micro-batch. Weights,
gradients and optimizer state are fp32; the passes run in the recipe's precision.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.contract.process.precision import DTYPES, replaced_here
from training.order.batches import Plan, Sample, Shards, index, sample_ids, trained_tokens
from training.order.loss_mask import IGNORED
from training.pretrain.dtypes import formats_of, products_in, states_of
from training.pretrain.fp8 import Fp8Product
from training.pretrain.losses.chunked import ChunkedLoss, Taught, target_scores, token_losses
from training.pretrain.losses.distillation import DISTILLATION
from training.pretrain.losses.teacher import taught
from training.pretrain.models.attention import DocumentMask, attention_kind, document_mask, documents_within
from training.pretrain.models.decoder import Decoder, Hidden
from training.pretrain.models.layers import softcapped
from training.pretrain.objectives.objective import Batch, Objective
from training.pretrain.optim.averages import average_share, set_average_share
from training.pretrain.optim.clipping import clip_gradients
from training.pretrain.optim.make import make_optimizers
from training.pretrain.optim.schedule import scheduled_factor, set_learning_rates
from training.pretrain.parallel import audit
from training.pretrain.parallel.mesh import begin_pass, fill, in_fp32, spread
from training.pretrain.parallel.pipeline import PipelinePart
from training.pretrain.parallel.world import PARTS_OF_A_ROW, POSITIONS, ROWS, World, micro_batches
from training.pretrain.report import StepReport, Told
from training.pretrain.settings import PretrainRecipe
from training.pretrain.state import State
from training.pretrain.watch.noted import Noted


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """The result of forward and backward over the global batch.

    It has the same bits on every process, so that either all processes skip a step or none does.
    """

    loss: float
    norm: float
    loads: Tensor
    told: Told

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class _Unread(NamedTuple):
    """A step's numbers on the device, before they are read: flags, loss and norm in one vector; norm; and loads."""

    numbers: Tensor
    norm: Tensor
    loads: Tensor


class _Rows(NamedTuple):
    """The rows of a training step: all its samples, and this process's batches, one for each of its micro-batches."""

    step: int
    samples: list[Sample]
    batches: list[Batch]


class Trainer:
    """A model with its optimizers during training on a plan.

    If the model is spread over processes, this is the process's part.
    """

    def __init__(
        self,
        model: Decoder,
        recipe: PretrainRecipe,
        plan: Plan,
        shards: Shards,
        world: World,
        *,
        weights: Iterable[tuple[str, Tensor]] = (),
        micro_batch_tokens: int | None = None,
        objective: Objective | None = None,
        is_audited: bool = False,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.recipe, self.plan, self.shards, self.world = recipe, plan, shards, world
        # Processes exchange states, so all compute in fp32 if one of them must.
        is_replaced = bool(world.first_said(replaced_here(recipe.precision, world.device)))
        self.dtype = torch.float32 if is_replaced else DTYPES[recipe.precision]
        self.gathers_bf16 = not is_replaced and world.degrees.gathers_bf16(precision=recipe.precision)
        self.model, self.pieces = model, spread(model, world, gathers_bf16=self.gathers_bf16)
        fill(model, self.pieces, weights)  # needed if the model is on the meta device
        self.attention = attention_kind(
            world.device, head_width=model.config.head_width, is_cut=world.length("context") > 1
        )
        self.fp8 = Fp8Product(emulated=world.device.type == "cpu") if recipe.precision == "fp8" else None
        if self.fp8 is not None:
            model.set_product(self.fp8)
        self.optimizers = make_optimizers(model, recipe, self.pieces)
        self.state = State(model, self.optimizers, recipe, plan, world)
        self.data_seconds = 0.0  # how long it took to make the rows of the last step
        self._ahead: _Rows | None = None  # rows that were made ahead
        self.products: dict[str, int] = {}  # number of products in this process's first pass, by format
        self.states_format = ""  # format of the states between layers in that pass
        self.passes = [  # for each phase, the rows of each pass
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
        self.pipeline = PipelinePart(world, layers=model.config.layers) if world.length("pipeline") > 1 else None
        self.is_audited = is_audited  # sum gradients in the same order for every number of processes
        self.alive = alive  # called at every sign of progress
        self.objective = objective  # None: next-token prediction
        self.teacher: Decoder | None = None  # None: no distillation
        self.loss = ChunkedLoss(recipe.chosen_loss, softcap=model.config.logit_softcap)
        self.compiles_loss = False
        self.looks_at: Callable[[int], bool] = lambda step: False  # of which steps notes are taken
        self.noted: Noted | None = None  # notes of the last step; None: it was not looked at
        self._places: dict[tuple[int, tuple[str, ...]], Tensor] = {}  # this process's positions, by length and axes
        self.hidden: Callable[..., Hidden] = model  # may be replaced by its compiled form

    def learn_from(self, teacher: Decoder) -> None:
        """Distil a frozen teacher, which no longer leaves the loss to the text alone."""
        self.teacher = teacher
        caps = {"softcap": self.model.config.logit_softcap, "teacher_softcap": teacher.config.logit_softcap}
        self.loss = ChunkedLoss(replace(self.recipe.chosen_loss, part=DISTILLATION), **caps)

    def run_step(self, told: Told = Told()) -> StepReport:  # noqa: B008 - immutable
        """Train on the global batch of the present step and move to the next step that the ledger does not contain.

        If the loss or gradient is not finite, the pass is run once more. A fault of the machine does not recur;
        a fault of the data or the weights does, and then the step is skipped. Raise Diverged if too many steps
        in a row were skipped.
        """
        step = self.state.position.step
        batches, scale = self._batches_of(step)
        made = self._read([self._begin(batches, scale=scale, told=told)])[0]
        was_rerun = not made.is_finite
        if was_rerun:
            made = self._read([self._begin(batches, scale=scale, told=told)])[0]
        if made.is_finite:
            self._update(step, made.norm)
            self.model.rebalance(made.loads)
        report = self._report(step, made, was_rerun=was_rerun)
        self.state.advance(report)
        return report

    def run_steps(self, told: Told, *, until: int) -> list[StepReport] | None:
        """Train on the steps before `until` as `run_step` does, and wait for the device once, at the end.

        `told` is told with the last step. The result is None if a loss or gradient was not finite, or if a step
        completed a spike: then weights and state are to be those of a checkpoint again (`State.go_back`), from which
        `run_step` meets the same step and deals with it.
        """
        begun: list[tuple[int, _Unread]] = []
        while (step := self.state.position.step) < until:
            after = self.state.after(step)
            batches, scale = self._batches_of(step)
            one = self._begin(batches, scale=scale, told=told if after >= until else Told())
            self._update(step, one.norm)
            self.model.rebalance(one.loads)
            begun.append((step, one))
            self.state.position.step = after
        reports = []
        for (step, _), made in zip(begun, self._read([one for _, one in begun]), strict=True):
            report = self._report(step, made)
            if report.is_skipped or report.spike is not None:
                return None
            self.state.advance(report)
            reports.append(report)
        return reports

    def _report(self, step: int, made: _Pass, *, was_rerun: bool = False) -> StepReport:
        """Return the report of a step, which the spike detector has then seen."""
        return StepReport(
            step=step,
            loss=made.loss,
            gradient_norm=made.norm,
            learning_rate=self._factor(step) * self.recipe.learning_rate,
            is_skipped=not made.is_finite,
            was_rerun=was_rerun,
            told=made.told,
            loads=made.loads,
            spike=self.state.spike(step, loss=made.loss, norm=made.norm) if made.is_finite else None,
        )

    def _batches_of(self, step: int) -> tuple[list[Batch], float]:
        """Return this process's batches of a step, and one over the number of trained tokens in the global batch."""
        _, samples, batches = self._rows_of(step)
        scale = 1.0 / max(1, self._trained_tokens(samples, batches))
        if self.world.is_split:  # every process must take part in every message
            batches = [*batches, *(idle(batches[0]) for _ in range(len(batches), self._most_passes(batches[0])))]
        return batches, scale

    def _begin(self, batches: list[Batch], *, scale: float, told: Told) -> _Unread:
        """Compute the gradients of the global batch; return loss, norm and flags without waiting for the device.

        The gradients stay in the parameters.
        """
        self.noted = self._notes_of(self.state.position.step, batches)
        flags = torch.zeros(len(told), device=self.world.device)
        for number in (number for number, flag in enumerate(told) if flag):
            flags[number].fill_(1.0)  # on the device, which a copy from the host would wait for
        if self.is_audited:
            flags, sums = self.world.sum(flags), self._audited(batches, scale=scale)
        else:
            self.pieces.forget_gradients()
            sums = self._passes(batches, scale=scale)
            flags, sums = self.pieces.sum_gradients(torch.cat([flags, sums])).tensor_split([len(told)])
        norm = self.pieces.gradient_norm()
        if self.noted is not None:
            self.noted.gradients = {name: gradient for name, (_, gradient) in self.pieces.norms().items()}
        if self.state.position.step + 1 < self.plan.record.steps:  # while a GPU computes what was just begun
            self._ahead = self._rows_of(self.state.position.step + 1)
        loads = sums[1:].view(-1, max(1, self.model.config.experts.count))
        return _Unread(torch.cat((flags, sums[:1], norm[None])), norm, loads)

    def _read(self, begun: list[_Unread]) -> list[_Pass]:
        """Return the numbers of steps. This waits for the device, once."""
        read = torch.stack([one.numbers for one in begun]).tolist()
        return [
            _Pass(loss=loss, norm=norm, loads=one.loads, told=Told(*(flag > 0 for flag in flags)))
            for one, (*flags, loss, norm) in zip(begun, read, strict=True)
        ]

    def _rows_of(self, step: int) -> _Rows:
        """Return the batch of a step, which may have been made ahead of it."""
        if self._ahead is not None and self._ahead.step == step:
            return self._ahead
        started = time.monotonic()
        samples = index(self.plan, step)
        passes = self.passes[self.plan.phase_at(step).number]
        batches = [self.batch([samples[row] for row in rows], step=step, numbers=rows) for rows in passes]
        batches = [pinned(batch, self.world.device) for batch in batches]
        self.data_seconds = time.monotonic() - started
        return _Rows(step, samples, batches)

    def _most_passes(self, batch: Batch) -> int:
        """Return the most passes that a process makes in the present step, each of as many rows as `batch`."""
        rows = self.plan.phase_at(self.state.position.step).rows
        return -(-rows // (len(batch.tokens) * self.world.length(*ROWS)))

    def _audited(self, batches: list[Batch], *, scale: float) -> Tensor:
        """Compute the gradients in audit mode, summed in a fixed order.

        Return the sum of `_backward` over all micro-batches.
        """
        phase = self.plan.phase_at(self.state.position.step)
        assert self.micro_batch_tokens is not None, "check_degrees refuses audit mode without it"
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
        """Return rows of a step's `samples`, rewritten for the objective; the step number -1 means held-out text."""
        rows = self.rows(samples, length=None if step < 0 else self.plan.phase_at(step).sequence_length)
        return Batch(*rows) if self.objective is None else self.objective.batch(rows, step=step, numbers=numbers)

    def _notes_of(self, step: int, batches: list[Batch]) -> Noted | None:
        """Return where the passes of a step note what is looked at; None if the step is not looked at."""
        if not self.looks_at(step):
            return None
        rows = self.passes[self.plan.phase_at(step).number]
        return Noted(batches, rows, [source for source, _ in sample_ids(self.plan, step)])

    def _trained_tokens(self, samples: list[Sample], batches: list[Batch]) -> int:
        """Return the number of positions with a target in the global batch; `batches` are this process's part of it."""
        if self.objective is None or self.objective.recipe.kind == "causal":
            return trained_tokens(samples)
        own = torch.tensor(sum(batch.trained_tokens for batch in batches), device=self.world.device)
        return int(self.world.sum(own, *ROWS))

    def _passes(self, batches: list[Batch], *, scale: float) -> Tensor:
        """Run all passes of this process, adding up gradients.

        The result is their share of the loss, followed by the experts' loads.
        """
        if self.pipeline is None:
            made = []
            for number, batch in enumerate(batches, start=1):
                begin_pass(self.model, self.world, is_last=number == len(batches))
                made.append(self._backward(batch, scale=scale))
            return reduce(torch.add, made)
        return self._through_stages(self.pipeline, batches, scale=scale)

    def _backward(self, batch: Batch, *, scale: float) -> Tensor:
        """Add the gradients of one batch through a whole model.

        Return its share of the loss, followed by the experts' loads.
        """
        self.alive()
        tokens, targets, mask = self._tensors(batch)
        hidden = self.hidden(tokens, mask, dtype=self.dtype)
        said = None if self.teacher is None else taught(self.teacher, tokens, mask, dtype=self.dtype)
        objective, likelihood, each = self._loss(hidden.states, targets, scale=scale, said=said)
        if self.noted is not None:
            self.noted.note(batch, each, targets)
        if (balance := self._balance(batch, hidden)) is not None:
            objective = objective + balance
        self._see(objective, hidden)
        objective.backward()
        return torch.cat((likelihood.detach()[None], _counted(batch) * hidden.loads.flatten()))

    def _see(self, result: Tensor, hidden: Hidden) -> None:
        """Record the number formats of the first pass, while its autograd graph, which led to `result`, exists."""
        if not self.states_format:
            self.products, self.states_format = products_in(result), formats_of([hidden.states])

    def _loss(
        self, states: Tensor, targets: Tensor, *, scale: float, said: Taught | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `ChunkedLoss` returns for the last layer's states, and a teacher's."""
        given = (states.flatten(0, 1), self.model.head_weight.to(self.dtype), targets.flatten())
        return self.loss(*given, scale=scale, taught=said, compiled=self.compiles_loss)

    def _balance(self, batch: Batch, hidden: Hidden) -> Tensor | None:
        """Return the load-balancing loss of the experts to minimize; None if there is none."""
        experts = self.model.config.experts
        if not experts.count or experts.balancing != "auxiliary":
            return None
        rows = self.plan.phase_at(self.state.position.step).rows
        return _counted(batch) * experts.balance_weight / rows * hidden.balance

    def _through_stages(self, pipeline: PipelinePart, batches: list[Batch], *, scale: float) -> Tensor:
        """Run all passes through the pipeline, adding up gradients.

        The result is their share of the loss, followed by the experts' loads.
        """
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
            objective, likelihood, each = self._loss(hidden.states, targets, scale=scale)
            if self.noted is not None:
                self.noted.note(batch, each, targets)
            likelihoods.add_(likelihood.detach())
            self._see(objective, hidden)
            return objective, balance

        pipeline.train(len(batches), forward, lambda number: self._states_like(batches[number]))
        routed = [layer for layer in range(config.layers) if config.has_experts(layer)]
        return torch.cat((likelihoods, loads[routed].flatten()))

    def _states_like(self, batch: Batch) -> Tensor:
        """Return a tensor with the shape, dtype and device of this process's states between two layers."""
        rows, length = batch.tokens.shape
        shape = (rows, length // self.world.length(*POSITIONS), self.model.config.width)
        return torch.empty(shape, dtype=self.dtype, device=self.world.device)

    def _tensors(self, batch: Batch) -> tuple[Tensor, Tensor, DocumentMask]:
        """Return tokens, targets and mask on the device, for this process's positions of the rows."""

        def on_device(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(self.world.device, non_blocking=True)

        tokens, targets, documents = (on_device(array) for array in (batch.tokens, batch.targets, batch.documents))
        prefix = None if batch.prefix is None else on_device(batch.prefix)
        is_checked = self.attention == "varlen" and self.dtype != torch.bfloat16  # logits in fp32
        mask = document_mask(
            documents,
            dtype=self.dtype,
            window=self.model.config.window,
            prefix=prefix,
            own=self._own(tokens.shape[1], "context"),
            kind="masked" if is_checked else self.attention,
            most=documents_within(batch.documents) if self.attention == "varlen" else 0,
        )
        own = self._own(tokens.shape[1], *POSITIONS)
        return (tokens, targets, mask) if own is None else (tokens[:, own], targets[:, own], mask)

    def _own(self, length: int, *axes: str) -> Tensor | None:
        """Return this process's positions in a row that is divided along these axes; None if it has all of them."""
        if self.world.length(*axes) == 1:
            return None
        if (length, axes) not in self._places:
            self._places[length, axes] = torch.tensor(self.world.positions(length, *axes), device=self.world.device)
        return self._places[length, axes]

    def _factor(self, step: int) -> float:
        """Return the factor of the learning rates at a step."""
        steps = self.plan.record.steps
        warmup_of = next(iter(self.recipe.continued_steps), steps)
        return scheduled_factor(step, steps=steps, recipe=self.recipe, warmup_of=warmup_of)

    def _update(self, step: int, norm: float | Tensor) -> None:
        clip_gradients(self.pieces.tensors, norm=norm, limit=self.recipe.gradient_clip)
        set_learning_rates(self.optimizers, self._factor(step))
        share = average_share(step, steps=self.plan.record.steps, recipe=self.recipe.average)
        set_average_share(self.optimizers, share)
        for optimizer in self.optimizers.values():
            optimizer.step()

    # Inspection and evaluation

    def formats(self) -> dict[str, Any]:
        """Return the number formats of weights, gradients and optimizer state now, and of this process's first pass."""
        weights = [*self.model.parameters(), *self.model.buffers()]
        gradients = [weight.grad for weight in self.pieces.tensors if weight.grad is not None]
        named = {"weights": weights, "gradients": gradients, "optimizer": states_of(self.optimizers)}
        found = {name: formats_of(tensors) for name, tensors in named.items()}
        return found | {"passes": self.states_format, "products": self.products}

    def rows(self, samples: list[Sample], *, length: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows of `length` positions; None means the length in the last phase."""
        return self.shards.rows(samples, length=length or self.plan.record.sequence_length)

    def nats(self, batch: Batch) -> float:
        """Return the summed loss in nats over this process's positions of a batch.

        A process without the last layer returns 0.
        """
        each = self.each_nats(batch)
        return 0.0 if each is None else each.double().sum().item()

    def each_nats(self, batch: Batch) -> Tensor | None:
        """Return the loss in nats at each of this process's positions of a batch, fp32 `[N]`.

        It is 0 where nothing is to be predicted; None in a process without the last layer.
        """
        self.alive()
        tokens, targets, mask = self._tensors(batch)
        states = self._last_states(tokens, mask, like=self._states_like(batch))
        if states is None:
            return None
        head = self.model.head_weight.to(self.dtype)
        return token_losses(states.flatten(0, 1), head, targets.flatten(), softcap=self.model.config.logit_softcap)

    def scored(self, batch: Batch) -> Tensor | None:
        """Return for each of this process's positions of a batch the nats of its target, and 1 if another is likelier.

        The result is fp32 `[2, N]`, and 0 where nothing is to be predicted; None in a process without the last layer.
        """
        self.alive()
        tokens, targets, mask = self._tensors(batch)
        states = self._last_states(tokens, mask, like=self._states_like(batch))
        if states is None:
            return None
        head = self.model.head_weight.to(self.dtype)
        return target_scores(states.flatten(0, 1), head, targets.flatten(), softcap=self.model.config.logit_softcap)

    def own_positions(self, array: np.ndarray) -> Tensor:
        """Return this process's positions of an array `[rows, length]`, on the device."""
        whole, own = torch.from_numpy(array).to(self.world.device), self._own(array.shape[1], *POSITIONS)
        return whole if own is None else whole[:, own]

    @torch.no_grad()
    def logits(self, tokens: Sequence[int], *, at: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """Return the logits `[len(at), V]` of a text at the positions `at`, in fp32. All processes must call this.

        The model stays spread: each process computes its layers and positions, and every process gets all logits.
        `dtype` is the number format of the pass; None means that of training.
        """
        splits = self.world.length(*POSITIONS)
        row = np.zeros((1, -(-len(tokens) // splits) * splits), np.int64)
        row[0, : len(tokens)] = tokens
        padding = (np.arange(row.shape[1]) >= len(tokens)).astype(np.int64)[None]  # a document of its own
        batch = Batch(row, np.full_like(row, IGNORED), padding)
        result = torch.zeros(len(at), self.model.config.vocab_size, device=self.world.device)
        before = self.model, self.dtype
        self.dtype = dtype or self.dtype
        try:
            if self.gathers_bf16 and self.dtype != torch.bfloat16:
                self.model = in_fp32(self.model, self.world)
            row_BL, _, mask = self._tensors(batch)
            states = self._last_states(row_BL, mask, like=self._states_like(batch))
            own = {place: n for n, place in enumerate(self.world.positions(row.shape[1], *POSITIONS))}
            if states is not None and (mine := [n for n, place in enumerate(at) if place in own]):
                chosen = states[0, [own[at[n]] for n in mine]]
                head = self.model.head_weight.to(self.dtype)
                result[mine] = softcapped(F.linear(chosen, head), self.model.config.logit_softcap).float()
        finally:
            is_copied = self.model is not before[0]
            self.model, self.dtype = before
            if is_copied:
                gc.collect()  # FSDP's hooks and the copy's modules keep each other
        return self.world.sum(result, *PARTS_OF_A_ROW)

    def _last_states(self, tokens: Tensor, mask: DocumentMask, *, like: Tensor) -> Tensor | None:
        """Return the states after the last layer; None in a process that does not have this layer."""
        if self.pipeline is None:
            return self.model(tokens, mask, dtype=self.dtype).states
        layers = self.pipeline.layers

        def forward(chunk: int, given: Tensor | None) -> Tensor:
            return self.model(tokens, mask, dtype=self.dtype, given_BLD=given, layers=layers[chunk]).states

        return next(iter(list(self.pipeline.evaluate(forward, like))), None)


def pinned(batch: Batch, device: torch.device) -> Batch:
    """Return the batch in memory from which a CUDA device copies while the host goes on; elsewhere the batch itself.

    The arrays keep the pinned memory alive, and torch does not reuse it before a copy from it has ended.
    """
    if device.type != "cuda":
        return batch
    tokens, targets, documents = (torch.from_numpy(array).pin_memory().numpy() for array in batch[:3])
    prefix = None if batch.prefix is None else torch.from_numpy(batch.prefix).pin_memory().numpy()
    return Batch(tokens, targets, documents, prefix)


class Idle(Batch):
    """A batch without targets, for a process that has no rows left but must take part in other processes' passes."""


def _counted(batch: Batch) -> bool:
    return not isinstance(batch, Idle)


def idle(batch: Batch) -> Idle:
    """Return rows without targets, of the same shape as the rows of the batch."""
    return Idle(*batch._replace(targets=np.full_like(batch.targets, IGNORED)))

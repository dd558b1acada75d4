"""Predict the time of post-training and scoring on GPUs. Imports no torch.

Counted are operations over the peak of the data sheet and the utilization `mfu`, bytes that must be read from a GPU's
memory, and messages of FSDP. Of a part of a step that needs several of these, the slowest decides, because the others
go on beside it. Not counted are the start of a process, reading and writing of files, and padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from training.pretrain.devices import Device
from training.pretrain.forecast import NODE_LINK
from training.pretrain.models.account import FP32
from training.pretrain.models.shape import ModelConfig

BF16 = 2
Seconds = dict[str, float]  # by what is done
# Utilization of trainers that are not compiled: one H200 reached it with DPO of 1.0e9 weights, 17,000 tokens a pass.
# SFT in passes of 2,200 tokens took twice as long as predicted (docs/plan.md).
TUNING_MFU = 0.15
# Share of the data sheet's bandwidth: AdamW's update reached 3.2 of 4.8 TB/s on one H200 (docs/log/benchmarks.md).
MEMORY_SHARE = 2 / 3
UPDATED_BYTES = 40  # of a weight: AdamW reads 16 and writes 12, the norm of its gradient reads 4, clipping moves 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """The GPUs of a stage.

    processes: of all nodes, each with a GPU. on_node: those of a node. shard: those that share a model. gathers:
    whether its weights stay gathered while answers are drawn.
    """

    device: Device
    processes: int = 1
    on_node: int = 1
    shard: int = 1
    mfu: float = TUNING_MFU
    gathers: bool = False

    def computed(self, flops: float, *, is_fp32: bool = False) -> float:
        """Return the seconds in which one GPU computes so many operations."""
        peak = self.device.fp32_teraflops if is_fp32 else self.device.teraflops
        return flops / (peak * 1e12 * self.mfu)

    def moved(self, size: float) -> float:
        """Return the seconds in which one GPU moves so many bytes from or to its memory."""
        return size / (self.device.memory_bytes_per_second * MEMORY_SHARE)

    def gathered(self, parameters: float, messages: float = 1.0) -> float:
        """Return the seconds in which a process gets the other shares of a model in fp32, so many times.

        Whole models take none.
        """
        away = (self.shard - 1) / self.shard
        return messages * FP32 * parameters * away / self._link(self.shard)

    def summed(self, parameters: float, *, of: int) -> float:
        """Return the seconds of an all-reduce, which sends twice, of fp32 gradients that `of` processes share."""
        copies = self.processes // of
        return 2 * FP32 * parameters / of * (copies - 1) / copies / self._link(self.processes)

    def _link(self, reached: int) -> float:
        return self.device.link_bytes_per_second if reached <= self.on_node else NODE_LINK


@dataclass(frozen=True, kw_only=True)
class Read:
    """A model and the sequences that it reads: their number and their mean length in tokens.

    is_reward: the head gives one number and not the vocabulary.
    """

    shape: ModelConfig
    number: float
    length: float
    is_reward: bool = False

    @cached_property
    def head(self) -> int:
        """Weights of the head that take part in products."""
        return 0 if self.is_reward else self.shape.vocab_size * self.shape.width

    @cached_property
    def matrices(self) -> int:
        """Weights that take part in products for each token."""
        return self.shape.matrix_parameters - self.shape.vocab_size * self.shape.width + self.head

    @cached_property
    def parameters(self) -> int:
        """All weights of the model."""
        absent = 0 if self.shape.tied_embeddings or not self.is_reward else self.shape.vocab_size * self.shape.width
        return self.shape.parameter_count - absent

    @property
    def tokens(self) -> float:
        """Tokens of all sequences."""
        return self.number * self.length

    @property
    def attention(self) -> float:
        """Operations of a forward pass in attention for one token: queries with keys, and the mix of values."""
        shape, widths = self.shape, self.shape.head_widths
        context = sum(shape.mean_context(layer, max(1, round(self.length))) for layer in range(shape.layers))
        return 2 * (widths.queries + widths.mixed) * context

    @property
    def forward(self) -> float:
        """Operations of one forward pass over all sequences: two for each weight and token, and attention."""
        return self.tokens * (2 * self.matrices + self.attention)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Prompts and the answers that a model draws to them: their number, and tokens of a prompt and of an answer."""

    shape: ModelConfig
    number: float
    prompt: float
    new: int
    is_fp32: bool = False

    @property
    def prompts(self) -> Read:
        """The prompts, which are read in one pass."""
        return Read(shape=self.shape, number=self.number, length=self.prompt)

    @property
    def whole(self) -> Read:
        """The prompts with their answers."""
        return Read(shape=self.shape, number=self.number, length=self.prompt + self.new)

    @property
    def passes(self) -> int:
        """Passes after the first one, each of which reads one token of every answer."""
        return max(0, self.new - 1)

    @property
    def context(self) -> float:
        """Mean number of tokens before one that is drawn."""
        return self.prompt + self.new / 2

    @property
    def flops_of_a_pass(self) -> float:
        """Operations of a pass over one token of every answer."""
        # A position after so many has the attention that positions of a row of twice as many have on average.
        return Read(shape=self.shape, number=self.number / (2 * self.context), length=2 * self.context).forward

    @property
    def flops(self) -> float:
        """Operations of all passes."""
        return self.prompts.forward + self.passes * self.flops_of_a_pass


@dataclass(frozen=True, kw_only=True)
class TuningWork:
    """What a post-training computes: the sequences of all its steps, and what is read besides.

    passes: of a process in a step. adapters: their numbers of weights; 0: all weights are trained. in_steps: how often
    a step reads its sequences without gradients. before: how often all are read so before the first step. checks:
    what every process reads in fp32 by itself. drawn: the answers of a step. has_judge: whether the reward model reads
    them.
    """

    read: Read
    steps: int
    passes: int = 1
    recomputes: bool = False
    adapters: int = 0
    is_fp32: bool = False
    in_steps: int = 0
    before: int = 0
    checks: tuple[Read, ...] = ()
    drawn: Drawing | None = None
    has_judge: bool = False

    @property
    def training_flops(self) -> float:
        """Operations of the forward and backward passes of all steps.

        The backward pass takes twice as many as the forward pass. Adapters save the gradients of the weights below
        them, and add six operations for each of their own. TRL's fused head computes its logits again in the backward
        pass; layers that are computed twice add a forward pass without the head.
        """
        read = self.read
        flops = 3 * read.forward
        if self.adapters:
            flops += read.tokens * (6 * self.adapters - 2 * read.matrices)
        return flops + (read.forward if self.recomputes else 2 * read.tokens * read.head)

    @property
    def judged(self) -> Read | None:
        """What the reward model reads in a step; None without one."""
        return replace(self.drawn.whole, is_reward=True) if self.drawn and self.has_judge else None

    def flops(self, processes: int) -> float:
        """Return the operations of all processes."""
        found = self.training_flops + self.read.forward * (self.in_steps + self.before)
        found += processes * sum(one.forward for one in self.checks)
        in_a_step = (self.drawn.flops if self.drawn else 0.0) + (self.judged.forward if self.judged else 0.0)
        return found + self.steps * in_a_step


def time_of_tuning(work: TuningWork, place: Gpus) -> Seconds:
    """Return the seconds of a post-training.

    In each pass FSDP gathers the weights twice and sums the gradients once, beside compute. Where each process has the
    whole model, its gradients are summed once a step. Adapters are whole in each process.
    """
    read, steps, is_shared = work.read, work.steps, place.shard > 1
    trained = work.adapters or read.parameters
    in_whole = work.adapters or not is_shared
    passes = work.passes if is_shared else 1
    sent = place.summed(trained, of=1 if in_whole else place.shard) * passes
    sent += place.gathered(read.parameters, work.passes * (2 if work.adapters else 3))
    parts = {
        "steps": steps * max(_of_each(place, work.training_flops / steps, is_fp32=work.is_fp32), sent),
        "update": steps * place.moved(UPDATED_BYTES * trained / (1 if in_whole else place.shard)),
    }
    forward = _of_each(place, read.forward / steps, is_fp32=work.is_fp32)
    unlearned = max(forward, place.gathered(read.parameters, work.passes))
    parts["passes without gradients"] = steps * unlearned * (work.in_steps + work.before)
    parts["checks"] = sum(place.computed(one.forward, is_fp32=True) for one in work.checks)
    if work.drawn:
        parts["answers"] = steps * time_of_answers(_share(work.drawn, place.processes), place)
    if work.judged:
        scored = _of_each(place, work.judged.forward, is_fp32=True)
        parts["rewards"] = steps * max(scored, place.gathered(work.judged.parameters))
    return {name: seconds for name, seconds in parts.items() if seconds}


def time_of_answers(drawn: Drawing, place: Gpus, *, gathers_first: bool = True) -> float:
    """Return the seconds in which one process draws answers, all of the greatest length.

    Each pass reads all weights, and all keys and values. In bf16 the weights are a copy that is made once or, of a
    shared model, in every pass; weights that stay gathered are sent once, in bf16. Keys and values are in fp32, and
    copied when those of a token are joined to them.
    """
    shape, widths = drawn.shape, drawn.shape.head_widths
    weights = shape.parameter_count - (0 if shape.tied_embeddings else shape.vocab_size * shape.width)
    copied = FP32 + 2 * BF16  # read in fp32, written in bf16, and read
    number_bytes = FP32 if drawn.is_fp32 else BF16 if place.shard == 1 or place.gathers else copied
    keys = FP32 * shape.layers * (widths.keys + widths.values)
    size = number_bytes * weights + 3 * keys * drawn.number * drawn.context
    gathered = 0.0 if place.gathers else place.gathered(shape.parameter_count)
    of_a_pass = max(place.computed(drawn.flops_of_a_pass, is_fp32=drawn.is_fp32), place.moved(size), gathered)
    prompts = place.computed(drawn.prompts.forward, is_fp32=drawn.is_fp32)
    first = max(prompts, place.moved((FP32 if drawn.is_fp32 else copied) * weights), gathered)
    return first + drawn.passes * of_a_pass + (time_of_gathering(drawn, place) if gathers_first else 0.0)


def time_of_gathering(drawn: Drawing, place: Gpus) -> float:
    """Return the seconds to gather weights once that stay gathered while answers are drawn; 0 if they do not."""
    if not place.gathers:
        return 0.0
    return place.gathered(drawn.shape.parameter_count, 1.0 if drawn.is_fp32 else BF16 / FP32)


def time_of_reading(read: Read, place: Gpus, *, batch_size: int) -> float:
    """Return the seconds of passes in fp32 without gradients over batches that are shared out among processes.

    They take no less than the weights take from memory, or from the other processes that share them, once a batch.
    """
    batches = _of_one(read.number, batch_size, place.processes)
    rows = min(read.number, batch_size * batches)
    least = max(place.moved(FP32 * read.parameters), place.gathered(read.parameters))
    return max(place.computed(replace(read, number=rows).forward, is_fp32=True), batches * least)


def time_of_answering(drawn: Drawing, place: Gpus, *, batch_size: int) -> float:
    """Return the seconds of answers in batches that processes share out, and of gathering the weights for them."""
    batches = _of_one(drawn.number, batch_size, place.processes)
    of_a_batch = time_of_answers(replace(drawn, number=min(drawn.number, batch_size)), place, gathers_first=False)
    return batches * of_a_batch + time_of_gathering(drawn, place)


def _of_one(number: float, batch_size: int, processes: int) -> int:
    """Return the most batches that one process has."""
    return ceil(ceil(number / batch_size) / processes)


def _of_each(place: Gpus, flops: float, *, is_fp32: bool) -> float:
    return place.computed(flops / place.processes, is_fp32=is_fp32)


def _share(drawn: Drawing, processes: int) -> Drawing:
    return replace(drawn, number=drawn.number / processes)

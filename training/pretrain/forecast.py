"""Predict the memory of a pretraining and the time of its steps, and find layouts that fit. Imports no torch.

The arithmetic describes this package's trainer as it is: FSDP gathers weights, each micro-batch reduces its fp32
gradients, and the export joins one weight at a time. `python -m benchmarks.forecast` compares the memory with trainings
on a CPU, `python -m benchmarks.gpu mfu` with one on a GPU. No messages between GPUs were compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, Literal

from training.order.batch_settings import BatchPhase
from training.pretrain.degrees import MESSAGE_NUMBERS, Degrees, micro_batches_in
from training.pretrain.devices import Device
from training.pretrain.divisible import check_degrees
from training.pretrain.division import Division, divided
from training.pretrain.memory import Needed
from training.pretrain.models.account import (
    FILE_BYTES,
    FP32,
    Recompute,
    evaluated_rows,
    evaluation_bytes,
    keeps_cast,
    largest_bytes,
    least_bytes,
)
from training.pretrain.models.shape import ModelConfig
from training.pretrain.settings import PretrainRecipe
from training.records import RecipeError

LOSS_CHUNK = 1024  # positions whose logits exist at once (training/pretrain/loss.py)
LOSS_LOGITS = 2**27  # … of which there are so many on a GPU, if that is more
LOSS_TILE = 64  # … and of which a CPU computes the gradients at once

# Python, torch and numpy in a process that trains on a CPU, measured by benchmarks.forecast; transformers is imported
# for the check of the export. On a GPU: the CUDA context and NCCL's buffers, which were not measured.
LIBRARIES = 430_000_000
TRANSFORMERS = 180_000_000
CUDA_CONTEXT = 1_500_000_000

# Model FLOPs utilization that is assumed for compute alone, until a training of the same kind was measured. One H200
# reached 0.49 to 0.52 at 1.25e9 weights, with compiled blocks (docs/log/benchmarks.md).
MFU = 0.50
NODE_LINK = 50e9  # bytes per second that a GPU sends to other nodes: one adapter of 400 Gbit/s for each GPU
RECOMPUTED: dict[Recompute, float] = {"none": 1.0, "selective": 1.05, "full": 4 / 3}  # operations, of those without

COPY = "copy for a checkpoint"

Moments = dict[str, Needed]  # bytes by purpose, at each moment of a training


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The division of a training among processes. Its fields have the same names as those of the profile."""

    nodes: int = 1
    processes: int = 1  # on each node
    micro_batch_tokens: int | None = None
    recompute: Recompute = "none"
    shard: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    pipeline: int = 1
    pipeline_chunks: int = 1
    zero_stage: int = 3
    gather_dtype: Literal["fp32", "bf16"] = "fp32"

    @classmethod
    def of(cls, size: Any) -> Layout:
        """Return the layout that a profile or a job's run settings ask for."""
        return cls(**{one.name: getattr(size, one.name) for one in fields(cls)})

    @property
    def world(self) -> int:
        """The number of processes."""
        return self.nodes * self.processes

    @property
    def degrees(self) -> Degrees:
        """The degrees of parallelism."""
        return Degrees.of(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTraining:
    """What is trained: shape, settings, and the phase whose steps need most."""

    shape: ModelConfig
    recipe: PretrainRecipe
    phase: BatchPhase
    teacher: ModelConfig | None = None

    @property
    def number_bytes(self) -> int:
        """Bytes of a number in the layers' products; fp8 keeps its states in bf16."""
        return 4 if self.recipe.precision == "fp32" else 2


def passes_of(training: PlannedTraining, layout: Layout) -> tuple[int, int]:
    """Return the rows of a micro-batch, and the most passes that a process makes in a step.

    Raise RecipeError if the layout does not divide the batch.
    """
    sets = layout.degrees.row_sets(layout.world)
    count = micro_batches_in(
        global_batch_tokens=training.phase.global_batch_tokens,
        sequence_length=training.phase.sequence_length,
        micro_batch_tokens=layout.micro_batch_tokens,
        data_parallel=sets,
    )
    return training.phase.rows // count, -(-count // sets)


# Memory


def memory(training: PlannedTraining, layout: Layout, *, on_gpu: bool, compares: bool = True) -> Moments:
    """Return the bytes that the first process needs at each moment of a training, by purpose.

    On a GPU these are bytes of the GPU. `compares` says whether the exported model is read back to be checked.
    """
    config, degrees = training.shape, layout.degrees
    whole = FP32 * config.parameter_count
    step = _of_a_step(training, layout, on_gpu=on_gpu)
    held = {name: step[name] for name in ("libraries", "weights", "optimizer")}
    held["gradients"] = held["weights"]  # those of the last step are kept
    copy = {} if on_gpu else {COPY: copied_bytes(training, layout)}
    moments = {"step": step | copy, "held-out text": held | copy | _of_an_evaluation(training, layout)}
    if degrees.product > 1:  # one weight is joined at a time, and one layer at a time is read back
        file = {} if on_gpu else {"file of weights": min(FILE_BYTES, whole)}
        library = TRANSFORMERS if compares and not on_gpu else 0
        moments["export"] = (
            held | copy | {"whole weight": _joined_bytes(config, degrees), "transformers": library} | file
        )
        if compares and sent_bytes(training, layout) != FP32:  # logits in fp32, by another share of the weights
            moments["logits in fp32"] = (
                held
                | copy
                | {
                    "copied weights": held["weights"],
                    "gathered weights": gathered_for_a_text(config, degrees),
                }
            )
    elif compares:
        moments["export"] = held | copy | {"model read back": whole if on_gpu else whole + TRANSFORMERS}
    return moments


def _joined_bytes(config: ModelConfig, degrees: Degrees) -> int:
    """Return the bytes of a weight that is joined beside the one before it; parts along a later axis are copied."""
    copied = (one.shape for one in divided(config, degrees) if one.rearranged or one.in_layer[1:] != one.shape[1:])
    return FP32 * max(2 * largest_bytes(config) // FP32, *(3 * prod(shape) for shape in copied), 0)


def copied_bytes(training: PlannedTraining, layout: Layout) -> int:
    """Return the bytes that a process copies for a checkpoint; processes that hold the same parts divide them.

    They do not divide a weight that all of them hold, nor its state.
    """
    sizes, kinds = layout.degrees.sizes(layout.world), {}
    for one in divided(training.shape, layout.degrees):
        state = FP32 * (one.held + _state_numbers(training, one))
        total, largest = kinds.get(one.sums, (0, 0))
        kinds[one.sums] = total + state, max(largest, FP32 * one.held)
    copies = {sums: prod(sizes[axis] for axis in sums) for sums in kinds}
    return sum(max(total // copies[sums], largest) for sums, (total, largest) in kinds.items())


def _state_numbers(training: PlannedTraining, one: Division) -> int:
    """Return how many numbers of state the optimizer and the weight average hold for a process's part of a weight."""
    whole = training.recipe.optimizer_part.numbers(one.name, one.shape)
    return whole * one.held // prod(one.shape) + (one.held if training.recipe.average.kind != "none" else 0)


def host_memory(training: PlannedTraining, layout: Layout) -> Needed:
    """Return the bytes of a node's own memory that its processes need together, if they train on GPUs.

    Each process copies its share for checkpoints. The weights with which it starts pass through the node's memory one
    at a time; the first process writes them in the end, a file at a time.
    """
    return {
        "libraries": layout.processes * LIBRARIES,
        "copies for checkpoints": layout.processes * copied_bytes(training, layout),
        "file of weights": min(FILE_BYTES, FP32 * training.shape.parameter_count),
    }


def peak(moments: Moments) -> tuple[str, int]:
    """Return the moment of a training that needs most memory, and its bytes."""
    moment = max(moments, key=lambda one: sum(moments[one].values()))
    return moment, sum(moments[moment].values())


def _of_a_step(training: PlannedTraining, layout: Layout, *, on_gpu: bool) -> Needed:
    config, degrees = training.shape, layout.degrees
    rows, passes = passes_of(training, layout)
    length, number_bytes = training.phase.sequence_length, training.number_bytes
    in_flight = min(degrees.pipeline, passes)  # the first process keeps the passes of as many micro-batches as stages
    parts = _held_in_a_step(training, layout, on_gpu=on_gpu)
    weights, own = divided(config, degrees), parts["weights"]
    parts |= {"gradients": own if passes > 1 else 0, "activations": in_flight * parts["activations"]}
    positions = rows * length // (degrees.context * degrees.tensor)
    after = parts | {"activations": 0, "gradients": own}
    summed = after | {"message of gradients": _message_bytes(layout, weights)}
    if degrees.shard == 1:
        at_head = parts | {"head and loss": _of_the_head(config, positions, number_bytes, on_gpu=on_gpu)}
        return max(at_head, summed, key=lambda one: sum(one.values()))
    sent = sent_bytes(training, layout)
    at_head = {
        "head and loss": _of_the_head(config, positions, number_bytes, on_gpu=on_gpu, sent=sent),
        "gathered weights": _gathered(config, degrees, blocks=0, in_step=True, number_bytes=sent),
    }
    if layout.recompute == "full":  # no layer is at work
        between = number_bytes * rows * length * ((config.layers + 1) * config.width + 1)
        at_head["activations"] = in_flight * between // (degrees.pipeline * degrees.context * degrees.tensor)
    message = FP32 * _gathered_numbers(config, degrees)[1]
    gathered = _gathered(config, degrees, in_step=True, number_bytes=sent)
    in_last = parts | {
        "gradient of the head": sent * config.vocab_size * config.width,
        "gathered weights": gathered - message,  # no block went before it
    }
    before_it = in_last | {"gathered weights": gathered}
    if layout.recompute != "full":  # the last layer's states are gone
        before_it["activations"] -= parts["activations"] // in_flight * degrees.pipeline // config.layers
    at_end = after | {"gathered weights": _gathered_at_end(config, degrees, number_bytes=sent)}
    return max((parts | at_head, in_last, before_it, at_end, summed), key=lambda one: sum(one.values()))


def _held_in_a_step(training: PlannedTraining, layout: Layout, *, on_gpu: bool) -> Needed:
    """Return the bytes that a process holds in a step: always, and of one pass until its backward pass."""
    config, degrees, number_bytes = training.shape, layout.degrees, training.number_bytes
    rows, length = passes_of(training, layout)[0], training.phase.sequence_length
    whole = _least(
        config,
        training.recipe.optimizer,
        rows,
        length,
        2,  # both gradients and activations
        layout.recompute,
        number_bytes,
        not on_gpu,
        training.recipe.average.kind != "none",
        training.teacher,
    )
    weights, copies = divided(config, degrees), 0
    if keeps_cast(layout.recompute, number_bytes) and degrees.keeps_copies(precision=training.recipe.precision):
        copies = 2 * sum(prod(one.in_layer) for one in weights if one.unit and len(one.shape) > 1)
    of_a_part = whole["activations"] // (degrees.pipeline * degrees.context * degrees.tensor)
    return {
        "libraries": CUDA_CONTEXT if on_gpu else LIBRARIES,
        "weights": FP32 * sum(one.held for one in weights),
        "optimizer": FP32 * sum(_state_numbers(training, one) for one in weights),
        "activations": of_a_part + copies + _kept_of_whole_rows(training, layout, rows=rows, length=length),
        **({"teacher": whole["teacher"]} if training.teacher else {}),
    }


def _message_bytes(layout: Layout, weights: tuple[Division, ...]) -> int:
    """Return the bytes of the largest message in which gradients are copied to be summed with those of other processes.

    A weight that is larger than a message may be is summed where it is.
    """
    degrees, sizes = layout.degrees, layout.degrees.sizes(layout.world)
    numbers: dict[tuple[str, ...], int] = {}
    for one in weights:
        others = tuple(axis for axis in one.sums if sizes[axis] > 1 and axis not in degrees.summed_by_fsdp)
        if others and one.held <= MESSAGE_NUMBERS:
            numbers[others] = numbers.get(others, 0) + one.held
    return FP32 * min(MESSAGE_NUMBERS, max(numbers.values(), default=0))


def _kept_of_whole_rows(training: PlannedTraining, layout: Layout, *, rows: int, length: int) -> int:
    """Return the bytes of activations that every process along `tensor` or `context` keeps for the backward pass.

    With `tensor` they are the gathered inputs of attention and MLP, with `context` the joined keys and values, unless
    attention is computed again.
    """
    config, degrees, positions = training.shape, layout.degrees, rows * length
    kept = 0
    if degrees.tensor > 1:
        dense = config.layers - config.expert_layers
        kept += (config.layers + dense) * config.width * (positions // degrees.context)
    if degrees.context > 1 and layout.recompute != "selective":
        widths = config.head_widths
        joined = (widths.keys + widths.values) * positions - widths.values * (positions // degrees.context)
        kept += config.layers * joined // degrees.tensor
    layers = config.layers if layout.recompute == "full" else degrees.pipeline  # of which one is at work
    return training.number_bytes * kept // layers


def _gathered_at_end(config: ModelConfig, degrees: Degrees, *, number_bytes: int) -> int:
    """Return the bytes of weights and gradients when the backward pass ends: at the embedding, or in the last message.

    The gradient of the first layer is still in its message at the embedding, whose own is summed in fp32.
    """
    ends, block, _ = _gathered_numbers(config, degrees)
    kept = _gathered(config, degrees, blocks=0, number_bytes=number_bytes)
    summed = FP32 * config.vocab_size * config.width if number_bytes < FP32 else 0
    at_embedding = kept + number_bytes * ends + summed + FP32 * block
    return max(at_embedding, (kept if degrees.zero_stage < 3 else 0) + (number_bytes + FP32) * ends)


def _of_an_evaluation(training: PlannedTraining, layout: Layout) -> Needed:
    """Return the bytes that a pass over held-out text adds, before or inside its largest layer or at the head."""
    config, degrees, number_bytes = training.shape, layout.degrees, training.number_bytes
    length = training.phase.sequence_length
    positions = evaluated_rows(length) * length // (degrees.context * degrees.tensor)
    chunk = min(LOSS_CHUNK, positions)
    logits = config.vocab_size * (number_bytes * (chunk + config.width) + 2 * FP32 * chunk)
    given = {"rows": evaluated_rows(length), "tensor": degrees.tensor, "context": degrees.context}
    states = evaluation_bytes(config, positions=positions, number_bytes=number_bytes, **given)
    layer = {"states of a layer": states}
    head = {"head and loss": logits + number_bytes * positions * config.width}
    if degrees.shard > 1:
        sent = sent_bytes(training, layout)
        messages = _messages(config, sent)
        layer["gathered weights"] = _gathered(config, degrees, blocks=1 + messages, number_bytes=sent)
        head["gathered weights"] = _gathered(config, degrees, blocks=0, number_bytes=sent)
        before = {"states of a layer": 2 * number_bytes * positions * config.width}
        before["gathered weights"] = gathered_for_a_text(config, degrees, number_bytes=sent)
        return max(layer, head, before, key=lambda parts: sum(parts.values()))
    return max(layer, head, key=lambda parts: sum(parts.values()))


@lru_cache(maxsize=4096)
def _least(
    config: ModelConfig,
    optimizer: str,
    rows: int,
    length: int,
    passes: int,
    recompute: Recompute,
    number_bytes: int,
    probabilities: bool,
    averaged: bool,
    teacher: ModelConfig | None,
) -> dict[str, int]:
    return least_bytes(
        config,
        optimizer=optimizer,
        rows=rows,
        length=length,
        passes=passes,
        recompute=recompute,
        number_bytes=number_bytes,
        probabilities=probabilities,
        averaged=averaged,
        teacher=teacher,
        keeps_copies=False,
    )


def _of_the_head(
    config: ModelConfig, positions: int, number_bytes: int, *, on_gpu: bool, sent: int | None = None
) -> int:
    """Return the bytes for the head's products: a chunk of logits, its probabilities, and the head's gradient.

    `sent` are the bytes of a number of the head's weights as FSDP sends them; None means that the process has them all.
    """
    chunk = min(max(LOSS_CHUNK, LOSS_LOGITS // config.vocab_size) if on_gpu else LOSS_CHUNK, positions)
    probabilities = FP32 * (chunk if on_gpu else min(LOSS_TILE, positions)) * config.vocab_size
    head = config.vocab_size * config.width
    copies = 2 * number_bytes * head  # of the weights for the products, and of a chunk's gradient
    if sent is not None:  # or the logits, which are copied into fp32 for the probabilities
        copies = max(number_bytes * head, probabilities if number_bytes < FP32 else 0)
        copies += number_bytes * head if sent > number_bytes else 0
    return (
        number_bytes * chunk * config.vocab_size
        + probabilities
        + FP32 * head
        + copies
        + number_bytes * positions * config.width
    )


def sent_bytes(training: PlannedTraining, layout: Layout) -> int:
    """Return the bytes of a number of a weight that FSDP sends. Routers are sent in fp32, and counted like the rest."""
    return 2 if layout.degrees.gathers_bf16(precision=training.recipe.precision) else FP32


def _gathered(
    config: ModelConfig, degrees: Degrees, *, blocks: int = 3, in_step: bool = False, number_bytes: int = FP32
) -> int:
    """Return the bytes of the weights that FSDP gathers at one time, and of gradients that it makes and sums.

    A gathered number takes `number_bytes`; the message of a gradient is in fp32.

    The embedding, the head and the last norm stay gathered from the forward to the backward pass; of the `blocks`, one
    is at work and the next one is fetched. The third is a gradient. In a pass without one, a block at work is beside
    its message, and between two blocks the message of the next one is there too. In a step the gradient of the block
    before is still in its message. At a lower ZeRO stage all blocks stay gathered, and at stage 1 their gradients too.
    """
    ends, block, all_blocks = _gathered_numbers(config, degrees)
    message = FP32 * block if in_step and blocks else 0
    if degrees.zero_stage == 3:
        return number_bytes * (ends + blocks * block) + message
    whole = ends + all_blocks
    gradients = whole - block if degrees.zero_stage == 1 and in_step else 0
    return number_bytes * (whole + min(blocks, 1 if in_step else 2) * block) + FP32 * gradients + message


@lru_cache(maxsize=1024)
def _gathered_numbers(config: ModelConfig, degrees: Degrees) -> tuple[int, int, int]:
    """Return how many numbers FSDP gathers outside of layers, for the largest layer, and for all layers together."""
    sizes: dict[str, int] = {}
    for one in divided(config, degrees):
        sizes[one.unit] = sizes.get(one.unit, 0) + one.gathered
    blocks = [size for unit, size in sizes.items() if unit]
    return sizes[""], max(blocks), sum(blocks)


def gathered_for_a_text(config: ModelConfig, degrees: Degrees, *, number_bytes: int = FP32) -> int:
    """Return the bytes of the weights that FSDP gathers at one time in a pass over a few tokens without gradients.

    Where embedding and head are large it is the message from which they are copied, beside two blocks. Experts that are
    divided along another axis than the first are copied twice.
    """
    ends, blocks = number_bytes * _gathered_numbers(config, degrees)[0], 2 + _messages(config, number_bytes)
    gathered = _gathered(config, degrees, blocks=blocks, number_bytes=number_bytes)
    rearranged: dict[str, int] = {}
    for one in divided(config, degrees):
        rearranged[one.unit] = rearranged.get(one.unit, 0) + number_bytes * one.rearranged
    return max(gathered, 2 * ends + 2 * (gathered - ends) // blocks) + max(rearranged.values())


def _messages(config: ModelConfig, number_bytes: int) -> int:
    """Return how many messages are beside a block at work in a pass without gradients.

    It is the block's own. Routers that are sent in fp32 have one of their own, which takes its place.
    """
    return 0 if config.experts.count and number_bytes < FP32 else 1


# Time


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Predicted seconds of one step: compute, messages that wait for compute, and messages that overlap with it."""

    compute: float
    exposed: float
    hidden: float

    @property
    def seconds(self) -> float:
        """The seconds of the whole step; FSDP's messages overlap with compute, the others do not."""
        return max(self.compute, self.hidden) + self.exposed


def step_time(
    training: PlannedTraining, layout: Layout, device: Device, *, mfu: float = MFU, node_link: float = NODE_LINK
) -> StepTime:
    """Return the predicted time of a step on GPUs, if compute alone reaches the utilization `mfu`."""
    config, degrees = training.shape, layout.degrees
    rows, passes = passes_of(training, layout)
    length, sizes = training.phase.sequence_length, degrees.sizes(layout.world)
    parts = degrees.pipeline * degrees.context * degrees.tensor
    flops = config.training_flops_per_token(length) * rows * length * passes / parts * RECOMPUTED[layout.recompute]
    idle = (degrees.pipeline - 1) / (passes * degrees.pipeline_chunks)  # share of a pipeline's idle time
    compute = flops / (device.teraflops * 1e12 * mfu) * (1 + idle)

    def link(*axes: str) -> float:
        """Return bytes per second along axes; neighbours on the last axes are on one node."""
        inner = prod(sizes[axis] for axis in list(sizes)[min(map(list(sizes).index, axes)) :])
        return device.link_bytes_per_second if inner <= layout.processes else node_link

    own = config.parameter_count // (degrees.pipeline * degrees.tensor * degrees.expert)
    hidden = exposed = 0.0
    if degrees.shard > 1:
        away = (degrees.shard - 1) / degrees.shard
        # For a forward and a backward pass, which also recomputes; and the sums of gradients.
        gathers = 2 * passes if layout.zero_stage == 3 else 1
        sums = 1 if layout.zero_stage == 1 else passes
        hidden = own * away * (sent_bytes(training, layout) * gathers + FP32 * sums) / link("shard")
    copies = sizes["replicate"] * sizes["expert"] * sizes["context"]
    if copies > 1:  # an all-reduce sends everything twice
        sent = 2 * FP32 * (own // degrees.shard) * (copies - 1) / copies / link("replicate")
        # FSDP sends while the last backward pass computes, which is two thirds of a pass.
        exposed += max(0.0, sent - 2 / 3 * compute / passes) if degrees.summed_by_fsdp else sent
    states = training.number_bytes * rows * length * config.width // degrees.context
    layers = config.layers // degrees.pipeline
    if degrees.tensor > 1:  # four messages of a layer in the forward pass, four in the backward pass
        exposed += passes * layers * 8 * states * (degrees.tensor - 1) / degrees.tensor / link("tensor")
    if degrees.context > 1:  # keys and values, gathered and reduced
        width = config.head_widths.keys + config.head_widths.values
        keys = training.number_bytes * rows * length * width // degrees.tensor
        exposed += passes * layers * 3 * keys * (degrees.context - 1) / degrees.context / link("context")
    if degrees.expert > 1:  # tokens to their experts and back, in both passes
        routed = states // degrees.tensor * config.experts.active
        sparse = config.expert_layers // degrees.pipeline
        exposed += passes * sparse * 4 * routed * (degrees.expert - 1) / degrees.expert / link("expert")
    if degrees.pipeline > 1:
        exposed += passes * degrees.pipeline_chunks * 2 * states // degrees.tensor / link("pipeline")
    return StepTime(compute=compute, exposed=exposed, hidden=hidden)


# Layouts


def in_words(layout: Layout) -> str:
    """Return a layout as the fields of a profile that define it, such as `shard=8 micro_batch_tokens=8192`."""
    names = ("shard", "tensor", "context", "expert", "pipeline", "pipeline_chunks")
    degrees = [f"{name}={getattr(layout, name)}" for name in names if getattr(layout, name) > 1]
    degrees += [f"zero_stage={layout.zero_stage}"] if layout.zero_stage < 3 else []
    degrees += [f"gather_dtype={layout.gather_dtype}"] if layout.gather_dtype != "fp32" else []
    return " ".join([*degrees, f"micro_batch_tokens={layout.micro_batch_tokens}", f"recompute={layout.recompute}"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A layout that fits into the device's memory, with its peak and the predicted time of a step."""

    layout: Layout
    moment: str
    peak_bytes: int
    time: StepTime


def layouts(
    training: PlannedTraining,
    layout: Layout,
    device: Device,
    *,
    mfu: float = MFU,
    node_link: float = NODE_LINK,
    room: float = 0.92,
) -> list[Fit]:
    """Return the layouts, of as many processes, that fit into the share `room` of the memory, the fastest first.

    Tried are powers of two for `shard`, `tensor`, `pipeline` and, in models with experts, `expert`; micro-batches of
    powers of two times a row; the three kinds of recomputation; and the ZeRO stages. Context and pipeline chunks stay
    as they are given.
    """
    found = []
    for one in _candidates(training, layout):
        try:
            check_degrees(
                one.degrees,
                training.shape,
                phases=(training.phase,),
                optimizer=training.recipe.optimizer,
                processes=one.world,
            )
            moment, most = peak(memory(training, one, on_gpu=True))
        except RecipeError:
            continue
        if most <= room * device.memory_bytes:
            time = step_time(training, one, device, mfu=mfu, node_link=node_link)
            found.append(Fit(layout=one, moment=moment, peak_bytes=most, time=time))
    return sorted(found, key=lambda fit: (fit.time.seconds, fit.peak_bytes))


def _candidates(training: PlannedTraining, layout: Layout) -> Iterator[Layout]:
    experts = _powers(layout.world) if training.shape.experts.count else [1]
    rows = _powers(training.phase.rows)
    kinds: tuple[Recompute, ...] = ("none", "selective", "full")
    for shard, tensor, pipeline, expert in product(
        _powers(layout.world), _powers(layout.processes), _powers(layout.world), experts
    ):
        if layout.world % (shard * tensor * pipeline * expert * layout.context):
            continue
        stages = (3, 2, 1) if shard > 1 and pipeline == 1 else (3,)
        for count, recompute, stage in product(rows, kinds, stages):
            yield replace(
                layout,
                shard=shard,
                tensor=tensor,
                pipeline=pipeline,
                expert=expert,
                pipeline_chunks=layout.pipeline_chunks if pipeline > 1 else 1,
                micro_batch_tokens=count * training.phase.sequence_length,
                recompute=recompute,
                zero_stage=stage,
                gather_dtype=layout.gather_dtype if shard > 1 else "fp32",
            )


def _powers(largest: int) -> list[int]:
    return [2**exponent for exponent in range(largest.bit_length())]

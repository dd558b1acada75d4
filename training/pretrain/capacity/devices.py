"""Memory, peak and links of GPUs, by the makers' data sheets, and the seconds that a step takes there. No torch.

No message between GPUs was measured, so the order of two layouts says more than their seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from training.contract.records import RecipeError, no_such
from training.pretrain.capacity.needs import BF16, Pretraining
from training.pretrain.models.account import FP32, PEAK_TERAFLOPS
from training.pretrain.parallel.degrees import Degrees

# Model FLOPs utilization of compute alone, until a run of the same kind was measured. One H200 reached 0.49 to 0.52 in
# pretraining with compiled blocks, and 0.15 in a DPO of 1.0e9 weights (docs/log/benchmarks.md).
MFU, TUNING_MFU = 0.50, 0.15
NODE_LINK = 50e9  # bytes per second that a GPU sends to other nodes: one adapter of 400 Gbit/s for each GPU
RECOMPUTED = {"none": 1.0, "selective": 1.05, "full": 4 / 3}  # operations, of those without


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A kind of GPU: memory in bytes, peaks of dense bf16 and fp32 in TFLOP/s, bytes a second sent within a node.

    The peak of fp32 is that without TF32, which torch does not use for products unless it is told to. `watts` are the
    most that it may draw.
    """

    name: str
    memory_bytes: int
    teraflops: float
    fp32_teraflops: float
    link_bytes_per_second: float
    watts: float


def _device(name: str, memory_gb: float, link_gb_per_second: float, fp32_teraflops: float, watts: float) -> Device:
    return Device(
        name=name,
        memory_bytes=round(memory_gb * 1e9),
        teraflops=PEAK_TERAFLOPS[name],
        fp32_teraflops=fp32_teraflops,
        link_bytes_per_second=link_gb_per_second * 1e9,
        watts=watts,
    )


# NVIDIA's data sheets of A100 (80 GB, SXM), L40S, H100 (SXM) and H200 (SXM); for the B200 that of the DGX B200
# and, for fp32, the brief on the Blackwell architecture. Links: half of the sum of both directions
# that the data sheets give; the L40S has PCIe 4 only.
DEVICES = {
    one.name: one
    for one in (
        _device("A100", 80, 300, 19.5, 400),
        _device("L40S", 48, 32, 91.6, 350),
        _device("H100", 80, 450, 67, 700),
        _device("H200", 141, 450, 67, 700),
        _device("B200", 180, 900, 80, 1000),
    )
}


def device_of(name: str) -> Device:
    """Return a kind of GPU by its name. Raise RecipeError for an unknown one."""
    if name not in DEVICES:
        raise RecipeError(no_such(f"gpu={name!r}: not known", name, DEVICES))
    return DEVICES[name]


def step_seconds(training: Pretraining, run: Any, device: Device, *, mfu: float = MFU) -> float:
    """Return the predicted seconds of a step of pretraining, if compute alone reaches the utilization `mfu`.

    FSDP sends weights and sums gradients beside compute. Replicas, `tensor`, `context` and `expert` wait for messages.
    """
    config, degrees = training.shape, Degrees.of(run)
    (rows, passes), sizes = training.passes(run), degrees.sizes(run.nodes * run.processes)
    length, layers = training.phase.sequence_length, config.layers // degrees.pipeline
    operations = config.training_flops_per_token(length) * rows * length * passes * RECOMPUTED[run.recompute]
    parts = degrees.pipeline * degrees.context * degrees.tensor
    idle = (degrees.pipeline - 1) / (passes * degrees.pipeline_chunks)  # share of a pipeline's idle time
    compute = operations / parts / (device.teraflops * 1e12 * mfu) * (1 + idle)

    def sent(size: float, axis: str) -> float:
        """Return the seconds of messages of so many bytes, of which those of other processes come from elsewhere."""
        inner = prod(list(sizes.values())[list(sizes).index(axis) :])  # neighbours on the last axes are on one node
        away = (sizes[axis] - 1) / sizes[axis]
        return size * away / (device.link_bytes_per_second if inner <= run.processes else NODE_LINK)

    own = config.parameter_count // (degrees.pipeline * degrees.tensor * degrees.expert)
    number = BF16 if degrees.gathers_bf16(precision=training.recipe.precision) else FP32
    gathers, sums = 2 * passes if degrees.zero_stage == 3 else 1, 1 if degrees.zero_stage == 1 else passes
    beside = sent(own * (number * gathers + FP32 * sums), "shard")
    of_replicas = sent(2 * FP32 * own / degrees.shard, "replicate")
    states = training.number_bytes * rows * length * config.width / degrees.context
    keys = training.number_bytes * rows * length * (config.head_widths.keys + config.head_widths.values)
    waits = sent(8 * states * layers, "tensor") + sent(3 * keys / degrees.tensor * layers, "context")
    waits += sent(
        4 * states / degrees.tensor * config.experts.active * config.expert_layers / degrees.pipeline, "expert"
    )
    if degrees.summed_by_fsdp:  # while the last backward pass computes, which is two thirds of a pass
        of_replicas = max(0.0, of_replicas - 2 / 3 * compute / passes)
    return max(compute, beside) + of_replicas + passes * waits

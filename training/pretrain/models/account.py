"""What a shape costs, by arithmetic: parameters, operations a token, bytes of weights, optimizer and activations.

`python -m training.pretrain.models.account llama-3-8b --length 8192` prints it. Standard library only, but for the
blocks that a CPU's attention works in. Tests hold the counts against the model itself, down to the tensors that its
backward pass keeps. Nothing here is a measurement.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from training.pretrain.models.presets import PRESETS
from training.pretrain.models.shape import ModelConfig, ModelRecipe
from training.pretrain.optim.optimizers import OPTIMIZERS
from training.records import read_record

Recompute = Literal["none", "selective", "full"]

FP32 = 4
# Peak dense bf16 operations a second by the makers' data sheets, for the names that drivers give.
PEAK_TERAFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "B200": 2250.0}


def peak_teraflops(device_name: str) -> float | None:
    """Peak dense bf16 TFLOP/s of a device; None when it is not in the table (a CPU, say)."""
    return next((peak for name, peak in PEAK_TERAFLOPS.items() if name in device_name), None)


def parameter_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every trained tensor, as the decoder names them."""
    D, A, E = config.width, config.attention_width, config.head_width
    yield "embedding", (config.vocab_size, D)
    yield "norm", (D,)
    if not config.tied_embeddings:
        yield "head", (config.vocab_size, D)
    for layer in range(config.layers):
        start = f"blocks.{layer}."
        yield f"{start}attention.norm", (D,)
        yield f"{start}attention.query_key_value", (A + 2 * config.kv_heads * E, D)
        yield f"{start}attention.output", (D, A)
        if config.qk_norm:
            yield f"{start}attention.query_norm", (E,)
            yield f"{start}attention.key_norm", (E,)
        yield f"{start}mlp.norm", (D,)
        yield from ((f"{start}mlp.{name}", shape) for name, shape in _mlp_shapes(config, layer))


def _mlp_shapes(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    D, experts = config.width, config.experts
    gates = ("gate", "up") if config.activation == "swiglu" else ("up",)
    if not config.has_experts(layer):
        yield from ((name, (config.mlp_width, D)) for name in gates)
        yield "down", (D, config.mlp_width)
        return
    yield "router", (experts.count, D)
    yield from ((name, (experts.count, experts.width, D)) for name in gates)
    yield "down", (experts.count, D, experts.width)
    if experts.shared:
        yield from ((f"shared_{name}", (experts.shared * experts.width, D)) for name in gates)
        yield "shared_down", (D, experts.shared * experts.width)


def optimizer_bytes(config: ModelConfig, optimizer: str) -> int:
    """The fp32 state that an optimizer keeps."""
    return FP32 * sum(OPTIMIZERS[optimizer].numbers(name, shape) for name, shape in parameter_shapes(config))


def activation_bytes(
    config: ModelConfig,
    *,
    rows: int,
    length: int,
    recompute: Recompute = "none",
    number_bytes: int = 2,
    probabilities: bool = True,
) -> int:
    """What the layers keep for the backward pass, in bytes, for `rows` of `length` positions in one pass.

    `probabilities` are kept by attention on a CPU; a fused kernel keeps two numbers a head instead, which are left out.
    `full` is what the layers keep between them, and one layer at work on top. Experts drop no token, so what all of
    them keep together does not depend on the routing. The head's chunk, the table of rotations, the order of tokens by
    expert and the cast weights are not in it.
    """
    tokens = rows * length
    layers = range(config.layers)
    if recompute == "full":
        at_work = max(_layer_bytes(config, n, rows, length, "none", number_bytes, probabilities) for n in layers)
        kept = number_bytes * config.layers * config.width * tokens + at_work
    else:
        kept = sum(_layer_bytes(config, n, rows, length, recompute, number_bytes, probabilities) for n in layers)
    return kept + number_bytes * (config.width + 1) * tokens


def _layer_bytes(
    config: ModelConfig,
    layer: int,
    rows: int,
    length: int,
    recompute: Recompute,
    number_bytes: int,
    probabilities: bool,
) -> int:
    """What one layer keeps. A: all query heads' width, KV: all keys' width."""
    D, A, KV = config.width, config.attention_width, config.kv_heads * config.head_width
    heads = A + KV
    normed = heads + config.heads + config.kv_heads if config.qk_norm else 0  # unit heads and their scales
    # Selective: queries and keys before rotation, values. Else rotated queries and keys, values, scaled queries.
    core = heads + KV if recompute == "selective" else heads + KV + A
    attention = number_bytes * ((D + 1) + normed + core + A)
    kept = rows * length * (attention + _mlp_bytes(config, layer, recompute, number_bytes))
    if probabilities and recompute != "selective":
        kept += number_bytes * rows * config.heads * attention_pairs(config, layer, length)
    return kept


def _mlp_bytes(config: ModelConfig, layer: int, recompute: Recompute, number_bytes: int) -> int:
    """What the MLP or the experts of a layer keep of one token; what the router computes is in fp32."""
    gated, experts, D = config.activation == "swiglu", config.experts, config.width
    # Gate and up, or up; what goes down; and, unless it is made again, silu(gate). relu(up) stands for up.
    between = (3 if recompute == "selective" else 4) if gated else 2
    if not config.has_experts(layer):
        return number_bytes * ((D + 1) + between * config.mlp_width)
    k = experts.active
    # What comes to its experts, what is inside them, what comes back and the weight that it has in the sum.
    dispatched = k * (D + between * experts.width + D + 1)
    shared = between * experts.shared * experts.width
    # The router's input, its scores, and the chosen ones with their sum.
    routed = FP32 * (D + experts.count + (k + 1 if experts.normalize_weights else 0))
    return number_bytes * ((D + 1) + dispatched + shared) + routed


def attention_pairs(config: ModelConfig, layer: int, length: int) -> int:
    """Query-key pairs that a CPU computes in a row: blocks of queries, each against the keys that one of them sees."""
    from training.pretrain.models.attention import query_blocks

    window = config.window if config.is_windowed(layer) else 0
    return sum((stop - start) * (last - first) for start, stop, first, last in query_blocks(length, window=window))


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """The sums for one shape, one length and one optimizer. Bytes are without sharding."""

    parameters: int
    active_parameters: int
    flops_per_token: float  # forward and backward, without recomputation
    weight_bytes: int  # fp32 masters
    cast_bytes: int  # the bf16 copies that a pass keeps
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int  # of one row


def account(config: ModelConfig, *, length: int, optimizer: str = "adamw", recompute: Recompute = "none") -> Account:
    """The sums, for rows of `length` positions and attention that keeps no probabilities."""
    return Account(
        parameters=config.parameter_count,
        active_parameters=config.active_parameter_count,
        flops_per_token=config.training_flops_per_token(length),
        weight_bytes=FP32 * config.parameter_count,
        cast_bytes=2 * sum(prod(shape) for _, shape in parameter_shapes(config) if len(shape) > 1),
        gradient_bytes=FP32 * config.parameter_count,
        optimizer_bytes=optimizer_bytes(config, optimizer),
        activation_bytes=activation_bytes(config, rows=1, length=length, recompute=recompute, probabilities=False),
    )


def least_bytes(
    config: ModelConfig,
    *,
    optimizer: str,
    rows: int,
    length: int,
    passes: int,
    recompute: Recompute = "none",
    number_bytes: int = 2,
    probabilities: bool = True,
    averaged: bool = False,
    teacher: ModelConfig | None = None,
) -> dict[str, int]:
    """What a process without sharding certainly holds at one moment, in bytes, by what it is for.

    That moment is the end of the last forward pass, or of the last backward pass when there is only one and gradients
    weigh more than activations. The head's chunk, the copy of a checkpoint and the libraries come on top. A `teacher`'s
    weights are there all the time; of its pass its states and
    the cast head are left when the student's ends.
    """
    whole = FP32 * config.parameter_count
    kept = activation_bytes(
        config, rows=rows, length=length, recompute=recompute, number_bytes=number_bytes, probabilities=probabilities
    )
    if teacher is not None:
        kept += number_bytes * rows * length * teacher.width
        kept += number_bytes * teacher.vocab_size * teacher.width if number_bytes != FP32 else 0
    casts, both = 0, passes > 1
    if number_bytes == 2 and recompute == "none":
        casts = 2 * sum(prod(shape) for _, shape in parameter_shapes(config) if len(shape) > 1)
    return {
        "weights": whole,
        "optimizer": optimizer_bytes(config, optimizer) + (whole if averaged else 0),
        "gradients": whole if both or whole >= kept + casts else 0,
        "activations": kept + casts if both or kept + casts > whole else 0,
        **({} if teacher is None else {"teacher": FP32 * teacher.parameter_count}),
    }


def preset_shape(name: str) -> ModelConfig:
    """The shape of a preset over its own vocabulary."""
    preset = PRESETS[name]
    return read_record(ModelRecipe, preset.model).shape(vocab_size=preset.vocab_size)


def main() -> None:
    """Print the account of presets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", default=list(PRESETS), help="names; all when none is given")
    parser.add_argument("--length", type=int, default=4096, help="positions in a row")
    parser.add_argument("--optimizer", default="adamw", choices=OPTIMIZERS)
    options = parser.parse_args()
    print(f"rows of {options.length} positions, {options.optimizer}; GB = 10^9 bytes; activations of one row")
    for name in options.presets:
        shape = preset_shape(name)
        kinds: tuple[Recompute, ...] = ("none", "selective", "full")
        sums = {
            kind: account(shape, length=options.length, optimizer=options.optimizer, recompute=kind) for kind in kinds
        }
        first = sums["none"]
        kept = ", ".join(f"{kind} {one.activation_bytes / 1e9:.2f}" for kind, one in sums.items())
        print(
            f"{name:16} {first.parameters:>15,} parameters, {first.active_parameters:>14,} active,"
            f" {first.flops_per_token / 1e9:9.3f} GFLOP/token; GB: weights {first.weight_bytes / 1e9:.2f},"
            f" bf16 copies {first.cast_bytes / 1e9:.2f}, gradients {first.gradient_bytes / 1e9:.2f},"
            f" optimizer {first.optimizer_bytes / 1e9:.2f}, activations {kept}"
        )


if __name__ == "__main__":
    main()

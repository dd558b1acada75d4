"""Compute the costs of a model shape: parameters, operations per token, bytes of weights, optimizer and activations.

`python -m training.pretrain.models.account llama-3-8b --length 8192` prints them. Standard library only, except for the
blocks of a CPU's attention. Tests compare the counts with the model itself, down to the tensors that its backward pass
keeps. Nothing here is a measurement.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from training.pretrain.models.family import layer_weights
from training.pretrain.models.presets import PRESETS
from training.pretrain.models.shape import ModelConfig, ModelRecipe
from training.pretrain.optim.optimizer import Optimizer
from training.pretrain.optim.optimizers import OPTIMIZERS
from training.records import read_record

Recompute = Literal["none", "selective", "full"]

FP32 = 4
EVALUATED_ROWS, EVALUATED_TOKENS = 16, 65_536  # most of a pass over held-out text, of which there is at least a row
FILE_BYTES = 5_000_000_000  # of an exported file of weights at most, unless one weight is larger
# Peak dense bf16 TFLOP/s by the makers' data sheets; the keys are parts of the names that drivers report.
PEAK_TERAFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "B200": 2250.0}


def peak_teraflops(device_name: str) -> float | None:
    """Return the peak dense bf16 TFLOP/s of a device; None if it is not in the table, such as a CPU."""
    return next((peak for name, peak in PEAK_TERAFLOPS.items() if name in device_name), None)


def largest_bytes(config: ModelConfig) -> int:
    """Return the bytes of the largest weight in fp32."""
    return FP32 * max(prod(shape) for _, shape in parameter_shapes(config))


def evaluated_rows(length: int) -> int:
    """Return how many held-out rows of `length` positions a process passes through the model at once."""
    return max(1, min(EVALUATED_ROWS, EVALUATED_TOKENS // length))


def evaluation_bytes(
    config: ModelConfig, *, positions: int, number_bytes: int, rows: int = 1, tensor: int = 1, context: int = 1
) -> int:
    """Return the bytes of states when a held-out pass without a backward pass is inside a layer, mostly in its MLP.

    They are the results of the pass before, the layer's input, the residual stream, its normed form, and gate, up,
    silu(gate) and their product. Experts have these of each token's experts beside their inputs, or the outputs three
    times: sorted by expert, by token, and weighted, beside their sum. `positions` are those of one process; what enters
    an MLP or attention has those of all processes along `tensor`, and so has what leaves, with a copy of several rows.
    Without such processes, or many along `context`, whose keys and values it joins beside their message, attention
    needs less than the MLP.
    """
    experts, D, between = config.experts, config.width, 4 if config.activation == "swiglu" else 2
    widths, entered = config.head_widths, (tensor - 1) * D
    inner = entered + between * config.mlp_width if experts.first_layer or not experts.count else 0
    heads = 2 * (widths.queries + widths.keys + widths.values)  # before and after they are made contiguous
    if context > 1:
        inner = max(inner, heads + 2 * context * (widths.keys + widths.values))
    if tensor > 1:
        inner = max(inner, heads + 2 * widths.mixed + (tensor if rows == 1 else 2 * tensor) * D - D)
    if experts.count:
        k = experts.active
        inner = max(
            inner, k * (D + between * experts.width), (3 * k + 1) * D, D + between * experts.shared * experts.width
        )
    return number_bytes * positions * (4 * D + inner)


def parameter_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every trained tensor, with the decoder's names."""
    yield "embedding", (config.vocab_size, config.width)
    yield "norm", (config.width,)
    if not config.tied_embeddings:
        yield "head", (config.vocab_size, config.width)
    own = config.own_layers
    weights = layer_weights if own is None else own.weights
    for layer in range(config.layers):
        yield from ((f"blocks.{layer}.{name}", shape) for name, shape in weights(config, layer))


def numbers_of_units(config: ModelConfig) -> dict[str, int]:
    """Return the count of weights of each layer, by its name, and of what is outside of layers, under ""."""
    sizes: dict[str, int] = {}
    for name, shape in parameter_shapes(config):
        unit = ".".join(name.split(".")[:2]) if name.startswith("blocks.") else ""
        sizes[unit] = sizes.get(unit, 0) + prod(shape)
    return sizes


def bf16_copies(config: ModelConfig) -> int:
    """Return the bytes of bf16 copies of the layers' matrices, of which products are made.

    The embedding is read in fp32, and the head's copy is gone before the backward pass.
    """
    return 2 * sum(
        prod(shape) for name, shape in parameter_shapes(config) if len(shape) > 1 and name.startswith("blocks.")
    )


def keeps_cast(recompute: Recompute, number_bytes: int) -> bool:
    """Whether autograd keeps the copies in bf16 for the backward pass: not if they are made again with the layers."""
    return number_bytes == 2 and recompute != "full"


def optimizer_bytes(config: ModelConfig, optimizer: str | Optimizer) -> int:
    """Return the bytes of an optimizer's fp32 state. Pedigree's optimizers may be given by name."""
    part = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    return FP32 * sum(part.numbers(name, shape) for name, shape in parameter_shapes(config))


def activation_bytes(
    config: ModelConfig,
    *,
    rows: int,
    length: int,
    recompute: Recompute = "none",
    number_bytes: int = 2,
    probabilities: bool = True,
) -> int:
    """Return the bytes that the layers keep for the backward pass, for `rows` of `length` positions in one pass.

    Attention keeps its `probabilities` on a CPU; a fused kernel keeps two numbers for each head instead, which are not
    counted. With `full` recomputation, the states between layers are kept, and one layer at work is added. Experts drop
    no token, so the bytes of all experts together do not depend on the routing. Not counted are the head's chunk, the
    table of rotations, the order of tokens by expert, and the cast weights.
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
    """Return the bytes that one layer keeps."""
    D, widths = config.width, config.head_widths
    heads = widths.queries + widths.keys
    normed = heads + config.heads + config.kv_heads if config.qk_norm else 0  # unit heads and their scales
    # `selective` keeps queries and keys before rotation, and values. Other kinds keep rotated queries and keys, values,
    # and scaled queries.
    core = heads + widths.values if recompute == "selective" else heads + widths.values + widths.queries
    attention = number_bytes * ((D + 1) + normed + core + widths.mixed)
    more = 0 if (own := config.own_layers) is None else number_bytes * own.kept(config, layer)
    kept = rows * length * (attention + _mlp_bytes(config, layer, recompute, number_bytes) + more)
    if probabilities and recompute != "selective":
        kept += number_bytes * rows * config.heads * attention_pairs(config, layer, length)
    return kept


def _mlp_bytes(config: ModelConfig, layer: int, recompute: Recompute, number_bytes: int) -> int:
    """Return the bytes that the MLP or the experts of a layer keep for one token; the router's numbers are fp32."""
    gated, experts, D = config.activation == "swiglu", config.experts, config.width
    # Gate and up, or up alone; the input of down; and silu(gate) unless it is recomputed. Without a gate, relu(up) is
    # kept in place of up.
    between = (3 if recompute == "selective" else 4) if gated else 2
    if not config.has_experts(layer):
        return number_bytes * ((D + 1) + between * config.mlp_width)
    k = experts.active
    # For each active expert: its input, its inner numbers, its output, and the output's weight in the sum.
    dispatched = k * (D + between * experts.width + D + 1)
    shared = between * experts.shared * experts.width
    # The router's input, all scores, and the chosen scores with their sum.
    routed = FP32 * (D + experts.count + (k + 1 if experts.normalize_weights else 0))
    return number_bytes * ((D + 1) + dispatched + shared) + routed


def attention_pairs(config: ModelConfig, layer: int, length: int) -> int:
    """Return the number of query-key pairs that a CPU computes in a row.

    Each block of queries is computed against all keys that any of its queries sees.
    """
    from training.pretrain.models.attention import query_blocks

    window = config.window if config.is_windowed(layer) else 0
    return sum((stop - start) * (last - first) for start, stop, first, last in query_blocks(length, window=window))


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """The costs of one shape for one row length and one optimizer. Bytes are without sharding."""

    parameters: int
    active_parameters: int
    flops_per_token: float  # forward and backward, without recomputation
    weight_bytes: int  # fp32 masters
    cast_bytes: int  # the layers' bf16 copies that a pass keeps
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int  # of one row


def account(config: ModelConfig, *, length: int, optimizer: str = "adamw", recompute: Recompute = "none") -> Account:
    """Return the costs for rows of `length` positions and attention that keeps no probabilities."""
    return Account(
        parameters=config.parameter_count,
        active_parameters=config.active_parameter_count,
        flops_per_token=config.training_flops_per_token(length),
        weight_bytes=FP32 * config.parameter_count,
        cast_bytes=bf16_copies(config),
        gradient_bytes=FP32 * config.parameter_count,
        optimizer_bytes=optimizer_bytes(config, optimizer),
        activation_bytes=activation_bytes(config, rows=1, length=length, recompute=recompute, probabilities=False),
    )


def least_bytes(
    config: ModelConfig,
    *,
    optimizer: str | Optimizer,
    rows: int,
    length: int,
    passes: int,
    recompute: Recompute = "none",
    number_bytes: int = 2,
    probabilities: bool = True,
    averaged: bool = False,
    teacher: ModelConfig | None = None,
    keeps_copies: bool = True,
) -> dict[str, int]:
    """Return the bytes that a process without sharding certainly holds at one moment, by purpose.

    That moment is the end of the last forward pass, or of the backward pass if there is only one and gradients need
    more bytes than activations. The head's chunk, the copy of a checkpoint and the libraries are not counted.
    `keeps_copies`: whether autograd keeps the layers' weights in bf16, unless it computes layers twice. A `teacher`'s
    weights are always held; of its pass, its states and the cast head are still held when the student's
    pass ends.
    """
    whole = FP32 * config.parameter_count
    kept = activation_bytes(
        config, rows=rows, length=length, recompute=recompute, number_bytes=number_bytes, probabilities=probabilities
    )
    if teacher is not None:
        kept += number_bytes * rows * length * teacher.width
        kept += number_bytes * teacher.vocab_size * teacher.width if number_bytes != FP32 else 0
    casts, both = 0, passes > 1
    if keeps_copies and keeps_cast(recompute, number_bytes):
        casts = bf16_copies(config)
    return {
        "weights": whole,
        "optimizer": optimizer_bytes(config, optimizer) + (whole if averaged else 0),
        "gradients": whole if both or whole >= kept + casts else 0,
        "activations": kept + casts if both or kept + casts > whole else 0,
        **({} if teacher is None else {"teacher": FP32 * teacher.parameter_count}),
    }


def preset_shape(name: str) -> ModelConfig:
    """Return the shape of a preset with its own vocabulary."""
    preset = PRESETS[name]
    return read_record(ModelRecipe, preset.model).shape(vocab_size=preset.vocab_size)


def main() -> None:
    """Print the costs of training models of known shapes (presets)."""
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

"""The tensors of a model shape, and figures that several parts of a training share. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from training.pretrain.models.family import layer_weights
from training.pretrain.models.shape import ModelConfig

Recompute = Literal["none", "selective", "full"]

FP32 = 4
EVALUATED_ROWS, EVALUATED_TOKENS = 16, 65_536  # most of a pass over held-out text, of which there is at least a row
FILE_BYTES = 5_000_000_000  # of an exported file of weights at most, unless one weight is larger
# Peak dense bf16 TFLOP/s by the makers' data sheets; the keys are parts of the names that drivers report.
PEAK_TERAFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "B200": 2250.0}


def peak_teraflops(device_name: str) -> float | None:
    """Return the peak dense bf16 TFLOP/s of a device; None if it is not in the table, such as a CPU."""
    return next((peak for name, peak in PEAK_TERAFLOPS.items() if name in device_name), None)


def evaluated_rows(length: int) -> int:
    """Return how many held-out rows of `length` positions a process passes through the model at once."""
    return max(1, min(EVALUATED_ROWS, EVALUATED_TOKENS // length))


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

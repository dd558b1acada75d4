"""Whether products in fp8 are possible and faster: refused before a run starts is what cannot gain by them.

torch is imported only where a device is asked, because recipes and profiles are checked without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.contract.records import RecipeError
from training.pretrain.fp8 import LABEL, MULTIPLE, require_torchao
from training.pretrain.models.account import PEAK_TERAFLOPS, parameter_shapes
from training.pretrain.models.shape import ModelConfig
from training.pretrain.parallel.degrees import Degrees

if TYPE_CHECKING:
    import torch

    from training.order.batch_settings import BatchPhase
    from training.order.batches import PlannedPhase

CAPABILITY = (8, 9)  # of the first GPUs that have such products

# Memory bandwidth of each GPU in TB/s, by the makers' data sheets. On each GPU the peak for products in fp8 is twice
# that in bf16.
MEMORY_TERABYTES = {"H200": 4.8, "H100": 3.35, "L40S": 0.864, "B200": 8.0}
# The other constants of the estimate are from torchao's roofline (torchao/testing/training/roofline_utils.py): the
# shares of the peaks that large products and element-wise kernels reach, measured on an H100, and the time of the
# smallest kernel.
PRODUCT_SHARE, MEMORY_SHARE, KERNEL_SECONDS = 0.78, 0.92, 2e-6
# Bytes moved for each bf16 number that is scaled and cast, forward and backward together. Compiled: every number is
# read to find the largest (2); then activations and gradients are read once more and written in both memory orders
# (4), weights are read and written twice (6). Not compiled, each of two casts needs abs (4), max (2), fp32 (6), product
# with the scale (8), clamp (8), fp8 (5), and one of the two is transposed (2).
COMPILED_BYTES, WEIGHT_BYTES, EAGER_BYTES = 6, 8, 68
COMPILED_KERNELS, EAGER_KERNELS = 3, 13


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """Estimated seconds for one dense layer, with and without fp8.

    `products` is the time of its products in bf16, `saved` the time that fp8 saves, and `cast` the time for
    conversions.
    """

    device: str
    tokens: int  # in one pass
    products: float
    saved: float
    cast: float
    cast_bytes: int

    @property
    def pays(self) -> bool:
        """Whether fp8 saves more time than scaling and casting cost."""
        return self.saved > self.cast

    def said(self) -> str:
        """Return, as a sentence, how many milliseconds fp8 saves and what the conversion costs."""
        return (
            f"on {self.device}, in passes of {self.tokens} tokens, a layer's products take {1e3 * self.products:.3g} ms"
            f" in bf16 ({PRODUCT_SHARE:.0%} of {PEAK_TERAFLOPS[self.device]:.0f} TFLOP/s) and {1e3 * self.saved:.3g} ms"
            f" less in fp8; scaling and casting moves {self.cast_bytes / 1e9:.3g} GB and takes {1e3 * self.cast:.3g} ms"
            f" ({MEMORY_SHARE:.0%} of {MEMORY_TERABYTES[self.device]:g} TB/s, {1e6 * KERNEL_SECONDS:.0f} µs a kernel at"
            " least)"
        )


def matrices(config: ModelConfig) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield name and shape (outputs, inputs) of each matrix in the first layer.

    All layers of a dense model are alike.
    """
    for name, shape in parameter_shapes(config):
        if name.startswith("blocks.0.") and len(shape) == 2:
            yield name.removeprefix("blocks.0."), shape


def balance(config: ModelConfig, *, tokens: int, device: str, compiled: bool) -> Balance:
    """Estimate what fp8 saves and costs in one layer, forward and backward, in passes of `tokens`.

    This is arithmetic, not a measurement.
    """
    peak, memory = PEAK_TERAFLOPS[device] * 1e12 * PRODUCT_SHARE, MEMORY_TERABYTES[device] * 1e12 * MEMORY_SHARE
    kernels = COMPILED_KERNELS if compiled else EAGER_KERNELS
    products, cast, moved = 0.0, 0.0, 0
    for _, (outputs, inputs) in matrices(config):
        products += 3 * 2 * tokens * outputs * inputs / peak
        for numbers, bytes_each in (
            (tokens * inputs, COMPILED_BYTES),
            (tokens * outputs, COMPILED_BYTES),
            (outputs * inputs, WEIGHT_BYTES),
        ):
            size = numbers * (bytes_each if compiled else EAGER_BYTES)
            moved += size
            cast += max(size / memory, kernels * KERNEL_SECONDS)
    return Balance(device=device, tokens=tokens, products=products, saved=products / 2, cast=cast, cast_bytes=moved)


def check_fp8(
    config: ModelConfig,
    *,
    phases: Iterable[BatchPhase | PlannedPhase],
    degrees: Degrees,
    processes: int,
    micro_batch_tokens: int | None,
    compiled: bool,
    gpus_per_node: int,
    device: str = "",
) -> None:
    """Raise RecipeError, showing the calculation, if recipe and profile do not allow fp8 or it would not be faster.

    `device` is the GPU's name. If it is empty or not in the table, the GPU of the table that would gain most is
    assumed, so that a recipe is refused only if no known GPU would gain.
    """
    if not gpus_per_node:
        raise RecipeError(f"{LABEL} with gpus_per_node=0: it is made on GPUs alone; bf16 is right, or another profile")
    if config.experts.count:
        raise RecipeError(f"{LABEL} with model.experts.count={config.experts.count}: experts have bf16 alone")
    if degrees.tensor > 1:
        raise RecipeError(f"{LABEL} with tensor={degrees.tensor}: a scale is a whole matrix's; 1 is right, or bf16")
    for name, shape in matrices(config):
        if any(side % MULTIPLE for side in shape):
            raise RecipeError(
                f"{LABEL}: {name} is {shape[0]} x {shape[1]}; both sides of an fp8 product must be multiples of"
                f" {MULTIPLE}, and the widths of the model make them"
            )
    sizes = [(phase, _tokens_in_a_pass(phase, degrees, processes, micro_batch_tokens)) for phase in phases]
    for _, tokens in sizes:
        if tokens % MULTIPLE:
            raise RecipeError(f"{LABEL}: a process has {tokens} tokens in a pass; a multiple of {MULTIPLE} is right")
    _, tokens = max(sizes, key=lambda one: one[0].steps * one[0].global_batch_tokens)
    known = [name for name in MEMORY_TERABYTES if name in device]
    sums = [balance(config, tokens=tokens, device=name, compiled=compiled) for name in known or MEMORY_TERABYTES]
    best = max(sums, key=lambda one: one.saved / one.cast)
    if not best.pays:
        ways = "wider layers, more tokens in a pass" + ("" if compiled else ", compile: blocks")
        raise RecipeError(f"{LABEL} does not pay: {best.said()}; bf16 is right, or {ways}")


def _tokens_in_a_pass(
    phase: BatchPhase | PlannedPhase, degrees: Degrees, processes: int, micro_batch_tokens: int | None
) -> int:
    return (micro_batch_tokens or phase.global_batch_tokens // degrees.row_sets(processes)) // degrees.context


def check_gpu(device: torch.device) -> None:
    """Raise RecipeError if this process cannot compute in fp8, because of its device or because torchao is missing."""
    import torch

    wanted = ".".join(map(str, CAPABILITY))
    if device.type != "cuda":
        raise RecipeError(f"{LABEL}: no CUDA device is here, and it takes one of compute capability {wanted}; use bf16")
    if (found := torch.cuda.get_device_capability(device)) < CAPABILITY:
        raise RecipeError(
            f"{LABEL}: {torch.cuda.get_device_name(device)} has compute capability {'.'.join(map(str, found))}, and fp8"
            f" begins at {wanted}; use bf16"
        )
    require_torchao()

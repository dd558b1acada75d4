"""The parallel degrees of a run: the number of parts into which each kind of parallelism divides it.

Imports no torch, because profiles are checked before a job starts.

Processes are numbered by their place along the axes, the last axis fastest, so that the processes that communicate most
are neighbours. Each axis divides:

    pipeline    consecutive layers, in `pipeline_chunks` places of the model
    replicate   rows, over the number of processes that the other axes leave
    shard       rows, and every weight, gradient and optimizer state (FSDP)
    expert      rows, and the experts
    context     the positions of a row
    tensor      the heads and the MLP's width inside a layer, and positions between layers (sequence parallel)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any, Literal

from training.contract.records import RecipeError

AXES = ("pipeline", "replicate", "shard", "expert", "context", "tensor")
CHOSEN = tuple(axis for axis in AXES if axis != "replicate")  # the axes whose degree the profile gives
# Axes over which a weight's gradient is summed after the passes: axes along which processes hold the same part of it.
# Along `shard`, FSDP sums during the passes.
WHOLE = ("replicate", "expert", "context", "tensor")
OF_A_TENSOR = ("replicate", "expert", "context")
OF_AN_EXPERT = ("replicate", "context", "tensor")
# The weights in layers that `tensor` cuts, by their axis; `mesh.py` says why. They are those of Llama's layers.
TENSOR_CUTS = {"attention": {"query_key_value": 0, "output": 1}, "mlp": {"gate": 0, "up": 0, "down": 1}}
# Most numbers of the gradients that are copied into one message between replicas, which is 268 MB.
MESSAGE_NUMBERS = 2**26


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """The number of parts into which each kind of parallelism divides a run, from the profile.

    `replicate` is not set: it follows from the others and the number of processes.

    zero_stage: what `shard` divides all the time (arXiv 1910.02054): 3 weights, gradients and optimizer state; 2 no
    weights in a step, which are gathered once for all its passes; 1 no gradients either, which are summed once.

    gather_dtype: the number format in which weights that `shard` divides are sent to the other processes.
    """

    pipeline: int = 1
    pipeline_chunks: int = 1
    shard: int = 1
    expert: int = 1
    context: int = 1
    tensor: int = 1
    zero_stage: int = 3
    gather_dtype: Literal["fp32", "bf16"] = "fp32"

    @classmethod
    def of(cls, settings: Any) -> Degrees:
        """Read the degrees from a profile or from a job's run settings."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})

    @property
    def summed_by_fsdp(self) -> tuple[str, ...]:
        """The axes besides `shard` over which FSDP sums a layer's gradient, beside the backward pass of the next layer.

        There are none in a pipeline, where a layer's last backward pass is not that of the whole model.
        """
        return ("replicate",) if self.shard > 1 and self.pipeline == 1 else ()

    def gathers_bf16(self, *, precision: str) -> bool:
        """Whether weights are sent in bf16, except routers, in which small differences decide the choice.

        They are not if the passes are not in bf16. fp8 scales the weights in fp32.
        """
        return self.gather_dtype == "bf16" and self.shard > 1 and precision == "bf16"

    def keeps_copies(self, *, precision: str) -> bool:
        """Whether autograd keeps weights in the dtype of the pass until the backward pass.

        Products of weights that FSDP gathers keep none, except those in fp8 (`models.layers.lean_linear`).
        """
        return self.shard == 1 or precision == "fp8"

    @property
    def product(self) -> int:
        """Number of processes that hold one copy of the model together."""
        return prod(getattr(self, axis) for axis in CHOSEN)

    def sizes(self, processes: int) -> dict[str, int]:
        """Return the number of processes along each axis.

        Raise RecipeError if the degrees do not divide `processes`.
        """
        replicate, rest = divmod(processes, self.product)
        if rest or not replicate:
            factors = " * ".join(f"{axis}={getattr(self, axis)}" for axis in CHOSEN if getattr(self, axis) > 1)
            product = f" = {self.product}" if " * " in factors else ""
            raise RecipeError(
                f"{factors}{product} does not divide processes * nodes = {processes}; give a multiple of"
                f" {self.product} processes, or lower a degree{self._nearest(processes)}"
            )
        return {axis: replicate if axis == "replicate" else getattr(self, axis) for axis in AXES}

    def _nearest(self, processes: int) -> str:
        """Return, in words, the change of one degree with which most processes share a model; empty if none works."""
        found = [
            (self.product // getattr(self, axis) * degree, axis, degree)
            for axis in CHOSEN
            for degree in range(1, getattr(self, axis))
            if processes % (self.product // getattr(self, axis) * degree) == 0
        ]
        return f"; {max(found)[1]}={max(found)[2]} would work" if found else ""

    def row_sets(self, processes: int) -> int:
        """Return the number of processes, or groups of processes, that take different rows."""
        sizes = self.sizes(processes)
        return sizes["replicate"] * sizes["shard"] * sizes["expert"]


def shard_axis(in_layer: Sequence[int], shard: int) -> int:
    """Return the axis along which FSDP shards a weight of a layer, whose shape is `in_layer`, among `shard` processes.

    It is the first, whose parts FSDP pads to one size. Experts that the processes do not divide evenly are each
    divided instead, along the first axis for which no padding is needed, if there is one.
    """
    if len(in_layer) < 3 or in_layer[0] % shard == 0:
        return 0
    return next((axis for axis in (1, 2) if in_layer[axis] % shard == 0), 0)


def micro_batches_in(
    *, global_batch_tokens: int, sequence_length: int, micro_batch_tokens: int | None, data_parallel: int
) -> int:
    """Return the number of micro-batches in a global batch.

    `micro_batch_tokens` None means one micro-batch for each of the `data_parallel` processes. The global batch and the
    length come from the recipe and affect the result; the other two come from the profile and only decide how the batch
    is spread over the machine. Processes may take unequal numbers of micro-batches.

    Raise RecipeError if the micro-batches do not make up the batch exactly, because rounding would train another model
    than the recipe asks for, or if a process would have none.
    """
    if data_parallel < 1:
        raise RecipeError(f"{data_parallel} processes take rows; it must be at least 1")
    if micro_batch_tokens is None:
        wanted = _share(global_batch_tokens, sequence_length=sequence_length, data_parallel=data_parallel)
    elif micro_batch_tokens % sequence_length or not micro_batch_tokens:
        raise RecipeError(
            f"micro_batch_tokens={micro_batch_tokens} is not a multiple of sequence_length={sequence_length}"
        )
    else:
        wanted = micro_batch_tokens
    count, remainder = divmod(global_batch_tokens, wanted)
    if remainder or count == 0:
        raise RecipeError(f"global_batch_tokens={global_batch_tokens} is not a multiple of micro_batch_tokens={wanted}")
    if count < data_parallel:
        raise RecipeError(
            f"global_batch_tokens={global_batch_tokens} / micro_batch_tokens={wanted} = {count} micro-batches for"
            f" {data_parallel} processes that take rows; lower micro_batch_tokens to"
            f" {global_batch_tokens // data_parallel} or less"
        )
    return count


def _share(global_batch_tokens: int, *, sequence_length: int, data_parallel: int) -> int:
    """Return the tokens of the one micro-batch that each process takes: an equal number of whole rows."""
    rows = global_batch_tokens // sequence_length
    held = f"global_batch_tokens={global_batch_tokens} is {rows} rows of sequence_length={sequence_length}"
    if rows < data_parallel:
        raise RecipeError(
            f"{held}, fewer than the {data_parallel} processes that take rows; a larger batch or at most {rows} of"
            " them is right"
        )
    if rows % data_parallel:
        raise RecipeError(
            f"{held}, which {data_parallel} processes cannot share equally; set micro_batch_tokens, so that processes"
            " take several micro-batches"
        )
    return global_batch_tokens // data_parallel

"""How many ways each kind of parallelism divides a run, and whether it can. No torch: a profile is checked early.

Processes are numbered by their place along the axes, the last one fastest, so those that talk most are neighbours:

    pipeline    consecutive layers, in `pipeline_chunks` places of the model
    replicate   rows; what is left of the processes
    shard       rows, and each holds a part of every weight, gradient and optimizer state (FSDP)
    expert      rows, and each holds some of the experts
    context     the positions of a row
    tensor      the heads and the MLP's width inside a layer, and positions between layers (sequence parallel)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any, Protocol

from training.pretrain.models.shape import ModelConfig
from training.pretrain.optim.optimizers import OPTIMIZERS
from training.records import RecipeError

AXES = ("pipeline", "replicate", "shard", "expert", "context", "tensor")
CHOSEN = tuple(axis for axis in AXES if axis != "replicate")  # those that a profile names


class _Phase(Protocol):
    """Steps whose rows are equally long."""

    sequence_length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """The degrees that the profile names; every other process takes rows of its own with a whole model."""

    pipeline: int = 1
    pipeline_chunks: int = 1
    shard: int = 1
    expert: int = 1
    context: int = 1
    tensor: int = 1

    @classmethod
    def of(cls, settings: Any) -> Degrees:
        """Those that the fields of a profile, or of a job's run settings, name."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})

    @property
    def product(self) -> int:
        """Processes that hold one model between them."""
        return prod(getattr(self, axis) for axis in CHOSEN)

    def sizes(self, processes: int) -> dict[str, int]:
        """Processes along each axis. RecipeError when the degrees do not divide them."""
        replicate, rest = divmod(processes, self.product)
        if rest or not replicate:
            factors = " * ".join(f"{axis}={getattr(self, axis)}" for axis in CHOSEN if getattr(self, axis) > 1)
            raise RecipeError(
                f"{factors} = {self.product} does not divide processes * nodes = {processes}; give a multiple of"
                f" {self.product} processes, or lower a degree"
            )
        return {axis: replicate if axis == "replicate" else getattr(self, axis) for axis in AXES}

    def row_sets(self, processes: int) -> int:
        """Processes, or groups of them, that take different rows."""
        sizes = self.sizes(processes)
        return sizes["replicate"] * sizes["shard"] * sizes["expert"]


def check_degrees(
    degrees: Degrees,
    config: ModelConfig,
    *,
    phases: Iterable[_Phase],
    optimizer: str,
    processes: int,
    audited_tokens: int | None = None,
) -> None:
    """RecipeError, with the arithmetic, when the model, its rows or its optimizer cannot be divided so.

    `audited_tokens` are those of a micro-batch in audit mode; None: it is off.
    """
    degrees.sizes(processes)
    if audited_tokens is not None:
        _check_audit(degrees, processes=processes, micro_batch_tokens=audited_tokens)
    if degrees.pipeline_chunks > 1 and degrees.pipeline == 1:
        raise RecipeError(f"pipeline_chunks={degrees.pipeline_chunks} with pipeline=1: 1 is right")
    parts = degrees.pipeline * degrees.pipeline_chunks
    _divides("pipeline * pipeline_chunks", parts, "model.layers", config.layers)
    if degrees.tensor > 1:
        _divides("tensor", degrees.tensor, "model.kv_heads", config.kv_heads)
        if config.expert_layers < config.layers:
            _divides("tensor", degrees.tensor, "model.mlp_width", config.mlp_width)
    if degrees.expert > 1:
        if not config.experts.count:
            raise RecipeError(f"expert={degrees.expert}: the model has no experts (model.experts.count=0); 1 is right")
        _divides("expert", degrees.expert, "model.experts.count", config.experts.count)
    for length in sorted({phase.sequence_length for phase in phases}):
        _divides("context * tensor", degrees.context * degrees.tensor, "pretrain.sequence_length", length)
    split = [f"{axis}={getattr(degrees, axis)}" for axis in ("shard", "expert", "tensor") if getattr(degrees, axis) > 1]
    why_whole = OPTIMIZERS[optimizer].why_whole
    if why_whole is not None and split:
        raise RecipeError(
            f"{', '.join(split)}: pretrain.optimizer={optimizer} {why_whole}; 1 is right, or another optimizer"
        )


def _check_audit(degrees: Degrees, *, processes: int, micro_batch_tokens: int) -> None:
    """RecipeError unless a run can give the same bits for every number of processes."""
    split = [f"{axis}={getattr(degrees, axis)}" for axis in CHOSEN if getattr(degrees, axis) > 1]
    if split:
        raise RecipeError(f"audit=true with {', '.join(split)}: audit mode is data parallel only; 1 is right")
    if processes & (processes - 1):
        raise RecipeError(
            f"audit=true with processes * nodes = {processes}: gradients are added in pairs; a power of two is right"
        )
    if not micro_batch_tokens:
        raise RecipeError(
            "audit=true with micro_batch_tokens=0: the bits are those of one micro-batch, whatever the number of"
            " processes; name its tokens"
        )


def _divides(field: str, degree: int, of: str, number: int) -> None:
    if number % degree:
        right = [str(divisor) for divisor in _divisors(number)]
        raise RecipeError(f"{field}={degree}: {of}={number} is not a multiple of it; {_either(right)} would be right")


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, 1024) + 1) if number % divisor == 0]


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def micro_batches_in(
    *, global_batch_tokens: int, sequence_length: int, micro_batch_tokens: int, data_parallel: int
) -> int:
    """Micro-batches that make up a global batch; 0 `micro_batch_tokens` means one for each `data_parallel` process.

    The global batch and the length are the recipe's and fix the result; the other two are the profile's and fix only
    how it is spread over the machine. Processes may take unequal numbers of them. Raises RecipeError when they do not
    make up the batch, because rounding would train a different model than the recipe names, or when a process would
    have none.
    """
    if data_parallel < 1:
        raise RecipeError(f"{data_parallel} processes take rows; it must be at least 1")
    if not micro_batch_tokens and global_batch_tokens % data_parallel:
        raise RecipeError(
            f"global_batch_tokens={global_batch_tokens} is not a multiple of data_parallel={data_parallel}, and"
            " micro_batch_tokens=0 wants one micro-batch a process; name its tokens"
        )
    wanted = micro_batch_tokens or global_batch_tokens // data_parallel
    if wanted % sequence_length or not wanted:
        raise RecipeError(f"micro_batch_tokens={wanted} is not a multiple of sequence_length={sequence_length}")
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

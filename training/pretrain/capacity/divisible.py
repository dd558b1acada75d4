"""Whether a model, its rows and its optimizer can be divided by the degrees of a run. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

from training.contract.records import RecipeError
from training.pretrain.models.shape import ModelConfig
from training.pretrain.optim.optimizer import Optimizer
from training.pretrain.optim.optimizers import OPTIMIZERS
from training.pretrain.parallel.degrees import CHOSEN, Degrees

if TYPE_CHECKING:
    from training.order.batch_settings import BatchPhase
    from training.order.batches import PlannedPhase

PLACES = "pipeline * pipeline_chunks"  # of the model, each with consecutive layers


def check_degrees(
    degrees: Degrees,
    config: ModelConfig,
    *,
    phases: Iterable[BatchPhase | PlannedPhase],
    optimizer: str,
    part: Optimizer | None = None,
    processes: int,
    is_audited: bool = False,
    micro_batch_tokens: int | None = None,
) -> None:
    """Raise RecipeError, showing the calculation, if the degrees cannot divide the model, its rows or its optimizer.

    In audit mode (`is_audited`), the size of a micro-batch must be given.
    """
    degrees.sizes(processes)
    if is_audited:
        _check_audit(degrees, processes=processes, micro_batch_tokens=micro_batch_tokens)
    if degrees.pipeline_chunks > 1 and degrees.pipeline == 1:
        raise RecipeError(f"pipeline_chunks={degrees.pipeline_chunks} with pipeline=1: 1 is right")
    if not 1 <= degrees.zero_stage <= 3:
        raise RecipeError(f"zero_stage={degrees.zero_stage}; 1, 2 or 3")
    if degrees.zero_stage < 3 and not degrees.summed_by_fsdp:
        raise RecipeError(
            f"zero_stage={degrees.zero_stage} with shard={degrees.shard}, pipeline={degrees.pipeline}: it divides what"
            " `shard` divides, in a model without pipeline; 3 is right"
        )
    if degrees.gather_dtype != "fp32" and degrees.shard == 1:
        raise RecipeError(
            f"gather_dtype={degrees.gather_dtype} with shard=1: no weight is divided, so none is sent; fp32 is right"
        )
    _check_parts(degrees, config, lengths=sorted({phase.sequence_length for phase in phases}), processes=processes)
    split = [f"{axis}={getattr(degrees, axis)}" for axis in ("shard", "expert", "tensor") if getattr(degrees, axis) > 1]
    why_whole = (part or OPTIMIZERS[optimizer]).why_whole
    if why_whole is not None and split:
        raise RecipeError(
            f"{', '.join(split)}: pretrain.optimizer={optimizer} {why_whole}; 1 is right, or another optimizer"
        )


def _check_parts(degrees: Degrees, config: ModelConfig, *, lengths: Sequence[int], processes: int) -> None:
    """Raise RecipeError unless the degrees divide layers, heads, MLPs, experts and rows; it names some that do."""

    def divides(field: str, of: str, number: int) -> None:
        degree = prod(getattr(degrees, name) for name in field.split(" * "))
        if number % degree == 0:
            return
        places = degrees.pipeline_chunks if field == PLACES else 1  # in each process
        others = degrees.product * places // degree
        right = [
            str(divisor)
            for divisor in _divisors(number)
            if divisor == 1
            or (divisor > places and divisor % places == 0 and processes % (divisor // places * others) == 0)
        ]
        raise RecipeError(f"{field}={degree}: {of}={number} is not a multiple of it; {_either(right)} would be right")

    divides(PLACES, "model.layers", config.layers)
    if degrees.tensor > 1:
        if config.own_layers is not None:
            raise RecipeError(
                f"tensor={degrees.tensor}: the layers of model.family {config.family!r} are not divided; 1 is right"
            )
        divides("tensor", "model.kv_heads", config.kv_heads)
        if config.expert_layers < config.layers:
            divides("tensor", "model.mlp_width", config.mlp_width)
    if degrees.expert > 1:
        if not config.experts.count:
            raise RecipeError(f"expert={degrees.expert}: the model has no experts (model.experts.count=0); 1 is right")
        divides("expert", "model.experts.count", config.experts.count)
    for length in lengths:
        divides("context * tensor", "pretrain.sequence_length", length)


def _check_audit(degrees: Degrees, *, processes: int, micro_batch_tokens: int | None) -> None:
    """Raise RecipeError unless the run would give the same bits for every number of processes."""
    split = [f"{axis}={getattr(degrees, axis)}" for axis in CHOSEN if getattr(degrees, axis) > 1]
    if split:
        raise RecipeError(f"audit=true with {', '.join(split)}: audit mode is data parallel only; 1 is right")
    if processes & (processes - 1):
        raise RecipeError(
            f"audit=true with processes * nodes = {processes}: gradients are added in pairs; a power of two is right"
        )
    if micro_batch_tokens is None:
        raise RecipeError(
            "audit=true without micro_batch_tokens: the bits are those of one micro-batch, whatever the number of"
            " processes; set micro_batch_tokens"
        )


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, 1024) + 1) if number % divisor == 0]


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"

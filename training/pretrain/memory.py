"""Check by arithmetic, before a run starts, whether it fits into memory.

Imports no torch, because recipes and profiles are checked before a job starts.

All figures are lower bounds: memory that is certainly in use at one moment. A run that passes may still run out of
memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from training.pretrain.degrees import Degrees, micro_batches_in
from training.pretrain.models.account import FP32, largest_bytes, least_bytes
from training.pretrain.models.shape import ModelConfig
from training.pretrain.settings import PretrainRecipe
from training.records import RecipeError


class _HasRows(Protocol):
    """The steps of a run that have the same row length and batch size."""

    @property
    def sequence_length(self) -> int: ...

    @property
    def global_batch_tokens(self) -> int: ...

    @property
    def rows(self) -> int: ...


Needed = dict[str, int]  # bytes that a process needs, by purpose


def machine_memory() -> tuple[int, str]:
    """Return the bytes that this machine's processes share, and what limits them.

    The limit is the machine's memory, or that of this job's control group if it is smaller.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text("ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return machine, "the machine"
    return min(machine, limit), "the machine" if machine <= limit else "this job's control group"


def gigabytes(size: float) -> str:
    """Return a number of bytes in GB with three digits, or to one GB: 0.0214, 3.5, 2,698."""
    return f"{size / 1e9:.3g}" if size < 999.5e9 else f"{size / 1e9:,.0f}"


def check_memory(what: str, needed: Needed, *, together: int, total: int, where: str) -> None:
    """Raise RecipeError, showing the calculation, if the known needs of `together` processes exceed `total` bytes."""
    if together * sum(needed.values()) > total:
        parts = " + ".join(f"{name} {gigabytes(size)}" for name, size in needed.items() if size)
        raise RecipeError(
            f"{what} needs at least {together} x ({parts}) GB, {where} has {gigabytes(total)} GB; {_ADVICE[what]}"
        )


_LARGER = "choose a smaller model or a larger machine"
_ADVICE = {
    "pretrain": f"lower micro_batch_tokens, set recompute, or {_LARGER}",
    "doremi": f"lower micro_batch_tokens, or {_LARGER}",
    "a step": f"set trl: {{activation_checkpointing: true}}, raise shard, or {_LARGER}",
    "scoring": f"raise shard, or {_LARGER}",
    "post-training": f"train adapters (peft), or {_LARGER}",
}


def needed_to_train(
    config: ModelConfig,
    recipe: PretrainRecipe,
    phases: Iterable[_HasRows],
    size: Any,
    *,
    processes: int,
    probabilities: bool,
    teacher: ModelConfig | None = None,
) -> Needed:
    """Return the bytes of memory that one training process needs, by purpose, in the phase that needs most.

    `size` is a profile's or a job's run settings: micro-batch, recomputation, degrees. `probabilities` says whether
    attention stores its probabilities, as it does on a CPU; the caller gives it because finding out needs torch.
    """
    degrees = Degrees.of(size)
    needs = [_in_phase(config, recipe, one, size, degrees, processes, probabilities, teacher) for one in phases]
    if degrees.product > 1:
        needs.append(_in_export(config, needs[-1]))
    return max(needs, key=lambda parts: sum(parts.values()))


def _in_export(config: ModelConfig, phase: Needed) -> Needed:
    """Return the bytes that a process needs to export a spread model, of which it joins one weight at a time."""
    return {
        "weights": phase["weights"],
        "optimizer": phase["optimizer"],
        "a whole weight and its parts": 2 * largest_bytes(config),
    }


def _in_phase(
    config: ModelConfig,
    recipe: PretrainRecipe,
    phase: _HasRows,
    size: Any,
    degrees: Degrees,
    processes: int,
    probabilities: bool,
    teacher: ModelConfig | None,
) -> Needed:
    sets = degrees.row_sets(processes)
    count = micro_batches_in(
        global_batch_tokens=phase.global_batch_tokens,
        sequence_length=phase.sequence_length,
        micro_batch_tokens=size.micro_batch_tokens,
        data_parallel=sets,
    )
    needed = least_bytes(
        config,
        optimizer=recipe.optimizer_part,
        rows=phase.rows // count,
        length=phase.sequence_length,
        passes=-(-count // sets),
        recompute=size.recompute,
        number_bytes=4 if recipe.precision == "fp32" else 2,
        probabilities=probabilities,
        averaged=recipe.average.kind != "none",
        teacher=teacher,
        keeps_copies=degrees.keeps_copies(precision=recipe.precision),
    )
    # A lower bound: weights that `tensor` and `expert` do not divide are counted as if they were divided.
    holders = degrees.pipeline * degrees.shard * degrees.expert * degrees.tensor
    of_a_row = degrees.pipeline * degrees.context * degrees.tensor
    return {name: part // (of_a_row if name == "activations" else holders) for name, part in needed.items()}


def needed_beside_reference(
    config: ModelConfig, recipe: PretrainRecipe, phase: _HasRows, size: Any, *, probabilities: bool
) -> Needed:
    """Return the bytes that DoReMi's proxy needs in training, by purpose.

    A reference model of the same shape is in memory beside it.
    """
    rows = min(phase.rows, (size.micro_batch_tokens or 0) // phase.sequence_length or phase.rows)
    needed = least_bytes(
        config,
        optimizer=recipe.optimizer_part,
        rows=rows,
        length=phase.sequence_length,
        passes=-(-phase.rows // rows),
        number_bytes=4 if recipe.precision == "fp32" else 2,
        probabilities=probabilities,
    )
    return needed | {"reference": FP32 * config.parameter_count}


def needed_to_tune(parameters: int, *, adapters: bool, own_optimizer: bool, beside: int = 0) -> Needed:
    """Return the bytes that a process of post-training needs, by purpose.

    `parameters` is the model's count of weights, and `beside` that of the frozen models in memory. Every process has
    the whole model with gradients and AdamW's two numbers for each weight or, with adapters, the weights alone.
    `own_optimizer`: the recipe names another optimizer, whose state is not counted. Activations are not counted.
    """
    whole = FP32 * parameters
    return {
        "weights": whole,
        "optimizer": 0 if adapters or own_optimizer else 2 * whole,
        "gradients": 0 if adapters else whole,
        "models beside it": FP32 * beside,
    }

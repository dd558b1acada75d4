"""What a recipe's section and a profile mean for the forecast of a tuning. Imports no torch.

A profile is checked with it before anything starts, and a job decides with it what it has room for.
"""

from __future__ import annotations

from typing import Any

from training.generate.pass_rows import rows_in_pass
from training.posttrain.forecast import (
    BF16,
    PlannedSampling,
    PlannedTuning,
    inputs_of_adapters,
    is_adapted,
    numbers_of_adapters,
)
from training.posttrain.scoring import LEARNED
from training.pretrain.models.account import FP32
from training.pretrain.models.shape import ModelConfig
from training.run_settings import RunSettings

# Fields of adapters whose memory is predicted.
SIZED_BY = {"r", "lora_alpha", "lora_dropout", "use_rslora", "init_lora_weights", "target_modules"}
RANK, TARGETS = 8, "all-linear"  # of adapters, where the recipe has none: the rank of peft, and Pedigree's layers
DRAWS_OTHERWISE = {"steps_per_generation", "generation_batch_size"}  # fields of TRL that change the memory
OPTIM = "adamw_torch_fused"  # where the recipe has none
MOMENTS = {OPTIM: 2, "sgd": 0}  # numbers that an optimizer keeps of each weight, by its name in TRL


def planned_tuning(
    shape: ModelConfig,
    section: Any,
    run: RunSettings,
    *,
    shard: int,
    sequences: int = 1,
    is_reward: bool = False,
    is_certain: bool = False,
) -> PlannedTuning | None:
    """Return what a section of a recipe tunes, in rows of `sequences` sequences; None if its memory is not predicted.

    The rows have `max_length` tokens or, if `is_certain`, one.
    """
    moments = MOMENTS.get(section.trl.get("optim", OPTIM))
    if moments is None or not _is_sized(shape, section):
        return None
    share = section.batch_size // (run.nodes * run.processes)
    row_tokens = sequences * section.max_length
    rows = rows_in_pass(share, micro_batch_tokens=run.micro_batch_tokens, row_tokens=row_tokens)
    return PlannedTuning(
        shape=shape,
        shard=shard,
        positions=rows if is_certain else rows * row_tokens,
        longest=1 if is_certain else section.max_length,
        recomputes=computes_twice(section),
        adapters=adapters_of(shape, section),
        is_reward=is_reward,
        number_bytes=FP32 if section.precision == "fp32" else BF16,
        dropped=inputs_of_adapters(shape, _targets(section)) if section.peft.get("lora_dropout") else 0,
        moments=moments,
        accumulates=rows < share,
    )


def planned_sampling(
    shape: ModelConfig, section: Any, run: RunSettings, *, shard: int, is_certain: bool = False
) -> PlannedSampling | None:
    """Return the same of a section that learns from sampled answers, and what is beside its model."""
    policy = planned_tuning(shape, section, run, shard=shard, is_certain=is_certain)
    if policy is None:
        return None
    share = section.batch_size // (run.nodes * run.processes)
    return PlannedSampling(
        policy=policy,
        drawn=share if is_certain else share * section.max_length,
        has_reference=has_reference(section),
        has_judge=LEARNED in section.reward_weights,
    )


def has_reference(section: Any) -> bool:
    """Whether a method that samples answers has the initial policy beside the policy."""
    return bool(section.beta) and not section.peft


def computes_twice(section: Any) -> bool:
    """Whether a section turns on activation checkpointing, which computes layers again in the backward pass."""
    return any(section.trl.get(name) for name in ("activation_checkpointing", "gradient_checkpointing"))


def adapters_of(shape: ModelConfig, section: Any) -> int:
    """Return the number of weights in a section's adapters; 0 if it has none."""
    return numbers_of_adapters(shape, section.peft.get("r", RANK), _targets(section)) if section.peft else 0


def _targets(section: Any) -> tuple[str, ...] | None:
    """Return the names of the layers that have adapters; None for all of them."""
    named = section.peft.get("target_modules", TARGETS)
    return None if isinstance(named, str) else tuple(named)


def _is_sized(shape: ModelConfig, section: Any) -> bool:
    """Whether the size of a section's adapters is known, and that of what its trainer does is too."""
    named, targets = section.peft.get("target_modules", TARGETS), _targets(section)
    is_known = named == TARGETS if targets is None else is_adapted(shape, targets)
    return is_known and section.peft.keys() <= SIZED_BY and not DRAWS_OTHERWISE & section.trl.keys()

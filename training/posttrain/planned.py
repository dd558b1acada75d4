"""What the forecast of a fine-tuning needs to know, read from a recipe's section and a profile. Imports no torch.

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
    learns_in_mlp,
    numbers_of_adapters,
    numbers_of_magnitudes,
)
from training.posttrain.scoring import LEARNED
from training.pretrain.models.account import FP32
from training.pretrain.models.shape import ModelConfig
from training.run_settings import RunSettings

# Fields of adapters whose memory is predicted.
SIZED_BY = {"r", "lora_alpha", "lora_dropout", "use_rslora", "init_lora_weights", "target_modules", "use_dora"}
RANK, TARGETS = 8, "all-linear"  # of adapters, where the recipe has none: the rank of peft, and Pedigree's layers
DRAWS_OTHERWISE = {"steps_per_generation", "generation_batch_size"}  # fields of TRL that change the memory
OPTIM = "adamw_torch_fused"  # where the recipe has none
TOGETHER = "adamw_torch"  # AdamW that is not fused
# Numbers that an optimizer keeps of each weight, by its name in TRL.
MOMENTS = {OPTIM: 2, TOGETHER: 2, "sgd": 0}


def planned_tuning(
    shape: ModelConfig,
    section: Any,
    run: RunSettings,
    *,
    shard: int,
    sequences: int = 1,
    is_reward: bool = False,
    is_certain: bool = False,
    reads_more: bool = False,
) -> PlannedTuning | None:
    """Return what a section of a recipe tunes, in rows of `sequences` sequences; None if its memory is not predicted.

    The rows have `max_length` tokens or, if `is_certain`, one. `reads_more` says that the trained model also makes
    passes without gradients.
    """
    moments = MOMENTS.get(section.trl.get("optim", OPTIM))
    if moments is None or not _is_sized(shape, section, reads_more=reads_more):
        return None
    processes = run.nodes * run.processes
    share = section.batch_size // processes
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
        replicas=processes // shard,
        updates_together=_updates_together(section),
        has_magnitudes=bool(section.peft.get("use_dora")),
        learns_in_mlp=not section.peft or learns_in_mlp(_targets(section)),
    )


def planned_sampling(
    shape: ModelConfig, section: Any, run: RunSettings, *, shard: int, is_certain: bool = False
) -> PlannedSampling | None:
    """Return what the memory forecast of GRPO or RLOO reads: the policy, its answers, and the models held beside it.

    None if the memory is not predicted.
    """
    policy = planned_tuning(shape, section, run, shard=shard, is_certain=is_certain, reads_more=True)
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


def _updates_together(section: Any) -> bool:
    """Whether the optimizer's step on a GPU makes a temporary tensor for all weights at once (torch's `foreach` form).

    AdamW that is not fused takes the roots of all second moments, SGD adds decayed weights to all gradients.
    """
    optim = section.trl.get("optim", OPTIM)
    return optim == TOGETHER or (optim == "sgd" and bool(section.trl.get("weight_decay")))


def adapters_of(shape: ModelConfig, section: Any) -> int:
    """Return the number of weights in a section's adapters; 0 if it has none."""
    if not section.peft:
        return 0
    numbers = numbers_of_adapters(shape, section.peft.get("r", RANK), _targets(section))
    return numbers + (numbers_of_magnitudes(shape) if section.peft.get("use_dora") else 0)


def _targets(section: Any) -> tuple[str, ...] | None:
    """Return the names of the layers that have adapters; None for all of them."""
    named = section.peft.get("target_modules", TARGETS)
    return None if isinstance(named, str) else tuple(named)


def _is_sized(shape: ModelConfig, section: Any, *, reads_more: bool) -> bool:
    """Whether the memory of a section can be predicted, by the fields that it sets for adapters and for TRL."""
    named, targets = section.peft.get("target_modules", TARGETS), _targets(section)
    is_known = named == TARGETS if targets is None else is_adapted(shape, targets)
    if section.peft.get("use_dora"):  # counted with adapters on all layers, in passes with a gradient
        is_known = is_known and targets is None and not section.peft.get("lora_dropout") and not reads_more
        is_known = is_known and shape.own_layers is None and not shape.experts.count
    return is_known and section.peft.keys() <= SIZED_BY and not DRAWS_OTHERWISE & section.trl.keys()

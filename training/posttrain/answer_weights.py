"""Whether a job gathers the weights of a sharded model once for all answers that it draws, or for each token; and why.

The profile's `answer_weights` decides it, or the memory of the GPU as the driver tells it, by the closed form that
`pedigree plan` shows. Answers and trained weights are the same to the bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.contract.job import DataError
from training.contract.records import RecipeError
from training.contract.run_settings import RunSettings
from training.generate.model_folder import device
from training.pretrain.capacity.needs import Needed, Tuning, scoring_bytes, tuning_bytes
from training.pretrain.capacity.room import gathering
from training.pretrain.models.config_json import read_config
from training.pretrain.models.shape import ModelConfig

Decided = tuple[bool, str]


def while_sampling(folder: Path, section: Any, run: RunSettings) -> Decided:
    """Return whether GRPO or RLOO gathers the weights of the model in a folder once for a step's answers, and why."""
    shape = _shape(folder)
    planned = Tuning.of(shape, section, run, learns_from="samples") if shape else None
    needed = tuning_bytes(planned, gathers=True)["answers"] if planned else None
    return _decided(run.answer_weights, run.shard if section.can_be_spread else 1, needed)


def while_answering(folder: Path, setting: str, *, shard: int, rows: int, models: int = 1) -> Decided:
    """Return whether the weights of a model that is scored are gathered once for all its answers, and why.

    It answers batches of `rows` prompts, and is one of `models` models that the job holds.
    """
    shape = _shape(folder)
    planned = Tuning.scored(shape, shard=shard, rows=rows, models=models) if shape else None
    return _decided(setting, shard, scoring_bytes(planned, gathers=True)["answers"] if planned else None)


def _decided(setting: str, shard: int, needed: Needed | None) -> Decided:
    return gathering(setting, shard=shard, needed=needed, room=_room() if shard > 1 else None)


def _shape(folder: Path) -> ModelConfig | None:
    """Return the shape of a model; None if this package does not know models of its kind."""
    try:
        return read_config(json.loads((folder / "config.json").read_text("utf-8")))
    except (DataError, RecipeError, KeyError):
        return None


def _room() -> int | None:
    """Return the total memory, in bytes, of the smallest GPU of the job; None without GPUs."""
    here = device()
    if here.type != "cuda":
        return None
    room = torch.tensor(torch.cuda.get_device_properties(here).total_memory, device=here)
    if dist.is_initialized():
        dist.all_reduce(room, dist.ReduceOp.MIN)
    return int(room)

"""Check by arithmetic, before a training starts, whether its checkpoints and its export fit on the disk.

Imports no torch.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from training.pretrain.memory import Needed, gigabytes
from training.pretrain.models.account import FP32, least_bytes
from training.pretrain.models.shape import ModelConfig
from training.pretrain.settings import PretrainRecipe
from training.records import RecipeError

OF_A_ROLLBACK = 2  # checkpoints that are kept for a rollback, in addition to the newest ones


def needed_on_disk(config: ModelConfig, recipe: PretrainRecipe, *, kept: int) -> Needed:
    """Return the bytes that a training needs on disk at one time, by purpose: checkpoints and the export in fp32.

    One of the checkpoints is counted as half written.
    """
    held = least_bytes(
        config, optimizer=recipe.optimizer_part, rows=1, length=1, passes=1, averaged=recipe.average.kind != "none"
    )
    checkpoints = kept + 1 + (OF_A_ROLLBACK if recipe.spikes.deviations else 0)
    return {
        f"{checkpoints} checkpoints": checkpoints * (held["weights"] + held["optimizer"]),
        "export": FP32 * config.parameter_count,
    }


def check_disk(what: str, needed: Needed, folder: Path) -> None:
    """Raise RecipeError, showing the calculation, if `needed` exceeds what is free for `folder`.

    Files that are already in `folder`, such as checkpoints of a run that is resumed, count as free space.
    """
    free, own = shutil.disk_usage(folder).free, _size(folder)
    if sum(needed.values()) <= free + own:
        return
    parts = " + ".join(f"{name} {gigabytes(size)}" for name, size in needed.items())
    before = f" and {gigabytes(own)} GB in its folder" if own > 1e6 else ""
    raise RecipeError(
        f"{what} needs {parts} = {gigabytes(sum(needed.values()))} GB on the disk of {folder}, which has"
        f" {gigabytes(free)} GB free{before}; free space, or put the root on a larger disk"
    )


def _size(folder: Path) -> int:
    return sum(os.path.getsize(Path(place, name)) for place, _, names in os.walk(folder) for name in names)

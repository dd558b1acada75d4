"""Whether a run has room: refused before it starts is what certainly does not fit. Imports no torch.

What is refused is a lower bound (`training.pretrain.capacity.needs`). A run that passes may still run out of memory.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from training.contract.records import RecipeError
from training.pretrain.capacity.needs import Needed

GATHERED_SHARE = 0.8  # of a GPU, up to which weights stay gathered while answers are drawn


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


def gathering(setting: str, *, shard: int, needed: Needed | None = None, room: int | None = None) -> tuple[bool, str]:
    """Return whether weights stay gathered while answers are drawn, and why in words; none if no weight is divided.

    `setting` is the profile's `answer_weights`. `needed` is the memory with all weights gathered, and `room` that of a
    GPU; None: of such a model nothing is computed, or no GPU is known. A job that decides by itself gathers them if
    they need at most GATHERED_SHARE of the GPU.
    """
    if shard == 1:
        return False, ""
    if setting != "auto":
        return setting == "gathered", f"{setting}, by the profile"
    if room is None:
        return False, "sharded, because the memory of a GPU is not known"
    if needed is None:
        return False, "sharded, because the memory with all weights gathered is not predicted"
    total, allowed = sum(needed.values()), GATHERED_SHARE * room
    kept = "gathered" if total <= allowed else "sharded"
    said = f"{kept}, because all gathered weights and what is beside them take {total / 1e9:.1f} GB"
    return total <= allowed, f"{said}, and {allowed / 1e9:.1f} GB are allowed ({GATHERED_SHARE:.0%} of the GPU)"

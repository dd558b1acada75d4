"""Verify the inputs of a distributed training with the files divided among the processes; all get the same verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.contract.files.checked import note_sound
from training.contract.files.stored_root import is_here
from training.contract.job import InputArtifact, RefusedInput
from training.pretrain.parallel.world import World

TOKENS = ".bin"

File = tuple[InputArtifact, str, Mapping[str, Any]]  # an input, and a file's name and entry in its manifest


def check_by_share(plan: InputArtifact, shards: Iterable[InputArtifact], world: World) -> None:
    """Verify the checksums of the plan and of the token files, which all processes read by memory mapping.

    Every process of a training must call this, and each verifies some of the files; all other files are verified by
    the processes that open them. RefusedInput is raised in every process if a file is damaged.
    """
    files = [(plan, *file) for file in plan.files().items()]
    files += [(item, *file) for item in shards for file in item.files().items() if file[0].endswith(TOKENS)]
    said = ""
    try:
        for item, name, _ in own_share(files, rank=world.rank, size=world.size):
            item.file(name)
    except RefusedInput as error:
        said = str(error)
    if said := world.first_said(said):
        raise RefusedInput(f"an input is missing or differs from the checksum of its manifest: {said}")
    for item, name, entry in files:
        is_here(Path(item.path, name), entry["sha256"])  # whoever verified it may have done so on another machine
        note_sound(Path(item.path, name), entry["sha256"])


def own_share(files: Sequence[File], *, rank: int, size: int) -> list[File]:
    """Return the files that the process `rank` of `size` verifies; all processes get about equally many bytes."""
    sizes = [entry["bytes"] for _, _, entry in files]
    total, before, own = max(1, sum(sizes)), 0, []
    for file, more in zip(files, sizes, strict=True):
        if before * size // total == rank:
            own.append(file)
        before += more
    return own

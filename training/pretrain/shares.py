"""Check the inputs of a training by share: every file is read by one process, and all processes hear the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from training.checked import note_sound
from training.job import InputArtifact, RefusedInput
from training.pretrain.parallel import World

TOKENS = ".bin"

File = tuple[InputArtifact, str]


def check_by_share(plan: InputArtifact, shards: Iterable[InputArtifact], world: World) -> None:
    """Check the plan and the token files, which all processes map. Every process of a training calls this.

    Other files are checked by the processes that open them. Raise RefusedInput, in every process, if a file is damaged.
    """
    files = [(plan, name) for name in plan.files()]
    files += [(item, name) for item in shards for name in item.files() if name.endswith(TOKENS)]
    said = ""
    try:
        for item, name in own_share(files, rank=world.rank, size=world.size):
            item.file(name)
    except RefusedInput as error:
        said = str(error)
    if said := world.first_said(said):
        raise RefusedInput(f"an input is missing or differs from the checksum of its manifest: {said}")
    for item, name in files:
        note_sound(Path(item.path, name), item.files()[name]["sha256"])


def own_share(files: Sequence[File], *, rank: int, size: int) -> list[File]:
    """Return the files that the process `rank` of `size` checks: of about as many bytes as every other process."""
    sizes = [item.files()[name]["bytes"] for item, name in files]
    total, before, own = max(1, sum(sizes)), 0, []
    for file, more in zip(files, sizes, strict=True):
        if before * size // total == rank:
            own.append(file)
        before += more
    return own

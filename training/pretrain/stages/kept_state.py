"""The optimizer's state beside a kept step: the checkpoint from which its training can go on.

No result depends on it, so it is in the step's record and in no digest, and a step without it is the same step.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from training.contract.artifact import Damaged, find
from training.contract.files.checksums import sha256_of
from training.contract.files.stored_root import is_here
from training.contract.job import InputArtifact, Job, Work
from training.contract.scopes import OPTIMIZER_FOLDER
from training.pretrain.checkpoint import Store, checkpoint_name, checkpoints
from training.pretrain.step import Trainer

OWN_SCRATCH = "optimizer"  # of the step's artifact
WRITTEN = Path("kept", "states")  # in the training's scratch folder, until the step is committed


def keeps_state(job: Job) -> bool:
    """Whether the job is that of a kept step with the optimizer's state beside it."""
    return bool(job.settings.get("optimizer"))


def save_state(job: Job, work: Work, trainer: Trainer) -> Path | None:
    """Write the state after the present step into the training's scratch folder; all processes must call this.

    Return its folder, or None if the job keeps no state or the disk is full, of which a message tells.
    """
    if not keeps_state(job):
        return None
    store = Store(work.scratch / WRITTEN, trainer.world, kept=1, is_sent=False)
    trainer.state.save(store)
    store.settle()
    if store.tell_failed(lambda line: work.progress.message(line, level="WARNING")):
        return None
    return store.folder / checkpoint_name(trainer.state.position.step)


def moved_state(state: Path | None, own: Work) -> dict[str, str]:
    """Move a written state to the step's own scratch folder; return the names that its files get in the artifact."""
    if state is None:
        return {}
    place = own.scratch / OWN_SCRATCH
    shutil.rmtree(place, ignore_errors=True)  # of a killed attempt
    place.parent.mkdir(parents=True, exist_ok=True)
    state.rename(place)
    names = sorted(path.name for path in place.iterdir())
    return {str((place / name).relative_to(own.path)): f"{OPTIMIZER_FOLDER}/{name}" for name in names}


def lay_state(step: InputArtifact, store: Store, work: Work) -> None:
    """Put the state beside a kept step where a training looks for checkpoints, unless it has some.

    Each file is compared with the step's record, and brought from the root's store if it is not here. If one is missing
    or differs, training begins at step 0, and a message says so.
    """
    if store.world.is_first and not checkpoints(store.folder):
        place = store.folder / f".{OPTIMIZER_FOLDER}.tmp"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        if lost := _lost_of(step, place):
            shutil.rmtree(place)
            said = f"{lost} is missing or was changed; training begins at step 0"
            work.progress.message(said, level="WARNING")
        else:
            place.rename(store.folder / checkpoint_name(step.record()["settings"]["kept"]["step"]))
    store.world.wait()


def _lost_of(step: InputArtifact, place: Path) -> Path | None:
    """Copy the state beside a kept step to `place`; return what of the step is not as it was written, or None."""
    try:
        made = find(Path(step.path))
    except Damaged:
        made = None
    if made is None or made.digest != step.digest:
        return Path(step.path)
    files = [one for one in made.record.get("beside", ()) if one["path"].startswith(f"{OPTIMIZER_FOLDER}/")]
    for one in files:
        source, copy = made.path / one["path"], place / Path(one["path"]).name
        if not is_here(source, one["sha256"]):
            return source
        shutil.copyfile(source, copy)
        if sha256_of(copy) != one["sha256"]:
            return source
    return None if files else made.path / OPTIMIZER_FOLDER


def add_seconds(job: Job, trainer: Trainer) -> None:
    """Count the seconds of the steps before a kept state, from which the training has just begun."""
    position = trainer.state.position
    if job.goes_on_from is not None and position.step and not position.seconds:
        position.seconds = job.goes_on_from.record()["metrics"]["training_seconds"]

"""The optimizer's state beside a kept step: the checkpoint from which its training can go on.

No result depends on it, so it is in the step's record and in no digest, and a step without it is the same step.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.contract.artifact import Damaged, find
from training.contract.files.checksums import sha256_of
from training.contract.files.stored_root import is_here
from training.contract.identity import numerics
from training.contract.job import InputArtifact, Job, RefusedInput, Work
from training.contract.records import differing_from_defaults
from training.contract.scopes import OPTIMIZER_FOLDER
from training.order.batch_settings import ContinueRecipe
from training.pretrain.checkpoint import Store, checkpoint_name, checkpoints, pass_on
from training.pretrain.settings import PretrainRecipe
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


def lay_state(
    step: InputArtifact, store: Store, work: Work, own: Mapping[str, Any], recipe: PretrainRecipe, *, is_whole: bool
) -> None:
    """Put the state beside a kept step where a training looks for checkpoints, unless it has some.

    The step is one of this training, whose checkpoints say `own`, or of one that it continues. Each file is compared
    with the step's record, and brought from the root's store if it is not here. If the state is of another training,
    or a file of it is missing or differs, training begins at step 0, and a message says so. With `is_whole`, a training
    that continues another one is then refused, because all of that would be trained again.
    """
    if store.world.is_first and not checkpoints(store.folder):
        place = store.folder / f".{OPTIMIZER_FOLDER}.tmp"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        lost = _lost_of(step, place)
        if lost and is_whole:
            raise RefusedInput(f"{lost}; run again, which says what to do")
        if wrong := lost or _of_another(step, place, own, recipe):
            shutil.rmtree(place)
            work.progress.message(f"{wrong}; training begins at step 0", level="WARNING")
        else:
            number = step.record()["settings"]["kept"]["step"]
            place.rename(store.folder / checkpoint_name(number))
            numerics.note_begin(work, number, step.numerics)
            work.progress.message(f"training goes on after step {number}, from the state beside {step.where}")
    store.world.wait()


def _of_another(step: InputArtifact, place: Path, own: Mapping[str, Any], recipe: PretrainRecipe) -> str:
    """Make the state at `place` one of this training; return why it is none, or ""."""
    record, before = step.record(), dict(own)
    budget, budgets = record["settings"]["pretrain"]["tokens"], recipe.continues.tokens
    if budget in budgets and record["settings"]["kept"]["step"] <= recipe.continued_at[at := budgets.index(budget)]:
        first = replace(recipe, tokens=budget, continues=ContinueRecipe(tokens=budgets[:at]))
        (plan,) = (item["digest"] for item in record["inputs"] if item["asset"] == "training_plan")
        settings = own["settings"] | {"pretrain": differing_from_defaults(first)}
        before = {"data": own["data"] | {"plan": plan}, "settings": settings}
    try:
        pass_on(place, before, own)
    except RefusedInput as error:
        return f"the state beside {step.where} is not of the training that is continued: {error}"
    return ""


def _lost_of(step: InputArtifact, place: Path) -> str:
    """Copy the state beside a kept step to `place`; return what of the step is not as it was written, or ""."""
    said = "{} is missing or was changed"
    try:
        made = find(Path(step.path))
    except Damaged:
        made = None
    if made is None or made.digest != step.digest:
        return said.format(step.path)
    files = [one for one in made.record.get("beside", ()) if one["path"].startswith(f"{OPTIMIZER_FOLDER}/")]
    for one in files:
        source, copy = made.path / one["path"], place / Path(one["path"]).name
        if not is_here(source, one["sha256"]):
            return said.format(source)
        shutil.copyfile(source, copy)
        if sha256_of(copy) != one["sha256"]:
            return said.format(source)
    return "" if files else said.format(made.path / OPTIMIZER_FOLDER)


def add_seconds(job: Job, trainer: Trainer) -> None:
    """Count the seconds of the steps before a kept state, from which the training has just begun."""
    position = trainer.state.position
    if job.goes_on_from is not None and position.step and not position.seconds:
        position.seconds = job.goes_on_from.record()["metrics"]["training_seconds"]

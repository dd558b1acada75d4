"""Keep the model of a training on rows after a step or an epoch, as an artifact of its own.

The model is exported as the last one is, from the trained one or from a copy of it, and nothing of the training
changes: no weight, no random number and no setting. It is committed before a checkpoint of this step or a later one.
"""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from training.contract.job import Job, Outcome, Work
from training.contract.records import RecipeError
from training.contract.scopes import kept_in_words
from training.generate.spread import is_first, is_spread
from training.pretrain.parallel.alone import first_alone, launcher_store

# What an export changes of a model: how it writes, and its forward pass in mixed precision, which accelerate takes off.
CHANGED = ("generation_config", "forward", "_original_forward")
WRITTEN = "kept"  # folder of a kept model in the training's scratch folder, until it is committed


@dataclass(kw_only=True, slots=True)
class KeptModels:
    """What a job keeps on its way, and where it ends if it is itself the job of a kept model.

    `made` writes the model as it is now into the folders of a `Work`, and returns the outcome; all processes call it.
    """

    job: Job
    work: Work
    made: Callable[[Work], Outcome]
    steps_per_epoch: Fraction
    until: int | None = None  # the step after which the job itself ends; None: the last one
    _jobs: dict[int, list[Job]] = field(default_factory=dict)  # by step; epochs of few rows may end in the same one

    def begin(self, steps: int) -> None:
        """Find the steps to keep of a training of so many steps. Raise RecipeError if it does not reach one of them."""
        self.until = self._step_of(self.job, steps)
        for one in self.job.on_the_way:
            if (step := self._step_of(one, steps)) is not None:
                self._jobs.setdefault(step, []).append(one)

    def _step_of(self, job: Job, steps: int) -> int | None:
        asked = job.settings.get("kept", {})
        if not asked:
            return None
        step = asked["step"] if "step" in asked else math.ceil(asked["epoch"] * self.steps_per_epoch)
        if step >= steps:
            where = f"{job.partition}: {kept_in_words(job.settings)}"
            raise RecipeError(f"{where} is not before the training's end, after step {steps:,}; keep an earlier one")
        return step

    def is_kept(self, step: int) -> bool:
        """Whether the model is kept after this step, on the way or at the end."""
        return step in self._jobs or step == self.until

    def jobs_after(self, step: int) -> Sequence[Job]:
        """Return the jobs of what is kept on the way after this step."""
        return self._jobs.get(step, ())

    def keep(self, job: Job, trainer: Any) -> None:
        """Commit the model as it is now as the artifact of `job`; all processes call this."""
        own = replace(self.work, path=self.work.scratch / WRITTEN)
        if is_first():
            shutil.rmtree(own.path, ignore_errors=True)  # of a killed attempt
            own.path.mkdir(parents=True)
        with training_goes_on(trainer):
            outcome = self.made(own)
        self._commit(job, own.path, outcome)

    def _commit(self, job: Job, place: Path, outcome: Outcome) -> None:
        """Let the first process move the files and commit them. The others wait as long as it takes."""
        seconds = job.run.hang_seconds
        alone: AbstractContextManager[None] = nullcontext()
        if job.run.processes * job.run.nodes > 1:
            store = launcher_store(seconds)
            alone = first_alone(store, job.fingerprint, is_first=is_first(), alive=lambda: None, seconds=seconds)
        with alone:
            if is_first():
                assert self.work.commit is not None, "the runner gives it to the first process"
                self.work.commit(job, lambda own: _moved(place, own, outcome))
                shutil.rmtree(place, ignore_errors=True)


def _moved(place: Path, own: Work, outcome: Outcome) -> Outcome:
    for name in outcome.files:
        target = own.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (place / name).rename(target)
    return outcome


@contextmanager
def training_goes_on(trainer: Any) -> Iterator[None]:
    """Context manager in which a trainer's model may be exported, and after which it trains on as if it had not been.

    Adapters are merged in a copy. Raise RecipeError for adapters of a spread model, of which no process can copy all.
    """
    model = trainer.model
    if not hasattr(model, "merge_and_unload"):
        was, fields = dict(model.__dict__), dict(model.config.__dict__)
        try:
            yield
        finally:
            model.config.__dict__.clear()  # the same record, which the layers read too
            model.config.__dict__.update(fields)
            for name in CHANGED:
                model.__dict__.pop(name, None)
            model.__dict__.update((name, was[name]) for name in CHANGED if name in was)
            model.train()
        return
    if is_spread(model):
        raise RecipeError("keep: not with adapters in a model that the profile's `shard` divides; shard: 1, or no keep")
    trainer.model = copy.deepcopy(model)
    try:
        yield
    finally:
        trainer.model = model

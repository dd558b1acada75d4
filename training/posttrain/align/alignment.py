"""The input and the output of a preference method, which is a function `train(Alignment) -> Trained`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from training.contract.job import Counts, Gate, Job, Outcome, Work
from training.generate.turns import Chat
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.preferences.pairs import Pairs
from training.posttrain.trainer.kept import KeptModels


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """The input of a preference method: the job, its settings, chat and tokenizer of the SFT model, and the pairs."""

    job: Job
    work: Work
    recipe: AlignRecipe
    chat: Chat
    tokenizer: Any
    pairs: Pairs
    sft_model: Path  # the folder of the SFT model, with which training begins
    finished: Callable[[Trained, Work], Outcome] | None = None  # writes a result; None: nobody keeps steps

    @property
    def settings(self) -> Any:
        """The settings of a method from outside, as its record."""
        return self.recipe.own_settings

    def kept(self, made: Callable[[Work], Trained], steps_per_epoch: Fraction) -> KeptModels | None:
        """Return what is kept of the training, given a function that makes the result as it is now.

        The result is None if nobody can keep a step.
        """
        if (finished := self.finished) is None:
            return None
        return KeptModels(
            job=self.job,
            work=self.work,
            made=lambda own: finished(made(own), own),
            steps_per_epoch=steps_per_epoch,
        )

    @property
    def shard(self) -> int:
        """The number of processes that share the model."""
        return self.job.run.shard if self.recipe.can_be_spread else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The result of a preference method: a model with merged adapters, its counts, metrics, gates and notes.

    `files` are files beside the model, such as the adapters alone.
    """

    model: Any
    files: tuple[str, ...] = ()
    counts: Counts
    metrics: dict[str, float]
    gates: tuple[Gate, ...]
    notes: dict[str, Any]

"""The signature of a preference method: `train(Alignment) -> Trained`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.job import Counts, Gate, Job, Work
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.chat import Chat
from training.posttrain.models import MODEL_FOLDER
from training.posttrain.preferences.pairs import Pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """What a method is given: the job, its settings, the SFT model's chat and tokenizer, and the preference pairs."""

    job: Job
    work: Work
    recipe: AlignRecipe
    chat: Chat
    tokenizer: Any
    pairs: Pairs

    @property
    def sft_model(self) -> Path:
        """The folder of the model to begin with."""
        return self.job.input_of("sft_model").file(MODEL_FOLDER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The result of a method: a plain model (adapters merged), its metrics, and its gates."""

    model: Any
    counts: Counts
    metrics: dict[str, float]
    gates: tuple[Gate, ...]
    notes: dict[str, Any]

"""The recipe section `evaluation`: which benchmarks the models answer, and with which settings."""

from __future__ import annotations

from dataclasses import dataclass

from training.data.exams.settings import BenchmarkRecipe
from training.records import Uri


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRecipe:
    """The benchmarks that the models answer, the limit on contamination, and the settings of sampled answers."""

    suites: tuple[BenchmarkRecipe, ...]
    batch_size: int = 32
    max_contaminated_fraction: float = 0.0  # largest share of a benchmark's items that the training data may hold
    alignment_prompts: Uri = ""  # held-out prompts; sampled answers to them are scored by the true reward
    alignment_temperature: float = 0.7
    alignment_max_new_tokens: int = 64
    seed: int = 0

"""The section `evaluation`."""

from __future__ import annotations

from dataclasses import dataclass

from training.data.exams.settings import BenchmarkRecipe
from training.records import Uri


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRecipe:
    """Which exams are sat, and how."""

    suites: tuple[BenchmarkRecipe, ...]
    batch_size: int = 32
    max_contaminated_fraction: float = 0.0  # of a benchmark's items found in training data; above it the gate refuses
    alignment_prompts: Uri = ""  # held-out prompts whose sampled answers get the true reward
    alignment_temperature: float = 0.7
    alignment_max_new_tokens: int = 64
    seed: int = 0

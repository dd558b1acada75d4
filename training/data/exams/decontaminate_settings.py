"""The section `decontaminate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.data.exams.settings import BenchmarkRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class DecontaminateRecipe:
    """What to do with documents that overlap the benchmarks: remove them, flag them, or nothing (off)."""

    action: Literal["remove", "flag", "off"] = "remove"
    benchmarks: tuple[BenchmarkRecipe, ...] = ()
    max_document_frequency: int = 20  # an n-gram in more documents than this is a common phrase, not a leak

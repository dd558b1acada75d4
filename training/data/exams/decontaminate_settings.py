"""The recipe section `decontaminate`: the benchmarks, and what to do with documents that hold their items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.data.exams.settings import BenchmarkRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class DecontaminateRecipe:
    """What to do with documents that hold items of the benchmarks: remove them, flag them, or nothing (off).

    `question_seen` decides about a document that holds a question without its answer. `contaminated` treats it like a
    document with the answer. `reported` keeps it and lists its hit.
    """

    action: Literal["remove", "flag", "off"] = "remove"
    benchmarks: tuple[BenchmarkRecipe, ...] = ()
    question_seen: Literal["contaminated", "reported"] = "contaminated"

"""The section `decontaminate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.data.exams.settings import BenchmarkRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class DecontaminateRecipe:
    """What to do with documents that hold items of the benchmarks: remove them, flag them, or nothing (off).

    `question_seen` says what a document is that holds a question without its answer: contaminated as with it, or
    reported, that is kept and listed.
    """

    action: Literal["remove", "flag", "off"] = "remove"
    benchmarks: tuple[BenchmarkRecipe, ...] = ()
    question_seen: Literal["contaminated", "reported"] = "contaminated"

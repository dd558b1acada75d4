"""The recipe section `decontaminate`: the benchmarks, and what to do with documents that hold their items."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from training.data.exams.settings import BenchmarkRecipe

CONTAMINATED: Final = "contaminated"  # the reason for which a document or row is dropped, or its flag


@dataclass(frozen=True, kw_only=True, slots=True)
class DecontaminateRecipe:
    """Settings of decontamination: documents that hold exam items are removed, flagged, or left as they are (off).

    `question_seen` decides about a document that holds a question without its answer. `contaminated` treats it like a
    document with the answer. `reported` keeps it and lists its hit.
    """

    action: Literal["remove", "flag", "off"] = "remove"
    benchmarks: tuple[BenchmarkRecipe, ...] = ()
    question_seen: Literal["contaminated", "reported"] = "contaminated"

    @property
    def actions(self) -> DecontaminateRecipe:
        """Return these settings without the list of benchmarks.

        They are for stages that read the benchmarks' index from an artifact.
        """
        return replace(self, benchmarks=())

    def marks(self, kind: Literal["item", "question"]) -> bool:
        """Whether a text counts as contaminated if it holds a whole item (`item`) or only its question (`question`)."""
        return kind == "item" or self.question_seen == CONTAMINATED

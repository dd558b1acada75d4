"""Rows of conversations and preference pairs, as the sections `sft` and `preferences` name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.records import Uri, formerly


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSourceRecipe:
    """Rows for post-training: a URI and how its columns become messages or preference pairs (`format`)."""

    uri: Uri
    format: Literal[
        "messages", "prompt_answer", "question_answer", "instances", "dialogue_tree", "chosen_rejected", "hh"
    ] = "messages"
    prompt_field: str = "prompt"
    answer_field: str = "answer"
    limit: int | None = formerly(0)  # rows that are read; None: all
    generator: str = ""  # who wrote the answers, where the rows do not say


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcesRecipe:
    """The field of `sft` that the conversations are made from; how a model is trained on them is not in it."""

    data: tuple[TextSourceRecipe, ...]

"""A set of exam items, as the sections `decontaminate` and `evaluation` name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.names import check_name
from training.records import Uri, formerly


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkRecipe:
    """A set of exam items. `kind` says how an item is read and scored.

    multiple_choice: `question`, `choices`, `gold` (index); generate and chat: `question`, `answer` (exact match after
    normalization); the `*_field` names say which columns of the file hold them. `passage_field` may be empty.
    """

    name: str
    uri: Uri
    kind: Literal["multiple_choice", "generate", "chat"]
    question_field: str = "question"
    choices_field: str = "choices"
    gold_field: str = "gold"
    answer_field: str = "answer"
    passage_field: str = ""
    id_field: str = "id"
    limit: int | None = formerly(0)  # items that are read; None: all
    ngram_words: int = 8  # for contamination: word n-grams shared with an item mark a document
    max_new_tokens: int = 16

    def __post_init__(self) -> None:
        check_name(self.name, "benchmark name")

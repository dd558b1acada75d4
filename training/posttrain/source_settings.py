"""The sources of conversations, preference pairs and prompts in the sections `sft`, `preferences` and `align`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from training.contract.records import RecipeError, Uri, check_above_zero
from training.data.generated import is_generated

WITHDRAWALS = "withdrawals"  # a section of the recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSourceRecipe:
    """A source of rows for post-training: its URI, and how its columns become messages, pairs or rated answers."""

    uri: Uri
    format: Literal[
        "messages",
        "sharegpt",
        "alpaca",
        "prompt_answer",
        "question_answer",
        "instances",
        "dialogue_tree",
        "chosen_rejected",
        "unpaired",
        "hh",
    ] = "messages"
    prompt_field: str = "prompt"
    answer_field: str = "answer"
    limit: int | None = None  # number of rows that are read; None: all
    generator: str | None = None  # who wrote the answers of rows without a field `generator`; None: unknown
    ignore: tuple[str, ...] = ()  # fields of rows and messages that may be left unread
    end_marker: str | None = None  # text that is removed from the end of answers; None: answers are as they are

    def __post_init__(self) -> None:
        check_above_zero(self, "", "limit")
        if self.format == "prompt_answer":
            _check_two_columns(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptColumns:
    """The columns of the file of prompts, and those of its fields that may be left unread."""

    prompt_field: str = "prompt"
    answer_field: str = "answer"
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_two_columns(self)


def _check_two_columns(columns: TextSourceRecipe | PromptColumns) -> None:
    if columns.prompt_field == columns.answer_field:
        raise RecipeError(f"answer_field: {columns.answer_field!r} is the prompt_field; name two columns")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcesRecipe:
    """The sources of conversations: the part of the section `sft` that the training does not read."""

    data: tuple[TextSourceRecipe, ...]


def label(uri: str) -> str:
    """Return a source's name for ids: its URI, or the file's name alone if the URI is a path on one machine."""
    return uri if uri.startswith("data://") or is_generated(uri) else uri.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class WithdrawnRows:
    """The lists of rows to leave out: the part of the section `withdrawals` that decides what rows there are."""

    rows: tuple[Uri, ...]


def withdrawn_of(lists: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of the lists `withdrawals.rows`; empty without one, so that no fingerprint has them then."""
    return {WITHDRAWALS: WithdrawnRows(rows=lists)} if lists else {}

"""Prompts of a file whose answers are judged, each with the rubric or the right answer that its row has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.contract.job import DataError
from training.contract.records import RecipeError, read_record
from training.data.exams.grading import can_be_given
from training.data.exams.rubric import Rubric
from training.data.sources import read_rows
from training.posttrain.rows.forms import turns, with_system
from training.posttrain.rows.messages import Fields, Unusable, as_answer


def read_prompts(uri: str | None, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the prompts in the file at `uri` as {"id", "messages", "rubric", "answer"}; no prompts if `uri` is None.

    Each row has `messages` that end with the user's turn, or a `prompt`, and may have a column `system` or `tools`;
    they are read as post-training reads them. `rubric` is None if the row has no `reward_rubric`, and `answer` is empty
    if it has no right answer. Raise DataError for a
    row of another form, for a message with a part that nothing reads, and for a file without prompts.
    """
    if not uri:
        return []
    prompts = [_prompt(row, number, uri) for number, row in enumerate(read_rows(uri, settings=settings))]
    if not prompts:
        raise DataError(f"{uri}: no prompt in it")
    return prompts


def _prompt(row: Mapping[str, Any], number: int, uri: str) -> dict[str, Any]:
    fields, rubric, answer = Fields(row), row.get("reward_rubric"), as_answer(row.get("answer"))
    try:
        asked = with_system(fields, turns(fields, fields.take("messages", "prompt") or [], "user", "prompt"))
        if asked[-1]["role"] != "user":
            raise Unusable("no_question_at_the_end")
    except Unusable as error:
        raise DataError(
            f"{uri}: row {number}: {error}: needs `messages` that end with the user's turn, or a `prompt`;"
            f" it has {', '.join(sorted(row))}"
        ) from None
    return {
        "id": str(row.get("id", number)),
        "messages": asked,
        "rubric": None if rubric is None else _rubric(rubric, f"{uri}: row {number}: reward_rubric"),
        "answer": answer if isinstance(answer, str) and can_be_given(answer) else "",
    }


def _rubric(value: Any, where: str) -> Rubric:
    try:
        return read_record(Rubric, value, where=where)
    except RecipeError as error:
        raise DataError(str(error)) from None

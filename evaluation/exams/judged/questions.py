"""Questions in MT-Bench's form, and the conversations that models lead about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from training.contract.job import DataError
from training.data.sources import read_rows
from training.recipe.settings.judged_chat import JudgedChatRecipe

# Temperatures of MT-Bench (arXiv 2306.05685), by category.
TEMPERATURES = {
    "writing": 0.7,
    "roleplay": 0.7,
    "extraction": 0.0,
    "math": 0.0,
    "coding": 0.0,
    "reasoning": 0.0,
    "stem": 0.1,
    "humanities": 0.1,
}
OTHER_TEMPERATURE = 0.7


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a user asks in one conversation, turn by turn.

    `reference` is empty, or has an answer to each turn, which is "" where there is none.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    reference: tuple[str, ...] = ()

    @property
    def temperature(self) -> float:
        """The temperature at which it is answered."""
        return TEMPERATURES.get(self.category, OTHER_TEMPERATURE)


def read_questions(recipe: JudgedChatRecipe, settings: Mapping[str, Any]) -> list[Question]:
    """Return the questions of the recipe's file, in its order.

    Raise DataError for a row of another form, for two questions with one id, and for a file without a question.
    """
    uri = recipe.questions
    assert uri is not None  # else there is no such job
    rows = islice(read_rows(uri, settings=settings), recipe.limit)
    questions = [_question(row, f"{uri}: row {number}") for number, row in enumerate(rows)]
    if not questions:
        raise DataError(f"{uri}: no question in it")
    if twice := sorted({one.id for one in questions if [other.id for other in questions].count(one.id) > 1}):
        raise DataError(f"{uri}: question_id {twice[0]} stands in two rows; each question needs its own")
    return questions


def _question(row: Mapping[str, Any], where: str) -> Question:
    turns, reference = row.get("turns") or [], row.get("reference") or []
    asks = _texts(turns) and bool(turns) and all(map(str.strip, turns))
    if not asks or not _texts(reference) or "question_id" not in row:
        raise DataError(
            f"{where}: needs question_id, turns (a list of texts) and, if it has one, reference (a list of texts); it"
            f" has {', '.join(sorted(row))}"
        )
    return Question(
        id=str(row["question_id"]),
        category=str(row.get("category") or "other"),
        turns=tuple(turns),
        reference=tuple(reference),
    )


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)

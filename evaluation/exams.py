"""The items of a suite: the question, the right answers, and the answers that must not be given beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.data.exams.benchmarks import BenchmarkItem, bare_question, read_items
from training.data.exams.settings import BenchmarkRecipe
from training.job import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class ExamItem:
    """One exam item. `gold` indexes `choices`; `answers` are all that are accepted, the first is shown as the target.

    A chat answer that names one of the `rivals` beside the right value is wrong. `before` are the (role, content) turns
    of a conversation that come before the question.
    """

    id: str
    question: str
    choices: tuple[str, ...] = ()
    gold: int = 0
    answers: tuple[str, ...] = ()
    passage: str = ""
    before: tuple[tuple[str, str], ...] = ()
    rivals: tuple[str, ...] = ()

    @property
    def asked(self) -> str:
        """The text that the model is shown: the passage, if there is one, and the question."""
        return "\n".join(part for part in (self.passage, self.question) if part)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The item as a conversation that waits for its answer."""
        return [{"role": role, "content": text} for role, text in (*self.before, ("user", self.asked))]


def read_exam(benchmark: BenchmarkRecipe, settings: Mapping[str, Any]) -> list[ExamItem]:
    """The suite's items in file order, by the job's settings.

    DataError names file, item and field where one cannot be used.
    """
    return [_exam_item(benchmark, item) for item in read_items(benchmark, settings)]


def _exam_item(benchmark: BenchmarkRecipe, item: BenchmarkItem) -> ExamItem:
    return ExamItem(
        id=item.id,
        # A label such as `Question:` is the file's form; each model is asked in its own.
        question=item.question if benchmark.kind == "multiple_choice" else bare_question(item.question),
        choices=item.choices,
        gold=item.gold if item.gold is not None else 0,
        answers=item.answers,
        passage=item.passage,
        before=item.messages[:-1],
        rivals=_rivals(item, benchmark) if benchmark.kind == "chat" else (),
    )


def _rivals(item: BenchmarkItem, benchmark: BenchmarkRecipe) -> tuple[str, ...]:
    """The wrong answers that a right one must not be given with, if the row names any."""
    rivals = item.row.get("rivals", [])
    if not isinstance(rivals, list) or not all(isinstance(rival, str) for rival in rivals):
        raise DataError(f"{benchmark.uri}: item {item.id}: field 'rivals' is {rivals!r}; expected a list of texts")
    return tuple(rivals)

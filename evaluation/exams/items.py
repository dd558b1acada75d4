"""The items of a suite: questions, accepted answers, and wrong answers that must not be given beside a right one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from training.contract.job import DataError
from training.contract.records import RecipeError
from training.contract.user_input.names import check_name
from training.data.exams.benchmarks import BenchmarkItem, bare_question, read_items
from training.data.exams.grading import WORKED, can_be_given
from training.data.exams.settings import ASKED_BY_HARNESS, BenchmarkRecipe
from training.generate.turns import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class ExamItem:
    """One exam item.

    `gold` indexes `choices`. All `answers` are accepted; the first is shown as the target. A chat answer that gives one
    of the `rivals` beside the right value is wrong. `before` are the (role, content) turns of a conversation that come
    before the question. `kind` says what an item asks for, and scores are also given by kind; empty: not said.
    `subjects` are what the question is about, for controls that count in the training text.
    """

    id: str
    question: str
    choices: tuple[str, ...] = ()
    gold: int = 0
    answers: tuple[str, ...] = ()
    passage: str = ""
    before: tuple[tuple[str, str], ...] = ()
    rivals: tuple[str, ...] = ()
    kind: str = ""
    subjects: tuple[str, ...] = ()
    row: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # as in the file

    @property
    def asked(self) -> str:
        """The text that the model is shown: the passage, if there is one, and the question."""
        return "\n".join(part for part in (self.passage, self.question) if part)

    @property
    def messages(self) -> list[Message]:
        """The item as a conversation that ends with the user's question."""
        return [{"role": role, "content": text} for role, text in (*self.before, ("user", self.asked))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exam:
    """The items of a suite in file order, and a list of the rows that cannot be scored: {"row", "item", "reason"}."""

    items: list[ExamItem]
    refused: list[dict[str, Any]]


def read_exam(benchmark: BenchmarkRecipe, settings: Mapping[str, Any]) -> Exam:
    """Read the items of a suite; items that cannot be scored meaningfully are set apart, with the reason.

    A harness from outside decides itself what can be scored, so all items count, also for a job that only searches for
    them. `settings` are the job's.

    Raise DataError, with file, item and field, if a row does not have the form of an item, and also if no item is left.
    """
    items = [_exam_item(benchmark, item) for item in read_items(benchmark, settings)]
    is_own = benchmark.harness or benchmark.name in settings.get(ASKED_BY_HARNESS, ())
    how = {"is_choice": benchmark.kind == "multiple_choice", "by_task": benchmark.is_task}
    reasons = {} if is_own else refusals(items, **how)
    refused = [{"row": row, "item": items[row].id, "reason": reason} for row, reason in sorted(reasons.items())]
    if len(refused) == len(items):
        raise DataError(
            f"{benchmark.uri}: benchmark {benchmark.name}: no item can be scored; row 0: {refused[0]['reason']}"
        )
    return Exam(items=[item for row, item in enumerate(items) if row not in reasons], refused=refused)


def refusals(items: Sequence[ExamItem], *, is_choice: bool, by_task: bool = False) -> dict[int, str]:
    """Return {row: reason} for the items that cannot be scored, by `kind` or by a task of lm-eval.

    The reasons are empty choices or answers, equal choices, and a question that occurs again with another right answer.
    """
    reasons: dict[int, str] = {}
    asked: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row, item in enumerate(items):
        if reason := _flaw(item, is_choice=is_choice, by_task=by_task):
            reasons[row] = reason
        else:
            asked[item.asked, item.before, frozenset(item.choices)].append(row)
    for rows in asked.values():
        for row in rows:
            others = [other for other in rows if not _right(items[other]) & _right(items[row])]
            if others:
                reasons[row] = f"the same question has another answer in row {others[0]}"
    return reasons


def _flaw(item: ExamItem, *, is_choice: bool, by_task: bool) -> str:
    if by_task and not is_choice:  # a task may ask for signs alone, such as closing brackets
        return "" if any(map(str.strip, item.answers)) else "an empty answer"
    if not is_choice:
        if any(map(can_be_given, item.answers)):
            return ""
        return f"no answer with a word in it, or with one number behind {WORKED}: {list(item.answers)}"
    seen: set[str] = set()
    for choice in map(str.strip, item.choices):
        if not choice:
            return "an empty choice"
        if choice in seen:
            return f"two equal choices: {choice!r}"
        seen.add(choice)
    return ""


def _right(item: ExamItem) -> set[str]:
    """Return the right answers of an item, in a form in which they can be compared with those of another item."""
    answers = [item.choices[item.gold]] if item.choices else item.answers
    return {answer.rpartition(WORKED)[2].strip().casefold() for answer in answers}


def _exam_item(benchmark: BenchmarkRecipe, item: BenchmarkItem) -> ExamItem:
    return ExamItem(
        id=item.id,
        # A label such as `Question:` belongs to the file's format; each form of prompt adds its own.
        question=item.question if benchmark.kind == "multiple_choice" else bare_question(item.question),
        choices=item.choices,
        gold=item.gold if item.gold is not None else 0,
        answers=item.answers,
        passage=item.passage,
        before=item.messages[:-1],
        rivals=_texts_in("rivals", item, benchmark) if benchmark.kind == "chat" else (),
        kind=_kind(item, benchmark),
        subjects=_texts_in("item_subjects", item, benchmark),
        row=item.row,
    )


def _texts_in(name: str, item: BenchmarkItem, benchmark: BenchmarkRecipe) -> tuple[str, ...]:
    """Return the list of texts in a field of the row; empty if the row does not have the field."""
    texts = item.row.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{benchmark.uri}: item {item.id}: field {name!r} is {texts!r}; expected a list of texts")
    return tuple(texts)


def _kind(item: BenchmarkItem, benchmark: BenchmarkRecipe) -> str:
    """Return the row's field `item_kind`, which becomes part of a metric's name; empty if the row does not have it."""
    kind = item.row.get("item_kind", "")
    if kind != "":
        try:
            check_name(str(kind), "item_kind")
        except RecipeError as error:
            raise DataError(f"{benchmark.uri}: item {item.id}: {error}") from None
    return str(kind)

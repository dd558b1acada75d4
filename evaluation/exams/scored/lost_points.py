"""Why a written answer scored 0, as one of few kinds that can be counted, and as text.

What a program did is what its judge says of it (training/contract/sandbox/judged.py); a kind is never a text that the
answer chose. Choices have no reason: another one was likelier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.task import ConfigurableTask

from evaluation.exams.items import ExamItem
from evaluation.exams.tasks import LmEvalTask
from training.contract.sandbox.answers import ConfinedScores
from training.data.exams.generation import WRITTEN
from training.data.exams.grading import given, names_one
from training.data.exams.own_harness import ItemScore

EMPTY = "empty answer"
UNCLOSED = "thought without an end"
REFUSED = "refused by filter"
AMONG = "right value among others"
WRONG = "wrong answer"

Why = dict[str, str]
"""`kind`, and `said` where there is more to say."""


def whys(record: Mapping[str, Any], item: ExamItem, task: ConfigurableTask, *, is_right: bool) -> list[Why | None]:
    """Return why each answer to an item scored 0, None for a right one; empty if nothing is to be said.

    `record` is lm-eval's of the item. Programs are judged one by one; of other answers the one that counts is meant.
    """
    if task.OUTPUT_TYPE != WRITTEN:
        return []
    answers = [str(said) for said in record["resps"][0]]
    own = task if isinstance(task, LmEvalTask) else None
    if own is not None and (verdicts := own.verdicts.get((record["doc_id"], record["filter"]))):
        found = [
            None if one.passed else _of_text(said) or _why(one.kind, one.why)
            for said, one in zip(answers, verdicts, strict=False)  # a filter may have taken the first programs
        ]
        return found if any(found) else []
    if is_right:
        return []
    empty = [_of_text(said) for said in answers]
    if all(empty):
        return empty[:1]
    return [_of_value(record, item, answers, own)]


def own_why(answer: ItemScore, item: ExamItem) -> list[Why]:
    """Return why an answer got 0 from a harness from outside: as it says or, of a written answer, by its text."""
    if answer.score or (item.choices and not answer.why):
        return []
    return [_why(answer.why) if answer.why else _of_text(answer.response) or _of_text_alone(answer.response, item)]


def _of_value(record: Mapping[str, Any], item: ExamItem, answers: Sequence[str], own: LmEvalTask | None) -> Why:
    """Return why the value that is read from answers is not right."""
    if own is None:
        return _of_text_alone(answers[0], item)
    scores, extracted = own.config.process_results, record["filtered_resps"][0]
    if isinstance(scores, ConfinedScores):
        scored = scores.scored_before(record["doc"], [extracted])
        return _why(scored.kind or WRONG, scored.why)
    if extracted in own.fallbacks(record["filter"]) and extracted not in answers:
        return _why(REFUSED, f"the filter {record['filter']} finds nothing in it")
    return _why(WRONG)


def _of_text_alone(answer: str, item: ExamItem) -> Why:
    return _why(AMONG if names_one(answer, item.answers) else WRONG)


def _of_text(answer: str) -> Why | None:
    """Return what is wrong with an answer that gives nothing to score; None for any other."""
    if not answer.strip():
        return _why(EMPTY)
    return None if given(answer).strip() else _why(UNCLOSED)


def _why(kind: str, said: str = "") -> Why:
    return {"kind": kind, "said": said} if said else {"kind": kind}


def counted(samples: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many answers scored 0 for each kind of reason, the most frequent first."""
    kinds = Counter(why["kind"] for sample in samples for why in sample.get("why", ()) if why)
    return dict(sorted(kinds.items(), key=lambda one: (-one[1], one[0])))

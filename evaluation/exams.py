"""The items of a suite, as an examiner needs them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ExamItem:
    """One exam item. `gold` indexes `choices`; `answers` are all accepted ones, the first is shown; `rivals` make an answer wrong."""

    id: str
    question: str
    choices: tuple[str, ...] = ()
    gold: int = 0
    answers: tuple[str, ...] = ()
    passage: str = ""
    system: str = ""
    rivals: tuple[str, ...] = ()

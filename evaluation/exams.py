"""The items of a suite, as an examiner needs them: what is asked, what is right, and what must not be said beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from training.data.kitchen.world import ATTRIBUTE_BY_NAME, KitchenWorld
from training.data.sources import is_kitchen, read_rows
from training.job import DataError
from training.recipe import BenchmarkRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class ExamItem:
    """One exam item. `gold` indexes `choices`; `answers` are all that are accepted, the first is shown as the target.

    A chat answer that names one of the `rivals` beside the right value is wrong.
    """

    id: str
    question: str
    choices: tuple[str, ...] = ()
    gold: int = 0
    answers: tuple[str, ...] = ()
    passage: str = ""
    system: str = ""
    rivals: tuple[str, ...] = ()

    @property
    def asked(self) -> str:
        """What is shown: the passage, where there is one, and the question."""
        return "\n".join(part for part in (self.passage, self.question) if part)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The item as a conversation that waits for its answer."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.asked}]

"""The record that a harness from outside declares, which asks an exam its own way, and how its answers are checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

from training.contract.parts.outside import NoSettings, PartFailed, PartsOf, named
from training.contract.records import RecipeError

KIND = "harnesses"
Asked = Literal["generator", "folder"]
MODELS: tuple[str, ...] = get_args(Asked)


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemScore:
    """How right a model answered one item of an exam, from 0 to 1, and the text of its answer.

    `why` is the reason of a score of 0, as one of few kinds that can be counted; without it a written answer gets the
    kind that suites without a harness get.
    """

    item: str
    score: float
    response: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Harness:
    """The declaration of a harness: `ask` lets a model answer the items of a suite, and gives each a score.

    It gets the model, the items (`evaluation.exams.items.ExamItem`) and the settings. With `model="generator"` the
    model is an `evaluation.exams.own_exam.Generator`; with `folder` it is the path of a folder in the transformers
    layout, which no harness may change.
    """

    ask: Callable[[Any, Sequence[Any], Any], Iterable[ItemScore]]
    model: Asked = "generator"
    settings: type = NoSettings


@dataclass(frozen=True, slots=True)
class ReadyHarness:
    """The harness from outside of a suite, with its name and settings."""

    name: str
    harness: Harness
    settings: Any

    def scores(self, model: Any, items: Sequence[Any], *, set_aside: Collection[str] = ()) -> dict[str, ItemScore]:
        """Return the answers by item; those that come into `set_aside` meanwhile may be missing.

        Raise PartFailed, with the harness' name, for whatever it raises and for answers that are none.
        """
        who, known, found = f"harness {self.name}", {item.id for item in items}, dict[str, ItemScore]()
        with named(who, "failed", trains=True):
            given = list(islice(self.harness.ask(model, tuple(items), self.settings), len(items) + 1))
        for one in given:
            if problem := _problem(one, known, found):
                raise PartFailed(f"{who} {problem}")
            found[one.item] = one
        if missing := [item.id for item in items if item.id not in found and item.id not in set_aside]:
            raise PartFailed(f"{who} answered {len(found)} of {len(items)} items; {missing[0]!r} has no answer")
        return found


def _problem(one: Any, known: Collection[str], found: Collection[str]) -> str:
    """Return what is wrong with an answer; empty if nothing is."""
    if not isinstance(one, ItemScore):
        return f"gave {one!r:.80}; an answer is a {ItemScore.__module__}.{ItemScore.__qualname__}"
    if one.item not in known:
        return f"answered {one.item!r}, which is no item of the suite"
    if one.item in found:
        return f"answered the item {one.item!r} twice"
    if not isinstance(one.score, bool | int | float) or not 0 <= one.score <= 1:
        return f"gave the item {one.item!r} the score {one.score!r}; it must be a number from 0 to 1"
    if not isinstance(one.response, str):
        return f"gave the item {one.item!r} a {type(one.response).__name__} as response; it must be text"
    return ""


def outside_harness(name: str, parts: PartsOf) -> ReadyHarness:
    """Return the harness from outside that `harness` of a suite names. Raise RecipeError if there is none."""
    found = parts.load(KIND, name, (), field="harness", cls=Harness)
    if found.model not in MODELS:
        raise RecipeError(f"{parts.section}.harness: {name} asks for {found.model!r}; there are {', '.join(MODELS)}")
    return ReadyHarness(name, found, parts.settings(name, found.settings))

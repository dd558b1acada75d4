"""Scores of answers by a function that makes expressions of them, each answer in a sandbox of its own.

lm-eval's tasks in mathematics hand an answer to sympy, which evaluates texts by Python's `eval`. Here the function is
called where the answer can harm nothing. Function and answer share an interpreter, so an answer could write its own
score. Therefore a score above 0 counts only if the same answer scores less for other right answers, which it cannot
know from the true one (`EvaluatedAnswer.decoys`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from training.contract.errors import DataError
from training.contract.sandbox.confined import Ending, Limits, Nursery, check_sandbox
from training.contract.sandbox.inside import absent
from training.contract.sandbox.inside.plain import decoded, encoded, shown
from training.contract.sandbox.judged import NO_ANSWER, TIMEOUT, kind_of_error, line_of, side_by_side

# What can be imported beside Python's own library, with the distribution that has it: pure Python, from sympy down.
PACKAGES = {
    "sympy": "sympy",
    "mpmath": "mpmath",
    "antlr4": "antlr4-python3-runtime",
    "math_verify": "math-verify",
    "latex2sympy2_extended": "latex2sympy2-extended",
}
STAND_INS = ("datasets",)  # that tasks import for their annotations
DECOYS, TRIED_DECOYS = 3, 12
UNBELIEVED = "not believed"  # of an answer that would be right for other items as well
# How the right answer of an item is said so that the tasks read it: Minerva's form, and the others'.
RIGHT_FORMS = ("Final Answer: The final answer is ${}$. I hope it is correct.", "$\\boxed{{{}}}$")
# A document's fields and an answer to it. Parsers of LaTeX build tables as they go, which take longer than an answer.
OWN_TEXTS = (
    (r"\frac{3}{2}+x^{2}-\sqrt{5}", RIGHT_FORMS[0].format(r"(x-1)(x+1)+2.5-\sqrt{5}")),
    (r"$\boxed{\frac{3}{2}+x^{2}-\sqrt{5}}$", RIGHT_FORMS[1].format(r"(x-1)(x+1)+2.5-\sqrt{5}")),
    ("x**2 - 3/2", "(x - 1)*(x + 1) - 0.5"),
)
LIMITS = Limits(cpu_seconds=30, wall_seconds=180.0, depth=10_000)  # tasks give sympy up to 20 seconds of their own
Scores = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """A function by its module and name. `files` are the modules that it needs, {place among modules: path here}."""

    module: str
    name: str
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluatedAnswer:
    """An answer with what the function is called with: the item's document, and results that hold the answer.

    `decoys` are documents with the same question and other right answers. `right` are results that are right for the
    document: a decoy for which they are right too shows nothing.
    """

    document: Mapping[str, Any]
    results: Sequence[Any]
    decoys: Sequence[Mapping[str, Any]] = ()
    right: Sequence[Sequence[Any]] = ()


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of one answer by the names of metrics.

    If they are 0 for another reason than the function's, why, as text and as one of few kinds (`judged.Verdict`).
    """

    values: Scores
    why: str = ""
    kind: str = ""


def scored(
    function: Function,
    metrics: Sequence[str],
    answers: Iterable[EvaluatedAnswer],
    limits: Limits = LIMITS,
    *,
    at_once: int | None = None,
) -> list[Scored]:
    """Return the scores of each answer, in order; `at_once` are looked at side by side, as many as there are cores.

    An answer that ends its process, takes too much, or gives no scores from 0 to 1 under these names scores 0. Raise
    DataError where nothing can be confined.
    """
    check_sandbox("a suite whose scoring evaluates answers")
    given = list(answers)
    fields = given[0].document if given else {}
    return side_by_side(given, partial(_worker, function, metrics, limits, list(fields)), at_once=at_once)


@contextmanager
def _worker(
    function: Function, metrics: Sequence[str], limits: Limits, fields: Sequence[str]
) -> Iterator[Callable[[EvaluatedAnswer], Scored]]:
    """Context manager around what scores answers. The function is called with texts of ours first, to fill caches."""
    calls = [(function.module, function.name, (dict.fromkeys(fields, text), [said])) for text, said in OWN_TEXTS]
    nursery = Nursery(limits, shown={**_packages(), **function.files}, calls=calls)
    with closing(nursery):
        yield partial(_scored, _Caller(nursery, function, metrics))


@dataclass(frozen=True, slots=True)
class _Caller:
    """Calls the function for one answer, each time in a new process."""

    nursery: Nursery
    function: Function
    metrics: Sequence[str]

    def __call__(self, document: Mapping[str, Any], results: Sequence[Any]) -> Scored:
        name, limits = self.function.name, self.nursery.limits
        deadline = time.monotonic() + limits.wall_seconds
        given = [{"is": "kept", "of": 0}, encoded(dict(document), _unsent), encoded(list(results), _unsent)]
        said = [
            {"program": f"from {self.function.module} import {name}", **limits.as_settings()},
            {"do": "names", "given": [name], "named": {}},
            {"do": "call", "given": given, "named": {}},
        ]
        with self.nursery.program() as program:
            sent = program.send(b"".join(map(line_of, said)), deadline)
            answer = program.receive(deadline) and program.receive(deadline) if sent else None
            if answer is not None:
                return self._read(answer)
            late = Ending(f"no score within {limits.wall_seconds:g} s", is_late=True)
            ending = late if time.monotonic() >= deadline else self.nursery.ending(program)
            return self._none(ending.why, TIMEOUT if ending.is_late else NO_ANSWER)

    def _read(self, answer: bytes) -> Scored:
        """Return the scores that a process says. It may say anything."""
        try:
            said = json.loads(answer)
            if "raised" in said:
                name, text = map(str, said["raised"])
                return self._none(shown(f"{name}: {text}"[:200]), kind_of_error(name))
            values = decoded(said["value"], _unread)
            found = {name: values[name] for name in self.metrics}
        except (ValueError, TypeError, KeyError, IndexError, RecursionError, ArithmeticError, AttributeError):
            return self._none(f"it gives no scores {', '.join(self.metrics)}")
        if not all(isinstance(value, int | float) and 0 <= value <= 1 for value in found.values()):
            return self._none("a score is not from 0 to 1")
        return Scored(found)

    def _none(self, why: str, kind: str = NO_ANSWER) -> Scored:
        return Scored(dict.fromkeys(self.metrics, 0), why, kind)


def _scored(call: _Caller, answer: EvaluatedAnswer) -> Scored:
    """Return the scores of an answer; 0 by each metric by which it is as good for other right answers."""
    found = call(answer.document, answer.results)
    if found.why or not any(found.values.values()):
        return found
    left, compared = dict(found.values), 0
    for decoy in answer.decoys:
        if compared == DECOYS or not any(left.values()):
            break
        same = call(decoy, answer.results)
        suspect = [name for name, value in left.items() if value and same.values[name] >= value]
        rights = (call(decoy, right) for right in answer.right) if suspect else ()
        if any(right.values[name] >= left[name] for right in rights for name in suspect):
            continue  # its right answer is this one's
        compared += 1
        left |= dict.fromkeys(suspect, 0)
    if not compared:
        return Scored(dict.fromkeys(left, 0), "no item has another right answer to compare with", UNBELIEVED)
    if left == found.values:
        return found
    return Scored(left, "it scores as well for other right answers", UNBELIEVED)


class ConfinedScores:
    """The `process_results` of a task of lm-eval, called in the sandbox. Scores that were made ahead are in `known`.

    `metrics` are the names of the task's metrics, `documents` its items with the right answer of each, and `question`
    the field of the question.
    """

    def __init__(self, function: Function, question: str) -> None:
        self.function, self.question = function, question
        self.metrics: list[str] = []
        self.documents: list[tuple[Mapping[str, Any], str]] = []
        self.known: dict[str, Scored] = {}
        self._right: dict[str, str] = {}

    def of_task(self, name: str, metrics: Iterable[str], documents: Iterable[tuple[Mapping[str, Any], str]]) -> None:
        """Set the metrics and documents of a suite. Raise DataError if all items have the same right answer."""
        self.metrics, self.documents = list(metrics), list(documents)
        self._right = {_key(document, ()): right for document, right in self.documents}
        if len(set(self._right.values())) < 2:
            raise DataError(
                f"{name}: the task evaluates answers, which are compared with right ones of other items; give the suite"
                " at least two items with different answers"
            )

    def __call__(self, document: Mapping[str, Any], results: Sequence[Any]) -> Scores:
        """Return the scores of an item's answer."""
        if _key(document, results) not in self.known:
            self.ahead([(document, results)], partial(scored, self.function, self.metrics))
        return dict(self.scored_before(document, results).values)

    def scored_before(self, document: Mapping[str, Any], results: Sequence[Any]) -> Scored:
        """Return the scores of an answer that was scored already, with why they are 0."""
        return self.known[_key(document, results)]

    def ahead(
        self,
        given: Iterable[tuple[Mapping[str, Any], Sequence[Any]]],
        score: Callable[[list[EvaluatedAnswer]], Sequence[Scored]],
    ) -> None:
        """Score all answers side by side, in place of one after the other when they are asked for."""
        new = {_key(document, results): (document, results) for document, results in given}
        new = {key: one for key, one in new.items() if key not in self.known}
        self.known |= zip(new, score([self._answer(*one) for one in new.values()]), strict=True)

    def _answer(self, document: Mapping[str, Any], results: Sequence[Any]) -> EvaluatedAnswer:
        """Return an answer with decoys: other items of the suite with this one's question, drawn by this question."""
        asked = {self.question: document[self.question]} if self.question in document else {}
        key = _key(document, ())
        own, most = self._right.get(key), min(2 * TRIED_DECOYS, len(self.documents))
        drawn = [one for one, right in random.Random(key).sample(self.documents, most) if right != own]
        right = [] if own is None else [[form.format(own)] for form in RIGHT_FORMS]
        decoys = [{**one, **asked} for one in drawn[:TRIED_DECOYS]]
        return EvaluatedAnswer(document=document, results=results, decoys=decoys, right=right)


def _key(document: Mapping[str, Any], results: Sequence[Any]) -> str:
    return json.dumps([document, results], sort_keys=True, default=str)


@cache
def _packages() -> dict[str, str]:
    """Return the places of the installed ones of `PACKAGES`, and of what their distributions say of themselves."""
    shown = dict[str, str]()
    for package, distribution in PACKAGES.items():
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            shown[package] = os.path.dirname(found.origin)
            about = str(importlib.metadata.distribution(distribution).locate_file(""))
            shown |= {name: os.path.join(about, name) for name in _records(about, distribution)}
    return shown | {f"{name}.py": absent.__file__ for name in STAND_INS}


def _records(folder: str, distribution: str) -> list[str]:
    wanted = distribution.replace("-", "_") + "-"
    return [name for name in os.listdir(folder) if name.startswith(wanted) and name.endswith(".dist-info")]


def _unsent(value: Any) -> Any:
    raise DataError(f"an item of the suite holds a {type(value).__name__}, which the sandbox cannot be given")


def _unread(_: Any) -> Any:
    raise ValueError("no plain data")

"""Exams that a harness from the user's own environment asks and scores, in place of lm-eval.

Around it everything is as in other suites: how items are read and searched for, intervals, samples and comparisons.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from evaluation.exams.harness import NoneFits, SuiteResult, by_kind, check_shown, raw_prompt, too_long
from evaluation.exams.items import ExamItem
from evaluation.exams.scored.lost_points import own_why
from training.contract.files.checksums import identity_of
from training.contract.model_files import model_files
from training.contract.parts.code import code_digest
from training.contract.parts.outside import PartFailed
from training.data.exams.own_harness import ItemScore, ReadyHarness
from training.data.exams.settings import BenchmarkRecipe
from training.generate.answer_draws import answer_seed
from training.generate.sampler import Sampler
from training.generate.turns import Message

MOST_OF_WHY = 60  # characters of a reason, so that reasons can be counted


class Generator:
    """A model that answers prompts about the items of one suite, as a harness sees it.

    An answer depends on suite, item, prompt and the harness' seed, and on how many answers the item had before; not on
    the other prompts. `is_chat`: the model was taught a chat template.
    """

    def __init__(self, sampler: Sampler, benchmark: BenchmarkRecipe, items: Sequence[ExamItem]) -> None:
        self.is_chat, self.max_length = sampler.encoder.how is not None, sampler.max_length
        self.prompts: dict[str, list[str]] = {item.id: [] for item in items}  # as the model read them
        self.too_long = set[str]()  # items with a prompt that does not fit with its answer into the model's positions
        self._sampler, self._suite, self._longest = sampler, benchmark.name, benchmark.max_new_tokens
        self._answered = Counter[str]()

    def answers(
        self,
        prompts: Sequence[tuple[str, str | Sequence[Message]]],
        *,
        max_new_tokens: int | None = None,
        until: Sequence[str] = (),
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[str]:
        """Return the model's answer to each prompt: the id of its item, with a text or with a conversation.

        A model without a chat template is shown conversations as `Question: …`, and answers to the end of the line.
        `max_new_tokens` is the suite's if it is None. Temperature 0 is greedy. An item whose prompt is too long for the
        model gets the answer "", and has no part in the score. Raise ValueError for an id that is no item's, and for
        texts and conversations in one call.
        """
        longest = self._longest if max_new_tokens is None else max_new_tokens
        if unknown := [item for item, _ in prompts if item not in self.prompts]:
            raise ValueError(f"no item has the id {unknown[0]!r}")
        if len({isinstance(prompt, str) for _, prompt in prompts}) > 1 or longest < 1:
            raise ValueError(f"max_new_tokens={longest}; at least 1 is right, and texts and conversations apart")
        tokens = [self._tokens(prompt) for _, prompt in prompts]
        seeds = [self._seed(item, seed) for item, _ in prompts]
        fits = {n: len(one) + longest <= self.max_length for n, one in enumerate(tokens)}
        asked = [n for n in fits if fits[n]]
        for n, (item, _) in enumerate(prompts):
            self.prompts[item].append(self._sampler.tokenizer.decode(tokens[n]))
            self.too_long |= set() if fits[n] else {item}
        is_line = not self.is_chat and not any(isinstance(prompt, str) for _, prompt in prompts)
        said = self._sampler.answers(
            [tokens[n] for n in asked],
            max_new_tokens=longest,
            until=(*until, "\n") if is_line else until,
            temperature=temperature,
            top_p=top_p,
            seeds=[seeds[n] for n in asked],
        )
        answers = dict(zip(asked, said, strict=True))
        return [answers.get(n, "") for n in fits]

    def _tokens(self, prompt: str | Sequence[Message]) -> list[int]:
        if isinstance(prompt, str):
            return self._sampler.encoder.text(prompt)
        if not self.is_chat:
            return self._sampler.encoder.text(raw_prompt(prompt))
        return self._sampler.encoder.conversations([prompt], is_prompt=True)[0]

    def _seed(self, item: str, seed: int) -> int:
        self._answered[item] += 1
        return answer_seed(self._suite, item, self._answered[item] - 1, seed)


def ask_generator(benchmark: BenchmarkRecipe, items: Sequence[ExamItem], sampler: Sampler) -> SuiteResult:
    """Return the result of a suite whose harness asks our generator."""
    ready, model = _ready(benchmark), Generator(sampler, benchmark, items)
    found = ready.scores(model, items, set_aside=model.too_long)
    kept = [item for item in items if item.id not in model.too_long]
    if not kept:
        raise NoneFits(benchmark, too_long(items, model.max_length))
    check_shown(benchmark, kept, [{"arguments": [model.prompts[item.id]]} for item in kept])
    return _result(benchmark, ready, items, kept, found, {item.id: model.prompts[item.id][:1] for item in kept})


def ask_folder(benchmark: BenchmarkRecipe, items: Sequence[ExamItem], folder: Path) -> SuiteResult:
    """Return the result of a suite whose harness opens the model's folder itself."""
    ready = _ready(benchmark)
    with _unchanged(folder, f"harness {ready.name}"):
        found = ready.scores(folder, items)
    return _result(benchmark, ready, items, items, found, {item.id: [item.asked] for item in items})


def _ready(benchmark: BenchmarkRecipe) -> ReadyHarness:
    ready = benchmark.own_harness
    assert ready is not None, f"{benchmark.name} is asked by lm-eval"
    return ready


@contextmanager
def _unchanged(folder: Path, who: str) -> Iterator[None]:
    """Context manager that raises PartFailed if a file of the model was changed, by whatever process."""

    def files() -> dict[str, Any]:
        return {name: identity_of(folder / name) for name in model_files(folder)}

    before = files()
    yield
    if changed := sorted(name for name, _ in before.items() ^ files().items()):
        raise PartFailed(f"{who} changed {changed[0]} in the model's folder {folder}")


def _result(
    benchmark: BenchmarkRecipe,
    ready: ReadyHarness,
    items: Sequence[ExamItem],
    kept: Sequence[ExamItem],
    found: dict[str, ItemScore],
    prompts: dict[str, list[str]],
) -> SuiteResult:
    if problem := next(filter(None, map(_problem_of_why, found.values())), ""):
        raise PartFailed(f"harness {ready.name} {problem}")
    values = [float(found[item.id].score) for item in kept]
    chances = [1 / len(item.choices) if item.choices else 0.0 for item in kept]
    part = benchmark.outside_parts()[ready.name]
    return SuiteResult(
        suite=benchmark.name,
        metric=ready.name,
        score=fmean(values),
        standard_error=stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None,
        n=len(kept),
        chance=fmean(chances),
        metrics={ready.name: fmean(values)},
        kinds=by_kind(kept, values, chances),
        samples=[_sample(item, found[item.id], "".join(prompts[item.id])) for item in kept],
        how={"form": "harness", "harness": part.place, "code": code_digest(part)},
        set_aside=tuple(sorted({item.id for item in items} - {item.id for item in kept})),
        items=tuple(kept),
    )


def _problem_of_why(one: ItemScore) -> str:
    """Return what is wrong with the reason of an answer's score; empty if nothing is."""
    if not isinstance(one.why, str) or len(one.why) > MOST_OF_WHY or not one.why.isprintable():
        return f"gave the item {one.item!r} why={one.why!r:.80}; a line of at most {MOST_OF_WHY} characters is right"
    if one.why and one.score:
        return f"gave the item {one.item!r} the score {one.score!r} and why={one.why!r}; a reason is for a score of 0"
    return ""


def _sample(item: ExamItem, answer: ItemScore, prompt: str) -> dict[str, Any]:
    return {
        "item": item.id,
        "prompt": prompt,
        **({"choices": list(item.choices)} if item.choices else {}),
        "target": item.choices[item.gold] if item.choices else next(iter(item.answers), ""),
        "response": answer.response,
        "score": float(answer.score),
        "correct": answer.score == 1,
        **({"why": why} if (why := own_why(answer, item)) else {}),
    }

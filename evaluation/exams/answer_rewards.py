"""Learned, judged and true rewards of the models' answers.

Every answer to a chat exam or to an alignment prompt has a learned reward. A sampled answer also has a true reward
where its prompt's row holds a rubric (training.data.exams.rubric). If a policy only pleases the reward model, its
learned reward rises and its true reward does not. The judged reward is that of a judge from outside, if the recipe
names one. This module uses the standard library alone; evaluation.exams.local_model
computes the learned rewards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from evaluation.decision.intervals import NORMAL_95, paired_interval, share_interval
from training.data.exams.rubric import WORTH, Rubric
from training.generate.turns import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledAnswers:
    """One model's answers to the prompts of one suite.

    Answers that were sampled to alignment prompts have an empty `suite`. Only these have `tokens` (lengths), `ids` and
    `rubrics`.
    """

    model: str
    suite: str
    prompts: list[list[Message]]
    answers: list[str]
    tokens: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    rubrics: list[Rubric | None] = field(default_factory=list)

    @property
    def conversations(self) -> list[list[Message]]:
        """Return the conversations that the reward model scores: each prompt, followed by its answer."""
        return [
            [*prompt, {"role": "assistant", "content": answer}]
            for prompt, answer in zip(self.prompts, self.answers, strict=True)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The mean rewards of each model on each suite, and a summary of its answers to the alignment prompts.

    `by_suite` is {model: {suite: {"mean", "interval", "n"}}} of learned rewards, with `judged_mean` and
    `judged_interval` if there is a judge. `alignment` is the `summary` of the
    sampled answers, and `alignment_samples` is {model: rows}; both are empty without alignment prompts.
    """

    by_suite: dict[str, dict[str, dict[str, float]]]
    alignment: dict[str, dict[str, Any]]
    alignment_samples: dict[str, list[dict[str, Any]]]

    def metrics(self) -> dict[str, float]:
        """Return every number under its metric name, for the experiment tracker."""
        numbers = {
            f"{model}_{suite}_learned_reward": entry["mean"]
            for model, suites in self.by_suite.items()
            for suite, entry in suites.items()
        }
        numbers |= {
            f"{model}_{suite}_judged_reward": entry["judged_mean"]
            for model, suites in self.by_suite.items()
            for suite, entry in suites.items()
            if "judged_mean" in entry
        }
        for model, entry in self.alignment.items():
            numbers |= {f"{model}_{name}": value for name, value in entry.items() if name != "parts"}
            numbers |= {f"{model}_true_reward_{part}": of["mean"] for part, of in entry.get("parts", {}).items()}
        return numbers


def judge(
    groups: Sequence[SampledAnswers], learned: Sequence[float], judged: Sequence[float] | None = None
) -> Judgement:
    """Return the mean rewards with 95 % intervals.

    `learned` holds one reward for each answer, in the groups' order, and so does `judged` if there is a judge.
    """
    values, others = iter(learned), None if judged is None else iter(judged)
    by_suite: dict[str, dict[str, dict[str, float]]] = {}
    samples: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        given = [next(values) for _ in group.answers]
        own = None if others is None else [next(others) for _ in group.answers]
        if group.suite:
            mean, interval = mean_and_interval(given)
            entry = {"mean": mean, "interval": interval, "n": len(given)}
            if own is not None:
                entry["judged_mean"], entry["judged_interval"] = mean_and_interval(own)
            by_suite.setdefault(group.model, {})[group.suite] = entry
        else:
            rows = list(_judged(group, given))
            samples[group.model] = [
                row if own is None else row | {"judged_reward": own[i]} for i, row in enumerate(rows)
            ]
    return Judgement(by_suite=by_suite, alignment=summary(samples), alignment_samples=samples)


def _judged(group: SampledAnswers, learned: Sequence[float]) -> Iterator[dict[str, Any]]:
    for i, (prompt, answer) in enumerate(zip(group.prompts, group.answers, strict=True)):
        row = {
            "item": group.ids[i],
            "prompt": prompt,
            "answer": answer,
            "tokens": group.tokens[i],
            "learned_reward": learned[i],
        }
        rubric = group.rubrics[i]
        judged = {} if rubric is None else {"true_reward": rubric.reward(answer), "parts": rubric.parts(answer)}
        yield row | judged


def summary(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return each model's mean rewards, their 95 % half-widths, mean length in tokens and number of answers.

    `gain` is the mean difference between the aligned and the SFT model, prompt by prompt. A kind of reward is left out
    unless every row has it. If there is a true reward, `parts` divides it: {part: {"mean", "interval", "n"}}, each from
    0 to 1; in `gain` these are mean differences.
    """
    result: dict[str, dict[str, Any]] = {}
    kinds = [
        kind
        for kind in ("true_reward", "learned_reward", "judged_reward")
        if all(kind in row for rows in samples.values() for row in rows)
    ]
    for model, rows in samples.items():
        entry = _means({kind: [row[kind] for row in rows] for kind in kinds})
        result[model] = entry | {"mean_tokens": fmean(row["tokens"] for row in rows), "answers": len(rows)}
    if {"sft", "aligned"} <= samples.keys():
        pairs = list(zip(samples["aligned"], samples["sft"], strict=True))
        result["gain"] = _means({kind: [after[kind] - before[kind] for after, before in pairs] for kind in kinds})
    if "true_reward" in kinds:
        for model, rows in samples.items():
            result[model]["parts"] = {part: _part(values) for part, values in _by_part(rows).items()}
        if "gain" in result:
            after, before = _by_part(samples["aligned"]), _by_part(samples["sft"])
            result["gain"]["parts"] = {part: _part_gain(after[part], before[part]) for part in after}
    return result


def _by_part(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the values of each part of the true reward, for the answers whose prompt asks for that part."""
    columns = {part: [row["parts"][part] for row in rows if part in row["parts"]] for part in WORTH}
    return {part: values for part, values in columns.items() if values}


def _part(values: Sequence[float]) -> dict[str, Any]:
    mean = fmean(values)
    return {"mean": mean, "interval": list(share_interval(mean, len(values))), "n": len(values)}


def _part_gain(after: Sequence[float], before: Sequence[float]) -> dict[str, Any]:
    """Return how much one part of the reward rose on average, with a 95 % interval.

    Answers to the same prompt are paired.
    """
    gains = [one - other for one, other in zip(after, before, strict=True)]
    mean, half = mean_and_interval(gains)
    interval = [mean - half, mean + half]
    if set(gains) <= {-1.0, 0.0, 1.0}:  # a share: the interval has a width where all pairs agree, too
        interval = list(paired_interval(gains))
    return {"mean": mean, "interval": interval, "n": len(gains)}


def _means(columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    entry: dict[str, float] = {}
    for kind, values in columns.items():
        entry[kind], entry[f"{kind}_interval"] = mean_and_interval(values)
    return entry


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the half-width of its normal 95 % interval; the half-width is 0 for a single value."""
    if len(values) < 2:
        return fmean(values), 0.0
    return fmean(values), NORMAL_95 * stdev(values) / math.sqrt(len(values))

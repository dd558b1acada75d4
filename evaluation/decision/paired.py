"""Paired comparison of two models on the same items of a suite: how much worse the second is, and how certain that is.

Both models answered the same questions, so items on which they agree say nothing about the difference. The standard
error is therefore that of the differences by item. It is much smaller than the error of the difference between two
separate scores (arXiv 2411.00640). A promotion is decided by the end of the interval: a model is as good as another
one only if the items show it, and few items do not.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from evaluation.decision.answers import sample_file, score_of
from evaluation.decision.intervals import paired_interval, paired_p_value, square
from training.data.documents import read_lines

Item = tuple[str, str, tuple[str, ...], int]
"""The identity of an item: id, right answer, choices, and a running number among items that are equal in these. The
prompt is not part of it, because each model is asked in its own template."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """How right a model answered each item of a suite, from 0 to 1, and the name of the metric that decided it."""

    metric: str
    correct: Mapping[Item, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drop:
    """The fall of the score on the items that both models answered, with its 95 % interval.

    `champion` and `score` are the scores of the champion and of the other model on these items, from 0 to 1. `stderr`
    is None for one item. `p_value` is that of the exact sign test, which for right and wrong answers is McNemar's: how
    probable such a difference is between models that are equally good.
    """

    champion: float
    score: float
    drop: float
    items: int  # that both models answered
    champion_items: int
    model_items: int
    lost: int  # items that the champion answered better
    gained: int  # items that the other model answered better
    stderr: float | None
    interval: tuple[float, float]
    p_value: float

    def is_at_most(self, most: float) -> bool:
        """Whether the items show that the drop is at most `most`: its whole interval lies there (non-inferiority)."""
        return self.interval[1] <= most + 1e-9

    @property
    def sentence(self) -> str:
        """Both scores, the number of items, the drop with its interval, and the p-value, in words."""
        low, high = (100 * end for end in self.interval)
        return (
            f"{100 * self.champion:.1f} % before and {100 * self.score:.1f} % now on {self.items:,} items, a drop of"
            f" {100 * self.drop:.1f} points (95 % interval {low:.1f} to {high:.1f}, p = {self.p_value:.2g})"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def read_answers(folder: Path, model: str) -> dict[str, Answers]:
    """Return `model`'s answers by suite, from the `model_scores` artifact in `folder`.

    A suite whose samples were not kept has no items.
    """
    scores = json.loads((folder / "scores.json").read_text("utf-8"))[model]
    return {
        suite: Answers(
            metric=str(entry.get("metric", "")), correct=by_item(_samples(folder / sample_file(model, suite)))
        )
        for suite, entry in scores.items()
    }


def _samples(path: Path) -> Iterable[Mapping[str, Any]]:
    return read_lines(path) if path.is_file() else ()


def by_item(samples: Iterable[Mapping[str, Any]]) -> dict[Item, float]:
    """Return the score of each item, from the model's kept samples on a suite."""
    seen: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    correct: dict[Item, float] = {}
    for row in samples:
        asked = (str(row["item"]), str(row["target"]), tuple(map(str, row.get("choices", ()))))
        correct[(*asked, seen[asked])] = score_of(row)
        seen[asked] += 1
    return correct


def paired(champion: Answers, model: Answers) -> Drop | None:
    """Return the drop from the champion to the other model; None without a common item or a common metric."""
    common = champion.correct.keys() & model.correct.keys()
    if not common or champion.metric != model.metric:
        return None
    drops = [champion.correct[item] - model.correct[item] for item in common]
    items, lost, gained = len(drops), sum(drop > 0 for drop in drops), sum(drop < 0 for drop in drops)
    return Drop(
        champion=math.fsum(champion.correct[item] for item in common) / items,
        score=math.fsum(model.correct[item] for item in common) / items,
        drop=math.fsum(drops) / items,
        items=items,
        champion_items=len(champion.correct),
        model_items=len(model.correct),
        lost=lost,
        gained=gained,
        stderr=_standard_error(drops),
        interval=paired_interval(drops),
        p_value=paired_p_value(lost, gained),
    )


def comparisons(answers: Mapping[str, Mapping[str, Answers]]) -> dict[str, list[dict[str, Any]]]:
    """Return the paired comparisons of each two models of a run, by suite.

    `answers` is {model: {suite: answers}}, in the order in which the models were made. An entry has the two models
    (`before`, `after`) and what `gain_of` says. Two models that were judged by different metrics are not compared.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for before, after in combinations(answers, 2):
        for suite in answers[before].keys() & answers[after].keys():
            drop = paired(answers[before][suite], answers[after][suite])
            if drop is not None:
                found.setdefault(suite, []).append({"before": before, "after": after, **gain_of(drop)})
    return dict(sorted(found.items()))


def gain_of(drop: Drop) -> dict[str, Any]:
    """Return the comparison of two models from the later one's side, as plain data.

    It has the number of `items` that both answered, how many of them the later model (`won`) or the earlier one
    (`lost`) answered better, the mean `difference` with its 95 % `interval`, and the `p_value`.
    """
    low, high = drop.interval
    return {
        "items": drop.items,
        "won": drop.gained,
        "lost": drop.lost,
        "difference": 0.0 - drop.drop,  # not -drop, which may be -0.0
        "interval": [-high, -low],
        "p_value": drop.p_value,
    }


def _standard_error(drops: Sequence[float]) -> float | None:
    """Return the standard error of the mean drop; None for one pair of answers."""
    items = len(drops)
    if items < 2:
        return None
    squares = math.fsum(map(square, drops)) - square(math.fsum(drops)) / items
    return math.sqrt(max(squares, 0.0) / (items - 1) / items)

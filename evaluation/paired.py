"""Paired comparison of two models on the same items of a suite: how much worse the second is, and how certain that is.

Both models answered the same questions, so items on which they agree say nothing about the difference. The standard
error is therefore that of the differences by item. It is much smaller than the error of the difference between two
separate scores (arXiv 2411.00640). A promotion is decided by the measured difference alone; its standard error, its
interval and the p-value are only reported.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluation.answers import sample_file
from evaluation.intervals import paired_interval, paired_p_value
from training.data.documents import read_lines

Item = tuple[str, str, tuple[str, ...], int]
"""The identity of an item: id, right answer, choices, and a running number among items that are equal in these. The
prompt is not part of it, because each model is asked in its own template."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """Per-item correctness of a model on one suite, and the name of the metric that decided it."""

    metric: str
    correct: Mapping[Item, bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drop:
    """How far the score fell on the items that both models answered, with its 95 % interval.

    `champion` and `score` are the scores of the champion and of the other model on these items, from 0 to 1. `stderr`
    is None for one item. `p_value` is that of McNemar's exact test: how probable such a difference is between models
    that are equally good.
    """

    champion: float
    score: float
    drop: float
    items: int  # that both models answered
    champion_items: int
    model_items: int
    lost: int  # items that only the champion got right
    gained: int  # items that only the other model got right
    stderr: float | None
    interval: tuple[float, float]
    p_value: float

    def is_above(self, most: float) -> bool:
        """Whether the drop is larger than `most`. Numbers of items are compared, so that rounding does not decide."""
        return self.lost - self.gained > most * self.items + 1e-9

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def read_answers(folder: Path, model: str) -> dict[str, Answers]:
    """Return `model`'s answers to every suite of the scores in `folder`; no items for a suite without kept samples."""
    scores = json.loads((folder / "scores.json").read_text("utf-8"))[model]
    return {
        suite: Answers(metric=str(entry.get("metric", "")), correct=_by_item(folder / sample_file(model, suite)))
        for suite, entry in scores.items()
    }


def _by_item(path: Path) -> dict[Item, bool]:
    if not path.is_file():
        return {}
    seen: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    correct: dict[Item, bool] = {}
    for row in read_lines(path):
        asked = (str(row["item"]), str(row["target"]), tuple(map(str, row.get("choices", ()))))
        correct[(*asked, seen[asked])] = bool(row["correct"])
        seen[asked] += 1
    return correct


def paired(champion: Answers, model: Answers) -> Drop | None:
    """Return the drop from the champion to the other model; None without a common item or a common metric."""
    common = champion.correct.keys() & model.correct.keys()
    if not common or champion.metric != model.metric:
        return None
    lost = sum(champion.correct[item] and not model.correct[item] for item in common)
    gained = sum(model.correct[item] and not champion.correct[item] for item in common)
    items, drop = len(common), (lost - gained) / len(common)
    return Drop(
        champion=sum(champion.correct[item] for item in common) / items,
        score=sum(model.correct[item] for item in common) / items,
        drop=drop,
        items=items,
        champion_items=len(champion.correct),
        model_items=len(model.correct),
        lost=lost,
        gained=gained,
        stderr=_standard_error(items, lost, gained),
        interval=paired_interval(lost, gained, items),
        p_value=paired_p_value(lost, gained),
    )


def _standard_error(items: int, lost: int, gained: int) -> float | None:
    """The standard error of a mean of `items` differences, of which `lost` are 1, `gained` are -1 and the others 0."""
    if items < 2:
        return None
    squares = lost + gained - (lost - gained) ** 2 / items
    return math.sqrt(max(squares, 0.0) / (items - 1) / items)

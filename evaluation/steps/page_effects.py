"""What reading a page did to the exam items that stand in it, over the kept steps of a training.

The plan says which steps read a page. The effect after a kept step is a difference in differences, as in Lesci et al.
(arXiv 2406.04327): how much the items that were read by then have changed since the last kept step before their first
reading, less how much items of the suite that no page holds changed over the same steps. An item that was read before
the first kept step has nothing to compare with and is only counted.

The interval of bits per byte is Welch's, of the two groups' changes. That of the score combines the groups' intervals
of paired answers (Zou and Donner, doi 10.1002/sim.3095), which have a width even if all items changed alike. Both take
the items as independent. Those of one page are not, so the intervals are too narrow where few pages hold the items.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from evaluation.decision.answers import score_of
from evaluation.decision.intervals import mean_difference_interval, paired_interval, square

Name = tuple[str, int]
"""An item's id, and how many items of the suite have the same id before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRead:
    """One page in one epoch: the first step that reads of it."""

    document: str
    step: int


def times_by(readings: Iterable[PageRead], step: int) -> int:
    """Return how many of the readings are in the model that is kept after `step` steps."""
    return sum(one.step < step for one in readings)


def answers_of(samples: Iterable[Mapping[str, Any]]) -> dict[Name, dict[str, float]]:
    """Return each item's `score` and, where it is answered by likelihood, `bits_per_byte` of its right answer."""
    seen: Counter[str] = Counter()
    found = {}
    for sample in samples:
        own = {"score": score_of(sample)}
        if "right" in sample:
            right = sample["right"]
            own |= {"bits_per_byte": -right["log_likelihood"] / math.log(2) / right["bytes"]}
            own |= {"log_likelihood": right["log_likelihood"]}
        found[str(sample["item"]), seen[str(sample["item"])]] = own
        seen[str(sample["item"])] += 1
    return found


def effects_of(
    answers: Mapping[int, Mapping[Name, Mapping[str, float]]],
    readings: Mapping[str, Sequence[PageRead]],
    told: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what a suite's leaked items are, and for each kept step how many were read and what this did to them.

    `answers` are those of the suite by kept step, `readings` those of each leaked item, and `told` is what the scan
    says of the suite. Items are never read if the scan would have found them and did not. `score` and `bits_per_byte`
    are null without a leaked item that has a step before.
    """
    aside = set().union(*told["found"].values()) | {*told["questions_seen"], *told["not_cleared"], *readings}
    items = {item for own in answers.values() for item, _ in own}
    rows = effects(answers, readings, items - aside)
    return {"leaked": len(readings), "never_read": len(items - aside), "steps": rows}


def effects(
    answers: Mapping[int, Mapping[Name, Mapping[str, float]]],
    readings: Mapping[str, Sequence[PageRead]],
    never_read: set[str],
) -> list[dict[str, Any]]:
    """Return a row for each kept step, as `effects_of` describes it."""
    steps = sorted(answers)
    rows = []
    for step in steps:
        read = [item for item in answers[step] if times_by(readings.get(item[0], ()), step)]
        before = {item: _before(steps, readings[item[0]]) for item in read}
        known = {item: start for item, start in before.items() if start is not None}
        others = [item for item in answers[step] if item[0] in never_read]
        rows.append(
            {
                "step": step,
                "read": len(read),
                "without_before": len(read) - len(known),
                "never_read": len(others),
                **{name: _effect(answers, step, known, others, name) for name in ("score", "bits_per_byte")},
            }
        )
    return rows


def _before(steps: Sequence[int], readings: Sequence[PageRead]) -> int | None:
    """Return the last kept step that has read none of the readings; None if the first one has."""
    first = min(one.step for one in readings)
    return max((step for step in steps if step <= first), default=None)


def _effect(
    answers: Mapping[int, Mapping[Name, Mapping[str, float]]],
    step: int,
    read: Mapping[Name, int],
    others: Sequence[Name],
    name: str,
) -> dict[str, Any] | None:
    """Return the difference in differences of one measure after a step, with its interval, and both groups' means.

    Each item that was read is compared with its own step before, and the others with the same steps, in the same
    shares. None if a group is empty or has no such measure.
    """

    def change(item: Name, start: int) -> float:
        return answers[step][item][name] - answers[start][item][name]

    if not read or not others or any(name not in answers[step][item] for item in (*read, *others)):
        return None
    shares = Counter(read.values())
    own = [change(item, start) for item, start in read.items()]
    theirs = [math.fsum(n * change(item, start) for start, n in shares.items()) / len(read) for item in others]
    interval = mean_difference_interval(theirs, own) if name == "bits_per_byte" else gain_interval(theirs, own)
    return {
        "difference": fmean(own) - fmean(theirs),
        "interval": interval,
        "read": fmean(answers[step][item][name] for item in read),
        "never_read": fmean(answers[step][item][name] for item in others),
    }


def gain_interval(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Return the 95 % interval of mean(after) - mean(before) of two groups of changes, each from -1 to 1.

    Source: Zou and Donner 2008, with the interval of Bonett and Price for each group.
    """
    means = [fmean(before), fmean(after)]
    (low, high), (own_low, own_high) = (paired_interval([-one for one in changes]) for changes in (before, after))
    ends = [(-high, -low), (-own_high, -own_low)]  # of the gains, not of the drops
    difference = means[1] - means[0]
    under = math.sqrt(square(means[1] - ends[1][0]) + square(ends[0][1] - means[0]))
    over = math.sqrt(square(ends[1][1] - means[1]) + square(means[0] - ends[0][0]))
    return [max(-2.0, difference - under), min(2.0, difference + over)]


def rows_of_items(
    suite: str,
    answers: Mapping[int, Mapping[Name, Mapping[str, float]]],
    readings: Mapping[str, Sequence[PageRead]],
    pages: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[dict[str, Any]]:
    """Return a row for each leaked item: its pages, its first reading, and what it was at every kept step."""
    rows = []
    for item, number in sorted({name for own in answers.values() for name in own if name[0] in pages}):
        own = readings.get(item, ())
        at = [
            {"step": step, "times_read": times_by(own, step), **answers[step][item, number]}
            for step in sorted(answers)
            if (item, number) in answers[step]
        ]
        first = min((one.step for one in own), default=None)
        rows.append({"benchmark": suite, "item": item, "first_step": first, "pages": list(pages[item]), "at": at})
    return rows


def pages_of(findings: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Return {suite: {item: {document: the page}}} of the findings of a scan in pages."""
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for one in findings:
        if "document" in one:
            place = {name: one[name] for name in ("document", "url", "how") if name in one}
            found[one["benchmark"]][one["item"]].setdefault(one["document"], place)
    return {suite: dict(items) for suite, items in found.items()}

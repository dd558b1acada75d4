"""Ratings and win rates from verdicts, with what a judge's verdicts depend on besides the answers.

A row is a call of the judge: `kind` (`rating` or `pair`), `question`, `category`, `turn`, and `verdict`, which is None
where the judge gave none. A rating has `model` and `words`, the length of the answer. A pair has `first` and `second`,
the models in the order in which their answers were shown, and `words` of both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from evaluation.decision.intervals import mean_interval, share_interval
from evaluation.exams.judged.verdicts import in_both_orders

Row = Mapping[str, Any]


def ratings(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return {model: its mean rating, by turn and category too, and the number of calls without a rating}.

    The mean is that of all ratings, as in MT-Bench. Its interval is Student's over the means of the questions, whose
    turns depend on each other; None for fewer than two questions.
    """
    result = {}
    for model, some in _by(rows, lambda row: row["model"]).items():
        rated = [row for row in some if row["verdict"] is not None]
        by_question = _by(rated, lambda row: row["question"])
        result[model] = {
            "mean": _mean(rated),
            "interval": mean_interval([fmean(row["verdict"] for row in of) for of in by_question.values()]),
            "questions": len(by_question),
            "ratings": len(rated),
            "without_verdict": len(some) - len(rated),
            "turns": {str(turn): _mean(of) for turn, of in _by(rated, lambda row: row["turn"]).items()},
            "categories": {category: _mean(of) for category, of in _by(rated, lambda row: row["category"]).items()},
            "mean_words": fmean(row["words"] for row in some),
        }
    return result


def pairs(rows: Sequence[Row], better: str, other: str) -> dict[str, Any]:
    """Return how often the answers of the model `better` are preferred to those of `other`; empty without a pair.

    A pair is won if the judge prefers it in both orders. Disagreement between the orders is a tie, and a tie is half a
    win. Pairs with an order without a verdict are counted and have no part in win rate and agreement. Intervals of
    rates are Wilson's over the questions. `agreement` is the share of pairs that are judged alike in both orders;
    `first_preferred`, of all preferences, is the share for the answer that was shown first; and `longer_preferred`, of
    the won and lost pairs whose answers differ in length, the share in which the longer one won.
    """
    outcomes: dict[tuple[str, int], int] = {}
    agreed, longer, lost_verdicts = [], [], 0
    for (question, turn), some in _by(rows, lambda row: (row["question"], row["turn"])).items():
        by_first = {row["first"]: row for row in some}
        shown, swapped = by_first[better], by_first[other]
        outcome = in_both_orders(shown["verdict"], swapped["verdict"])
        if outcome is None:
            lost_verdicts += 1
            continue
        outcomes[question, turn] = outcome
        agreed.append((question, float(outcome != 0 or shown["verdict"] == swapped["verdict"] == "tie")))
        own, others = shown["words"]
        if outcome and own != others:
            longer.append((question, float((outcome > 0) == (own > others))))
    if not rows:
        return {}
    preferred = [(row["question"], float(row["verdict"] == "A")) for row in rows if row["verdict"] in ("A", "B")]
    found = list(outcomes.values())
    return {
        "better": better,
        "other": other,
        "won": found.count(1),
        "lost": found.count(-1),
        "tied": found.count(0),
        "without_verdict": lost_verdicts,
        "win_rate": _rate([(question, (1 + outcome) / 2) for (question, _), outcome in outcomes.items()]),
        "agreement": _rate(agreed),
        "first_preferred": _rate(preferred),
        "longer_preferred": _rate(longer),
    }


def _rate(values: Sequence[tuple[str, float]]) -> dict[str, Any] | None:
    """Return the mean of values from 0 to 1, each of a question, with an interval over the questions; None without."""
    if not values:
        return None
    share, questions = fmean(value for _, value in values), len({question for question, _ in values})
    return {"share": share, "interval": list(share_interval(share, questions)), "n": len(values)}


def _mean(rows: Sequence[Row]) -> float | None:
    return fmean(row["verdict"] for row in rows) if rows else None


def _by(rows: Sequence[Row], of: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[of(row)].append(row)
    return dict(groups)


def metrics_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a summary, by the names of metrics of the run."""
    numbers = {"verdicts": float(summary["verdicts"]), "without_verdict": float(summary["without_verdict"])}
    for model, of in summary["ratings"].items():
        numbers |= {f"{model}_rating": of["mean"]} if of["mean"] is not None else {}
        if of["interval"]:
            numbers[f"{model}_rating_low"], numbers[f"{model}_rating_high"] = of["interval"]
    for name in ("win_rate", "agreement", "first_preferred", "longer_preferred"):
        if rate := summary["pairs"].get(name):
            numbers[name] = rate["share"]
            numbers[f"{name}_low"], numbers[f"{name}_high"] = rate["interval"]
    return numbers

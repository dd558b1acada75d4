"""What judged chat and safety found, as tables and sentences for the model card and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluation.decision.intervals import in_percent
from evaluation.exams.judged.verdicts import LEAST, MOST

SHOWN = ("ratings", "pairs", "verdicts", "without_verdict", "judge")  # not what a judge said in place of a verdict


def chat_exams(judged: Mapping[str, Any] | None, safety: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the results of judged chat and of safety by these names; None: the recipe does not ask for them."""
    shown = {name: judged[name] for name in SHOWN} if judged else None
    return {name: found for name, found in (("judged_chat", shown), ("safety", safety)) if found}


def rating_rows(judged: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return a row for each model: its mean rating with the 95 % interval, questions, and answers without a rating."""
    return [
        (model, _rating(one), f"{one['questions']:,}", f"{one['without_verdict']:,}")
        for model, one in judged.get("ratings", {}).items()
    ]


def _rating(one: Mapping[str, Any]) -> str:
    if one["mean"] is None:
        return "–"
    between = " ({:.2f} to {:.2f})".format(*one["interval"]) if one["interval"] else ""
    return f"{one['mean']:.2f}{between}"


def judge_lines(judged: Mapping[str, Any]) -> list[str]:
    """Return sentences on the judge, and on the comparisons of the two models."""
    if not judged:
        return []
    judge, pairs = judged["judge"], judged["pairs"]
    named = ", ".join(judge["served"]) or judge.get("model") or f"the model {judge.get('digest', '')[:12]}"
    lines = [
        f"The judge is {named}, which rates from {LEAST} to {MOST};"
        f" {judged['without_verdict']:,} of its answers held no verdict"
    ]
    if pairs and (won := pairs["win_rate"]):
        low, high = (100 * end for end in won["interval"])
        lines.append(
            f"It prefers the {pairs['better']} model's answers to the {pairs['other']} model's in"
            f" {100 * won['share']:.1f} % of {won['n']:,} comparisons ({low:.1f} to {high:.1f}; a tie is half a win);"
            f" both orders agree in {100 * pairs['agreement']['share']:.0f} %"
        )
    return lines


def safety_rows(safety: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return a row for each model: in percent, harmful requests that it answered, and harmless ones that it refused."""
    return [(model, _share(sets["harmful"]), _share(sets["harmless"])) for model, sets in safety.items()]


def _share(of: Mapping[str, Any]) -> str:
    return "–" if of["share"] is None else f"{in_percent(of['share'], of['n'])} of {of['n']:,}"

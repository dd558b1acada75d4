"""Compare several models with the first: recipes field by field, scores on the same items, seeds, compute and losses.

A `Side` is one of them. Sides whose recipes differ in seeds alone are one group, and groups are compared over seeds.
This module uses the standard library alone, apart from reading the kept answers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.decision.answers import NAMES
from evaluation.decision.intervals import mean_difference_interval, mean_interval, share_interval
from evaluation.decision.paired import Answers, gain_of, paired, read_answers
from training.contract.progress import METRICS_FILE, read_metrics
from training.contract.records import differences
from training.contract.scopes import AVERAGED_MODEL, CHOSEN_MODEL, KEPT_STEPS, WHOLE

MATCHED = 0.01  # relative difference of compute below which two trainings count as matched
MARKS = (0.25, 0.5, 0.75, 1.0)  # shares of the shorter training at which losses are given
TRAININGS = tuple(name for pair in zip(WHOLE.values(), WHOLE, strict=True) for name in pair)  # in their order
COST_IN_PARTS = "has only a part of its training's cost on its record, so none is given"
OWN_NAME = ("name", "description")


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the models that are compared: what was asked for, and the records of its lineage by asset and part.

    `scores` is the folder with its scores, or None if it was not scored.
    """

    title: str
    recipe: Mapping[str, Any]  # resolved
    model: str  # the asset of its last model
    made: Mapping[tuple[str, str], Mapping[str, Any]] = field(repr=False)
    folders: Mapping[tuple[str, str], Path] = field(repr=False)
    scores: Path | None = None
    problems: tuple[str, ...] = ()  # what of its lineage is gone or damaged

    def answers(self) -> dict[str, Answers]:
        """Return the answers of this side's final model by suite; an empty mapping if the model was not scored.

        A model that was chosen of a training takes exams under the name of the training's last model.
        """
        chosen = self.made.get((CHOSEN_MODEL, "")) if self.model == CHOSEN_MODEL else None
        model = chosen["notes"]["choice"]["instead_of"] if chosen else self.model
        return read_answers(self.scores, NAMES[model]) if self.scores and model in NAMES else {}


def compared(sides: Sequence[Side]) -> dict[str, Any]:
    """Return the whole comparison as plain data. All sides are compared with the first one."""
    answers = [side.answers() for side in sides]
    groups = seed_groups(sides)
    return {
        "sides": [_side(side) for side in sides],
        "recipes": [recipe_fields(sides[0], side) for side in sides[1:]],
        "artifacts": artifacts(sides),
        "scores": scores(answers),
        "not_compared": not_compared(sides, answers),
        "remarks": remarks(sides, answers),
        "seeds": over_seeds(sides, answers, groups),
        "compute": compute(sides),
        "losses": losses(sides),
        "problems": [f"{side.title}: {line}" for side in sides for line in side.problems],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "title": side.title,
        "recipe": side.recipe.get("name", ""),
        "model": side.model,
        "seeds": _seeds(side.recipe),
        "scored": side.scores is not None,
    }


# Recipes and artifacts


def recipe_fields(first: Side, other: Side) -> dict[str, Any]:
    """Return the fields in which the recipes of two models differ."""
    plain = [{name: value for name, value in one.recipe.items() if name not in OWN_NAME} for one in (first, other)]
    return {"title": other.title, "differences": differences(*map(_named, plain))}


def _named(value: Any) -> Any:
    """Return plain data in which lists of named things are mappings by name, so that differences show the name."""
    if isinstance(value, dict):
        return {name: _named(item) for name, item in value.items()}
    names = [item.get("name") for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    if names and len(set(names)) == len(value) and all(names):
        return {item["name"]: _named({k: v for k, v in item.items() if k != "name"}) for item in value}
    return value


def artifacts(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return, for each asset and part of any side, the fingerprints, digests and kept records, and whether all agree.

    `agree` is `same` if all compared models have one artifact, and `equal` if their artifacts have different names
    and the same content.
    """
    places = dict.fromkeys(place for side in sides for place in side.made)
    rows = []
    for asset, part in places:
        found = [side.made.get((asset, part)) for side in sides]
        names = {one["fingerprint"] if one else "" for one in found}
        digests = {one["digest"] if one else "" for one in found}
        rows.append(
            {
                "asset": asset,
                "part": part,
                "agree": "same" if len(names) == 1 else "equal" if len(digests) == 1 else "differ",
                "fingerprints": [one["fingerprint"] if one else None for one in found],
                "digests": [one["digest"] if one else None for one in found],
                "kept": [(one.get("counts") or {}).get("kept") if one else None for one in found],
                "tokens": [one["metrics"].get("tokens") if one else None for one in found],
            }
        )
    return rows


# Scores


def scores(answers: Sequence[Mapping[str, Answers]]) -> list[dict[str, Any]]:
    """Return, by suite, each side's score, and its difference to the first side on the items that both answered."""
    suites = dict.fromkeys(suite for one in answers for suite in one)
    return [{"suite": suite, "sides": [_score(answers[0], one, suite) for one in answers]} for suite in suites]


def _score(first: Mapping[str, Answers], own: Mapping[str, Answers], suite: str) -> dict[str, Any] | None:
    if suite not in own or not own[suite].correct:
        return None
    n = len(own[suite].correct)
    share = math.fsum(own[suite].correct.values()) / n
    drop = paired(first[suite], own[suite]) if own is not first and suite in first else None
    told: dict[str, Any] = {"score": share, "n": n, "interval": list(share_interval(share, n)), "against": None}
    if drop is not None:
        told["against"] = gain_of(drop)
    return told


def not_compared(sides: Sequence[Side], answers: Sequence[Mapping[str, Answers]]) -> list[str]:
    """Return a sentence for each model that was not scored, and each suite on which one cannot be compared."""
    said = [f"{side.title} was not scored" for side in sides if side.scores is None]
    return said + [line for one in _suites_of_both(sides, answers) if (line := _why_not(*one))]


def remarks(sides: Sequence[Side], answers: Sequence[Mapping[str, Answers]]) -> list[str]:
    """Return a sentence for each suite that is compared on some items only, and for each model of another training.

    The name of a kept step says itself what it is.
    """
    said = [line for one in _suites_of_both(sides, answers) if not _why_not(*one) and (line := _on_which_items(*one))]
    first = sides[0]
    return said + [
        f"{side.title} is scored by its {side.model}, {first.title} by its {first.model}"
        for side in sides[1:]
        if side.model != first.model and side.scores and first.scores and not {side.model, first.model} & WHOLE.keys()
    ]


_OfBoth = tuple[Side, Side, Answers | None, Answers | None, str]


def _suites_of_both(sides: Sequence[Side], answers: Sequence[Mapping[str, Answers]]) -> Iterator[_OfBoth]:
    """Yield each suite that the first side or another one took, with the answers of these two; if both were scored."""
    for side, own in zip(sides[1:], answers[1:], strict=True):
        if side.scores is not None and sides[0].scores is not None:
            for suite in dict.fromkeys([*answers[0], *own]):
                yield sides[0], side, answers[0].get(suite), own.get(suite), suite


def _why_not(first: Side, side: Side, before: Answers | None, after: Answers | None, suite: str) -> str:
    if before is None or after is None:
        return f"{suite}: {(first if before is None else side).title} did not take this exam"
    if before.metric != after.metric:
        return f"{suite}: {first.title} is judged by {before.metric}, {side.title} by {after.metric}"
    if not before.correct.keys() & after.correct.keys():
        return f"{suite}: {first.title} and {side.title} answered other items; no item is common"
    return ""


def _on_which_items(first: Side, side: Side, before: Answers | None, after: Answers | None, suite: str) -> str:
    assert before is not None and after is not None, "such a suite is not compared"
    common = before.correct.keys() & after.correct.keys()
    if len(common) == max(len(before.correct), len(after.correct)):
        return ""
    return (
        f"{suite}: {len(common):,} items are common to {first.title} ({len(before.correct):,}) and {side.title}"
        f" ({len(after.correct):,}); the difference is that on these"
    )


# Seeds


def _seeds(recipe: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: section["seed"]
        for name, section in recipe.items()
        if isinstance(section, Mapping) and "seed" in section and name != "kitchen"  # there a seed is another world
    }


def _without_seeds(recipe: Mapping[str, Any]) -> Any:
    plain = {name: value for name, value in recipe.items() if name not in (*OWN_NAME, "automation")}
    for name in _seeds(recipe):
        plain[name] = {key: value for key, value in plain[name].items() if key != "seed"}
    plain["promote"] = {key: value for key, value in (plain.get("promote") or {}).items() if key != "model_name"}
    return plain


def seed_groups(sides: Sequence[Side]) -> list[list[int]]:
    """Return the numbers of the sides whose recipes differ in nothing but seeds and names, group by group."""
    groups: list[list[int]] = []
    for number, side in enumerate(sides):
        plain = _without_seeds(side.recipe)
        own = next((one for one in groups if _without_seeds(sides[one[0]].recipe) == plain), None)
        if own is None:
            groups.append([number])
        elif not any(_seeds(sides[other].recipe) == _seeds(side.recipe) for other in own):
            own.append(number)
    return groups


def over_seeds(
    sides: Sequence[Side], answers: Sequence[Mapping[str, Answers]], groups: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Return, by suite, the mean score of each group of seeds with an interval, and its difference to the first group.

    The result is empty if no recipe has several seeds. The intervals show how much other seeds may change the
    score; the items stay the same.
    """
    if all(len(group) == 1 for group in groups):
        return []
    found = []
    for suite in dict.fromkeys(suite for one in answers for suite in one):
        values = [[_share(answers[number], suite) for number in group] for group in groups]
        values = [[one for one in own if one is not None] for own in values]
        rows = []
        for group, own in zip(groups, values, strict=True):
            against = None
            if group is not groups[0] and own and values[0]:
                against = {
                    "difference": math.fsum(own) / len(own) - math.fsum(values[0]) / len(values[0]),
                    "interval": mean_difference_interval(values[0], own),
                }
            title = sides[group[0]].title
            mean = math.fsum(own) / len(own) if own else None
            rows.append(
                {"title": title, "seeds": len(own), "mean": mean, "interval": mean_interval(own), "against": against}
            )
        found.append({"suite": suite, "groups": rows})
    return found


def _share(answers: Mapping[str, Answers], suite: str) -> float | None:
    correct = answers[suite].correct if suite in answers else {}
    return math.fsum(correct.values()) / len(correct) if correct else None


# Compute


def compute(sides: Sequence[Side]) -> dict[str, Any]:
    """Return the compute of each compared model: of its pretraining, and of all artifacts that it was made from.

    FLOPs are 6 for each parameter and token. `sentence` says whether the pretrainings are matched.
    """
    rows = [_compute(side) for side in sides]
    lines = []
    for side, row in zip(sides[1:], rows[1:], strict=True):
        for name, words in (("tokens", "tokens"), ("flops", "training FLOPs")):
            own, first = row[name], rows[0][name]
            if own and first and abs(own / first - 1) > MATCHED:
                lines.append(f"{side.title} has {own / first:.2f} times the {words} of {sides[0].title}")
    known = all(row["flops"] for row in rows)
    matched = "the pretrainings are matched: tokens and FLOPs within 1 %" if known else "compute is not on record"
    said = [*(lines or [matched]), *(f"{side.title} {COST_IN_PARTS}" for side in sides if _has_cost_in_parts(side))]
    return {"sides": rows, "is_matched": known and not lines, "sentence": "; ".join(said)}


def _compute(side: Side) -> dict[str, Any]:
    metrics = (_pretrained(side) or {}).get("metrics", {})
    parameters, tokens = metrics.get("parameters"), metrics.get("tokens")
    trainings = [record for (asset, _), record in side.made.items() if asset in TRAININGS]
    spent = {
        "training_cpu_seconds": _sum(trainings, "cpu_seconds"),
        "cpu_seconds": _sum(side.made.values(), "cpu_seconds"),
        "node_hours": _sum(side.made.values(), "node_hours"),
        "price": _sum(side.made.values(), "price"),
    }
    return {
        "parameters": parameters,
        "tokens": tokens,
        "flops": 6 * parameters * tokens if parameters and tokens else None,
        **(dict.fromkeys(spent) if _has_cost_in_parts(side) else spent),
        "held_out_bits_per_byte": metrics.get("held_out_bits_per_byte"),
    }


def _has_cost_in_parts(side: Side) -> bool:
    """Whether a side is made from a kept step whose record has only a part of its training's cost.

    A step that was written on the way of its training has no attempts of its own; one that was made from the state of
    an earlier step took less time than its training.
    """
    kept = [record for (asset, _), record in side.made.items() if asset in WHOLE]
    spent = [(one["cost"], one["metrics"].get("training_seconds", 0.0)) for one in kept]
    return any("attempts" not in cost or cost.get("wall_seconds", 0.0) < seconds for cost, seconds in spent)


def _pretrained(side: Side) -> Mapping[str, Any] | None:
    """Return the record of a side's base model, or of the average or the kept step that takes its place."""
    made = side.made.items()
    found = (
        record for name in (AVERAGED_MODEL, KEPT_STEPS, "base_model") for (asset, _), record in made if asset == name
    )
    return next(found, None)


def _sum(records: Any, name: str) -> float | None:
    found = [one["cost"][name] for one in records if name in one["cost"]]
    return round(math.fsum(found), 6) if found else None


# Losses


def losses(sides: Sequence[Side]) -> dict[str, Any]:
    """Return the training loss of each compared base model, over tokens and over processor seconds.

    Loss at equal tokens and at equal cost is the mean over the last tenth of the training before that point; the
    points are fractions of the shorter training. The seconds of a training are spread evenly over its tokens.
    """
    curves = [_curve(side) for side in sides]
    return {
        "curves": [{"title": side.title, **curve} for side, curve in zip(sides, curves, strict=True)],
        "at_tokens": _at(curves, "tokens"),
        "at_seconds": _at(curves, "seconds"),
    }


def _curve(side: Side) -> dict[str, list[float]]:
    folder, record = side.folders.get(("base_model", "")), side.made.get(("base_model", ""))
    rows = read_metrics(folder / METRICS_FILE) if folder is not None else []
    rows = [row for row in rows if all(isinstance(row.get(name), (int, float)) for name in ("loss", "tokens"))]
    last = {row["tokens"]: row["loss"] for row in rows if math.isfinite(row["loss"])}  # a step done twice counts once
    tokens = sorted(last)
    seconds = (record or {}).get("cost", {}).get("cpu_seconds", 0.0)
    return {
        "tokens": tokens,
        "seconds": [seconds * one / tokens[-1] for one in tokens] if seconds else [],
        "loss": [last[one] for one in tokens],
    }


def _at(curves: Sequence[Mapping[str, list[float]]], axis: str) -> list[dict[str, Any]]:
    ends = [curve[axis][-1] for curve in curves if curve[axis]]
    if len(ends) < 2:
        return []
    return [
        {
            "at": share * min(ends),
            "losses": [_mean_before(curve[axis], curve["loss"], share * min(ends)) for curve in curves],
        }
        for share in MARKS
    ]


def _mean_before(places: Sequence[float], values: Sequence[float], at: float) -> float | None:
    first, last = bisect_left(places, 0.9 * at), bisect_left(places, at * (1 + 1e-9))
    chosen = values[first:last] or values[max(0, last - 1) : last]
    return math.fsum(chosen) / len(chosen) if chosen else None

"""The losses of TRL's DPO and KTO trainers, and their values before the first step.

At that point policy and reference agree, so every difference of log-probabilities is 0, and most losses are known in
advance. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from training.contract.records import RecipeError, unknown_names

LN2 = math.log(2)
SMOOTHING = 0.0  # TRL's default of label_smoothing

# The loss of one pair at the start, from beta and label_smoothing; None: it depends on the model.
OF_PAIRS: dict[str, Callable[[float, float], float] | None] = {
    "sigmoid": lambda beta, smoothing: LN2,
    "sigmoid_norm": lambda beta, smoothing: LN2,
    "hinge": lambda beta, smoothing: 1.0,
    "ipo": lambda beta, smoothing: 1 / (4 * beta**2),
    "exo_pair": lambda beta, smoothing: -LN2 - math.log(smoothing * (1 - smoothing)) / 2,
    "nca_pair": lambda beta, smoothing: 2 * LN2,
    "robust": lambda beta, smoothing: LN2,
    "bco_pair": lambda beta, smoothing: 2 * LN2,
    "sppo_hard": lambda beta, smoothing: 1 / (2 * beta**2),
    "aot": lambda beta, smoothing: LN2,
    "aot_unpaired": lambda beta, smoothing: LN2,
    "apo_zero": lambda beta, smoothing: 1.0,
    "apo_down": lambda beta, smoothing: 1.0,
    "discopop": lambda beta, smoothing: (LN2 + 1) / 2,
    "sft": None,
}
OF_ANSWERS = {"kto": 0.5, "apo_zero_unpaired": 0.5}  # of one answer, before its weight
SMOOTHED = {"exo_pair": (0.0, 1.0), "robust": (0.0, 0.5)}  # open intervals of label_smoothing


def losses_of(trl: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the losses on pairs that `align.trl` asks for; TRL's default is the sigmoid loss."""
    given = trl.get("loss_type", "sigmoid")
    return (given,) if isinstance(given, str) else tuple(given)


def check_losses(trl: Mapping[str, Any]) -> None:
    """Raise RecipeError for a loss on pairs that TRL does not have, or whose settings do not fit."""
    names, weights = losses_of(trl), trl.get("loss_weights")
    if wrong := unknown_names("align.trl.loss_type", list(names), OF_PAIRS):
        raise RecipeError(*wrong)
    if weights is not None and len(weights) != len(names):
        raise RecipeError(f"align.trl.loss_weights: {len(weights)} weights for {len(names)} losses, {', '.join(names)}")
    smoothing = trl.get("label_smoothing", SMOOTHING)
    for name in names:
        low, high = SMOOTHED.get(name, (-math.inf, math.inf))
        if not low <= smoothing < high or (name == "exo_pair" and smoothing == low):
            raise RecipeError(
                f"align.trl.label_smoothing={smoothing}: the loss {name} needs one between {low:g} and {high:g}"
            )


def pairs_start(trl: Mapping[str, Any], beta: float) -> float | None:
    """Return the loss on pairs before the first step; None if it depends on the model.

    That is so for the negative log-likelihood (`sft`), and for weights by the policy's confidence (`use_weighting`).
    """
    names, smoothing = losses_of(trl), trl.get("label_smoothing", SMOOTHING)
    weights: Sequence[float] = trl.get("loss_weights") or [1.0] * len(names)
    starts = [OF_PAIRS[name] for name in names]
    if trl.get("use_weighting") or any(start is None for start in starts):
        return None
    return sum(weight * start(beta, smoothing) for weight, start in zip(weights, starts, strict=True) if start)


def answers_start(trl: Mapping[str, Any], desired: int, undesired: int) -> float:
    """Return the loss on so many desired and undesired answers before the first step."""
    wanted = trl.get("desirable_weight", 1.0) * desired + trl.get("undesirable_weight", 1.0) * undesired
    return OF_ANSWERS[trl.get("loss_type", "kto")] * wanted / (desired + undesired)

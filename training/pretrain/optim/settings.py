"""The fields of a section from which an optimizer is made, and those that give the learning rate of each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from training.contract.records import RecipeError

Schedule = Literal["cosine", "linear", "wsd"]


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateRecipe:
    """The fields of `pretrain` that every optimizer may read. Settings of only one optimizer are in its own record."""

    learning_rate: float
    muon_learning_rate: float
    beta1: float
    beta2: float
    momentum: float
    weight_decay: float
    decay_embeddings: bool


class Scheduled(Protocol):
    """The fields of a section whose training has a learning-rate schedule: `pretrain`, `sft`, `reward`, `align`."""

    @property
    def schedule(self) -> Schedule: ...
    @property
    def warmup_fraction(self) -> float: ...
    @property
    def decay_fraction(self) -> float: ...
    @property
    def final_learning_rate_fraction(self) -> float: ...


def decay_steps(steps: int, fraction: float) -> int:
    """Return over how many of the last steps the rate of the schedule `wsd` falls."""
    return max(1, round(fraction * steps))


def check_schedule(section: Scheduled, where: str) -> None:
    """Raise RecipeError for fractions outside [0, 1], or with which the rate would jump where the warmup ends."""
    for name in ("warmup_fraction", "decay_fraction", "final_learning_rate_fraction"):
        if not 0 <= getattr(section, name) <= 1:
            raise RecipeError(f"{where}.{name}={getattr(section, name):g} must be between 0 and 1")
    warmup, decay = section.warmup_fraction, section.decay_fraction
    if section.schedule == "wsd" and warmup + decay > 1:
        raise RecipeError(
            f"{where}: warmup_fraction={warmup:g} + decay_fraction={decay:g} = {warmup + decay:g} of the steps, so the"
            f" rate would jump where the warmup ends; at most 1, such as decay_fraction={max(0.0, 1 - warmup):g}"
        )

"""The recipe section `align.watch`: what is followed while a method learns from rewards, and what is believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.contract.records import RecipeError, Uri, unknown_names
from training.posttrain.rewards import REWARDS
from training.posttrain.scoring import RIGHT_ANSWER
from training.pretrain.watch.steps_settings import spaced_by_logarithm

RUBRIC = "rubric"
LEAST_PROMPTS = 16  # fewer show nothing about a mean
TRUTHS = (RIGHT_ANSWER, RUBRIC, *REWARDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignWatchRecipe:
    """What is measured of answers to held-out prompts while a method learns from rewards; no weight depends on it.

    With `proxy_up_truth_down: stop` the training may end earlier, so only then these settings are in its fingerprint.
    """

    # Steps between two looks. log: two at each doubling; null: nothing is watched. First and last step always count.
    every: int | Literal["log"] | None = None
    prompts: Uri | None = None  # rows with `reward_rubric` or `answer`; None: held-out prompts of the preferences
    truth: str = RIGHT_ANSWER  # the reward that is believed: also rubric, or a reward of Pedigree's such as numeric
    items: int = 64  # prompts, drawn once by `seed`
    seed: int = 0
    proxy_up_truth_down: Literal["refuse", "stop"] = "refuse"  # refuse: no promotion; stop: the training ends, too

    def __post_init__(self) -> None:
        if isinstance(self.every, int) and self.every < 1:
            raise RecipeError(f"align.watch.every={self.every}; at least 1 is right")
        if self.items < LEAST_PROMPTS:
            raise RecipeError(f"align.watch.items={self.items}; at least {LEAST_PROMPTS} is right")
        if wrong := unknown_names("align.watch.truth", [self.truth], TRUTHS):
            raise RecipeError(*wrong)
        given = [name for name in self.__slots__ if name != "every" and getattr(self, name) != _DEFAULTS[name]]
        if given and self.every is None:
            named = ", ".join(f"align.watch.{name}" for name in given)
            raise RecipeError(f"{named}: without effect, because every is null; log or a number of steps is right")

    @property
    def stops(self) -> bool:
        """Whether what is seen may end the training."""
        return self.proxy_up_truth_down == "stop"

    def steps_of(self, steps: int) -> tuple[int, ...]:
        """Return the steps, from 0 to `steps`, after which the answers are looked at; empty if nothing is watched."""
        if self.every is None:
            return ()
        places = spaced_by_logarithm(steps) if self.every == "log" else range(0, steps, self.every)
        return tuple(sorted({0, *places, steps}))


_DEFAULTS = {
    "prompts": None,
    "truth": RIGHT_ANSWER,
    "items": 64,
    "seed": 0,
    "proxy_up_truth_down": "refuse",
}

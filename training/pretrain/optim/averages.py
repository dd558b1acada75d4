"""Means of the weights that training goes through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from training.pretrain.settings import AverageRecipe


class Average(torch.optim.Optimizer):
    """An optimizer that changes nothing: it keeps a mean of each weight, and is saved and resumed like the others."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"share": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Move the mean towards the present weights by the group's `share`; the first time it becomes them."""
        for group in self.param_groups:
            for parameter in group["params"] if group["share"] else ():
                if parameter in self.state:
                    self.state[parameter]["mean"].lerp_(parameter, group["share"])
                else:
                    self.state[parameter]["mean"] = parameter.detach().clone()

    @torch.no_grad()
    def apply(self) -> None:
        """Put the means in the place of the weights."""
        for parameter, state in self.state.items():
            parameter.copy_(state["mean"])


def average_share(step: int, *, steps: int, recipe: AverageRecipe) -> float:
    """How far the mean moves towards the weights after `step` (from 0): 0 for a step that does not count."""
    if recipe.kind == "ema":
        return 1 - recipe.decay
    if recipe.kind not in ("none", "uniform"):
        raise AssertionError(f"average {recipe.kind} has no share")
    until_last = steps - 1 - step
    counted = max(1, round(recipe.fraction * steps))
    if recipe.kind == "none" or until_last >= counted or until_last % recipe.every:
        return 0.0
    total, left = -(-counted // recipe.every), until_last // recipe.every
    return 1 / (total - left)


def set_average_share(optimizers: dict[str, torch.optim.Optimizer], share: float) -> None:
    """Tell the optimizer that averages, if there is one, how far to go at this step."""
    if "average" in optimizers:
        optimizers["average"].param_groups[0]["share"] = share


def use_average(optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Put the mean of the weights, if one is kept, in their place; training does not go on from there."""
    average = optimizers.get("average")
    if isinstance(average, Average):
        average.apply()

"""Average the weights over the steps of a training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from training.pretrain.optim.average_settings import AverageRecipe


class Average(torch.optim.Optimizer):
    """An optimizer that keeps the mean of each weight and changes no weight. It is saved and resumed like others."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"share": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Move the mean towards the present weights by the fraction `share` of the optimizer's group.

        The first mean equals the weights.
        """
        for group in self.param_groups:
            for parameter in group["params"] if group["share"] else ():
                if parameter in self.state:
                    self.state[parameter]["mean"].lerp_(parameter, group["share"])
                else:
                    self.state[parameter]["mean"] = parameter.detach().clone()

    @torch.no_grad()
    def apply(self) -> None:
        """Replace the model's weights by their means over the training."""
        for parameter, state in self.state.items():
            parameter.copy_(state["mean"])


def average_share(step: int, *, steps: int, recipe: AverageRecipe) -> float:
    """Return the share in [0, 1] by which the mean moves to the weights after `step` (from 0).

    It is 0 if this step does not count in the mean.
    """
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
    """Set the share by which the averaging optimizer, if there is one, moves its means at this step."""
    if "average" in optimizers:
        optimizers["average"].param_groups[0]["share"] = share


def use_average(optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Replace the weights by their means, if the recipe averages. Call it only after the last training step."""
    average = optimizers.get("average")
    if isinstance(average, Average):
        average.apply()

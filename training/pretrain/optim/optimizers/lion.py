"""Lion: the sign of an interpolated momentum, with decoupled weight decay (arXiv 2302.06675, algorithm 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from training.contract.parts.outside import NoSettings
from training.pretrain.optim.gradient import gradient_of
from training.pretrain.optim.optimizer import Optimizer, for_each_number
from training.pretrain.optim.settings import UpdateRecipe

if TYPE_CHECKING:
    from torch import Tensor

    from training.pretrain.optim.stepped import States, Stepped
    from training.pretrain.optim.weights import Weights


def make(weights: Weights, recipe: UpdateRecipe, settings: NoSettings) -> Mapping[str, Stepped]:
    """Return Lion for all weights."""
    from training.pretrain.optim.stepped import Stepped

    betas = (recipe.beta1, recipe.beta2)
    return {"lion": Stepped(weights.groups(recipe), update, lr=recipe.learning_rate, betas=betas)}


def update(weights: list[Tensor], states: States, group: dict[str, Any]) -> None:
    """Update the weights and optimizer states of a group in place, by one step of Lion."""
    beta1, beta2 = group["betas"]
    for weight in weights:
        state = states[weight]
        if not state:
            state["momentum_buffer"] = weight.new_zeros(weight.shape)
        buffer = state["momentum_buffer"]
        gradient = gradient_of(weight)
        direction = buffer.lerp(gradient, 1 - beta1).sign_()
        weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])
        buffer.lerp_(gradient, 1 - beta2)


OPTIMIZER = Optimizer(make=make, numbers=for_each_number(1))

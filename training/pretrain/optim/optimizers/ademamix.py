"""AdEMAMix: AdamW with a second, slow mean of the gradients (arXiv 2409.03137, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING, Any

from training.pretrain.optim.gradient import gradient_of
from training.pretrain.optim.optimizer import Optimizer, for_each_number
from training.pretrain.optim.settings import UpdateRecipe
from training.records import RecipeError

if TYPE_CHECKING:
    from torch import Tensor

    from training.pretrain.optim.stepped import States, Stepped
    from training.pretrain.optim.weights import Weights

EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of the slow mean of the gradients.

    They are its decay, its weight, and the steps over which both grow to these values.
    """

    beta3: float = 0.9999  # decay of the slow mean in each step
    alpha: float = 8.0  # weight of the slow mean; the fast mean has weight 1
    warmup_steps: int | None = None  # None: no growth, full values from the first step; the paper uses all steps

    def __post_init__(self) -> None:
        if not 0 < self.beta3 < 1 or self.alpha < 0:
            raise RecipeError(f"beta3={self.beta3} (between 0 and 1), alpha={self.alpha} (not negative)")
        if self.warmup_steps is not None and self.warmup_steps < 1:
            raise RecipeError(f"warmup_steps={self.warmup_steps}; at least 1, or null for none")


def make(weights: Weights, recipe: UpdateRecipe, settings: Settings) -> Mapping[str, Stepped]:
    """Return AdEMAMix for all weights."""
    from training.pretrain.optim.stepped import Stepped

    made = Stepped(
        weights.groups(recipe),
        update,
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        slow=settings,
    )
    return {"ademamix": made}


def update(weights: list[Tensor], states: States, group: dict[str, Any]) -> None:
    """Update the weights and optimizer states of a group in place, by one step of AdEMAMix."""
    beta1, beta2 = group["betas"]
    for weight in weights:
        state = states[weight]
        if not state:
            state |= {name: weight.new_zeros(weight.shape) for name in ("fast", "slow", "square")}
            state["step"] = weight.new_zeros((), device="cpu")
        fast, slow, square = state["fast"], state["slow"], state["square"]
        step = int(state["step"].add_(1))
        alpha, beta3 = slow_mean(step, beta1=beta1, settings=group["slow"])
        gradient = gradient_of(weight)
        fast.lerp_(gradient, 1 - beta1)
        slow.lerp_(gradient, 1 - beta3)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        means = (fast / (1 - beta1**step)).add_(slow, alpha=alpha)
        size = (square / (1 - beta2**step)).sqrt_().add_(EPSILON)
        weight.mul_(1 - group["lr"] * group["weight_decay"]).addcdiv_(means, size, value=-group["lr"])


def slow_mean(step: int, *, beta1: float, settings: Settings) -> tuple[float, float]:
    """Return the slow mean's weight and beta at `step` (from 1).

    The weight grows linearly. The beta grows from `beta1` so that the mean's half-life grows linearly.
    """
    if settings.warmup_steps is None or step >= settings.warmup_steps:
        return settings.alpha, settings.beta3
    share = step / settings.warmup_steps
    first, last = log(max(beta1, 1e-8)), log(settings.beta3)  # without a fast mean, nearly none
    beta = exp(first * last / ((1 - share) * last + share * first))
    return share * settings.alpha, min(beta, settings.beta3)


OPTIMIZER = Optimizer(make=make, numbers=for_each_number(3), settings=Settings)

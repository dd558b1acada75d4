"""An optimizer of your own: torch's Adamax, which keeps the largest recent gradient in place of its mean square."""

from dataclasses import dataclass

from training.pretrain.optim.optimizer import Optimizer, for_each_number


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A number that keeps divisions finite."""

    epsilon: float = 1e-8


def make(weights, recipe, settings):
    """Return Adamax for all weights; torch is imported only here, so that recipes are read without it."""
    from torch.optim import Adamax

    betas = (recipe.beta1, recipe.beta2)
    return {"adamax": Adamax(weights.groups(recipe), lr=recipe.learning_rate, betas=betas, eps=settings.epsilon)}


optimizer = Optimizer(make=make, settings=Settings, numbers=for_each_number(2))

"""SGD with momentum, torch's. Its weight decay is added to the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from training.contract.parts.outside import NoSettings
from training.pretrain.optim.optimizer import Optimizer, for_each_number
from training.pretrain.optim.settings import UpdateRecipe

if TYPE_CHECKING:
    import torch

    from training.pretrain.optim.weights import Weights


def make(weights: Weights, recipe: UpdateRecipe, settings: NoSettings) -> Mapping[str, torch.optim.Optimizer]:
    """Return torch's SGD for all weights."""
    from torch.optim import SGD

    return {"sgd": SGD(weights.groups(recipe), lr=recipe.learning_rate, momentum=recipe.momentum)}


OPTIMIZER = Optimizer(make=make, numbers=for_each_number(1))

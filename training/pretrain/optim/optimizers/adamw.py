"""AdamW (arXiv 1711.05101), torch's fused form."""

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
    """Return torch's fused AdamW for all weights."""
    from torch.optim import AdamW

    betas = (recipe.beta1, recipe.beta2)
    return {"adamw": AdamW(weights.groups(recipe), lr=recipe.learning_rate, betas=betas, eps=1e-8, fused=True)}


OPTIMIZER = Optimizer(make=make, numbers=for_each_number(2))

"""Adafactor (arXiv 1804.04235), torch's implementation.

Its learning rate is the smaller of the given rate and 1 / √step, times the root mean square of the weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from training.contract.parts.outside import NoSettings
from training.pretrain.optim.optimizer import Optimizer
from training.pretrain.optim.settings import UpdateRecipe

if TYPE_CHECKING:
    import torch

    from training.pretrain.optim.weights import Weights


def make(weights: Weights, recipe: UpdateRecipe, settings: NoSettings) -> Mapping[str, torch.optim.Optimizer]:
    """Return torch's Adafactor for all weights."""
    from torch.optim import Adafactor

    return {"adafactor": Adafactor(weights.groups(recipe), lr=recipe.learning_rate)}


def numbers(_: str, shape: tuple[int, ...]) -> int:
    """Return how many numbers the optimizer stores for a weight.

    There is one for each row and column of a matrix; other weights have one for each number.
    """
    return prod(shape) if len(shape) == 1 else prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]


OPTIMIZER = Optimizer(make=make, numbers=numbers, why_whole="takes means over rows and columns of whole matrices")

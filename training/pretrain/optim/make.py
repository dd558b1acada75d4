"""Make the optimizers of a recipe for the weights of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from training.pretrain.models.decoder import Decoder
from training.pretrain.optim.averages import Average
from training.pretrain.optim.weights import Weights

if TYPE_CHECKING:
    from training.pretrain.parallel.mesh import Pieces
    from training.pretrain.settings import PretrainRecipe


def make_optimizers(
    model: Decoder, recipe: PretrainRecipe, pieces: Pieces | None = None
) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizers by name, in the order of their steps. If the model is spread, they update `pieces`."""
    weights = Weights(model, pieces)
    made = dict(recipe.optimizer_part.make(weights, recipe.update, recipe.own_settings))
    for optimizer in made.values():
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]  # the peak rate, which the schedule multiplies by its factor
    if recipe.average.kind != "none":
        made["average"] = Average([weights.own(parameter) for parameter in model.parameters()])
    return made

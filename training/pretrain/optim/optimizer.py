"""What the file of an optimizer declares. No torch: a recipe is checked, and its memory counted, without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from training.pretrain.optim.settings import NoSettings, UpdateRecipe

if TYPE_CHECKING:
    import torch

    from training.pretrain.optim.weights import Weights

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """An optimizer as its file declares it.

    `make` returns torch optimizers that step one after another, by the names that their state has in checkpoints.
    `numbers` counts the fp32 numbers of state for the weight of a name and shape. `settings` is the record of
    `pretrain.optimizer_settings`. `why_whole` says why no process may hold a part of a weight; None: it may.
    """

    make: Callable[[Weights, UpdateRecipe, Any], Mapping[str, torch.optim.Optimizer]]
    numbers: Callable[[str, Shape], int]
    settings: type = NoSettings
    why_whole: str | None = None


def for_each_number(count: int) -> Callable[[str, Shape], int]:
    """`Optimizer.numbers` of an optimizer whose state is `count` tensors in the form of each weight."""
    return lambda _, shape: count * prod(shape)

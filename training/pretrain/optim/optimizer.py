"""The record that an optimizer's file declares. Imports no torch, because recipes and memory are checked without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from training.contract.parts.outside import NoSettings
from training.pretrain.optim.settings import UpdateRecipe

if TYPE_CHECKING:
    import torch

    from training.pretrain.optim.weights import Weights

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """The declaration of one optimizer.

    `make` returns torch optimizers, in the order of their steps, by the names of their state in checkpoints. `numbers`
    returns how many fp32 numbers the state has for a weight, given by name and shape. `settings` is the record class of
    the settings of one from outside. `why_whole` says why each process needs whole weights; None: parts are enough.
    """

    make: Callable[[Weights, UpdateRecipe, Any], Mapping[str, torch.optim.Optimizer]]
    numbers: Callable[[str, Shape], int]
    settings: type = NoSettings
    why_whole: str | None = None


def for_each_number(count: int) -> Callable[[str, Shape], int]:
    """Return the function `Optimizer.numbers` for a state with `count` numbers for each number of a weight."""
    return lambda _, shape: count * prod(shape)

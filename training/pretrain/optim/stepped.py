"""Make a torch optimizer from an update function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import torch
from torch import Tensor

States = MutableMapping[Tensor, dict[str, Tensor]]
Update = Callable[[list[Tensor], States, dict[str, Any]], None]


class Stepped(torch.optim.Optimizer):
    """A torch optimizer whose step calls `update(weights, states, group)` for each group of weights.

    `weights` are the group's weights with a gradient. `update` changes the weights and their states in place. States
    are empty before the first step, and all their tensors are saved with checkpoints.
    """

    def __init__(self, groups: Iterable[Any], update: Update, **defaults: Any) -> None:
        super().__init__(groups, {"weight_decay": 0.0, **defaults})
        self._update = update

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every weight that has a gradient, by one call of `update` for each group."""
        for group in self.param_groups:
            self._update([weight for weight in group["params"] if weight.grad is not None], self.state, group)

"""What the passes of a step leave behind if the step is looked at: the loss of each row, and the norms of gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from training.order.loss_mask import IGNORED
from training.pretrain.objectives.rewritten import Batch
from training.pretrain.parallel.world import World


class Noted:
    """Notes of one step.

    `batches` are this process's own, `rows` the numbers of the rows in each, and `sources` has the source of each row
    of the global batch. `gradients` are the norms of each weight's gradient before it is clipped, by name.
    """

    def __init__(self, batches: Sequence[Batch], rows: Sequence[Sequence[int]], sources: Sequence[int]) -> None:
        self.gradients: dict[str, float] = {}
        self._sources = sources
        self._rows = {id(batch): own for batch, own in zip(batches, rows, strict=False)}  # later batches are idle
        self._passes: list[tuple[Batch, Tensor, Tensor]] = []

    def note(self, batch: Batch, nats_N: Tensor, targets_BL: Tensor) -> None:
        """Keep the nats at this process's positions of a batch."""
        self._passes.append((batch, nats_N.detach(), targets_BL))

    def by_source(self, world: World) -> list[tuple[float, float]]:
        """Return the nats and the number of targets of each source in the step. All processes must call this."""
        sums = torch.zeros(max(self._sources) + 1, 2, dtype=torch.float64, device=world.device)
        for batch, nats_N, targets_BL in self._passes:
            if own := self._rows.get(id(batch)):
                each = torch.stack((nats_N.view_as(targets_BL), targets_BL != IGNORED), dim=-1).double().sum(1)
                sums.index_add_(0, torch.tensor([self._sources[row] for row in own], device=world.device), each)
        return [(nats, count) for nats, count in world.sum(sums).tolist()]

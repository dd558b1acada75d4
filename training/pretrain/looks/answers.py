"""The answers of a model in training to exam items, in passes like those over held-out text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from training.pretrain.held_out import passes_over
from training.pretrain.objectives.objective import Batch
from training.pretrain.step import Trainer, idle
from training.pretrain.watch.items import WatchedItem, rows_of, scores

WATCHED_BITS = "watched_bits_per_byte"  # with `_SUITE`: the metric of a suite's right answers


class AskedItems:
    """Items of several suites, as rows for a trainer."""

    def __init__(self, items: Mapping[str, Sequence[WatchedItem]], length: int) -> None:
        self.items = items
        every = [item for some in items.values() for item in some]
        self.rows, self.num_requests = rows_of(every, length), sum(len(item.requests) for item in every)

    @torch.no_grad()
    def answered(self, trainer: Trainer) -> dict[str, float]:
        """Return accuracy and bits per byte of the right answers for each suite. All processes must call this."""
        device = trainer.world.device
        sums = torch.zeros(2, self.num_requests + 1, dtype=torch.float64, device=device)  # the last: of no request
        for numbers in passes_over(trainer, len(self.rows.tokens)):
            batch = Batch(*(array[numbers or [0]] for array in self.rows[:3]))
            scored = trainer.scored(batch if numbers else idle(batch))
            if scored is not None:
                owners = trainer.own_positions(self.rows.requests[numbers or [0]])
                sums.index_add_(1, owners.flatten() % (self.num_requests + 1), scored.double())
        nats, others = trainer.world.sum(sums)[:, :-1].tolist()
        found = dict[str, float]()
        for suite, accuracy, bits in scores(self.items, nats, [not number for number in others]):
            found |= {f"watched_accuracy_{suite}": accuracy, f"{WATCHED_BITS}_{suite}": bits}
        return found

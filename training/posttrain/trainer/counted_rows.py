"""Batches of which each row counts once, however many processes and passes share them.

TRL takes the mean over the rows of each pass, and accelerate fills an incomplete last batch with rows of the first one.
Here copies of a row fill it, and these do not count: a pass is computed over its rows that count, and weighted by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

COUNTS = "counts"  # column of a dataset: whether the row counts; of a batch: how many of its rows do
RUNNING = "num_tokens"  # TRL's only metric that is a running total


def filled(columns: Mapping[str, list[Any]], batch_size: int) -> dict[str, list[Any]]:
    """Return the columns of a dataset, filled up to whole batches by copies of the first row that do not count."""
    (rows,) = {len(values) for values in columns.values()}
    missing = -rows % batch_size
    copied = {name: [*values, *values[:1] * missing] for name, values in columns.items()}
    return {**copied, COUNTS: [True] * rows + [False] * missing}


def counting_rows(trainer_class: type) -> Any:
    """Return a class of TRL's trainers, changed to train on datasets that are `filled`."""

    class CountsRows(trainer_class):
        # A factor of this process's mean over its rows, so that the mean over processes is the one over all rows.
        part_of_mean = 1.0

        def __init__(self, *, args: Any, **given: Any) -> None:
            args.remove_unused_columns = False  # it would remove COUNTS
            super().__init__(args=args, **given)
            self.data_collator = _collating(self.data_collator)
            self._rows = sum(self.train_dataset[COUNTS])

        def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **more: Any) -> Any:
            own = inputs.pop(COUNTS)
            passes, processes = self.args.gradient_accumulation_steps, self.args.world_size
            whole = self.args.per_device_train_batch_size * passes * processes
            counted = min(whole, self._rows - self.state.global_step * whole)
            if counted == whole or not self.model.training:
                return super().compute_loss(model, inputs, *args, **more)
            each = self.accelerator.gather(own.reshape(1))
            in_pass = int(each.sum())
            self.part_of_mean = int(own) * int((each > 0).sum()) / in_pass if in_pass else 1.0
            with (
                _joining_counted(self.accelerator, bool(own) or not in_pass),
                self._weighting(in_pass * passes / counted),
            ):
                loss = super().compute_loss(model, inputs, *args, **more)
            return loss * (int(own) * passes * processes / counted)

        @contextmanager
        def _weighting(self, weight: float) -> Iterator[None]:
            """Multiply the metrics of a pass by its weight, because TRL takes the mean over passes."""
            measured, tokens = self._metrics["train"], self._total_train_tokens
            before = {name: len(values) for name, values in measured.items()}
            yield
            for name, values in measured.items():
                start = before.get(name, 0)
                values[start:] = [value * weight for value in values[start:]]
            self._total_train_tokens = self._total_train_tokens if weight else tokens
            measured[RUNNING] = [self._total_train_tokens]

    return type(trainer_class.__name__, (CountsRows,), {})


def _collating(collate: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return a collator that takes only rows that count, or all rows if none does, and tells how many count."""

    def collated(rows: list[dict[str, Any]]) -> dict[str, Any]:
        counted = [row for row in rows if row[COUNTS]]
        return {**collate(counted or rows), COUNTS: torch.tensor(len(counted))}

    return collated


@contextmanager
def _joining_counted(accelerator: Any, counts: bool) -> Iterator[None]:
    """Let processes with different numbers of rows join their metrics; a process without rows that count adds none."""

    def joined(tensor: Tensor) -> Tensor:
        own = torch.atleast_1d(tensor.detach()).cpu()
        told = [own if counts else own[:0]]
        if dist.is_initialized():
            mine, told = told[0], [own] * dist.get_world_size()
            dist.all_gather_object(told, mine)
        return torch.cat(told).to(tensor.device)

    accelerator.gather = accelerator.gather_for_metrics = joined
    try:
        yield
    finally:
        del accelerator.gather, accelerator.gather_for_metrics

"""A folder of JSON and safetensors that shows a person why a run stopped itself.

`bundle.json` has the numbers of the last steps, every row of the last batch with its loss and its documents, and the
norm of every weight and its gradient; `batch.safetensors` has the rows as the model got them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from training.contract.artifact import write_json
from training.order.batches import Sample, index, sample_ids
from training.pretrain.parallel.world import PARTS_OF_A_ROW
from training.pretrain.step import Trainer
from training.pretrain.tensor_files import save_tensors

BUNDLE_FILE = "bundle.json"
BATCH_FILE = "batch.safetensors"

# Maps (shard, number of the document in the shard) pairs to what the sidecars know about each document.
Describe = Callable[[Sequence[tuple[int, int]]], list[dict[str, Any]]]


def write(folder: Path, trainer: Trainer, why: str, *, describe: Describe) -> None:
    """Write a description of the last step into `folder`, to show why the run stopped.

    All processes must call this; the first one writes. The gradients must still be those of that step. If the step was
    taken, they are the clipped gradients.
    """
    step = trainer.state.recent[-1].step
    samples = index(trainer.plan, step)
    losses = [_row_loss(trainer, sample, step=step, number=number) for number, sample in enumerate(samples)]
    weights = _weights(trainer)
    if not trainer.world.is_first:
        return
    folder.mkdir(parents=True, exist_ok=True)
    batch = trainer.batch(samples, step=step, numbers=range(len(samples)))
    arrays = {name: array for name, array in batch._asdict().items() if array is not None}
    save_tensors({name: torch.from_numpy(array) for name, array in arrays.items()}, folder / BATCH_FILE)
    write_json(
        folder / BUNDLE_FILE,
        {
            "why": why,
            "step": step,
            "plan_digest": trainer.plan.digest,
            "processes": trainer.world.size,
            "passes_per_step": len(trainer.passes[trainer.plan.phase_at(step).number]),
            "torch": torch.__version__,
            "recent_steps": [
                {
                    "step": one.step,
                    "loss": _number(one.loss),
                    "gradient_norm": _number(one.gradient_norm),
                    "learning_rate": one.learning_rate,
                    "is_skipped": one.is_skipped,
                }
                for one in trainer.state.recent
            ],
            "rows": _rows(trainer, samples, losses, describe=describe),
            "weights": weights,
        },
    )


@torch.no_grad()
def _row_loss(trainer: Trainer, sample: Sample, *, step: int, number: int) -> float:
    """Return the loss in nats per target of one row of a step's batch.

    All processes of a spread model must call this.
    """
    batch = trainer.batch([sample], step=step, numbers=[number])
    nats = torch.tensor(trainer.nats(batch), dtype=torch.float64, device=trainer.world.device)
    return trainer.world.sum(nats, *PARTS_OF_A_ROW).item() / max(1, batch.trained_tokens)


def _weights(trainer: Trainer) -> list[dict[str, Any]]:
    """Return the norm of every weight and of its gradient, computed over all processes that hold parts of them."""
    return [
        {"name": name, "norm": _number(norm), "gradient_norm": _number(gradient)}
        for name, (norm, gradient) in trainer.pieces.norms().items()
    ]


def _rows(trainer: Trainer, samples: list[Sample], losses: list[float], *, describe: Describe) -> list[dict[str, Any]]:
    """Describe each row of the global batch: its sample, its loss in nats per target, and its documents."""
    rows, step = [], trainer.state.recent[-1].step
    for number, (sample, (source, place)) in enumerate(zip(samples, sample_ids(trainer.plan, step), strict=True)):
        known = describe([(segment.shard, segment.document) for segment in sample])
        documents = [
            {**one, "start": segment.start, "tokens": segment.length}
            for one, segment in zip(known, sample, strict=True)
        ]
        name = trainer.plan.record.sources[source].name
        rows.append(
            {"row": number, "source": name, "sample": place, "loss": _number(losses[number]), "documents": documents}
        )
    return rows


def _number(value: float) -> float | str:
    """Return a number, or its name as text if it is not finite, because JSON has no such numbers."""
    return value if math.isfinite(value) else str(value)

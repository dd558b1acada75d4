"""What a model makes of the held-out documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from training.order.batches import Sample, held_out_bytes, held_out_samples
from training.pretrain.objectives import Batch
from training.pretrain.parallel import PARTS_OF_A_ROW, ROWS
from training.pretrain.step import Trainer, idle

EVALUATED_ROWS = 16  # at once
HELD_OUT_BITS = "held_out_bits_per_byte"  # the metric; with a source's name behind it, that source's


def held_out(trainer: Trainer) -> dict[str, float]:
    """What is measured on held-out documents, by the name it is logged under."""
    bits = {f"{HELD_OUT_BITS}_{name}": value for name, value in bits_per_byte(trainer).items()}
    return bits | {f"held_out_loss_{name}": value for name, value in losses(trainer).items()}


@torch.no_grad()
def bits_per_byte(trainer: Trainer) -> dict[str, float]:
    """Bits per UTF-8 byte of each source's held-out documents, their end-of-text included.

    The first token of a document has no context and is counted at log2(vocabulary) bits, so this is the length of a
    real code. Contexts are cut at the row's length. Sources without held-out documents are left out; so are all
    when the objective gives no probability to a text.
    """
    if trainer.objective is not None and not trainer.objective.recipe.continues_text:
        return {}
    result = {}
    for number, source in enumerate(trainer.plan.record.sources):
        if source.held_out_documents:
            total, _ = _nats(trainer, number, lambda samples, _: Batch(*trainer.rows(samples)))
            first_tokens = source.held_out_documents * math.log(trainer.model.config.vocab_size)
            result[source.name] = (total + first_tokens) / math.log(2) / max(1, held_out_bytes(trainer.plan, number))
    return result


@torch.no_grad()
def losses(trainer: Trainer) -> dict[str, float]:
    """Nats a target of each source's held-out documents under an objective that gives no probability to a text.

    Its draws are the same at every step. Empty for the other objectives.
    """
    if trainer.objective is None or trainer.objective.recipe.continues_text:
        return {}
    result = {}
    for number, source in enumerate(trainer.plan.record.sources):
        total, count = _nats(trainer, number, lambda samples, numbers: trainer.batch(samples, step=-1, numbers=numbers))
        if count:
            result[source.name] = total / count
    return result


def _nats(
    trainer: Trainer, source: int, batch_of: Callable[[list[Sample], Sequence[int]], Batch]
) -> tuple[float, float]:
    """Nats of all targets in a source's held-out rows, and how many there are, over all processes."""
    samples = held_out_samples(trainer.plan, source)
    own = range(trainer.world.place(*ROWS), len(samples), trainer.world.length(*ROWS))
    sums = torch.zeros(2, dtype=torch.float64)
    for at in range(0, trainer.common(len(own)), EVALUATED_ROWS):
        numbers = own[at : at + EVALUATED_ROWS]
        # One that has no row left goes along with those that have, and counts nothing.
        batch = batch_of([samples[number] for number in numbers or [0]], numbers or [0])
        batch = batch if numbers else idle(batch)
        sums += torch.tensor([trainer.nats(batch), float(batch.trained_tokens)], dtype=torch.float64)
    sums[1] /= trainer.world.length(*PARTS_OF_A_ROW)  # nats are those of the own positions, and of the last layer's
    total, count = trainer.world.sum(sums.to(trainer.world.device)).tolist()
    return total, count

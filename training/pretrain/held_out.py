"""Bits per byte and losses of a model on the held-out documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from training.order.batches import Plan, Sample, held_out_bytes, held_out_samples
from training.pretrain.models.account import evaluated_rows
from training.pretrain.objectives.objective import Batch
from training.pretrain.parallel.mesh import reshard
from training.pretrain.parallel.world import PARTS_OF_A_ROW, ROWS
from training.pretrain.step import Trainer, idle

HELD_OUT_BITS = "held_out_bits_per_byte"  # the metric's name; with `_SOURCE` appended, the metric of one source
HELD_OUT_TOKENS = "held_out_tokens"  # the metric of how many tokens these bits were measured on


def held_out(trainer: Trainer) -> dict[str, float]:
    """Return all metrics on held-out documents, by the names under which they are logged."""
    bits = {f"{HELD_OUT_BITS}_{name}": value for name, value in bits_per_byte(trainer).items()}
    found = bits | {f"held_out_loss_{name}": value for name, value in losses(trainer).items()}
    reshard(trainer.model)
    return found


def overall_bits(plan: Plan, found: dict[str, float]) -> float:
    """Return the bits per byte over all sources' held-out bytes together, from the metrics of the sources."""
    sizes = {
        f"{HELD_OUT_BITS}_{source.name}": held_out_bytes(plan, number)
        for number, source in enumerate(plan.record.sources)
    }
    bits = {name: value for name, value in found.items() if name in sizes}
    return sum(value * sizes[name] for name, value in bits.items()) / sum(sizes[name] for name in bits)


@torch.no_grad()
def bits_per_byte(trainer: Trainer) -> dict[str, float]:
    """Return, for each source, the model's bits per UTF-8 byte of the held-out documents read at each evaluation.

    End-of-text tokens are included. The first token of a document has no context and is counted at log2(vocabulary)
    bits, so the result is the length of a complete code. Contexts are cut at the row's length. Sources without held-out
    documents are left out. The result is empty if the objective assigns no probability to a text.
    """
    if trainer.objective is not None and not trainer.objective.recipe.continues_text:
        return {}
    result = {}
    for number, source in enumerate(trainer.plan.record.sources):
        if source.look_documents:
            total, _ = _nats(trainer, number, lambda samples, _: Batch(*trainer.rows(samples)))
            first_tokens = source.look_documents * math.log(trainer.model.config.vocab_size)
            result[source.name] = (total + first_tokens) / math.log(2) / max(1, held_out_bytes(trainer.plan, number))
    return result


@torch.no_grad()
def losses(trainer: Trainer) -> dict[str, float]:
    """Return the loss of each source's held-out documents, for objectives that assign no probability to a text.

    It is in nats per target. The objective's random choices are the same at every step. The result is empty for other
    objectives.
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
    """Return the summed loss in nats and the number of targets of a source's held-out rows, over all processes."""
    samples = held_out_samples(trainer.plan, source)
    sums = torch.zeros(2, dtype=torch.float64)
    for numbers in passes_over(trainer, len(samples)):
        batch = batch_of([samples[number] for number in numbers or [0]], numbers or [0])
        batch = batch if numbers else idle(batch)
        sums += torch.tensor([trainer.nats(batch), float(batch.trained_tokens)], dtype=torch.float64)
    sums[1] /= trainer.world.length(*PARTS_OF_A_ROW)  # each process counted the targets of whole rows
    total, count = trainer.world.sum(sums.to(trainer.world.device)).tolist()
    return total, count


def passes_over(trainer: Trainer, num_rows: int) -> Iterator[range]:
    """Yield the numbers of the rows that this process reads in each of its passes over `num_rows` rows.

    A process without rows left gets empty ranges: it runs the pass together with the others, on rows that do not count.
    """
    own = range(trainer.world.place(*ROWS), num_rows, trainer.world.length(*ROWS))
    rows = evaluated_rows(trainer.plan.record.sequence_length)
    most = -(-num_rows // trainer.world.length(*ROWS)) if trainer.world.is_split else len(own)
    yield from (own[at : at + rows] for at in range(0, most, rows))

"""Bits per byte and losses of a model on the held-out documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from training.order.batches import BYTES, DOCUMENT, SHARD, Plan, Sample, held_out_bytes, held_out_samples
from training.pretrain.models.account import evaluated_rows
from training.pretrain.objectives.objective import Batch
from training.pretrain.parallel.mesh import reshard
from training.pretrain.parallel.world import PARTS_OF_A_ROW, ROWS
from training.pretrain.step import Trainer, idle

# The metric's name; with `_SOURCE` appended, that of one source, and with `BY_LANGUAGE` and a language, its own.
HELD_OUT_BITS = "held_out_bits_per_byte"
BY_LANGUAGE = "_language:"  # no label of a source has a colon
HELD_OUT_TOKENS = "held_out_tokens"  # the metric of how many tokens these bits were measured on


def held_out(trainer: Trainer, languages: Sequence[str] | None = None) -> dict[str, float]:
    """Return all metrics on held-out documents, by the names under which they are logged.

    `languages` are those of the documents in the plan's array `held_out`; with them, bits are also given by language.
    """
    by_language = None if languages is None else _ByLanguage(trainer, languages)
    bits = {f"{HELD_OUT_BITS}_{name}": value for name, value in bits_per_byte(trainer, by_language).items()}
    found = bits | {f"held_out_loss_{name}": value for name, value in losses(trainer).items()}
    if by_language is not None and bits:
        found |= {f"{HELD_OUT_BITS}{BY_LANGUAGE}{name}": value for name, value in by_language.bits_per_byte()}
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


class _ByLanguage:
    """Adds up the nats of held-out documents by language, while these are read source by source."""

    def __init__(self, trainer: Trainer, languages: Sequence[str]) -> None:
        self.trainer, places = trainer, trainer.plan.held_out
        self.names, numbers = np.unique(np.array(languages), return_inverse=True)
        self.documents, self.bytes = (np.bincount(numbers, weights=one) for one in (None, places[:, BYTES]))
        keys = map(tuple, places[:, [SHARD, DOCUMENT]].tolist())
        self._number_of: dict[tuple[int, int], int] = dict(zip(keys, numbers.tolist(), strict=True))
        # The last sum is that of positions without a document.
        self._sums = torch.zeros(len(self.names) + 1, dtype=torch.float64, device=trainer.world.device)

    def add(self, samples: Sequence[Sample], nats_N: torch.Tensor) -> None:
        """Add the nats at this process's positions of some rows."""
        owners = np.full((len(samples), self.trainer.plan.record.sequence_length), len(self.names))
        for row, sample in enumerate(samples):
            numbers = [self._number_of[segment.shard, segment.document] for segment in sample]
            given = np.repeat(numbers, [segment.length for segment in sample])
            owners[row, : len(given)] = given
        self._sums.index_add_(0, self.trainer.own_positions(owners).flatten(), nats_N.double())

    def bits_per_byte(self) -> Iterator[tuple[str, float]]:
        """Yield each language with its bits per byte, counted as in `bits_per_byte`. All processes must call this."""
        nats = self.trainer.world.sum(self._sums)[:-1].cpu().numpy()
        nats += self.documents * math.log(self.trainer.model.config.vocab_size)
        yield from zip(self.names.tolist(), (nats / math.log(2) / np.maximum(1, self.bytes)).tolist(), strict=True)


@torch.no_grad()
def bits_per_byte(trainer: Trainer, by_language: _ByLanguage | None = None) -> dict[str, float]:
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
            total, _ = _nats(trainer, number, lambda samples, _: Batch(*trainer.rows(samples)), by_language)
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
    trainer: Trainer,
    source: int,
    batch_of: Callable[[list[Sample], Sequence[int]], Batch],
    by_language: _ByLanguage | None = None,
) -> tuple[float, float]:
    """Return the summed loss in nats and the number of targets of a source's held-out rows, over all processes."""
    samples = held_out_samples(trainer.plan, source)
    sums = torch.zeros(2, dtype=torch.float64)
    for numbers in passes_over(trainer, len(samples)):
        read = [samples[number] for number in numbers or [0]]
        batch = batch_of(read, numbers or [0])
        batch = batch if numbers else idle(batch)
        each = trainer.each_nats(batch)
        nats = 0.0 if each is None else each.double().sum().item()
        sums += torch.tensor([nats, float(batch.trained_tokens)], dtype=torch.float64)
        if each is not None and by_language is not None:
            by_language.add(read, each)
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

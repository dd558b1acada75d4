"""Training plans over tokens in memory, for benchmarks of the trainer: without other stages, files or a tokenizer.

It needs only numpy and what the trainer itself needs, so that it runs on a bare GPU node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from training.order.batches import Plan, PlannedSource, PlanRecord, Shards
from training.order.documents import HELD_OUT, Documents

EOS = 0


def plan_over(
    tokens: np.ndarray,
    documents: Sequence[tuple[int, int]],
    *,
    steps: int,
    rows: int,
    length: int,
    held_out: Sequence[tuple[int, int]] = (),
    seed: int = 0,
) -> tuple[Plan, Shards]:
    """Return a plan of `steps` batches of `rows` × `length` tokens, and its token array.

    `documents` are (start, number of tokens) in `tokens`. They are read for as many epochs as the steps need, each in a
    new order. One token counts as one byte.
    """
    every = np.array([*documents, *held_out], dtype=np.int64).reshape(-1, 2)
    starts, sizes = every[:, 0], every[:, 1]
    positions = np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64)
    positions[len(documents) : -1] |= HELD_OUT
    numbers = np.arange(len(every))
    listed = Documents(positions, np.stack([numbers, np.zeros_like(numbers), numbers, starts]))
    columns = (np.zeros_like(numbers), numbers, starts, sizes, sizes)
    looked_at = np.stack(columns, axis=1)[len(documents) :]
    held_tokens = int(sizes[len(documents) :].sum())
    source = PlannedSource(
        name="made",
        weight=1.0,
        samples=steps * rows,
        first_document=0,
        documents=len(documents),
        tokens=int(sizes.sum()) - held_tokens,
        held_out_documents=len(held_out),
        held_out_tokens=held_tokens,
        look_documents=len(held_out),
        look_tokens=held_tokens,
    )
    record = PlanRecord(
        seed=seed,
        sequence_length=length,
        global_batch_tokens=rows * length,
        steps=steps,
        tokenizer_digest="",
        eos_id=EOS,
        dtype=str(tokens.dtype),
        shards=(),
        sources=(source,),
    )
    digest = hashlib.sha256(tokens.tobytes() + positions.tobytes() + starts.tobytes() + repr(record).encode())
    return Plan(record, listed, looked_at, digest=digest.hexdigest()), Shards([tokens].__getitem__)


def made_tokens(count: int, *, vocabulary: int, seed: int = 0) -> np.ndarray:
    """Return generated tokens from which a model can learn: half follow from the token before, the others are random.

    The result is uint32 `[count]`. The random tokens are drawn by Zipf's law. Token t is followed by (t + 7919) mod
    vocabulary, so the best possible loss is about half the entropy of the draws below the loss of token frequencies
    alone.
    """
    chance = np.random.Generator(np.random.Philox(seed))
    weights = 1.0 / np.arange(1, vocabulary + 1)
    drawn = np.searchsorted(np.cumsum(weights / weights.sum()), chance.random(count)).clip(max=vocabulary - 1)
    follows = chance.random(count) < 0.5
    follows[0] = False
    # How many steps each position is behind the last free draw before it.
    place = np.arange(count)
    free = np.maximum.accumulate(np.where(follows, 0, place))
    return ((drawn[free] + (place - free) * 7919) % vocabulary).astype(np.uint32)


def made_plan(*, vocabulary: int, steps: int, rows: int, length: int, seed: int = 0) -> tuple[Plan, Shards]:
    """Return a plan over generated tokens in documents of exactly one row.

    So attention sees whole rows, as the formula for FLOPs assumes. At most 64 different batches are generated; longer
    runs repeat them.
    """
    count = min(steps, 64) * rows
    tokens = made_tokens(count * length, vocabulary=vocabulary, seed=seed)
    documents = [(number * length, length) for number in range(count)]
    return plan_over(tokens, documents, steps=steps, rows=rows, length=length, seed=seed)


BYTES_VOCABULARY = 257


def plan_over_texts(
    texts: Sequence[str], *, steps: int, rows: int, length: int, held_out_every: int = 10, seed: int = 0
) -> tuple[Plan, Shards]:
    """Return a plan over the UTF-8 bytes of texts: byte b is token b + 1, and token 0 ends a text.

    Every `held_out_every`-th text is held out.
    """
    parts = [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16) + 1 for text in texts]
    sizes = [len(part) + 1 for part in parts]
    starts = np.cumsum([0, *sizes])
    tokens = np.zeros(starts[-1], dtype=np.uint16)
    for start, part in zip(starts, parts, strict=False):
        tokens[start : start + len(part)] = part
    documents = [(int(start), size) for start, size in zip(starts, sizes, strict=False)]
    trained = [document for number, document in enumerate(documents) if number % held_out_every]
    return plan_over(
        tokens, trained, steps=steps, rows=rows, length=length, held_out=documents[::held_out_every], seed=seed
    )

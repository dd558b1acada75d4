"""Needles in a haystack: a sentence hidden in held-out text, and a question about it at the end.

As in the passkey test of arXiv 2305.16300, for a model that only continues text. It measures which of a few values the
model finds most likely after the question, and whether the likeliest continuation is the right value. Values are drawn
from 90,000 numbers, so a model can know the right one only by looking back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from training.contract.job import DataError
from training.order.batches import Plan, Shards, held_out_samples
from training.pretrain.models.attention import one_document
from training.pretrain.models.decoder import Decoder
from training.pretrain.models.layers import softcapped

PLACES = ("Oslo", "Lima", "Cairo", "Hanoi", "Quito", "Riga", "Accra", "Perth", "Turin", "Osaka", "Basel", "Dakar")
VALUES = range(10_000, 100_000)
SCORED_POSITIONS = 1 << 14  # in one pass

Encode = Callable[[str], list[int]]
# Scores each value as the continuation of a context: its log-probability, and whether it is the likeliest continuation.
Score = Callable[[list[int], list[list[int]]], list[tuple[float, bool]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Needle:
    """A hidden sentence and the question about it, in tokens.

    The question at the end of `context` has the right answer `values[answer]`.
    """

    depth: float
    context: list[int]
    values: list[list[int]]
    answer: int


def needles(
    hay: Sequence[int], encode: Encode, *, length: int, depths: Sequence[float], count: int, choices: int, seed: int
) -> Iterator[Needle]:
    """Yield `count` needles at each depth (0 the beginning of the text, 1 its end), each in its own stretch of `hay`.

    Context and value together fill `length` positions. Raise DataError if that is too short for the sentences.
    """
    for number in range(count):
        for depth in depths:
            yield _needle(hay, encode, length, depth, choices, random.Random(f"needle/{seed}/{number}/{depth}"))


def _needle(hay: Sequence[int], encode: Encode, length: int, depth: float, choices: int, draw: random.Random) -> Needle:
    place = draw.choice(PLACES)
    values = [encode(f" {value}") for value in draw.sample(VALUES, choices)]
    answer = draw.randrange(choices)
    question = encode(f"\nThe secret number of {place} is")
    hidden = [*question, *values[answer], *encode(".\n")]
    room = length - len(hidden) - len(question) - max(map(len, values))
    if room < 0:
        raise DataError(f"long_context: a row of {length} positions has no room for a hidden sentence and a question")
    start, at = draw.randrange(len(hay)), round(depth * room)
    text = [hay[(start + i) % len(hay)] for i in range(room)]
    return Needle(depth=depth, context=[*text[:at], *hidden, *text[at:], *question], values=values, answer=answer)


def haystack_sources(plan: Plan) -> list[int]:
    """Return the numbers of the sources with held-out documents. Raise DataError if there is none."""
    found = [number for number, source in enumerate(plan.record.sources) if source.look_documents]
    if not found:
        raise DataError("long_context: no held-out text to hide needles in; set mixture.held_out_fraction above 0")
    return found


def haystack(plan: Plan, shards: Shards, *, tokens: int) -> list[int]:
    """Return about `tokens` tokens of held-out documents, joined without end-of-text tokens.

    The result is shorter if the held-out documents have fewer tokens.
    """
    found: list[int] = []
    for source in haystack_sources(plan):
        for sample in held_out_samples(plan, source):
            row, _, documents = shards.rows([sample], length=plan.record.sequence_length)
            found += row[(documents >= 0) & (row != plan.record.eos_id)].tolist()
            if len(found) >= tokens:
                return found
    return found


def found_needles(items: Sequence[Needle], score: Score) -> list[dict[str, Any]]:
    """For each depth, return the share of needles whose value is the likeliest choice, or likeliest continuation."""
    hits: dict[float, list[tuple[bool, bool]]] = {}
    for item in items:
        scored = score(item.context, item.values)
        best = max(range(len(scored)), key=lambda i: scored[i][0])
        hits.setdefault(item.depth, []).append((best == item.answer, scored[item.answer][1]))
    return [
        {"depth": depth, "needles": len(own), "found": fmean(hit for hit, _ in own), "said": fmean(s for _, s in own)}
        for depth, own in hits.items()
    ]


def scorer(model: Decoder, dtype: torch.dtype) -> Score:
    """Return a function that scores values after a context, each pair as one document."""

    @torch.no_grad()
    def score(context: list[int], values: list[list[int]]) -> list[tuple[float, bool]]:
        rows = max(1, SCORED_POSITIONS // len(context))
        return [
            result
            for start in range(0, len(values), rows)
            for result in _scored(model, dtype, context, values[start : start + rows])
        ]

    return score


def _scored(
    model: Decoder, dtype: torch.dtype, context: list[int], values: list[list[int]]
) -> list[tuple[float, bool]]:
    longest = max(map(len, values))
    rows = [[*context, *value, *[0] * (longest - len(value))] for value in values]
    tokens = torch.tensor(rows, device=model.embedding.device)
    states = model(tokens, one_document(tokens, dtype=dtype, window=model.config.window), dtype=dtype).states
    asked = states[:, len(context) - 1 : -1] @ model.head_weight.to(dtype).t()
    logits = softcapped(asked.float(), model.config.logit_softcap).log_softmax(-1)
    return [_of_value(row, torch.tensor(value, device=row.device)) for row, value in zip(logits, values, strict=True)]


def _of_value(logits: Tensor, value: Tensor) -> tuple[float, bool]:
    own = logits[: len(value)]
    return own.gather(1, value[:, None]).sum().item(), bool((own.argmax(-1) == value).all())

"""What a base model fills in of held-out text, in the way in which it was trained to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from evaluation.decision.intervals import ratio_interval, share_interval
from evaluation.exams.objectives.decoder import OwnModel, TextWindow, rows_of
from training.order.loss_mask import IGNORED
from training.pretrain.objectives.objective import Objective, runs
from training.pretrain.objectives.rewritten import Batch
from training.pretrain.objectives.settings import ObjectiveRecipe

Figure = dict[str, Any]  # `value` and its 95 % interval, which is None for one text


@dataclass
class Sums:
    """Sums over the targets of one text; `bytes` are those that are predicted after a prefix."""

    nats: float = 0.0
    targets: int = 0
    right: int = 0
    spans: int = 0
    exact: int = 0
    bytes: int = 0


@dataclass
class Filled:
    """The sums of all texts."""

    sums: list[Sums] = field(default_factory=list)

    def ratio(self, over: str, under: str, worth: Callable[[float], float] = float) -> Figure:
        """Return `worth` of the ratio of two sums over all texts, with its interval over texts."""
        some = [one for one in self.sums if getattr(one, under)]
        above, below = ([float(getattr(one, name)) for one in some] for name in (over, under))
        interval = [worth(end) for end in ratio_interval(above, below)] if len(some) > 1 else None
        return {"value": worth(sum(above) / sum(below)), "interval": interval}

    def share(self, over: str, under: str) -> Figure:
        """Return the share of right ones. Its interval is the wider one of that over texts and Wilson's."""
        found = self.ratio(over, under)
        low, high = share_interval(found["value"], sum(getattr(one, under) for one in self.sums))
        own = found["interval"] or (low, high)
        return {"value": found["value"], "interval": [max(0.0, min(low, own[0])), min(1.0, max(high, own[1]))]}


def filled(model: OwnModel, recipe: ObjectiveRecipe, texts: Sequence[str]) -> dict[str, Any]:
    """Return the figures of a model on `texts`, and the numbers of texts and targets; empty if nothing is predicted.

    What is given and what is predicted of a text is drawn as in training, with a fixed seed; `masked` hides every
    token that was chosen, where training also swaps some and leaves some. The likeliest token counts as the answer.
    """
    found = summed(model, recipe, texts)
    targets = sum(one.targets for one in found.sums)
    if not targets:
        return {}
    return {"texts": len(texts), "targets": targets, "figures": _figures(recipe.kind, found)}


def summed(
    model: OwnModel,
    recipe: ObjectiveRecipe,
    texts: Sequence[str],
    read: Callable[[Batch, Batch], Batch] = lambda rows, batch: batch,
) -> Filled:
    """Return the sums over what an objective asks for of texts. `read` may give the model another batch to read.

    It gets the causal rows, and the same rows as the objective asks for them.
    """
    objective, windows = model.objective(recipe), model.windows(texts)
    found = Filled([Sums() for _ in texts])
    for numbers, rows in rows_of(windows):
        batch = read(rows, asked(objective, rows, numbers))
        nats, right = model.scored(batch)
        for place, number in enumerate(numbers):
            _add(
                found.sums[windows[number].text], windows[number], batch.at(place), nats[place], right[place], objective
            )
    return found


def asked(objective: Objective, rows: Batch, numbers: Sequence[int]) -> Batch:
    """Return causal rows rewritten for the objective, with every chosen token masked if it masks."""
    batch = objective.batch((rows.tokens, rows.targets, rows.documents), step=-1, numbers=numbers)
    if objective.recipe.kind == "masked":
        batch.tokens[batch.targets != IGNORED] = objective.mask_id
    return batch


def _add(own: Sums, window: TextWindow, row: Batch, nats: np.ndarray, right: np.ndarray, objective: Objective) -> None:
    wanted = np.flatnonzero(row.targets != IGNORED)
    own.nats += float(nats.sum())
    own.targets += len(wanted)
    own.right += int(right.sum())
    if objective.recipe.kind == "prefix":
        own.bytes += sum(window.bytes[place + 1] for place in wanted)
    elif objective.recipe.kind == "span_corruption":
        for start, stop in runs(row.documents):
            spans = exact_spans(row.targets[start:stop], right[start:stop], objective.sentinels)
            own.spans, own.exact = own.spans + len(spans), own.exact + sum(spans)


def exact_spans(targets: np.ndarray, right: np.ndarray, sentinels: Sequence[int]) -> list[bool]:
    """Return for each span whether the likeliest tokens are all of it and the sentinel that ends it.

    Greedy filling of a span, after the spans before it as they were, gives just this span then.
    """
    places = np.flatnonzero(np.isin(targets, sentinels))
    return [bool(right[start + 1 : stop + 1].all()) for start, stop in pairwise(places)]


def _figures(kind: str, found: Filled) -> dict[str, Figure]:
    """Return the figures of an objective by name."""
    accuracy = {"filling_accuracy": found.share("right", "targets")}
    if kind == "masked":
        return {"pseudo_perplexity": found.ratio("nats", "targets", math.exp), **accuracy}
    if kind == "prefix":
        return {"continuation_bits_per_byte": found.ratio("nats", "bytes", lambda nats: nats / math.log(2)), **accuracy}
    loss = {"loss": found.ratio("nats", "targets")}
    if kind == "span_corruption" and any(one.spans for one in found.sums):
        return {**loss, "exact_spans": found.share("exact", "spans"), **accuracy}
    return {**loss, **accuracy}

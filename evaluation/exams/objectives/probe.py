"""A probe: how well a logistic regression on a model's states tells the labels of texts.

The model stays as it is, so the score says what its states hold of a text. The same regression on how often a text has
each token says what counting gives.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evaluation.decision.intervals import share_interval
from evaluation.exams.objectives.decoder import OwnModel, rows_of
from training.contract.job import DataError
from training.data.sources import read_rows
from training.pretrain.objectives.rewritten import NO_DOCUMENT

SEED = 0  # of the split
LEAST = 8  # texts of a label, half of which the probe learns from
ITERATIONS = 200  # of L-BFGS at most


def read_labelled(uri: str, settings: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the texts and the labels of the rows that `evaluation.probe` names.

    Raise DataError if a row lacks one of them.
    """
    texts, labels = list[str](), list[str]()
    for number, row in enumerate(read_rows(uri, settings=settings)):
        if not isinstance(row.get("text"), str) or not row["text"].strip() or row.get("label") is None:
            raise DataError(f"{uri}: row {number} needs `text` and `label`; it has {', '.join(sorted(row))}")
        texts.append(row["text"])
        labels.append(str(row["label"]))
    return texts, labels


def probed(model: OwnModel, texts: Sequence[str], labels: Sequence[str], *, is_causal: bool) -> dict[str, Any]:
    """Return the shares of texts of which the states and, as a control, the counts of tokens tell the label.

    Half of the texts of each label, drawn with a fixed seed, are learned from, and the others are asked. `chance` is
    the share of the most frequent label. Raise DataError if there are not two labels with enough texts.
    """
    learned, asked = split(labels)
    control, own = counts(model, texts), mean_states(model, texts, is_causal=is_causal)
    numbers = {name: number for number, name in enumerate(sorted(set(labels)))}
    wanted = torch.tensor([numbers[label] for label in labels])
    scores = {}
    for name, features in (("accuracy", own), ("token_counts", control)):
        right = predicted(features[learned], wanted[learned], features[asked]) == wanted[asked]
        share = right.double().mean().item()
        scores[name] = {"value": share, "interval": list(share_interval(share, len(asked)))}
    often = Counter(wanted[asked].tolist()).most_common(1)[0][1]
    return {"texts": len(texts), "asked": len(asked), "labels": len(numbers), "chance": often / len(asked), **scores}


def split(labels: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the numbers of the texts to learn from and to ask: of each label half, drawn with a fixed seed."""
    sizes = Counter(labels)
    small = [f"{name!r} has {size}" for name, size in sorted(sizes.items()) if size < LEAST]
    if len(sizes) < 2 or small:
        why = f"{small[0]} texts, and each label needs {LEAST}" if small else f"{len(sizes)} label, and two are needed"
        raise DataError(f"evaluation.probe: {why}; take another file, or fewer labels")
    learned, asked = list[int](), list[int]()
    for name in sorted(sizes):
        own = [number for number, label in enumerate(labels) if label == name]
        random.Random(f"{SEED}/{name}").shuffle(own)
        learned, asked = learned + own[: len(own) // 2], asked + own[len(own) // 2 :]
    return sorted(learned), sorted(asked)


def mean_states(model: OwnModel, texts: Sequence[str], *, is_causal: bool) -> Tensor:
    """Return the mean of the last states over the tokens of each text, in fp64 `[texts, D]`.

    Unless `is_causal`, every token of a text sees all of it. A text that is longer than the model's context is read in
    windows.
    """
    windows = model.windows(texts)
    sums = torch.zeros(len(texts), model.model.config.width, dtype=torch.float64)
    sizes = torch.zeros(len(texts), 1, dtype=torch.float64)
    for numbers, rows in rows_of(windows):
        has_text = rows.documents != NO_DOCUMENT
        states = model.states(rows if is_causal else rows._replace(prefix=has_text)).double().cpu()
        for place, number in enumerate(numbers):
            own = states[place, torch.from_numpy(has_text[place])]
            sums[windows[number].text] += own.sum(0)
            sizes[windows[number].text] += len(own)
    return sums / sizes


def counts(model: OwnModel, texts: Sequence[str]) -> Tensor:
    """Return the share that each token has of the tokens of each text, in fp64 `[texts, V]`, without unused tokens."""
    found = np.zeros((len(texts), model.model.config.vocab_size))
    for window in model.windows(texts):
        np.add.at(found[window.text], window.tokens, 1)
    found = found[:, found.any(0)]
    return torch.from_numpy(found / found.sum(1, keepdims=True))


def predicted(given: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """Return the labels of `asked` by a multinomial logistic regression on `given`.

    Features are scaled to mean 0 and deviation 1 over `given`. The penalty is half the squared weights, as in
    scikit-learn's LogisticRegression with C = 1.
    """
    mean, deviation = given.mean(0), given.std(0, correction=0)
    deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    given, asked = (given - mean) / deviation, (asked - mean) / deviation
    size = int(labels.max()) + 1
    weights = torch.zeros(given.shape[1], size, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([weights, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        nats = torch.nn.functional.cross_entropy(given @ weights + bias, labels, reduction="sum")
        penalized = nats + weights.square().sum() / 2
        penalized.backward()
        return penalized

    solver.step(loss)
    with torch.no_grad():
        return (asked @ weights + bias).argmax(1)

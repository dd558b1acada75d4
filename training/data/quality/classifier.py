"""A linear classifier on hashed word 1- and 2-grams that scores how similar a text is to the reference, from 0 to 1.

GPT-3, LLaMA and DCLM (arXiv 2406.11794) select pages with this kind of classifier. It is trained here by accelerated
gradient descent on the whole set (Nesterov 1983), which needs no random numbers and always adds in the same order. A
fastText model (arXiv 1607.01759) can be used instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from safetensors.numpy import load_file, save

from training.contract.artifact import written
from training.contract.job import DataError
from training.data.quality.forms import FormColumn, shared_forms
from training.data.words.elementary import exp, total_of
from training.data.words.native import native

MAX_WORDS = 1000  # only a text's first words are used: enough to judge it, and long texts take no more time than a page
PENALTY = 1e-5  # L2, per mean loss; on the human labels of DCLM 1e-4 and 1e-6 ranked the same within 0.01 AUC
STEPS = 300
MIX = np.uint64(0x9E3779B97F4A7C15)
_HASHES = FormColumn(xxhash.xxh64_intdigest, np.uint64)


def features(text: str, *, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return bucket numbers (int64, ascending, unique) and values (float64, Euclidean length 1) of a text's n-grams.

    The n-grams are the text's words and pairs of words. A value grows with the square root of the n-gram's count. A
    text without words has no features.
    """
    forms = shared_forms()
    words = forms.of(text).numbers[:MAX_WORDS]
    if not len(words):
        return np.zeros(0, np.int64), np.zeros(0)
    single = _HASHES.of(forms)[words]
    pairs = (single[:-1] * MIX) ^ (single[1:] >> np.uint64(1))
    pairs = (pairs ^ (pairs >> np.uint64(29))) * MIX
    numbers = np.concatenate([single, pairs >> np.uint64(7)]) % np.uint64(buckets)
    found, counts = np.unique(numbers.astype(np.int64), return_counts=True)
    return found, np.sqrt(counts / counts.sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearClassifier:
    """A linear classifier over hashed n-grams: `weights` float32 [buckets], and a bias."""

    weights: np.ndarray
    bias: float

    def score(self, text: str) -> float:
        """Probability in [0, 1] that the text is from the reference, if both classes were equally frequent."""
        numbers, values = features(text, buckets=len(self.weights))
        (product,) = _products(self.weights, numbers, values, np.array([len(numbers)]))
        return float(_sigmoid(product + self.bias))

    def save(self, folder: Path, name: str) -> str:
        """Write `<name>.safetensors`; return this file name."""
        with written(folder / f"{name}.safetensors") as stream:
            stream.write(save({"weights": self.weights, "bias": np.array([self.bias])}))
        return f"{name}.safetensors"

    @staticmethod
    def load(folder: Path, name: str) -> LinearClassifier:
        """Load a classifier written by `save`."""
        arrays = load_file(folder / f"{name}.safetensors")
        return LinearClassifier(weights=arrays["weights"], bias=float(arrays["bias"][0]))


class FastTextClassifier:
    """A supervised fastText model (`.bin` or `.ftz`), and its label for good text."""

    def __init__(self, path: Path, label: str) -> None:
        import fasttext

        self._model = fasttext.load_model(str(path))
        self._label = label

    def score(self, text: str) -> float:
        """Probability in [0, 1] of the label for good text; 0 for a text without words. The text is passed as one line.

        Raise DataError if the model does not have this label.
        """
        line = " ".join(text.split())
        if not line:
            return 0.0
        labels, scores = self._model.predict(line, k=-1)
        found = dict(zip(map(str, labels), map(float, scores), strict=True))
        if self._label not in found:
            names = ", ".join(sorted(found)[:8])
            raise DataError(f"quality.classifier_label: {self._label!r} is not among the model's labels ({names} …)")
        return min(found[self._label], 1.0)  # a quantized model's softmax may round to slightly more


def train(positives: Sequence[str], negatives: Sequence[str], *, buckets: int) -> LinearClassifier:
    """Train a classifier on two sets of texts; each set has half of the weight, whatever its size.

    Raise DataError if a set is empty.
    """
    if not positives or not negatives:
        raise DataError(f"classifier: {len(positives)} positives and {len(negatives)} negatives; both are needed")
    parts = [features(text, buckets=buckets) for text in (*positives, *negatives)]
    ends = np.cumsum([len(numbers) for numbers, _ in parts])
    columns = np.concatenate([numbers for numbers, _ in parts])
    values = np.concatenate([values for _, values in parts])
    labels = np.repeat([1.0, 0.0], [len(positives), len(negatives)])
    row_weights = np.repeat([0.5 / len(positives), 0.5 / len(negatives)], [len(positives), len(negatives)])
    # Only buckets that occur are trained; the others stay 0. Frequent buckets are placed together to stay in the cache.
    used, columns, counts = np.unique(columns, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    used, columns = used[order], np.argsort(order)[columns].astype(np.int32)
    weights, bias = np.zeros(len(used)), 0.0
    ahead, ahead_bias, momentum = weights, bias, 1.0
    step = 1.0 / (0.25 * 2.0 + PENALTY)  # the loss curves at most 1/4 of the rows' squared length, bias included: 2
    for _ in range(STEPS):
        scores = _products(ahead, columns, values, ends) + ahead_bias
        errors = (_sigmoids(scores) - labels) * row_weights
        gradient = _sums(errors, columns, values, ends, len(used)) + PENALTY * ahead
        new_weights, new_bias = ahead - step * gradient, ahead_bias - step * total_of(errors)
        next_momentum = (1.0 + np.sqrt(1.0 + 4.0 * momentum * momentum)) / 2.0
        push = (momentum - 1.0) / next_momentum
        ahead, ahead_bias = new_weights + push * (new_weights - weights), new_bias + push * (new_bias - bias)
        weights, bias, momentum = new_weights, new_bias, next_momentum
    result = np.zeros(buckets, np.float32)
    result[used] = weights
    return LinearClassifier(weights=result, bias=float(np.float32(bias)))


@native
def _products(weights, columns, values, ends):
    """Return, for each row, the sum of its values times the column weights.

    The sum has a fixed order, so it is equal on every machine and for any number of threads.
    """
    sums = np.empty(len(ends))
    place = 0
    for row in range(len(ends)):
        total = 0.0
        while place < ends[row]:
            total += weights[columns[place]] * values[place]
            place += 1
        sums[row] = total
    return sums


@native
def _sums(errors, columns, values, ends, num_columns):
    """Sum of each column's values, each times the error of its row, added in a fixed order."""
    sums = np.zeros(num_columns)
    place = 0
    for row in range(len(ends)):
        while place < ends[row]:
            sums[columns[place]] += errors[row] * values[place]
            place += 1
    return sums


def area_under_curve(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """Probability in [0, 1] that a positive scores above a negative (ROC AUC); ties count half."""
    ordered = np.sort(np.asarray(negatives, dtype=np.float64))
    scores = np.asarray(positives, dtype=np.float64)
    below = np.searchsorted(ordered, scores, side="left")
    at_most = np.searchsorted(ordered, scores, side="right")
    return float((below + at_most).mean() / (2 * len(ordered)))


@native
def _sigmoid(value):
    """Return 1 / (1 + exp(-value)). Beyond 30 the result is 0 or 1 to 13 digits, and stays what it is there."""
    return 1.0 / (1.0 + exp(-min(max(value, -30.0), 30.0)))


@native
def _sigmoids(values):
    """Return the sigmoid of each value."""
    result = np.empty(len(values))
    for place in range(len(values)):
        result[place] = _sigmoid(values[place])
    return result

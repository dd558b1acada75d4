"""An n-gram language model of the reference texts: interpolated modified Kneser-Ney, estimated and queried here.

Method: Chen and Goodman (1998), in the form that KenLM's lmplz uses (Heafield et al. 2013): lower orders count distinct
left neighbours, each order has three discounts, unigrams are interpolated with the uniform distribution, and that share
alone is what an unknown word gets. Left out: pruning and quantization. CCNet (arXiv 1911.00359) sorts pages by such a
perplexity.

N-grams are kept as a trie in arrays: an n-gram's key is (index of its first n - 1 words among the (n-1)-grams, last
word).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save

from training.artifact import write_json, written
from training.job import DataError

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
START_ID, END_ID, UNKNOWN_ID = 0, 1, 2
WORD_BITS = 24  # at most 16.7 million different words
MAX_WORDS = 1 << WORD_BITS
NO_NODE = np.int64(-1)

# A run of letters and marks with inner apostrophes, a run of digits, or one other sign.
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*|\d+|[^\w\s]|_")
_DIGIT = re.compile(r"\d")


def words_of(line: str) -> list[str]:
    """The words and signs of a line, lower-cased, every digit as 0 (as in CCNet), so that numbers share their form."""
    return _TOKEN.findall(_DIGIT.sub("0", line.lower()))


def lines_of(text: str) -> list[list[str]]:
    """The words of each line that has any, as `words_of` gives them. A line is what the model takes for a sentence."""
    # A line's end ends a word too, so that a text is lower-cased as its lines are.
    plain = _DIGIT.sub("0", text.lower())
    return [words for line in plain.splitlines() if (words := _TOKEN.findall(line))]


@dataclass(frozen=True, kw_only=True, slots=True)
class NgramModel:
    """Probabilities of words after up to `order` - 1 others.

    Per order k, all sorted by key: `keys[k]` uint64 [n_k] (k from 2), `log_probability[k]` float32 [n_k], natural
    logarithm, `log_backoff[k]` float32 [n_k]: what remains for shorter contexts after this one (0 where it was never a
    context).
    """

    vocabulary: dict[str, int]
    keys: tuple[np.ndarray, ...]
    log_probability: tuple[np.ndarray, ...]
    log_backoff: tuple[np.ndarray, ...]

    @property
    def order(self) -> int:
        """Words in the longest n-gram."""
        return len(self.log_probability)

    def log_probabilities(self, lines: Sequence[Sequence[str]]) -> np.ndarray:
        """Natural log probability of every word and every line's end, float64 [words + lines], in order."""
        if not lines:
            return np.zeros(0)
        ids = _encode(lines, self.vocabulary)
        nodes = _nodes(ids, self.keys)
        result = self.log_probability[0][ids].astype(np.float64)
        for k in range(1, self.order):
            context = _before(nodes[k - 1])
            backoff = np.where(context >= 0, self.log_backoff[k - 1][np.maximum(context, 0)], 0.0)
            longer = self.log_probability[k][np.maximum(nodes[k], 0)] if len(self.log_probability[k]) else 0.0
            result = np.where(nodes[k] >= 0, longer, result + backoff)
        return result[ids != START_ID]

    def perplexity(self, text: str) -> float:
        """exp of the mean negative log probability of a word (or line end); infinity for a text without words."""
        values = self.log_probabilities(lines_of(text))
        return float(np.exp(-values.mean())) if len(values) else float("inf")

    def save(self, folder: Path, name: str) -> list[str]:
        """Write `<name>.safetensors` and `<name>.vocabulary.json`; returns their names."""
        arrays = {}
        for k in range(self.order):
            arrays[f"keys.{k + 1}"] = self.keys[k]
            arrays[f"log_probability.{k + 1}"] = self.log_probability[k]
            arrays[f"log_backoff.{k + 1}"] = self.log_backoff[k]
        with written(folder / f"{name}.safetensors") as stream:
            stream.write(save(arrays))
        write_json(folder / f"{name}.vocabulary.json", list(self.vocabulary))
        return [f"{name}.safetensors", f"{name}.vocabulary.json"]

    @staticmethod
    def load(folder: Path, name: str) -> NgramModel:
        """The model that `save` wrote."""
        arrays = load_file(folder / f"{name}.safetensors")
        words = json.loads((folder / f"{name}.vocabulary.json").read_text("utf-8"))
        orders = range(1, 1 + len(arrays) // 3)
        return NgramModel(
            vocabulary={word: number for number, word in enumerate(words)},
            keys=tuple(arrays[f"keys.{k}"] for k in orders),
            log_probability=tuple(arrays[f"log_probability.{k}"] for k in orders),
            log_backoff=tuple(arrays[f"log_backoff.{k}"] for k in orders),
        )


def train(texts: Iterable[str], *, order: int) -> NgramModel:
    """The model of `texts`, whose order does not matter. DataError when they hold no word."""
    lines = [line for text in texts for line in lines_of(text)]
    if not lines:
        raise DataError("reference texts: no word in them, so there is nothing to estimate perplexity from")
    words = sorted({word for line in lines for word in line})
    if len(words) + 3 > MAX_WORDS:
        raise DataError(f"reference texts: {len(words)} different words; at most {MAX_WORDS - 3} are possible")
    vocabulary = {word: number for number, word in enumerate([START, END, UNKNOWN, *words])}
    ids = _encode(lines, vocabulary)
    keys = _ngram_keys(ids, order)
    nodes = _nodes(ids, keys)
    counts = [_adjusted_counts(nodes, keys, ids, k, len(vocabulary)) for k in range(order)]
    return _estimate(vocabulary, keys, nodes, counts)


def _encode(lines: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> np.ndarray:
    """`<s> words </s>` of all lines end to end, int64."""
    words = [word for line in lines for word in line]
    ends = np.cumsum([len(line) + 2 for line in lines])
    ids = np.empty(len(words) + 2 * len(lines), np.int64)
    is_word = np.ones(len(ids), np.bool_)
    starts = np.concatenate([[0], ends[:-1]])
    is_word[starts] = is_word[ends - 1] = False
    ids[is_word] = np.fromiter(map(vocabulary.get, words, repeat(UNKNOWN_ID)), np.int64, len(words))
    ids[starts], ids[ends - 1] = START_ID, END_ID
    return ids


def _before(nodes: np.ndarray) -> np.ndarray:
    """The value at the position before each; NO_NODE at the first."""
    return np.concatenate([[NO_NODE], nodes[:-1]])


def _keys_at(ids: np.ndarray, shorter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys of the n-grams that end at each position, and where there is one; `shorter` holds the (n-1)-gram nodes.

    None ends in `<s>`, so none crosses a line's start.
    """
    prefix = _before(shorter)
    present = (prefix >= 0) & (ids != START_ID)
    return (np.maximum(prefix, 0).astype(np.uint64) << np.uint64(WORD_BITS)) | ids.astype(np.uint64), present


def _ngram_keys(ids: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
    """The sorted keys of all n-grams of each order; the first order has none, its index is the word."""
    keys = [np.zeros(0, dtype=np.uint64)]
    nodes = ids
    for _ in range(1, order):
        candidates, present = _keys_at(ids, nodes)
        keys.append(np.unique(candidates[present]))
        nodes = found(candidates, present, keys[-1])
    return tuple(keys)


def found(candidates: np.ndarray, present: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Index of each candidate in `keys`, NO_NODE where absent."""
    if len(keys) == 0:
        return np.full(len(candidates), NO_NODE)
    index = np.minimum(np.searchsorted(keys, candidates), len(keys) - 1)
    return np.where(present & (keys[index] == candidates), index, NO_NODE)


def _nodes(ids: np.ndarray, keys: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For each order k, the index of the k-gram that ends at each position, NO_NODE where the model has none."""
    nodes = [ids]
    for k in range(1, len(keys)):
        candidates, present = _keys_at(ids, nodes[-1])
        nodes.append(found(candidates, present, keys[k]))
    return nodes


def _size(k: int, keys: Sequence[np.ndarray], num_words: int) -> int:
    return num_words if k == 0 else len(keys[k])


def _adjusted_counts(
    nodes: Sequence[np.ndarray], keys: Sequence[np.ndarray], ids: np.ndarray, k: int, num_words: int
) -> np.ndarray:
    """Counts of the highest order; below it the number of distinct left neighbours. int64 [n_k].

    An n-gram that starts a line has no left neighbour and keeps its count. `<s>` itself is never predicted: 0.
    """
    size = _size(k, keys, num_words)
    here = nodes[k][(nodes[k] >= 0) & (ids != START_ID)]
    plain = np.bincount(here, minlength=size)
    if k == len(keys) - 1:
        return plain
    longer = (nodes[k + 1] >= 0) & (ids != START_ID)
    _, first = np.unique(nodes[k + 1][longer], return_index=True)
    neighbours = np.bincount(nodes[k][longer][first], minlength=size)
    # Only n-grams that begin with <s> have no longer n-gram ending where they end.
    return np.where(neighbours > 0, neighbours, plain)


def discounts(counts: np.ndarray) -> np.ndarray:
    """Chen and Goodman's discounts for counts of 0, 1, 2 and 3 or more, float64 [4].

    Where the counts of counts allow no estimate (small corpora), KenLM's fallback 0.5, 1, 1.5 is used.
    """
    seen = [int((counts == number).sum()) for number in (1, 2, 3, 4)]
    fallback = np.array([0.0, 0.5, 1.0, 1.5])
    if min(seen) == 0:
        return fallback
    y = seen[0] / (seen[0] + 2 * seen[1])
    estimated = np.array([0.0, *(n - (n + 1) * y * seen[n] / seen[n - 1] for n in (1, 2, 3))])
    return estimated if np.all((estimated >= 0) & (estimated <= np.arange(4))) else fallback


def _estimate(
    vocabulary: dict[str, int], keys: tuple[np.ndarray, ...], nodes: list[np.ndarray], counts: list[np.ndarray]
) -> NgramModel:
    order, num_words = len(keys), len(vocabulary)
    probabilities: list[np.ndarray] = []
    remainders: list[np.ndarray] = []  # of the contexts of order k, that is, indexed by the k-grams
    for k in range(order):
        discounted = counts[k] - discounts(counts[k])[np.minimum(counts[k], 3)]
        contexts = np.zeros(num_words, np.int64) if k == 0 else (keys[k] >> np.uint64(WORD_BITS)).astype(np.int64)
        size = 1 if k == 0 else _size(k - 1, keys, num_words)
        total = np.bincount(contexts, weights=counts[k], minlength=size)
        kept = np.bincount(contexts, weights=discounted, minlength=size)
        is_context = total > 0
        total = np.where(is_context, total, 1.0)
        remainder = np.where(is_context, 1.0 - kept / total, 1.0)
        if k == 0:
            shorter = np.full(num_words, 1.0 / (num_words - 1))  # uniform over all but <s>
            probability = discounted / total[0] + remainder[0] * shorter
            probability[START_ID] = 1.0  # never asked for; its logarithm is 0
        else:
            shorter = probabilities[k - 1][_suffixes(nodes, k, len(keys[k]))]
            probability = discounted / total[contexts] + remainder[contexts] * shorter
            remainders.append(remainder)
        probabilities.append(probability)
    remainders.append(np.ones(len(probabilities[-1])))  # the longest n-grams are no contexts
    return NgramModel(
        vocabulary=vocabulary,
        keys=keys,
        log_probability=tuple(np.log(values).astype(np.float32) for values in probabilities),
        log_backoff=tuple(np.log(np.maximum(values, 1e-30)).astype(np.float32) for values in remainders),
    )


def _suffixes(nodes: list[np.ndarray], k: int, size: int) -> np.ndarray:
    """For each n-gram of order k, the index of its last n - 1 words among the n-grams one shorter. int64 [n_k]."""
    present = nodes[k] >= 0
    suffixes = np.zeros(size, dtype=np.int64)
    suffixes[nodes[k][present]] = nodes[k - 1][present]
    return suffixes

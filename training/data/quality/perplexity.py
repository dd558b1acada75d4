"""N-gram language model of the reference texts: interpolated modified Kneser-Ney, estimated and queried here.

Method: Chen and Goodman (1998), in the form of KenLM's lmplz (Heafield et al. 2013): lower orders count distinct left
neighbours, each order has three discounts, and unigrams are interpolated with the uniform distribution, whose share is
all that an unknown word gets. Pruning and quantization are left out. CCNet (arXiv 1911.00359) sorts pages by such a
perplexity.

N-grams are stored as a trie in arrays. An n-gram's key is (index of its first n - 1 words among the (n-1)-grams, last
word). Keys are sorted, so all continuations of one (n-1)-gram are adjacent, and a query descends the trie.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save

from training.contract.artifact import write_json, written
from training.contract.job import DataError
from training.data.quality.forms import FormColumn, Formed, Forms, shared_forms
from training.data.words.elementary import exp, logs, total_of
from training.data.words.native import native

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
START_ID, END_ID, UNKNOWN_ID = 0, 1, 2
WORD_BITS = 24  # at most 16.7 million different words
MAX_WORDS = 1 << WORD_BITS
NO_NODE = np.int64(-1)


def file_of(code: str) -> str:
    """File name, without suffix, of a language's n-gram model; "" is the model for all languages."""
    return f"ngram.{code}" if code else "ngram"


@dataclass(frozen=True, kw_only=True)
class NgramModel:
    """An n-gram model: the probability of a word after up to `order` - 1 others.

    For each order k, sorted by key: `keys[k]` uint64 [n_k] (k from 2), `log_probability[k]` float32 [n_k] (natural
    logarithm), and `log_backoff[k]` float32 [n_k], the log weight of shorter contexts after this one (0 if it never was
    a context).
    """

    vocabulary: dict[str, int]
    keys: tuple[np.ndarray, ...]
    log_probability: tuple[np.ndarray, ...]
    log_backoff: tuple[np.ndarray, ...]

    @property
    def order(self) -> int:
        """The number of words in the longest n-gram."""
        return len(self.log_probability)

    def log_probabilities(self, lines: Sequence[Sequence[str]]) -> np.ndarray:
        """Natural log probability of every word and every line end, float64 [words + lines], in order."""
        words = [word for line in lines for word in line]
        numbers = np.array([self.vocabulary.get(word, UNKNOWN_ID) for word in words], np.int32)
        return self._descended(numbers, np.cumsum([len(line) for line in lines], dtype=np.int64))

    def perplexity(self, text: str) -> float:
        """exp of the mean negative log probability per word or line end; infinity for a text without words."""
        forms = shared_forms()
        formed = forms.of(text)
        values = self._descended(self._column.of(forms)[formed.numbers], formed.line_ends)
        return exp(-total_of(values) / len(values)) if len(values) else float("inf")

    def _descended(self, numbers: np.ndarray, line_ends: np.ndarray) -> np.ndarray:
        result = np.empty(len(numbers) + len(line_ends))
        _descend(numbers, line_ends, *self._trie, np.empty((2, self.order), np.int64), result)
        return result

    @cached_property
    def _column(self) -> FormColumn:
        """Return an array that maps the number of each word form to the number of its word in the model."""
        return FormColumn(lambda word: self.vocabulary.get(word, UNKNOWN_ID), np.int32)

    @cached_property
    def _trie(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The n-grams of all orders in one sequence, words first.

        Returns the start of each n-gram's continuations (int64 [n + 1]), last words (int32 [n]), log probabilities and
        log backoffs (float32 [n]).
        """
        sizes = [len(values) for values in self.log_probability]
        ends = np.cumsum(sizes)
        begins = [
            end + np.searchsorted(longer >> np.uint64(WORD_BITS), np.arange(size, dtype=np.uint64))
            for end, size, longer in zip(ends, sizes, (*self.keys[1:], np.zeros(0, np.uint64)), strict=True)
        ]
        words = [np.arange(sizes[0]), *(keys & np.uint64(MAX_WORDS - 1) for keys in self.keys[1:])]
        return (
            np.concatenate([*begins, ends[-1:]]),
            np.concatenate([some.astype(np.int32) for some in words]),
            np.concatenate(self.log_probability),
            np.concatenate(self.log_backoff),
        )

    def save(self, folder: Path, name: str) -> list[str]:
        """Write `<name>.safetensors` and `<name>.vocabulary.json`; return these file names."""
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
        """Load a model written by `save`."""
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
    """Estimate a model from `texts`, whose order does not matter. Raise DataError if they contain no word."""
    forms = Forms()
    formed = [forms.of(text) for text in texts]
    if not forms.words:
        raise DataError("reference texts: no word in them, so there is nothing to estimate perplexity from")
    if len(forms.words) + 3 > MAX_WORDS:
        raise DataError(f"reference texts: {len(forms.words)} different words; at most {MAX_WORDS - 3} are possible")
    vocabulary = {word: number for number, word in enumerate([START, END, UNKNOWN, *sorted(forms.words)])}
    ids = _sentences(formed, np.array([vocabulary[word] for word in forms.words]))
    keys, nodes = _ngrams(ids, order)
    sizes = [len(vocabulary), *map(len, keys[1:])]
    suffixes = [_suffixes(nodes[k - 1], nodes[k], sizes[k]) for k in range(1, order)]
    counts = [_adjusted_counts(ids, *one) for one in zip(nodes, sizes, [*suffixes, None], strict=True)]
    return _estimate(vocabulary, keys, suffixes, counts)


def _sentences(formed: Sequence[Formed], numbers: np.ndarray) -> np.ndarray:
    """Return the word numbers of all lines with `<s>` and `</s>` around each, as one int64 array.

    `numbers` maps form numbers to word numbers.
    """
    words = numbers[np.concatenate([one.numbers for one in formed])]
    lengths = np.concatenate([np.diff(one.line_ends, prepend=0) for one in formed])
    ends = np.cumsum(lengths + 2)
    ids = np.empty(len(words) + 2 * len(lengths), np.int64)
    is_word = np.ones(len(ids), np.bool_)
    is_word[ends - lengths - 2] = is_word[ends - 1] = False
    ids[is_word] = words
    ids[ends - lengths - 2], ids[ends - 1] = START_ID, END_ID
    return ids


def _before(nodes: np.ndarray) -> np.ndarray:
    """Return the array shifted by one position: each value moves to the next position, and NO_NODE comes first."""
    return np.concatenate([[NO_NODE], nodes[:-1]])


def _keys_at(ids: np.ndarray, shorter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the key of the n-gram that ends at each position, and whether there is one.

    `shorter` holds the index of the (n-1)-gram that ends at each position. No n-gram ends in `<s>`, so none crosses the
    start of a line.
    """
    prefix = _before(shorter)
    present = (prefix >= 0) & (ids != START_ID)
    return (np.maximum(prefix, 0).astype(np.uint64) << np.uint64(WORD_BITS)) | ids.astype(np.uint64), present


def _ngrams(ids: np.ndarray, order: int) -> tuple[tuple[np.ndarray, ...], list[np.ndarray]]:
    """Return the sorted keys of the n-grams of each order, and for each order k which k-gram ends at each position.

    K-grams are given by index, NO_NODE where none ends. Order 1 has no keys, because the index of a 1-gram is its word.
    """
    keys, nodes = [np.zeros(0, dtype=np.uint64)], [ids]
    for _ in range(1, order):
        candidates, present = _keys_at(ids, nodes[-1])
        ordered = np.sort(candidates[present])
        keys.append(ordered[np.diff(ordered, prepend=ordered[:1] + 1) != 0])
        nodes.append(found(candidates, present, keys[-1]))
    return tuple(keys), nodes


def found(candidates: np.ndarray, present: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the index of each candidate in `keys`; NO_NODE if it is absent or `present` is false."""
    if len(keys) == 0:
        return np.full(len(candidates), NO_NODE)
    index = np.minimum(np.searchsorted(keys, candidates), len(keys) - 1)
    return np.where(present & (keys[index] == candidates), index, NO_NODE)


@native
def _descend(numbers, line_ends, begins, words, probability, backoff, nodes, result):
    """Fill `result` with the log probability of each word of the lines, and of each line's end.

    `nodes` [2, order] is working memory for the n-grams of each order that end at this and at the previous position.
    """
    place = out = 0
    for line_end in line_ends:
        before, here = nodes[0], nodes[1]
        before[:] = -1
        before[0] = START_ID
        while place <= line_end:
            word = numbers[place] if place < line_end else END_ID
            here[0] = word
            value = np.float64(probability[word])
            for k in range(1, len(here)):
                context = before[k - 1]
                here[k] = _longer(context, word, begins, words)
                if here[k] >= 0:
                    value = np.float64(probability[here[k]])
                elif context >= 0:
                    value += np.float64(backoff[context])
            before, here = here, before
            result[out] = value
            out += 1
            place += 1
        place = line_end


@native
def _longer(context, word, begins, words):
    """Return the index of the n-gram that extends the n-gram `context` by `word`; -1 if the model has none."""
    if context < 0:
        return -1
    low, end = begins[context], begins[context + 1]
    high = end
    while low < high:
        middle = (low + high) >> 1
        if words[middle] < word:
            low = middle + 1
        else:
            high = middle
    return low if low < end and words[low] == word else -1


def _adjusted_counts(ids: np.ndarray, nodes: np.ndarray, size: int, longer: np.ndarray | None) -> np.ndarray:
    """Counts of the highest order; for lower orders the number of distinct left neighbours. int64 [size].

    `longer` has, for each n-gram of the next order, the index of its suffix. An n-gram at the start of a line has no
    left neighbour and keeps its count. `<s>` is never predicted and has 0.
    """
    plain = np.bincount(nodes[(nodes >= 0) & (ids != START_ID)], minlength=size)
    if longer is None:
        return plain
    neighbours = np.bincount(longer, minlength=size)
    # Only n-grams that begin with <s> are not the suffix of a longer n-gram.
    return np.where(neighbours > 0, neighbours, plain)


def discounts(counts: np.ndarray) -> np.ndarray:
    """Chen and Goodman's discounts for counts of 0, 1, 2 and 3 or more, float64 [4].

    If the counts of counts allow no estimate (small corpora), KenLM's fallback 0.5, 1, 1.5 is used.
    """
    seen = [int((counts == number).sum()) for number in (1, 2, 3, 4)]
    fallback = np.array([0.0, 0.5, 1.0, 1.5])
    if min(seen) == 0:
        return fallback
    y = seen[0] / (seen[0] + 2 * seen[1])
    estimated = np.array([0.0, *(n - (n + 1) * y * seen[n] / seen[n - 1] for n in (1, 2, 3))])
    return estimated if np.all((estimated >= 0) & (estimated <= np.arange(4))) else fallback


def _estimate(
    vocabulary: dict[str, int], keys: tuple[np.ndarray, ...], suffixes: list[np.ndarray], counts: list[np.ndarray]
) -> NgramModel:
    order, num_words = len(keys), len(vocabulary)
    probabilities: list[np.ndarray] = []
    remainders: list[np.ndarray] = []  # for each order k, the backoff weight of each k-gram as a context
    for k in range(order):
        discounted = counts[k] - discounts(counts[k])[np.minimum(counts[k], 3)]
        contexts = np.zeros(num_words, np.int64) if k == 0 else (keys[k] >> np.uint64(WORD_BITS)).astype(np.int64)
        size = 1 if k == 0 else len(counts[k - 1])
        total = np.bincount(contexts, weights=counts[k], minlength=size)
        kept = np.bincount(contexts, weights=discounted, minlength=size)
        is_context = total > 0
        total = np.where(is_context, total, 1.0)
        remainder = np.where(is_context, 1.0 - kept / total, 1.0)
        if k == 0:
            shorter = np.full(num_words, 1.0 / (num_words - 1))  # uniform over all but <s>
            probability = discounted / total[0] + remainder[0] * shorter
            probability[START_ID] = 1.0  # never queried; its logarithm is 0
        else:
            shorter = probabilities[k - 1][suffixes[k - 1]]
            probability = discounted / total[contexts] + remainder[contexts] * shorter
            remainders.append(remainder)
        probabilities.append(probability)
    remainders.append(np.ones(len(probabilities[-1])))  # the longest n-grams are never contexts
    return NgramModel(
        vocabulary=vocabulary,
        keys=keys,
        log_probability=tuple(logs(values).astype(np.float32) for values in probabilities),
        log_backoff=tuple(logs(np.maximum(values, 1e-30)).astype(np.float32) for values in remainders),
    )


def _suffixes(shorter: np.ndarray, nodes: np.ndarray, size: int) -> np.ndarray:
    """For each n-gram of an order, the index of its last n - 1 words among the (n-1)-grams. int64 [size].

    `nodes` and `shorter` hold the index of the n-gram and of the (n-1)-gram that end at each position.
    """
    present = nodes >= 0
    suffixes = np.zeros(size, dtype=np.int64)
    suffixes[nodes[present]] = shorter[present]
    return suffixes

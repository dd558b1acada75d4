"""Read fastText's supervised models that identify languages, and run them in compiled loops.

A word is the sum of its own vector and those of its character 2- to 4-grams (arXiv 1607.04606); a text is the mean over
its words. Labels are leaves of a Huffman tree with a logistic decision at each node (hierarchical softmax, arXiv
1607.01759). Vectors are product-quantized and most n-grams are pruned (arXiv 1612.03651). fastText computes a word
again each time it occurs; here its sum is cached, because most words of a text have occurred before. Sums are in double
precision, so a probability differs from fastText's in the sixth digit.

Only the features of such models are supported: quantized input, hierarchical softmax, no word n-grams. Other models
raise DataError.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.contract.job import DataError
from training.data.words.elementary import exp, log
from training.data.words.native import native

_MAGIC, _VERSION = 793712314, 12
_HIERARCHICAL, _SUPERVISED = 1, 3
_END_OF_LINE, _LABEL = b"</s>", b"__label__"
_KEPT_WORDS = 1 << 17  # slots of the cache of word sums, which is cleared when three quarters are used
_LOG_OFFSET = 1e-5  # fastText's logarithm adds it


@dataclass(frozen=True, kw_only=True, slots=True)
class FastTextModel:
    """A fastText model as arrays.

    `rows` float32 [words + n-grams, dimensions] are the vectors. `ngram_row` int32 [buckets] is the row of each n-gram
    bucket, -1 if pruned. `word_hashes` uint64 [slots] and `word_rows` int32 [slots] are an open hash table. The tree is
    `nodes` float32 [labels - 1, dimensions], and `left` and `right` int32 [labels - 1], where a negative value is the
    leaf -1 - label.
    """

    labels: tuple[str, ...]
    rows: np.ndarray
    ngram_row: np.ndarray
    word_hashes: np.ndarray
    word_rows: np.ndarray
    end_row: int
    shortest: int
    longest: int
    nodes: np.ndarray
    left: np.ndarray
    right: np.ndarray
    kept: Any  # cache: hashes and sums of words that occurred

    def predict(self, line: str) -> tuple[str, float]:
        """Return the most likely label, without its prefix, and its probability, for words separated by single spaces.

        Not thread-safe: it writes to `kept`.
        """
        total = np.zeros(self.rows.shape[1])
        data = np.frombuffer(line.encode("utf-8", "surrogatepass"), np.uint8)
        count = sum_of_words(
            data, self.rows, self.ngram_row, self.word_hashes, self.word_rows, self.end_row,
            self.shortest, self.longest, *self.kept, total,
        )  # fmt: skip
        label, logarithm = best_leaf(total / max(count, 1), self.nodes, self.left, self.right)
        return self.labels[label], exp(logarithm)


class _Reader:
    """Reads the values of a fastText model file from bytes, one after another."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def values(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return found

    def array(self, kind: type, size: int) -> np.ndarray:
        found = np.frombuffer(self.data, kind, size, self.at)
        self.at += found.nbytes
        return found

    def word(self) -> bytes:
        end = self.data.index(0, self.at)
        found, self.at = self.data[self.at : end], end + 1
        return found


def read_model(path: Path) -> FastTextModel:
    """Read a model file written by fastText. Raise DataError for a damaged file or an unsupported kind of model."""
    try:
        return _read(_Reader(path.read_bytes()))
    except (struct.error, ValueError, IndexError) as error:
        raise DataError(f"{path}: not a fastText model, or cut off: {error}") from None


def _read(reader: _Reader) -> FastTextModel:
    dimensions, labels, words, pruned, buckets, shortest, longest, counts = _head(reader)
    (is_quantized,) = reader.values("?")
    if not is_quantized:
        raise ValueError("its input is not quantized")
    rows = _quantized(reader)
    (is_output_quantized,) = reader.values("?")
    if is_output_quantized:
        nodes = _quantized(reader)
    else:
        height, width = reader.values("qq")
        nodes = reader.array(np.float32, height * width).reshape(height, width)
    left, right = _tree(counts)
    ngram_row = np.full(buckets, -1, np.int32)
    ngram_row[pruned[:, 0]] = pruned[:, 1] + len(words)
    hashes, table = _word_table(words)
    kept = (np.zeros(_KEPT_WORDS, np.uint64), np.zeros((_KEPT_WORDS, dimensions + 1)), np.zeros(1, np.int64))
    return FastTextModel(
        labels=labels, rows=rows, ngram_row=ngram_row, word_hashes=hashes, word_rows=table, nodes=nodes[: len(left)],
        end_row=words.index(_END_OF_LINE) if _END_OF_LINE in words else -1, shortest=shortest, longest=longest,
        left=left, right=right, kept=kept,
    )  # fmt: skip


def _head(reader: _Reader) -> tuple[Any, ...]:
    """Read the training arguments and the dictionary."""
    magic, version = reader.values("ii")
    dimensions, _, _, _, _, word_ngrams, loss, kind, buckets, shortest, longest, _ = reader.values("12i")
    reader.values("d")
    if (magic, version, loss, kind) != (_MAGIC, _VERSION, _HIERARCHICAL, _SUPERVISED) or word_ngrams > 1:
        raise ValueError("no supervised model of version 12 with hierarchical softmax and without word n-grams")
    size, num_words, _ = reader.values("3i")
    _, num_pruned = reader.values("qq")
    entries = [(reader.word(), *reader.values("qb")) for _ in range(size)]
    if num_pruned < 0:
        raise ValueError("its n-grams are not pruned")
    pruned = reader.array(np.int32, 2 * num_pruned).reshape(-1, 2)
    labels = [(name, count) for name, count, _ in entries[num_words:]]
    names = tuple(name.removeprefix(_LABEL).decode("utf-8") for name, _ in labels)
    words = [name for name, _, _ in entries[:num_words]]
    return dimensions, names, words, pruned, buckets, shortest, longest, [count for _, count in labels]


def _quantized(reader: _Reader) -> np.ndarray:
    """Read a product-quantized matrix and return it as float32."""
    has_norms, height, _, size = reader.values("?qqi")
    codes = reader.array(np.uint8, size).reshape(height, -1)
    matrix = _decoded(reader, codes)
    if has_norms:
        matrix *= _decoded(reader, reader.array(np.uint8, height).reshape(height, 1))
    return matrix


def _decoded(reader: _Reader, codes: np.ndarray) -> np.ndarray:
    width, parts, part, last = reader.values("4i")
    centroids = reader.array(np.float32, width * 256)
    columns = []
    for number in range(parts):
        size = last if number == parts - 1 else part
        start = number * 256 * part
        columns.append(centroids[start : start + 256 * size].reshape(256, size)[codes[:, number]])
    return np.concatenate(columns, axis=1)


def _tree(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the left and right children of the inner nodes of the Huffman tree, built as in fastText.

    `counts` are the labels' counts in falling order.
    """
    leaves = len(counts)
    weights = [*counts, *([10**15] * (leaves - 1))]
    children = []
    leaf, node = leaves - 1, leaves
    for number in range(leaves, 2 * leaves - 1):
        smallest = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                smallest.append(leaf)
                leaf -= 1
            else:
                smallest.append(node)
                node += 1
        weights[number] = weights[smallest[0]] + weights[smallest[1]]
        children.append([-1 - child if child < leaves else child - leaves for child in smallest])
    left, right = np.array(children, np.int32).T
    return np.ascontiguousarray(left), np.ascontiguousarray(right)


def _word_table(words: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    size = 16
    while size < 2 * len(words):
        size *= 2
    hashes, rows = np.zeros(size, np.uint64), np.full(size, -1, np.int32)
    ends = np.cumsum([len(word) for word in words], dtype=np.int64)
    put_words(np.frombuffer(b"".join(words), np.uint8), ends, hashes, rows)
    return hashes, rows


# Compiled loops.


@native
def token_hash(data, start, end):
    """Return the 64-bit FNV-1a hash of a word's bytes, but never 0, which marks a free slot."""
    value = np.uint64(0xCBF29CE484222325)
    for place in range(start, end):
        value = (value ^ np.uint64(data[place])) * np.uint64(0x100000001B3)
    return value | np.uint64(1)


@native
def put_words(data, ends, hashes, rows):
    """Enter words, end to end in `data`, into an open hash table; a word's row is its index."""
    mask = np.uint64(len(hashes) - 1)
    start = 0
    for row in range(len(ends)):
        value = np.uint64(token_hash(data, start, ends[row]))
        slot = value & mask
        while hashes[slot]:
            slot = slot + np.uint64(1) & mask
        hashes[slot], rows[slot] = value, row
        start = ends[row]


@native
def sum_of_words(data, rows, ngram_row, word_hashes, word_rows, end_row, shortest, longest, kept, sums, used, total):
    """Add the vectors of all words of a line, and of the line's end, to `total`; return the number of vectors.

    As in fastText, a word `</s>` ends the line, and words that look like labels are skipped.
    """
    width = rows.shape[1]
    mask = np.uint64(len(kept) - 1)
    count = 0
    start = 0
    while start < len(data):
        end = start
        while end < len(data) and data[end] != 32 and data[end] != 0:
            end += 1
        if end > start:
            if _is(data, start, end, 60, 47, 115, 62):  # </s>
                break
            if not _is_label(data, start, end):
                value = token_hash(data, start, end)
                slot = value & mask
                while kept[slot] != 0 and kept[slot] != value:
                    slot = slot + np.uint64(1) & mask
                if kept[slot] == 0:
                    if 4 * used[0] > 3 * len(kept):
                        kept[:] = 0
                        used[0] = 0
                        slot = value & mask
                    used[0] += 1
                    kept[slot] = value
                    sums[slot, :] = 0
                    row = _row_of(value, word_hashes, word_rows)
                    _add_word(data, start, end, row, rows, ngram_row, shortest, longest, sums[slot])
                for place in range(width):
                    total[place] += sums[slot, place]
                count += int(sums[slot, width])
        start = end + 1
    if end_row >= 0:
        for place in range(width):
            total[place] += rows[end_row, place]
        count += 1
    return count


@native
def _is(data, start, end, a, b, c, d):
    """Whether a word consists of these four bytes."""
    if end - start != 4:
        return False
    return data[start] == a and data[start + 1] == b and data[start + 2] == c and data[start + 3] == d


@native
def _is_label(data, start, end):
    """Whether a word begins with `__label__`."""
    if end - start < 9 or data[start] != 95 or data[start + 1] != 95 or data[start + 7] != 95 or data[start + 8] != 95:
        return False
    if data[start + 2] != 108 or data[start + 3] != 97 or data[start + 4] != 98:
        return False
    return data[start + 5] == 101 and data[start + 6] == 108


@native
def _row_of(value, word_hashes, word_rows):
    """Return the row of a dictionary word; -1 for any other word."""
    mask = np.uint64(len(word_hashes) - 1)
    slot = value & mask
    while word_hashes[slot] != 0 and word_hashes[slot] != value:
        slot = slot + np.uint64(1) & mask
    return word_rows[slot] if word_hashes[slot] == value else np.int32(-1)


@native
def _add_word(data, start, end, row, rows, ngram_row, shortest, longest, sums):
    """Add the vectors of a word and of the character n-grams of `<word>` to `sums`; its last element counts them."""
    width = rows.shape[1]
    if row >= 0:
        for place in range(width):
            sums[place] += rows[row, place]
        sums[width] += 1
    length = end - start + 2
    for first in range(length):
        if _byte(data, start, length, first) & 0xC0 == 0x80:
            continue
        value = np.uint32(2166136261)
        place = first
        signs = 0
        while place < length and signs < longest:
            signs += 1
            value = _mixed(value, _byte(data, start, length, place))
            place += 1
            while place < length and _byte(data, start, length, place) & 0xC0 == 0x80:
                value = _mixed(value, _byte(data, start, length, place))
                place += 1
            if signs >= shortest and not (signs == 1 and (first == 0 or place == length)):
                found = ngram_row[value % np.uint32(len(ngram_row))]
                if found >= 0:
                    for column in range(width):
                        sums[column] += rows[found, column]
                    sums[width] += 1


@native
def _byte(data, start, length, place):
    """The byte at position `place` of the word with angle brackets around it, `<word>`."""
    if place == 0:
        return np.uint8(60)
    return np.uint8(62) if place == length - 1 else data[start + place - 1]


@native
def _mixed(value, byte):
    """Return the FNV-1a hash (32 bits) after one more byte.

    Bytes from 128 on are sign-extended, as in fastText's C++.
    """
    signed = np.uint32(byte) | np.uint32(0xFFFFFF00) if byte & 0x80 else np.uint32(byte)
    return np.uint32((value ^ signed) * np.uint32(16777619))


@native
def best_leaf(mean, nodes, left, right):
    """Return the most likely label and its log probability, searching the tree with the more likely side first."""
    stack = np.empty(len(left) + 1, np.int64)
    scores = np.empty(len(left) + 1, np.float64)
    stack[0], scores[0], size = len(left) - 1, 0.0, 1
    best, best_score = -1, -np.inf
    while size > 0:
        size -= 1
        node, score = stack[size], scores[size]
        if score <= best_score:
            continue
        if node < 0:
            best, best_score = -1 - node, score
            continue
        dot = 0.0
        for place in range(len(mean)):
            dot += nodes[node, place] * mean[place]
        chance = 1.0 / (1.0 + exp(-dot))
        to_left, to_right = log(1.0 - chance + _LOG_OFFSET), log(chance + _LOG_OFFSET)
        for is_second in range(2):
            go_right = (to_right > to_left) == (is_second == 1)
            stack[size] = right[node] if go_right else left[node]
            scores[size] = score + (to_right if go_right else to_left)
            size += 1
    return best, best_score

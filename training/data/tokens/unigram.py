"""Train a Unigram vocabulary: pieces with probabilities; a word is split into the pieces with the largest product.

Source: Kudo 2018 (arXiv 1804.10959), section 3.2. Training starts from every frequent substring of the words and
reduces the pieces to the requested number, by expectation maximization and the loss that removing each piece would
cause. As in sentencepiece, a quarter of the pieces is removed at a time, after two passes of EM. Left out are
sentencepiece's sparse prior (its digamma) and the change of the other pieces' probabilities in the loss.

Everything is summed by one thread in a fixed order, that of the sorted words, using only +, * and / until the
logarithms at the end of a round. So neither the order of documents nor the number of threads matters. The 256 bytes
always stay in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from training.data.words.elementary import logs, total_of
from training.data.words.native import native

BYTES: Final = 256  # the first pieces are the bytes, in order
MAX_PIECE: Final = 16  # bytes
MAX_WORD: Final = 64  # bytes; longer words are cut for training, so that no product leaves a float's range
SEED_PIECES: Final = 1_000_000  # sentencepiece's default, as are the next two
KEPT_FRACTION: Final = 0.75
PASSES: Final = 2
# Lowest probability of a piece. With the scale below, a word of 64 such bytes has the product 2^-960.
FLOOR: Final = 2.0**-23
SCALE_BITS: Final = 8  # scaling per byte; powers of two do not change any digit

# From this number of edges in a lattice on, the loops are compiled; below it, compiling takes longer than the loops.
COMPILED_FROM_EDGES = 100_000

Numbers = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lattice:
    """The positions of all pieces in the words.

    Word w is `text[begins[w] : begins[w + 1]]` and occurs `counts[w]` times. The edges `starts[i]` to `starts[i + 1]`
    are the pieces that begin at byte i, shortest first; `lengths` and `pieces` have their length in bytes and piece
    number. Piece p occurs at byte `places[p]` (one of its places) and has `sizes[p]` bytes.
    """

    text: npt.NDArray[np.uint8]
    begins: Places
    counts: Numbers
    starts: Places
    lengths: npt.NDArray[np.int32]
    pieces: npt.NDArray[np.int32]
    places: Places
    sizes: Places

    def spelled(self) -> list[bytes]:
        """Return the bytes of each piece of the vocabulary."""
        content = self.text.tobytes()
        places, sizes = self.places[BYTES:].tolist(), self.sizes[BYTES:].tolist()
        seen = (content[place : place + size] for place, size in zip(places, sizes, strict=True))
        return [*(bytes([value]) for value in range(BYTES)), *seen]

    def only(self, kept: npt.NDArray[np.bool_]) -> Lattice:
        """Return the lattice with only the kept pieces; they keep their order."""
        numbers = (np.cumsum(kept) - 1).astype(np.int32)
        edges = kept[self.pieces]
        starts = np.append(0, np.cumsum(edges))[self.starts]
        return replace(
            self,
            starts=starts,
            lengths=self.lengths[edges],
            pieces=numbers[self.pieces[edges]],
            places=self.places[kept],
            sizes=self.sizes[kept],
        )


def train(words: Mapping[bytes, int], *, num_pieces: int, min_count: int) -> list[tuple[bytes, float]]:
    """Return pieces with their log probabilities, most probable first; all 256 single bytes are among them.

    `words` maps each word to its count. The result has fewer than `num_pieces` pieces if too few substrings occur
    `min_count` times.
    """
    lattice, probabilities = seeds(words, min_count=min_count)
    while True:
        for _ in range(PASSES):
            probabilities = maximized(lattice, probabilities)
        if len(probabilities) <= num_pieces:
            break
        kept = worth_keeping(lattice, probabilities, max(num_pieces, int(len(probabilities) * KEPT_FRACTION)))
        lattice, probabilities = lattice.only(kept), probabilities[kept]
    scores = logs(probabilities / total_of(probabilities)).round(6).tolist()
    return sorted(zip(lattice.spelled(), scores, strict=True), key=lambda piece: (-piece[1], piece[0]))


# Seeds


def seeds(words: Mapping[bytes, int], *, min_count: int) -> tuple[Lattice, Numbers]:
    """Return the first lattice and the pieces' initial probabilities.

    The pieces are the single bytes, and the substrings that cover most of the text (count times length). Their
    probabilities are their shares of the text.
    """
    text, begins, counts = _laid_out(words)
    own = np.repeat(np.arange(len(counts)), np.diff(begins))  # the word of each byte
    left = begins[1:][own] - np.arange(len(text))  # bytes from each byte to the end of its word
    found = [_Substrings.bytes_of(text, counts[own])]
    while len(found) < MAX_PIECE and len(found[-1].at):
        found.append(found[-1].longer(text, left, counts[own], max(min_count, 2)))
    chosen = _chosen(found)
    lattice = Lattice(text=text, begins=begins, counts=counts, **_edges(found, chosen, len(text)))
    weight = np.concatenate([one.counts[numbers >= 0] for one, numbers in zip(found, chosen, strict=True)])
    order = np.concatenate([numbers[numbers >= 0] for numbers in chosen])
    covered = np.zeros(len(weight))
    covered[order] = weight
    return lattice, _shares(covered * lattice.sizes)


def _laid_out(words: Mapping[bytes, int]) -> tuple[npt.NDArray[np.uint8], Places, Numbers]:
    """Return the sorted words concatenated, the start of each, and their counts; long words are cut into parts."""
    parts: list[bytes] = []
    counts: list[int] = []
    for word in sorted(words):
        cut = [word[start : start + MAX_WORD] for start in range(0, len(word), MAX_WORD)]
        parts += cut
        counts += [words[word]] * len(cut)
    begins = np.cumsum([0, *map(len, parts)])
    return np.frombuffer(b"".join(parts), np.uint8), begins, np.array(counts, np.float64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Substrings:
    """The substrings of one length that occur often enough, with their counts and positions.

    The record holds the first position of each substring, and all positions. `numbers[i]` is the number of the
    substring that begins at byte `at[i]`.
    """

    length: int
    counts: Numbers
    first: Places
    at: Places
    numbers: Places

    @staticmethod
    def bytes_of(text: npt.NDArray[np.uint8], counts: Numbers) -> _Substrings:
        values = text.astype(np.int64)
        return _Substrings(
            length=1,
            counts=np.bincount(values, counts, minlength=BYTES).astype(np.float64),
            first=np.zeros(BYTES, np.int64),
            at=np.arange(len(text)),
            numbers=values,
        )

    def longer(self, text: npt.NDArray[np.uint8], left: Places, counts: Numbers, min_count: int) -> _Substrings:
        """Return the frequent substrings that are one byte longer.

        Each begins with a frequent substring of this length.
        """
        fits = left[self.at] > self.length
        at = self.at[fits]
        keys = self.numbers[fits] * BYTES + text[at + self.length]
        _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
        total = np.bincount(numbers, counts[at], minlength=len(first)).astype(np.float64)
        often = total >= min_count
        stays = often[numbers]
        return _Substrings(
            length=self.length + 1,
            counts=total[often],
            first=at[first[often]],
            at=at[stays],
            numbers=(np.cumsum(often) - 1)[numbers[stays]],
        )


def _chosen(found: list[_Substrings]) -> list[Places]:
    """For each length of substring, return the piece number of each substring, -1 if it was not chosen as a piece.

    Chosen are all single bytes and the SEED_PIECES substrings that cover most of the text.
    """
    cover = np.concatenate([one.counts * one.length for one in found[1:]] or [np.empty(0)])
    order = np.argsort(-cover, kind="stable")[:SEED_PIECES]
    numbers = np.full(len(cover), -1)
    numbers[order] = BYTES + np.arange(len(order))
    return [np.arange(BYTES), *np.split(numbers, np.cumsum([len(one.counts) for one in found[1:-1]]))][: len(found)]


def _edges(found: list[_Substrings], chosen: list[Places], num_bytes: int) -> dict[str, Any]:
    """Return the arrays of a lattice: for each byte, the vocabulary pieces that begin there."""
    size = sum(int((numbers >= 0).sum()) for numbers in chosen)
    places, sizes = np.zeros(size, np.int64), np.ones(size, np.int64)
    at, lengths, pieces = [], [], []
    for one, numbers in zip(found, chosen, strict=True):
        taken = numbers[numbers >= 0]
        places[taken], sizes[taken] = one.first[numbers >= 0], one.length
        edges = numbers[one.numbers]
        at.append(one.at[edges >= 0])
        pieces.append(edges[edges >= 0].astype(np.int32))
        lengths.append(np.full(len(pieces[-1]), one.length, np.int32))
    begin = np.concatenate(at)
    order = np.argsort(begin, kind="stable")  # so that the shorter stay first
    return {
        "starts": np.append(0, np.cumsum(np.bincount(begin, minlength=num_bytes))),
        "lengths": np.concatenate(lengths)[order],
        "pieces": np.concatenate(pieces)[order],
        "places": places,
        "sizes": sizes,
    }


# Rounds


def maximized(lattice: Lattice, probabilities: Numbers) -> Numbers:
    """Run one pass of EM; return each piece's share of all pieces that are expected when the words are spelled."""
    expected = np.zeros(len(probabilities))
    loop = _loop(_expect, lattice)
    scaled = _scaled(lattice, probabilities)
    loop(lattice.begins, lattice.counts, lattice.starts, lattice.lengths, lattice.pieces, scaled, expected)
    return _shares(expected)


def worth_keeping(lattice: Lattice, probabilities: Numbers, size: int) -> npt.NDArray[np.bool_]:
    """Flag the `size` pieces whose removal would cost the most likelihood, and all single bytes.

    A piece's loss is the cost of spelling it with other pieces, times how often it occurs in the best spelling of a
    word.
    """
    edges = (lattice.starts, lattice.lengths, lattice.pieces, _scaled(lattice, probabilities))
    loop = _loop(_spell, lattice)
    used, unused = np.zeros(len(probabilities)), np.zeros(len(probabilities))
    loop(lattice.begins[:-1], lattice.begins[1:], lattice.counts, True, *edges, used, np.zeros(len(lattice.counts)))
    others = np.zeros(len(probabilities) - BYTES)
    places, sizes = lattice.places[BYTES:], lattice.sizes[BYTES:]
    loop(places, places + sizes, np.zeros(len(others)), False, *edges, unused, others)
    loss = used[BYTES:] * logs(edges[3][BYTES:] / others)
    kept = np.zeros(len(probabilities), np.bool_)
    kept[:BYTES] = True
    kept[BYTES + np.argsort(-loss, kind="stable")[: size - BYTES]] = True
    return kept


def _shares(weights: Numbers) -> Numbers:
    return np.maximum(weights / max(total_of(weights), 1.0), FLOOR)  # 1.0 avoids 0 / 0 if there are no words


def _scaled(lattice: Lattice, probabilities: Numbers) -> Numbers:
    return np.ldexp(probabilities, SCALE_BITS * lattice.sizes)


def _loop(kernel: Any, lattice: Lattice) -> Any:
    return kernel if len(lattice.pieces) >= COMPILED_FROM_EDGES else kernel.py_func


@native
def _expect(begins, counts, starts, lengths, pieces, scaled, expected):
    """Compute the expected number of uses of each piece over all spellings, by forward and backward sums.

    The numbers are added to `expected`.
    """
    forward, backward = np.zeros(MAX_WORD + 1), np.zeros(MAX_WORD + 1)
    for word in range(len(counts)):
        first, size = begins[word], begins[word + 1] - begins[word]
        forward[: size + 1] = 0.0
        forward[0] = 1.0
        for place in range(size):
            for edge in range(starts[first + place], starts[first + place + 1]):
                forward[place + lengths[edge]] += forward[place] * scaled[pieces[edge]]
        backward[size] = 1.0
        for place in range(size - 1, -1, -1):
            total = 0.0
            for edge in range(starts[first + place], starts[first + place + 1]):
                total += scaled[pieces[edge]] * backward[place + lengths[edge]]
            backward[place] = total
        factor = counts[word] / backward[0]
        for place in range(size):
            for edge in range(starts[first + place], starts[first + place + 1]):
                behind = backward[place + lengths[edge]]
                expected[pieces[edge]] += forward[place] * scaled[pieces[edge]] * behind * factor


@native
def _spell(begins, ends, weights, whole, starts, lengths, pieces, scaled, used, found):
    """Find the best spelling of each span of bytes, the pieces with the largest product of probabilities.

    Write this product to `found`, and add the span's weight to the pieces of the spelling in `used`. Unless `whole`, a
    span is not spelled by the single piece that equals it.
    """
    best, back = np.zeros(MAX_WORD + 1), np.zeros(MAX_WORD + 1, np.int64)
    for span in range(len(begins)):
        first, size = begins[span], ends[span] - begins[span]
        best[: size + 1] = 0.0
        best[0] = 1.0
        for place in range(size):
            for edge in range(starts[first + place], starts[first + place + 1]):
                end = place + lengths[edge]
                if end > size:
                    break
                value = best[place] * scaled[pieces[edge]]
                if value > best[end] and (whole or lengths[edge] < size):
                    best[end], back[end] = value, edge
        found[span] = best[size]
        end = size
        while end > 0:
            edge = back[end]
            used[pieces[edge]] += weights[span]
            end -= lengths[edge]

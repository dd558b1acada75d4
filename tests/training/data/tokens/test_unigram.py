"""Unigram's pieces, against every spelling of small words."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest

from training.data.tokens import unigram
from training.data.tokens.unigram import BYTES, MAX_PIECE, MAX_WORD, maximized, seeds, train, worth_keeping


def words(number: int = 40, seed: int = 0) -> dict[bytes, int]:
    generator = random.Random(seed)
    return {
        "".join(generator.choices(["ba", "k", "e", "ing", "é"], k=generator.randint(1, 4))).encode(): number + 1
        for number in range(number)
    }


def spellings(word: bytes, pieces: set[bytes]) -> list[list[bytes]]:
    if not word:
        return [[]]
    return [
        [word[:end], *rest]
        for end in range(1, len(word) + 1)
        if word[:end] in pieces
        for rest in spellings(word[end:], pieces)
    ]


def product(pieces: list[bytes], probability: dict[bytes, float]) -> float:
    return math.prod(probability[piece] for piece in pieces)


def started(counted: dict[bytes, int]):
    lattice, probabilities = seeds(counted, min_count=2)
    return lattice, probabilities, dict(zip(lattice.spelled(), probabilities.tolist(), strict=True))


def test_the_seeds_are_the_substrings_that_occur_often_enough():
    counted = {b"banana": 3, b"band": 1, b"xyz": 2, b"q" * 80: 1}
    expected = Counter()
    for word, count in counted.items():
        for part in (word[:MAX_WORD], word[MAX_WORD:]):
            for start in range(len(part)):
                for end in range(start + 2, min(len(part), start + MAX_PIECE) + 1):
                    expected[part[start:end]] += count
    lattice, _ = seeds(counted, min_count=3)
    assert set(lattice.spelled()[BYTES:]) == {piece for piece, count in expected.items() if count >= 3}
    first = lattice.lengths[lattice.starts[0] : lattice.starts[1]].tolist()
    assert first == list(range(1, 7))  # of banana, each beginning


def test_a_byte_of_zero_is_a_piece_too():
    lattice, _ = seeds({b"\0a\0": 2}, min_count=3)
    assert lattice.pieces.tolist() == [0, ord("a"), 0] and lattice.lengths.tolist() == [1, 1, 1]


def test_a_pass_counts_the_pieces_of_every_spelling():
    counted = words()
    lattice, probabilities, probability = started(counted)
    expected = Counter()
    for word, count in counted.items():
        found = spellings(word, set(probability))
        total = sum(product(one, probability) for one in found)
        for one in found:
            for piece in one:
                expected[piece] += count * product(one, probability) / total
    shares = np.array([expected[piece] for piece in probability]) / expected.total()
    assert maximized(lattice, probabilities) == pytest.approx(np.maximum(shares, unigram.FLOOR))


def test_the_pieces_that_stay_are_those_that_are_missed_most():
    counted = words()
    lattice, probabilities, probability = started(counted)
    used = Counter()
    for word, count in counted.items():
        for piece in max(spellings(word, set(probability)), key=lambda one: product(one, probability)):
            used[piece] += count
    loss = {}
    for piece in list(probability)[BYTES:]:
        others = spellings(piece, set(probability) - {piece})
        loss[piece] = used[piece] * math.log(probability[piece] / max(product(one, probability) for one in others))
    kept = worth_keeping(lattice, probabilities, BYTES + 10)
    stay = [piece for piece, stays in zip(probability, kept, strict=True) if stays]
    assert stay[:BYTES] == [bytes([value]) for value in range(BYTES)] and len(stay) == BYTES + 10
    assert sorted(loss[piece] for piece in stay[BYTES:]) == pytest.approx(sorted(loss.values())[-10:])


def test_the_order_of_words_changes_nothing_and_likelihood_grows():
    counted = words()
    made = train(counted, num_pieces=BYTES + 12, min_count=2)
    other = dict(reversed(counted.items()))
    assert made == train(other, num_pieces=BYTES + 12, min_count=2)
    first, second = (maximized(*seeds(one, min_count=2)) for one in (counted, other))
    assert np.array_equal(first, second)  # to the last bit, which a score in the file does not show
    assert len(made) == BYTES + 12 and sum(math.exp(score) for _, score in made) == pytest.approx(1, abs=1e-3)
    lattice, probabilities, _ = started(counted)
    likelihoods = []
    for _ in range(4):
        probability = dict(zip(lattice.spelled(), probabilities.tolist(), strict=True))
        likelihoods.append(
            sum(
                count * math.log(sum(product(one, probability) for one in spellings(word, set(probability))))
                for word, count in counted.items()
            )
        )
        probabilities = maximized(lattice, probabilities)
    assert likelihoods == sorted(likelihoods)


def test_the_compiled_loops_give_the_same_to_the_last_bit(monkeypatch):
    counted = words(200) | {bytes(range(256)) * 2: 1, b"\xff" * 64: 1}  # the second as improbable as can be
    plain = train(counted, num_pieces=BYTES + 20, min_count=2)
    monkeypatch.setattr(unigram, "COMPILED_FROM_EDGES", 0)
    assert train(counted, num_pieces=BYTES + 20, min_count=2) == plain


def test_a_sample_with_few_substrings_gives_few_pieces():
    assert len(train({b"abc": 5}, num_pieces=1000, min_count=2)) == BYTES + 3
    assert len(train({}, num_pieces=1000, min_count=2)) == BYTES


def test_a_span_is_spelled_by_its_likeliest_pieces_and_each_is_counted_once():
    """The pieces are `a`, `b` and the less likely `ab`."""
    edges = np.array([0, 2, 3]), np.array([1, 2, 1]), np.array([0, 2, 1])
    used, found = np.zeros(3), np.zeros(1)
    span = np.array([0]), np.array([2]), np.array([3.0])
    unigram._spell.py_func(*span, True, *edges, np.array([0.5, 0.5, 0.1]), used, found)
    assert (used.tolist(), found.tolist()) == ([3.0, 3.0, 0.0], [0.25])

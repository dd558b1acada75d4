"""A shuffle whose positions can be computed one by one: a keyed bijection on the numbers 0 … count - 1.

Needs only numpy.

A number stands for a cell of a grid with about as many rows as columns. Each round adds a keyed hash of the column to
the row, or a keyed hash of the row to the column: a Feistel network on a grid (Black and Rogaway, "Ciphers with
Arbitrary Finite Domains", 2002). A cell beyond the count is shuffled again until it lies within it. So no array of all
numbers is needed, and both directions can be computed: the number at a position and the position of a number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from math import isqrt

import numpy as np

# A small grid has few hash values, so it needs more rounds. The 120 orders of five numbers, over 6,000 seeds, differed
# from equal frequencies by 15 % more than chance after 8 rounds, and no more than chance after 24.
ROUNDS, ROUNDS_OF_FEW = 8, 24
FEW = 4096

# Odd multipliers and shifts of the hash (splitmix64; Steele, Lea and Flood, 2014).
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_FOLD, _HALF = np.uint64(30), np.uint64(32)


class Shuffle:
    """An order of the numbers 0 … count - 1 that depends only on the count, the seed, the epoch and the source."""

    def __init__(self, count: int, *, seed: int, epoch: int, source: str) -> None:
        if not 0 <= count < 1 << 63:
            raise ValueError(f"count={count}; it must be at least 0 and less than 2**63")
        self.count = count
        rows = isqrt(max(count, 1) - 1) + 1
        self._sizes = np.uint64(rows), np.uint64(max(1, -(-count // rows)))
        rounds = ROUNDS_OF_FEW if count <= FEW else ROUNDS
        drawn = hashlib.shake_256(f"{seed}/{epoch}/{source}".encode()).digest(8 * rounds)
        self._keys = np.frombuffer(drawn, dtype="<u8").astype(np.uint64)

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """Return the number at each of these positions in the shuffled order, int64."""
        return self._within(places, self._forward)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Return the position of each of these numbers in the shuffled order, int64."""
        return self._within(numbers, self._backward)

    def _within(self, given: np.ndarray, step: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        found = step(given.astype(np.uint64))
        beyond = np.flatnonzero(found >= self.count)
        while len(beyond):
            found[beyond] = step(found[beyond])
            beyond = beyond[found[beyond] >= self.count]
        return found.astype(np.int64)

    def _forward(self, cells: np.ndarray) -> np.ndarray:
        parts = list(np.divmod(cells, self._sizes[1]))
        for number in range(len(self._keys)):
            moved, size = parts[number % 2], self._sizes[number % 2]
            moved += self._distance(number, parts)
            np.minimum(moved, moved - size, out=moved)  # moved below the size, because unsigned numbers wrap around
        return parts[0] * self._sizes[1] + parts[1]

    def _backward(self, cells: np.ndarray) -> np.ndarray:
        parts = list(np.divmod(cells, self._sizes[1]))
        for number in reversed(range(len(self._keys))):
            moved, size = parts[number % 2], self._sizes[number % 2]
            moved -= self._distance(number, parts)
            np.minimum(moved, moved + size, out=moved)
        return parts[0] * self._sizes[1] + parts[1]

    def _distance(self, number: int, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return how far a round moves each row (even rounds) or column (odd rounds).

        The distance is a hash below their number, uint64.
        """
        hashed = parts[1 - number % 2] + self._keys[number]
        hashed *= _FIRST
        hashed ^= hashed >> _FOLD
        hashed *= _SECOND
        hashed ^= hashed >> _HALF
        hashed *= _FIRST
        hashed >>= _HALF
        hashed *= self._sizes[number % 2]
        hashed >>= _HALF
        return hashed

"""Rows that an objective rewrites, and the random numbers with which it does so. Uses numpy only."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from training.order.loss_mask import IGNORED

NO_DOCUMENT = -1


class Batch(NamedTuple):
    """Rows ready for the model, each array int64 `[R, L]`.

    `prefix` (booleans, or None) marks the positions that all positions of their document see.
    """

    tokens: np.ndarray
    targets: np.ndarray
    documents: np.ndarray
    prefix: np.ndarray | None = None

    def at(self, place: int | slice) -> Batch:
        """Return one row of the batch, or several successive rows, as views of the same memory."""
        prefix = None if self.prefix is None else self.prefix[place]
        return Batch(self.tokens[place], self.targets[place], self.documents[place], prefix)

    @property
    def seen_by_all(self) -> np.ndarray:
        """The positions that all positions of their document see (`prefix`).

        The batch must be of an objective that has such positions.
        """
        assert self.prefix is not None, "a causal objective has no prefix"
        return self.prefix

    @property
    def trained_tokens(self) -> int:
        """Number of positions with a target."""
        return int((self.targets != IGNORED).sum())


class Draws:
    """Random numbers that depend only on the key: raw Philox output, which numpy guarantees not to change."""

    def __init__(self, *key: object) -> None:
        digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()[:16]
        self._bits = np.random.Philox(key=np.frombuffer(digest, dtype="<u8"))

    def uniform(self, count: int) -> np.ndarray:
        """Return `count` numbers in [0, 1)."""
        return (self._bits.random_raw(count) >> np.uint64(11)) * 2.0**-53

    def below(self, bound: int) -> int:
        """Return a whole number from 0 to `bound` - 1."""
        return int(self.uniform(1)[0] * bound)

    def chosen(self, count: int, bound: int) -> np.ndarray:
        """Return `count` different whole numbers below `bound`, in increasing order."""
        return np.sort(np.argsort(self.uniform(bound), kind="stable")[:count])

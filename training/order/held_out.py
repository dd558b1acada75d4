"""Choose the documents that are held out of training, and those that each evaluation during training reads.

Only a document's id decides whether it is held out, never the seed, the mixture or its place. Ids also give the order
in which documents are held out as the share grows; an evaluation reads the first ones in this order, up to a number of
tokens (called a *look* in the code).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from math import ceil

import numpy as np


def is_held_out(document_id: str, fraction: float) -> bool:
    """Whether a document is kept out of training, for a share of held-out documents between 0 and 1."""
    return held_out_rank(document_id) < fraction * 2**64


def held_out_rank(document_id: str) -> int:
    """Return a hash of the document's id, from 0 to 2^64, by which held-out documents are chosen: the lowest first."""
    return int.from_bytes(hashlib.sha256(f"held_out/{document_id}".encode()).digest()[:8])


def held_out_ranks(document_ids: Iterable[bytes]) -> np.ndarray:
    """Return `held_out_rank` of many documents, whose ids are given in UTF-8, uint64."""
    found = b"".join(hashlib.sha256(b"held_out/" + name).digest()[:8] for name in document_ids)
    return np.frombuffer(found, dtype=">u8").astype(np.uint64)


def are_held_out(ranks: np.ndarray, fraction: float) -> np.ndarray:
    """Return which documents are held out of training, given their `held_out_rank`."""
    limit = ceil(fraction * 2**64)
    return ranks < np.uint64(limit) if limit < 2**64 else np.ones(len(ranks), dtype=bool)


def budgets(held_out_tokens: Mapping[str, int], tokens: int) -> dict[str, int]:
    """Divide the tokens of one evaluation on held-out text among the sources, in equal parts.

    No source gets more than its held-out tokens; what a small source leaves goes to the others.
    """
    found, left = {}, tokens
    by_size = sorted(held_out_tokens, key=lambda name: (held_out_tokens[name], name))
    for place, name in enumerate(by_size):
        found[name] = min(held_out_tokens[name], left // (len(by_size) - place))
        left -= found[name]
    return found


def looked_at(ranks: np.ndarray, tokens: np.ndarray, budget: int) -> np.ndarray:
    """Return the sorted indices of the held-out documents that an evaluation reads.

    They are the first documents by rank with at most `budget` tokens together, and always at least one.
    """
    order = np.argsort(ranks, kind="stable")
    fitting = int(np.searchsorted(np.cumsum(tokens[order]), budget, side="right"))
    return np.sort(order[: max(fitting, 1)])

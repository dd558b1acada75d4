"""Which documents are held out of training. Only a document's id decides, never the seed, the mixture or its place."""

from __future__ import annotations

import hashlib


def is_held_out(document_id: str, fraction: float) -> bool:
    """Whether a document is kept out of training, for a share of held-out documents between 0 and 1."""
    return held_out_rank(document_id) < fraction * 2**64


def held_out_rank(document_id: str) -> int:
    """Return the document's place, from 0 to 2^64, in the order in which documents are held out as the share grows."""
    return int.from_bytes(hashlib.sha256(f"held_out/{document_id}".encode()).digest()[:8])

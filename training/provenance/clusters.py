"""The cluster of a page: all pages that the deduplication tied to it, kept or dropped, in all snapshots.

Each dropped duplicate names one page that it repeats, by address, by text or nearly. The cluster is what can be reached
from a page along these names, in both directions: a dropped copy leads to the page that was kept in its place, and
this page to its other copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from training.provenance.index import Index
from training.provenance.layout import DUPLICATE_KIND, KEPT_KIND, KINDS
from training.provenance.lineage import CORPUS_BACKWARDS

# Kinds of pages that the deduplication met: only these can have duplicates.
MET = [
    number
    for number, kind in enumerate(KINDS)
    if CORPUS_BACKWARDS.index(kind.asset) <= CORPUS_BACKWARDS.index(KINDS[DUPLICATE_KIND].asset)
]
Member = dict[str, Any]  # id, url, whether it was kept up to the shards; of a dropped duplicate also the reason


def cluster_of(indexes: Sequence[Index], pages: Sequence[np.ndarray]) -> list[dict[int, Member]]:
    """Return, for each index, all pages that are direct or indirect duplicates of these pages, by number.

    `pages` are sorted, each once, and are left out of the result.
    """
    known = [own.copy() for own in pages]
    found: list[dict[int, Member]] = [{} for _ in indexes]
    waiting = list(pages)
    while any(len(own) for own in waiting):
        ids, hashes = _copied(indexes, waiting)
        repeated = _repeated(indexes, waiting)
        waiting = []
        for number, index in enumerate(indexes):
            near = np.union1d(index.copies_of_any(hashes), index.pages_of_ids(repeated))
            rows = index.rows(
                np.setdiff1d(near, known[number]),
                lambda row, ids=ids, repeated=repeated: row.get("duplicate_of") in ids or row["id"] in repeated,
                columns=("id", "url", "duplicate_of", "reason"),
            )
            for one in rows:
                is_kept = one.place.kind == KEPT_KIND
                reason = one.row.get("reason") if one.place.kind == DUPLICATE_KIND else None
                found[number][one.page] = {"id": one.row["id"], "url": one.row.get("url"), "is_kept": is_kept} | (
                    {"reason": reason} if reason else {}
                )
            waiting.append(np.array(sorted(one.page for one in rows), np.int64))
            known[number] = np.union1d(known[number], waiting[-1])
    return [dict(sorted(own.items())) for own in found]


def _copied(indexes: Sequence[Index], pages: Sequence[np.ndarray]) -> tuple[set[str], np.ndarray]:
    """Return the ids of those pages of which copies may have been dropped, and the sorted hashes of these ids.

    Only these pages are read.
    """
    met = [own[np.isin(index.kinds_of(own), MET)] for index, own in zip(indexes, pages, strict=True)]
    hashes = [index.id_hashes(own) for index, own in zip(indexes, met, strict=True)]
    every = np.unique(np.concatenate(hashes))
    copied = every[np.any([index.have_copies(every) for index in indexes], axis=0)]
    chosen = [own[np.isin(some, copied)] for own, some in zip(met, hashes, strict=True)]
    return {
        one.row["id"] for index, own in zip(indexes, chosen, strict=True) for one in index.rows(own, columns=("id",))
    }, copied


def _repeated(indexes: Sequence[Index], pages: Sequence[np.ndarray]) -> set[str]:
    """Return the ids of the pages that those of these pages repeat which were dropped as duplicates."""
    return {
        one.row["duplicate_of"]
        for index, own in zip(indexes, pages, strict=True)
        for one in index.rows(own[index.kinds_of(own) == DUPLICATE_KIND], columns=("duplicate_of",))
    }

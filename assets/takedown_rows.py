"""Rows of post-training and synthetic text that repeat withdrawn pages, for the answer of `pedigree takedown`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from training.artifact import Artifact
from training.data.address_lists import Target
from training.provenance.index import Index, read_rows
from training.provenance.layout import KEPT_KIND, KINDS, QUARANTINED
from training.provenance.lineage import artifacts_under
from training.provenance.rows.rows import INDEXES, RowIndex, row_indexes_under, rows_holding
from training.provenance.sound import sound
from training.provenance.withdrawal import ids_of

TEXTS = "decontaminated_documents"  # has the texts of pages that are in shards
WITH_ROWS = tuple(asset for assets in INDEXES.values() for asset in assets)


def rows_of(
    root: Path, indexes: Sequence[Index], pages: Sequence[np.ndarray], targets: Sequence[Target]
) -> dict[str, Any]:
    """Return the rows that share a run of eight words with one of these pages, or that name the address of a target.

    `pages` are those of each index. `rows_not_known` has a sentence for each artifact whose rows are in no index.
    """
    known = row_indexes_under(root)
    told = {"rows": [], "rows_not_known": list(_not_indexed(root, known))}
    if not known:
        return told
    texts = [text for index, own in zip(indexes, pages, strict=True) for text in _texts(index, own)]
    entries = [one.entry for one in targets if one.kind != "document"]
    return told | {"rows": rows_holding(known, texts, entries)}


def _not_indexed(root: Path, known: Iterable[RowIndex]) -> Iterator[str]:
    have = {(asset, item.digest) for index in known for asset, item in index.inputs.items()}
    others: list[Artifact] = [
        made
        for made in artifacts_under(root, lambda asset: asset in WITH_ROWS)
        if (made.record["asset"], made.digest) not in have
    ]
    for made in sorted(others, key=lambda one: (one.record["asset"], one.record["partition"])):
        place = f"{made.record['asset']} [{made.record['partition']}] {made.fingerprint[:12]}"
        yield f"The rows of {place} are in no index: whether they repeat a page is not known."


def _texts(index: Index, pages: np.ndarray) -> Iterator[str]:
    """Yield the texts of pages, kept or dropped. Quarantined pages have none, and neither have withdrawn ones."""
    places = index.places_of(pages)
    files: dict[tuple[int, int, int], list[int]] = {}
    for number, place in enumerate(places):
        files.setdefault((place.kind, place.rank, place.part), []).append(number)
    for (kind, rank, _), numbers in files.items():
        if KINDS[kind].outcome == QUARANTINED:
            continue
        if kind == KEPT_KIND:
            ids = set(ids_of(index, pages[numbers]))
            path = sound(index.inputs[TEXTS], f"documents/{rank:05d}.parquet")
            every = pq.read_table(path, columns=["id"])["id"].to_pylist()
            rows = [number for number, id_ in enumerate(every) if id_ in ids]
            texts = [row["text"] for row in read_rows(path, rows, ("text",))]
        else:
            path = sound(index.inputs[KINDS[kind].asset], index.file_of(places[numbers[0]]))
            texts = [row.get("text") for row in read_rows(path, [places[number].row for number in numbers], ("text",))]
        yield from (text for text in texts if text)

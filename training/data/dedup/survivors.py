"""Which document of a cluster of duplicates stays, where the recipe wants another than the first.

A document can only take the place of the first one if it was itself verified against it, and only within the own
snapshot. Documents of earlier snapshots stay whatever comes later, so the result is as incremental as without a choice.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.data.dedup.duplicates import Corpus, Orders, Verdicts
from training.data.documents import open_documents
from training.job import DataError

COLUMNS: Final = {
    "newest": "date",
    "longest": "text",
    "best_score": "quality_score",
    "own_language": "language_score",
}


def choose_survivors(corpus: Corpus, verdicts: Verdicts, policy: str) -> list[str | None]:
    """Change the verdicts so that the best document of each cluster is kept; return for each document why another was
    kept.

    The best document has the highest value in the policy's column; of equal documents the first is kept. The returned
    list has a text for each removed document of the job's snapshot, with the values compared, and None for a kept one.
    """
    groups, members = _clusters(verdicts, corpus.own_start)
    values = _values(corpus, members, policy)
    ranks = np.unique(values, return_inverse=True)[1]
    by = np.lexsort((members, -ranks, groups))
    best = by[np.concatenate([[True], groups[by][1:] != groups[by][:-1]])] if len(by) else by
    heads, chosen, kept_values = groups[best], members[best], values[best]
    _exchange(verdicts, heads, chosen, corpus.own_start)
    why: list[str | None] = [None] * corpus.num_own
    for row in np.flatnonzero(verdicts.reason).tolist():
        why[row] = "an earlier snapshot" if verdicts.of[row] < corpus.own_start else "first"
    places = np.searchsorted(heads, groups)
    for i in np.flatnonzero(members != chosen[places]).tolist():
        kept, own = kept_values[places[i]], values[i]
        why[members[i]] = "first, of equal documents" if kept == own else f"{policy}: {_shown(kept)}, not {_shown(own)}"
    return why


def _clusters(verdicts: Verdicts, own_start: int) -> tuple[Orders, Orders]:
    """Return (first document, member) for each member of a cluster of duplicates, as rows of the job's snapshot."""
    removed = np.flatnonzero(verdicts.reason)
    heads = verdicts.of[removed] - own_start
    direct = heads >= 0
    direct[direct] = verdicts.reason[heads[direct]] == 0
    heads, removed = heads[direct], removed[direct]
    firsts = np.unique(heads)
    return np.concatenate([firsts, heads]), np.concatenate([firsts, removed])


def _values(corpus: Corpus, rows: Orders, policy: str) -> Any:
    """Return the value of the policy's column for each document in `rows`: numbers, or dates as text.

    A document without a value gets the lowest one. Raise DataError if the documents lack the column.
    """
    column = COLUMNS[policy]
    for path in corpus.document_files[corpus.first_own_file :]:
        with open_documents(path) as parquet:
            if column not in parquet.schema_arrow.names:
                raise DataError(
                    f"dedup.survivor={policy!r} needs the column {column}, which {path} lacks;"
                    " switch on the rule of the section filter that writes it, or choose another survivor"
                )
    places = np.unique(rows)
    parts = [_measured(part, policy) for part in corpus.rows(places + corpus.own_start, column)]
    values = np.concatenate(parts) if parts else np.empty(0)
    return values[np.searchsorted(places, rows)]


def _measured(part: pa.Array, policy: str) -> Any:
    if policy == "longest":
        part = pc.utf8_length(part)
    if policy == "newest":
        return np.array(pc.fill_null(part, "").to_pylist(), np.str_)
    return pc.fill_null(part.cast(pa.float64()), -np.inf).to_numpy(zero_copy_only=False)


def _exchange(verdicts: Verdicts, heads: Orders, chosen: Orders, own_start: int) -> None:
    """Keep the chosen documents, and remove the first document of each cluster in their place, for the same reason."""
    moved = heads != chosen
    heads, chosen = heads[moved], chosen[moved]
    verdicts.remove(heads, verdicts.reason[chosen], chosen + own_start, verdicts.similarity[chosen])
    verdicts.remove(chosen, 0, np.full(len(chosen), -1), 0.0)


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{value:.6g}"

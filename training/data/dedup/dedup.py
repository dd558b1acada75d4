"""Stage `dedup`: removes duplicate documents so that adding a newer snapshot never changes an older one's result.

Documents are ordered by snapshot (in the recipe's order), then WARC file, then offset. A document is removed if and
only if an earlier document

- has exactly the same text,
- is a verified near-duplicate: the Jaccard similarity of the two sets of word n-grams is at least `min_similarity`,
- or, with `urls`, has the same URL.

The first document of a cluster stays, or the one that `survivor` asks for (training.data.dedup.survivors).

It does not matter whether that earlier document was itself removed, so the result of a snapshot depends only on itself
and on older snapshots. Candidates are documents that share a MinHash key (training.data.dedup.sign). Every candidate
pair is verified on the n-grams of its texts, and only the texts of candidates are opened
(training.data.dedup.duplicates).

Repeated lines and substrings can then be cut from the documents that stay (training.data.dedup.edits). A document that
is empty after these cuts is dropped too.

`duplicate_of` is the first document with the same URL; if there is none, the first with the same text, then the first
with the same n-grams, then the first verified near-duplicate.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.data.dedup import sign as signatures
from training.data.dedup.duplicates import EXACT, NEAR, REASONS, URL, Corpus, Flags, Orders, Verdicts, find_duplicates
from training.data.dedup.edits import Edits, find_edits
from training.data.dedup.settings import DedupRecipe
from training.data.dedup.survivors import choose_survivors
from training.data.documents import (
    EXTRA_COLUMNS,
    DocumentWriter,
    count_documents,
    document_files,
    extra_columns,
    open_documents,
)
from training.job import Counts, DataError, Gate, Job, Outcome, Work

log = logging.getLogger(__name__)

SAMPLE_PAIRS = 20


def run(job: Job, work: Work) -> Outcome:
    """Deduplicate the documents of the job's snapshot against each other and against all earlier snapshots."""
    recipe = job.settings_as(DedupRecipe, "dedup")
    corpus = corpus_of(job)
    verdicts = find_duplicates(corpus, recipe, work) if recipe.enabled else Verdicts.keep_all(corpus.num_own)
    chooses = recipe.enabled and recipe.survivor != "first"
    why = choose_survivors(corpus, verdicts, recipe.survivor) if chooses else None
    ids = Ids(corpus, verdicts)
    edits = find_edits(corpus, verdicts, recipe) if recipe.enabled else None
    files, tally, counts = _write(corpus, verdicts, edits, ids, why, work)
    return Outcome(
        files=files,
        counts=counts,
        metrics=_metrics(corpus, verdicts, tally) | (dict(edits.counts) if edits else {}),
        gates=_gates(recipe, tally),
        notes=_survival(tally) | _notes(recipe, verdicts, corpus, ids),
    )


def corpus_of(job: Job) -> Corpus:
    """Return the document and signature files of all snapshots in a job's inputs.

    Raise DataError if the documents and signatures are not those of the same snapshots.
    """
    filtered, signed = job.inputs_of("filtered_documents"), job.inputs_of("document_signatures")
    if not filtered or [item.partition for item in filtered] != [item.partition for item in signed]:
        raise DataError(
            f"dedup of {job.partition}: filtered_documents of {[item.partition for item in filtered]} but"
            f" document_signatures of {[item.partition for item in signed]}; both are wanted for the same snapshots"
        )
    if filtered[-1].partition.partition("@")[2] != job.snapshot:
        raise DataError(f"dedup of {job.partition}: the last input is {filtered[-1].partition}, not the own snapshot")
    documents = [document_files(item) for item in filtered]
    corpus = Corpus(
        document_files=tuple(path for files in documents for path in files),
        signature_files=tuple(path for item in signed for path in document_files(item, signatures.FOLDER)),
        num_own_files=len(documents[-1]),
    )
    if len(corpus.document_files) != len(corpus.signature_files):
        raise DataError(
            f"dedup of {job.partition}: {len(corpus.document_files)} document files,"
            f" {len(corpus.signature_files)} signature files"
        )
    return corpus


class Ids:
    """Looks up document ids by order number, to name the documents that removed documents repeat."""

    def __init__(self, corpus: Corpus, verdicts: Verdicts) -> None:
        self._orders = np.unique(verdicts.of[verdicts.reason > 0])
        parts = list(corpus.rows(self._orders, "id"))
        self._ids = pa.chunked_array(parts, pa.string()).combine_chunks()

    def of(self, orders: Orders) -> pa.StringArray:
        """Return the ids of the documents with these order numbers; null for -1 (no document)."""
        places = np.searchsorted(self._orders, orders)
        return self._ids.take(pa.array(places, mask=orders < 0))


# Writing


@dataclass(kw_only=True)
class _Tally:
    """Documents kept and seen per (source, language), for the gate `survival`, and documents dropped per reason."""

    kept: Counter[tuple[str, str]]
    total: Counter[tuple[str, str]]
    reasons: Counter[str]

    def add(self, table: pa.Table, staying: pa.Table, going: pa.Table) -> None:
        """Count the documents of `table`, which is split into the `staying` and the `going` ones."""
        self.total.update(_groups(table))
        self.kept.update(_groups(staying))
        self.reasons.update(going["reason"].to_pylist())


def _write(
    corpus: Corpus, verdicts: Verdicts, edits: Edits | None, ids: Ids, why: Sequence[str | None] | None, work: Work
) -> tuple[tuple[str, ...], _Tally, Counts]:
    """Write the kept and the dropped documents of the job's snapshot, one file of each per input file.

    `why` is the column `survivor` of the dropped documents: for each document of the snapshot, why another one was kept
    instead. If `why` is None, the column is left out.
    """
    added = ("reason", "duplicate_of", "similarity") + (("survivor",) if why is not None else ())
    tally = _Tally(kept=Counter(), total=Counter(), reasons=Counter())
    names: list[str] = []
    counts: list[dict[str, Any]] = []
    last: tuple[str, int] = ("", -1)
    row = 0
    for rank, path in enumerate(corpus.document_files[corpus.first_own_file :]):
        extra = extra_columns(path)
        pair = f"documents/{rank:05d}.parquet", f"dropped/{rank:05d}.parquet"
        names.extend(pair)
        with (
            open_documents(path) as parquet,
            DocumentWriter(work.path / pair[0], extra) as kept,
            DocumentWriter(work.path / pair[1], (*extra, *added)) as dropped,
        ):
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group, use_threads=False)
                last = _checked_order(last, table, path)
                rows = np.arange(row, row + len(table))
                row += len(table)
                staying, going = _judged(table, rows, verdicts, edits, ids, why)
                tally.add(table, staying, going)
                kept.write_table(staying)
                dropped.write_table(going)
        of_file = Counts(records_in=count_documents(path), kept=kept.num_documents, dropped=dict(dropped.reasons))
        counts.append(of_file.as_json())
        work.progress.log(step=rank + 1, documents=tally.total.total(), kept=tally.kept.total())
    return tuple(names), tally, Counts.total(counts)


def _judged(
    table: pa.Table, rows: Orders, verdicts: Verdicts, edits: Edits | None, ids: Ids, why: Sequence[str | None] | None
) -> tuple[pa.Table, pa.Table]:
    """Split a table into the kept documents, and the removed ones with columns for the reason and the repeated
    document.
    """
    reasons = np.array([None, *REASONS[1:]])[verdicts.reason[rows]]
    removed = verdicts.reason[rows] > 0
    if edits is not None:
        texts, emptied = edits.apply(table["text"].combine_chunks().filter(pa.array(~removed)), rows[~removed])
        reasons[~removed] = emptied
        table = _with_texts(table, ~removed & (reasons == None), texts, emptied)  # noqa: E711 - elementwise
    gone = np.array([reason is not None for reason in reasons], np.bool_)
    of, similarity = verdicts.of[rows[gone]], verdicts.similarity[rows[gone]]
    known = removed[gone]
    going = table.filter(pa.array(gone))
    for name, values in (
        ("reason", pa.array(reasons[gone].tolist(), EXTRA_COLUMNS["reason"])),
        ("duplicate_of", ids.of(of)),
        ("similarity", pa.array(similarity, EXTRA_COLUMNS["similarity"], mask=~known)),
    ):
        going = going.append_column(name, values)
    if why is not None:
        reasons_to_stay = pa.array([why[row] for row in rows[gone].tolist()], EXTRA_COLUMNS["survivor"])
        going = going.append_column("survivor", reasons_to_stay)
    return table.filter(pa.array(~gone)), going


def _with_texts(table: pa.Table, staying: Flags, texts: pa.StringArray, emptied: list[str | None]) -> pa.Table:
    """Return the table with the edited texts of the documents that stay; removed documents keep their original text."""
    kept = texts.filter(pa.array([reason is None for reason in emptied], pa.bool_()))
    column = pc.replace_with_mask(table["text"].combine_chunks(), pa.array(staying), kept)
    return table.set_column(table.schema.names.index("text"), table.schema.field("text"), column)


def _groups(table: pa.Table) -> Counter[tuple[str, str]]:
    """Number of documents per (source, language)."""
    languages = pc.fill_null(table["language"], "")
    return Counter(zip(table["source"].to_pylist(), languages.to_pylist(), strict=True))


def _checked_order(last: tuple[str, int], table: pa.Table, path: Path) -> tuple[str, int]:
    files, offsets = table["warc_file"].to_pylist(), table["warc_offset"].to_pylist()
    for number, place in enumerate(zip(files, offsets, strict=True)):
        if place <= last:
            raise DataError(
                f"{path}: document {table['id'][number].as_py()!r} comes after {last[0]} at {last[1]}; documents must"
                " ascend by WARC file and offset through a snapshot's files, because the smaller one stays"
            )
        last = place
    return last


# Reporting


def _metrics(corpus: Corpus, verdicts: Verdicts, tally: _Tally) -> dict[str, float]:
    removed = np.flatnonzero(verdicts.reason)
    sizes = np.unique(_roots(corpus, verdicts)[removed], return_counts=True)[1]
    total = tally.total.total()
    return {
        "documents": total,
        "kept_fraction": tally.kept.total() / max(total, 1),
        "removed_exact": tally.reasons[REASONS[EXACT]],
        "removed_near": tally.reasons[REASONS[NEAR]],
        "removed_cross_snapshot": int(np.count_nonzero(verdicts.of[removed] < corpus.own_start)),
        "clusters": len(sizes),
        "largest_cluster": int(sizes.max()) + 1 if len(sizes) else 0,
        "compared_documents": len(corpus),
    } | ({"removed_url": tally.reasons[REASONS[URL]]} if tally.reasons[REASONS[URL]] else {})


def _roots(corpus: Corpus, verdicts: Verdicts) -> Orders:
    """Order number of the document at which each document's chain of `duplicate_of` ends, for the job's snapshot.

    A chain stops at the first document of an earlier snapshot. A document that repeats no other is its own root.
    """
    own = np.arange(corpus.own_start, len(corpus))
    roots = np.where(verdicts.reason > 0, verdicts.of, own)
    while True:
        inner = roots >= corpus.own_start
        further = roots.copy()
        further[inner] = roots[roots[inner] - corpus.own_start]
        if np.array_equal(further, roots):
            return roots
        roots = further


def _gates(recipe: DedupRecipe, tally: _Tally) -> tuple[Gate, ...]:
    """Return the gate `survival`: every source and language keeps at least the share that the recipe asks for.

    Return no gate if `min_kept_fraction` is 0.
    """
    if recipe.min_kept_fraction <= 0:
        return ()
    survival = {group: tally.kept[group] / total for group, total in sorted(tally.total.items())}
    failed = {"/".join(group): round(share, 6) for group, share in survival.items() if share < recipe.min_kept_fraction}
    return (
        Gate(
            name="survival",
            passed=not failed,
            evidence={
                "min_kept_fraction": recipe.min_kept_fraction,
                "below": failed,
                "lowest": round(min(survival.values(), default=1.0), 6),
                "groups": len(survival),
            },
        ),
    )


def _survival(tally: _Tally) -> dict[str, Any]:
    """Number of documents read and kept for each source and language."""
    return {
        "survival": {
            "/".join(group): {"in": total, "kept": tally.kept[group]} for group, total in sorted(tally.total.items())
        }
    }


def _notes(recipe: DedupRecipe, verdicts: Verdicts, corpus: Corpus, ids: Ids) -> dict[str, Any]:
    if not recipe.enabled:
        return {"deduplication": "off: dedup.enabled is false, every document passed"}
    # Take the sample at even distances over the snapshot, so that every run shows the same pairs.
    removed = np.flatnonzero(verdicts.reason)
    removed = removed[:: max(1, len(removed) // SAMPLE_PAIRS)][:SAMPLE_PAIRS]
    own = pa.chunked_array(list(corpus.rows(removed + corpus.own_start, "id")), pa.string()).to_pylist()
    return {
        "sample_pairs": [
            {
                "id": name,
                "duplicate_of": other,
                "similarity": round(float(verdicts.similarity[row]), 4),
                "reason": REASONS[verdicts.reason[row]],
            }
            for name, other, row in zip(own, ids.of(verdicts.of[removed]).to_pylist(), removed.tolist(), strict=True)
        ]
    }

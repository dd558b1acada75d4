"""Stage `dedup`: duplicate removal that a newer snapshot never changes.

The rule: a document is removed if and only if an earlier document (recipe order of snapshots, then WARC file, then
offset) has exactly its text, or is a verified near-duplicate of it: the Jaccard similarity of their sets of word
n-grams is at least `min_similarity`; with `urls`, also if an earlier one has its URL. Whether that earlier document was
itself removed does not matter, so every snapshot's result depends on it and older ones alone. Candidates share a
MinHash key (training.data.dedup.sign); every candidate pair is verified on the n-grams of its texts, and only
candidates' texts are opened (training.data.dedup.duplicates).

In what stays, lines and substrings that repeat can be cut (training.data.dedup.edits); a document of which nothing is
left is dropped too.

`duplicate_of` is the first document with the same URL, else with the same text, else with the same n-grams, else the
first verified near-duplicate.
"""

from __future__ import annotations

import logging
from collections import Counter
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
    """Deduplicate the job's own snapshot against itself and every earlier one."""
    recipe = job.settings_as(DedupRecipe, "dedup")
    corpus = corpus_of(job)
    verdicts = find_duplicates(corpus, recipe, work) if recipe.enabled else Verdicts.keep_all(corpus.num_own)
    ids = Ids(corpus, verdicts)
    edits = find_edits(corpus, verdicts, recipe) if recipe.enabled else None
    files, tally, counts = _write(corpus, verdicts, edits, ids, work)
    return Outcome(
        files=files,
        counts=counts,
        metrics=_metrics(corpus, verdicts, tally) | (dict(edits.counts) if edits else {}),
        gates=_gates(recipe, tally),
        notes=_survival(tally) | _notes(recipe, verdicts, corpus, ids),
    )


def corpus_of(job: Job) -> Corpus:
    """The corpus that a job names. DataError when documents and signatures do not belong together."""
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
    """The ids of the documents that removed ones repeat."""

    def __init__(self, corpus: Corpus, verdicts: Verdicts) -> None:
        self._orders = np.unique(verdicts.of[verdicts.reason > 0])
        parts = list(corpus.rows(self._orders, "id"))
        self._ids = pa.chunked_array(parts, pa.string()).combine_chunks()

    def of(self, orders: Orders) -> pa.StringArray:
        """The ids of some of them, by order number; null for none (-1)."""
        places = np.searchsorted(self._orders, orders)
        return self._ids.take(pa.array(places, mask=orders < 0))


# Writing


@dataclass(kw_only=True)
class _Tally:
    """What was kept and dropped, per (source, language) for the gate."""

    kept: Counter[tuple[str, str]]
    total: Counter[tuple[str, str]]
    reasons: Counter[str]

    def add(self, table: pa.Table, staying: pa.Table, going: pa.Table) -> None:
        """Count the documents of a table, of which some stay and some go."""
        self.total.update(_groups(table))
        self.kept.update(_groups(staying))
        self.reasons.update(going["reason"].to_pylist())


def _write(
    corpus: Corpus, verdicts: Verdicts, edits: Edits | None, ids: Ids, work: Work
) -> tuple[tuple[str, ...], _Tally, Counts]:
    """Copy the own documents into kept and dropped ones, file by file."""
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
            DocumentWriter(work.path / pair[1], (*extra, "reason", "duplicate_of", "similarity")) as dropped,
        ):
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group, use_threads=False)
                last = _checked_order(last, table, path)
                rows = np.arange(row, row + len(table))
                row += len(table)
                staying, going = _judged(table, rows, verdicts, edits, ids)
                tally.add(table, staying, going)
                kept.write_table(staying)
                dropped.write_table(going)
        of_file = Counts(records_in=count_documents(path), kept=kept.num_documents, dropped=dict(dropped.reasons))
        counts.append(of_file.as_json())
        work.progress.log(step=rank + 1, documents=tally.total.total(), kept=tally.kept.total())
    return tuple(names), tally, Counts.total(counts)


def _judged(
    table: pa.Table, rows: Orders, verdicts: Verdicts, edits: Edits | None, ids: Ids
) -> tuple[pa.Table, pa.Table]:
    """The documents of a table that are kept, and the removed ones with the columns that say why."""
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
    return table.filter(pa.array(~gone)), going


def _with_texts(table: pa.Table, staying: Flags, texts: pa.StringArray, emptied: list[str | None]) -> pa.Table:
    """The table with the edited texts of the documents that stay; one that goes keeps the text that it had."""
    kept = texts.filter(pa.array([reason is None for reason in emptied], pa.bool_()))
    column = pc.replace_with_mask(table["text"].combine_chunks(), pa.array(staying), kept)
    return table.set_column(table.schema.names.index("text"), table.schema.field("text"), column)


def _groups(table: pa.Table) -> Counter[tuple[str, str]]:
    """Documents of each source and language."""
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
    """For each own document the one at the end of its chain of `duplicate_of`; one of an earlier snapshot ends it."""
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
    """`survival`: every source and language keeps at least the recipe's share. Absent when the recipe asks for none."""
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
    """Documents in and kept of each source and language."""
    return {
        "survival": {
            "/".join(group): {"in": total, "kept": tally.kept[group]} for group, total in sorted(tally.total.items())
        }
    }


def _notes(recipe: DedupRecipe, verdicts: Verdicts, corpus: Corpus, ids: Ids) -> dict[str, Any]:
    if not recipe.enabled:
        return {"deduplication": "off: dedup.enabled is false, every document passed"}
    # Spread over the snapshot, and the same ones on every run.
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

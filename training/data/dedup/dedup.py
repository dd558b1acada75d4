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

The stage runs in phases (training/contract/running/phase.py), so that no process holds more than a group of files or a
range of keys: `keys`, `candidates`, `texts` and `verify` find the duplicates, `choose` the survivors, `cuts` what is
cut, and `write` writes the documents.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.contract.job import Counts, DataError, Gate, Job, Outcome, Work
from training.contract.running.marks import file_of_rank, finished_rank
from training.contract.running.phase import Phase
from training.data.dedup import index
from training.data.dedup.blocks import joined, packed, strings, strings_of, unpacked
from training.data.dedup.corpus import Corpus, Flags, Group, Orders, corpus_of
from training.data.dedup.duplicates import (
    EXACT,
    NEAR,
    REASONS,
    URL,
    Verdicts,
    find_candidates,
    read_texts,
    spread_keys,
    verify,
)
from training.data.dedup.edits import Edits, frequent_lines, repeated_spans
from training.data.dedup.settings import DedupRecipe
from training.data.dedup.shuffle import name_of, read_slice, writing_slices
from training.data.dedup.survivors import CHANGES, FIRST, OF_EARLIER, choose, members_of
from training.data.documents import (
    EXTRA_COLUMNS,
    DocumentWriter,
    count_documents,
    extra_columns,
    open_documents,
    read_tables,
)

log = logging.getLogger(__name__)

SAMPLE_PAIRS = 20
REMOVED = (np.int64, np.int64, np.int64, np.float64, np.int64, np.uint8)  # rows, reasons, of, similarities, ids of `of`


def _recipe(job: Job) -> DedupRecipe:
    return job.settings_as(DedupRecipe, "dedup")


def _chooses(recipe: DedupRecipe) -> bool:
    return recipe.enabled and recipe.survivor != "first"


def _cuts(recipe: DedupRecipe) -> bool:
    return recipe.enabled and bool(recipe.max_line_copies or recipe.min_substring_bytes)


def _num_own(job: Job) -> int:
    return corpus_of(job).num_own


def _num_documents(job: Job) -> int:
    """Number of documents in the job's snapshot, according to the record of its signatures."""
    return job.inputs_of("document_signatures")[-1].record()["counts"]["kept"]


# Phase `verify`, what it hands over, and phase `choose`


def verify_group(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Decide which documents of one group of files are duplicates."""
    recipe, corpus = _recipe(job), corpus_of(job)
    group = corpus.groups[corpus.own[rank]]
    verdicts, ids, tried = verify(job, work, rank)
    rows = np.flatnonzero(verdicts.reason)
    removed = rows, verdicts.reason[rows].astype(np.int64), verdicts.of[rows], verdicts.similarity[rows].astype(float)
    with writing_slices(job, work, "verify", rank) as slices:
        slices.add(*packed([*removed, *strings(ids)]))
        if _chooses(recipe):
            members = members_of(group, verdicts, corpus.own_start, recipe.policy)
            of = corpus.groups_of(members.heads)
            for number in corpus.own:
                slices.add(*members.of(of == number).parts())
    return {"files": [name_of("verify", rank)], "documents": len(group), "verified_pairs": tried}


def choose_in_group(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Choose which document of each cluster stays, for clusters whose first document is in one group of files."""
    corpus = corpus_of(job)
    removed = unpacked(read_slice(job, work, "verify", rank, 0), REMOVED)[0]
    kept = np.ones(len(corpus.groups[corpus.own[rank]]), np.bool_)
    kept[removed] = False
    changes = choose(job, work, corpus, kept, rank, _recipe(job).policy)
    with writing_slices(job, work, "choose", rank) as slices:
        for parts in changes:
            slices.add(*parts)
    return {"files": [name_of("choose", rank)]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """The decisions about the documents of a group.

    They are verdicts, the ids of the documents that removed ones repeat, and survivors.
    """

    verdicts: Verdicts
    ids: dict[int, str]  # by row of a removed document
    why: dict[int, str] | None  # by row: why another one was kept instead; None: the first one stays, as always

    def ids_of(self, rows: Orders) -> pa.StringArray:
        """Return the ids of the documents that these rows repeat; null for rows that repeat none."""
        return pa.array([self.ids.get(row) for row in rows.tolist()], pa.string())


def decided(job: Job, work: Work, corpus: Corpus, rank: int) -> Decided:
    """Return what the phases `verify` and `choose` decided about a group of the job's snapshot."""
    recipe, group = _recipe(job), corpus.groups[corpus.own[rank]]
    verdicts = Verdicts.keep_all(len(group))
    if not recipe.enabled:
        return Decided(verdicts=verdicts, ids={}, why=None)
    rows, reasons, of, similarities, *texts = unpacked(read_slice(job, work, "verify", rank, 0), REMOVED)
    verdicts.remove(rows, reasons, of, similarities)
    ids = dict(zip(rows.tolist(), strings_of(*texts).to_pylist(), strict=True))
    if not _chooses(recipe):
        return Decided(verdicts=verdicts, ids=ids, why=None)
    why = {row: OF_EARLIER if verdicts.of[row] < corpus.own_start else FIRST for row in rows.tolist()}
    for other in range(corpus.num_own):
        orders, reasons, of, similarities, *texts = unpacked(read_slice(job, work, "choose", other, rank), CHANGES)
        rows = group.rows_of(orders)
        verdicts.remove(rows, reasons, of, similarities)
        ids |= dict(zip(rows.tolist(), strings_of(*texts[:2]).to_pylist(), strict=True))
        why |= dict(zip(rows.tolist(), strings_of(*texts[2:]).to_pylist(), strict=True))
    return Decided(verdicts=verdicts, ids=ids, why=why)


# Phase `cuts`


def find_cuts(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Find the lines and substrings that repeat among the kept documents of one group of `group_documents`."""
    recipe, corpus = _recipe(job), corpus_of(job)
    edits = Edits(recipe=recipe)
    kept = list(_kept_rows(job, work, corpus, rank * recipe.group_documents, (rank + 1) * recipe.group_documents))
    if recipe.max_line_copies:
        edits.lines[rank] = frequent_lines(_texts(kept), recipe)
    if recipe.min_substring_bytes:
        edits.spans[rank] = repeated_spans(_texts(kept), joined([rows for _, _, rows in kept], np.int64), edits)
    with writing_slices(job, work, "cuts", rank) as slices:
        spans = edits.spans.get(rank, np.empty((0, 3), np.int64))
        slices.add(*packed([edits.lines.get(rank, np.empty(0, np.uint64))]))
        starts = np.append(_row_starts(work, corpus), np.iinfo(np.int64).max)
        for first, last in itertools.pairwise(starts):
            slices.add(*packed([spans[slice(*np.searchsorted(spans[:, 0], (first, last)))].ravel()]))
    return {"files": [name_of("cuts", rank)]}


def _row_starts(work: Work, corpus: Corpus) -> Orders:
    """Return the number of documents of the job's snapshot before each of its groups."""
    results = [finished_rank(work.path, rank, "verify") or {"documents": 0} for rank in range(corpus.num_own)]
    sizes = np.array([result["documents"] for result in results], np.int64)
    return np.cumsum(sizes) - sizes


def _kept_rows(job: Job, work: Work, corpus: Corpus, first: int, last: int) -> Iterator[tuple[Group, Orders, Orders]]:
    """Yield each group with its kept documents among these rows of the snapshot.

    The documents are given by their order numbers and by their rows.
    """
    for rank, start in enumerate(_row_starts(work, corpus).tolist()):
        group = corpus.groups[corpus.own[rank]]
        if start < last and start + len(group) > first:
            kept = np.flatnonzero(decided(job, work, corpus, rank).verdicts.reason == 0)
            kept = kept[(kept + start >= first) & (kept + start < last)]
            yield group, group.orders[kept], kept + start


def _texts(kept: Sequence[tuple[Group, Orders, Orders]]) -> Iterator[tuple[pa.StringArray, Orders]]:
    for group, orders, rows in kept:
        at = 0
        for texts in group.column(orders, "text"):
            yield texts, rows[at : at + len(texts)]
            at += len(texts)


def _edits(job: Job, work: Work, corpus: Corpus, rank: int, first: int) -> Edits | None:
    """Return the cuts in the documents of a group, or None if there are none.

    `first` is the row of the group's first document in the snapshot.
    """
    recipe = _recipe(job)
    if not _cuts(recipe):
        return None
    edits = Edits(recipe=recipe)
    last = first + max(len(corpus.groups[corpus.own[rank]]) - 1, 0)
    for group in range(first // recipe.group_documents, last // recipe.group_documents + 1):
        if group >= _num_cuts(job):
            break
        if recipe.max_line_copies:
            edits.lines[group] = unpacked(read_slice(job, work, "cuts", group, 0), [np.uint64])[0]
        if recipe.min_substring_bytes:
            edits.spans[group] = unpacked(read_slice(job, work, "cuts", group, 1 + rank), [np.int64])[0].reshape(-1, 3)
    return edits


def _num_cuts(job: Job) -> int:
    recipe = _recipe(job)
    return -(-_num_documents(job) // recipe.group_documents) if _cuts(recipe) else 0


# Phase `write`


@dataclass(kw_only=True)
class _Tally:
    """Documents kept and seen per (source, language), for the gate `survival`, and documents dropped per reason."""

    kept: Counter[tuple[str, str]] = field(default_factory=Counter)
    total: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, table: pa.Table, staying: pa.Table, going: pa.Table) -> None:
        """Count the documents of `table`; `staying` and `going` are its kept and its dropped documents."""
        self.total.update(_groups(table))
        self.kept.update(_groups(staying))
        self.reasons.update(going["reason"].to_pylist())

    def as_json(self) -> dict[str, Any]:
        """Return the tally as plain data, for a rank's result."""
        groups = [[*group, total, self.kept[group]] for group, total in sorted(self.total.items())]
        return {"groups": groups, "reasons": dict(self.reasons)}

    def include(self, told: Mapping[str, Any]) -> None:
        """Add the counts of another rank, given as plain data."""
        for source, language, total, kept in told["groups"]:
            self.total[source, language] += total
            self.kept[source, language] += kept
        self.reasons.update(told["reasons"])


def write_group(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Write the kept and the dropped documents of one group, one file of each per input file."""
    recipe, corpus = _recipe(job), corpus_of(job)
    group = corpus.groups[corpus.own[rank]]
    what = decided(job, work, corpus, rank)
    first = int(_row_starts(work, corpus)[rank]) if _cuts(recipe) else 0
    edits = _edits(job, work, corpus, rank, first)
    tally = _Tally()
    with _keeping(job, work, group, rank) as blocks:
        written = [_write(group, file, what, edits, first, tally, work, blocks) for file in range(len(group.documents))]
    removed = np.flatnonzero(what.verdicts.reason)
    with writing_slices(job, work, "write", rank) as slices:
        slices.add(*packed([group.orders[removed], what.verdicts.of[removed]]))
    return {
        "files": [
            *(name for one in written for name in one["names"]),
            name_of("write", rank),
            *([name_of(index.BLOCKS, rank)] if recipe.enabled else []),
        ],
        "documents": written,
        "tally": tally.as_json(),
        "cuts": dict(edits.counts) if edits else None,
        "counts": Counts.total([one["counts"] for one in written]).as_json(),
    }


@contextmanager
def _keeping(job: Job, work: Work, group: Group, rank: int) -> Iterator[index.BlockWriter | None]:
    """Context manager that gives the writer of the texts that are kept for later snapshots; None if none are."""
    if not _recipe(job).enabled:
        yield None
        return
    with writing_slices(job, work, index.BLOCKS, rank, index.what_of(group.index_key, group.name, "texts")) as slices:
        blocks = index.BlockWriter(slices, np.diff(group.file_starts))
        yield blocks
        blocks.close()


def _index_files(corpus: Corpus) -> dict[str, str]:
    """Return the files of the snapshot's index: by the names that ranks gave them, those in the artifact."""
    own = [(rank, number, corpus.groups[number]) for rank, number in enumerate(corpus.own)]
    keys = {name_of("keys", number): index.name_of(group.index_key, group.name, "keys") for _, number, group in own}
    texts = {name_of(index.BLOCKS, rank): index.name_of(group.index_key, group.name, "texts") for rank, _, group in own}
    return keys | texts


def _write(
    group: Group,
    file: int,
    what: Decided,
    edits: Edits | None,
    first_row: int,
    tally: _Tally,
    work: Work,
    blocks: index.BlockWriter | None,
) -> dict[str, Any]:
    """Write the documents of one file; return the names of the written files, counts, and the first and last place.

    `first_row` is the row in the snapshot of the group's first document.
    """
    added = ("reason", "duplicate_of", "similarity") + (("survivor",) if what.why is not None else ())
    path, number = group.documents[file], group.first_file + file
    extra = extra_columns(path)
    names = f"documents/{number:05d}.parquet", f"dropped/{number:05d}.parquet"
    places: list[tuple[str, int, str]] = []  # of the first and the last document: WARC file, offset, id
    row = int(group.file_starts[file])
    with (
        open_documents(path) as parquet,
        DocumentWriter(work.path / names[0], extra) as kept,
        DocumentWriter(work.path / names[1], (*extra, *added)) as dropped,
    ):
        for part in range(parquet.num_row_groups):
            table = parquet.read_row_group(part, use_threads=False)
            places = _checked_order(places, table, path)
            if blocks is not None:
                blocks.add(table)
            rows = np.arange(row, row + len(table))
            row += len(table)
            staying, going = _judged(table, rows, what, edits, first_row)
            tally.add(table, staying, going)
            kept.write_table(staying)
            dropped.write_table(going)
    counts = Counts(records_in=count_documents(path), kept=kept.num_documents, dropped=dict(dropped.reasons))
    of = slice(int(group.file_starts[file]), int(group.file_starts[file + 1]))
    removed = int(np.count_nonzero(what.verdicts.reason[of]))
    return {"names": names, "counts": counts.as_json(), "removed": removed, "places": places, "path": str(path)}


def _judged(
    table: pa.Table, rows: Orders, what: Decided, edits: Edits | None, first_row: int
) -> tuple[pa.Table, pa.Table]:
    """Split a table into the kept documents and the removed ones.

    Removed documents get columns for the reason and the repeated document. `rows` are the places of the table's
    documents in the group.
    """
    verdicts = what.verdicts
    reasons = np.array([None, *REASONS[1:]])[verdicts.reason[rows]]
    removed = verdicts.reason[rows] > 0
    if edits is not None:
        kept_texts = table["text"].combine_chunks().filter(pa.array(~removed))
        texts, emptied = edits.apply(kept_texts, rows[~removed] + first_row)
        reasons[~removed] = emptied
        table = _with_texts(table, ~removed & (reasons == None), texts, emptied)  # noqa: E711 - elementwise
    gone = np.array([reason is not None for reason in reasons], np.bool_)
    similarity = verdicts.similarity[rows[gone]]
    known = removed[gone]
    going = table.filter(pa.array(gone))
    for name, values in (
        ("reason", pa.array(reasons[gone].tolist(), EXTRA_COLUMNS["reason"])),
        ("duplicate_of", what.ids_of(rows[gone])),
        ("similarity", pa.array(similarity, EXTRA_COLUMNS["similarity"], mask=~known)),
    ):
        going = going.append_column(name, values)
    if what.why is not None:
        reasons_to_stay = pa.array([what.why.get(row) for row in rows[gone].tolist()], EXTRA_COLUMNS["survivor"])
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


def _checked_order(places: list[tuple[str, int, str]], table: pa.Table, path: Path) -> list[tuple[str, int, str]]:
    """Return the places of the first and the last document seen so far, after adding the table's documents.

    Raise DataError unless the places ascend.
    """
    files, offsets, ids = (table[name].to_pylist() for name in ("warc_file", "warc_offset", "id"))
    for place in zip(files, offsets, ids, strict=True):
        if places and place[:2] <= places[-1][:2]:
            raise _out_of_order(path, place, places[-1])
        places = [places[0] if places else place, place]
    return places


def _out_of_order(path: Path | str, place: Sequence[Any], last: Sequence[Any]) -> DataError:
    return DataError(
        f"{path}: document {place[2]!r} comes after {last[0]} at {last[1]}; documents must"
        " ascend by WARC file and offset through a snapshot's files, because the smaller one stays"
    )


PHASES = (
    Phase(name="keys", num_ranks=lambda job: _if_enabled(job, len(corpus_of(job).groups)), run_rank=spread_keys),
    Phase(
        name="candidates", num_ranks=lambda job: _if_enabled(job, corpus_of(job).num_ranges), run_rank=find_candidates
    ),
    Phase(name="texts", num_ranks=lambda job: _if_enabled(job, len(corpus_of(job).groups)), run_rank=read_texts),
    Phase(name="verify", num_ranks=lambda job: _if_enabled(job, _num_own(job)), run_rank=verify_group),
    Phase(
        name="choose",
        num_ranks=lambda job: _num_own(job) if _chooses(_recipe(job)) else 0,
        run_rank=choose_in_group,
    ),
    Phase(name="cuts", num_ranks=_num_cuts, run_rank=find_cuts),
    Phase(name="write", num_ranks=_num_own, run_rank=write_group),
)


def _if_enabled(job: Job, number: int) -> int:
    return number if _recipe(job).enabled else 0


# Reporting


def finish(job: Job, work: Work, results: Mapping[str, list[dict[str, Any]]]) -> Outcome:
    """Combine the results of all ranks into the stage's outcome."""
    recipe, corpus = _recipe(job), corpus_of(job)
    files = [one for result in results["write"] for one in result["documents"]]
    _check_order_of_files(files)
    tally, cuts = _Tally(), Counter[str]()
    for result in results["write"]:
        tally.include(result["tally"])
        cuts.update(result["cuts"] or {})
    if recipe.enabled:
        opened, tried = (sum(one[name] for one in results[phase]) for phase, name in _WORK_DONE)
        log.info("%d texts opened, %d pairs verified", opened, tried)
        longest = max(one["longest_run"] for one in results["candidates"])
        work.progress.log(step=len(results["write"]), verified_pairs=tried, longest_run=longest)
    return Outcome(
        files=tuple(name for one in files for name in one["names"]),
        beside=_index_files(corpus) if recipe.enabled else {},
        counts=Counts.total([one["counts"] for one in files]),
        metrics=_metrics(job, work, corpus, tally) | (_cut_in(recipe, cuts) if _cuts(recipe) else {}),
        gates=_gates(recipe, tally),
        notes=_survival(tally) | _notes(recipe, files, work),
    )


_WORK_DONE = (("texts", "opened"), ("verify", "verified_pairs"))


def _check_order_of_files(files: Sequence[Mapping[str, Any]]) -> None:
    last: Sequence[Any] = ("", -1)
    for one in files:
        if one["places"]:
            first = one["places"][0]
            if tuple(first[:2]) <= tuple(last[:2]):
                raise _out_of_order(one["path"], first, last)
            last = one["places"][-1]


def _cut_in(recipe: DedupRecipe, cuts: Counter[str]) -> dict[str, float]:
    return dict(cuts)


def _metrics(job: Job, work: Work, corpus: Corpus, tally: _Tally) -> dict[str, float]:
    pairs = [unpacked(read_slice(job, work, "write", rank, 0), [np.int64] * 2) for rank in range(corpus.num_own)]
    removed, of = (joined([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    sizes = np.unique(_roots(removed, of), return_counts=True)[1]
    total = tally.total.total()
    compared = sum(item.record()["counts"]["kept"] for item in job.inputs_of("document_signatures"))
    return {
        "documents": total,
        "kept_fraction": tally.kept.total() / max(total, 1),
        "removed_exact": tally.reasons[REASONS[EXACT]],
        "removed_near": tally.reasons[REASONS[NEAR]],
        "removed_cross_snapshot": int(np.count_nonzero(of < corpus.own_start)),
        "clusters": len(sizes),
        "largest_cluster": int(sizes.max()) + 1 if len(sizes) else 0,
        "compared_documents": compared,
    } | ({"removed_url": tally.reasons[REASONS[URL]]} if tally.reasons[REASONS[URL]] else {})


def _roots(removed: Orders, of: Orders) -> Orders:
    """Return the order number of the document at which each removed document's chain of `duplicate_of` ends.

    A chain stops at the first document that was not removed, or is of an earlier snapshot.
    """
    roots = of
    while len(removed):
        places = np.minimum(np.searchsorted(removed, roots), len(removed) - 1)
        further = np.where(removed[places] == roots, of[places], roots)
        if np.array_equal(further, roots):
            break
        roots = further
    return roots


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


def _notes(recipe: DedupRecipe, files: Sequence[Mapping[str, Any]], work: Work) -> dict[str, Any]:
    if not recipe.enabled:
        return {"deduplication": "off: dedup.enabled is false, every document passed"}
    # Take the sample at even distances over the snapshot, so that every run shows the same pairs.
    ends = np.cumsum([one["removed"] for one in files], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    wanted = np.arange(0, total, max(1, total // SAMPLE_PAIRS))[:SAMPLE_PAIRS]
    pairs = []
    for file, end in enumerate(ends.tolist()):
        here = wanted[(wanted >= end - files[file]["removed"]) & (wanted < end)] - (end - files[file]["removed"])
        if len(here):
            pairs += _pairs(file_of_rank(work.path, files[file]["names"][1]), here)
    return {"sample_pairs": pairs}


def _pairs(path: Path, places: Orders) -> list[dict[str, Any]]:
    """Return the rows of dropped documents that show pairs: a document, and the earlier one that it repeats.

    `places` count the documents of the file that repeat another.
    """
    table = pa.concat_tables(read_tables(path, ["id", "duplicate_of", "similarity", "reason"]))
    table = table.filter(pc.is_valid(table["similarity"])).take(pa.array(places))
    return [{**row, "similarity": round(row["similarity"], 4)} for row in table.to_pylist()]

"""Stage `decontaminate`: find the documents that hold items of the recipe's exams, and remove or flag them.

The rule is that of training.data.exams.search. Each document is judged by its own text alone: the number of other
documents with the same item changes nothing.

`hits.parquet` lists every item found: document, benchmark, item, `part` (`question+answer`, or `question` if no answer
is near it), `share` (of the item, from 0 to 1), `start` and `end` (characters of the document's text), `words` (number
of words between them), and the `text` between them. A removed or flagged document carries its strongest hit, with
`span` as `start:end`.

A document that a model wrote is searched behind the prompt that it answers, so that an answer to an exam's question is
found too. For an item that was found in the prompt, `start` and `end` are 0, and `text` is from the prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.contract.artifact import SCRATCH_FOLDER, written
from training.contract.job import Counts, InputArtifact, Job, Outcome, Share, Work
from training.data.documents import (
    DocumentWriter,
    count_documents,
    document_files,
    extra_columns,
    read_tables,
    shares_of,
)
from training.data.exams.benchmarks import load_index
from training.data.exams.decontaminate_settings import CONTAMINATED, DecontaminateRecipe
from training.data.exams.search.grams import column_of
from training.data.exams.search.item_rule import Finder, FoundItem, strongest_first
from training.data.exams.search.row_search import PROMPT, searched_columns, with_prompt

HITS_FILE: Final = "hits.parquet"
SAMPLE_HITS: Final = 20
HITS_AT_ONCE: Final = 1 << 20  # rows of a row group of hits
MARKS: Final = ("benchmark", "item", "part", "span")

_HIT_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("url", pa.string()),
        ("snapshot", pa.string()),
        ("warc_file", pa.string()),
        ("warc_offset", pa.int64()),
        ("benchmark", pa.string()),
        ("item", pa.string()),
        ("part", pa.string()),
        ("share", pa.float64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("words", pa.int32()),
        ("text", pa.string()),
    ]
)
_DOCUMENT: Final = ("id", "url", "snapshot", "warc_file", "warc_offset")


def num_ranks(job: Job) -> int:
    """Return the number of ranks: one for each document file."""
    return len(document_files(job.input_of("deduplicated_documents")))


def rank_shares(job: Job) -> list[Share]:
    """Return what each rank reads: its document file. The index of the exams is read whole."""
    return shares_of(document_files(job.input_of("deduplicated_documents")))


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Scan one document file, write its kept and its dropped documents, and list its hits in a scratch file."""
    recipe = job.settings_as(DecontaminateRecipe, "decontaminate")
    finder, names = _finder(job.input_of("benchmark_index"))
    path = document_files(job.input_of("deduplicated_documents"))[rank]
    hits: dict[int, list[dict[str, Any]]] = {}
    row = 0
    columns = searched_columns(path, [*_DOCUMENT, "text"])
    for table in read_tables(path, columns):
        for place, found in finder.find(_searched(table)):
            document = table.slice(place, 1).to_pylist()[0]
            hits[row + place] = [_hit(one, document, names) for one in sorted(found, key=strongest_first)]
        row += len(table)
    hits_file = f"{SCRATCH_FOLDER}/hits-{rank:05d}.parquet"
    _write_hits([hit for some in hits.values() for hit in some], work.path / hits_file)
    marked = {row: some for row, some in hits.items() if recipe.marks(some[0]["kind"])}
    result = _place(path, marked, recipe, work.path, rank)
    return {**result, "files": [*result["files"], hits_file], "marked": len(marked)}


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Write the hits of all ranks to `hits.parquet`, and return the stage's counts and metrics.

    One row group of hits is in memory, and the numbers of hits by exam and item.
    """
    recipe = job.settings_as(DecontaminateRecipe, "decontaminate")
    _, names = _finder(job.input_of("benchmark_index"))
    seen = _Seen()
    with _hits_writer(work.path / HITS_FILE) as hits:
        for rank in range(len(ranks)):
            table = pq.read_table(work.scratch / f"hits-{rank:05d}.parquet", schema=_HIT_SCHEMA)
            hits.add(table)
            seen.add(table)
    files = [name for result in ranks for name in result["files"] if not name.startswith(SCRATCH_FOLDER)]
    metrics = seen.metrics(sorted({name for name, _ in names}))
    return Outcome(
        files=(*files, HITS_FILE),
        counts=Counts.total([rank["counts"] for rank in ranks]),
        metrics={"contaminated_found": sum(result["marked"] for result in ranks), **metrics},
        notes=seen.notes(recipe),
    )


@lru_cache(maxsize=1)
def _finder(item: InputArtifact) -> tuple[Finder, list[tuple[str, str]]]:
    index, names = load_index(item.folder)
    return Finder(index), names


def _searched(table: pa.Table) -> pa.StringArray:
    """Return what is searched of each document; `with_prompt` only where there are prompts."""
    if PROMPT not in table.schema.names:
        return table["text"].combine_chunks()
    return column_of([with_prompt(row) for row in table.select(["text", PROMPT]).to_pylist()])


def _hit(found: FoundItem, document: Mapping[str, Any], names: Sequence[tuple[str, str]]) -> dict[str, Any]:
    benchmark, item = names[found.item]
    text = with_prompt(document)
    before = len(text) - len(document["text"])  # characters of the prompt
    return {
        **{name: document[name] for name in _DOCUMENT},
        "benchmark": benchmark,
        "item": item,
        "part": found.part,
        "share": found.share,
        "start": max(0, found.start - before),
        "end": max(0, found.end - before),
        "words": found.words,
        "text": text[found.start : found.end],
        "kind": found.kind,
    }


class _HitsWriter:
    """Writes hits in row groups of HITS_AT_ONCE, so that the file does not depend on how many are added at once."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._parquet = pq.ParquetWriter(stream, _HIT_SCHEMA, compression="zstd")
        self._waiting = _HIT_SCHEMA.empty_table()
        self._is_empty = True

    def add(self, table: pa.Table) -> None:
        table = pa.concat_tables([self._waiting, table])
        while len(table) >= HITS_AT_ONCE:
            self._write(table.slice(0, HITS_AT_ONCE))
            table = table.slice(HITS_AT_ONCE)
        self._waiting = table

    def close(self) -> None:
        if len(self._waiting) or self._is_empty:
            self._write(self._waiting)
        self._parquet.close()

    def _write(self, table: pa.Table) -> None:
        self._parquet.write_table(table.combine_chunks(), row_group_size=HITS_AT_ONCE)
        self._is_empty = False


@contextmanager
def _hits_writer(path: Path) -> Iterator[_HitsWriter]:
    with written(path) as stream:
        writer = _HitsWriter(stream)
        yield writer
        writer.close()


def _write_hits(hits: Sequence[Mapping[str, Any]], path: Path) -> None:
    with _hits_writer(path) as writer:
        writer.add(pa.Table.from_pylist(list(hits), schema=_HIT_SCHEMA))


def _place(
    path: Path, hits: Mapping[int, list[dict[str, Any]]], recipe: DecontaminateRecipe, folder: Path, rank: int
) -> dict[str, Any]:
    """Write the kept and the dropped documents of one file, depending on the exam items found in them."""
    extra = extra_columns(path)
    flags = (*MARKS, *(() if "flags" in extra else ("flags",)))
    names = f"documents/{rank:05d}.parquet", f"dropped/{rank:05d}.parquet"
    total = 0
    with (
        DocumentWriter(folder / names[0], (*extra, *(flags if recipe.action == "flag" else ()))) as kept,
        DocumentWriter(folder / names[1], (*extra, "reason", *MARKS)) as dropped,
    ):
        for table in read_tables(path):
            found = {row - total: hits[row] for row in range(total, total + len(table)) if row in hits}
            total += len(table)
            if recipe.action == "flag":
                _flag(table, found, kept)
            elif recipe.action == "remove" and found:
                _remove(table, found, kept, dropped)
            else:
                kept.write_table(table)
    counts = Counts(records_in=count_documents(path), kept=kept.num_documents, dropped=dict(dropped.reasons))
    return {"files": list(names), "counts": counts.as_json()}


def _remove(
    table: pa.Table, found: Mapping[int, list[dict[str, Any]]], kept: DocumentWriter, dropped: DocumentWriter
) -> None:
    stays = np.ones(len(table), np.bool_)
    stays[list(found)] = False
    kept.write_table(table.filter(pa.array(stays)))
    for document, hits in zip(table.filter(pa.array(~stays)).to_pylist(), found.values(), strict=True):
        dropped.write({**document, **_marks(hits[0]), "reason": CONTAMINATED})


def _flag(table: pa.Table, found: Mapping[int, list[dict[str, Any]]], kept: DocumentWriter) -> None:
    for place, document in enumerate(table.to_pylist()):
        if place in found:
            document |= {**_marks(found[place][0]), "flags": [*(document.get("flags") or []), CONTAMINATED]}
        kept.write(document)


def _marks(hit: Mapping[str, Any]) -> dict[str, str]:
    return {**{name: hit[name] for name in MARKS[:3]}, "span": f"{hit['start']}:{hit['end']}"}


class _Seen:
    """Numbers of hits by exam and item, and the longest hits, collected from one rank after the other."""

    def __init__(self) -> None:
        self._marked = Counter[str]()  # documents with a hit, by exam
        self._parts: dict[str, Counter[str]] = {}
        self._copies = Counter[tuple[str, str]]()
        self._longest = list[dict[str, Any]]()

    def add(self, table: pa.Table) -> None:
        """Count the hits of a rank. All hits of a document are in one rank."""
        for batch in table.to_batches(max_chunksize=HITS_AT_ONCE):
            rows = batch.to_pylist()
            for row in rows:
                self._parts.setdefault(row["benchmark"], Counter())[row["part"]] += 1
                self._copies[row["benchmark"], row["item"]] += 1
            self._longest = sorted([*self._longest, *rows], key=_longest_first)[:SAMPLE_HITS]
        documents = table.group_by(["benchmark", "id"]).aggregate([])
        self._marked.update(documents["benchmark"].to_pylist())

    def metrics(self, names: Sequence[str]) -> dict[str, float]:
        """Return the number of items found, of all exams and of each, and of documents with a hit."""
        items = Counter(benchmark for benchmark, _ in self._copies)
        return {
            "items_found": len(self._copies),
            **{f"items_found_{name}": items[name] for name in names},
            **{f"documents_marked_{name}": self._marked[name] for name in names},
        }

    def notes(self, recipe: DecontaminateRecipe) -> dict[str, Any]:
        """Return the notes for the record: parts of items found, the longest hits, and the most copied items."""
        shown = ("id", "url", "benchmark", "item", "part", "share", "words", "text")
        most_copied = sorted(self._copies.most_common(SAMPLE_HITS), key=_copied)
        notes: dict[str, Any] = {
            "hits_by_part": {name: dict(sorted(parts.items())) for name, parts in sorted(self._parts.items())},
            "longest_hits": [{name: row[name] for name in shown} for row in self._longest],
            "most_copied_items": [[*item, times] for item, times in most_copied],
        }
        if recipe.action == "off":
            notes["decontamination"] = "off: decontaminate.action is off, every document passed; hits are counted"
        if recipe.question_seen == "reported":
            notes["questions"] = (
                "decontaminate.question_seen is reported: a question without its answer marks no document"
            )
        return notes


def _longest_first(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return -row["words"], row["id"], row["benchmark"], row["item"]


def _copied(entry: tuple[tuple[str, str], int]) -> tuple[int, tuple[str, str]]:
    return -entry[1], entry[0]

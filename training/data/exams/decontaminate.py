"""Stage `decontaminate`: which documents hold items of the recipe's exams, and what becomes of them.

A document holds an item when they share an n-gram of the index (training.data.exams.benchmarks). An n-gram that stands
in more than `max_document_frequency` documents of the snapshot is a common phrase and proves nothing alone. That number
is of the whole snapshot: each rank judges by what it has seen and keeps what it found in a private file; `finish` adds
up the counts and writes again those files in which a verdict changes.

`hits.parquet` lists every item found: document, benchmark, item, `part` (whose words these are: `question`, `answer`,
`passage`, or several as in `question+answer`), `start` and `end` (characters of the document's text), `words`, and the
shared `text`. A removed or flagged document carries its longest hit; `span` is `start:end`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, reduce
from itertools import groupby
from operator import or_
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from training.artifact import SCRATCH_FOLDER, written
from training.data.documents import DocumentWriter, count_documents, document_files, extra_columns, read_tables
from training.data.exams.benchmarks import FORM, WITH_ANSWER, BenchmarkIndex, BenchmarkItem, load_index, part_name
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.exams.grams import Occurrences, Scanner, column_of
from training.data.words.ngrams import Hashes, words_with_spans
from training.job import Counts, Job, Outcome, Work
from training.runner import total_counts

log = logging.getLogger(__name__)

HITS_FILE: Final = "hits.parquet"
CONTAMINATED: Final = "contaminated"
# A short question proves something when its answer begins within this many words behind it.
ANSWER_WINDOW: Final = 20
SAMPLE_HITS: Final = 20
PLANTED_ITEMS: Final = 200  # of each benchmark
PLANTED_IN: Final = "This stands before it. {} And this stands behind it."
PLANTED_CHANGE: Final = "qqq"

_MATCH = np.dtype(
    [
        ("row", np.int32),  # of the document in its file
        ("item", np.int32),
        ("gram", np.int64),  # the n-gram's number in the index, over all lengths
        ("words", np.int32),
        ("proves", np.bool_),  # false: a short question without its answer, or the form of many questions
        ("position", np.int32),  # of its first word
        ("start", np.int32),  # characters
        ("end", np.int32),
        ("parts", np.uint8),  # of the item, a sum of benchmarks.PARTS
    ]
)
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
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("words", pa.int32()),
        ("text", pa.string()),
    ]
)

Matches = npt.NDArray[np.void]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """An item found in a text: the longest stretch they share, in characters [start, end) and in words.

    `part` says whose words these are: `question`, `answer`, `passage`, or several joined by `+`. The answer that a
    short question needs close behind it lies outside of the stretch.
    """

    benchmark: str
    item: str
    part: str
    start: int
    end: int
    words: int


def scan(text: str, index: BenchmarkIndex, *, common: frozenset[int] = frozenset()) -> list[Hit]:
    """The items that a text holds, the longest stretch first.

    `common` are numbers of n-grams that prove nothing alone (`Matches["gram"]`).
    """
    return judge(find_matches(column_of([text]), Scanner(index.tables), index), index, common)


# Scanning


def find_matches(texts: pa.StringArray, scanner: Scanner, index: BenchmarkIndex, first_row: int = 0) -> Matches:
    """Every place where an indexed n-gram stands in texts, which are rows `first_row` and following of their file."""
    found: list[tuple[Any, ...]] = []
    for place, hashes, occurrences in scanner.scan(texts):
        found += _matches(first_row + place, texts[place].as_py(), hashes, occurrences, index)
    return np.array(found, _MATCH)


def _matches(
    row: int, text: str, hashes: Hashes, occurrences: Occurrences, index: BenchmarkIndex
) -> Iterator[tuple[Any, ...]]:
    """A match for each item that has one of the n-grams."""
    spans = words_with_spans(text)[1]
    tables = list(index.grams.values())
    first_grams = np.cumsum([0, *(len(grams.hashes) for grams in tables)])
    for number, position, gram in occurrences.tolist():
        grams = tables[number]
        length = grams.table.num_words
        start, end = int(spans[position, 0]), int(spans[position + length - 1, 1])
        last = int(np.searchsorted(grams.hashes, grams.hashes[gram], "right"))
        for entry in range(gram, last):
            item, kind = int(grams.items[entry]), grams.kinds[entry]
            proves = kind != FORM and (kind != WITH_ANSWER or _answered(index, item, hashes, position + length))
            parts = int(grams.parts[entry])
            yield row, item, int(first_grams[number]) + gram, length, proves, position, start, end, parts


def _answered(index: BenchmarkIndex, item: int, hashes: Hashes, behind: int) -> bool:
    """Whether the item's answer begins soon behind its question; true when the item has none."""
    answer = index.answers.get(item)
    if answer is None:
        return True
    window = hashes[behind : behind + ANSWER_WINDOW + len(answer)]
    starts = range(len(window) - len(answer) + 1)
    return any(np.array_equal(window[start : start + len(answer)], answer) for start in starts)


def judge(matches: Matches, index: BenchmarkIndex, common: frozenset[int]) -> list[Hit]:
    """The items that one document's matches prove, the longest stretch first, then in the index's order.

    A stretch inside a longer one of the same benchmark is that item's and proves no other: questions share phrases.
    """
    hits: list[tuple[int, int, Hit]] = []
    ordered = np.sort(matches, order=["item", "words", "position"])
    for item, some in groupby(ordered.tolist(), key=lambda match: match[1]):
        stretches = [stretch for stretch in _stretches(some, common) if stretch is not None]
        if stretches:
            words, start, end, parts = max(stretches, key=lambda stretch: (stretch[0], -stretch[1]))
            benchmark, name = index.names[item]
            hit = Hit(benchmark=benchmark, item=name, part=part_name(parts), start=start, end=end, words=words)
            hits.append((-words, item, hit))
    return _outermost([hit for _, _, hit in sorted(hits, key=lambda entry: entry[:2])])


def _outermost(hits: list[Hit]) -> list[Hit]:
    """The hits that no wider hit of the same benchmark contains, in the order given."""
    furthest: dict[str, tuple[int, int]] = {}
    inner: set[int] = set()
    for number in sorted(range(len(hits)), key=lambda number: (hits[number].start, -hits[number].end)):
        hit = hits[number]
        start, end = furthest.get(hit.benchmark, (-1, -1))
        if hit.end <= end and (hit.start, hit.end) != (start, end):
            inner.add(number)
        elif hit.end > end:
            furthest[hit.benchmark] = hit.start, hit.end
    return [hit for number, hit in enumerate(hits) if number not in inner]


def _stretches(
    matches: Iterator[tuple[Any, ...]], common: frozenset[int]
) -> Iterator[tuple[int, int, int, int] | None]:
    """(words, start, end, parts) of each run of neighbouring matches of one item that proves something, else None."""
    run: list[tuple[Any, ...]] = []
    for match in matches:
        if run and (match[3] != run[-1][3] or match[5] > run[-1][5] + 1):
            yield _stretch(run, common)
            run = []
        run.append(match)
    yield _stretch(run, common)


def _stretch(run: list[tuple[Any, ...]], common: frozenset[int]) -> tuple[int, int, int, int] | None:
    if not any(proves and gram not in common for _, _, gram, _, proves, *_ in run):
        return None
    parts = reduce(or_, (match[8] for match in run))
    return run[-1][5] + run[-1][3] - run[0][5], run[0][6], run[-1][7], parts


# What an index finds


def plant_rates(index: BenchmarkIndex, items: Sequence[BenchmarkItem]) -> dict[str, float]:
    """The shares of one benchmark's items that mark a text in which they are planted: `verbatim` question and answer
    (behind the passage), and `edited`, the middle word of question and answer changed.

    Of PLANTED_ITEMS items, spread over its file. With the documents marked, these are the rates by which a benchmark's
    `ngram_words` is chosen: longer n-grams mark fewer, and miss more edited items.
    """
    tried = min(len(items), PLANTED_ITEMS)
    texts = [text for n in range(tried) for text in _planted(items[n * len(items) // tried])]
    matches = find_matches(column_of(texts), Scanner(index.tables), index)
    found = [row for row, hits in hits_by_row(matches, index).items() if _marks_for(hits, items[0].benchmark)]
    return {how: sum(row % 2 == place for row in found) / tried for place, how in enumerate(("verbatim", "edited"))}


def _planted(item: BenchmarkItem) -> tuple[str, str]:
    """A text with an item, word for word and with its middle word changed."""
    words = f"{item.question} {item.answer}".split()
    middle = len(words) // 2
    edited = [*words[:middle], PLANTED_CHANGE, *words[middle + 1 :]]
    return tuple(PLANTED_IN.format(f"{item.passage} {' '.join(some)}") for some in (words, edited))


def _marks_for(hits: Sequence[Hit], benchmark: str) -> bool:
    return any(hit.benchmark == benchmark for hit in hits)


# The stage


def num_ranks(job: Job) -> int:
    """One rank for each document file."""
    return len(document_files(job.input_of("deduplicated_documents")))


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Scan one file, and place its documents by what this file alone shows of common phrases."""
    recipe, index = _recipe(job), _index(job.input_of("benchmark_index").path)
    path = document_files(job.input_of("deduplicated_documents"))[rank]
    scanner = Scanner(index.tables)
    parts = [np.empty(0, _MATCH)]
    row = 0
    for table in read_tables(path, ["text"]):
        parts.append(find_matches(table["text"].combine_chunks(), scanner, index, row))
        row += len(table)
    matches = np.concatenate(parts)
    matches_file = f"{SCRATCH_FOLDER}/matches-{rank:05d}.npy"
    with written(work.path / matches_file) as stream:
        np.save(stream, matches, allow_pickle=False)
    hits = hits_by_row(matches, index, _common(_frequencies(matches), recipe))
    result = _place(path, hits, recipe, work.path, rank)
    return {**result, "files": [*result["files"], matches_file], "verdicts": _verdicts(hits)}


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Count phrases over the whole snapshot, mend the verdicts that this changes, list the hits."""
    recipe, index = _recipe(job), _index(job.input_of("benchmark_index").path)
    paths = document_files(job.input_of("deduplicated_documents"))
    matches = [np.load(work.scratch / f"matches-{rank:05d}.npy", allow_pickle=False) for rank in range(len(ranks))]
    frequencies = sum((_frequencies(some) for some in matches), Counter())
    common = _common(frequencies, recipe)
    placed, listed = [], []
    for rank, (path, result, some) in enumerate(zip(paths, ranks, matches, strict=True)):
        hits = hits_by_row(some, index, common)
        changed = _verdicts(hits) != result["verdicts"]
        placed.append(_place(path, hits, recipe, work.path, rank) if changed else result)
        listed += _listed(path, hits)
        work.progress.log(step=rank + 1, contaminated_found=len({row["id"] for row in listed}))
    with written(work.path / HITS_FILE) as stream:
        pq.write_table(pa.Table.from_pylist(listed, schema=_HIT_SCHEMA), stream, compression="zstd")
    names = [name for result in placed for name in result["files"] if not name.startswith(SCRATCH_FOLDER)]
    return Outcome(
        files=(*names, HITS_FILE),
        counts=total_counts(placed),
        metrics=_metrics(listed, index, common),
        notes=_notes(recipe, listed),
    )


def _recipe(job: Job) -> DecontaminateRecipe:
    return job.settings_as(DecontaminateRecipe, "decontaminate")


@lru_cache(maxsize=1)
def _index(folder: str) -> BenchmarkIndex:
    return load_index(Path(folder))


def _frequencies(matches: Matches) -> Counter[int]:
    """In how many documents each n-gram stands."""
    pairs = np.unique(np.stack([matches["gram"], matches["row"]]), axis=1)
    grams, documents = np.unique(pairs[0], return_counts=True)
    return Counter(dict(zip(grams.tolist(), documents.tolist(), strict=True)))


def _common(frequencies: Mapping[int, int], recipe: DecontaminateRecipe) -> frozenset[int]:
    return frozenset(gram for gram, number in frequencies.items() if number > recipe.max_document_frequency)


def hits_by_row(matches: Matches, index: BenchmarkIndex, common: frozenset[int] = frozenset()) -> dict[int, list[Hit]]:
    """The hits of each document that has one, by its row."""
    rows, starts = np.unique(matches["row"], return_index=True)
    ends = np.append(starts, len(matches))[1:]
    judged = {
        int(row): judge(matches[start:end], index, common) for row, start, end in zip(rows, starts, ends, strict=True)
    }
    return {row: hits for row, hits in judged.items() if hits}


def _place(
    path: Path, hits: Mapping[int, list[Hit]], recipe: DecontaminateRecipe, folder: Path, rank: int
) -> dict[str, Any]:
    """Write the kept and the dropped documents of one file."""
    extra = extra_columns(path)
    marks = ("benchmark", "item", "part", "span")
    flags = (*marks, *(() if "flags" in extra else ("flags",)))
    names = f"documents/{rank:05d}.parquet", f"dropped/{rank:05d}.parquet"
    total = 0
    with (
        DocumentWriter(folder / names[0], (*extra, *(flags if recipe.action == "flag" else ()))) as kept,
        DocumentWriter(folder / names[1], (*extra, "reason", *marks)) as dropped,
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


def _remove(table: pa.Table, found: Mapping[int, list[Hit]], kept: DocumentWriter, dropped: DocumentWriter) -> None:
    stays = np.ones(len(table), np.bool_)
    stays[list(found)] = False
    kept.write_table(table.filter(pa.array(stays)))
    for document, hits in zip(table.filter(pa.array(~stays)).to_pylist(), found.values(), strict=True):
        dropped.write({**document, **_marks(hits[0]), "reason": CONTAMINATED})


def _flag(table: pa.Table, found: Mapping[int, list[Hit]], kept: DocumentWriter) -> None:
    for place, document in enumerate(table.to_pylist()):
        if place in found:
            document |= {**_marks(found[place][0]), "flags": [*(document.get("flags") or []), CONTAMINATED]}
        kept.write(document)


def _verdicts(hits: Mapping[int, list[Hit]]) -> list[list[Any]]:
    """What of the hits stands in the documents' files, as plain data."""
    return [[row, *_marks(hits[row][0]).values()] for row in sorted(hits)]


def _marks(hit: Hit) -> dict[str, str]:
    return {"benchmark": hit.benchmark, "item": hit.item, "part": hit.part, "span": f"{hit.start}:{hit.end}"}


def _listed(path: Path, hits: Mapping[int, list[Hit]]) -> list[dict[str, Any]]:
    """The rows of `hits.parquet` for one file."""
    if not hits:
        return []
    columns = ["id", "url", "snapshot", "warc_file", "warc_offset", "text"]
    listed = []
    first = 0
    for table in read_tables(path, columns):
        rows = [row for row in range(first, first + len(table)) if row in hits]
        documents = table.take(pa.array([row - first for row in rows], pa.int64())).to_pylist()
        for row, document in zip(rows, documents, strict=True):
            for hit in hits[row]:
                shared = document["text"][hit.start : hit.end]
                listed.append({**document, **asdict(hit), "text": shared})
        first += len(table)
    return listed


def _metrics(listed: list[dict[str, Any]], index: BenchmarkIndex, common: frozenset[int]) -> dict[str, float]:
    items = {(row["benchmark"], row["item"]) for row in listed}
    per_benchmark = Counter(benchmark for benchmark, _ in items)
    marked = Counter(benchmark for benchmark, _ in {(row["benchmark"], row["id"]) for row in listed})
    names = sorted({name for name, _ in index.names})
    return {
        "contaminated_found": len({row["id"] for row in listed}),
        "items_found": len(items),
        "common_ngrams": len(common),
        **{f"items_found_{name}": per_benchmark[name] for name in names},
        **{f"documents_marked_{name}": marked[name] for name in names},
    }


def _notes(recipe: DecontaminateRecipe, listed: list[dict[str, Any]]) -> dict[str, Any]:
    longest = sorted(listed, key=lambda row: (-row["words"], row["id"], row["benchmark"], row["item"]))[:SAMPLE_HITS]
    shown = ("id", "url", "benchmark", "item", "part", "words", "text")
    by_part: dict[str, Counter[str]] = {}
    for row in listed:
        by_part.setdefault(row["benchmark"], Counter())[row["part"]] += 1
    notes: dict[str, Any] = {
        "hits_by_part": {name: dict(sorted(parts.items())) for name, parts in sorted(by_part.items())},
        "longest_hits": [{name: row[name] for name in shown} for row in longest],
    }
    if recipe.action == "off":
        notes["decontamination"] = "off: decontaminate.action is off, every document passed; hits are counted"
    return notes

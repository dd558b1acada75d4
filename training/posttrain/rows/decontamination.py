"""Find the rows of post-training that hold exam items, by the index and the rule with which documents are searched.

The recipe's `decontaminate.action` decides about such a row: it is dropped as `contaminated`, kept with a flag, or kept
as it is. `hits.jsonl` lists every item found: row, benchmark, item, `part` (`question+answer`, or `question` if no
answer is near it), `share` (of the item, from 0 to 1) and `matched` (the text). A dropped or flagged row carries its
strongest hit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from training.contract.job import Job
from training.data.documents import write_lines
from training.data.exams.benchmarks import load_index
from training.data.exams.decontaminate_settings import CONTAMINATED, DecontaminateRecipe
from training.data.exams.search.item_rule import Finder, FoundItem, strongest_first
from training.data.exams.search.row_search import searched
from training.posttrain.rows.source import SourceRow

HITS_FILE = "hits.jsonl"
MARKS = ("benchmark", "item", "part", "matched")  # of the strongest hit, in a dropped or flagged row

S = TypeVar("S")


class Decontamination:
    """The search of one stage's rows for exam items. It counts the rows with items and lists the items."""

    def __init__(self, job: Job) -> None:
        index, self._names = load_index(job.input_of("benchmark_index").folder)
        self._finder = Finder(index)
        self._recipe = job.settings_as(DecontaminateRecipe, "decontaminate")
        self._hits: list[dict[str, Any]] = []
        self._num_found = 0

    def judged(
        self, records: Iterable[tuple[S, SourceRow]], texts: Callable[[Any], Sequence[str]]
    ) -> Iterator[tuple[S, SourceRow]]:
        """Yield the records in order, after searching them for exam items; `texts` returns the texts of a record.

        Depending on the recipe, a record with an item gets a reason to be dropped, or fields that describe the item, or
        is unchanged.
        """
        rows = (((source, record), () if record.reason else texts(record.made)) for source, record in records)
        for (source, record), held in searched(rows, self._finder):
            yield source, self._judged(record, held) if held else record

    def _judged(self, record: SourceRow, held: Sequence[tuple[str, FoundItem]]) -> SourceRow:
        ordered = sorted(held, key=lambda one: strongest_first(one[1]))
        strongest = {found.item: (text, found) for text, found in reversed(ordered)}
        self._hits += [self._hit(record, text, found) for text, found in strongest.values()]
        text, found = ordered[0]
        if not self._recipe.marks(found.kind):
            return record
        self._num_found += 1
        hit = self._hit(record, text, found)
        marks = {name: hit[name] for name in MARKS}
        match self._recipe.action:
            case "remove":
                return replace(record, reason=CONTAMINATED, marks=marks)
            case "flag":
                return replace(record, marks={"flags": [CONTAMINATED], **marks})
            case "off":
                return record

    def _hit(self, record: SourceRow, text: str, found: FoundItem) -> dict[str, Any]:
        benchmark, item = self._names[found.item]
        named = {"id": record.id, "benchmark": benchmark, "item": item, "part": found.part, "share": found.share}
        return named | {"matched": text[found.start : found.end]}

    def write_hits(self, folder: Path) -> str:
        """Write the items found, sorted by row and item, and return the file's name."""
        write_lines(folder / HITS_FILE, sorted(self._hits, key=lambda hit: (hit["id"], hit["benchmark"], hit["item"])))
        return HITS_FILE

    @property
    def metrics(self) -> dict[str, float]:
        """The number of rows that count as contaminated, and of items found, in total and by benchmark."""
        items = Counter(benchmark for benchmark, _ in {(hit["benchmark"], hit["item"]) for hit in self._hits})
        by_benchmark = {f"items_found_{name}": items[name] for name in sorted({name for name, _ in self._names})}
        return {"contaminated_found": self._num_found, "items_found": items.total(), **by_benchmark}

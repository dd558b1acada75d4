"""Samples of a stage's records: a few that were kept, dropped by each rule, or quarantined for each reason.

`pedigree inspect` and the report show the same groups: these and those of evaluation.report.stage_details. The choice
of records depends only on their ids and a seed, so the same seed shows the same records again. A near-duplicate is
shown with its differences from the document that it repeats, a contaminated document with the span that it shares with
an item, and a redacted document with its placeholders. Redacted text is stored nowhere and cannot be shown.
"""

from __future__ import annotations

import difflib
import hashlib
import heapq
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evaluation.report.truth_comparison import Record, of_asset, sound
from training.data.documents import SCHEMA, open_documents, read_lines
from training.data.filter.personal_data import PLACEHOLDERS
from training.posttrain.rows.sorting import (
    DROPPED_FILE,
    HELD_OUT_FILE,
    INSTRUCTIONS_FILE,
    PROMPTS_FILE,
    QUARANTINE_FILE,
    TRAIN_FILE,
)

KEPT, DROPPED, QUARANTINED, REDACTED = "kept", "dropped", "quarantined", "redacted"
COMPARED_WORDS = 3000  # of each of two near-duplicates; the time grows with the product of their lengths
SURROUNDING_WORDS = 8  # shown on each side of a difference
SURROUNDING_CHARACTERS = 80  # shown on each side of a marked span
DEDUPLICATED = "deduplicated_documents"

Part = tuple[str, str]
"""The kind of a piece of text, and the piece. The kinds are `text`, `marked` (why the record is shown), `removed` (only
in the document that this one repeats) and `added` (only in this one)."""


Place = tuple[Path, int, int]
"""The place of a record: its file, row group and row in the group."""


@dataclass(frozen=True)
class ShownRecord:
    """One record: its id and URL, the columns that the stage added (`facts`), and its text in parts."""

    id: str
    url: str
    facts: Mapping[str, Any]
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class OutcomeGroup:
    """The records of one asset and partition that have the same outcome and reason.

    It has their `number`, and a few samples.
    """

    asset: str
    partition: str
    outcome: str
    reason: str
    number: int
    samples: tuple[ShownRecord, ...]
    looked_at: int | None = None  # how many records were searched; None: all

    def as_json(self) -> dict[str, Any]:
        """Return the group as plain data."""
        return asdict(self)


@dataclass
class _Heap:
    """The number of records in a group, and the records to show: those whose ids hash lowest."""

    number: int = 0
    chosen: list[tuple[int, Path, int, int]] = field(default_factory=list)  # negated hash, file, row group, row

    def add(self, rank: int, place: Place, most: int) -> None:
        self.number += 1
        if len(self.chosen) < most:
            heapq.heappush(self.chosen, (-rank, *place))
        elif self.chosen and -rank > self.chosen[0][0]:
            heapq.heapreplace(self.chosen, (-rank, *place))


def has_records(record: Mapping[str, Any]) -> bool:
    """Whether the artifact has kept, dropped or quarantined records that can be shown."""
    return record["counts"] is not None and any(_outcome(entry["path"]) for entry in record["files"])


def sample_groups(
    records: Sequence[Record],
    asset: str,
    *,
    partition: str = "",
    reason: str = "",
    number: int = 3,
    characters: int = 500,
    seed: int = 0,
) -> list[OutcomeGroup]:
    """Return the groups of an asset's artifacts: by partition, kept records first, then the largest groups.

    `records` are artifacts with their `artifact.json`. Artifacts of other assets are needed only for the texts that
    near-duplicates repeat. `reason` selects groups: it is an outcome, or the beginning of a reason. `number` is the
    number of samples in each group, and `characters` the length of each sample.
    """
    groups = []
    for folder, record in made_of(records, asset, partition):
        heaps = _heaps(folder, record, number, seed)
        rows = rows_at({place[1:] for heap in heaps.values() for place in heap.chosen})
        originals = _originals(records, rows.values())
        for (outcome, why), heap in heaps.items():
            if not is_asked(reason, outcome, why):
                continue
            chosen = [rows[place[1:]] for place in sorted(heap.chosen, key=lambda one: (-one[0], one[1:]))]
            samples = tuple(sample_of(row, outcome, why, originals, characters) for row in chosen)
            groups.append(OutcomeGroup(asset, record["partition"], outcome, why, heap.number, samples))
    order = (KEPT, DROPPED, QUARANTINED, REDACTED)
    return sorted(groups, key=lambda one: (one.partition, order.index(one.outcome), -one.number, one.reason))


def made_of(records: Sequence[Record], asset: str, partition: str = "") -> list[Record]:
    """Return the artifacts of an asset that contain records, for all partitions, or for one partition or snapshot."""
    made = [one for one in of_asset(records, asset) if partition in ("", one[1]["partition"], _snapshot(one[1]))]
    return [one for one in made if has_records(one[1])]


def is_asked(wanted: str, outcome: str, reason: str) -> bool:
    """Whether `wanted` selects a group: it is the outcome, or the beginning of the reason or of `outcome:reason`."""
    return outcome == wanted or reason.startswith(wanted) or f"{outcome}:{reason}".startswith(wanted)


def _snapshot(record: Mapping[str, Any]) -> str:
    return record["partition"].partition("@")[2]


# The choice of records.


def _outcome(path: str) -> str:
    """Return the outcome of the records in a file, from the file's path; empty for files without records."""
    folder, _, name = path.rpartition("/")
    if folder:
        return {"documents": KEPT, "dropped": DROPPED, "quarantine": QUARANTINED}.get(folder, "")
    kept = dict.fromkeys((INSTRUCTIONS_FILE, TRAIN_FILE, HELD_OUT_FILE, PROMPTS_FILE), KEPT)
    return {**kept, DROPPED_FILE: DROPPED, QUARANTINE_FILE: QUARANTINED}.get(name, "")


def files_of(folder: Path, record: Mapping[str, Any], what: str) -> list[Path]:
    """Return the artifact's files, in order, whose records have the outcome `what` or that lie in the folder `what`."""
    return [
        sound(folder, record, entry["path"])
        for entry in record["files"]
        if what in (_outcome(entry["path"]), entry["path"].partition("/")[0])
    ]


def _heaps(folder: Path, record: Mapping[str, Any], most: int, seed: int) -> dict[tuple[str, str], _Heap]:
    heaps: dict[tuple[str, str], _Heap] = {}
    for entry in record["files"]:
        outcome = _outcome(entry["path"])
        if not outcome:
            continue
        path = sound(folder, record, entry["path"])
        for place, row in rows_of(path, ("id", "reason", "redactions")):
            rank = rank_of(seed, row["id"])
            reason = (row.get("reason") or "") if outcome != KEPT else ""
            groups = [(outcome, reason)]
            if outcome == KEPT:
                groups += [(REDACTED, kind) for kind in json.loads(row.get("redactions") or "{}")]
            for group in groups:
                heaps.setdefault(group, _Heap()).add(rank, (path, *place), most)
    return heaps


def rank_of(seed: int, name: str) -> int:
    """Return a hash of a record's id and the seed. The records with the lowest hashes are shown, in this order."""
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest(), "big")


def rows_of(path: Path, columns: Iterable[str]) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Yield ((row group, row in the group), row) for each row of a Parquet file or a file of JSON lines."""
    if path.suffix == ".parquet":
        with open_documents(path) as parquet:
            there = [name for name in columns if name in parquet.schema_arrow.names]
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group, columns=there, use_threads=False)
                yield from (((group, i), row) for i, row in enumerate(table.to_pylist()))
        return
    for i, row in enumerate(read_lines(path)):
        name = row.get("id") or f"{row.get('warc_file', path.name)}/{row.get('warc_offset', i)}"
        yield (0, i), {**row, "id": name}


def rows_at(places: set[Place]) -> dict[Place, dict[str, Any]]:
    """Return the whole rows at these positions. From a Parquet file, only the row groups that contain them are read."""
    found: dict[Place, dict[str, Any]] = {}
    for path in sorted({place[0] for place in places}):
        if path.suffix != ".parquet":
            found |= {(path, *at): row for at, row in rows_of(path, ()) if (path, *at) in places}
            continue
        with open_documents(path) as parquet:
            for group in sorted({place[1] for place in places if place[0] == path}):
                table = parquet.read_row_group(group, use_threads=False)
                for place in sorted(place for place in places if place[:2] == (path, group)):
                    found[place] = table.slice(place[2], 1).to_pylist()[0]
    return found


def _originals(records: Sequence[Record], rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return, by id, the texts of the documents that near-duplicates repeat, whether these were kept or dropped."""
    wanted = {row["duplicate_of"] for row in rows if row.get("duplicate_of")}
    return {name: row["text"] for name, row in rows_with_ids(of_asset(records, DEDUPLICATED), wanted).items()}


def rows_with_ids(made: Iterable[Record], wanted: Set[str]) -> dict[str, dict[str, Any]]:
    """Return the documents with these ids by id; kept and dropped documents of all given artifacts are searched."""
    places: dict[Place, str] = {}
    for folder, record in made if wanted else ():
        for path in (*files_of(folder, record, KEPT), *files_of(folder, record, DROPPED)):
            places |= {(path, *at): row["id"] for at, row in rows_of(path, ("id",)) if row["id"] in wanted}
    return {places[place]: row for place, row in rows_at(set(places)).items()}


# How a record is shown.


def sample_of(
    row: Mapping[str, Any], outcome: str, reason: str, originals: Mapping[str, str], characters: int
) -> ShownRecord:
    """Return the sample that shows a record; `originals` are the texts that near-duplicates repeat, by id."""
    text = _text(row)
    parts: Sequence[Part] = [("text", text)] if text else []
    if outcome == REDACTED:
        parts = _around(text, [match.span() for match in re.finditer(re.escape(PLACEHOLDERS[reason]), text)])
    elif row.get("span"):
        start, end = map(int, row["span"].split(":"))
        parts = _around(text, [(start, end)])
    elif row.get("duplicate_of") in originals and reason != "exact_duplicate":
        parts = differences(originals[row["duplicate_of"]], text)
    own = (*SCHEMA.names, "reason", "messages", "row", "chosen", "rejected", "prompt")
    facts = {name: value for name, value in row.items() if value not in (None, "") and name not in own}
    facts |= {name: row[name] for name in ("title", "language", "language_score") if row.get(name)}
    return ShownRecord(row["id"], row.get("url") or "", facts, clipped(parts, characters))


def _text(row: Mapping[str, Any]) -> str:
    if isinstance(row.get("text"), str):
        return row["text"]
    content = {name: row[name] for name in ("row", "prompt", "messages", "chosen", "rejected") if name in row}
    return json.dumps(content, ensure_ascii=False, indent=1) if content else ""


def _around(text: str, spans: Iterable[tuple[int, int]]) -> list[Part]:
    """Return the spans of a text, marked, with some characters of the text before and after each span."""
    parts: list[Part] = []
    end = 0
    for start, stop in spans:
        parts += [("text", _near(text[end:start], is_first=not parts)), ("marked", text[start:stop])]
        end = stop
    return [*parts, ("text", text[end : end + SURROUNDING_CHARACTERS])]


def _near(gap: str, *, is_first: bool) -> str:
    """Return the text between two marked spans, shortened to its beginning and end.

    Before the first span, only its end is kept.
    """
    if len(gap) <= 2 * SURROUNDING_CHARACTERS:
        return gap
    before = "" if is_first else gap[:SURROUNDING_CHARACTERS]
    return f"{before} … {gap[-SURROUNDING_CHARACTERS:]}"


def differences(original: str, copy: str) -> list[Part]:
    """Return the differences of `copy` from `original`, word by word; long passages that both share are shortened.

    After the words with which both begin, the first COMPARED_WORDS words of each are compared.
    """
    left, right = original.split(), copy.split()
    same = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    parts: list[Part] = [("text", _joined(_shortened(left[:same])))] if same else []
    left, right = left[same:][:COMPARED_WORDS], right[same:][:COMPARED_WORDS]
    for what, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if what == "equal":
            parts.append(("text", _joined(_shortened(left[a:b]))))
            continue
        parts += [("removed", _joined(left[a:b]))] * (b > a) + [("added", _joined(right[c:d]))] * (d > c)
    return parts


def _joined(words: Iterable[str]) -> str:
    return "".join(f"{word} " for word in words)


def _shortened(words: list[str]) -> list[str]:
    if len(words) <= 2 * SURROUNDING_WORDS + 1:
        return words
    return [*words[:SURROUNDING_WORDS], "…", *words[-SURROUNDING_WORDS:]]


def clipped(parts: Iterable[Part], characters: int) -> tuple[Part, ...]:
    """Return the parts, cut to `characters` in all, with an ellipsis where text was cut."""
    shown: list[Part] = []
    left = characters
    for kind, text in parts:
        if len(text) > left:
            return (*shown, (kind, text[:left] + " …"))
        shown.append((kind, text))
        left -= len(text)
    return tuple(shown)

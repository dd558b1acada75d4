"""The tombstones of a root: what was withdrawn, when and why, in a file that only grows.

Each line of `takedowns.jsonl` is one takedown. It holds the digest of the line before it and its own, and
`takedowns.head.json` holds the last one. So a line that was edited, removed or put in between is found, and every
command on the root then refuses to go on.

A tombstone reaches the stage `extract` as one more list in `extract.takedown`, so the stage knows nothing of this file
(docs/log/decisions/0026-tombstones.md). A snapshot gets the entries that touch it, and all entries if it was not known
when the tombstone was written. The lists are in the folder `takedowns`, named by their content. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.artifact import canonical_json, digest_of
from training.files.erased import erased_in
from training.files.writing import Unsealed, read_sealed, write_sealed, write_text
from training.job import DataError
from training.posttrain.source_settings import label
from training.recipe import Recipe

FILE, HEAD_FILE, LOCK_FILE, FOLDER = "takedowns.jsonl", "takedowns.head.json", "takedowns.lock", "takedowns"
FOUND = "found.json"  # the answer that was given before a tombstone was written
HONOURED_BY = "extracted_documents"
ROW_ASSETS = ("instruction_data", "preference_data", "prompt_data")
CRAWL = "crawl_archives"
WAY_OUT = "tombstones are never changed by hand; put the file back from a backup"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry of a takedown list, and the crawls (places in `looked_at`) in which it was found.

    `cluster` says that nobody asked for the entry's page itself: it is a near-duplicate of such a page.
    """

    entry: str
    touches: tuple[int, ...] = ()
    cluster: bool = False

    @property
    def snapshot(self) -> str:
        """The snapshot of a document's id; empty for an address or a domain, which may be in any snapshot."""
        return "" if self.entry.startswith("=") else self.entry.partition("/")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tombstone:
    """One takedown. `time` is in UTC; `looked_at` holds the fingerprints of the crawls that were searched.

    `rows` are rows of post-training: ids, or sources with `#` at the end, which mean all their rows.
    """

    number: int
    time: str
    reason: str
    entries: tuple[Entry, ...]
    looked_at: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def entries_for(self, crawl: str, snapshot: str) -> Iterator[Entry]:
        """Yield the entries that apply to a snapshot: those found in its crawl, or all if it was not searched."""
        place = self.looked_at.index(crawl) if crawl in self.looked_at else None
        for one in self.entries:
            if place in one.touches or (place is None and one.snapshot in ("", snapshot)):
                yield one


def read_tombstones(root: Path) -> tuple[Tombstone, ...]:
    """Return all tombstones of a root, oldest first. Raise DataError if the file is not what was written."""
    file, head = root / FILE, root / HEAD_FILE
    identities = tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in map(_stat, (file, head)) if stat)
    if not identities and any((root / FOLDER).glob("*.txt")):
        raise DataError(f"{file}: is gone, and {root / FOLDER} holds lists that were made of it; {WAY_OUT}")
    return _read(str(root), identities)[0] if identities else ()


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


@lru_cache(maxsize=8)
def _read(root: str, _identities: tuple[tuple[int, int, int], ...]) -> tuple[tuple[Tombstone, ...], str]:
    """Return the tombstones, and the digest of the last line."""
    file = Path(root, FILE)
    found, digests = [], [""]
    for number, line in enumerate(_lines(file), 1):
        try:
            fields = json.loads(line)
            stated = fields.pop("digest")
            before = fields.pop("before")
            entries = tuple(map(_entry, fields.pop("entries")))
            looked_at, rows = tuple(fields.pop("looked_at")), tuple(fields.pop("rows", ()))
            one = Tombstone(entries=entries, looked_at=looked_at, rows=rows, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{file}, line {number}: cannot be read ({error}); {WAY_OUT}") from None
        if stated != _digest(one, before) or before != digests[-1] or one.number != number:
            raise DataError(f"{file}, line {number}: is not what was written; {WAY_OUT}")
        found.append(one)
        digests.append(stated)
    _check_head(Path(root), digests)
    return tuple(found), digests[-1]


def _entry(fields: Mapping[str, Any]) -> Entry:
    entry, cluster, touches = (fields[name] for name in ("entry", "cluster", "touches"))
    return Entry(entry=entry, cluster=cluster, touches=tuple(touches))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: cannot be read ({error}); {WAY_OUT}") from None


def _check_head(root: Path, digests: Sequence[str]) -> None:
    """Raise DataError unless the head names the last line.

    While lines are added, the head also names the last new line, so that a process may be killed in between.
    """
    try:
        head = read_sealed(root / HEAD_FILE)
        said = {head["digest"], head.get("next", head["digest"])}
    except FileNotFoundError:
        said = {""}
    except (OSError, Unsealed, KeyError) as error:
        raise DataError(f"{root / HEAD_FILE}: {error}; {WAY_OUT}") from None
    if digests[-1] not in said:
        raise DataError(f"{root / FILE}: does not end as {HEAD_FILE} says, lines are missing or new; {WAY_OUT}")


def _digest(one: Tombstone, before: str) -> str:
    return digest_of([json.loads(canonical_json(_written(one))), before])


def _written(one: Tombstone) -> dict[str, Any]:
    """Return the fields of a tombstone as a line has them: without `rows` if there are none."""
    fields = asdict(one)
    return fields if one.rows else {name: value for name, value in fields.items() if name != "rows"}


def append(root: Path, *stones: Tombstone) -> None:
    """Add tombstones as the last lines, all or none. From then on every build under the root honours them."""
    before = read_tombstones(root)
    if [one.number for one in stones] != list(range(len(before) + 1, len(before) + len(stones) + 1)):
        raise DataError(f"{root / FILE}: has {len(before)} lines, so the next one has another number; ask again")
    lines = _lines(root / FILE)
    first = last = json.loads(lines[-1])["digest"] if lines else ""
    for one in stones:
        lines.append(canonical_json({**_written(one), "before": last, "digest": (digest := _digest(one, last))}))
        last = digest
    write_sealed(root / HEAD_FILE, {"digest": first, "next": last})
    write_text(root / FILE, "".join(f"{line}\n" for line in lines))
    write_sealed(root / HEAD_FILE, {"digest": last})


def honoured(
    recipe: Recipe, asset: str, snapshot: str, crawl: str, root: Path, tombstones: Sequence[Tombstone]
) -> Recipe:
    """Return the recipe as an asset reads it: with one more takedown list if tombstones apply to its snapshot.

    For data of post-training, the list has the withdrawn rows of its sources.
    """
    if asset in ROW_ASSETS:
        return _without_rows(recipe, asset, root, tombstones)
    if asset != HONOURED_BY:
        return recipe
    reasons: dict[str, str] = {}
    for tombstone in tombstones:
        for one in tombstone.entries_for(crawl, snapshot):
            if not (one.cluster and recipe.withdrawals.duplicates == "twin"):
                reasons.setdefault(one.entry, tombstone.reason)
    if not reasons:
        return recipe
    path = _written_list(root, reasons)
    return replace(recipe, extract=replace(recipe.extract, takedown=(*recipe.extract.takedown, str(path))))


def _without_rows(recipe: Recipe, asset: str, root: Path, tombstones: Sequence[Tombstone]) -> Recipe:
    if not any(one.rows for one in tombstones):
        return recipe
    sources = {f"{label(uri)}#" for uri in row_sources(recipe, asset)}
    reasons: dict[str, str] = {}
    for tombstone in tombstones:
        own = (row for row in tombstone.rows if f"{row.rpartition('#')[0]}#" in sources)
        reasons |= {row: reasons.get(row, tombstone.reason) for row in own}
    if not reasons:
        return recipe
    lists = (*recipe.withdrawals.rows, str(_written_list(root, reasons)))
    return replace(recipe, withdrawals=replace(recipe.withdrawals, rows=lists))


def row_sources(recipe: Recipe, asset: str) -> tuple[str, ...]:
    """Return the URIs of the sources of one of `ROW_ASSETS`."""
    if asset == "prompt_data":
        return (recipe.align.prompts,) if recipe.align.prompts else ()
    section = recipe.sft if asset == "instruction_data" else recipe.preferences
    return tuple(one.uri for one in section.data)


def _written_list(root: Path, reasons: Mapping[str, str]) -> Path:
    """Write a takedown list of entries with their reasons, unless the same file is there; return its path."""
    text = "".join(f"{entry}\t{reason}\n" for entry, reason in sorted(reasons.items()))
    path = root / FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.txt"
    try:
        is_there = path.read_text("utf-8") == text
    except (FileNotFoundError, UnicodeDecodeError):
        is_there = False
    if not is_there:
        write_text(path, text)
    return path


def erased_by(folder: Path, root: Path) -> tuple[list[str], list[str]]:
    """Return which files of an artifact takedowns have overwritten, and problems with the list that says so."""
    try:
        states = [(path, one) for path, some in erased_in(folder).items() for one in some]
    except Unsealed as error:
        return [], [f"{folder}: {error}"]
    known = {one.number for one in read_tombstones(root)} if states else set()
    unknown = [
        f"{folder / path}: was overwritten by takedown {one.takedown}, which the root does not have"
        for path, one in states
        if one.takedown not in known
    ]
    return [f"takedown {one.takedown} erased pages in {path}" for path, one in states if one.takedown in known], unknown


def as_said(one: Tombstone) -> dict[str, Any]:
    """Return a tombstone as it is shown to people."""
    return {
        "number": one.number,
        "time": one.time,
        "reason": one.reason,
        "entries": [*(each.entry for each in one.entries), *one.rows],
    }

"""The tombstones of a root: what was withdrawn, when and why, in a file that only grows.

Each line of `takedowns.jsonl` is one takedown, or says what one is about to overwrite: it names a list in the folder
`takedowns`, of files and of masked records of artifacts with their digests. Each line holds the digest of the line
before it and its own, and `takedowns.head.json` holds the last one. So a line that was edited, removed or put in
between is found, and every command on the root then refuses to go on.

A tombstone reaches the stage `extract` as one more list in `extract.takedown`, so the stage knows nothing of this file
(docs/log/decisions/0026-tombstones.md). A snapshot gets the entries that touch it, and all entries if it was not known
when the tombstone was written. The lists are in the folder `takedowns`, named by their content. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.state.removal_lock import TRASH
from training.contract.artifact import canonical_json, digest_of
from training.contract.files.erased import ERASED_FILE, ErasedState, erased_in
from training.contract.files.stored_takedowns import FILE, FOLDER, HEAD_FILE, remember
from training.contract.files.writing import Unsealed, read_sealed, regular_bytes, sealed_text
from training.contract.job import DataError
from training.posttrain.source_settings import label

if TYPE_CHECKING:
    from training.contract.artifact import Artifact
    from training.provenance.swap import ErasedFile, MaskedRecord
    from training.recipe.recipe import Recipe

LOCK_FILE = "takedowns.lock"
OVERWRITTEN = ".overwritten.json"  # ends the name of a list of what a takedown overwrote
OVERWROTE = "overwrote"  # the field of a line that says what a takedown is about to overwrite
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Memory:
    """What the file holds: tombstones, lists of what was overwritten, each with its takedown, and the last digest."""

    stones: tuple[Tombstone, ...] = ()
    lists: tuple[tuple[int, str], ...] = ()
    last: str = ""


def read_tombstones(root: Path) -> tuple[Tombstone, ...]:
    """Return all tombstones of a root, oldest first. Raise DataError if the file is not what was written."""
    return _memory(root).stones


def _memory(root: Path) -> _Memory:
    file, head = root / FILE, root / HEAD_FILE
    identities = tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in map(_stat, (file, head)) if stat)
    if not identities and any(one.name.endswith((".txt", OVERWRITTEN)) for one in (root / FOLDER).glob("*")):
        raise DataError(f"{file}: is gone, and {root / FOLDER} holds lists that were made of it; {WAY_OUT}")
    return _read(str(root), identities) if identities else _Memory()


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


@lru_cache(maxsize=8)
def _read(root: str, _identities: tuple[tuple[int, int, int], ...]) -> _Memory:
    file = Path(root, FILE)
    found, lists, last = [], [], ""
    for number, line in enumerate(_lines(file), 1):
        try:
            fields = json.loads(line)
            stated, before = fields.pop("digest"), fields.pop("before")
            is_written = before == last and stated == digest_of([fields, before])
            if OVERWROTE in fields:
                lists.append((fields[OVERWROTE], fields["list"]))
                is_written &= 0 < fields[OVERWROTE] <= len(found)
            else:
                entries = tuple(map(_entry, fields.pop("entries")))
                looked_at, rows = tuple(fields.pop("looked_at")), tuple(fields.pop("rows", ()))
                found.append(Tombstone(entries=entries, looked_at=looked_at, rows=rows, **fields))
                is_written &= found[-1].number == len(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{file}, line {number}: cannot be read ({error}); {WAY_OUT}") from None
        if not is_written:
            raise DataError(f"{file}, line {number}: is not what was written; {WAY_OUT}")
        last = stated
    _check_head(Path(root), last)
    return _Memory(stones=tuple(found), lists=tuple(lists), last=last)


def _entry(fields: Mapping[str, Any]) -> Entry:
    entry, cluster, touches = (fields[name] for name in ("entry", "cluster", "touches"))
    return Entry(entry=entry, cluster=cluster, touches=tuple(touches))


def _lines(file: Path) -> list[str]:
    try:
        return regular_bytes(file).decode("utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (Unsealed, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); {WAY_OUT}") from None


def _check_head(root: Path, last: str) -> None:
    """Raise DataError unless the head names the last line, by its digest.

    While lines are added, the head also names the last new line, so that a process may be killed in between.
    """
    try:
        head = read_sealed(root / HEAD_FILE)
        said = {head["digest"], head.get("next", head["digest"])}
    except FileNotFoundError:
        said = {""}
    except (OSError, Unsealed, KeyError) as error:
        raise DataError(f"{root / HEAD_FILE}: {error}; {WAY_OUT}") from None
    if last not in said:
        raise DataError(f"{root / FILE}: does not end as {HEAD_FILE} says, lines are missing or new; {WAY_OUT}")


def _written(one: Tombstone) -> dict[str, Any]:
    """Return the fields of a tombstone as a line has them: without `rows` if there are none."""
    fields = asdict(one)
    return fields if one.rows else {name: value for name, value in fields.items() if name != "rows"}


def append(root: Path, *stones: Tombstone) -> None:
    """Add tombstones as the last lines, all or none. From then on every build under the root honours them."""
    before = read_tombstones(root)
    if [one.number for one in stones] != list(range(len(before) + 1, len(before) + len(stones) + 1)):
        raise DataError(f"{root / FILE}: has {len(before)} lines, so the next one has another number; ask again")
    _add(root, *map(_written, stones))


def _add(root: Path, *lines: Mapping[str, Any]) -> None:
    """Add lines to the file, all or none."""
    whole = _lines(root / FILE)
    first = last = _memory(root).last
    for one in lines:
        fields = json.loads(canonical_json(dict(one)))
        whole.append(canonical_json({**fields, "before": last, "digest": (digest := digest_of([fields, last]))}))
        last = digest
    remember(root / HEAD_FILE, sealed_text({"digest": first, "next": last}))
    remember(root / FILE, "".join(f"{line}\n" for line in whole))
    remember(root / HEAD_FILE, sealed_text({"digest": last}))


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
        remember(path, text)
    return path


# What takedowns overwrote


def note_overwritten(root: Path, takedown: int, files: Sequence[ErasedFile], records: Sequence[MaskedRecord]) -> None:
    """Note what a takedown is about to overwrite in artifacts. Without this note nobody believes that it did."""
    noted = {
        "files": sorted([*_name_of(one.folder), one.path, one.before, asdict(one.state)] for one in files),
        "records": sorted([*_name_of(one.folder), one.before, one.after] for one in records),
    }
    if not files and not records:
        return
    text = canonical_json(noted)
    name = hashlib.sha256(text.encode()).hexdigest()
    if (takedown, name) not in _memory(root).lists:
        remember(root / FOLDER / f"{name[:32]}{OVERWRITTEN}", text)
        _add(root, {OVERWROTE: takedown, "list": name})


def _name_of(folder: Path) -> tuple[str, str]:
    """Return asset and fingerprint of an artifact's folder, also of one that was set aside or lies in the trash."""
    return folder.parents[folder.parent.name == TRASH].name, folder.name.partition(".")[0]


Noted = Mapping[tuple[str, ...], Sequence[tuple[str, Any]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Overwritten:
    """What all takedowns of a root say that they overwrote, oldest first.

    `files` has the sha256 before and the state after, by asset, fingerprint and path; `records` has the digests before
    and after, by asset and fingerprint.
    """

    files: Noted = field(default_factory=dict)
    records: Noted = field(default_factory=dict)


def _overwritten(root: Path) -> _Overwritten:
    """Return what the takedowns noted. Raise DataError if a list is gone or was changed."""
    return _read_lists(str(root), tuple(name for _, name in _memory(root).lists))


@lru_cache(maxsize=8)
def _read_lists(root: str, lists: tuple[str, ...]) -> _Overwritten:
    files, records = defaultdict(list), defaultdict(list)
    for name in lists:
        path = Path(root, FOLDER, f"{name[:32]}{OVERWRITTEN}")
        try:
            text = regular_bytes(path).decode("utf-8")
        except (OSError, Unsealed, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read ({error}); {WAY_OUT}") from None
        if hashlib.sha256(text.encode()).hexdigest() != name:
            raise DataError(f"{path}: is not what was written; {WAY_OUT}")
        noted = json.loads(text)
        for *where, before, state in noted["files"]:
            files[tuple(where)].append((before, ErasedState(**state)))
        for *where, before, after in noted["records"]:
            records[tuple(where)].append((before, after))
    return _Overwritten(files=dict(files), records=dict(records))


def is_masked(made: Artifact, held: str) -> bool:
    """Whether takedowns of its root say that they made an artifact's record of one that had the digest `held`."""
    if held == made.record_digest:
        return False
    noted = _overwritten(made.path.parents[1]).records.get(_name_of(made.path), ())
    return _lead(noted, held, made.record_digest)


def _lead(changes: Iterable[tuple[str, str]], first: str, last: str) -> bool:
    """Whether some of these changes, each from one digest to another and oldest first, made `last` of `first`."""
    reached = {first}
    for before, after in changes:
        if before in reached:
            reached.add(after)
    return last in reached


def erased_by(made: Artifact, judged: str | None = None) -> tuple[list[str], list[str]]:
    """Return which files of an artifact takedowns have overwritten, and what its list says of this and no takedown.

    With `judged` the list must be the one with this digest (`list_digest`).
    """
    try:
        states = [(path, one) for path, some in erased_in(made.path, judged).items() for one in some]
    except Unsealed as error:
        return [], [f"{made.path}: {error}"]
    known = [(path, one) for path, one in states if _is_noted(made, path, one)]
    return [f"takedown {one.takedown} erased pages in {path}" for path, one in known], [
        f"{made.path / path}: {ERASED_FILE} says that takedown {one.takedown} overwrote it, and that takedown does not"
        for path, one in states
        if (path, one) not in known
    ]


def _is_noted(made: Artifact, path: str, state: ErasedState) -> bool:
    """Whether a takedown noted this state of a file, and made it of the file that the artifact's record lists.

    What a takedown made of a file that somebody had changed before is no state of the artifact's own. A job may have
    finished the artifact after the takedown, so its record may also list what became of the state.
    """
    noted = _overwritten(made.path.parents[1]).files.get((*_name_of(made.path), path), ())
    if state not in [one for _, one in noted]:
        return False
    changes = [(before, one.sha256) for before, one in noted]
    listed = [one["sha256"] for kind in ("files", "beside") for one in made.record.get(kind, ()) if one["path"] == path]
    return all(_lead(changes, one, state.sha256) or _lead(changes, state.sha256, one) for one in listed)


def as_said(one: Tombstone) -> dict[str, Any]:
    """Return a tombstone as it is shown to people."""
    return {
        "number": one.number,
        "time": one.time,
        "reason": one.reason,
        "entries": [*(each.entry for each in one.entries), *one.rows],
    }

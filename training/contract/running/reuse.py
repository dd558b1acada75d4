"""Take over ranks from earlier artifacts of the same asset.

A job then computes only the ranks that read something new.

A rank's *key* is a digest over everything that decides its files: stage, version, settings, seed, libraries, code, the
digests of the inputs that it reads whole, and its share of the others (`training.contract.job.Share`): the checksums of
its files, and facts. A rank that opened anything else of these inputs has no key and is never reused. A stage's module
may leave settings out of the key (`rank_settings`) if it can tell from a finished rank's files whether they would be
the same (`still_holds`), or can turn them into what they would be (`adjusted`).

A committed artifact keeps what this needs in `reuse/`. `marks.jsonl` has one line for each rank: its key, what it read,
its files and its result. `ranks.json` says where each line is. The artifact's record binds the lines by `ranks`, a
digest over their checksums. None of this is in the artifact's digest. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from training.contract import artifact
from training.contract.artifact import SCRATCH_FOLDER, canonical_json, digest_of
from training.contract.files.writing import Unsealed, copied, read_sealed, write_sealed, written
from training.contract.job import InputArtifact, Job, Share, read_job
from training.contract.records import RecipeError
from training.contract.stage import Stage

log = logging.getLogger(__name__)

FOLDER = "reuse"
INDEX_FILE = f"{FOLDER}/ranks.json"
MARKS_FILE = f"{FOLDER}/marks.jsonl"
MOST_EARLIER = 8  # newest artifacts that are looked at; a rank that changed lately is in one of them
# Libraries that write files or compile code for several stages and are in no fingerprint. Another version of them may
# write other bytes, and one artifact should be written by one version.
WRITERS = ("pyarrow", "numpy", "numba", "safetensors", "zstandard")


@dataclass(frozen=True, kw_only=True, slots=True)
class NeededRank:
    """A rank that a job needs: its key, and the files that it reads."""

    rank: int
    key: str
    reads: tuple[tuple[str, str, str], ...]  # asset, path, sha256
    allowed: frozenset[tuple[str, str]]  # (folder, name) of the files that the rank may open
    by_file: frozenset[str]  # folders of the inputs of which it may open nothing else

    def strays(self, opened: Collection[tuple[str, str]]) -> list[str]:
        """Return the files that a rank opened although its share does not have them, so that its key lacks them."""
        placed = {(os.path.abspath(folder), name) for folder, name in opened}
        return sorted(os.path.join(*one) for one in placed - self.allowed if one[0] in self.by_file)


def is_reusable(stage: Stage, module: ModuleType) -> bool:
    """Whether ranks of the stage can be reused from earlier artifacts.

    They can if its module says what each rank reads, and no model makes the output.
    """
    return hasattr(module, "rank_shares") and not stage.by_a_model


def asked_of(job: Job, stage: Stage, module: ModuleType, code: str) -> list[NeededRank]:
    """Return, for each rank of a job, the key under which it may be reused, and the files that it reads.

    `code` is the digest of the stage's code in this process.
    """
    common = _common(job, stage, module)
    by_file = frozenset(os.path.abspath(item.path) for item in job.inputs if item.asset in stage.by_file)
    manifests: dict[str, dict[str, Mapping[str, Any]]] = {}

    def asked(rank: int, share: Share) -> NeededRank:
        reads = []
        for item, name in share.files:
            if item.path not in manifests:
                manifests[item.path] = item.files()
            reads.append((item.asset, _part(item), name, manifests[item.path][name]["sha256"]))
        read = [[asset, part, sha256] for asset, part, _, sha256 in reads]
        return NeededRank(
            rank=rank,
            key=digest_of([common, code, read, dict(share.facts)]),
            reads=tuple((asset, name, sha256) for asset, _, name, sha256 in reads),
            allowed=frozenset((os.path.abspath(item.path), name) for item, name in (*share.files, *share.listings)),
            by_file=by_file,
        )

    return [asked(rank, share) for rank, share in enumerate(module.rank_shares(job))]


def _common(job: Job, stage: Stage, module: ModuleType) -> str:
    """Return a digest over all that every rank of a job depends on.

    It covers stage, settings, libraries, seed and shared inputs.
    """
    settings = module.rank_settings(job) if hasattr(module, "rank_settings") else job.settings
    whole = [[item.asset, _part(item), item.digest] for item in job.inputs if item.asset not in stage.by_file]
    return digest_of([job.stage, job.stage_version, settings, job.libraries, job.seed, whole])


def _part(item: InputArtifact) -> str:
    return item.partition.partition("@")[2]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that write files; "absent" for one that is not installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in WRITERS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


@lru_cache(maxsize=1)
def environment() -> str:
    """Return a digest over the versions of Python and of the libraries that write files (WRITERS).

    Ranks are reused only where these are equal.
    """
    return digest_of(versions())[:16]


# Keeping


def keep(folder: Path, marks: Sequence[Mapping[str, Any]]) -> str:
    """Write the ranks' completion marks into `folder` for later jobs; return their digest for the record.

    This happens before the commit. The digest is empty if no rank can be reused.
    """
    shutil.rmtree(folder / FOLDER, ignore_errors=True)  # of a killed attempt
    kept = [mark for mark in marks if mark.get("key")]
    if not kept:
        return ""
    index, offset = [], 0
    with written(folder / MARKS_FILE) as stream:
        for mark in kept:
            for entry in filter(_is_scratch, mark["files"]):
                if not copied(folder / entry["path"], _source(folder, entry), entry["sha256"]):
                    raise artifact.Damaged(f"{folder / entry['path']}: changed since its rank was done; run again")
            line = canonical_json({name: mark[name] for name in ("rank", "key", "reads", "files", "result", "code")})
            data = f"{line}\n".encode()
            stream.write(data)
            index.append([mark["key"], mark["environment"], hashlib.sha256(data).hexdigest(), offset, len(data)])
            offset += len(data)
    write_sealed(folder / INDEX_FILE, {"marks": index})
    return _digest_of_lines(index)


def _digest_of_lines(index: Sequence[Sequence[Any]]) -> str:
    return digest_of([sha256 for _, _, sha256, *_ in index])


def _is_scratch(entry: Mapping[str, Any]) -> bool:
    return entry["path"].startswith(f"{SCRATCH_FOLDER}/")


def _source(folder: Path, entry: Mapping[str, Any]) -> Path:
    """Return the path of a rank's file in a committed artifact.

    Files from the scratch folder are in a folder of their own.
    """
    return folder / FOLDER / entry["path"] if _is_scratch(entry) else folder / entry["path"]


# Taking over


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """An earlier committed artifact from which a job can take over ranks."""

    folder: Path
    manifest: Mapping[str, Mapping[str, Any]]  # its files, by path
    lines: Mapping[str, Sequence[Any]]  # by key: sha256, offset and bytes of the rank's line in MARKS_FILE

    def mark(self, key: str) -> dict[str, Any] | None:
        """Return the completion mark of the rank with this key; None if it is missing or damaged."""
        sha256, offset, size = self.lines[key]
        try:
            with open(self.folder / MARKS_FILE, "rb") as stream:
                stream.seek(offset)
                data = stream.read(size)
        except FileNotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() != sha256:
            return None
        mark = json.loads(data)
        is_listed = all(_is_scratch(entry) or self.manifest.get(entry["path"]) == entry for entry in mark["files"])
        return mark if mark["key"] == key and is_listed else None


def earlier(job: Job, stage: Stage, module: ModuleType) -> Iterator[Earlier]:
    """Yield the committed artifacts of the same asset whose ranks may have equal keys, newest first.

    An artifact is not opened if its job had another version, settings or shared inputs, so that no key can be equal.
    """
    own, common = Path(job.output), _common(job, stage, module)
    found = [path.parent.parent for path in own.parent.glob(f"*/{INDEX_FILE}") if "." not in path.parent.parent.name]
    newest = sorted((path for path in found if path != own), key=lambda path: _changed_ns(path / INDEX_FILE))[::-1]
    num = 0
    for folder in newest:
        if _asks_alike(folder, job, stage, module, common) and (one := _opened(folder)) is not None:
            yield one
            num += 1
        if num == MOST_EARLIER:
            return


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # removed at this moment
        return 0


def _asks_alike(folder: Path, job: Job, stage: Stage, module: ModuleType, common: str) -> bool:
    try:
        other = read_job(folder / "job.json")
    except (OSError, RecipeError):
        return False
    return (other.stage, other.snapshot) == (job.stage, job.snapshot) and _common(other, stage, module) == common


def _opened(folder: Path) -> Earlier | None:
    """Return the committed artifact in `folder` from which to take ranks; None if it has no list of ranks.

    A damaged list counts as none, and is logged.
    """
    try:
        made = artifact.find(folder)
        index = read_sealed(folder / INDEX_FILE)
        if made is None:
            return None
        if made.record.get("ranks") != _digest_of_lines(index["marks"]):
            raise Unsealed(f"{INDEX_FILE} is not what the record says")
    except (artifact.Damaged, Unsealed, OSError, KeyError) as error:
        log.warning("no rank is reused from %s: %s", folder, error)
        return None
    lines = {key: where for key, written_by, *where in index["marks"] if written_by == environment()}
    return Earlier(folder=folder, manifest={one["path"]: one for one in made.record["files"]}, lines=lines)


def reused(job: Job, asked: NeededRank, places: Sequence[Earlier], module: ModuleType) -> dict[str, Any] | None:
    """Copy the files of an earlier rank with the same key into the job's folder; return its completion mark, or None.

    If a file differs from the mark, the next artifact is tried, and if there is none, the rank is computed.
    """
    for place in places:
        mark = place.mark(asked.key) if asked.key in place.lines else None
        if mark is not None and (moved := _copied(job, place, mark, _moved(mark, asked, module), module)) is not None:
            return moved | {
                "environment": environment(),
                "reused_from": {"fingerprint": place.folder.name, "rank": mark["rank"]},
            }
    return None


def _moved(mark: dict[str, Any], asked: NeededRank, module: ModuleType) -> dict[str, Any]:
    """Return a reused rank's completion mark with the number, file names and result of the rank in this job."""
    rename = _renaming(mark["rank"], asked.rank)
    files = [entry | {"path": rename(entry["path"])} for entry in mark["files"]]
    result = dict(mark["result"])
    if mark["rank"] != asked.rank:
        result |= {"files": [rename(name) for name in result["files"]]} if "files" in result else {}
        result = module.renumbered(result, rename) if hasattr(module, "renumbered") else result
    return mark | {"rank": asked.rank, "reads": asked.reads, "files": files, "result": result}


def _copied(
    job: Job, place: Earlier, mark: Mapping[str, Any], moved: dict[str, Any], module: ModuleType
) -> dict[str, Any] | None:
    """Copy a rank's files into the job's folder; return its completion mark, or None if they cannot be used.

    They must have the checksums in the completion mark. If settings left out of the key change them, the stage may
    adjust them (`adjusted`); otherwise the rank is made.
    """
    folder = Path(job.output)
    pairs = zip(mark["files"], moved["files"], strict=True)
    is_sound = all(copied(_source(place.folder, old), folder / new["path"], new["sha256"]) for old, new in pairs)
    if not is_sound:
        log.warning("rank %d: a file in %s is not what was written; it is not used", moved["rank"], place.folder)
    names = [entry["path"] for entry in moved["files"]]
    if is_sound and (not hasattr(module, "still_holds") or module.still_holds(job, folder, names)):
        return moved
    if is_sound and hasattr(module, "adjusted"):
        result = module.adjusted(job, folder, moved["result"])
        if result is not None:
            result = json.loads(canonical_json(result))
            return moved | {"files": artifact.manifest(folder, result["files"]), "result": result}
    for name in names:
        (folder / name).unlink(missing_ok=True)
    return None


def _renaming(old: int, new: int) -> Callable[[str], str]:
    """Return a function that replaces a rank's old number by its new one in the name of a file."""
    number = re.compile(rf"(?<!\d){old:05d}(?!\d)")

    def rename(path: str) -> str:
        parent, slash, name = path.rpartition("/")
        return f"{parent}{slash}{number.sub(f'{new:05d}', name, count=1)}"

    return rename if old != new else str


def in_record(marks: Sequence[Mapping[str, Any]], digest: str) -> dict[str, Any]:
    """Return the fields about ranks for an artifact's record: `ranks`, and which ranks were reused, if any were."""
    sources = Counter(mark["reused_from"]["fingerprint"] for mark in marks if "reused_from" in mark)
    fields: dict[str, Any] = {"ranks": digest} if digest else {}
    if sources:
        fields["reused_ranks"] = {"ranks": sources.total(), "of": len(marks), "from": dict(sorted(sources.items()))}
    return fields


def in_words(record: Mapping[str, Any]) -> str:
    """Return how many ranks of an artifact were reused, and from which fingerprints; empty if none were."""
    said = record.get("reused_ranks")
    if not said:
        return ""
    return f"{said['ranks']:,} of {said['of']:,} ranks reused from {', '.join(one[:8] for one in said['from'])}"

"""Artifacts: what a stage left behind, found by what was asked for and verified by what came out.

`<root>/<asset>/<fingerprint>/artifact.json` is written last; a folder without it is unfinished. The *fingerprint*
says what was
asked for, the *digest* what came out. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.files import read_sealed, write_sealed
from training.files import write_json as write_json
from training.files import write_text as write_text
from training.files import written as written
from training.job import DataError, InputArtifact, RefusedInput

ARTIFACT_FILE = "artifact.json"
COPY_FILE = "artifact.copy.json"  # the same record again: what a damaged one is put back from
CLOCK = ("seconds", "per_second")  # how the names of metrics end that another run measures anew
NOT_DECIDED = ("recipe", "partition", "seconds", "cost", "record_digest", "checksum")  # who asked, when, how dear
MADE = "made://"  # an artifact by name; whoever knows the root puts its path in place
SCRATCH_FOLDER = "scratch"


def canonical_json(value: Any) -> str:
    """One spelling for equal data: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of plain data."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()


def fingerprint(
    *, stage: str, version: str, settings: Any, libraries: dict[str, str], inputs: Iterable[tuple[str, str]], seed: int
) -> str:
    """What was asked for, as 32 hex digits.

    `settings` holds only what the stage reads and what differs from that version's defaults; `inputs` are (asset,
    fingerprint) pairs in order. Nothing about where or how fast belongs here.
    """
    return digest_of([stage, version, settings, libraries, list(inputs), seed])[:32]


def record_digest(record: dict[str, Any]) -> str:
    """sha256 (hex) over what was decided about an artifact: all of its record but who asked, when, where, how fast.

    A field that a later edition adds is covered by itself. Two honest runs of one job decide the same, so metrics
    whose names say that a clock measured them are left out, and the folders that its inputs lie in.
    """
    decided = {name: value for name, value in record.items() if name not in NOT_DECIDED}
    decided["inputs"] = [
        {name: value for name, value in item.items() if name != "path"} for item in record.get("inputs", ())
    ]
    decided["metrics"] = {name: value for name, value in record.get("metrics", {}).items() if not name.endswith(CLOCK)}
    return digest_of(decided)


def sha256_of(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Damaged(DataError):
    """A record is there and is not what was written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A committed artifact."""

    path: Path
    record: dict[str, Any]

    @property
    def digest(self) -> str:
        """What came out: the sha256 over its files' paths and checksums."""
        return self.record["digest"]

    @property
    def record_digest(self) -> str:
        """What was decided about it, of the record as it is now: whoever points to it knows what it was."""
        return record_digest(self.record)

    @property
    def stands_for(self) -> set[str]:
        """The record digests by which it may be pointed to: its own, and those of records that it was made instead
        of."""
        return {self.record_digest, *self.record.get("replaces", ())}

    @property
    def is_protected(self) -> bool:
        """Whether its record has a digest; one that an earlier edition made has none."""
        return "record_digest" in self.record

    @property
    def fingerprint(self) -> str:
        """What was asked for."""
        return self.record["fingerprint"]

    @property
    def failed_gates(self) -> list[dict[str, Any]]:
        """The gates that refused it, with their evidence."""
        return [gate for gate in self.record["gates"] if not gate["passed"]]


def folder_of(root: str | os.PathLike[str], asset: str, fingerprint_: str) -> Path:
    """Where the artifact of `asset` with that fingerprint lives under `root`."""
    return Path(root, asset, fingerprint_)


def find(folder: Path) -> Artifact | None:
    """The committed artifact in `folder`; None when it is absent or unfinished. Damaged when its record is."""
    return _read(folder, ARTIFACT_FILE)


def find_copy(folder: Path) -> Artifact | None:
    """The artifact as the copy of its record has it. Damaged when that is."""
    return _read(folder, COPY_FILE)


def commit_record(folder: Path, record: dict[str, Any]) -> None:
    """Write the record with its digest, which makes every file that it names count."""
    whole = record | {"record_digest": record_digest(record)}
    write_sealed(folder / COPY_FILE, whole)
    write_sealed(folder / ARTIFACT_FILE, whole)


def _read(folder: Path, name: str) -> Artifact | None:
    try:
        record = read_sealed(folder / name, mark="record_digest")
        problem = _problem(record)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Damaged(f"{folder}: {error}") from None
    if problem:
        raise Damaged(f"{folder}: {name} {problem}")
    return Artifact(path=folder, record=record)


_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("asset", "stage", "stage_version", "recipe", "partition", "fingerprint", "code_revision"), str),
    **dict.fromkeys(("settings", "libraries", "metrics", "notes", "cost", "code"), dict),
    "digest": str,
    "record_digest": str,
    "counts": (dict, type(None)),
    "seed": int,
    "seconds": (int, float),
}
_ENTRIES: dict[str, dict[str, type]] = {
    "inputs": {"asset": str, "partition": str, "fingerprint": str, "digest": str},
    "files": {"path": str, "bytes": int, "sha256": str},
    "gates": {"name": str, "passed": bool, "evidence": dict},
}


# What every edition wrote and readers ask for.
_LATER = {"stage", "recipe", "seed", "code_revision", "notes", "cost", "record_digest", "code"}
FIELDS = (*_KINDS.keys() - _LATER, *_ENTRIES)


def _problem(record: dict[str, Any]) -> str:
    """What shows that a record that can be read is not what was written; empty when nothing does.

    Of a record without a checksum, by an earlier edition, this is all that can be asked.
    """
    for name, kind in _KINDS.items():
        if name in record and not isinstance(record[name], kind):
            return f"has no usable {name}"
    for name, kinds in _ENTRIES.items():
        entries = record.get(name, [])
        if not isinstance(entries, list) or not all(_is_entry(entry, kinds) for entry in entries):
            return f"has no usable {name}"
    if record.get("digest") != digest_of_files(record.get("files", ())):
        return "has another digest than its files' checksums give"
    if record.get("record_digest", own := record_digest(record)) != own:
        return "has another record digest than what it says gives"
    return ""


def _is_entry(entry: Any, kinds: dict[str, type]) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in kinds.items())


def checkpoint_step(folder: Path) -> int | None:
    """The step of the newest checkpoint that an unfinished artifact's stage left, whole or not; None: there is none."""
    found = (
        path.name for kind in ("step", "checkpoint") for path in (folder / SCRATCH_FOLDER).glob(f"*/{kind}-[0-9]*")
    )
    return max((int(name.rpartition("-")[2]) for name in found), default=None)


def manifest(folder: Path, files: Iterable[str]) -> list[dict[str, Any]]:
    """Path, size in bytes and sha256 of each of the folder's `files`, sorted by path."""
    return [
        {"path": name, "bytes": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)}
        for name in sorted(set(files))
    ]


def digest_of_files(files: Iterable[dict[str, Any]]) -> str:
    """The digest of an artifact with this manifest."""
    return digest_of(sorted([entry["path"], entry["sha256"]] for entry in files))


def damaged_files(artifact: Artifact, *, reads: bool = True) -> list[str]:
    """One line for each file that is missing or differs from its manifest entry; empty when all is well. Unless it
    `reads` them, what is in files of the right size is not looked at."""
    problems = []
    for entry in artifact.record["files"]:
        path = artifact.path / entry["path"]
        if not path.exists():
            problems.append(f"{path}: missing")
        elif path.stat().st_size != entry["bytes"]:
            problems.append(f"{path}: {path.stat().st_size} bytes, the manifest says {entry['bytes']}")
        elif reads and sha256_of(path) != entry["sha256"]:
            problems.append(f"{path}: content differs from its checksum {entry['sha256'][:12]}…")
    return problems


def check_input(item: InputArtifact) -> Artifact:
    """The input as a usable artifact. RefusedInput says which gate, digest, record or file stands in the way."""
    where = f"{item.asset} [{item.partition}]"
    try:
        artifact = find(Path(item.path))
    except Damaged as error:
        raise RefusedInput(f"{where}: {error}; run again to have it mended") from None
    if artifact is None:
        raise RefusedInput(f"{where}: no finished artifact at {item.path}; materialize {item.asset} first")
    if artifact.digest != item.digest:
        raise RefusedInput(
            f"{where}: digest {artifact.digest[:12]} is not the {item.digest[:12]} that the job was"
            " written for; run again so that the job names what is there now"
        )
    if item.record_digest and item.record_digest not in artifact.stands_for:
        raise RefusedInput(
            f"{where}: the record at {item.path} has digest {artifact.record_digest[:12]}, not the"
            f" {item.record_digest[:12]} that the job was written for: what was decided about it was changed"
        )
    if artifact.failed_gates:
        gate = artifact.failed_gates[0]
        raise RefusedInput(f"{where}: gate {gate['name']} refused it: {canonical_json(gate['evidence'])}")
    problems = damaged_files(artifact)
    if problems:
        raise RefusedInput(
            f"{where}: {problems[0]}; `pedigree verify {item.partition.partition('@')[0]} --mend` sets it aside, and"
            " the next run makes it again"
        )
    return artifact


def model_digest(folder: Path) -> str:
    """What identifies a model that a recipe names by its folder: its artifact's digest, or one over a plain folder's
    files. DataError when there is no model. A plain folder is read once in a process while its files stay."""
    made = find(folder)
    if made is not None:
        return made.digest
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder}: no artifact and no model is there; artifact.json or config.json is needed")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return _files_digest(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=64)
def _files_digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    return digest_of_files(entry for path, _, _ in files for entry in manifest(path.parent, [path.name]))

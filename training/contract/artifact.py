"""Artifacts: the folders that stages make, found by fingerprint and verified by digest.

`<root>/<asset>/<fingerprint>/artifact.json` is written last; a folder without it is unfinished. The *fingerprint* is a
hash of what was asked for, the *digest* a hash of what was made. Standard library only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from training.contract.files.checked import ARTIFACT_FILE as ARTIFACT_FILE
from training.contract.files.checked import FOREIGN, unlisted, unsound
from training.contract.files.checksums import canonical_json as canonical_json
from training.contract.files.checksums import digest_of as digest_of
from training.contract.files.checksums import digest_of_files as digest_of_files
from training.contract.files.checksums import sha256_of as sha256_of
from training.contract.files.checksums import sha256_of_written
from training.contract.files.erased import why_no_input
from training.contract.files.stored_root import bring_record, is_here, size_of, store_record, those_here
from training.contract.files.writing import Unsealed, read_sealed, sealed_text
from training.contract.files.writing import write_json as write_json
from training.contract.files.writing import write_text as write_text
from training.contract.files.writing import written as written
from training.contract.job import DataError, InputArtifact, RefusedInput

COPY_FILE = "artifact.copy.json"  # a second copy of the record, from which a damaged record is restored
CLOCK = ("seconds", "per_second")  # endings of the names of metrics that a clock measured and each run changes
# Fields without a decision. A rank that was reused has the files that it would have made.
NOT_DECIDED = ("recipe", "partition", "seconds", "cost", "record_digest", "checksum", "reused_ranks")
MADE = "made://"  # scheme of a URI that names an artifact; code that knows the root replaces it with a path
SCRATCH_FOLDER = "scratch"


def fingerprint(
    *, stage: str, version: str, settings: Any, libraries: dict[str, str], inputs: Iterable[tuple[str, str]], seed: int
) -> str:
    """Return the fingerprint of a request for an artifact, a hash with 32 hex digits.

    `settings` holds only fields that the stage reads and that differ from the defaults. `inputs` are (asset,
    fingerprint) pairs in order. Settings of the profile (where and how fast a stage runs) do not belong here.
    """
    return digest_of([stage, version, settings, libraries, list(inputs), seed])[:32]


def record_digest(record: dict[str, Any]) -> str:
    """Return the sha256 (hex) of an artifact's record without its recipe, partition, times, costs and checksums.

    Two runs of one job have the same record digest.
    """
    return digest_of(decided_of(record))


def decided_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an artifact's record that two runs of one job have in common.

    Metrics that a clock measured (their names end as in CLOCK) and the paths of inputs and guards are left out too.
    Every other field is covered.
    """
    decided = {name: value for name, value in record.items() if name not in NOT_DECIDED}
    for field in ("inputs", *({"guards"} & record.keys())):
        items = record.get(field, ())
        decided[field] = [{name: value for name, value in item.items() if name != "path"} for item in items]
    decided["metrics"] = {name: value for name, value in record.get("metrics", {}).items() if not name.endswith(CLOCK)}
    return decided


class Damaged(DataError):
    """A record exists, but it cannot be read or differs from what was written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A committed artifact: its folder and the content of its `artifact.json`."""

    path: Path
    record: dict[str, Any]

    @property
    def digest(self) -> str:
        """The sha256 (hex) over the paths and checksums of the artifact's files."""
        return self.record["digest"]

    @property
    def record_digest(self) -> str:
        """The digest of the record as it is now. References keep this digest, so that they notice a changed record."""
        return record_digest(self.record)

    @property
    def claims(self) -> set[str]:
        """Its own record digest, and those of earlier records that this record says of itself it replaced.

        That is the record's own word. What is signed, sent out or promoted asks others (assets.registry.kept_digests).
        """
        return {self.record_digest, *self.record.get("replaces", ())}

    def own_word_on(self, held: str) -> str:
        """Return a sentence if only the record itself says that it stands for a digest that is `held`; "" if it is it.

        The digest must be among its claims.
        """
        assert held in self.claims
        if held == self.record_digest:
            return ""
        return (
            f"its record {self.record_digest[:12]} says itself that it replaced {held[:12]}, and nobody else was asked"
        )

    @property
    def fingerprint(self) -> str:
        """The hash of the request that the artifact answers (stage, settings, inputs, seed): 32 hex digits."""
        return self.record["fingerprint"]

    def file(self, name: str) -> Path:
        """Return the path of one of the artifact's files, or of a folder of them; "" is the folder of all.

        What is not here is brought from the root's store. The content is not checked, and may be missing.
        """
        for entry in self.record["files"]:
            if not name or entry["path"] == name or entry["path"].startswith(f"{name}/"):
                is_here(self.path / entry["path"], entry["sha256"])
        return self.path / name

    @property
    def failed_gates(self) -> list[dict[str, Any]]:
        """The gates that the artifact failed, with their evidence."""
        return [gate for gate in self.record["gates"] if not gate["passed"]]


def folder_of(root: str | os.PathLike[str], asset: str, fingerprint_: str) -> Path:
    """Return the folder under `root` of the artifact of `asset` with this fingerprint."""
    return Path(root, asset, fingerprint_)


def find(folder: Path) -> Artifact | None:
    """Return the committed artifact in `folder`, or None if it is absent or unfinished.

    The record is brought from the root's store if it is not here, or is damaged. Raise Damaged if it stays so.
    """
    try:
        made = _read(folder, ARTIFACT_FILE)
    except Damaged:
        if not bring_record(folder):
            raise
    else:
        if made is not None or not bring_record(folder):
            return made
    return _read(folder, ARTIFACT_FILE)


def find_copy(folder: Path) -> Artifact | None:
    """Return the artifact with the record from its backup copy, `artifact.copy.json`, or None if there is none.

    Raise Damaged if the copy is damaged.
    """
    return _read(folder, COPY_FILE)


def commit_record(folder: Path, record: dict[str, Any]) -> None:
    """Write `artifact.json` with its own digest, and its backup copy. From then on the artifact is committed.

    In a root in a store, another process's record that is there already is written instead.
    """
    whole = sealed_text(record | {"record_digest": record_digest(record)})
    there = store_record(folder, whole.encode("utf-8")).decode("utf-8")
    write_text(folder / COPY_FILE, there)
    write_text(folder / ARTIFACT_FILE, there)


def _read(folder: Path, name: str) -> Artifact | None:
    try:
        record = read_sealed(folder / name)
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
    "guards": {"asset": str, "partition": str, "fingerprint": str, "digest": str},
    "files": {"path": str, "bytes": int, "sha256": str},
    "beside": {"path": str, "bytes": int, "sha256": str},
    "gates": {"name": str, "passed": bool, "evidence": dict},
}
FIELDS = (*_KINDS, *(_ENTRIES.keys() - {"guards", "beside"}))  # of every record that a job writes


def _problem(record: dict[str, Any]) -> str:
    """Return why a readable `artifact.json` is damaged, or "" if no contradiction is found."""
    for name, kind in _KINDS.items():
        if name in record and not isinstance(record[name], kind):
            return f"has no usable {name}"
    for name, kinds in _ENTRIES.items():
        entries = record.get(name, [])
        if not isinstance(entries, list) or not all(_is_entry(entry, kinds) for entry in entries):
            return f"has no usable {name}"
    if record.get("digest") != digest_of_files(record.get("files", ())):
        return "has another digest than its files' checksums give"
    if record.get("record_digest") != record_digest(record):
        return "has another record digest than what it says gives"
    return ""


def _is_entry(entry: Any, kinds: dict[str, type]) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in kinds.items())


def checkpoint_step(folder: Path) -> int | None:
    """Return the step of the newest checkpoint in an unfinished artifact, or None if there is no checkpoint.

    Checkpoints that were not written to the end count too.
    """
    found = (
        path.name for kind in ("step", "checkpoint") for path in (folder / SCRATCH_FOLDER).glob(f"*/{kind}-[0-9]*")
    )
    return max((int(name.rpartition("-")[2]) for name in found), default=None)


def manifest(
    folder: Path, files: Iterable[str], known: Mapping[str, Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return the path, the size in bytes and the sha256 of each of the folder's `files`, sorted by path.

    Files with an entry in `known`, and files that this process wrote, are not read. Those of `known` may be in the
    root's store alone. Raise DataError if a file does not have the size in `known`.
    """
    return [_entry(folder, name, (known or {}).get(name)) for name in sorted(set(files))]


def _entry(folder: Path, name: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
    size = size_of(folder / name, known)
    if known is None:
        return {"path": name, "bytes": size, "sha256": sha256_of_written(folder / name)}
    if size != known["bytes"]:
        raise DataError(f"{folder / name}: {size} bytes, its rank wrote {known['bytes']}; run again")
    return {"path": name, "bytes": size, "sha256": known["sha256"]}


def keep(folder: Path, beside: Mapping[str, str], known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give scratch files their names in the committed artifact; return their manifest entries, sorted by path.

    `beside` maps the scratch files to these names, and `known` has the entries of those that ranks wrote. They keep
    their first names too, until the scratch folder is removed after the commit. So a job that is killed before it finds
    its ranks finished.
    """
    for scratch in those_here(folder, beside, known):
        name = beside[scratch]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)  # of a killed attempt
        try:
            os.link(folder / scratch, folder / name)
        except OSError:  # a file system without links
            shutil.copyfile(folder / scratch, folder / name)
    entries = {name: known.get(scratch) or _entry(folder, name, None) for scratch, name in beside.items()}
    return sorted((dict(entry) | {"path": name} for name, entry in entries.items()), key=itemgetter("path"))


def damaged_files(artifact: Artifact, *, reads: bool = True, judged: str | None = None) -> list[str]:
    """Return one line for each file that is missing or differs from its entry in the record; empty if there is none.

    Files beside those of the manifest are compared where they are there: a takedown removes an index, and the next job
    then does without. A file that a takedown erased is as it should be, if the list of such files is the one that was
    `judged` (`erased_in`). With `reads=False` only the sizes of the files are compared, not their checksums.
    """
    beside = (one for one in artifact.record.get("beside", ()) if os.path.lexists(artifact.path / one["path"]))
    entries = [*artifact.record["files"], *beside]
    lines = (unsound(artifact.path, entry, reads=reads, judged=judged) for entry in entries)
    return [line for line in lines if line]


def foreign_files(artifact: Artifact) -> list[Path]:
    """Return what lies in the artifact's folder and is neither a file that its record lists nor a folder above one."""
    listed = {one["path"] for kind in ("files", "beside") for one in artifact.record.get(kind, ())}
    return [artifact.path / name for name in unlisted(artifact.path, listed)]


def problems_of(artifact: Artifact, *, reads: bool = True, judged: str | None = None) -> list[str]:
    """Return one line for each damaged and each foreign file; `reads` and `judged` are those of `damaged_files`."""
    damaged = damaged_files(artifact, reads=reads, judged=judged)
    return damaged + [f"{path}: {FOREIGN}" for path in foreign_files(artifact)]


def check_input(item: InputArtifact) -> Artifact:
    """Return the artifact of an input after checking its record, digests and gates, and every byte of its files.

    Raise RefusedInput if one of these checks fails; the message names it.
    """
    artifact = check_record(item)
    if problems := problems_of(artifact, judged=item.erased):
        raise item.refused(problems[0])
    return artifact


def check_record(item: InputArtifact) -> Artifact:
    """Return the artifact of an input after checking its record, digests and gates, but not its files.

    `InputArtifact.file` checks a file when it is opened. Raise RefusedInput if one of these checks fails; the message
    names it.
    """
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
    if item.record_digest and item.record_digest != artifact.record_digest:
        raise RefusedInput(
            f"{where}: the record at {item.path} has digest {artifact.record_digest[:12]}, not the"
            f" {item.record_digest[:12]} that the job was written for: what was decided about it was changed"
        )
    try:
        erased = why_no_input(artifact.path, item.erased)
    except Unsealed as error:
        raise item.refused(str(error)) from None
    if erased:
        raise RefusedInput(f"{where}: {erased}, so nothing is made from it; run again from this asset on")
    if artifact.failed_gates:
        gate = artifact.failed_gates[0]
        raise RefusedInput(f"{where}: gate {gate['name']} refused it: {canonical_json(gate['evidence'])}")
    return artifact

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

from training.files import write_json as write_json
from training.files import write_text as write_text
from training.files import written as written
from training.job import DataError, InputArtifact, RefusedInput

ARTIFACT_FILE = "artifact.json"
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
    inputs = [{name: value for name, value in item.items() if name != "path"} for item in record["inputs"]]
    metrics = {name: value for name, value in record["metrics"].items() if not name.endswith(CLOCK)}
    return digest_of(decided | {"inputs": inputs, "metrics": metrics})


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the digest of what was decided, and with a checksum over everything that it says."""
    whole = record | {"record_digest": record_digest(record)}
    return whole | {"checksum": digest_of({name: value for name, value in whole.items() if name != "checksum"})}


def sha256_of(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
    """The committed artifact in `folder`; None when it is absent or unfinished."""
    try:
        return Artifact(path=folder, record=json.loads((folder / ARTIFACT_FILE).read_text("utf-8")))
    except FileNotFoundError:
        return None


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


def damaged_files(artifact: Artifact) -> list[str]:
    """One line for each file that is missing or differs from its manifest entry; empty when all is well."""
    problems = []
    for entry in artifact.record["files"]:
        path = artifact.path / entry["path"]
        if not path.exists():
            problems.append(f"{path}: missing")
        elif path.stat().st_size != entry["bytes"]:
            problems.append(f"{path}: {path.stat().st_size} bytes, the manifest says {entry['bytes']}")
        elif sha256_of(path) != entry["sha256"]:
            problems.append(f"{path}: content differs from its checksum {entry['sha256'][:12]}…")
    return problems


def check_input(item: InputArtifact) -> Artifact:
    """The input as a usable artifact. RefusedInput says which gate, digest or file stands in the way."""
    artifact = find(Path(item.path))
    if artifact is None:
        raise RefusedInput(
            f"{item.asset} [{item.partition}]: no finished artifact at {item.path}; materialize {item.asset} first"
        )
    if artifact.digest != item.digest:
        raise RefusedInput(
            f"{item.asset} [{item.partition}]: digest {artifact.digest[:12]} is not the {item.digest[:12]} that "
            "the job was"
            " written for; run again so that the job names what is there now"
        )
    if artifact.failed_gates:
        gate = artifact.failed_gates[0]
        raise RefusedInput(
            f"{item.asset} [{item.partition}]: gate {gate['name']} refused it: {canonical_json(gate['evidence'])}"
        )
    problems = damaged_files(artifact)
    if problems:
        raise RefusedInput(
            f"{item.asset} [{item.partition}]: {problems[0]}; remove the folder and materialize it again"
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

"""Find the artifact of a cell (an asset in a partition), which may be undamaged, damaged or absent, and its reference.

A reference points a partition to an artifact and keeps its digests. So a change of the record after the commit is
noticed, even if the record's own checksums were changed too. This module reads records but no other files of an
artifact.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assets.state.tombstones import erased_by
from training.adopt.trial import check_tried
from training.contract import artifact
from training.contract.artifact import Artifact, Damaged
from training.contract.files.checked import Refused, check
from training.contract.files.erased import why_no_input
from training.contract.files.stored_root import move_stored, store_small
from training.contract.files.writing import Unsealed, read_sealed, sealed_text, write_text
from training.contract.job import DataError

HEX = re.compile("[0-9a-f]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """The artifact that a partition points to, by its fingerprint and digests."""

    fingerprint: str
    digest: str
    record_digest: str


def reference_path(root: Path, asset: str, partition: str) -> Path:
    """The path of a partition's reference file."""
    return root / "refs" / asset / f"{partition}.json"


def read_reference(root: Path, asset: str, partition: str) -> Reference | None:
    """Read a partition's reference; None if the partition was never made. Raises Damaged if the file is damaged."""
    path = reference_path(root, asset, partition)
    try:
        fields = read_sealed(path)
    except FileNotFoundError:
        return None
    except (OSError, Unsealed) as error:
        raise Damaged(f"reference {path}: {error}") from None
    fields.pop("checksum", None)
    if fields.keys() != {"fingerprint", "digest", "record_digest"} or not all(
        isinstance(value, str) and HEX.fullmatch(value) for value in fields.values()
    ):
        raise Damaged(f"reference {path}: is not what was written")
    return Reference(**fields)


def write_reference(root: Path, made: Artifact, partition: str) -> None:
    """Point `partition` to a committed artifact."""
    fields = {"fingerprint": made.fingerprint, "digest": made.digest, "record_digest": made.record_digest}
    path, text = reference_path(root, made.record["asset"], partition), sealed_text(fields)
    store_small(path, text.encode("utf-8"))
    write_text(path, text)


def recipes_run(root: Path) -> frozenset[str]:
    """Return the names of the recipes that were run under a root: those of the partitions with a reference."""
    return frozenset(path.stem.partition("@")[0] for path in (root / "refs").glob("*/*.json"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The result of looking for an artifact in a folder: the usable artifact, or None if there is none.

    If the record is damaged, `damage` says how, and the artifact is read from the copy of the record if that is whole.
    """

    artifact: Artifact | None = None
    damage: str = ""


def look(folder: Path, asset: str, held: set[str]) -> Found:
    """Find the artifact in a folder. Its record must match `held`, the digests of it that other records store.

    The copy of the record is used if the record itself is damaged or has another digest. An artifact in which a
    takedown erased documents cannot be used, nor one of which a list says so and no takedown does.
    """
    try:
        if erased := why_no_input(folder):
            return Found(damage=f"{folder}: {erased}")
        found = artifact.find(folder)
        damage = "" if found is None else _difference(found, asset, held)
    except Unsealed as error:
        return Found(damage=f"{folder}: {error}")
    except Damaged as error:
        found, damage = None, str(error)
    found = _copy(folder, asset, held) if damage else found
    unknown = erased_by(found)[1] if found is not None else ()
    return Found(damage=unknown[0]) if unknown else Found(artifact=found, damage=damage)


def _copy(folder: Path, asset: str, held: set[str]) -> Artifact | None:
    try:
        copy = artifact.find_copy(folder)
    except Damaged:
        return None
    return copy if copy is not None and not _difference(copy, asset, held) else None


def _difference(found: Artifact, asset: str, held: set[str]) -> str:
    """Return why the artifact found in a folder does not belong there; empty if it does."""
    missing = [name for name in artifact.FIELDS if name not in found.record]
    if missing:
        return f"{found.path}: the record has no {missing[0]}"
    if found.record["asset"] != asset or found.fingerprint != found.path.name:
        return f"{found.path}: the record is that of {found.record['asset']} {found.fingerprint}"
    if not held <= found.claims:
        return (
            f"{found.path}: the record was changed: what was decided has digest {found.record_digest[:12]}, and who"
            f" points to it holds {min(held - found.claims)[:12]}"
        )
    return ""


def whole_model(folder: Path) -> Path:
    """Return a model's folder. If it is that of an artifact, check the record and every byte of the folder first.

    Raise DataError if something is damaged, or if the folder does not open within limits of time and memory: it may be
    a stranger's, or lie in a root that a stranger made.
    """
    if (made := artifact.find(folder.parent)) is not None:
        try:
            check(folder.parent, made.digest, folder.name)
        except Refused as error:
            recipe = made.record["partition"].partition("@")[0]
            raise DataError(f"{error}; `pedigree verify {recipe} --mend` sets it aside") from None
    check_tried(folder)
    return folder


# Damaged files and folders are never removed; they are renamed, and the replacement gets the original name.


def aside(path: Path, why: str) -> Path:
    """Rename a file or an artifact's folder to `NAME.WHY-MILLISECONDS` where it is; return the new path."""
    new = path.with_name(f"{path.name}.{why}-{time.time_ns() // 1_000_000}")
    if path.is_dir():
        move_stored(path, new)
    return path.rename(new)


def apart(made: Artifact, foreign: Sequence[Path]) -> Path:
    """Move foreign files out of an artifact's folder into a new one beside it, which `gc` removes; return that one."""
    place = made.path.with_name(f"{made.path.name}.damaged-{time.time_ns() // 1_000_000}")
    for path in foreign:
        target = place / path.relative_to(made.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return place


def put_back(made: Artifact) -> str:
    """Replace an artifact's damaged `artifact.json` by `made.record`; return a sentence that reports it."""
    damaged = aside(made.path / artifact.ARTIFACT_FILE, "damaged")
    artifact.commit_record(made.path, made.record)
    return f"its record was put back from {artifact.COPY_FILE}; the damaged one is {damaged.name}"

"""Record which files of an artifact a takedown has overwritten, and check such files.

`erased.json` beside the artifact's record lists, for each such file, its size and checksum after each takedown. The
record itself is left as it is, so that fingerprint, digest and lineage still name what was made. A file is sound if it
is what was written, or what a takedown made of it; the former is so while the takedown is at work. Standard library
only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.contract.files.checksums import Identity, identity_of
from training.contract.files.writing import Unsealed, regular_bytes, unsealed, write_sealed

ERASED_FILE = "erased.json"
# What a model is and how it was judged: no takedown overwrites it, whatever the list says.
NEVER = ("model/", "scores.json", "decision.json")
WEIGHTS, SIGNATURES = ".safetensors", "signatures/"  # signatures of documents are kept as safetensors too


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasedState:
    """The size and the checksum of a file after a takedown, and how many pages the takedown has overwritten in it.

    `is_input` says whether jobs may still read the artifact: an archive, because the extraction drops the same pages,
    and a text about a model, but not documents and tokens, which would be other ones than the record says.
    """

    takedown: int
    bytes: int
    sha256: str
    is_input: bool
    pages: int


NO_LIST = "none"  # a job's record takes no empty text for one that may be absent


def erased_in(folder: Path, judged: str | None = None) -> Mapping[str, Sequence[ErasedState]]:
    """Return the erased files of the artifact in `folder`, by path, each with its states, oldest first.

    Raise Unsealed if the list was changed, or if the bytes that are read here are not those that were `judged`
    (`list_digest`); with None nobody has judged it, so any list is right. Whether takedowns made these states, only
    they can say (`assets.state.tombstones.erased_by`).
    """
    files, digest = _list_of(folder)
    if judged not in (None, digest):
        raise Unsealed(f"{folder / ERASED_FILE}: is not the list that the job was written for ({digest[:12]})")
    return files


def list_digest(folder: Path) -> str:
    """Return the sha256 of the list of the artifact in `folder`; NO_LIST if it has none, or none that can be read."""
    try:
        return _list_of(folder)[1]
    except Unsealed:
        return NO_LIST


def _list_of(folder: Path) -> tuple[Mapping[str, Sequence[ErasedState]], str]:
    try:
        return _read(str(folder), identity_of(folder / ERASED_FILE))
    except FileNotFoundError:
        return {}, NO_LIST


@lru_cache(maxsize=256)
def _read(folder: str, _identity: Identity) -> tuple[Mapping[str, Sequence[ErasedState]], str]:
    data = regular_bytes(Path(folder, ERASED_FILE))
    try:
        files = unsealed(data, ERASED_FILE)["files"]
        states = {path: tuple(ErasedState(**one) for one in states) for path, states in files.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise Unsealed(f"{ERASED_FILE} is not what was written ({error})") from None
    return states, hashlib.sha256(data).hexdigest()


def note_erased(folder: Path, path: str, state: ErasedState) -> None:
    """Add a state of a file to the list; this comes before the file, so whoever is killed leaves one of its states."""
    known = {name: list(states) for name, states in erased_in(folder).items()}
    if state not in known.setdefault(path, []):
        known[path].append(state)
        files = {name: [asdict(one) for one in states] for name, states in known.items()}
        write_sealed(folder / ERASED_FILE, {"files": files})


def may_be_erased(name: str) -> bool:
    """Whether a takedown may overwrite a file of an artifact: not the model itself, its scores, or a decision."""
    return not name.startswith(NEVER) and (not name.endswith(WEIGHTS) or name.startswith(SIGNATURES))


def states_of(folder: Path, entry: Mapping[str, Any], judged: str | None = None) -> list[dict[str, Any]]:
    """Return the entries that a file may answer to: that of the manifest, and those after each takedown."""
    known = erased_in(folder, judged)
    later = known.get(entry["path"], ()) if may_be_erased(entry["path"]) else ()
    return [dict(entry), *({**entry, "bytes": one.bytes, "sha256": one.sha256} for one in later)]


def why_no_input(folder: Path, judged: str | None = None) -> str:
    """Return why no job may read an artifact: the takedowns that erased documents in it. Empty if jobs may."""
    found = {one.takedown for states in erased_in(folder, judged).values() for one in states if not one.is_input}
    if not found:
        return ""
    return f"takedown{'s' if len(found) > 1 else ''} {', '.join(map(str, sorted(found)))} erased pages in it"

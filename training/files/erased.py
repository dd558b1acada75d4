"""Record which files of an artifact a takedown has overwritten, and check such files.

`erased.json` beside the artifact's record lists, for each such file, its size and checksum after each takedown. The
record itself is left as it is, so that fingerprint, digest and lineage still name what was made. A file is sound if it
is what was written, or what a takedown made of it; the former is so while the takedown is at work. Standard library
only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from training.files.checksums import Identity, identity_of, sha256_of
from training.files.writing import Unsealed, read_sealed, temporary_for, write_sealed

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


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedRecord:
    """A takedown that masked texts in the artifact's record, and the record's digests before and after."""

    takedown: int
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Erased:
    """The content of an artifact's `erased.json`."""

    files: Mapping[str, Sequence[ErasedState]] = field(default_factory=dict)
    records: Sequence[MaskedRecord] = ()


def erased_in(folder: Path) -> Mapping[str, Sequence[ErasedState]]:
    """Return the erased files of the artifact in `folder`, by path, each with its states, oldest first.

    Raise Unsealed if the list was changed.
    """
    return _erased(folder).files


def masked_since(folder: Path, before: str, after: str) -> tuple[int, ...]:
    """Return the takedowns that made a record with the digest `after` of one with the digest `before`, oldest first.

    Empty if the list of the artifact in `folder` does not lead from one to the other. Raise Unsealed if it was changed.
    """
    found: list[int] = []
    for one in _erased(folder).records:
        if one.before == before and before != after:
            before, found = one.after, [*found, one.takedown]
    return tuple(found) if before == after else ()


def _erased(folder: Path) -> _Erased:
    try:
        return _read(str(folder), identity_of(folder / ERASED_FILE))
    except FileNotFoundError:
        return _Erased()


@lru_cache(maxsize=256)
def _read(folder: str, _identity: Identity) -> _Erased:
    try:
        content = read_sealed(Path(folder, ERASED_FILE))
        return _Erased(
            files={path: tuple(ErasedState(**one) for one in states) for path, states in content["files"].items()},
            records=tuple(MaskedRecord(**one) for one in content.get("records", ())),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Unsealed(f"{ERASED_FILE} is not what was written ({error})") from None


class Unchanged(Exception):
    """Raised in the block of `overwriting` to leave the file as it is."""


@dataclass(kw_only=True, slots=True)
class Overwriting:
    """A file that is being overwritten: the stream of its new content, and the pages that are overwritten in it."""

    stream: IO[bytes]
    pages: int = 0


@contextmanager
def overwriting(folder: Path, name: str, *, takedown: int, is_input: bool) -> Iterator[Overwriting]:
    """Open a stream whose content replaces a file of an artifact, which then lists the file as erased.

    The list is written first, so whoever is killed leaves a file that is one of its states. A block that raises
    Unchanged leaves everything as it is.
    """
    temporary = temporary_for(folder / name)
    try:
        with open(temporary, "w+b") as stream:
            yield (new := Overwriting(stream=stream))
            stream.flush()
            os.fsync(stream.fileno())
        size, sha256 = temporary.stat().st_size, sha256_of(temporary)
        state = ErasedState(takedown=takedown, bytes=size, sha256=sha256, is_input=is_input, pages=new.pages)
        _note(folder, name, state)
        os.replace(temporary, folder / name)
    except Unchanged:
        pass
    finally:
        temporary.unlink(missing_ok=True)


def _note(folder: Path, path: str, state: ErasedState) -> None:
    known = {name: list(states) for name, states in erased_in(folder).items()}
    if state not in known.setdefault(path, []):
        known[path].append(state)
        _write(folder, _Erased(files=known, records=_erased(folder).records))


def note_masked(folder: Path, record: MaskedRecord) -> None:
    """Note, before a record is written again, that a takedown masks texts in it."""
    known = _erased(folder)
    if record not in known.records:
        _write(folder, _Erased(files=known.files, records=(*known.records, record)))


def _write(folder: Path, content: _Erased) -> None:
    files = {name: [asdict(one) for one in states] for name, states in content.files.items()}
    records = [asdict(one) for one in content.records]
    write_sealed(folder / ERASED_FILE, {"files": files, **({"records": records} if records else {})})


def may_be_erased(name: str) -> bool:
    """Whether a takedown may overwrite a file of an artifact: not the model itself, its scores, or a decision."""
    return not name.startswith(NEVER) and (not name.endswith(WEIGHTS) or name.startswith(SIGNATURES))


def states_of(folder: Path, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries that a file may answer to: that of the manifest, and those after each takedown."""
    later = erased_in(folder).get(entry["path"], ()) if may_be_erased(entry["path"]) else ()
    return [dict(entry), *({**entry, "bytes": one.bytes, "sha256": one.sha256} for one in later)]


def why_no_input(folder: Path) -> str:
    """Return why no job may read an artifact: the takedowns that erased documents in it. Empty if jobs may."""
    found = {one.takedown for states in erased_in(folder).values() for one in states if not one.is_input}
    if not found:
        return ""
    return f"takedown{'s' if len(found) > 1 else ''} {', '.join(map(str, sorted(found)))} erased pages in it"

"""What the artifacts under a root are needed by: references, recipes, work under way and registered versions.

These also need what they were made from, through the inputs that records and jobs name. In doubt an artifact is
needed. A record that cannot be read is replaced by its copy or its job; without either, all artifacts that it could
have been made from are needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assets.state.chain import CHAIN, ancestors
from assets.state.compare import compare
from assets.state.recipe_folders import recipe_files, recipe_folders
from assets.state.references import read_reference
from assets.state.removal_lock import TRASH
from training.contract import artifact
from training.contract.artifact import ARTIFACT_FILE, COPY_FILE, Artifact, Damaged
from training.contract.files.writing import regular_bytes
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.contract.scopes import WHOLE

NAME = re.compile(r"(?P<fingerprint>[0-9a-f]{32})(?:\.(?P<aside>replaced|damaged)-\d+)?")
IDENTITY = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{32})(?![0-9a-f])")  # a digest or a fingerprint
NAMING = ("inputs", "guards", "settings")  # fields of records and jobs that name other artifacts

ARTIFACT, UNFINISHED, REPLACED, DAMAGED = "artifact", "unfinished", "replaced", "damaged"


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder of an asset: a committed artifact, an unfinished one, or one that was replaced or set aside as damaged.

    `names` are the fingerprints and digests that its record and its job name. They are None if neither can be read.
    """

    path: Path
    asset: str
    fingerprint: str
    kind: str
    digest: str = ""
    recipe: str = ""
    partition: str = ""
    names: frozenset[str] | None = frozenset()
    record_digests: frozenset[str] = frozenset()  # that a reference to it may hold
    problem: str = ""  # why its record cannot be used


class Folders:
    """Reads the folders under a root. A folder is read again only if its record or job has changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[Path, tuple[Any, Folder]] = {}

    def all(self) -> list[Folder]:
        """Return the folders of all assets, those in the trash included, by asset and name."""
        return [
            self._folder(path, asset)
            for asset in CHAIN
            for place in (self.root / asset, self.root / asset / TRASH)
            if place.is_dir()
            for path in sorted(place.iterdir())
            if NAME.fullmatch(path.name) and path.is_dir()
        ]

    def _folder(self, path: Path, asset: str) -> Folder:
        stamp = tuple(_stamp(path / name) for name in (ARTIFACT_FILE, COPY_FILE, "job.json"))
        known = self._read.get(path)
        if known is None or known[0] != stamp:
            known = self._read[path] = stamp, read_folder(path, asset)
        return known[1]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def read_folder(path: Path, asset: str) -> Folder:
    """Return what is in a folder of an asset."""
    named = NAME.fullmatch(path.name)
    assert named is not None
    made, copy, problem = _records(path)
    is_there = made is not None or copy is not None or bool(problem)
    said = [one.record for one in (made, copy) if one is not None] + [job for job in (_job(path),) if job is not None]
    made = made or copy
    first = said[0] if said else {}
    return Folder(
        path=path,
        asset=asset,
        fingerprint=named["fingerprint"],
        kind=named["aside"] or (ARTIFACT if is_there else UNFINISHED),
        digest=made.digest if made else "",
        recipe=str(first.get("recipe", "")),
        partition=str(first.get("partition", "")),
        names=frozenset().union(*map(_names, said)) if said or not is_there else None,
        record_digests=frozenset(made.claims) if made else frozenset(),
        problem=problem,
    )


def _records(path: Path) -> tuple[Artifact | None, Artifact | None, str]:
    """Return a folder's artifact by its record and by the record's copy, and what is wrong with the record."""
    found: list[Artifact | None] = []
    problems = []
    for read in (artifact.find, artifact.find_copy):
        try:
            found.append(read(path))
        except Damaged as error:
            found.append(None)
            problems.append(str(error) if read is artifact.find else "")
    if found[0] is None and found[1] is not None and not problems:
        return None, None, ""  # killed between the copy and the record: unfinished
    return found[0], found[1], next((line for line in problems if line), "")


def _job(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(regular_bytes(path / "job.json"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _names(said: dict[str, Any]) -> set[str]:
    return set(IDENTITY.findall(json.dumps({name: said[name] for name in NAMING if name in said})))


@dataclass(frozen=True, kw_only=True, slots=True)
class Needed:
    """The folders that something needs, and lines about folders that are kept because something could not be read."""

    paths: frozenset[Path]
    notes: tuple[str, ...] = ()


@dataclass(kw_only=True, slots=True)
class Wanted:
    """The folders that something outside the artifacts needs, given by fingerprints and digests or directly."""

    names: set[frozenset[str]] = field(default_factory=set)  # what is named together
    folders: list[Folder] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def keep(self, folders: Iterable[Folder], why: str) -> None:
        """Add folders that are needed and, if there are any, a note that says why."""
        found = list(folders)
        self.folders += found
        if found:
            self.notes.append(f"{why}; kept: {_counted(found)}")


def needed(folders: Sequence[Folder], wanted: Iterable[Wanted]) -> Needed:
    """Return the folders that `wanted` names, and all folders that these were made from or name in their settings."""
    asked, names = list(wanted), _FolderNames(folders)
    notes = [line for one in asked for line in one.notes]
    reached: dict[Path, Folder] = {}
    waiting = [folder for one in asked for folder in one.folders]
    waiting += [folder for one in asked for some in one.names for folder in names.meant(some)]
    while waiting:
        folder = waiting.pop()
        if folder.path in reached:
            continue
        reached[folder.path] = folder
        if folder.kind == DAMAGED:
            continue  # evidence of a damage; what it was made from is not evidence
        if folder.names is None:
            origin = [one for one in folders if one.asset in ancestors(folder.asset)]
            waiting += origin
            notes.append(f"{folder.problem}; nobody knows what it was made from; kept: {_counted(origin)}")
        waiting += names.meant(folder.names or frozenset())
    return Needed(paths=frozenset(reached), notes=tuple(dict.fromkeys(notes)))


class _FolderNames:
    """Finds the folders that a set of fingerprints and digests, given together, refers to."""

    def __init__(self, folders: Iterable[Folder]) -> None:
        self._by_fingerprint: dict[str, list[Folder]] = {}
        self._by_digest: dict[str, list[Folder]] = {}
        for folder in folders:
            self._by_fingerprint.setdefault(folder.fingerprint, []).append(folder)
            if folder.digest:
                self._by_digest.setdefault(folder.digest, []).append(folder)

    def meant(self, names: frozenset[str]) -> list[Folder]:
        """Return the folders with these fingerprints. Replaced folders count only if their digest is given too.

        A digest without its fingerprint refers to all folders with this digest. If a record digest is given
        too, as by a registered version, it refers only to folders with such a record, if there are any.
        """
        found = [
            folder
            for name in names
            for folder in self._by_fingerprint.get(name, ())
            if folder.kind in (ARTIFACT, UNFINISHED) or (folder.kind == REPLACED and folder.digest in names)
        ]
        for name in names - {folder.digest for folder in found}:
            same = self._by_digest.get(name, [])
            found += [folder for folder in same if folder.record_digests & names] or same
        return found


def _counted(folders: Sequence[Folder]) -> str:
    assets = ", ".join(dict.fromkeys(folder.asset for folder in folders))
    return f"{len(folders)} {'folder' if len(folders) == 1 else 'folders'} ({assets})" if folders else "nothing else"


# Who wants something


def by_references(root: Path, folders: Sequence[Folder]) -> Wanted:
    """Return the artifacts that the references of all partitions name. A damaged one keeps all of its asset.

    A reference to a kept step, or to what every recipe makes from some, does not count: only recipes ask for steps.
    """
    wanted, of_steps = Wanted(), _of_steps()
    for path in sorted((root / "refs").glob("*/*.json")):
        asset, partition = path.parent.name, path.stem
        if asset in of_steps:
            continue
        try:
            found = read_reference(root, asset, partition)
        except Damaged as error:
            wanted.keep((one for one in folders if one.asset == asset), str(error))
            continue
        if found is None:
            continue
        wanted.names.add(frozenset({found.fingerprint, found.digest}))
        own = [one for one in folders if (one.asset, one.fingerprint, one.kind) == (asset, found.fingerprint, ARTIFACT)]
        if found.record_digest and any(found.record_digest not in one.record_digests for one in own):
            origin = [one for one in folders if one.asset in ancestors(asset)]
            wanted.keep([*own, *origin], f"{own[0].path}: its record is not the one that its reference holds")
    return wanted


def _of_steps() -> set[str]:
    """Return all kept steps and the assets that every recipe makes from some; fine-tuning only may begin with one."""
    found = set(WHOLE)
    for name, declared in CHAIN.items():  # in the order in which they are made
        if any(item.asset in found and item.when is None for item in declared.inputs):
            found.add(name)
    return found


def by_recipes(root: Path, folders: Sequence[Folder]) -> Wanted:
    """Return what all recipes need (the root's, those in PEDIGREE_RECIPES, shipped ones), made or unfinished.

    Raise DataError if a recipe cannot be read, since nobody then knows what it asks for.
    """
    wanted, files = Wanted(), recipe_files(recipe_folders(root))
    for path in files.paths():
        try:
            recipe = files.load(str(path))
        except RecipeError as error:
            raise DataError(f"recipe {path}: nobody knows what it needs ({error.problems[0]})") from None
        cells = compare(recipe, root, skip_unavailable=True).cells.values()
        wanted.names |= {frozenset({cell.fingerprint}) for cell in cells}
        hidden = {cell.asset for cell in cells if cell.state == "unavailable"}
        own = [one for one in folders if one.asset in hidden and one.recipe == recipe.name and one.kind != REPLACED]
        wanted.keep(own, f"recipe {recipe.name}: what it reads is not there, so nobody knows what it needs")
    return wanted


def by_work(folders: Iterable[Folder], at_work: Callable[[Path], str]) -> Wanted:
    """Return the folders in which a process is working, as `at_work` says."""
    wanted = Wanted()
    for folder in folders:
        if said := at_work(folder.path):
            wanted.keep([folder], f"{folder.asset} {folder.fingerprint[:12]}: {said}")
    return wanted


def by_damage(folders: Iterable[Folder]) -> Wanted:
    """Return the folders with a damaged record and those set aside as damaged, which are kept as evidence."""
    wanted = Wanted()
    for folder in folders:
        if folder.kind == DAMAGED:
            wanted.keep([folder], f"{folder.path} was set aside as damaged; a person may remove it")
        elif folder.problem:
            wanted.keep([folder], folder.problem)
    return wanted


def in_trash(folders: Iterable[Folder]) -> Iterator[Folder]:
    """Yield the folders that were renamed into the trash and not removed yet."""
    return (folder for folder in folders if folder.path.parent.name == TRASH)

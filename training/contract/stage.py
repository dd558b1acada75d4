"""The records with which a folder declares its stages and the assets that they make.

A folder with a stage has a `stage.py` with a tuple `ASSETS`. Three things are made from these declarations: the table
of stages that run jobs (training/stages.py), the chain with its partitions, fingerprints and dependencies
(assets/state/chain.py), and Dagster's assets (assets/graph/declare.py). Standard library only; a stage's module is
imported only in
the process that runs it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from training.contract.identity.closure import place_of
from training.contract.identity.generated_sources import SOURCES

if TYPE_CHECKING:
    from training.contract.artifact import Artifact
    from training.recipe.recipe import Recipe

Scope = Literal["snapshot", "recipe", "rung", "step", "section"]
Which = Literal["same", "earlier", "every", "quality", "tokenizer", "sft", "averaged"]
Unnamed = Literal["all", "none"]
Settings = Callable[["Recipe", str], dict[str, Any]]
"""A function of a recipe and a partition's snapshot or rung ("" for an asset of the whole recipe). It returns the
settings of the partition's job: sections of the recipe and other plain data, by name."""
Check = Callable[["Recipe"], None]
"""A function that raises RecipeError if a recipe's settings cannot make an asset. It is called for each recipe that has
the asset, when the recipe is read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One kind of work, such as to filter documents, that is done by one module.

    The `module` has the function `run`; or the functions `num_ranks`, `run_rank` and `finish`; or `PHASES`
    (training/contract/running/phase.py) and the function `finish`.
    """

    name: str
    version: str  # written by hand; raised when the output changes
    module: str
    libraries: tuple[str, ...] = ()  # libraries whose versions decide the output
    parts: tuple[tuple[str, Unnamed], ...] = ()  # packages of parts, and which count if the settings name none
    data_files: tuple[str, ...] = ()  # packaged files that decide the output, as glob patterns in the package's folder
    kinds: tuple[str, ...] = ()  # badges in the UI: libraries and formats of the output
    gates: tuple[str, ...] = ()
    distributed: bool = False  # True: torchrun's processes work together; False: the first one works alone
    in_ranks: bool = False  # the module has ranks, so the work can be spread over the tasks of a Slurm array
    phases: tuple[str, ...] = ()  # names of the module's PHASES, each of which is an array of its own on Slurm
    reads: tuple[str, ...] = ()  # assets whose kept records this stage counts as coming in (running/accounts.py)
    reads_in_ranks: tuple[str, ...] = ()  # assets of which each kept record (a file) is read by one rank
    reads_last: bool = False  # records come in only from the last input, which is the partition's own snapshot
    by_file: tuple[str, ...] = ()  # inputs of which each rank reads its share only; the module has `rank_shares`
    by_a_model: bool = False  # torch decides the bytes, so the record holds a numerics class (identity/numerics.py)
    locations: tuple[tuple[str, ...], ...] = ()  # settings that say only where bytes are found; in no fingerprint
    context: tuple[str, ...] = ()  # settings that are recorded but are in no fingerprint

    @property
    def package(self) -> str:
        """The package of the stage's module. `python -m PACKAGE job.json` runs a job of the stage."""
        return self.module.partition(".")[0]

    def library_versions(self) -> dict[str, str]:
        """Return the versions of `libraries` and the checksums of `data_files`, by name.

        A library that is not installed has the version "absent".
        """
        folder = place_of(self.package) if self.data_files else Path()
        files = sorted(path for pattern in self.data_files for path in folder.glob(pattern))
        return {name: _version(name) for name in self.libraries} | {path.name: _checksum(path) for path in files}


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """An upstream asset, and which of its partitions are read.

    `same`: the same partition, or that of the whole recipe. `earlier`: this snapshot and the snapshots before it.
    `every`: all snapshots (or rungs) of the recipe. `quality` and `tokenizer`: the snapshots listed in that section
    of the recipe. `sft`: the kept step `sft.from_step`. `averaged`: the kept
    steps of `pretrain.keep.average`.

    `when` returns whether a recipe reads the asset; None means that every recipe does. An optional asset that a
    recipe does not have is skipped.
    """

    asset: str
    which: Which = "same"
    when: Callable[[Recipe], bool] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InputCheck:
    """What an asset needs to know of artifacts that are made long before it.

    `check` is called with the recipe and the artifacts of `assets`, by asset, as soon as all of these are made that the
    recipe has. It raises DataError if the asset cannot be made from them.
    """

    assets: tuple[str, ...]
    check: Callable[[Recipe, Mapping[str, Sequence[Artifact]]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asset:
    """One asset of the chain: the stage that makes it, its settings from the recipe, and its inputs.

    The UI shows `description`. `scope` decides the partitions: the snapshots of each recipe, the recipes, the rungs of
    each recipe's ladder, the steps that each recipe keeps, or the recipes that set one of the fields in `sections`
    (training/contract/scopes.py).
    """

    name: str
    stage: Stage
    description: str
    group: str
    scope: Scope
    settings: Settings
    sections: tuple[str, ...] = ()  # of scopes `section` and `step`: fields of the recipe, such as `sft.data`
    inputs: tuple[Input, ...] = ()
    guards: tuple[Input, ...] = ()  # assets that must be made and not refused; no output depends on them
    checks: tuple[Check, ...] = ()
    facts: tuple[InputCheck, ...] = ()
    shows_recipe: bool = False  # shows the recipe and opens nothing that it names; artifacts keep their `made://` names


def modules_of(stage: Stage, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules whose code a job runs: those of its stage, and of the sources and parts in its settings.

    A part counts if its name stands anywhere in the settings. Where none is named, all may count: a family that is not
    named is found by the model's shape, or stands in the folder of an adopted model alone.
    """
    words = frozenset(_words(settings))
    sources = (SOURCES[name].module for name in sorted(SOURCES.keys() & settings.keys()))
    parts = (f"{package}.{name}" for package, unnamed in stage.parts for name in _named(package, unnamed, words))
    return (stage.module, *sources, *parts)


def parts_of(package: str) -> tuple[str, ...]:
    """Return the names of the parts in a package of parts, in alphabetical order, without importing it."""
    first, *folders = package.split(".")
    entries = place_of(first).joinpath(*folders).iterdir()
    return tuple(sorted(one.stem for one in entries if one.stem[0] != "_" and (one.is_dir() or one.suffix == ".py")))


def _named(package: str, unnamed: Unnamed, words: frozenset[str]) -> tuple[str, ...]:
    parts = parts_of(package)
    return tuple(name for name in parts if name in words) or (parts if unnamed == "all" else ())


def _words(value: Any) -> Iterator[str]:
    """Yield every text in plain data: keys, values and entries of lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _words(key)
            yield from _words(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _words(inner)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _version(distribution: str) -> str:
    """Return the installed version of a distribution, or "absent".

    A version is looked up again only when a folder of `sys.path` has changed, as it does when a distribution is
    installed or removed: a lookup takes 0.2 ms, and computing the fingerprints of one recipe needs 60 versions.
    """
    return _version_in(distribution, tuple((folder, _changed(folder)) for folder in sys.path))


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1024)
def _version_in(distribution: str, path: tuple[tuple[str, int], ...]) -> str:
    # `importlib.metadata.version` would parse the whole file of metadata; its line with the version is enough.
    try:
        installed = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
    said = next((line for line in (installed.read_text("METADATA") or "").splitlines() if line[:8] == "Version:"), None)
    return said[8:].strip() if said else installed.version

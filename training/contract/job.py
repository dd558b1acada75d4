"""The contract between a stage and its caller: a stage gets a job and returns an outcome.

Standard library only, so that a bare GPU node with torch, numpy and safetensors can read a job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from training.contract.errors import DataError as DataError
from training.contract.errors import RefusedInput
from training.contract.errors import StopRequested as StopRequested
from training.contract.files import checked
from training.contract.files.writing import Unsealed, read_sealed, regular_bytes, write_sealed
from training.contract.progress import Progress
from training.contract.records import RecipeError, read_record, write_record
from training.contract.run_settings import RunSettings

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class InputArtifact:
    """One artifact that a stage reads, with its fingerprint and digests at the time when the job was written."""

    asset: str
    partition: str
    fingerprint: str
    digest: str
    path: str
    record_digest: str = ""  # the digest of its record; "": the job does not say
    numerics: dict[str, Any] | None = None  # numerics class it was made in; None: data
    erased: str | None = None  # the list of erased files that was judged, "none" without one; None: nobody judged it

    @property
    def where(self) -> str:
        """The input's asset and partition, in the form in which error messages name them."""
        return f"{self.asset} [{self.partition}]"

    @property
    def folder(self) -> Path:
        """The artifact's folder, after checking every byte of its files. Raise RefusedInput if a file is damaged."""
        return self.file(os.curdir)

    def file(self, name: str) -> Path:
        """Return the path of one of the artifact's files, or of a folder of them, after checking every byte of it.

        A process reads each file only once for this check. Raise RefusedInput if a file is damaged.
        """
        try:
            checked.check(Path(self.path), self.digest, name, self.erased)
        except checked.Refused as error:
            raise self.refused(str(error)) from None
        return Path(self.path, name)

    def files(self) -> dict[str, Mapping[str, Any]]:
        """Return the artifact's manifest: path, size and sha256 of each file, by path."""
        try:
            return dict(checked.manifest_of(self.path, self.digest))
        except checked.Refused as error:
            raise self.refused(str(error)) from None

    def refused(self, problem: str) -> RefusedInput:
        """Return the error to raise for a damaged file of this input.

        It gives the `problem` and the command that repairs it.
        """
        return RefusedInput(
            f"{self.where}: {problem}; `pedigree verify {self.partition.partition('@')[0]} --mend` sets it aside, and"
            " the next run makes it again"
        )

    def record(self) -> dict[str, Any]:
        """Return the content of the artifact's `artifact.json`."""
        return json.loads(regular_bytes(Path(self.path, checked.ARTIFACT_FILE)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The files that one rank reads of the inputs that are divided among ranks.

    A stage declares these inputs as `by_file` (training/contract/stage.py).

    Ranks with equal shares make equal files, whatever other files the inputs have and whatever number the rank has: a
    rank's output depends on the bytes of its `files` and on `facts`, not on the name or number of a file.
    """

    files: tuple[tuple[InputArtifact, str], ...]  # inputs and names of their files
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the rank uses of `listings`, as plain data
    listings: tuple[tuple[InputArtifact, str], ...] = ()  # files about all ranks, which change when any of them does


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One stage to run: its inputs, its settings, and the folder of the result."""

    stage: str
    asset: str
    partition: str
    recipe: str
    fingerprint: str
    stage_version: str
    settings: dict[str, Any]
    inputs: tuple[InputArtifact, ...] = ()
    guards: tuple[InputArtifact, ...] = ()  # the job is refused if one is (training/contract/blocking_checks.py)
    output: str
    run: RunSettings = field(default_factory=RunSettings)
    seed: int = 0
    libraries: dict[str, str] = field(default_factory=dict)
    code_revision: str = ""
    replaces: tuple[str, ...] = ()  # record digests of the lost or damaged artifact that this job makes again
    on_the_way: tuple[Job, ...] = ()  # jobs whose artifacts this one makes too, before its own
    goes_on_from: InputArtifact | None = None  # the kept step whose state spares the way to it; None: from step 0

    def settings_as(self, cls: type[T], key: str = "") -> T:
        """Return the settings, or the section `key` of them, as the frozen record `cls`."""
        data = self.settings[key] if key else self.settings
        return read_record(cls, data, where=key or self.stage)

    def inputs_of(self, asset: str) -> tuple[InputArtifact, ...]:
        """Return the inputs made by `asset`, in the recipe's snapshot order. May be empty."""
        return tuple(item for item in self.inputs if item.asset == asset)

    def input_of(self, *assets: str) -> InputArtifact:
        """Return the single input made by one of `assets`. Raise RecipeError if there is not exactly one."""
        found = [item for asset in assets for item in self.inputs_of(asset)]
        if len(found) != 1:
            raise RecipeError(
                f"stage {self.stage} wants one input from {' or '.join(assets)}, the job names {len(found)}"
            )
        return found[0]

    def guards_of(self, asset: str) -> tuple[InputArtifact, ...]:
        """Return the guards made by `asset`. May be empty. Nothing that the job makes may depend on them."""
        return tuple(item for item in self.guards if item.asset == asset)

    @property
    def snapshot(self) -> str:
        """The snapshot part of a `recipe@snapshot` partition; empty for a recipe-wide stage."""
        return self.partition.partition("@")[2]


def read_job(path: str | os.PathLike[str]) -> Job:
    """Return the job written at `path`.

    Raise RecipeError if the file has changed since it was written, or a field is unknown, missing or of a wrong type.
    """
    try:
        fields = read_sealed(Path(path))
    except Unsealed as error:
        raise RecipeError(f"{path}: {error}; run again, which writes the job anew") from None
    fields.pop("checksum", None)
    return read_record(Job, fields, where="job")


def write_job(job: Job, path: str | os.PathLike[str]) -> None:
    """Write `job` as JSON at `path`, whole or not at all."""
    write_sealed(Path(path), write_record(job))


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """The numbers of a stage's records by outcome: in = kept + dropped(reason) + quarantined(reason).

    `training.contract.running.accounts` compares the two sides, so neither may be computed from the other.
    """

    records_in: int
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    parts: tuple[Counts, ...] = ()  # the counts of each rank, or of each file if the stage has no ranks
    files_in: int | None = None  # the files that were read, if a rank may read several; None: one for each part

    @property
    def accounted(self) -> int:
        """The number of records that were kept, dropped or quarantined."""
        return self.kept + sum(self.dropped.values()) + sum(self.quarantined.values())

    @property
    def balance(self) -> bool:
        """Whether every record read was kept, dropped or quarantined, exactly once."""
        return self.records_in == self.accounted

    def as_json(self) -> dict[str, Any]:
        """Return the counts in the form of `artifact.json` and of the command line."""
        return {"in": self.records_in, "kept": self.kept, "dropped": self.dropped, "quarantined": self.quarantined}

    @staticmethod
    def total(parts: list[dict[str, Any]]) -> Counts:
        """Return the sum of the ranks' counts, each in `as_json` form. The sum keeps them as its `parts`."""
        dropped: dict[str, int] = {}
        quarantined: dict[str, int] = {}
        for part in parts:
            _add(dropped, part["dropped"])
            _add(quarantined, part["quarantined"])
        return Counts(
            records_in=sum(part["in"] for part in parts),
            kept=sum(part["kept"] for part in parts),
            dropped=dict(sorted(dropped.items())),
            quarantined=dict(sorted(quarantined.items())),
            parts=tuple(Counts.of_json(part) for part in parts),
        )

    @staticmethod
    def of_json(part: Mapping[str, Any]) -> Counts:
        """Return the counts that are given in `as_json` form, without their parts."""
        return Counts(
            records_in=part["in"], kept=part["kept"], dropped=part["dropped"], quarantined=part["quarantined"]
        )


def _add(into: dict[str, int], more: Mapping[str, int]) -> None:
    for reason, number in more.items():
        into[reason] = into.get(reason, 0) + number


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """The result of a check, with its evidence. An artifact with a failed gate is refused as an input."""

    name: str
    passed: bool
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a stage: files, counts, metrics, gates and notes.

    `files` are paths relative to the output folder; inputs of other stages are read from these alone. `beside`
    maps scratch files to the names under which the artifact keeps them for later jobs of the stage.
    They are in its record but not in its digest, and may be absent: no result depends on them.
    """

    files: tuple[str, ...]
    beside: Mapping[str, str] = field(default_factory=dict)
    counts: Counts | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    numerics: dict[str, Any] | None = None  # numerics class (identity/numerics.py); None: all runs make the same bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The folders that a stage writes to, and the functions by which it reports.

    `path` is the artifact's folder: write files there under temporary names and rename them
    (`training.contract.files.writing.written`). `scratch` is a folder for checkpoints and other state. It survives a
    kill and is removed after the commit. `commit` makes and commits the artifact of one of the job's `on_the_way`.
    """

    path: Path
    scratch: Path
    progress: Progress
    commit: Callable[[Job, Callable[[Work], Outcome]], None] | None = None  # of a job of `on_the_way`, once it is made

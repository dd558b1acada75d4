"""The contract between whoever asks for a stage and the stage: a job goes in, an outcome comes out.

Standard library only, so that a bare GPU node with torch, numpy and safetensors reads a job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from training.files import Unsealed, read_sealed, write_sealed
from training.progress import Progress
from training.records import RecipeError, read_record, write_record

T = TypeVar("T")


class DataError(ValueError):
    """The data a person named cannot be used: missing, empty, damaged or of the wrong form. Nothing was lost."""


class RefusedInput(ValueError):
    """An input artifact exists but may not be used: a gate refused it, its digest changed, or a file is damaged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputArtifact:
    """One artifact that a stage reads, as it was when the job was written."""

    asset: str
    partition: str
    fingerprint: str
    digest: str
    path: str
    record_digest: str = ""  # of what was decided about it; "": by an edition that kept none
    numerics: dict[str, Any] | None = None  # the class it was made in; None: data, or made by an earlier edition

    def file(self, name: str) -> Path:
        """The path of one of the artifact's files."""
        return Path(self.path, name)

    def record(self) -> dict[str, Any]:
        """The artifact's `artifact.json`."""
        return json.loads(self.file("artifact.json").read_text("utf-8"))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Where and how fast: the profile's part of a job.

    Nothing here may change the bytes of a data artifact. What a model makes may change in the last bits of its sums:
    its record says in which numerics class it was made (training.numerics).
    """

    workers: int = 1
    threads: int = 0  # 0: as many as the machine gives
    processes: int = 1
    nodes: int = 1
    gpus_per_node: int = 0
    micro_batch_tokens: int = 0  # 0: the whole global batch at once
    checkpoint_seconds: float = 60.0
    shard: int = 1  # of the processes, how many share each weight (FSDP); `training/pretrain/degrees.py` for all
    tensor: int = 1  # share each layer
    context: int = 1  # share each row
    expert: int = 1  # share the experts
    pipeline: int = 1  # have consecutive layers
    pipeline_chunks: int = 1  # in so many places of the model each
    audit: bool = False  # the same bits for every number of threads, in pretraining also of processes; slower
    hang_seconds: float = 1800.0  # without progress, after which several processes are torn down
    compile: Literal[False, True, "blocks"] = False  # the whole model, or each block
    recompute: Literal["none", "selective", "full"] = "none"  # activations made again in the backward pass
    memory_gb: float = 0.0  # 0: no limit asked for
    sample_steps: int = 0  # pretraining: between two texts that the model writes; 0: four in a run
    evaluation_steps: int = 0  # between two looks at held-out text; 0: four in a run
    price_per_hour: float = 0.0  # of one node, in the unit of somebody's bills; 0: nobody asks


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One stage to run: what it reads, with which settings, and where the result goes."""

    stage: str
    asset: str
    partition: str
    recipe: str
    fingerprint: str
    stage_version: str
    settings: dict[str, Any]
    inputs: tuple[InputArtifact, ...] = ()
    output: str
    run: RunSettings = field(default_factory=RunSettings)
    seed: int = 0
    libraries: dict[str, str] = field(default_factory=dict)
    code_revision: str = ""
    replaces: tuple[str, ...] = ()  # record digests by which a lost or damaged artifact was pointed to

    def settings_as(self, cls: type[T], key: str = "") -> T:
        """The settings (or the part named `key`) as the frozen record `cls`."""
        data = self.settings[key] if key else self.settings
        return read_record(cls, data, where=key or self.stage)

    def inputs_of(self, asset: str) -> tuple[InputArtifact, ...]:
        """The inputs made by `asset`, in the recipe's snapshot order. May be empty."""
        return tuple(item for item in self.inputs if item.asset == asset)

    def input_of(self, *assets: str) -> InputArtifact:
        """The single input made by one of `assets`; RecipeError when there is not exactly one."""
        found = [item for asset in assets for item in self.inputs_of(asset)]
        if len(found) != 1:
            raise RecipeError(
                f"stage {self.stage} wants one input from {' or '.join(assets)}, the job names {len(found)}"
            )
        return found[0]

    @property
    def snapshot(self) -> str:
        """The snapshot part of a `recipe@snapshot` partition; empty for a recipe-wide stage."""
        return self.partition.partition("@")[2]


def read_job(path: str | os.PathLike[str]) -> Job:
    """The job written at `path`. RecipeError when it is not what was written, or a field is unknown, missing or of the
    wrong type."""
    try:
        fields = read_sealed(Path(path), mark="replaces")
    except Unsealed as error:
        raise RecipeError(f"{path}: {error}; run again, which writes the job anew") from None
    fields.pop("checksum", None)
    return read_record(Job, fields, where="job")


def write_job(job: Job, path: str | os.PathLike[str]) -> None:
    """Write `job` as JSON at `path`, whole or not at all."""
    write_sealed(Path(path), write_record(job))


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Where every record went: in = kept + dropped(reason) + quarantined(reason).

    `training.accounts` compares the two sides, so neither may be made of the other.
    """

    records_in: int
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    parts: tuple[Counts, ...] = ()  # of the ranks, or of the files of a stage that works on one after the other

    @property
    def accounted(self) -> int:
        """Records that were kept, dropped or quarantined."""
        return self.kept + sum(self.dropped.values()) + sum(self.quarantined.values())

    @property
    def balance(self) -> bool:
        """Whether no record is missing or counted twice."""
        return self.records_in == self.accounted

    def as_json(self) -> dict[str, Any]:
        """The form in `artifact.json` and on the command line."""
        return {"in": self.records_in, "kept": self.kept, "dropped": self.dropped, "quarantined": self.quarantined}

    @staticmethod
    def total(parts: list[dict[str, Any]]) -> Counts:
        """The sum of several `as_json` forms (one a rank), which are its parts."""
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
        """The counts whose `as_json` form this is."""
        return Counts(
            records_in=part["in"], kept=part["kept"], dropped=part["dropped"], quarantined=part["quarantined"]
        )


def _add(into: dict[str, int], more: Mapping[str, int]) -> None:
    for reason, number in more.items():
        into[reason] = into.get(reason, 0) + number


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A verdict that later stages obey: an artifact with a failed gate is refused as an input."""

    name: str
    passed: bool
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a stage made. `files` are relative to the output folder and are all that readers may open."""

    files: tuple[str, ...]
    counts: Counts | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    numerics: dict[str, Any] | None = None  # the class of what a model made (training.numerics); None: the same bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Where a stage writes and how it reports.

    `path` is the artifact's folder: write files there under temporary names and rename (see training.artifact).
    `scratch` is a folder for private state (checkpoints); it survives a kill and goes when the artifact is committed.
    """

    path: Path
    scratch: Path
    progress: Progress

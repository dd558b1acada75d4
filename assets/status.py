"""What is made, missing or outdated: one pure comparison of a recipe with the artifacts under a root.

`status`, `run`, sensors and schedules use this and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assets.chain import CHAIN, Link, asked_settings, in_order, input_partitions, partitions_of, replaced
from assets.remade import remade_inputs
from training import artifact
from training.artifact import MADE, Artifact
from training.job import DataError
from training.recipe import Recipe
from training.records import differences, read_record, write_record

START_ANEW = "pedigree/start-anew"  # the tag of a run that may begin a training again at step 0

State = Literal["made", "missing", "outdated", "unavailable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One asset of one partition: what is asked for, and what is there.

    `artifact` is the one that answers exactly what is asked for; None when it must be made. `is_recorded` says whether
    the partition already points to it (it may have been made for another recipe). `reasons` are the differing fields of
    an outdated cell.
    """

    asset: str
    partition: str
    fingerprint: str
    settings: dict[str, Any]
    inputs: tuple[tuple[str, str], ...]  # (asset, partition)
    state: State
    artifact: Artifact | None
    is_recorded: bool
    reasons: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """The snapshot or the rung that the partition is of; empty for what concerns the whole recipe."""
        return self.partition.partition("@")[2]

    @property
    def key(self) -> tuple[str, str]:
        """Asset and partition."""
        return self.asset, self.partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Every cell of one recipe under one root, inputs before what is made from them."""

    recipe: Recipe
    root: Path
    cells: Mapping[tuple[str, str], Cell] = field(default_factory=dict)

    def to_do(self, until: str | None = None) -> list[Cell]:
        """The cells that are not made and recorded, in order."""
        wanted = self._assets(until)
        return [
            cell
            for cell in self.cells.values()
            if cell.asset in wanted and not (cell.state == "made" and cell.is_recorded)
        ]

    def _assets(self, until: str | None) -> set[str]:
        """`until` and what this recipe makes it from; what the chain says where the recipe has no such asset."""
        found = {until} & {cell.asset for cell in self.cells.values()}
        if not found:
            return {link.name for link in in_order(until)}
        for cell in reversed(self.cells.values()):  # inputs come before what is made from them
            if cell.asset in found:
                found |= {asset for asset, _ in cell.inputs}
        return found

    def refused_by(self, cell: Cell) -> Cell | None:
        """The first input of `cell` whose gate failed; None when nothing stands in its way."""
        for key in cell.inputs:
            made = self.cells[key].artifact
            if made is not None and made.failed_gates:
                return self.cells[key]
        return None


def reference_path(root: Path, asset: str, partition: str) -> Path:
    """The file by which a partition points to its artifact."""
    return root / "refs" / asset / f"{partition}.json"


def read_reference(root: Path, asset: str, partition: str) -> str | None:
    """The fingerprint a partition points to; None when it never was made."""
    made = reference_of(root, asset, partition)
    return None if made is None else made["fingerprint"]


def reference_of(root: Path, asset: str, partition: str) -> dict[str, str] | None:
    """What a partition points to: fingerprint, digest and record digest; None when it never was made."""
    try:
        return json.loads(reference_path(root, asset, partition).read_text("utf-8"))
    except FileNotFoundError:
        return None


def write_reference(root: Path, made: Artifact, partition: str) -> None:
    """Let `partition` point to a committed artifact."""
    target = reference_path(root, made.record["asset"], partition)
    artifact.write_json(
        target, {"fingerprint": made.fingerprint, "digest": made.digest, "record_digest": made.record_digest}
    )


def compare(recipe: Recipe, root: Path, *, skip_unavailable: bool = False) -> Comparison:
    """Recipe against artifacts, for the whole chain.

    DataError when something that the recipe names is not there, before any work starts. With `skip_unavailable` its
    cell and
    all that is made from it are `unavailable` instead: automation goes on with the rest and waits for it.
    """
    cells: dict[tuple[str, str], Cell] = {}
    places = made_places(recipe, root)
    located = with_made(recipe, places)
    for link in in_order():
        for partition in partitions_of(link, located):
            try:
                cell = _cell(link, located, partition, root, cells, places)
            except DataError as error:
                if not skip_unavailable:
                    raise
                cell = _unavailable(link, located, partition, (str(error),))
            cells[cell.key] = cell
    return Comparison(recipe=recipe, root=root, cells=cells)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where something lies that a recipe names by `made://`, and what it is wherever it lies."""

    uri: str
    path: str
    content: str  # digest of the artifact, and the path inside it


def made_places(recipe: Recipe, root: Path) -> tuple[Place, ...]:
    """The place of every `made://asset/partition/path` that `recipe` names, where it is made under `root`."""
    return tuple(place for uri in sorted(_made_names(write_record(recipe))) if (place := _place(uri, root)))


def _made_names(value: Any) -> set[str]:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return set().union(*map(_made_names, items))
    return {value} if isinstance(value, str) and value.startswith(MADE) else set()


def _place(uri: str, root: Path) -> Place | None:
    asset, partition, inside = (*uri.removeprefix(MADE).split("/", 2), "", "")[:3]
    made = reference_of(root, asset, partition)
    if made is None:
        return None
    path = artifact.folder_of(root, asset, made["fingerprint"]) / inside
    return Place(uri=uri, path=str(path), content=f"{MADE}{made['digest']}/{inside}")


def with_made(recipe: Recipe, places: Sequence[Place]) -> Recipe:
    """The recipe with the paths of what it names by `made://`.

    So a recipe reads what another one made, by name: what it reads is identified by its content, and is another once
    the other recipe has made it again. Where nothing is made yet the name stays, and whoever opens it says so.
    """
    if not places:
        return recipe
    return read_record(Recipe, replaced(write_record(recipe), {place.uri: place.path for place in places}))


def _unavailable(link: Link, recipe: Recipe, partition: str, reasons: tuple[str, ...]) -> Cell:
    return Cell(
        asset=link.name,
        partition=partition,
        fingerprint="",
        settings={},
        inputs=_input_keys(link, recipe, partition),
        state="unavailable",
        artifact=None,
        is_recorded=False,
        reasons=reasons,
    )


def _input_keys(link: Link, recipe: Recipe, partition: str) -> tuple[tuple[str, str], ...]:
    part = partition.partition("@")[2]
    return tuple((item.asset, key) for item in link.inputs for key in input_partitions(item, link, recipe, part))


def _cell(
    link: Link,
    recipe: Recipe,
    partition: str,
    root: Path,
    cells: Mapping[tuple[str, str], Cell],
    places: Sequence[Place],
) -> Cell:
    inputs = _input_keys(link, recipe, partition)
    waiting = [asset for asset, key in inputs if cells[asset, key].state == "unavailable"]
    if waiting:
        return _unavailable(link, recipe, partition, (f"waits for {waiting[0]}",))
    settings = link.settings(recipe, partition.partition("@")[2])
    plain = {name: write_record(section) for name, section in settings.items()}
    if link.shows_recipe:
        plain = replaced(plain, {place.path: place.uri for place in places})
    stage = link.how
    wanted = artifact.fingerprint(
        stage=stage.name,
        version=stage.version,
        settings=replaced(asked_settings(link, settings), {place.path: place.content for place in places}),
        libraries=stage.library_versions(),
        inputs=[(asset, cells[asset, key].fingerprint) for asset, key in inputs],
        seed=seed_of(plain),
    )
    recorded = read_reference(root, link.name, partition)
    made = _usable(artifact.find(artifact.folder_of(root, link.name, wanted)), inputs, cells)
    state: State = "made" if made else "missing" if recorded is None else "outdated"
    reasons: tuple[str, ...] = ()
    if state == "outdated":
        old = artifact.find(artifact.folder_of(root, link.name, recorded or ""))
        reasons = (
            _reasons(link, old.record, plain, inputs, cells) if old is not None else ("the recorded artifact is gone",)
        )
    return Cell(
        asset=link.name,
        partition=partition,
        fingerprint=wanted,
        settings=plain,
        inputs=inputs,
        state=state,
        artifact=made,
        is_recorded=recorded == wanted,
        reasons=reasons,
    )


def seed_of(settings: Mapping[str, Any]) -> int:
    """The seed of the section that has one, of a cell's settings; 0 for stages without randomness."""
    sections = (section for section in settings.values() if isinstance(section, dict))
    return next((section["seed"] for section in sections if "seed" in section), 0)


def _usable(
    found: Artifact | None, inputs: tuple[tuple[str, str], ...], cells: Mapping[tuple[str, str], Cell]
) -> Artifact | None:
    """The artifact, unless one of its inputs is gone or is not what it was made from."""
    if found is None:
        return None
    recorded = [(item["asset"], item["digest"]) for item in found.record["inputs"]]
    present = [(asset, cells[asset, key].artifact) for asset, key in inputs]
    now = [(asset, made.digest if made else None) for asset, made in present]
    return found if recorded == now else None


def _reasons(
    link: Link,
    record: Mapping[str, Any],
    settings: dict[str, Any],
    inputs: tuple[tuple[str, str], ...],
    cells: Mapping[tuple[str, str], Cell],
) -> tuple[str, ...]:
    """Why what an artifact or a job has on record is not what is asked for, field by field."""
    stage = link.how
    lines = differences(record["settings"], json.loads(json.dumps(settings)))
    lines += differences(record["libraries"], stage.library_versions(), "libraries")
    if record["stage_version"] != stage.version:
        lines.append(f"stage_version: {record['stage_version']} → {stage.version}")
    before = [(item["asset"], item["partition"].partition("@")[2], item["fingerprint"]) for item in record["inputs"]]
    now = [(asset, key.partition("@")[2], cells[asset, key].fingerprint) for asset, key in inputs]
    for asset, snapshot, wanted in now:
        if (asset, snapshot, wanted) not in before:
            lines.append(f"input {asset}{f' of {snapshot}' if snapshot else ''} is another one")
    for asset, snapshot, _ in before:
        if (asset, snapshot) not in {(name, of) for name, of, _ in now}:
            lines.append(f"input {asset}{f' of {snapshot}' if snapshot else ''} is no longer read")
    lines += () if lines else remade_inputs(record, inputs, cells)
    return tuple(lines) or ("its fingerprint is another one, and no field on record says why",)


def check_begun(cell: Cell, comparison: Comparison) -> None:
    """DataError when a training of this cell stands at some step under another fingerprint, and none under its own.

    A changed setting or input is another fingerprint, and so another folder, in which it would begin at step 0 without
    a word. Only the run that was begun last counts: those before it were given up for it.
    """
    own = artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)
    if cell.state in ("made", "unavailable") or artifact.checkpoint_step(own) is not None:
        return
    folder, record = _last_begun(cell, comparison.root)
    step = artifact.checkpoint_step(folder) if folder else None
    if folder in (None, own) or step is None or artifact.find(folder) is not None:
        return
    reasons = "; ".join(_reasons(CHAIN[cell.asset], record, cell.settings, cell.inputs, comparison.cells))
    raise DataError(
        f"{cell.asset} [{cell.partition}]: training stands at step {step} and was begun otherwise ({reasons}); change"
        f" that back to go on from there, or begin at step 0 with --start-anew (in the UI: the tag {START_ANEW}: true)"
    )


def _last_begun(cell: Cell, root: Path) -> tuple[Path | None, dict[str, Any]]:
    """The folder and job of the cell's asset and partition that was written last, whatever it asked for."""
    jobs = sorted((root / cell.asset).glob("*/job.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in jobs:
        job = json.loads(path.read_text("utf-8"))
        if job["partition"] == cell.partition:
            return path.parent, job
    return None, {}


def last_made(cell: Cell, root: Path) -> Artifact | None:
    """The artifact of a cell, or, where it is outdated, the one that its partition still points to."""
    recorded = read_reference(root, cell.asset, cell.partition)
    if cell.artifact is not None or recorded is None:
        return cell.artifact
    return artifact.find(artifact.folder_of(root, cell.asset, recorded))

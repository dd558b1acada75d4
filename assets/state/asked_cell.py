"""One cell as the recipe asks for it: its fingerprint, and whether an artifact of it is made, damaged or outdated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from assets.state.cell import Cell, State
from assets.state.chain import input_partitions
from assets.state.made_addresses import MadeAddress
from assets.state.reasons import reasons_of
from assets.state.references import look, read_reference
from assets.state.requested_settings import asked_settings, replaced
from training.contract import artifact
from training.contract.artifact import Artifact, Damaged
from training.contract.identity import made_by
from training.contract.identity.closure import Code
from training.contract.records import write_record
from training.contract.stage import Asset, Input, modules_of
from training.recipe.recipe import Recipe


def asked_cell(
    declared: Asset,
    recipe: Recipe,
    partition: str,
    root: Path,
    cells: Mapping[tuple[str, str], Cell],
    places: Sequence[MadeAddress],
    code: Code,
) -> Cell:
    """Return the cell of an asset in a partition: what `recipe` asks for, and what of it is there under `root`.

    `cells` has all cells that it is made from. `places` are the addresses `made://` of the recipe, `code` the code that
    is installed.
    """
    inputs = _keys(declared.inputs, recipe, partition)
    waiting = [asset for asset, key in inputs if cells[asset, key].state == "unavailable"]
    if waiting:
        return unavailable_cell(declared, recipe, partition, (f"waits for {waiting[0]}",))
    settings = declared.settings(recipe, partition.partition("@")[2])
    plain = {name: write_record(section) for name, section in settings.items()}
    if declared.shows_recipe:
        plain = replaced(plain, {place.path: place.uri for place in places})
    stage = declared.stage
    wanted = artifact.fingerprint(
        stage=stage.name,
        version=stage.version,
        settings=replaced(asked_settings(declared.stage, settings), {place.path: place.content for place in places}),
        libraries=stage.library_versions(),
        inputs=[(asset, cells[asset, key].fingerprint) for asset, key in inputs],
        seed=seed_of(plain),
    )
    try:
        reference, lost = read_reference(root, declared.name, partition), ""
    except Damaged as error:
        reference, lost = None, str(error)
    points_here = reference is not None and reference.fingerprint == wanted
    held = {reference.record_digest} if reference is not None and points_here else set()
    found = look(artifact.folder_of(root, declared.name, wanted), declared.name, held)
    made = found.artifact if _is_usable(found.artifact, inputs, cells) else None
    damage = tuple(line for line in (found.damage, lost) if line)
    state: State = "damaged" if damage else "made" if made else "missing" if reference is None else "outdated"
    reasons = damage
    if state == "outdated" and reference is not None:
        old = look(artifact.folder_of(root, declared.name, reference.fingerprint), declared.name, set())
        reasons = (old.damage or "the recorded artifact is gone",)
        if old.artifact is not None:
            reasons = reasons_of(declared, old.artifact.record, plain, inputs, cells)
    return Cell(
        asset=declared.name,
        partition=partition,
        fingerprint=wanted,
        settings=plain,
        inputs=inputs,
        guards=_keys(declared.guards, recipe, partition),
        state=state,
        artifact=made,
        is_recorded=points_here and (made is None or (reference is not None and reference.digest == made.digest)),
        reasons=reasons,
        reference=reference,
        was_there=found.artifact is not None or found.damage != "",
        other_code=made_by.other_parts(made.record, code.digests(*modules_of(stage, plain))) if made else (),
    )


def unavailable_cell(declared: Asset, recipe: Recipe, partition: str, reasons: tuple[str, ...]) -> Cell:
    """Return a cell that cannot be asked for, because something that it names or waits for does not exist."""
    return Cell(
        asset=declared.name,
        partition=partition,
        fingerprint="",
        settings={},
        inputs=_keys(declared.inputs, recipe, partition),
        state="unavailable",
        artifact=None,
        is_recorded=False,
        reasons=reasons,
    )


def _keys(items: Iterable[Input], recipe: Recipe, partition: str) -> tuple[tuple[str, str], ...]:
    part = partition.partition("@")[2]
    return tuple((item.asset, key) for item in items for key in input_partitions(item, recipe, part))


def seed_of(settings: Mapping[str, Any]) -> int:
    """The `seed` of the first section that has one among a cell's settings; 0 for a stage without randomness."""
    sections = (section for section in settings.values() if isinstance(section, dict))
    return next((section["seed"] for section in sections if "seed" in section), 0)


def _is_usable(
    found: Artifact | None, inputs: tuple[tuple[str, str], ...], cells: Mapping[tuple[str, str], Cell]
) -> bool:
    """Whether the artifact exists and was made from the inputs that exist now."""
    if found is None:
        return False
    recorded = [(item["asset"], item["digest"]) for item in found.record["inputs"]]
    return len(recorded) == len(inputs) and all(
        asset == key[0] and cells[key].is_of(digest) for (asset, digest), key in zip(recorded, inputs, strict=True)
    )

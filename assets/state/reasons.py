"""Why an artifact is not the one that is asked for: how its record differs from the recipe, field by field.

Where only the digest of an input differs, because it was made again, the numerics class says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.state.chain import CHAIN
from assets.state.requested_settings import without_places
from training.contract.artifact import ARTIFACT_FILE, Artifact
from training.contract.files.writing import regular_bytes
from training.contract.identity.numerics import change, in_words
from training.contract.records import RecipeError, differences, read_record, write_record
from training.contract.stage import Asset
from training.data.crawl.settings import SnapshotRecipe
from training.recipe.recipe import SECTIONS

if TYPE_CHECKING:
    from assets.state.cell import Cell

_RECORDS: dict[str, type] = {**SECTIONS, "snapshot": SnapshotRecipe}  # by their names in the settings of jobs
# One of these ends the reason of a cell that is outdated because of an input: it has another fingerprint, or was not
# read before.
INPUT_IS_ANOTHER, INPUT_IS_NEW = BY_AN_INPUT = (" is another one", " is new")


def reasons_of(
    declared: Asset,
    record: Mapping[str, Any],
    settings: dict[str, Any],
    inputs: tuple[tuple[str, str], ...],
    cells: Mapping[tuple[str, str], Cell],
) -> tuple[str, ...]:
    """Return how the record of an artifact or a job differs from the recipe, one line for each field."""
    stage = declared.stage
    recorded, asked = as_read(record["settings"], settings)
    lines = differences(without_places(stage, recorded), without_places(stage, asked))
    lines += differences(record["libraries"], stage.library_versions(), "libraries")
    if record["stage_version"] != stage.version:
        lines.append(f"stage_version: {record['stage_version']} → {stage.version}")
    before = [(item["asset"], item["partition"].partition("@")[2], item["fingerprint"]) for item in record["inputs"]]
    now = [(asset, key.partition("@")[2], cells[asset, key].fingerprint) for asset, key in inputs]
    for asset, snapshot, wanted in now:
        if (asset, snapshot, wanted) not in before:
            was_read = any((asset, snapshot) == one[:2] for one in before)
            said = INPUT_IS_ANOTHER if was_read else INPUT_IS_NEW
            lines.append(f"input {asset}{f' of {snapshot}' if snapshot else ''}{said}")
    for asset, snapshot, _ in before:
        if (asset, snapshot) not in {(name, of) for name, of, _ in now}:
            lines.append(f"input {asset}{f' of {snapshot}' if snapshot else ''} is no longer read")
    lines += () if lines else remade_inputs(record, {key: cells[key].artifact for key in inputs})
    return tuple(lines) or ("its fingerprint is another one, and no field on record says why",)


def as_read(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both settings after parsing and writing every section with the present code.

    The record may lack fields that the present code has, which then have their defaults. So only a person's changes
    remain.
    """
    sections: tuple[dict[str, Any], dict[str, Any]] = ({**old}, json.loads(json.dumps(new)))
    for name in old.keys() & new.keys() & _RECORDS.keys():
        try:
            old_section, new_section = (write_record(read_record(_RECORDS[name], one[name])) for one in (old, new))
        except RecipeError:
            continue  # the section has fields that this code does not know: show all differences
        sections[0][name], sections[1][name] = old_section, new_section
    return sections


def recipe_as_read(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe that an artifact keeps, after parsing and writing every section with the present code.

    A section with fields that this code does not know stays as it is.
    """
    read = {**data}
    for name, record in SECTIONS.items():
        if name in data:
            with suppress(RecipeError):
                read[name] = write_record(read_record(record, data[name]))
    if "snapshots" in data:
        with suppress(RecipeError):
            read["snapshots"] = [write_record(read_record(SnapshotRecipe, one)) for one in data["snapshots"]]
    return read


RESULT = "with another result"


def remade_inputs(record: Mapping[str, Any], inputs: Mapping[tuple[str, str], Artifact | None]) -> tuple[str, ...]:
    """One line for each input whose present artifact is missing or has another digest than the recorded input.

    `record` is the record of the artifact that read the inputs. `inputs` are the present artifacts by asset and
    partition, or None if there is none.
    """
    recorded = {(item["asset"], item["partition"].partition("@")[2]): item for item in record["inputs"]}
    lines = []
    for (asset, key), made in inputs.items():
        part = key.partition("@")[2]
        item = recorded.get((asset, part))
        name = f"input {asset}{f' of {part}' if part else ''}"
        if item is None or made is None:
            lines.append(f"{name} is to be made again")
        elif made.digest != item["digest"]:
            lines.append(f"{name} was made again: {_how(asset, item, made)}")
    return tuple(lines)


def _how(asset: str, item: Mapping[str, Any], made: Artifact) -> str:
    """Return why the present artifact differs from the one in the record, although both have the same fingerprint."""
    if not CHAIN[asset].stage.by_a_model:
        return f"the same fingerprint {RESULT}"
    known = item.get("numerics") or next(
        (one.get("numerics") for one in replaced(made) if one["digest"] == item["digest"]), None
    )
    return change(known, made.record.get("numerics"))


def replaced(made: Artifact) -> Iterator[dict[str, Any]]:
    """Yield the records of earlier artifacts of this fingerprint that the artifact replaced, oldest first."""
    for path in sorted(made.path.parent.glob(f"{made.path.name}.replaced-*/{ARTIFACT_FILE}")):
        try:
            yield json.loads(regular_bytes(Path(path)))
        except (OSError, ValueError):
            continue  # damaged


def class_lines(asset: str, made: Artifact | None) -> list[str]:
    """Lines with the numerics class of an artifact made by a model, and how the artifacts it replaced differ.

    Empty if there is no artifact or no model made it.
    """
    if made is None or not CHAIN[asset].stage.by_a_model:
        return []
    own = made.record.get("numerics")
    lines = [f"numerics class: {in_words(own) if own else 'not on record'}"]
    return lines + [
        f"replaced {old['digest'][:12]} by {made.digest[:12]}: {change(old.get('numerics'), own)}"
        for old in replaced(made)
        if old["digest"] != made.digest
    ]

"""What is compared: the recipe, the lineage and the scores behind a recipe, a version, an alias or an artifact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assets.answers.trace.kept_step import recipe_and_step
from assets.answers.trace.trace import Model, meant, versions_of
from assets.state.cell import last_made
from assets.state.chain import CHAIN, partition_key
from assets.state.compare import compare
from assets.state.reasons import recipe_as_read
from assets.state.recipe_folders import find_recipe, load_recipe, recipe_folders
from evaluation.decision.compare import Side
from resources.tracking.reports import Tracking
from resources.tracking.versions import Registered
from training.contract.artifact import Artifact, Damaged, find
from training.contract.files.writing import regular_bytes
from training.contract.job import DataError, RefusedInput
from training.contract.records import RecipeError
from training.contract.scopes import QUANTIZED, QUANTIZED_MODEL, QUANTIZED_SCORES, WHOLE
from training.data.checksum_cache import known_under
from training.provenance.file_verification import sound
from training.provenance.lineage import Node, artifacts_under, item_of, lineage_of
from training.recipe.recipe import Recipe, recipe_as_data

SCORES = "model_scores"
SCORES_OF = dict.fromkeys(WHOLE, "step_scores") | {QUANTIZED_MODEL: QUANTIZED_SCORES}  # of models it does not score
ORDER = {name: number for number, name in enumerate(CHAIN)}


def sides_of(asked: Sequence[str], root: Path, tracking: Tracking) -> list[Side]:
    """Return the models to compare. Raise DataError with a sentence if one does not exist, is gone or is damaged."""
    if len(asked) < 2:
        raise DataError(f"compare: {len(asked)} given; at least two recipes, versions or aliases are needed")
    repeated = [name for name in asked if asked.count(name) > 1]
    if repeated:
        raise DataError(f"compare: {repeated[0]} is given twice")
    with known_under(root):
        versions = versions_of(tracking)
        try:
            return [_side(name, root, versions) for name in asked]
        except RefusedInput as error:
            raise DataError(str(error)) from None


def _side(asked: str, root: Path, versions: Sequence[Registered]) -> Side:
    recipe = _recipe(asked, root)
    found = meant(asked, root, versions)
    lineage = lineage_of(root, *found.made)
    last = lineage.last
    last.usable  # noqa: B018 - it raises what is wrong with the model
    scores = _scores(found, recipe, asked, root, versions)
    nodes = {(node.item.asset, node.item.partition.partition("@")[2]): node for node in lineage.nodes.values()}
    nodes |= {(scores.record["asset"], ""): lineage_of(root, scores).last} if scores is not None else {}
    nodes = dict(sorted(nodes.items(), key=lambda one: (ORDER.get(one[0][0], len(ORDER)), one[0][1])))
    return Side(
        title=asked,
        recipe=recipe_as_data(recipe) if recipe is not None else _recorded(found.made[0]),
        model=last.item.asset,
        made={place: node.made.record for place, node in nodes.items() if node.made is not None},
        folders={place: node.made.path for place, node in nodes.items() if node.made is not None},
        scores=scores.path if scores is not None else None,
        problems=(*_outdated(recipe, root, last), *(node.problem for node in nodes.values() if node.problem)),
    )


def _outdated(recipe: Recipe | None, root: Path, last: Node) -> tuple[str, ...]:
    """Return a sentence if the recipe was changed after its last model was made."""
    if recipe is None:
        return ()
    cell = compare(recipe, root, skip_unavailable=True).cells.get((last.item.asset, recipe.name))
    if cell is None or cell.state == "made":
        return ()
    return (f"its {last.item.asset} is {cell.state} ({cell.reasons[0] if cell.reasons else 'not made'})",)


def _recipe(asked: str, root: Path) -> Recipe | None:
    """Return the recipe that a name means, or a step of it; None if it names a version or an artifact."""
    folders, name = recipe_folders(root), recipe_and_step(asked)[0]
    try:
        find_recipe(name, folders)
    except RecipeError:
        return None
    return load_recipe(name, folders)


def _recorded(made: Artifact) -> dict[str, Any]:
    """Return the resolved recipe that is stored with an artifact. Raise DataError if it is gone or cannot be read."""
    path = made.path / "recipe.json"
    try:
        return recipe_as_read(json.loads(regular_bytes(path)))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: the recipe of this model cannot be read ({error})") from None


def _scores(
    found: Model, recipe: Recipe | None, asked: str, root: Path, versions: Sequence[Registered]
) -> Artifact | None:
    """Return a model's scores, after verifying their files; None if the model was not scored.

    The scores of the recipe itself are preferred, then those that a registered version of the model names, then any
    others of the model.
    """
    model = found.made[0]
    scored = SCORES_OF.get(model.record["asset"], SCORES)
    made = [one for one in artifacts_under(root, lambda asset: asset == scored) if _reads(one, model)]
    own = None
    if recipe is not None:
        part = recipe_and_step(asked)[1]
        key = (scored, partition_key(recipe, "" if part == QUANTIZED else part))
        cell = compare(recipe, root, skip_unavailable=True).cells.get(key)
        own = last_made(cell, root) if cell is not None else None
    named = {one.tags.get(f"digest.{SCORES}") for one in versions if one.tags.get("digest") == model.digest}
    chosen = [one for one in (own,) if one is not None and _reads(one, model)]
    chosen += [one for one in made if one.digest in named] + made
    if not chosen:
        damaged = [path.parent for path in root.glob(f"{scored}/*/artifact.json") if _is_damaged_of(path.parent, model)]
        if damaged:
            raise DataError(f"{damaged[0]}: the record of its scores is damaged; `pedigree verify RECIPE` says more")
        return None
    for entry in chosen[0].record["files"]:
        sound(item_of(chosen[0]), entry["path"])
    return chosen[0]


def _reads(scores: Artifact, model: Artifact) -> bool:
    return any(item["digest"] == model.digest for item in scores.record["inputs"])


def _is_damaged_of(folder: Path, model: Artifact) -> bool:
    """Whether a folder holds damaged scores that are, or may be, scores of a model."""
    try:
        find(folder)
    except Damaged:
        pass
    else:
        return False
    try:
        job = json.loads(regular_bytes(folder / "job.json"))
        return any(item["digest"] == model.digest for item in job["inputs"])
    except (OSError, ValueError, KeyError, TypeError):
        return True

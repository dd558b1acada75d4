"""The model that a recipe kept after a step, or the average of such, by its name: `kitchen@step-500`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from assets.state.chain import CHAIN, partition_key, parts_of
from assets.state.compare import compare
from assets.state.recipe_folders import find_recipe, load_recipe, recipe_folders
from training.contract.artifact import Artifact
from training.contract.job import DataError
from training.contract.records import RecipeError, no_such
from training.contract.scopes import AVERAGE, AVERAGED_MODEL, KEPT_STEPS
from training.provenance.lineage import Lineage, artifacts_under, lineage_of
from training.provenance.trace import Tracer

NAME = re.compile(r"(?!models:)(?P<recipe>[^@]+)@(?P<part>step-\d+|average)")


def recipe_and_step(name: str) -> tuple[str, str]:
    """Return the recipe and the part of a name such as `kitchen@step-500`; the name and "" if it has no such part."""
    found = NAME.fullmatch(name)
    return (name, "") if found is None else (found["recipe"], found["part"])


def kept_step(name: str, root: Path) -> Artifact | None:
    """Return the model of a name such as `kitchen@step-500` or `kitchen@average`; None if it names none of a recipe.

    Raise DataError if the recipe does not keep the step or averages none, or if the model is not made.
    """
    (named, part), folders = recipe_and_step(name), recipe_folders(root)
    if not part:
        return None
    try:
        find_recipe(named, folders)
    except RecipeError:
        return None  # it may be an alias in the registry
    recipe = load_recipe(named, folders)
    if part == AVERAGE:
        if not recipe.pretrain.averaged_steps:
            raise DataError(f"{named} averages no steps (pretrain.keep.average)")
        return compare(recipe, root, skip_unavailable=True).made(AVERAGED_MODEL, recipe.name, named=named)
    if part not in (kept := parts_of(CHAIN[KEPT_STEPS], recipe)):
        raise DataError(no_such(f"{named} keeps no {part} (pretrain.keep)", part, kept))
    return compare(recipe, root, skip_unavailable=True).made(KEPT_STEPS, partition_key(recipe, part), named=named)


def told_of_step(step: Artifact, *, read: bool) -> dict[str, Any]:
    """Return what an answer says of a kept step: its name, and whether it had read any of the pages asked for."""
    named = {"partition": step.record["partition"], "fingerprint": step.fingerprint}
    return named | {"step": step.record["settings"]["kept"]["step"], "read": read}


def steps_that_read(root: Path, lineage: Lineage, ask: Callable[[Tracer], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, for every kept step of the plans in a lineage, whether it had read any of the pages that `ask` finds.

    The steps are those under the root, also of other recipes with the same plan, in ascending order.
    """
    plans = {node.item.fingerprint for node in lineage.nodes.values()}
    made = [
        one
        for one in artifacts_under(root, lambda asset: asset == KEPT_STEPS)
        if any(item["asset"] == "training_plan" and item["fingerprint"] in plans for item in one.record["inputs"])
    ]
    if not made:
        return []
    tracer = Tracer(lineage_of(root, *made))
    told, names = ask(tracer), [one.node.item.fingerprint for one in tracer.trainings]
    found = [told_of_step(one, read=_has_read(told, names.index(one.fingerprint))) for one in made]
    return sorted(found, key=lambda one: (one["partition"].partition("@")[0], one["step"]))


def _has_read(told: Mapping[str, Any], training: int) -> bool:
    """Whether the training with this number read one of the pages of an answer, in a step that it did not skip."""
    if "seen" in told:  # of a domain
        return told["seen"][training]["trained"] > 0
    seen = [page["seen"][training] for page in told["pages"] if page["seen"]]
    return any(not step["skipped"] for one in seen for step in one["steps"])


def last_clean(steps: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return, by recipe, the last of its kept steps that had read none of the pages; None if each had read some."""
    found: dict[str, str | None] = {}
    for one in sorted(steps, key=lambda one: one["step"]):
        recipe = one["partition"].partition("@")[0]
        found[recipe] = found.get(recipe) if one["read"] else one["partition"]
    return found


def kept_step_lines(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield which kept steps had read the pages of an answer, and the last one of each recipe that had not."""
    for recipe, clean in last_clean(steps).items():
        own = [one for one in steps if one["partition"].partition("@")[0] == recipe]
        read = ", ".join(f"{one['step']:,}" for one in own if one["read"])
        yield f"Kept steps of {recipe} that had read any of them: {read or 'none'} of {len(own):,}"
        yield f"  the last one that had not: {clean or 'none'}"

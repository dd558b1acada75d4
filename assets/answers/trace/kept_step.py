"""A recipe's model after a step, the average of such, or the quantized one, by its name: `kitchen@step-500`.

A step of a training after pretraining has the training's section in its name: `kitchen@sft-step-50`.
"""

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
from training.contract.scopes import (
    AVERAGE,
    AVERAGED_MODEL,
    QUANTIZED,
    QUANTIZED_MODEL,
    WHOLE,
    step_part,
)
from training.provenance.lineage import Lineage, artifacts_under, lineage_of
from training.provenance.trace import Tracer

NAME = re.compile(
    r"(?!models:)(?P<recipe>[^@]+)@(?P<part>((long_context|sft|align)-)?step-\d+|(sft|align)-epoch-\d+|average|quantized)"
)


def recipe_and_step(name: str) -> tuple[str, str]:
    """Return the recipe and the part of a name such as `kitchen@step-500`; the name and "" if it has no such part."""
    found = NAME.fullmatch(name)
    return (name, "") if found is None else (found["recipe"], found["part"])


def kept_step(name: str, root: Path) -> Artifact | None:
    """Return the model of a name such as `kitchen@step-500` or `kitchen@average`; None if it names none of a recipe.

    Raise DataError if the recipe does not ask for the model, or if it is not made.
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
    if part == QUANTIZED:
        if not recipe.quantize.is_asked:
            raise DataError(f"{named} quantizes no model (quantize.method)")
        return compare(recipe, root, skip_unavailable=True).made(QUANTIZED_MODEL, recipe.name, named=named)
    asset = kept_asset(part)
    if part not in (kept := parts_of(CHAIN[asset], recipe)):
        section = CHAIN[asset].sections[0].removesuffix(".is_asked")
        raise DataError(no_such(f"{named} keeps no {part} ({section})", part, kept))
    return compare(recipe, root, skip_unavailable=True).made(asset, partition_key(recipe, part), named=named)


def kept_asset(part: str) -> str:
    """Return the asset of a kept step, given the part that names it, such as `step-500` or `sft-epoch-1`."""
    section = part.rpartition("-")[0].rpartition("-")[0] or "pretrain"
    return next(name for name in WHOLE if CHAIN[name].sections[0].partition(".")[0] == section)


def told_of_step(step: Artifact, *, read: bool) -> dict[str, Any]:
    """Return what an answer says of a kept step: its name, and whether it had read any of the pages asked for.

    After a whole epoch `step` is the number of the epoch.
    """
    named = {"partition": step.record["partition"], "fingerprint": step.fingerprint}
    return named | {"step": next(iter(step.record["settings"]["kept"].values())), "read": read}


def in_order(steps: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return kept steps by recipe, in the order of their trainings and of their steps."""
    places = list(WHOLE)

    def place(step: Mapping[str, Any]) -> tuple[str, int, int]:
        recipe, _, part = step["partition"].partition("@")
        return recipe, places.index(kept_asset(part)), step["step"]

    return sorted(steps, key=place)


def _recipe_of(step: Mapping[str, Any]) -> str:
    return step["partition"].partition("@")[0]


def steps_that_read(root: Path, lineage: Lineage, ask: Callable[[Tracer], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, for every kept step of the plans in a lineage, whether it had read any of the pages that `ask` finds.

    The steps are those under the root, also of other recipes with the same plan, in ascending order. A step of a later
    training had also read what the model with which that began had.
    """
    kept = list(artifacts_under(root, lambda asset: asset in WHOLE))
    behind = {one.fingerprint: made_from(lineage_of(root, one)) for one in kept}
    plans = {node.item.fingerprint for node in lineage.nodes.values() if node.item.asset.endswith("_plan")}
    made = [one for one in kept if plans & behind[one.fingerprint]]
    if not made:
        return []
    tracer = Tracer(lineage_of(root, *made))
    told, names = ask(tracer), [one.node.item.fingerprint for one in tracer.trainings]
    found = []
    for one in made:
        read = any(_has_read(told, number) for number, name in enumerate(names) if name in behind[one.fingerprint])
        found.append(told_of_step(one, read=read))
    return in_order(found)


def made_from(lineage: Lineage) -> set[str]:
    """Return the fingerprints of the artifact whose lineage this is, and of all that it was made from, no guards."""
    found, waiting = set[str](), [lineage.last]
    while waiting:
        node = waiting.pop()
        if node.item.fingerprint not in found:
            found.add(node.item.fingerprint)
            waiting += [lineage.nodes[name] for name in node.inputs]
    return found


def _has_read(told: Mapping[str, Any], training: int) -> bool:
    """Whether the training with this number read one of the pages of an answer, in a step that it did not skip."""
    if "seen" in told:  # of a domain
        return told["seen"][training]["trained"] > 0
    seen = [page["seen"][training] for page in told["pages"] if page["seen"]]
    return any(not step["skipped"] for one in seen for step in one["steps"])


def last_clean(steps: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return, by recipe, the last of its kept steps that had read none of the pages; None if each had read some."""
    found: dict[str, str | None] = {}
    for one in in_order(steps):
        recipe = _recipe_of(one)
        found[recipe] = found.get(recipe) if one["read"] else one["partition"]
    return found


def kept_step_lines(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield which kept steps had read the pages of an answer, and the last one of each recipe that had not."""
    for recipe, clean in last_clean(steps).items():
        own = [one for one in in_order(steps) if _recipe_of(one) == recipe]
        read = ", ".join(_named(one) for one in own if one["read"])
        yield f"Kept steps of {recipe} that had read any of them: {read or 'none'} of {len(own):,}"
        yield f"  the last one that had not: {clean or 'none'}"


def _named(step: Mapping[str, Any]) -> str:
    """Return the number of a step of pretraining, and of another training its part, such as `long_context-step-5`."""
    part = step["partition"].partition("@")[2]
    return f"{step['step']:,}" if part == step_part(step["step"]) else part

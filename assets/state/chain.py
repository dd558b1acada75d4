"""The chain: every asset that a stage declares, with inputs before the assets made from them, and its partitions.

Fingerprints, Dagster's assets, `pedigree status` and jobs are all derived from it. It does not import Dagster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from evaluation.stages import ASSETS as EVALUATION_ASSETS
from training.contract.scopes import asks_for, kept_parts, reads, step_part
from training.stages import ASSETS as TRAINING_ASSETS

if TYPE_CHECKING:
    from training.contract.stage import Asset, Input
    from training.recipe.recipe import Recipe


def _in_order(assets: Iterable[Asset]) -> dict[str, Asset]:
    """The assets by name, each after all its inputs and guards; ties keep the order of declaration.

    Raises ValueError for a cycle, an undeclared input or a name that is declared twice.
    """
    waiting = list(assets)
    chain: dict[str, Asset] = {}
    while waiting:
        ready = next((one for one in waiting if all(item.asset in chain for item in (*one.inputs, *one.guards))), None)
        if ready is None:
            raise ValueError(f"no order of assets: {', '.join(one.name for one in waiting)} wait for inputs")
        if ready.name in chain:
            raise ValueError(f"two assets are called {ready.name!r}")
        waiting.remove(ready)
        chain[ready.name] = ready
    return chain


CHAIN: dict[str, Asset] = _in_order((*TRAINING_ASSETS, *EVALUATION_ASSETS))

# The groups of the UI in the order of the chain: no asset reads one of a later group, so all edges of the graph of
# groups point the same way. Optional parts of the chain are groups of their own.
GROUPS = (
    "adoption",
    "corpus",
    "instructions",
    "training_data",
    "mixture",
    "ladder",
    "pretraining",
    "long_context",
    "posttraining",
    "synthesis",
    "evaluation",
)

# Assets of which only the verdict counts; a model is none, although its kept steps wait for it.
GUARDS = {item.asset for one in CHAIN.values() for item in one.guards if not CHAIN[item.asset].guards}


def ancestors(name: str) -> set[str]:
    """Return the names of all assets that the asset `name` is made from, directly or indirectly."""
    found: set[str] = set()
    waiting = [item.asset for item in CHAIN[name].inputs]
    while waiting:
        asset = waiting.pop()
        if asset not in found:
            found.add(asset)
            waiting.extend(item.asset for item in CHAIN[asset].inputs)
    return found


def descendants(name: str) -> set[str]:
    """Return the names of all assets that are made from the asset `name`, directly or indirectly."""
    return {other for other in CHAIN if name in ancestors(other)}


# Partitions


def trains(declared: Asset) -> bool:
    """Whether the asset is made by a training, which waits for guards. One machine runs only one such run at a time."""
    return bool(declared.guards)


def partition_key(recipe: Recipe, part: str = "") -> str:
    """The partition key: `recipe@part` for a snapshot, rung or step, or `recipe` for an asset of the whole recipe."""
    return f"{recipe.name}@{part}" if part else recipe.name


def partitions_of(asset: Asset, recipe: Recipe) -> list[str]:
    """The partition keys of an asset under `recipe`, in the order of the recipe's snapshots or rungs."""
    return [partition_key(recipe, part) for part in parts_of(asset, recipe)]


def parts_of(asset: Asset, recipe: Recipe) -> list[str]:
    """The names of a recipe's snapshots, rungs or kept steps; one empty name if the asset is of the whole recipe.

    An optional asset that the recipe does not ask for has no parts.
    """
    if asset.scope == "snapshot":
        return [snapshot.name for snapshot in recipe.snapshots]
    if asset.scope == "rung":
        return [rung.name for rung in recipe.ladder.rungs]
    if asset.scope == "step":
        # The last one first: its training passes the others, if they are made when the last model is there already.
        sections = [name.partition(".")[0] for name in asset.sections]
        return [part for section in sections for part in kept_parts(recipe, section)[::-1]]
    return [""] if asks_for(recipe, *asset.sections) else []


def input_partitions(item: Input, recipe: Recipe, part: str) -> list[str]:
    """The partition keys of input `item` that the partition for snapshot or rung `part` reads, in recipe order.

    `part` is empty for an asset of the whole recipe.
    """
    names = parts_of(CHAIN[item.asset], recipe)
    if not names or not reads(recipe, item):
        return []
    if names == [""]:
        return [recipe.name]
    chosen = {
        "same": [part] if part in names else [],
        "earlier": names[: names.index(part) + 1] if part in names else [],
        "every": names,
        "quality": [name for name in names if name in recipe.quality.snapshots],
        "tokenizer": [name for name in names if name in recipe.tokenizer.snapshots],
        "averaged": [name for name in names if name in map(step_part, recipe.pretrain.averaged_steps)],
        "sft": [name for name in names if name == step_part(recipe.sft.from_step or 0)],
    }[item.which]
    return [partition_key(recipe, name) for name in chosen]

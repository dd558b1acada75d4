"""The chain: every asset that a stage declares, in an order in which inputs come first, and its partitions.

Fingerprints, Dagster's assets, status and jobs follow from it. No Dagster in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evaluation.stages import ASSETS as EVALUATION_ASSETS
from training.recipe import Recipe
from training.stage import Asset, Input, Scope
from training.stages import ASSETS as TRAINING_ASSETS


def _in_order(assets: Iterable[Asset]) -> dict[str, Asset]:
    """The assets by name: the next is always the first one declared whose inputs are there. ValueError when some wait
    for each other or for an asset that nobody declares."""
    waiting = list(assets)
    chain: dict[str, Asset] = {}
    while waiting:
        ready = next((one for one in waiting if all(item.asset in chain for item in one.inputs)), None)
        if ready is None:
            raise ValueError(f"no order of assets: {', '.join(one.name for one in waiting)} wait for inputs")
        if ready.name in chain:
            raise ValueError(f"two assets are called {ready.name!r}")
        waiting.remove(ready)
        chain[ready.name] = ready
    return chain


CHAIN: dict[str, Asset] = _in_order((*TRAINING_ASSETS, *EVALUATION_ASSETS))


def ancestors(name: str) -> set[str]:
    """Every asset that `name` is made from, near and far."""
    found: set[str] = set()
    waiting = [item.asset for item in CHAIN[name].inputs]
    while waiting:
        asset = waiting.pop()
        if asset not in found:
            found.add(asset)
            waiting.extend(item.asset for item in CHAIN[asset].inputs)
    return found


def descendants(name: str) -> set[str]:
    """Every asset that is made from `name`, near and far."""
    return {other for other in CHAIN if name in ancestors(other)}


# Partitions


def partition_key(recipe: Recipe, part: str = "") -> str:
    """`recipe@part` of a snapshot or a rung, or `recipe` for what concerns the whole recipe."""
    return f"{recipe.name}@{part}" if part else recipe.name


def partitions_of(asset: Asset, recipe: Recipe) -> list[str]:
    """The partition keys that `recipe` has of an asset, in the order of its snapshots or rungs."""
    return [partition_key(recipe, part) for part in _parts(asset.scope, recipe)]


# Recipes that have the assets of a scope; what a recipe does not ask for has no partition of it.
_OPTIONAL: dict[Scope, Callable[[Recipe], bool]] = {
    "ladder": lambda recipe: bool(recipe.ladder.rungs),
    "long_context": lambda recipe: recipe.long_context.tokens > 0,
    "synthesis": lambda recipe: bool(recipe.synthesis.prompts),
    "doremi": lambda recipe: bool(recipe.doremi.tokens),
}


def _parts(scope: Scope, recipe: Recipe) -> list[str]:
    """The names of a recipe's snapshots or rungs; one empty name for a scope of the whole recipe."""
    if scope == "snapshot":
        return [snapshot.name for snapshot in recipe.snapshots]
    if scope == "rung":
        return [rung.name for rung in recipe.ladder.rungs]
    return [""] if scope not in _OPTIONAL or _OPTIONAL[scope](recipe) else []


def input_partitions(item: Input, recipe: Recipe, part: str) -> list[str]:
    """The partition keys of an input that the partition of a snapshot or rung reads, in their order."""
    names = _parts(CHAIN[item.asset].scope, recipe)
    if not names or (item.when is not None and not item.when(recipe)):
        return []
    if names == [""]:
        return [recipe.name]
    chosen = {
        "same": [part],
        "earlier": names[: names.index(part) + 1] if part in names else [],
        "every": names,
        "quality": [name for name in names if name in recipe.quality.snapshots],
        "tokenizer": [name for name in names if name in recipe.tokenizer.snapshots],
    }[item.which]
    return [partition_key(recipe, name) for name in chosen]

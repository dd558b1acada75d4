"""Dagster's partitions and the mappings between them, derived from the recipes that exist.

Keys are `recipe`, `recipe@snapshot` and `recipe@rung`. The mappings are static, because the web server and the daemon
understand those. Partitions have one dimension, because a product of recipes and snapshots would contain pairs that no
recipe has. Files are not partitions; a stage divides them among its ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import dagster as dg

from assets.chain import CHAIN, input_partitions, partitions_of
from training.recipe import Recipe
from training.recipes import RecipeFiles
from training.records import RecipeError
from training.stage import Asset, Input, Scope

log = logging.getLogger(__name__)

RECIPES = "recipes"  # the asset that stands for what the recipes ask (assets/settings.py)

# What decides the mapping from an input to an asset: two scopes, which partitions are read, and by which recipes.
Edge = tuple[Scope, Scope, str, Callable[[Recipe], bool] | None]


def known_recipes(folders: Iterable[Path]) -> dict[str, Recipe]:
    """Every readable recipe of the folders, by name; for a name in several folders, the first folder counts.

    An invalid file is logged and left out, so that one person's mistake does not stop the code location for
    everybody.
    """
    files = RecipeFiles(folders)
    found: dict[str, Recipe] = {}
    for path in files.paths():
        try:
            recipe = files.load(str(path))
        except RecipeError as error:
            log.warning("recipe left out: %s", error)
            continue
        found.setdefault(recipe.name, recipe)
    return found


def asked_partition(asset: str, partition: str) -> str:
    """Return the partition of the asset `recipes` that shows the recipe's request for `asset` in `partition`."""
    return f"{asset}:{partition}"


class Partitions:
    """The Dagster partition definitions of all assets, and the mappings between them, for a set of recipes."""

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        self._recipes = tuple(recipes.values())
        self._definitions = {
            declared.scope: dg.StaticPartitionsDefinition(
                [key for recipe in self._recipes for key in partitions_of(declared, recipe)]
            )
            for declared in CHAIN.values()
        }
        self._mappings: dict[Edge, dg.StaticPartitionMapping] = {}
        self.asked = dg.StaticPartitionsDefinition(
            [asked_partition(name, key) for name, one in CHAIN.items() for key in self.of(one).get_partition_keys()]
        )

    def of(self, declared: Asset) -> dg.StaticPartitionsDefinition:
        """The partitions definition of an asset; all assets of one scope share it."""
        return self._definitions[declared.scope]

    def asked_of(self, declared: Asset) -> dg.AssetDep:
        """Return the dependency of asset `declared` on the asset `recipes`, partition by partition.

        Because of it, an edit of a recipe marks the asset unsynced.
        """
        mapping = {asked_partition(declared.name, key): key for key in self.of(declared).get_partition_keys()}
        return dg.AssetDep(RECIPES, partition_mapping=dg.StaticPartitionMapping(mapping))

    def dependency(self, item: Input, declared: Asset) -> dg.AssetDep:
        """The dependency of asset `declared` on one input, with the mapping between their partitions."""
        if item.which == "same" and item.when is None and CHAIN[item.asset].scope == declared.scope:
            return dg.AssetDep(item.asset)
        edge: Edge = (CHAIN[item.asset].scope, declared.scope, item.which, item.when)
        if edge not in self._mappings:
            self._mappings[edge] = dg.StaticPartitionMapping(self._read_by(item, declared))
        return dg.AssetDep(item.asset, partition_mapping=self._mappings[edge])

    def _read_by(self, item: Input, declared: Asset) -> dict[str, set[str]]:
        """Return, for each partition of an input asset, the partitions of `declared` that are made from it."""
        downstream: dict[str, set[str]] = {}
        for recipe in self._recipes:
            for key in partitions_of(declared, recipe):
                for upstream in input_partitions(item, recipe, key.partition("@")[2]):
                    downstream.setdefault(upstream, set()).add(key)
        return downstream

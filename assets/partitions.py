"""Recipes and snapshots as partitions: keys and the mappings between them, from the recipes that exist.

Keys are `recipe`, `recipe@snapshot` and `recipe@rung`. Mappings are static, which the web server and the daemon
understand; a product of two dimensions would list cells that no recipe names. Files are never partitions: ranks inside
a stage shard them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import dagster as dg

from assets.chain import CHAIN, input_partitions, partitions_of
from training.recipe import Recipe
from training.recipes import RecipeFiles
from training.records import RecipeError
from training.stage import Asset, Input

log = logging.getLogger(__name__)


def known_recipes(folders: Iterable[Path]) -> dict[str, Recipe]:
    """Every readable recipe of the folders by name; the first folder that has a name wins.

    A broken file is reported in the log and left out: one person's mistake must not take the code location from
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


class Partitions:
    """The partition definitions and mappings of a set of recipes."""

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        self._recipes = tuple(recipes.values())
        self._definitions = {
            declared.scope: dg.StaticPartitionsDefinition(
                [key for recipe in self._recipes for key in partitions_of(declared, recipe)]
            )
            for declared in CHAIN.values()
        }

    def of(self, declared: Asset) -> dg.StaticPartitionsDefinition:
        """The partitions of an asset; assets of one scope share them."""
        return self._definitions[declared.scope]

    def dependency(self, item: Input, declared: Asset) -> dg.AssetDep:
        """The dependency of `declared` on one input, with the partitions it reads."""
        if item.which == "same" and item.when is None and CHAIN[item.asset].scope == declared.scope:
            return dg.AssetDep(item.asset)
        downstream: dict[str, set[str]] = {}
        for recipe in self._recipes:
            for key in partitions_of(declared, recipe):
                for upstream in input_partitions(item, recipe, key.partition("@")[2]):
                    downstream.setdefault(upstream, set()).add(key)
        mapping = {upstream: sorted(keys) for upstream, keys in downstream.items()}
        return dg.AssetDep(item.asset, partition_mapping=dg.StaticPartitionMapping(mapping))

"""Dagster's partitions and the mappings between them, derived from the recipes that exist.

Keys are `recipe`, `recipe@snapshot`, `recipe@rung` and `recipe@step-N`. The mappings are static, because the web server
and the daemon understand those. Partitions have one dimension, because a product of recipes and snapshots would contain
pairs that no recipe has. Files are not partitions; a stage divides them among its ranks.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg

from assets.state.chain import CHAIN, input_partitions, partition_key, parts_of
from assets.state.recipe_folders import recipe_files, recipe_folders
from assets.state.references import recipes_run
from training.contract.records import RecipeError
from training.contract.stage import Asset, Input
from training.recipe.recipe import Recipe

log = logging.getLogger(__name__)

FIRST = "kitchen"  # the shipped recipe that is offered where nobody has asked for any
RECIPES = "recipes"  # the asset that stands for what the recipes ask (assets/graph/requested.py)

# By part of an input asset, the parts of another asset that are made from it, within one recipe.
PartsReadBy = tuple[tuple[str, tuple[str, ...]], ...]
Kind = tuple[str, tuple[str, ...]]
"""What assets with the same partitions have in common: their scope and sections."""


def offered_recipes(root: Path) -> dict[str, Recipe]:
    """Return the recipes that a person of this root has asked for, by name, their own first.

    These are the readable recipes of the root and of PEDIGREE_RECIPES, and the shipped ones that were run here. A root
    without any has `kitchen`, so that there is something to launch. For a name in several folders, the first folder
    counts. An invalid file is logged and left out, so that one person's mistake does not stop the code location for
    everybody.
    """
    folders = recipe_folders(root)
    files, run = recipe_files(folders), recipes_run(root)
    found: dict[str, Recipe] = {}
    for path in files.paths():
        if path.parent not in folders.own and path.stem not in run and (found or path.stem != FIRST):
            continue
        try:
            recipe = files.load(str(path))
        except RecipeError as error:
            log.warning("recipe left out: %s", error)
            continue
        found.setdefault(recipe.name, recipe)
    return found


def _kind(declared: Asset) -> Kind:
    return declared.scope, declared.sections


_KINDS = {_kind(declared): declared for declared in CHAIN.values()}


def asked_partition(asset: str, partition: str) -> str:
    """Return the partition of the asset `recipes` that shows the recipe's request for `asset` in `partition`."""
    return f"{asset}:{partition}"


class _Mapping(dg.StaticPartitionMapping):
    """Dagster's static mapping, without its checks of every key; made by `Partitions` of the very definitions it maps.

    Dagster checks each mapping and turns it around when it is made, which took half of the time that thousands of
    partitions cost. This mapping is turned around when somebody asks. It has the name of Dagster's class, under which
    Dagster stores it, so that web server and daemon read it as their own.
    """

    def __init__(self, downstream_by_upstream: Mapping[str, str | Collection[str]]) -> None:
        pass  # NamedTuple has stored it

    @cached_property
    def _mapping(self) -> dict[str, set[str]]:  # pyrefly: ignore[bad-override]  # an attribute of Dagster's class
        found = self.downstream_partition_keys_by_upstream_partition_key
        return defaultdict(set, {key: {to} if isinstance(to, str) else set(to) for key, to in found.items()})

    @cached_property
    def _inverse_mapping(self) -> dict[str, set[str]]:  # pyrefly: ignore[bad-override]
        found: dict[str, set[str]] = defaultdict(set)
        for key, downstream in self._mapping.items():
            for one in downstream:
                found[one].add(key)
        return found

    def validate_partition_mapping(self, *definitions: dg.PartitionsDefinition | None, **named: Any) -> None:
        pass


_Mapping.__name__ = dg.StaticPartitionMapping.__name__


class Partitions:
    """The Dagster partition definitions of all assets, and the mappings between them, for a set of recipes.

    What is the same for many recipes is computed once: all assets of a scope and its sections share a
    definition, and of recipes that differ only in their names, such as variants, one is asked.
    """

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        self._recipes = tuple(recipes.values())
        self._definitions = {
            kind: dg.StaticPartitionsDefinition(
                [partition_key(recipe, part) for recipe in self._recipes for part in parts_of(declared, recipe)]
            )
            for kind, declared in _KINDS.items()
        }
        self._alike = _alike(self._recipes)
        self._mappings: dict[tuple[Kind, Kind, tuple[PartsReadBy, ...]], dg.StaticPartitionMapping] = {}
        self.asked = dg.StaticPartitionsDefinition(
            [asked_partition(name, key) for name, one in CHAIN.items() for key in self.of(one).get_partition_keys()]
        )

    def of(self, declared: Asset) -> dg.StaticPartitionsDefinition:
        """The partitions definition of an asset; all assets of one scope and its sections share it."""
        return self._definitions[_kind(declared)]

    def asked_of(self, declared: Asset) -> dg.AssetDep:
        """Return the dependency of asset `declared` on the asset `recipes`, partition by partition.

        Because of it, an edit of a recipe marks the asset unsynced.
        """
        mapping = {asked_partition(declared.name, key): key for key in self.of(declared).get_partition_keys()}
        return dg.AssetDep(RECIPES, partition_mapping=_Mapping(mapping))

    def dependency(self, item: Input, declared: Asset) -> dg.AssetDep:
        """The dependency of asset `declared` on one input, with the mapping between their partitions."""
        if item.which == "same" and item.when is None and _kind(CHAIN[item.asset]) == _kind(declared):
            return dg.AssetDep(item.asset)
        read_by = tuple(_parts_read_by(item, declared, recipes[0]) for recipes in self._alike)
        # Kinds never share a mapping: Dagster adds the keys that it looks up to a mapping, and checks them later.
        edge = _kind(CHAIN[item.asset]), _kind(declared), read_by
        if edge not in self._mappings:
            self._mappings[edge] = _Mapping(self._keys_of(read_by))
        return dg.AssetDep(item.asset, partition_mapping=self._mappings[edge])

    def _keys_of(self, read_by: Iterable[PartsReadBy]) -> dict[str, list[str]]:
        """Return, for each partition of an input asset, the partitions of another asset that are made from it."""
        return {
            partition_key(recipe, upstream): [partition_key(recipe, part) for part in downstream]
            for recipes, parts in zip(self._alike, read_by, strict=True)
            for recipe in recipes
            for upstream, downstream in parts
        }


def _alike(recipes: Iterable[Recipe]) -> tuple[list[Recipe], ...]:
    """Return the recipes in groups that have the same parts of every asset and read the same of them."""
    conditions = {item.when for one in CHAIN.values() for item in (*one.inputs, *one.guards) if item.when is not None}
    groups: dict[object, list[Recipe]] = {}
    for recipe in recipes:
        form = (
            tuple(tuple(parts_of(declared, recipe)) for declared in _KINDS.values()),
            recipe.quality.snapshots,
            recipe.tokenizer.snapshots,
            recipe.sft.from_step,
            recipe.pretrain.keep.average.steps,
            tuple(condition(recipe) for condition in conditions),
        )
        groups.setdefault(form, []).append(recipe)
    return tuple(groups.values())


def _parts_read_by(item: Input, declared: Asset, recipe: Recipe) -> PartsReadBy:
    """Return, for each part of an input asset, the parts of `declared` that are made from it under one recipe."""
    downstream: dict[str, list[str]] = {}
    for part in parts_of(declared, recipe):
        for upstream in input_partitions(item, recipe, part):
            downstream.setdefault(upstream.partition("@")[2], []).append(part)
    return tuple((upstream, tuple(parts)) for upstream, parts in downstream.items())

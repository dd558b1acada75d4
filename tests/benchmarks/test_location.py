"""The recipes that are loaded have the partitions that the table names."""

from __future__ import annotations

from assets.chain import CHAIN, partitions_of
from assets.partitions import known_recipes
from assets.recipe_folders import recipe_folders
from benchmarks import location


def test_the_folders_hold_as_many_partitions_as_the_table_says(tmp_path):
    for make in (location.with_snapshots, location.with_variants):
        recipes = known_recipes([make(tmp_path / make.__name__, 200) / "recipes", *recipe_folders()]).values()
        own = [recipe for recipe in recipes if recipe.name.startswith(("typical", "variant"))]
        assert sum(len(partitions_of(CHAIN["crawl_archives"], recipe)) for recipe in own) == 200


def test_the_rows_are_compared_with_the_first():
    lines = location.lines_of({"none": [(1.0, 0.5), (1.0, 0.7), (1.2, 0.6)], "some": [(1.0, 0.8)]})
    assert lines[0] == "`import dagster`: 1.00 processor seconds"
    assert lines[-2:] == ["| none | 0.60 | [0.50-0.70] | 0.00 |", "| some | 0.80 | [0.80-0.80] | 0.20 |"]

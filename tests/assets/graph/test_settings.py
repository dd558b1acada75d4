"""What Dagster calls unsynced, by the resolver that the UI asks, beside what `pedigree status` calls outdated."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from assets.definitions import definitions
from assets.graph.partitions import asked_partition
from assets.graph.pipeline import Pipeline
from assets.graph.requested import RECIPES_KEY, observe, unobserved
from assets.run.run import keep_recipe
from assets.state.chain import CHAIN, descendants, partitions_of
from assets.state.compare import compare
from assets.state.recipe_folders import find_recipe, load_recipe
from tests.assets.fabricate import make_one
from training.recipe.recipe import recipe_as_data

ASSETS = [
    name
    for name, declared in CHAIN.items()
    if declared.group in ("corpus", "training_data", "pretraining")
    and declared.stage.package == "training"
    and not declared.stage.by_a_model
]  # the others behave like them
SNAPSHOTS, ROWS = CHAIN["quality_models"].sections, CHAIN["row_index"].sections


@pytest.fixture(scope="module")
def edited(kitchen):
    """The kitchen with one threshold changed."""
    return replace(kitchen, filter=replace(kitchen.filter, gopher_min_words=60))


@pytest.fixture(scope="module")
def place(kitchen, made):
    """A root whose artifacts were materialized in Dagster, and the instance that knows of them."""
    root = made
    with dg.DagsterInstance.ephemeral() as instance:
        for scope, sections, partition in (
            ("snapshot", (), "@kitchen-1"),
            ("snapshot", (), "@kitchen-2"),
            ("section", SNAPSHOTS, ""),
            ("recipe", (), ""),
            ("section", ROWS, ""),
        ):
            chosen = [name for name in ASSETS if (CHAIN[name].scope, CHAIN[name].sections) == (scope, sections)]
            materialize(kitchen, root, instance, chosen, f"kitchen{partition}")
        yield root, instance


@pytest.fixture(autouse=True)
def first_state(kitchen, place):
    """Every test begins with what the kitchen itself asks for."""
    root, instance = place
    observe(instance, compare(kitchen, root).cells.values())


@functools.cache
def loaded(root):
    return definitions(root, "local")


def materialize(recipe, root, instance, names, partition):
    pipeline = Pipeline(root=str(root), resolved_recipe=json.dumps(recipe_as_data(recipe)))
    chain = [asset for asset in loaded(root).assets if isinstance(asset, dg.AssetsDefinition)]
    done = dg.materialize(
        [asset for asset in chain if asset.key.path[-1] in names],
        partition_key=partition,
        instance=instance,
        resources={"pipeline": pipeline},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )
    assert done.success
    tags = instance.get_run_by_id(done.run_id).tags
    assert tags["pedigree/recipe"] == "kitchen" and tags.get("pedigree/snapshot", "") == partition.partition("@")[2]


def unsynced(root, instance):
    """Asset and partition of what Dagster calls stale, with the keys of the inputs that are the cause."""
    graph = loaded(root).resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    found = {}
    for name in ASSETS:
        for partition in partitions_of(CHAIN[name], load_recipe("kitchen")):
            if resolver.get_status(dg.AssetKey(name), partition) != StaleStatus.FRESH:
                causes = resolver.get_stale_root_causes(dg.AssetKey(name), partition)
                found[name, partition] = {(cause.asset_key, cause.partition_key) for cause in causes}
    return found


def outdated(recipe, root):
    return {cell.key for cell in compare(recipe, root).to_do() if cell.asset in ASSETS}


def test_what_was_just_made_is_in_sync(place):
    assert unsynced(*place) == {}


def test_one_threshold_marks_exactly_what_status_calls_outdated_and_names_the_settings(place, edited):
    root, instance = place
    observe(instance, compare(edited, root).cells.values())
    marked = unsynced(root, instance)
    assert set(marked) == outdated(edited, root)
    below = {"filtered_documents", *descendants("filtered_documents")} & set(ASSETS)
    assert {asset for asset, _ in marked} == {name for name in below if partitions_of(CHAIN[name], edited)}
    assert all(causes == {(RECIPES_KEY, asked_partition(*key))} for key, causes in marked.items())


def test_an_observation_says_which_field_differs(place, edited):
    root, instance = place
    seen = unobserved(instance, compare(edited, root).cells.values())
    differs = {item.partition: item.metadata["differs"].value for item in seen}
    assert differs["filtered_documents:kitchen@kitchen-1"] == "- `filter.gopher_min_words: 50 → 60`"
    assert "input filtered_documents" in differs["document_signatures:kitchen@kitchen-1"]


def test_a_threshold_that_is_put_back_is_in_sync_again(kitchen, place, edited):
    root, instance = place
    for recipe in (edited, kitchen):
        observe(instance, compare(recipe, root).cells.values())
    assert unsynced(root, instance) == {}


def test_a_comment_is_not_even_observed(place, tmp_path):
    root, instance = place
    (tmp_path / "kitchen.yaml").write_text("# another comment\n" + find_recipe("kitchen").read_text("utf-8"))
    cells = compare(load_recipe(str(tmp_path / "kitchen.yaml")), root).cells.values()
    assert cells and list(unobserved(instance, cells)) == []


def test_other_code_is_observed_with_its_modules_and_makes_nothing_unsynced(kitchen, place):
    root, instance = place
    asset, other = "deduplicated_documents", ("training.data.dedup.dedup", "training.data.dedup.edits")
    found = list(compare(kitchen, root).cells.values())
    cells = [replace(cell, other_code=other) if cell.asset == asset else cell for cell in found]
    seen = list(unobserved(instance, cells))
    assert {item.partition for item in seen} == {f"{asset}:kitchen@kitchen-1", f"{asset}:kitchen@kitchen-2"}
    said = {item.metadata["made_by_other_code"].value for item in seen}
    assert said == {"training.data.dedup.dedup, training.data.dedup.edits"}
    observe(instance, cells)
    assert list(unobserved(instance, cells)) == [] and unsynced(root, instance) == {}


def test_what_a_materialization_used_is_what_it_is_compared_with(place, edited):
    """The recipe was edited after the last observation, so the bridge itself observes, after the step began."""
    root, instance = place
    key = ("filtered_documents", "kitchen@kitchen-1")
    comparison = compare(edited, root)
    make_one(comparison, comparison.cells[key])
    materialize(edited, root, instance, [key[0]], key[1])
    assert key not in unsynced(root, instance)
    observe(instance, compare(load_recipe("kitchen"), root).cells.values())
    assert key in unsynced(root, instance)
    materialize(load_recipe("kitchen"), root, instance, [key[0]], key[1])


def test_the_sensor_reports_an_edit_once_and_launches_nothing(place, edited):
    root, instance = place
    sensor = next(one for one in loaded(root).sensors if one.name == "asked_settings")
    repository = loaded(root).get_repository_def()
    keep_recipe(edited, root)
    try:
        context = dg.build_sensor_context(instance=instance, repository_def=repository)
        answer = sensor.evaluate_tick(context)
        assert "filtered_documents:kitchen@kitchen-1" in {item.partition for item in answer.asset_events}
        assert answer.run_requests == []
        for event in answer.asset_events:
            instance.report_runless_asset_event(event)
        again = sensor.evaluate_tick(context)
        assert again.asset_events == [] and again.skip_message and again.run_requests == []
    finally:
        (root / "recipes" / "kitchen.yaml").unlink()


def test_recipes_are_one_node_that_can_be_neither_launched_nor_missing(place):
    root, instance = place
    graph = loaded(root).resolve_asset_graph()
    assert set(graph.get_all_asset_keys()) - graph.materializable_asset_keys == {RECIPES_KEY}
    node = graph.get(RECIPES_KEY)
    assert node.is_external and not node.is_executable and not node.is_materializable
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    of_nobody = asked_partition("promoted_model", "kitchen")  # nothing is told of it here
    assert of_nobody in node.partitions_def.get_partition_keys()
    assert resolver.get_status(node.key, of_nobody) == StaleStatus.FRESH

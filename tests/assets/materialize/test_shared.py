"""What Dagster shows of a variant's partitions whose artifacts its base made."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from assets.definitions import definitions
from assets.graph.partitions import known_recipes
from assets.graph.pipeline import Pipeline
from assets.materialize.shared import RECIPES_A_LOOK, is_shared, next_look, observe_edits, report_shared
from assets.run.automation import was_run
from assets.state.cell import Comparison
from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from tests.assets.fabricate import make_all, make_one
from training.contract import artifact
from training.recipe.recipe import Recipe, recipe_as_data

NAME = "kitchen-rl"
MISSING, FRESH, STALE = StaleStatus.MISSING, StaleStatus.FRESH, StaleStatus.STALE


@pytest.fixture(scope="module")
def variant():
    return load_recipe(NAME)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A root in which the base was made, and the definitions over it."""
    root = tmp_path_factory.mktemp("shared")
    make_all(load_recipe("kitchen"), root)
    return root, definitions(root, "local")


@pytest.fixture(scope="module")
def told(made, variant):
    """The same with an instance of Dagster, after the real sensor has looked at the variant once."""
    with dg.DagsterInstance.ephemeral() as instance:
        sensor = next(one for one in made[1].sensors if one.name == "shared_artifacts")
        place = (*made, instance)
        assert set(states(place).values()) == {MISSING}
        context = dg.build_sensor_context(instance=instance, cursor='["begun", "kitchen-nightly"]')
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("assets.materialize.shared.RECIPES_A_LOOK", 1)
            said = sensor(context)
        assert said.skip_message == f"shared partitions reported: {NAME}: {len(shared(place, variant))}"
        assert context.cursor == f'["begun", "{NAME}"]'
        yield place


def states(place, name=NAME):
    """What the UI says of each partition of a recipe."""
    root, defs, instance = place
    graph = defs.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    return {key: resolver.get_status(dg.AssetKey(key[0]), key[1]) for key in compare(load_recipe(name), root).cells}


def shared(place, variant):
    return {key for key, cell in compare(variant, place[0]).cells.items() if is_shared(cell)}


def test_exactly_the_shared_partitions_of_a_variant_count_as_materialized_and_in_sync(told, variant):
    wanted = shared(told, variant)
    assert {"base_model", "sft_model", "reward_model"} <= {asset for asset, _ in wanted}
    assert states(told) == {key: FRESH if key in wanted else MISSING for key in states(told)}
    assert states(told)["aligned_model", NAME] == MISSING


def test_a_second_look_reports_nothing_and_the_recipe_does_not_count_as_run(told, variant):
    assert report_shared(told[2], compare(variant, told[0])) == []
    assert not was_run(variant, told[0])


def test_a_reported_partition_shows_its_digest_who_made_it_and_the_verdicts_of_its_gates(told, variant):
    root, _, instance = told
    key = dg.AssetKey("filtered_documents")
    filters = dg.AssetRecordsFilter(key, asset_partitions=[f"{NAME}@kitchen-1"])
    event = instance.fetch_materializations(filters, limit=1).records[0].asset_materialization
    cell = compare(variant, root).cells["filtered_documents", f"{NAME}@kitchen-1"]
    assert event.description == "Made for [kitchen@kitchen-1]; this recipe asks for the same."
    assert event.metadata["digest"].value == cell.artifact.digest and "mlflow_run" not in event.metadata
    checks = [dg.AssetCheckKey(key, name) for name in CHAIN["filtered_documents"].stage.gates]
    found = [instance.event_log_storage.get_asset_check_execution_history(one, limit=9)[0].event for one in checks]
    evaluations = [one.dagster_event.event_specific_data for one in found]
    assert all(one.passed and one.partition.startswith(NAME) for one in evaluations)


def test_an_edit_of_a_variant_that_never_ran_marks_what_was_reported_as_unsynced(made):
    root = made[0]
    recipe = root / "recipes" / "edited.yaml"
    recipe.parent.mkdir()
    recipe.write_text("extends: kitchen\nname: edited\nalign: {epochs: 7}\n")
    with dg.DagsterInstance.ephemeral() as instance:
        place = root, definitions(root, "local"), instance
        comparison = compare(load_recipe(str(recipe)), root)
        chosen = [comparison.cells[asset, "edited"] for asset in ("base_model", "sft_model")]
        assert report_shared(instance, comparison, chosen) == chosen
        assert states(place, str(recipe))["sft_model", "edited"] == FRESH
        recipe.write_text("extends: kitchen\nname: edited\nalign: {epochs: 7}\nsft: {epochs: 9}\n")
        observe_edits(instance, compare(load_recipe(str(recipe)), root))
        found = states(place, str(recipe))
    recipe.unlink()
    assert found["sft_model", "edited"] == STALE and found["base_model", "edited"] == FRESH
    assert found["reward_model", "edited"] == MISSING


def test_a_record_that_dagster_knows_otherwise_is_not_reported(made, variant):
    """Otherwise the newest event of a changed record would hide the evidence."""
    comparison = compare(variant, made[0])
    cell, other = comparison.cells["base_model", NAME], comparison.cells["tokenizer", NAME]
    with dg.DagsterInstance.ephemeral() as instance:
        metadata = {"fingerprint": cell.fingerprint, "record_digest": artifact.digest_of("another record")}
        instance.report_runless_asset_event(
            dg.AssetMaterialization("base_model", partition="kitchen", metadata=metadata)
        )
        assert report_shared(instance, comparison, [other, cell]) == [other]


def test_a_run_that_comes_before_the_sensor_reports_what_it_reads(made, variant, tmp_path):
    """Otherwise the sensor's report would be a change of its inputs."""
    root, defs = made
    comparison = compare(variant, root)
    make_one(comparison, comparison.cells["prompt_data", NAME])
    comparison = compare(variant, root)
    make_one(comparison, comparison.cells["aligned_model", NAME])
    with dg.DagsterInstance.ephemeral() as instance:
        pipeline = Pipeline(root=str(root), resolved_recipe=json.dumps(recipe_as_data(variant)))
        chosen = [one for one in defs.assets if isinstance(one, dg.AssetsDefinition)]
        done = dg.materialize(
            [one for one in chosen if one.key.path[-1] == "aligned_model"],
            partition_key=NAME,
            instance=instance,
            resources={"pipeline": pipeline},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
        assert done.success
        place = root, defs, instance
        before = states(place)
        assert before["aligned_model", NAME] == before["reward_model", NAME] == FRESH
        report_shared(instance, compare(variant, root))
        assert states(place)["aligned_model", NAME] == FRESH


def test_a_change_of_a_file_causes_one_round_through_all_recipes_and_then_nothing_is_compared(tmp_path, monkeypatch):
    root, seen = tmp_path, []
    real = compare

    def noted(recipe: Recipe, *args: Any, **named: Any) -> Comparison:
        seen.append(recipe.name)
        return real(recipe, *args, **named)

    monkeypatch.setattr("assets.materialize.shared.compare", noted)
    everyone = sorted(known_recipes(recipe_folders(root)))
    with dg.DagsterInstance.ephemeral() as instance:

        def looks(cursor: str, number: int) -> str:
            for _ in range(number):
                _, cursor = next_look(instance, root, cursor)
            return cursor

        whole = len(everyone) // RECIPES_A_LOOK + 1
        cursor = looks("", whole)
        assert seen == everyone
        assert looks(cursor, 2) == cursor and seen == everyone
        (root / "refs" / "base_model").mkdir(parents=True)
        looks(cursor, whole + 1)
    assert seen == [*everyone, *everyone]

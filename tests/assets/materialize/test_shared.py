"""What Dagster is told of a variant's partitions whose artifacts its base made."""

from __future__ import annotations

import json
import shutil
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from assets.definitions import definitions
from assets.graph.partitions import offered_recipes
from assets.graph.pipeline import Pipeline
from assets.materialize.shared import is_shared, next_look, observe_shared, report_read
from assets.state.cell import Comparison
from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.recipe_folders import SHIPPED, find_recipe, load_recipe
from assets.state.references import recipes_run
from tests.assets.fabricate import make_all, make_one
from training.contract import artifact
from training.recipe.recipe import Recipe, recipe_as_data

NAME = "kitchen-rl"
MISSING, FRESH = StaleStatus.MISSING, StaleStatus.FRESH


@pytest.fixture(scope="module")
def variant():
    return load_recipe(NAME)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A root in which the base was made and a variant is asked for, and the definitions over it."""
    root = tmp_path_factory.mktemp("shared")
    make_all(load_recipe("kitchen"), root)
    (root / "recipes").mkdir()
    shutil.copy(find_recipe(NAME), root / "recipes")
    return root, definitions(root, "local")


@pytest.fixture(scope="module")
def told(made, variant):
    """The same with an instance of Dagster, after the real sensor has looked at the variant once."""
    with dg.DagsterInstance.ephemeral() as instance:
        sensor = next(one for one in made[1].sensors if one.name == "shared_artifacts")
        place = (*made, instance)
        assert set(states(place).values()) == {MISSING}
        context = dg.build_sensor_context(instance=instance)
        said = sensor(context)
        assert said.skip_message == f"shared partitions observed: {NAME}: {len(shared(place, variant))}"
        yield place


def states(place, name=NAME):
    """What the UI says of each partition of a recipe."""
    root, defs, instance = place
    graph = defs.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    return {key: resolver.get_status(dg.AssetKey(key[0]), key[1]) for key in compare(load_recipe(name), root).cells}


def shared(place, variant):
    return {key for key, cell in compare(variant, place[0]).cells.items() if is_shared(cell)}


def events_of(fetch):
    """The observations or materializations of all assets, by asset and partition."""
    records = (record for name in CHAIN for record in fetch(dg.AssetKey(name), limit=99).records)
    told = (one.event_log_entry.asset_observation or one.asset_materialization for one in records)
    return {(one.asset_key.path[-1], one.partition): one for one in told}


def test_exactly_the_shared_partitions_of_a_variant_are_observed_and_nothing_counts_as_materialized(told, variant):
    wanted = shared(told, variant)
    assert {"base_model", "sft_model", "reward_model"} <= {asset for asset, _ in wanted}
    assert events_of(told[2].fetch_observations).keys() == wanted
    assert not events_of(told[2].fetch_materializations)
    assert set(states(told).values()) == {MISSING}


def test_a_second_look_tells_nothing_and_the_recipe_does_not_count_as_run(told, variant):
    assert observe_shared(told[2], compare(variant, told[0])) == []
    assert NAME not in recipes_run(told[0])


def test_an_observation_shows_the_digest_and_who_made_the_artifact(told, variant):
    key = "filtered_documents", f"{NAME}@kitchen-1"
    event = events_of(told[2].fetch_observations)[key]
    assert event.description == "Made for [kitchen@kitchen-1]; this recipe asks for the same."
    made = compare(variant, told[0]).cells[key].artifact
    assert event.metadata["digest"].value == made.digest and "mlflow_run" not in event.metadata


def test_only_what_somebody_asked_for_or_ran_is_offered_and_ones_own_comes_first(made, tmp_path):
    assert list(offered_recipes(made[0])) == [NAME, "kitchen"]
    assert list(offered_recipes(tmp_path)) == ["kitchen"]  # something to launch
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text("extends: kitchen\nname: mine\n")
    assert list(offered_recipes(tmp_path)) == ["mine"]


def test_a_record_that_dagster_knows_otherwise_is_not_reported(made, variant):
    """Otherwise the newest event of a changed record would hide the evidence."""
    comparison = compare(variant, made[0])
    cell, other = comparison.cells["base_model", NAME], comparison.cells["tokenizer", NAME]
    with dg.DagsterInstance.ephemeral() as instance:
        metadata = {"fingerprint": cell.fingerprint, "record_digest": artifact.digest_of("another record")}
        instance.report_runless_asset_event(
            dg.AssetMaterialization("base_model", partition="kitchen", metadata=metadata)
        )
        assert report_read(instance, comparison, [other, cell]) == [other]


def test_a_run_reports_what_it_reads(made, variant):
    """Otherwise the first run that takes an input for the variant would count as a change of it."""
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
        observe_shared(instance, compare(variant, root))
        assert states(place)["aligned_model", NAME] == FRESH


def test_a_change_of_a_file_causes_one_round_through_all_recipes_and_then_nothing_is_compared(tmp_path, monkeypatch):
    root, seen = tmp_path, []
    real = compare

    def noted(recipe: Recipe, *args: Any, **named: Any) -> Comparison:
        seen.append(recipe.name)
        return real(recipe, *args, **named)

    monkeypatch.setattr("assets.materialize.shared.compare", noted)
    monkeypatch.setattr("assets.materialize.shared.RECIPES_A_LOOK", 2)
    monkeypatch.setenv("PEDIGREE_RECIPES", str(SHIPPED))
    everyone = sorted(offered_recipes(root))
    with dg.DagsterInstance.ephemeral() as instance:

        def looks(cursor: str, number: int) -> str:
            for _ in range(number):
                _, cursor = next_look(instance, root, cursor)
            return cursor

        whole = len(everyone) // 2 + 1
        cursor = looks("", whole)
        assert seen == everyone
        assert looks(cursor, 2) == cursor and seen == everyone
        (root / "refs" / "base_model").mkdir(parents=True)
        looks(cursor, whole + 1)
    assert seen == [*everyone, *everyone]

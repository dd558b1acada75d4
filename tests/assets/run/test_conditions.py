"""The sensor `new_snapshots` and the conditions that it evaluates, in a Dagster instance; nothing is executed."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus

from assets.definitions import definitions
from assets.run.automation import SENSOR, add_backfills
from assets.run.conditions import REASONS
from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from resources.profile import load_profile
from tests.assets.fabricate import make_one

ALL, CORPUS = "{rebuild: all, node_hours_per_day: 1}", "{rebuild: corpus, node_hours_per_day: 1}"
ASKED, MISSING, MAKEABLE, ALLOWED, FREE = REASONS


@dataclass
class Tick:
    """What the sensor answered: its requests, or why there are none, and for which partitions each reason held."""

    requests: list[dg.RunRequest]
    said: str
    holds: dict[tuple[str, str], set[str]]


@pytest.fixture
def instance():
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture
def loaded(tmp_path):
    """Load the definitions of the root as they are when it is called."""
    return lambda: definitions(tmp_path, "local").get_repository_def()


def write(root, name, automation, more=""):
    (root / "recipes").mkdir(exist_ok=True)
    (root / "recipes" / f"{name}.yaml").write_text(f"extends: kitchen\nname: {name}\nautomation: {automation}\n{more}")


def read(root, name):
    return compare(load_recipe(str(root / "recipes" / f"{name}.yaml")), root)


def make(root, name, asset):
    for key in [key for key in read(root, name).cells if key[0] == asset]:
        comparison = read(root, name)
        make_one(comparison, comparison.cells[key])


def tick(instance, repository, cursor=None):
    sensor = repository.get_sensor_def(SENSOR)
    with dg.build_sensor_context(instance=instance, repository_def=repository, cursor=cursor) as context:
        data = sensor.evaluate_tick(context)
    holds = {}
    for one in data.automation_condition_evaluations:
        for part in one.child_evaluations:
            keys = part.true_subset.value.get_partition_keys()
            holds[part.condition_snapshot.name, one.key.path[-1]] = set(keys)
    return Tick(list(data.run_requests or ()), data.skip_message or "", holds)


def targets(request):
    pairs = request.asset_graph_subset.iterate_asset_partitions()
    return {(one.asset_key.path[-1], one.partition_key) for one in pairs}


def add(instance, request):
    """As Dagster's daemon does what a tick requested."""
    instance.add_backfill(
        PartitionBackfill.from_asset_graph_subset(
            backfill_id="of-a-tick",
            backfill_timestamp=0.0,
            tags=request.tags,
            dynamic_partitions_store=instance,
            asset_graph_subset=request.asset_graph_subset,
            title=None,
            description=None,
            run_config=None,
        )
    )


def test_each_recipe_gets_a_request_of_its_own_and_the_page_of_an_asset_shows_what_holds(tmp_path, instance, loaded):
    for name, automation in (("asking", ALL), ("other", CORPUS)):
        write(tmp_path, name, automation)
        make(tmp_path, name, "crawl_archives")
    found = tick(instance, loaded())
    asking, other = sorted(found.requests, key=lambda one: one.tags["pedigree/recipe"])
    assert {partition.partition("@")[0] for _, partition in targets(asking)} == {"asking"}
    assert {CHAIN[asset].group for asset, _ in targets(other)} == {"corpus"} and other.tags["dagster/priority"] == "-1"
    both, mine = {"asking@kitchen-1", "asking@kitchen-2"}, {"asking"}
    assert found.holds[ASKED, "crawl_archives"] >= both and not found.holds[MISSING, "crawl_archives"]
    assert found.holds[FREE, "filtered_documents"] >= both and found.holds[FREE, "sft_model"] == mine
    assert not found.holds[ASKED, "promoted_model"]


def test_an_open_backfill_holds_the_recipe_back_and_the_pages_say_so(tmp_path, instance, loaded):
    write(tmp_path, "asking", CORPUS)
    make(tmp_path, "asking", "crawl_archives")
    repository = loaded()
    (request,) = tick(instance, repository).requests
    add(instance, request)
    after = tick(instance, repository)
    assert not after.requests and after.said == "asking: backfill of-a-tick is open"
    key = "extracted_documents"
    assert after.holds[MAKEABLE, key] and not after.holds[ALLOWED, key] and not after.holds[FREE, key]


def test_partitions_that_dagster_has_not_loaded_wait_for_it(tmp_path, instance, loaded):
    write(tmp_path, "asking", CORPUS)
    make(tmp_path, "asking", "crawl_archives")
    before = loaded()
    third = "{name: kitchen-3, source: kitchen, label: web}"
    write(tmp_path, "asking", CORPUS, f"snapshots: [{{name: kitchen-1, source: kitchen, label: web}}, {third}]\n")
    assert tick(instance, before).said == "asking: Dagster has not loaded its new partitions yet"
    (request,) = tick(instance, loaded()).requests
    assert ("crawl_archives", "asking@kitchen-3") in targets(request)


def test_a_tick_without_news_says_its_reasons(tmp_path, instance, loaded):
    assert tick(instance, loaded()).said == "no recipe of this root asks for automation"


def test_the_schedule_leaves_all_to_the_sensor_that_is_on(tmp_path, instance, loaded):
    write(tmp_path, "asking", CORPUS)
    make(tmp_path, "asking", "crawl_archives")
    repository = loaded()
    state = InstigatorState(origin_of(repository), InstigatorType.SENSOR, InstigatorStatus.RUNNING)
    instance.add_instigator_state(state)
    graph = repository.asset_graph
    (said,) = add_backfills(instance, graph, tmp_path, load_profile("local"), "nightly_rebuild")
    assert said.startswith("the sensor new_snapshots is on") and not instance.get_backfills()
    instance.update_instigator_state(state.with_status(InstigatorStatus.STOPPED))
    (said,) = add_backfills(instance, graph, tmp_path, load_profile("local"), "nightly_rebuild")
    assert said.startswith("added backfill") and len(instance.get_backfills()) == 1


def origin_of(repository):
    place = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("assets.definitions"), repository.name)
    return RemoteInstigatorOrigin(place, SENSOR)

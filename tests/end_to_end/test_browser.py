"""What a person does in the UI, in a browser, on a root that has only what these tests need."""

from __future__ import annotations

from pathlib import Path

import pytest

from assets.state.recipe_folders import SHIPPED, load_recipe
from tests.assets.fabricate import point_to_shared
from tests.browser import chromium
from tests.end_to_end.dagster_dev import services, wait_for
from tests.end_to_end.test_services import (
    by_the_sensor,
    failed,  # noqa: F401
    partitions_known,
    snapshots,
    status_of_run,
    wait_for_backfills,
    write_recipe,
)
from tests.small_kitchen import RECIPES, pedigree

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """A root in which a person made the index of exams for a recipe that asks for automation; another one shares it."""
    root = tmp_path_factory.mktemp("browser")
    automation = {"rebuild": "corpus", "node_hours_per_day": 1.0}
    write_recipe(root, "kitchen-asking", snapshots=snapshots(1), automation=automation)
    ran = pedigree("run", str(root / "recipes" / "kitchen-asking.yaml"), "--until", "benchmark_index", root=root)
    assert ran.code == 0, ran.errors
    point_to_shared(load_recipe("kitchen-small", folders=(RECIPES, SHIPPED)), root)
    return root


@pytest.fixture(scope="module")
def running(copied):
    with services(copied) as found:
        yield found


def test_a_person_switches_the_sensor_on_and_sees_the_backfill_of_a_recipe_that_asks_for_it(running):
    with chromium() as page:
        page.goto(f"{running.url}/automation")
        page.get_by_role("link", name="new_snapshots").click()
        page.locator("tr", has_text="Running").locator("label").click()
        (backfill,) = wait_for(lambda: by_the_sensor(running), 300)
        page.goto(f"{running.url}/runs?view=backfills")
        page.get_by_text("pedigree/recipe: kitchen-asking").wait_for()
        page.goto(f"{running.url}/runs/b/{backfill['id']}")
        page.get_by_role("link", name="decontaminated_documents").wait_for()
        page.goto("about:blank")  # an open page asks the web server all the time
        wait_for_backfills(running, backfill["id"])
        page.goto(f"{running.url}/runs/b/{backfill['id']}")
        page.get_by_text("100% completed").nth(len(backfill["assetSelection"]) - 1).wait_for()


def test_a_person_launches_a_partition_backfill_in_the_browser(running):
    wanted = {"kitchen-small", "kitchen-asking"}
    running.report("instruction_data", sorted(set(partitions_known(running, "instruction_data")) - wanted))
    running.report("benchmark_index", partitions_known(running, "benchmark_index"))  # which all of these share
    with chromium() as page:
        page.goto(f"{running.url}/asset-groups")
        page.wait_for_selector("text=corpus")
        page.goto(f"{running.url}/assets/instruction_data?view=partitions")
        page.wait_for_selector("text=kitchen-small-rl")
        page.get_by_role("button", name="Materialize").first.click()
        page.get_by_role("button", name="Missing", exact=True).click()
        page.get_by_role("button", name="Launch backfill").last.click()
        (backfill,) = wait_for(lambda: [one for one in running.backfills() if is_of_instructions(one)], 120)
        page.goto("about:blank")
        wait_for_backfills(running, backfill["id"])
        page.goto(f"{running.url}/assets/instruction_data?view=overview")
        page.wait_for_selector("text=records_in")
        page.goto(f"{running.mlflow_url}/#/models")
        page.wait_for_selector("text=Model")
    done = {
        tag["value"]
        for run in running.runs()
        if run["status"] == "SUCCESS"
        for tag in run["tags"]
        if tag["key"] == "dagster/partition"
    }
    assert wanted <= done


def is_of_instructions(backfill):
    return backfill["assetSelection"] == [{"path": ["instruction_data"]}]


def test_a_person_executes_a_failed_run_again_in_the_browser(running, failed):  # noqa: F811
    with chromium() as page:
        page.goto(f"{running.url}/runs/{failed.run_id}")
        page.get_by_role("button", name="Re-execute").click()
        page.get_by_text("Success", exact=True).first.wait_for()
        again = page.url.rpartition("/")[2]
    assert again != failed.run_id and status_of_run(running, again) == "SUCCESS"

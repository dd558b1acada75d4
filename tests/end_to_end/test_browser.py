"""What a person does in the UI, in a browser, on a root that has only what these tests need."""

from __future__ import annotations

from pathlib import Path

import pytest

from assets.state.chain import CHAIN, descendants
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

NIGHTLY = {"key": "pedigree/automation", "value": "nightly_rebuild"}
pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """A root in which a person made the index of exams for a recipe that asks for automation; another one shares it."""
    root = tmp_path_factory.mktemp("browser")
    ask(root)
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
        page.goto(f"{running.url}/assets/decontaminated_documents?view=automation")
        page.locator("tr", has_text="1 requested").locator("button").click()
        page.get_by_text("it is missing or outdated").first.wait_for()  # a part of the condition
        page.goto(f"{running.url}/automation")
        page.get_by_role("link", name="new_snapshots").click()
        page.locator("tr", has_text="Running").locator("label").click()  # off again


def materialize(page, running, asset, *partitions):
    """Choose these partitions of an asset in the dialog of its page, and launch them."""
    page.goto(f"{running.url}/assets/{asset}?view=partitions")
    wait_for(lambda: set(partitions) <= set(partitions_known(running, asset)), 120)
    page.reload()
    page.get_by_role("button", name="Materialize").first.click()
    page.get_by_text("Select a partition or create one").click()
    for partition in partitions:
        page.get_by_role("dialog").last.locator("label").filter(has_text=partition).first.click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Launch").last.click()


def box(element):
    """Where an element is on the page, once it is there."""
    element.wait_for()
    return element.bounding_box()


def one_run(page, running, asset, partition):
    """Materialize one partition in the dialog, and open the page of the run; return its id."""
    before = {run["runId"] for run in running.runs()}
    materialize(page, running, asset, partition)
    (run,) = wait_for(lambda: [one["runId"] for one in running.runs() if one["runId"] not in before], 120)
    page.goto(f"{running.url}/runs/{run}")
    return run


def test_a_person_backfills_a_range_and_one_partition_of_it_again(running):
    both = ["kitchen-small@kitchen-1", "kitchen-small@kitchen-2"]
    with chromium() as page:
        materialize(page, running, "crawl_archives", *both)
        backfill, *_ = wait_for(lambda: [one for one in running.backfills() if is_of(one, "crawl_archives")], 120)
        wait_for_backfills(running, backfill["id"])
        assert [running.synced("crawl_archives", one)["staleStatus"] for one in both] == ["FRESH", "FRESH"]
        one_run(page, running, "crawl_archives", both[1])
        page.get_by_text("Success", exact=True).first.wait_for()
        page.goto(f"{running.url}/assets/crawl_archives?view=events&partition={both[1]}")
        page.get_by_text("reused_from").first.wait_for()
        page.set_viewport_size({"width": 900, "height": 900})
        page.goto(f"{running.url}/assets/crawl_archives?view=overview")
        checks = box(page.get_by_text("Latest check results"))["x"]
        page.get_by_text(both[1]).first.wait_for()
        names = [one.bounding_box() for one in page.get_by_text(both[1]).all() if one.is_visible()]
        assert names and not [one for one in names if one["x"] < checks < one["x"] + one["width"]]  # it runs into none


def test_an_edit_shows_unsynced_and_its_descendants_alone_until_the_schedule_makes_them_again(running, copied):
    partition = "kitchen-asking@kitchen-1"
    made = [name for name in CHAIN if (copied / "refs" / name / f"{partition}.json").exists()]
    ask(copied, gopher_min_words=60)
    edited = {"filtered_documents"} | descendants("filtered_documents")

    def stale():
        return {name for name in made if running.synced(name, partition).get("staleStatus") == "STALE"}

    wait_for(lambda: stale() == edited.intersection(made), 120, stale)
    assert {"deduplicated_documents", "decontaminated_documents"} <= stale() < set(made)
    with chromium() as page:
        page.goto(f"{running.url}/assets/filtered_documents?view=partitions&partition={partition}")
        page.get_by_text("Unsynced (").first.wait_for()
        page.goto(f"{running.url}/automation")
        page.get_by_role("link", name="nightly_rebuild").click()
        page.get_by_role("button", name="Preview tick result").click()
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("button", name="Launch all").click()
        (backfill,) = wait_for(lambda: [one for one in running.backfills() if NIGHTLY in one["tags"]], 120)
        assert backfill["title"] == "kitchen-asking: what is missing (corpus only, by nightly_rebuild)"
        page.goto("about:blank")
        wait_for_backfills(running, backfill["id"])
    assert {running.synced(name, partition)["staleStatus"] for name in made} == {"FRESH"}


def test_a_person_sees_a_failed_check_with_its_evidence(running, copied):
    ask(copied, min_kept_fraction=0.999)
    with chromium() as page:
        one_run(page, running, "filtered_documents", "kitchen-asking@kitchen-1")
        page.get_by_text("Failure", exact=True).first.wait_for()
        page.goto(f"{running.url}/assets/filtered_documents?view=checks&checkDetail=kept_fraction")
        page.get_by_text("Failed", exact=True).first.wait_for()
        page.get_by_text("0.999", exact=True).first.wait_for()
        page.get_by_text("refused by gate kept_fraction").first.wait_for()
    ask(copied)


def test_a_person_cancels_a_run_and_executes_it_again(running, copied):
    write_recipe(copied, "kitchen-many", snapshots=snapshots(1), kitchen={"pages": 60_000})
    with chromium() as page:
        one_run(page, running, "crawl_archives", "kitchen-many@kitchen-1")
        page.get_by_text("submitted crawl_archives").first.wait_for()  # its job
        page.get_by_role("button", name="Terminate").click()
        page.get_by_role("button", name="Terminate").last.click()
        page.get_by_text("Canceled", exact=True).first.wait_for()
        write_recipe(copied, "kitchen-many", snapshots=snapshots(1))
        page.reload()
        page.get_by_role("button", name="Re-execute").click()
        page.get_by_text("Success", exact=True).first.wait_for()
    assert (copied / "refs" / "crawl_archives" / "kitchen-many@kitchen-1.json").exists()


def ask(root, **limits):
    """Let the recipe that asks for automation have these limits of its filter."""
    automation = {"rebuild": "corpus", "node_hours_per_day": 1.0}
    changes = {"filter": limits} if limits else {}
    write_recipe(root, "kitchen-asking", snapshots=snapshots(1), automation=automation, **changes)


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
        (backfill,) = wait_for(lambda: [one for one in running.backfills() if is_of(one, "instruction_data")], 120)
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


def is_of(backfill, asset):
    return backfill["assetSelection"] == [{"path": [asset]}]


def test_a_person_executes_a_failed_run_again_in_the_browser(running, failed):  # noqa: F811
    with chromium() as page:
        page.goto(f"{running.url}/runs/{failed.run_id}")
        page.get_by_role("button", name="Re-execute").click()
        page.get_by_text("Success", exact=True).first.wait_for()
        again = page.url.rpartition("/")[2]
    assert again != failed.run_id and status_of_run(running, again) == "SUCCESS"

"""The UI, the daemon and automation, really running."""

from __future__ import annotations

import http.client
import shutil
from pathlib import Path

import pytest
import yaml

from assets.chain import CHAIN
from assets.recipe_folders import load_recipe
from assets.status import compare, write_reference
from tests.end_to_end.conftest import RECIPES
from tests.end_to_end.dagster_dev import OVER, services, wait_for
from tests.hook import webhook

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def copied(first, untouched, tmp_path_factory):
    """A root with the small kitchen's artifacts and a Dagster instance of its own."""
    assert first.code == 0, first.errors
    copy = tmp_path_factory.mktemp("services")
    for name in ("refs", *(name for name in CHAIN if (untouched / name).exists())):
        shutil.copytree(untouched / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def hook():
    """The webhook that the profile names."""
    with webhook() as served:
        yield served


@pytest.fixture(scope="module")
def running(copied, hook):
    (copied / "told.yaml").write_text('name: told\nnotify: {webhook: "${HOOK}"}\n')
    with services(copied, "--profile", str(copied / "told.yaml"), HOOK=hook.address) as found:
        yield found


def write_recipe(root: Path, name: str, **changes):
    """A recipe of this root: the small kitchen with changes."""
    data = yaml.safe_load((RECIPES / "kitchen-small.yaml").read_text("utf-8"))
    for section, values in changes.items():
        data[section] = {**data[section], **values} if isinstance(values, dict) and section in data else values
    data["name"] = name
    (root / "recipes").mkdir(exist_ok=True)
    (root / "recipes" / f"{name}.yaml").write_text(yaml.safe_dump(data))


def partitions_known(running, asset):
    query = "query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { partitionKeys } } }"
    return running.ask(query, key={"path": [asset]})["assetNodeOrError"]["partitionKeys"]


def test_the_web_server_answers_this_machine_s_own_pages_alone(running):
    ask = b'{"query": "{ version }"}'
    own, foreign = {"Content-Type": "application/json"}, {"Content-Type": "application/json", "Host": "evil.example"}
    assert status_of(running.url, "/graphql", ask, own) == 200
    assert status_of(running.url, "/graphql", ask, {**own, "Host": "localhost:1234"}) == 200
    assert status_of(running.url, "/graphql", ask, foreign) == 403
    assert status_of(running.url, "/graphql", ask, {**own, "Origin": "http://evil.example"}) == 403
    assert status_of(running.url, "/graphql?query={version}", None, {"Accept": "image/*"}) == 403
    assert status_of(running.url, "/", None, {"Host": "evil.example"}) == 403
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": "graphql-ws",
    }
    assert status_of(running.url, "/graphql", None, {**upgrade, "Origin": running.url}) == 101
    assert status_of(running.url, "/graphql", None, {**upgrade, "Origin": "http://evil.example"}) == 403
    assert status_of(running.url, "/graphql", None, {**upgrade, "Host": "evil.example"}) == 403


def status_of(url, path, body, headers):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_failed_gate_holds_across_the_snapshot_to_recipe_boundary_of_a_backfill(running, copied):
    write_recipe(copied, "kitchen-gated", filter={"min_kept_fraction": 0.999})
    wait_for(lambda: "kitchen-gated" in partitions_known(running, "tokenizer"), 120)
    snapshots = ["kitchen-gated@kitchen-1", "kitchen-gated@kitchen-2"]
    recipe = load_recipe(str(copied / "recipes" / "kitchen-gated.yaml"))
    for cell in compare(recipe, copied).cells.values():
        if cell.artifact is not None:  # what it shares with the small kitchen
            write_reference(copied, cell.artifact, cell.partition)
    for assets, partitions in (
        (["extracted_documents", "filtered_documents", "document_signatures"], snapshots),
        (["deduplicated_documents", "decontaminated_documents"], snapshots),
        (["tokenizer"], ["kitchen-gated"]),
    ):
        backfill = running.launch_backfill(assets, partitions)
        wait_for(lambda b=backfill: next(one for one in running.backfills() if one["id"] == b)["status"] in OVER, 240)
    cells = compare(recipe, copied).cells
    filtered = [cells["filtered_documents", partition].artifact for partition in snapshots]
    assert all(made is not None and made.failed_gates for made in filtered)
    assert cells["deduplicated_documents", snapshots[0]].artifact is None
    assert cells["tokenizer", "kitchen-gated"].artifact is None


def test_the_webhook_hears_of_the_runs_that_the_gate_refused(running, hook):
    def refused():
        return [one for one in hook.messages if (one["kind"], one["asset"]) == ("refused", "filtered_documents")]

    message = wait_for(refused, 120, lambda: hook.messages)[0]
    assert message["recipe"] == "kitchen-gated" and "kept_fraction" in message["cause"]
    assert message["link"].rpartition("/")[2] in {run["runId"] for run in running.runs()}


def test_an_edited_threshold_is_unsynced_where_it_is_read_and_nothing_else_is(running, copied):
    write_recipe(copied, "kitchen-gated", filter={"min_kept_fraction": 0.999, "gopher_min_words": 60})
    partition = "kitchen-gated@kitchen-1"
    node = wait_for(lambda: is_stale(running.synced("filtered_documents", partition)), 120)
    assert [cause["key"]["path"] for cause in node["staleCauses"]] == [["filtered_documents_settings"]]
    assert running.synced("extracted_documents", partition)["staleStatus"] == "FRESH"
    assert running.synced("tokenizer", "kitchen-gated")["staleStatus"] == "MISSING"  # as before: it was never made


def is_stale(node):
    return node if node.get("staleStatus") == "STALE" else None  # not found while the definitions load again


def test_the_sensor_notices_a_new_snapshot_and_backfills_what_a_recipe_asks_for_and_nothing_else(running, copied):
    """`kitchen-gated` was run too and lacks most of its assets, but does not ask for automation."""
    snapshots = [{"name": f"kitchen-{i}", "source": "kitchen", "label": "web"} for i in (1, 2, 3)]
    asked = {"rebuild": "corpus", "node_hours_per_day": 10}
    write_recipe(copied, "kitchen-small", snapshots=snapshots, automation=asked)
    wait_for(lambda: "kitchen-small@kitchen-3" in partitions_known(running, "crawl_archives"), 120)
    recipe = load_recipe(str(copied / "recipes" / "kitchen-small.yaml"))
    before = compare(recipe, copied)
    missing = {cell.key for cell in before.to_do() if CHAIN[cell.asset].group == "corpus"}
    assert {partition for _, partition in missing} == {"kitchen-small@kitchen-3"}
    known = {one["id"] for one in running.backfills()}
    running.start_sensor("new_snapshots")

    def launched():
        return [one for one in running.backfills() if one["id"] not in known]

    backfill = wait_for(launched, 180)[0]
    assert backfill["title"] == "kitchen-small: what is missing (corpus only, by new_snapshots)"
    assert {"key": "pedigree/automation", "value": "new_snapshots"} in backfill["tags"]
    wait_for(lambda: launched()[0]["status"] in OVER, 600, lambda: (launched(), running.runs()[:3]))
    assert len(launched()) == 1
    after = compare(recipe, copied)
    assert {cell.key for cell in after.to_do()} == {cell.key for cell in before.to_do()} - missing
    made = {cell.key for cell in after.cells.values() if cell.artifact and cell.key in missing}
    assert made == missing
    untouched = [cell for cell in before.cells.values() if cell.artifact and cell.key not in missing]
    assert untouched
    assert all(after.cells[cell.key].artifact.path == cell.artifact.path for cell in untouched)
    assert not any((copied / "refs").glob("*/kitchen-small-leak*.json"))


@pytest.mark.browser
def test_a_person_launches_a_partition_backfill_in_the_browser(running, copied, tmp_path):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("waits for Chromium: install the package `chromium`")
    from playwright.sync_api import sync_playwright

    known = {one["id"] for one in running.backfills()}
    with sync_playwright() as play:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]
        browser = play.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        page.set_default_timeout(120_000)
        page.goto(f"{running.url}/asset-groups")
        page.wait_for_selector("text=corpus")
        page.goto(f"{running.url}/assets/instruction_data?view=partitions")
        page.wait_for_selector("text=kitchen-small-rl")
        page.get_by_role("button", name="Materialize").first.click()
        page.get_by_role("button", name="Missing", exact=True).click()
        page.get_by_role("button", name="Launch backfill").last.click()
        backfill = wait_for(lambda: [one for one in running.backfills() if one["id"] not in known], 120)[0]
        wait_for(lambda: next(one for one in running.backfills() if one["id"] == backfill["id"])["status"] in OVER, 300)
        page.goto(f"{running.url}/assets/instruction_data?view=overview")
        page.wait_for_selector("text=records_in")
        page.goto(f"{running.mlflow_url}/#/models")
        page.wait_for_selector("text=Model")
        browser.close()
    done = {
        tag["value"]
        for run in running.runs()
        if run["status"] == "SUCCESS"
        for tag in run["tags"]
        if tag["key"] == "dagster/partition"
    }
    assert {"kitchen-small-leak", "kitchen-small-rl"} <= done

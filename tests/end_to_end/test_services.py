"""The UI, the daemon and automation, really running; test_browser.py is what a person does in the UI."""

from __future__ import annotations

import fcntl
import http.client
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from assets.state.cell import Comparison
from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from tests.assets.fabricate import point_to_shared
from tests.browser import chromium
from tests.end_to_end.dagster_dev import OVER, services, wait_for
from tests.hook import webhook
from tests.small_kitchen import RECIPES, pedigree
from training.recipe.recipe import Recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


# What is made of data alone, and so before the first model.
DATA = [
    name for name, declared in CHAIN.items() if declared.stage.package == "training" and not declared.stage.by_a_model
]
SENSOR = {"key": "pedigree/automation", "value": "new_snapshots"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The root of the services, with a Dagster instance of its own."""
    return tmp_path_factory.mktemp("services")


@pytest.fixture(scope="module")
def hook():
    """The webhook that the profile names."""
    with webhook() as served:
        yield served


@pytest.fixture(scope="module")
def running(place, hook):
    (place / "told.yaml").write_text('name: told\nnotify: {webhook: "${HOOK}"}\n')
    with services(place, "--profile", str(place / "told.yaml"), HOOK=hook.address) as found:
        yield found


@pytest.fixture(scope="module")
def copied(request, shared, root, untouched, place, running):
    """The same root with the small kitchen's data, as soon as that is made: another process may be at the models."""
    if not is_held(shared / "kitchen-small.lock"):
        request.getfixturevalue("first")
    over, last = shared / "kitchen-small.json", Path("refs", "training_plan", "kitchen-small.json")
    wait_for(lambda: over.exists() or (root / last).exists(), 600)
    source = untouched if over.exists() else root
    for name in (name for name in DATA if (source / name).exists()):
        # References first, else the sensor of shared artifacts can see an artifact that no recipe seems to have made.
        shutil.copytree(source / "refs" / name, place / "refs" / name)
        shutil.copytree(source / name, place / name)
    assert (place / last).exists()
    return place


def is_held(lock: Path) -> bool:
    """Whether a process holds this lock: it is making the small kitchen."""
    with lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@dataclass(frozen=True)
class Gated:
    """A recipe whose filter keeps too little, and the backfill that the daemon was asked for."""

    recipe: Recipe
    backfill: str


@dataclass(frozen=True)
class Nightly:
    """A shipped recipe that asks for automation and has a new snapshot, before the sensor was switched on."""

    recipe: Recipe
    before: Comparison


@pytest.fixture(scope="module")
def nightly(copied) -> Nightly:
    recipe = load_recipe("kitchen-nightly")
    point_to_shared(recipe, copied)
    return Nightly(recipe, compare(recipe, copied))


@pytest.fixture(scope="module")
def gated(running, copied, tmp_path_factory) -> Gated:
    aside = tmp_path_factory.mktemp("aside")  # not seen by the sensor of shared artifacts before references are written
    for place in (aside, copied):
        write_recipe(place, "kitchen-gated", snapshots=snapshots(1), filter={"min_kept_fraction": 0.999})
        recipe = load_recipe(str(place / "recipes" / "kitchen-gated.yaml"))
        point_to_shared(recipe, copied)
    wait_for(lambda: "kitchen-gated@kitchen-1" in partitions_known(running, "crawl_archives"), 120)
    assets = ["extracted_documents", "filtered_documents", "document_signatures"]
    return Gated(recipe, running.launch_backfill(assets, ["kitchen-gated@kitchen-1"]))


def snapshots(*numbers):
    """Snapshots of the kitchen, as a recipe lists them."""
    return [{"name": f"kitchen-{number}", "source": "kitchen", "label": "web"} for number in numbers]


def wait_for_backfills(running, *ids):
    """Wait until these backfills are over."""

    def are_over():
        states = {one["id"]: one["status"] for one in running.backfills()}
        return all(states[one] in OVER for one in ids)

    # Each look costs the web server processor time that the runs lack.
    wait_for(are_over, 600, lambda: (running.backfills(), running.runs()[:3]), every=2.0)


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
    found = running.ask(query, key={"path": [asset]})["assetNodeOrError"]
    return found.get("partitionKeys", [])  # not found while the definitions load again


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


def by_the_sensor(running):
    """The backfills that the sensor added."""
    return [one for one in running.backfills() if SENSOR in one["tags"]]


def test_the_sensor_notices_a_new_snapshot_and_backfills_what_a_recipe_asks_for_and_nothing_else(
    running, copied, nightly
):
    """The small kitchen was run too and lacks its models, but does not ask for automation."""
    missing = {cell.key for cell in nightly.before.to_do() if CHAIN[cell.asset].group == "corpus"}
    assert {partition for _, partition in missing} == {"kitchen-nightly@kitchen-3"}
    running.start_sensor("new_snapshots")
    (backfill,) = wait_for(lambda: by_the_sensor(running), 300)
    assert {"key": "pedigree/recipe", "value": "kitchen-nightly"} in backfill["tags"]
    wait_for_backfills(running, backfill["id"])
    assert by_the_sensor(running)[1:] == []
    after = compare(nightly.recipe, copied)
    assert {cell.key for cell in after.to_do()} == {cell.key for cell in nightly.before.to_do()} - missing
    assert {cell.key for cell in after.cells.values() if cell.artifact and cell.key in missing} == missing
    kept = [cell for cell in nightly.before.cells.values() if cell.artifact and cell.key not in missing]
    assert kept and all(after.cells[cell.key].artifact.path == cell.artifact.path for cell in kept)
    assert not list((copied / "refs").glob("*/kitchen-small-leak*.json"))


@pytest.mark.browser
def test_a_person_sees_that_a_variant_that_never_ran_has_what_its_base_made(running, copied):
    variant = "kitchen-small-rl"
    with chromium() as page:
        page.goto(f"{running.url}/assets/training_plan?view=events&partition={variant}")
        page.get_by_text("Made for [kitchen-small]; this recipe asks for the same.").wait_for()
    assert running.synced("training_plan", variant)["staleStatus"] == "MISSING"  # an observation is no news
    assert not list((copied / "refs").glob(f"*/{variant}.json"))  # so it does not count as run


def test_a_failed_gate_holds_across_the_snapshot_to_recipe_boundary_of_a_backfill(running, copied, gated):
    wait_for_backfills(running, gated.backfill)
    later = [
        running.launch_backfill(["deduplicated_documents", "decontaminated_documents"], ["kitchen-gated@kitchen-1"]),
        running.launch_backfill(["tokenizer"], ["kitchen-gated"]),
    ]
    wait_for_backfills(running, *later)
    cells = compare(gated.recipe, copied).cells
    filtered = cells["filtered_documents", "kitchen-gated@kitchen-1"].artifact
    assert filtered is not None and filtered.failed_gates
    assert cells["deduplicated_documents", "kitchen-gated@kitchen-1"].artifact is None
    assert cells["tokenizer", "kitchen-gated"].artifact is None


def test_the_webhook_hears_of_the_run_that_the_gate_refused(running, hook, gated):
    def refused():
        return [one for one in hook.messages if (one["kind"], one["asset"]) == ("refused", "filtered_documents")]

    message = wait_for(refused, 120, lambda: hook.messages)[0]
    assert message["recipe"] == "kitchen-gated" and "kept_fraction" in message["cause"]
    assert message["link"].rpartition("/")[2] in {run["runId"] for run in running.runs()}


@dataclass(frozen=True)
class Failed:
    """A run of a command that failed for a line of a data file, which was mended afterwards."""

    run_id: str
    recipe: Recipe


@pytest.fixture
def failed(running, copied, tmp_path) -> Failed:
    turns = tmp_path / "turns.jsonl"
    turns.write_text("no JSON\n")
    write_recipe(tmp_path, "kitchen-mended", snapshots=snapshots(1), sft={"data": [{"uri": str(turns)}]})
    path = tmp_path / "recipes" / "kitchen-mended.yaml"
    point_to_shared(load_recipe(str(path)), copied)
    ran = pedigree("run", str(path), "--until", "instruction_data", root=copied)
    assert ran.code == 2 and "turns.jsonl" in ran.answer["error"]
    wait_for(lambda: "kitchen-mended" in partitions_known(running, "instruction_data"), 120)
    messages = [{"role": "user", "content": "How hot?"}, {"role": "assistant", "content": "Very hot."}]
    turns.write_text(json.dumps({"messages": messages}) + "\n")
    run = next(one for one in runs_of(running, "kitchen-mended") if one["status"] == "FAILURE")
    return Failed(run_id=run["runId"], recipe=load_recipe(str(path)))


def runs_of(running, recipe):
    """The runs of one recipe's partition, newest first."""
    return [one for one in running.runs() if {"key": "dagster/partition", "value": recipe} in one["tags"]]


def test_a_failed_run_of_a_command_is_executed_again_from_the_ui(running, copied, failed):
    again = running.execute_again(failed.run_id, "FROM_FAILURE")
    wait_for(lambda: status_of_run(running, again) in ("SUCCESS", "FAILURE"), 300, running.runs)
    assert status_of_run(running, again) == "SUCCESS"
    assert compare(failed.recipe, copied).cells["instruction_data", "kitchen-mended"].state == "made"


def status_of_run(running, run_id):
    return next(one["status"] for one in running.runs() if one["runId"] == run_id)


def test_an_edited_threshold_is_unsynced_where_it_is_read_and_nothing_else_is(running, copied, gated):
    stricter = {"min_kept_fraction": 0.999, "gopher_min_words": 60}
    write_recipe(copied, "kitchen-gated", snapshots=snapshots(1), filter=stricter)
    partition = "kitchen-gated@kitchen-1"
    node = wait_for(lambda: is_stale(running.synced("filtered_documents", partition)), 120)
    assert [cause["key"]["path"] for cause in node["staleCauses"]] == [["recipes"]]
    assert running.synced("extracted_documents", partition)["staleStatus"] == "FRESH"
    assert running.synced("tokenizer", "kitchen-gated")["staleStatus"] == "MISSING"  # as before: it was never made


def is_stale(node):
    return node if node.get("staleStatus") == "STALE" else None  # nothing is said while the definitions load again

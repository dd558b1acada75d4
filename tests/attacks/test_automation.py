"""Attacks on what goes on without a person: cancelled runs, killed watchers, automation that nobody asked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import pytest

from assets.definitions import definitions
from assets.graph.bill import BILL_FILE, attempts
from assets.graph.bill import node_hours as hours_of
from assets.graph.budget import AUTOMATION_TAG, RECIPE_TAG, node_hours
from assets.graph.pipeline import Pipeline
from assets.run.automation import add_backfills
from assets.services.stores import dagster_home
from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from resources.profile import load_profile
from tests.assets.fabricate import make_one
from tests.end_to_end.dagster_dev import wait_for
from tests.hook import SECRET, webhook
from tests.small_kitchen import RECIPES

ARGUMENTS = ("run", "kitchen-small", "--snapshots", "kitchen-1", "--until", "crawl_archives", "--json")


def start(root: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """`pedigree run` of one short stage, as a person starts it in a terminal."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from assets.commands.cli import main; main()",
            *ARGUMENTS,
            "--root",
            str(root),
            *options,
        ],
        env={**os.environ, "PEDIGREE_RECIPES": str(RECIPES), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def stopped_job(root: Path) -> Iterator[int]:
    """The job that runs under `root`, held still from the moment it appears, so that nothing depends on its speed."""
    (process_file,) = wait_for(lambda: list(root.glob("crawl_archives/*/process.json")), 120, every=0.01)
    pid = json.loads(process_file.read_text("utf-8"))["pid"]
    os.killpg(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)


def said(root: Path, words: str) -> list[str]:
    """The lines with these words in the logs of Dagster's runs of this root."""
    with dg.DagsterInstance.from_config(str(root / "dagster")) as instance:
        entries = [entry for run in instance.get_runs() for entry in instance.all_logs(run.run_id)]
    return [entry.user_message for entry in entries if words in entry.user_message]


@pytest.mark.slow
def test_a_job_that_two_terminals_wait_for_outlives_the_ctrl_c_in_one_of_them(tmp_path):
    first = start(tmp_path)
    with stopped_job(tmp_path) as job:
        second = start(tmp_path)
        wait_for(lambda: said(tmp_path, "going on watching it"), 120)
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=120)
        assert first.returncode == 130
        os.kill(job, 0)  # it is there
    out, other_errors = second.communicate(timeout=120)
    assert second.returncode == 0, (out, other_errors)
    made = json.loads(out.splitlines()[-1])["assets"]["crawl_archives"]["kitchen-small@kitchen-1"]
    assert (
        "the job goes on, watched by run " in errors and "error: interrupted by Ctrl-C; what is finished" in errors
    ), errors
    assert "the job goes on" in other_errors
    assert not list(Path(made["uri"]).glob("watchers*")) and said(tmp_path, "submitted crawl_archives")[1:] == []


# Automation


def tick(root: Path, instance: dg.DagsterInstance) -> dg.RunRequest | dg.SkipReason:
    """What the sensor that launches backfills answers under `root`."""
    loaded = definitions(root, "local")
    sensor = next(one for one in loaded.sensors if one.name == "new_snapshots")
    context = dg.build_sensor_context(instance=instance, repository_def=loaded.get_repository_def())
    with context:
        data = sensor.evaluate_tick(context)
    return data.run_requests[0] if data.run_requests else dg.SkipReason(data.skip_message)


def make_by_hand(root: Path, name: str, *assets: str) -> None:
    for asset in assets:
        comparison = compare(load_recipe(name, recipe_folders(root)), root)
        make_one(comparison, next(cell for cell in comparison.cells.values() if cell.asset == asset))


def test_two_assets_made_by_hand_start_nothing(tmp_path):
    make_by_hand(tmp_path, "kitchen-rl", "crawl_archives", "extracted_documents")
    with dg.instance_for_test() as instance:
        assert isinstance(tick(tmp_path, instance), dg.SkipReason)


@pytest.mark.data
def test_the_shipped_recipe_that_asks_for_it_gets_a_backfill_of_its_corpus_alone(tmp_path):
    make_by_hand(tmp_path, "webdocs", "crawl_archives")  # of its first snapshot: a person began it
    with dg.instance_for_test() as instance:
        assert isinstance(tick(tmp_path, instance), dg.RunRequest)
        graph = definitions(tmp_path, "local").resolve_asset_graph()
        (line,) = add_backfills(instance, graph, tmp_path, load_profile("local"), "nightly_rebuild")
        (backfill,) = instance.get_backfills()
        assert "webdocs: what is missing (corpus only, by nightly_rebuild)" in line
        data = backfill.asset_backfill_data
        asked = {(one.asset_key.path[-1], one.partition_key) for one in data.target_subset.iterate_asset_partitions()}
        made = ("crawl_archives", "webdocs@snapshot-1")
        cells = compare(load_recipe("webdocs", recipe_folders(tmp_path)), tmp_path).cells
        assert asked == {key for key in cells if CHAIN[key[0]].group == "corpus"} - {made}
        assert ("decontaminated_documents", "webdocs@snapshot-2") in asked
        assert isinstance(tick(tmp_path, instance), dg.SkipReason)  # one is open


ADD = """
import sys
from pathlib import Path
import dagster as dg
from assets.run.automation import add_backfills
from assets.definitions import definitions
from resources.profile import load_profile
root = Path(sys.argv[1])
graph = definitions(root, "local").resolve_asset_graph()
with dg.DagsterInstance.from_config(str(root / "dagster")) as instance:
    print("ready", flush=True)
    sys.stdin.readline()
    print("; ".join(add_backfills(instance, graph, root, load_profile("local"), "a tick")))
"""


@pytest.mark.slow
def test_ticks_that_come_at_the_same_moment_add_one_backfill(tmp_path, times):
    ask_for_automation(tmp_path, "{rebuild: all, node_hours_per_day: 1}")
    make_by_hand(tmp_path, "asking", "crawl_archives")
    with dg.DagsterInstance.from_config(str(dagster_home(tmp_path))) as instance:
        argv = [sys.executable, "-c", ADD, str(tmp_path)]
        ticks = [
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(times(short=2, long=8))
        ]
        assert all(one.stdout.readline() == "ready\n" for one in ticks)
        for one in ticks:
            one.stdin.write("go\n")
            one.stdin.flush()
        answers = [one.communicate(timeout=240)[0] for one in ticks]
        assert sorted(answer.split()[0] for answer in answers) == ["added", *["asking:"] * (len(ticks) - 1)]
        assert len(instance.get_backfills()) == 1


@pytest.mark.slow
def test_a_spent_budget_launches_nothing_and_stops_what_is_under_way(tmp_path, monkeypatch):
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))
    ask_for_automation(tmp_path, "{rebuild: all, node_hours_per_day: 1}", base="kitchen-small")
    with dg.DagsterInstance.from_config(str(dagster_home(tmp_path))) as instance:
        assert materialize(tmp_path, instance, "crawl_archives", "asking@kitchen-1").success
        assert isinstance(tick(tmp_path, instance), dg.RunRequest)
        ask_for_automation(tmp_path, "{rebuild: all, node_hours_per_day: 1.0e-9}", base="kitchen-small")
        said = tick(tmp_path, instance)
        assert isinstance(said, dg.SkipReason) and "budget of asking" in said.skip_message
        stopped = materialize(tmp_path, instance, "extracted_documents", "asking@kitchen-1")
        assert "budget of asking" in failure_of(stopped)
        assert not list(tmp_path.glob("extracted_documents/*/process.json"))
        promotion = materialize(tmp_path, instance, "promoted_model", "asking")
        assert "automation make promoted_model" in failure_of(promotion)


@pytest.mark.slow
def test_the_budget_counts_what_failed_attempts_had_and_no_attempt_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))
    ask_for_automation(tmp_path, "{rebuild: all, node_hours_per_day: 1}", base="kitchen-small")
    recipe, failed = load_recipe(str(tmp_path / "recipes" / "asking.yaml")), threading.Event()

    def kill_each_attempt() -> None:
        while not failed.wait(0.01):
            for path in tmp_path.glob(f"crawl_archives/*/{BILL_FILE}"):
                for last in attempts(path.parent)[-1:]:  # none: the file is made, its first line is not yet written
                    with suppress(ProcessLookupError):
                        last["end"] or os.kill(int(last["attempt"].partition("@")[0]), signal.SIGKILL)

    with dg.DagsterInstance.from_config(str(dagster_home(tmp_path))) as instance:
        killer = threading.Thread(target=kill_each_attempt)
        killer.start()
        assert not materialize(tmp_path, instance, "crawl_archives", "asking@kitchen-1").success
        failed.set()
        killer.join()
        (bill,) = tmp_path.glob(f"crawl_archives/*/{BILL_FILE}")
        lost = attempts(bill.parent)
        assert len(lost) > 1 and {one["cause"] for one in lost} == {"lost"}
        after_failure = node_hours(instance, recipe, load_profile("local"))
        assert after_failure == pytest.approx(hours_of(lost), rel=1e-4) and after_failure > 0
        assert materialize(tmp_path, instance, "crawl_archives", "asking@kitchen-1").success
        spent = node_hours(instance, recipe, load_profile("local"))
        assert spent == pytest.approx(hours_of(attempts(bill.parent)), rel=1e-4) and spent > after_failure


def failure_of(run: dg.ExecuteInProcessResult) -> str:
    """What the failed step of a run said: its description, or else the whole error."""
    data = next(event for event in run.all_events if event.is_step_failure).step_failure_data
    return data.user_failure_data.description if data.user_failure_data else str(data.error)


def ask_for_automation(root: Path, automation: str, *, base: str = "kitchen") -> None:
    (root / "recipes").mkdir(exist_ok=True)
    text = f"extends: {base}\nname: asking\nautomation: {automation}\n"
    (root / "recipes" / "asking.yaml").write_text(text)


def materialize(root: Path, instance: dg.DagsterInstance, asset: str, partition: str) -> dg.ExecuteInProcessResult:
    """As one run of automation's backfill does it."""
    loaded = definitions(root, "local")
    chosen = next(one for one in loaded.assets if isinstance(one, dg.AssetsDefinition) and one.key.path[-1] == asset)
    return dg.materialize(
        [chosen],
        partition_key=partition,
        instance=instance,
        resources={"pipeline": Pipeline(root=str(root))},
        tags={AUTOMATION_TAG: "new_snapshots", RECIPE_TAG: "asking"},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        raise_on_error=False,
    )


# Notices


@pytest.mark.slow
def test_a_run_that_fails_tells_the_webhook_once_and_its_address_is_written_nowhere(tmp_path):
    profile = tmp_path / "told.yaml"
    profile.write_text('name: told\nnotify: {webhook: "${HOOK}"}\ndefault: {retries: 0}\n')
    root = tmp_path / "root"
    with webhook() as hook:
        hook.answers = [503]
        run = start(root, "--profile", str(profile), HOOK=hook.address)
        with stopped_job(root) as job:
            os.killpg(job, signal.SIGKILL)
        out, errors = run.communicate(timeout=240)
    assert run.returncode == 1, errors
    first, again = hook.messages
    assert first == again and (first["kind"], first["asset"]) == ("failed", "crawl_archives")
    assert first["recipe"] == "kitchen-small" and "/runs/" in first["link"]
    assert first["cause"] == json.loads(out.splitlines()[-1])["error"].strip()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in written and SECRET not in out + errors

"""Cells side by side, with real jobs.

A lease that the test holds makes the job of a cell wait as long as the test wants. If one cell waited for another, the
test would not end, and the time limit of all tests would end it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from assets.run.run import run_recipe
from assets.run.schedule import Schedule
from assets.services.stores import opened_instance
from assets.state.cell import Cell
from assets.state.chain import CHAIN, trains
from assets.state.compare import compare
from assets.state.liveness import watchers_of
from assets.state.recipe_folders import load_recipe
from resources import notify
from resources.compute.base import HANDLE_FILE
from training.contract import artifact
from training.contract.process.lifetime import start_of
from training.contract.records import varied
from training.contract.running.lease import Lease

pytestmark = pytest.mark.usefixtures("without_writer")

RECIPE = Path(__file__).parents[2] / "recipes" / "kitchen-small.yaml"
UNTIL = "extracted_documents"
ONE, TWO = "kitchen-small@kitchen-1", "kitchen-small@kitchen-2"


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "side.yaml"
    path.write_text("name: side\npartitions_at_once: 2\n")
    return str(path)


def folder_of(root: Path, asset: str, partition: str) -> Path:
    cell = compare(load_recipe(str(RECIPE)), root).cells[asset, partition]
    return artifact.folder_of(root, asset, cell.fingerprint)


def held(root: Path, partition: str) -> Lease:
    folder = folder_of(root, "crawl_archives", partition)
    folder.mkdir(parents=True)
    return Lease(folder)


class Told:
    """The announcements of a run; `when` maps (kind, asset, partition) to what is done at the first such one."""

    def __init__(self, when):
        self.seen: list[tuple[str, str, str]] = []
        self._when = when

    def __call__(self, kind: str, cell: Cell, values: dict) -> None:
        one = (kind, cell.asset, cell.partition)
        first = one not in self.seen
        self.seen.append(one)
        if first and one in self._when:
            self._when[one]()


def run(root, profile, told):
    return run_recipe(load_recipe(str(RECIPE)), root, profile=profile, until=UNTIL, snapshots=(), announce=told)


def test_a_snapshot_is_made_while_another_one_waits(tmp_path, profile):
    root = tmp_path / "root"
    with held(root, ONE) as lease:
        told = Told({("made", UNTIL, TWO): lambda: lease.__exit__()})
        report = run(root, profile, told)
    assert (report.exit_code, report.error) == (0, "")
    made = [(asset, partition) for kind, asset, partition in told.seen if kind == "made"]
    assert made == [("crawl_archives", TWO), (UNTIL, TWO), ("crawl_archives", ONE), (UNTIL, ONE)]
    assert {partition for partitions in report.assets.values() for partition in partitions} == {ONE, TWO}


def test_after_a_failure_nothing_new_begins_and_what_is_under_way_goes_on(tmp_path, profile, monkeypatch, hook):
    root = tmp_path / "root"
    monkeypatch.setenv("HOOK", hook.address)
    Path(profile).write_text(Path(profile).read_text() + "notify: {webhook: '${HOOK}', ui: https://ui.example}\n")
    with held(root, ONE):
        place = folder_of(root, "crawl_archives", ONE)

        def kill():
            while not watchers_of(place):
                time.sleep(0.1)
            pid = watchers_of(place)[0].pid
            os.kill(pid, signal.SIGKILL)
            while start_of(pid):  # until its end can be heard
                time.sleep(0.1)

        told = Told({("started", "crawl_archives", TWO): kill})
        report = run(root, profile, told)
    assert report.exit_code == 1
    assert report.error == f"the process that made crawl_archives [{ONE}] was killed"
    assert {asset: list(made) for asset, made in report.assets.items()} == {"crawl_archives": [TWO]}
    assert told.seen.index(("failed", "crawl_archives", ONE)) < told.seen.index(("made", "crawl_archives", TWO))
    assert not any(asset == UNTIL for kind, asset, _ in told.seen if kind == "started")
    with opened_instance(root) as instance:
        runs = {run.tags["dagster/partition"]: run for run in instance.get_runs()}
    assert {partition: run.status.value for partition, run in runs.items()} == {ONE: "FAILURE", TWO: "SUCCESS"}
    notify.finish()
    (message,) = hook.messages
    assert (message["kind"], message["asset"], message["partition"]) == ("failed", "crawl_archives", ONE)
    assert message["cause"] == report.error and message["link"] == f"https://ui.example/runs/{runs[ONE].run_id}"


def test_a_signal_ends_all_jobs_with_one_sentence(tmp_path, profile):
    """Ctrl-C interrupts a command in the same way; test_interrupt.py and test_faults.py try both."""
    root = tmp_path / "root"
    with held(root, ONE), held(root, TWO):
        places = [folder_of(root, "crawl_archives", partition) for partition in (ONE, TWO)]
        argv = ["run", str(RECIPE), "--until", UNTIL, "--profile", profile, "--root", str(root), "--json"]
        command = subprocess.Popen(
            [sys.executable, "-c", "from assets.commands.cli import main; main()", *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while not all((place / HANDLE_FILE).exists() for place in places):  # a job to end, not only a watcher
            assert command.poll() is None, command.communicate()
            time.sleep(0.1)
        watching = [watchers_of(place)[0].pid for place in places]
        assert len({command.pid, *watching}) == 3
        command.send_signal(signal.SIGTERM)
        said, shown = command.communicate()
    assert command.returncode == 128 + signal.SIGTERM, shown
    assert json.loads(said)["error"].startswith("ended by SIGTERM")
    assert shown.count("was cancelled and no other one watches the job") == 2, shown
    assert not any(watchers_of(place) for place in places)
    assert not any(Path(f"/proc/{pid}").exists() for pid in watching)


def test_only_so_many_trainings_as_the_pool_allows_go_on_at_once(tmp_path):
    comparison = compare(load_recipe(str(RECIPE)), tmp_path)
    ready = [replace(cell, inputs=(), guards=()) for cell in comparison.cells.values()]
    training = [cell for cell in ready if trains(CHAIN[cell.asset])][:2]
    data = next(cell for cell in ready if not trains(CHAIN[cell.asset]))

    def next_one(trainings: int, *left: Cell) -> list[Cell]:
        schedule = Schedule(look=lambda: comparison, left_in=lambda seen: list(left), at_once=4, trainings=trainings)
        return schedule.next_group([[training[0]]])

    assert next_one(1, *training) == []
    assert next_one(1, *training, data) == [data]
    assert next_one(2, *training, data) == [training[1]]


@pytest.mark.parametrize(("later", "expected"), [((), ["kept_steps", "step_scores"]), ((2,), ["kept_steps"])])
def test_a_group_has_only_assets_with_the_same_partitions(tmp_path, later, expected):
    """With kept steps of two trainings, `step_scores` has partitions that `kept_steps` has not."""
    keeps = {"pretrain": {"keep": {"steps": (3,)}}, "align": {"keep": {"steps": later}}}
    comparison = compare(varied(load_recipe("kitchen"), keeps), tmp_path)
    cells = [replace(cell, inputs=(), guards=()) for cell in comparison.cells.values()]
    left = [cell for cell in cells if cell.partition == "kitchen@step-3"]
    assert [cell.asset for cell in left] == ["kept_steps", "step_scores"]
    schedule = Schedule(look=lambda: comparison, left_in=lambda seen: left)
    assert [cell.asset for cell in schedule.next_group([])] == expected

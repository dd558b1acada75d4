"""Who watches a job, by real processes that join, leave and are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assets.materialize.watchers import Watching, tidy
from assets.run.run import run_recipe
from assets.state.compare import compare
from assets.state.liveness import WATCHERS_FOLDER, watchers_of
from assets.state.recipe_folders import load_recipe
from tests.assets.fabricate import make_one
from tests.end_to_end.dagster_dev import wait_for
from tests.small_kitchen import RECIPES

JOIN = """
import sys
from pathlib import Path
from assets.materialize.watchers import Watching
with Watching(Path(sys.argv[1]), run_id="another-run") as watching:
    print("in", watching.has_ended("job-1"), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def another(tmp_path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a process that watches the job of the folder until it is told to leave."""
    started = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", JOIN, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def mine(tmp_path) -> Watching:
    return Watching(tmp_path, run_id="my-run")


def living(folder: Path) -> list[str]:
    return sorted(one.run_id for one in watchers_of(folder))


def cancelled(watching: Watching) -> tuple[list[str], bool]:
    """The others that a cancelled run leaves behind, and whether it ended the job."""
    ended = []
    others = watching.leave(lambda: ended.append(True))
    return sorted(other.run_id for other in others), bool(ended)


def test_a_cancelled_run_ends_the_job_when_it_is_the_only_one(mine):
    with mine:
        assert cancelled(mine) == ([], True)


def test_a_cancelled_run_leaves_the_job_to_another_one_who_is_told(mine, another, tmp_path):
    process = another()
    assert process.stdout.readline()
    with mine:
        assert [other.run_id for other in mine.others] == ["another-run"]
        third = Watching(tmp_path, run_id="a-third-run")
        with third:
            assert cancelled(third) == (["another-run", "my-run"], False)
        assert len(told := mine.news()) == 1 and "run a-third-" in told[0]
        assert mine.news() == []


def test_a_killed_process_watches_nothing_also_before_anybody_waited_for_it(mine, another):
    process = another()
    assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and still in the table of processes
    with mine:
        assert cancelled(mine) == ([], True)


def test_a_stopped_process_counts_and_a_later_one_with_the_id_of_a_dead_one_does_not(mine, another, tmp_path):
    process = another()
    assert process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    left = tmp_path / WATCHERS_FOLDER / "left.json"
    left.write_text(json.dumps({"run_id": "dead", "host": "here", "pid": os.getpid()}))
    with mine:
        assert living(tmp_path) == ["another-run", "my-run"] and left.exists()


def test_a_run_that_comes_while_the_job_is_ended_waits_and_learns_that_it_was(mine, another, tmp_path):
    came = []

    def end() -> None:
        mine.note_end("job-1")
        came.append(another())
        wait_for(lambda: waits_for_a_lock(came[0].pid), 60, every=0.02)
        assert len(list((tmp_path / WATCHERS_FOLDER).glob("*.json"))) == 0

    with mine:
        assert mine.leave(end) == []
    assert came[0].stdout.readline() == "in True\n"


def waits_for_a_lock(pid: int) -> bool:
    lines = [line.split() for line in Path("/proc/locks").read_text("utf-8").splitlines()]
    return any("->" in fields and str(pid) in fields for fields in lines)


def test_a_run_whose_file_another_machine_removed_counts_again(mine, tmp_path):
    with mine:
        shutil.rmtree(tmp_path / WATCHERS_FOLDER)
        assert watchers_of(tmp_path) == []
        assert mine.news() == [] and living(tmp_path) == ["my-run"]


def test_nothing_is_left_when_the_last_one_leaves_or_is_found_dead(mine, another, tmp_path):
    with mine:
        pass
    assert list(tmp_path.iterdir()) == []
    process = another()
    assert process.stdout.readline()
    process.kill()
    process.wait()
    assert watchers_of(tmp_path) == []
    tidy(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_removes_what_its_killed_predecessor_left_though_the_job_has_ended_and_is_referred_to(tmp_path):
    recipe = load_recipe(str(RECIPES / "kitchen-small.yaml"))
    cell = next(cell for cell in compare(recipe, tmp_path).cells.values() if cell.asset == "crawl_archives")
    make_one(compare(recipe, tmp_path), cell)
    made = compare(recipe, tmp_path).cells[cell.key].artifact.path
    before = {path.name for path in made.iterdir()}
    watcher = subprocess.Popen([sys.executable, "-c", JOIN, str(made)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert watcher.stdout.readline()
    watcher.kill()
    watcher.communicate()
    assert {path.name for path in made.iterdir()} - before == {WATCHERS_FOLDER}
    chosen = {"until": "crawl_archives", "snapshots": (cell.part,)}
    report = run_recipe(recipe, tmp_path, profile="local", announce=lambda *_: None, **chosen)
    assert report.exit_code == 0 and {path.name for path in made.iterdir()} == before

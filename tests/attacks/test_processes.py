"""Whoever starts a process owns it to its end, and says what happened: real processes, struck at any of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from assets.materialize.follow import Following
from assets.materialize.watchers import Watching
from resources.compute.base import Task
from resources.compute.local import LocalBackend
from resources.profile import Size
from tests.jobs import job_by_hand
from tests.small_kitchen import RECIPES
from tests.training.posttrain import tiny
from training.contract.job import write_job
from training.contract.process.exit_codes import BAD_INPUT, BUSY
from training.contract.run_settings import RunSettings
from training.contract.running.attempt import verdict
from training.contract.running.lease import Lease

# Stages in modules of their own, so that workers and torchrun's processes import them.
TOGETHER = """
import time
from pathlib import Path
from training.contract.job import DataError, Outcome

def run(job, work):
    if "bad" in job.settings:
        raise DataError(job.settings["bad"])
    while "sleeps" in job.settings:
        time.sleep(0.1)
    return Outcome(files=())
"""
IN_RANKS = """
import time
from training.data.extract.isolation import RawPage, isolation_for
from training.contract.job import Counts, Outcome
from training.data.extract.settings import ExtractRecipe

def num_ranks(job):
    return 2

def run_rank(job, work, rank):
    isolation_for(ExtractRecipe()).submit([RawPage(body=b"<p>soup", headers={})])
    isolation_for(ExtractRecipe()).collect()
    while "sleeps" in job.settings:
        time.sleep(0.1)
    return {}

def finish(job, work, ranks):
    return Outcome(files=())
"""
MAIN = """
import sys
from training.contract.running.command_line import main
from training.contract.stage import Stage

if __name__ == "__main__":
    stages = [Stage(name=name, version="1", module=name, distributed=name == "together") for name in STAGES]
    sys.exit(main(sys.argv[1:], {stage.name: stage for stage in stages}))
"""


def toy_task(place: Path, stage: str, *, processes: int = 1, **settings) -> Task:
    """A toy stage's job, written, and the task that runs it; all its processes carry the variable MARK."""
    place.mkdir(exist_ok=True)
    (place / "together.py").write_text(TOGETHER)
    (place / "in_ranks.py").write_text(IN_RANKS)
    (place / "toy_main.py").write_text(MAIN.replace("STAGES", "['together', 'in_ranks']"))
    job = job_by_hand(stage, place / "toys" / "f", settings, run=RunSettings(processes=processes, workers=2))
    write_job(job, Path(job.output) / "job.json")
    return Task(
        key="toys-f",
        argv=("-m", "toy_main", f"{job.output}/job.json"),
        size=Size(processes=processes, threads=1),
        folder=job.output,
        environment={"PYTHONPATH": os.pathsep.join([str(place), *sys.path]), "MARK": str(place)},
    )


def followed(task: Task):
    """How a task ended, as Dagster's side is told."""
    watch = SimpleNamespace(say=lambda _: None, is_canceling=lambda: False, observe=lambda _: None)
    run = SimpleNamespace(log_metrics=lambda _: None, set_tags=lambda _: None)
    backend = LocalBackend(poll_seconds=0.02)
    with Watching(Path(task.folder), run_id="test") as watching:
        return Following(backend=backend, task=task, run=run, watch=watch, cell=None, watching=watching).attempt()


def test_that_another_process_makes_it_is_told_through_torchrun(tmp_path):
    task = toy_task(tmp_path, "together", processes=2)
    with Lease(Path(task.folder)):
        assert followed(task).exit_code == BUSY


def test_bad_input_is_told_through_torchrun(tmp_path):
    task = toy_task(tmp_path, "together", processes=2, bad="no text in it")
    assert followed(task).exit_code == BAD_INPUT
    assert verdict(Path(task.folder), LocalBackend().find(task.key, task.folder).id)["error"] == "no text in it"


KINDS = {
    "supervisor": "supervise.py",
    "fork server": "multiprocessing.forkserver",
    "resource tracker": "multiprocessing.resource_tracker",
    "extraction child": "training.data.extract.isolation",
    "torchrun": "torch.distributed.run",
    "stage": "toy_main",
}


def living(place: Path) -> dict[str, list[int]]:
    """The living processes of a task, by kind, wherever they are: all that carry its variable."""
    found: dict[str, list[int]] = {}
    parents: dict[int, str] = {}
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            if f"MARK={place}".encode() not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            said = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if state == "Z":
            continue
        kind = next((kind for kind, word in KINDS.items() if word in said), said)
        if kind == "fork server" and parents.get(int(parent)) == "fork server":
            kind = "worker"
        elif kind == "stage" and parents.get(int(parent)) == "torchrun":
            kind = "rank"
        parents[int(entry.name)] = kind
        found.setdefault(kind, []).append(int(entry.name))
    return found


def wait_until(holds, *, seconds: float = 240.0):
    """What `holds` gives when it gives something true."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, holds.__doc__
        time.sleep(0.02)
    return found


DATA_STAGE = {"supervisor": 1, "stage": 1, "resource tracker": 1, "fork server": 1, "worker": 2, "extraction child": 2}
TRAINING = {"supervisor": 1, "torchrun": 1, "rank": 2}


@pytest.fixture
def temporary(monkeypatch) -> Iterator[Path]:
    """Where processes put temporary files; its path is short, for the sockets' sake."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def strike(place: Path, stage: str, kinds: dict[str, int], victim: str, temporary: Path) -> None:
    """Kill one process of a running task; when the task is over nothing of it may live, and no temporary file be."""
    task = toy_task(place, stage, processes=2 if "rank" in kinds else 1, sleeps=True)
    backend = LocalBackend()
    handle = backend.submit(task)
    try:
        wait_until(lambda: {kind: len(pids) for kind, pids in living(place).items()} == kinds)
        os.kill(living(place)[victim][-1], signal.SIGKILL)
        status = wait_until(lambda: (status := backend.poll(handle)).is_over and status)
        assert living(place) == {}, f"left by a killed {victim}"
        assert status.state == ("lost" if victim == "supervisor" else "failed")
        assert list(temporary.iterdir()) == []
    finally:
        for pid in (pid for pids in living(place).values() for pid in pids):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", ["stage", "supervisor", "fork server", "worker"])
def test_nothing_of_a_data_stage_lives_on_when_one_of_its_processes_is_killed(tmp_path, temporary, times, victim):
    if victim in ("stage", "worker") or times(short=0, long=1):
        strike(tmp_path, "in_ranks", DATA_STAGE, victim, temporary)


@pytest.mark.parametrize("victim", ["torchrun", "rank", "supervisor"])
def test_nothing_of_a_training_lives_on_when_one_of_its_processes_is_killed(tmp_path, temporary, times, victim):
    if victim == "torchrun" or times(short=0, long=1):
        strike(tmp_path, "together", TRAINING, victim, temporary)
        assert followed(toy_task(tmp_path, "together", processes=2)).state == "succeeded"


def test_a_stage_started_by_hand_takes_all_it_started_with_it(tmp_path, times):
    task = toy_task(tmp_path, "in_ranks", sleeps=True)
    kinds = {kind: number for kind, number in DATA_STAGE.items() if kind != "supervisor"}
    for victim in ["stage", "worker", "fork server"][: times(short=1, long=3)]:
        process = subprocess.Popen([sys.executable, *task.argv], env={**os.environ, **task.environment})
        wait_until(lambda: {kind: len(pids) for kind, pids in living(tmp_path).items()} == kinds)
        os.kill(living(tmp_path)[victim][-1], signal.SIGKILL)
        assert process.wait(60)
        wait_until(lambda: not living(tmp_path))


def test_a_model_is_not_scored_for_a_command_that_was_killed(tmp_path):
    model = tiny.write_model(tmp_path / "model")
    argv = [sys.executable, "-c", "from assets.commands.cli import main; main()", "evaluate", str(model)]
    command = subprocess.Popen([*argv, "--suites", "kitchen"], env={**os.environ, "MARK": str(tmp_path)})
    wait_until(lambda: any("evaluation.exams.one_model" in said for said in living(tmp_path)))
    command.kill()
    command.wait()
    wait_until(lambda: not living(tmp_path), seconds=10)


def test_first_starts_at_once_on_a_fresh_root_all_come_through(tmp_path, times):
    argv = [sys.executable, "-c", "from assets.commands.cli import main; main()", "run", "kitchen-small", "--json"]
    argv += ["--snapshots", "kitchen-1", "--until", "crawl_archives"]
    for number in range(times(short=0, long=5)):
        root = ["--root", str(tmp_path / str(number))]
        environment = {**os.environ, "PEDIGREE_RECIPES": str(RECIPES)}
        both = [subprocess.Popen([*argv, *root], env=environment, stdout=subprocess.DEVNULL) for _ in range(2)]
        assert [process.wait() for process in both] == [0, 0]

"""Whoever starts a process owns it to its end, and says what happened: real processes, struck at any of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

from assets import stage as bridge
from assets.watchers import Watching
from resources.compute.base import Task
from resources.compute.local import LocalBackend
from resources.profile import Size
from training import artifact
from training.attempt import verdict
from training.job import Job, RunSettings, write_job

# A stage of every kind, in a module of its own so that workers and torchrun's processes import it.
TOY = """
import sys
from training.job import DataError, Outcome
from training.runner import main
from training.stages import Stage

def run(job, work):
    if "bad" in job.settings:
        raise DataError(job.settings["bad"])
    return Outcome(files=())

if __name__ == "__main__":
    stages = {"toy": Stage(name="toy", version="1", modules=("toy_processes",), distributed=True)}
    sys.exit(main(sys.argv[1:], stages))
"""


def toy_task(tmp_path: Path, *, processes: int = 1, **settings) -> Task:
    """A toy stage's job, written, and the task that runs it."""
    (tmp_path / "toy_processes.py").write_text(TOY)
    job = Job(
        stage="toy",
        asset="toys",
        partition="r",
        recipe="r",
        fingerprint="f",
        stage_version="1",
        settings=settings,
        output=str(tmp_path / "toys" / "f"),
        run=RunSettings(processes=processes),
    )
    write_job(job, Path(job.output) / "job.json")
    here = os.pathsep.join([str(tmp_path), *sys.path])
    return Task(
        key="toys-f",
        argv=("-m", "toy_processes", f"{job.output}/job.json"),
        size=Size(processes=processes, threads=1),
        folder=job.output,
        environment={"PYTHONPATH": here},
    )


def followed(task: Task):
    """How a task ended, as Dagster's side is told."""
    watch = SimpleNamespace(say=lambda _: None, is_canceling=lambda: False, observe=lambda _: None)
    run = SimpleNamespace(log_metrics=lambda _: None, set_tags=lambda _: None)
    with Watching(Path(task.folder), run_id="test", launch="test") as watching:
        return bridge._follow(LocalBackend(poll_seconds=0.02), task, Path(task.folder), run, watch, None, watching)


def test_that_another_process_makes_it_is_told_through_torchrun(tmp_path):
    task = toy_task(tmp_path, processes=2)
    with artifact.Lease(Path(task.folder)):
        assert followed(task).exit_code == bridge.BUSY_EXIT_CODE


def test_bad_input_is_told_through_torchrun(tmp_path):
    task = toy_task(tmp_path, processes=2, bad="no text in it")
    assert followed(task).exit_code == bridge.BAD_INPUT_EXIT_CODE
    assert verdict(Path(task.folder), LocalBackend().find(task.key, task.folder).id)["error"] == "no text in it"

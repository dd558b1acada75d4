"""What becomes of a stage whose fan-out lost tasks, on a real Slurm: a toy stage of six ranks over real jobs."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import assets.materialize.follow  # noqa: F401 - now: the seconds would pass between a cancellation and who finds the job
from assets.materialize.causes import StageFailed
from assets.materialize.events import heard_by
from resources.compute.base import Task
from resources.compute.size import Size
from resources.compute.slurm import SlurmBackend, SlurmSettings, array_name, job_name
from tests.cluster.minislurm import MiniSlurm
from tests.toys import made_of, toy_task
from training.contract.artifact import Artifact, foreign_files
from training.contract.job import read_job
from training.contract.running.attempt import read_attempts
from training.contract.running.versions import VARIABLE, write_versions
from training.contract.stage import Stage

pytestmark = pytest.mark.cluster

ONCE = [f"rank {rank}\n" for rank in range(6)]


@pytest.fixture
def backend(slurm: MiniSlurm) -> SlurmBackend:
    return SlurmBackend(SlurmSettings(partition="main", poll_seconds=0.2))


def fan_out(folder: Path, *faults: tuple[int, str], phases: tuple[str, ...] = (), **size) -> Task:
    """Six ranks, of each phase if there are several, in three tasks: task 1 begins with ranks 1 and 4."""
    wanted = Size(**{"backend": "slurm", "nodes": 3, "workers": 1, "memory_gb": 0.25, "hours": 0.1, **size})
    return toy_task(folder, ranks=6, faults=list(faults), size=wanted, num_tasks=3, phases=phases)


def ranks_of(task: Task) -> list[str]:
    """What the ranks that were made have written."""
    return [path.read_text() for path in sorted(Path(task.folder).glob("[0-9].txt"))]


def submissions(said: list[str]) -> int:
    """How often the stage was submitted."""
    return sum(line.startswith("submitted") for line in said)


def test_a_cancelled_array_is_no_success_and_no_rank_is_made_by_the_finishing_job(slurm, backend, tmp_path):
    task = fan_out(tmp_path, (0, "sleep"), (1, "sleep"), (2, "sleep"))
    backend.submit(task)
    slurm.wait_until(lambda: len(list((tmp_path / "toys").glob("fault-*"))) == 3, "every task sleeps")
    slurm.call("scancel", f"--name={array_name(job_name(task.key, Path(task.folder)))}")
    made, said = made_of(task, backend)
    assert isinstance(made, StageFailed) and ranks_of(task) == []
    assert "6 of 6 ranks were not made: 0, 1, 2, 3, 4, 5; 3 of 3 failed tasks of its fan-out: CANCELLED" in str(made)
    assert submissions(said) == 0  # it is found, and not submitted again: somebody wanted its end


def test_a_failed_task_fails_the_stage_with_its_cause_and_the_retry_makes_only_the_missing_ranks(backend, tmp_path):
    task, heard = fan_out(tmp_path, (1, "raise")), []
    with heard_by(lambda kind, cell, values: heard.append((kind, values))):
        made, said = made_of(task, backend)
    assert isinstance(made, Artifact) and ranks_of(task) == ONCE and not foreign_files(made)
    assert ("progress", {"step": 5, "ranks": 6}) in heard  # while only the array has run, whose tasks report nothing
    cause = "1 of 6 ranks were not made: 1; 1 of 1 failed tasks of its fan-out: RuntimeError: rank 1 met a fault"
    (retried,) = [line for line in said if "trying again" in line]
    assert cause in retried and submissions(said) == 2
    assert re.search(r"\(log-[012]\.txt\)", retried)  # of the task that had taken the rank


def test_bad_input_in_a_task_spends_no_retry_and_a_killed_task_is_told_by_its_signal(backend, tmp_path):
    task = fan_out(tmp_path, (0, "bad"), (1, "kill"), (2, "bad"))
    made, said = made_of(task, backend)
    assert isinstance(made, StageFailed) and made.exit_code == 2 and submissions(said) == 1
    assert re.search(r"of 3 failed tasks of its fan-out: rank [02] met a fault \(log-", str(made))


def test_a_requeued_task_is_no_failure_and_its_attempts_are_told_apart(slurm, backend, tmp_path):
    task = fan_out(tmp_path, (1, "sleep"))
    backend.submit(task)
    slurm.wait_until(lambda: any((tmp_path / "toys").glob("fault-*")), "a task sleeps")
    (claim,) = Path(task.folder).glob("ranks/claims-*/00001.0.claim")
    array, number, _ = re.split("[_.]", claim.read_text(), maxsplit=2)  # whoever came to rank 1 first
    # By its number in the array: its last task has the job id of the array itself, which names all tasks.
    slurm.call("scontrol", "requeue", f"{array}_{number}")
    made, said = made_of(task, backend)
    assert isinstance(made, Artifact) and ranks_of(task) == ONCE and submissions(said) == 0
    attempts = {one["attempt"].partition("_")[2] for one in read_attempts(Path(task.folder))}
    assert {f"{number}.0", f"{number}.1"} <= attempts


def test_the_tasks_of_a_phase_follow_those_before_and_a_lost_rank_is_the_cause_that_is_told(backend, tmp_path):
    task = fan_out(tmp_path, (1, "raise"), phases=("make", "gather"))
    made, said = made_of(task, backend)
    assert isinstance(made, Artifact), made
    # What the first phase wrote went with the scratch folder; a rank that was made twice would stand there twice.
    assert (made.path / "all-5.txt").read_text() == "".join(f"rank {rank}\n" for rank in range(6))
    cause = (
        "1 of 6 ranks of the phase make were not made: 1;"
        " 1 of 1 failed tasks of its fan-out: RuntimeError: rank 1 met a fault"
    )
    (retried,) = [line for line in said if "trying again" in line]
    assert cause in retried and submissions(said) == 2


def test_nodes_with_another_version_of_the_code_are_refused_before_any_rank(slurm, tmp_path, monkeypatch):
    task = fan_out(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    stage = Stage(name="toy", version="1", module="toy_ranks", in_ranks=True)
    noted = write_versions(read_job(Path(task.folder) / "job.json"), stage)
    there = tmp_path / "there"
    there.mkdir()
    (there / "toy_ranks.py").write_text((tmp_path / "toy_ranks.py").read_text() + "ANOTHER = 1\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{there}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    other = SlurmBackend(SlurmSettings(partition="main", poll_seconds=0.2, python=str(python)))
    made, said = made_of(replace(task, environment={**task.environment, VARIABLE: str(noted)}), other)
    assert isinstance(made, StageFailed) and made.exit_code == 2 and submissions(said) == 1
    assert "other versions" in str(made) and "toy_ranks " in str(made)
    assert "in the profile (`parts.slurm.python`)" in str(made) and ranks_of(task) == []

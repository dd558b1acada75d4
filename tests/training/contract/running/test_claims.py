"""Tasks of a fan-out that take ranks as they come to them, as real processes that share a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.toys import toy_task
from training.contract.files.notes import FolderNotes
from training.contract.process import cores
from training.contract.process.cores import available_cores
from training.contract.running import claims
from training.contract.running.claims import Claims
from training.contract.running.marks import num_finished

RANKS = 6


class Tasks:
    """The tasks of one array, started by hand."""

    def __init__(self, folder: Path, *faults: tuple[int, str], workers: int | None = 1) -> None:
        self._task = toy_task(folder, ranks=RANKS, faults=list(faults), workers=workers)
        self._signs, self.folder = folder / "toys", Path(self._task.folder)

    def start(self, share: str, attempt: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *self._task.argv, "--ranks", share, "--claims", "8"],
            env={**os.environ, **self._task.environment, "PEDIGREE_ATTEMPT": attempt, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, share: str, attempt: str) -> int:
        process = self.start(share, attempt)
        process.communicate()
        return process.returncode

    def wait_for_fault(self, number: int) -> None:
        while not (self._signs / f"fault-{number}").exists():
            time.sleep(0.05)

    def made(self) -> list[int]:
        """The ranks that are made, as often as they were made."""
        texts = [path.read_text() for path in sorted(self.folder.glob("[0-9].txt"))]
        return [int(line[5:]) for text in texts for line in text.splitlines()]


def test_a_slow_task_takes_fewer_ranks_and_what_it_loses_its_next_attempt_takes(tmp_path):
    tasks = Tasks(tmp_path, (0, "sleep"))
    slow = tasks.start("0/2", "8_0.0")
    tasks.wait_for_fault(0)
    assert tasks.run("1/2", "8_1.0") == 0  # begins with 1, 3, 5 and goes on with 2 and 4
    assert tasks.made() == [1, 2, 3, 4, 5] and slow.poll() is None
    slow.kill()
    slow.communicate()
    assert tasks.run("0/2", "8_0.1") == 0
    assert tasks.made() == [0, 1, 2, 3, 4, 5] and num_finished(tasks.folder) == RANKS


def test_a_rank_of_a_killed_task_is_taken_by_another_task(tmp_path):
    tasks = Tasks(tmp_path, (1, "kill"))
    assert tasks.run("1/3", "8_1.0") == -signal.SIGKILL
    assert tasks.run("2/3", "8_2.0") == 0
    assert tasks.made() == [0, 1, 2, 3, 4, 5]


def test_a_rank_that_kills_its_tasks_does_not_kill_all_of_them(tmp_path):
    tasks = Tasks(tmp_path, *[(4, "kill")] * 5)
    ended = [tasks.run(f"{number}/5", f"8_{number}.0") for number in range(5)]
    assert ended == [-signal.SIGKILL] * claims.MOST_CLAIMS + [0] * 2
    assert tasks.made() == [0, 1, 2, 3, 5]


def test_a_rank_with_an_error_is_left_to_the_next_attempt_of_the_stage(tmp_path):
    tasks = Tasks(tmp_path, (0, "raise"))
    assert tasks.run("0/2", "8_0.0") == 1
    assert tasks.run("1/2", "8_1.0") == 0
    assert tasks.made() == [1, 2, 3, 4, 5]


def test_a_late_task_takes_part_and_all_workers_of_all_tasks_make_each_rank_once(tmp_path):
    tasks = Tasks(tmp_path, (0, "sleep"), (3, "sleep"), workers=2)
    first = tasks.start("0/3", "8_0.0")  # its two workers begin with 0 and 3
    tasks.wait_for_fault(0)
    tasks.wait_for_fault(1)
    late = [tasks.start(f"{number}/3", f"8_{number}.0") for number in (1, 2)]
    assert [task.communicate()[0] or task.returncode for task in late] == [0, 0]
    assert tasks.made() == [1, 2, 4, 5] and first.poll() is None
    first.kill()
    first.communicate()


def test_a_task_elsewhere_without_a_beat_counts_as_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "DEAD_SECONDS", 0.0)
    notes = FolderNotes(tmp_path, look_seconds=0.01)
    with Claims(notes, [0], set, name="gone") as gone:
        assert next(gone.each_free()) == 0
    (tmp_path / "gone.beat").write_text("works elsewhere-1-2 7\n")
    with Claims(notes, [0], set, name="here") as here:
        assert list(here.each_free()) == []
        assert here.wait_for_news()
        assert list(here.each_free()) == [0]
    with Claims(notes, [0], lambda: {0}, name="third") as third:
        assert not third.wait_for_news()  # it is made


def test_a_job_uses_the_cores_of_its_node_and_its_allocation(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    monkeypatch.setattr(cores, "_quotas", list)
    assert available_cores() == 64
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "16")
    assert available_cores() == 16
    monkeypatch.undo()
    (tmp_path / "job" / "step").mkdir(parents=True)
    (tmp_path / "job" / "cpu.max").write_text("350000 100000\n")
    (tmp_path / "job" / "step" / "cpu.max").write_text("max 100000\n")
    (tmp_path / "own").write_text("0::/job/step\n")
    assert cores._quotas(tmp_path, tmp_path / "own") == [3]


def test_claims_need_a_share_to_begin_with(tmp_path):
    task = toy_task(tmp_path, ranks=3, faults=[])
    done = subprocess.run(
        [sys.executable, *task.argv, "--ranks", "1,2", "--claims", "8"],
        env={**os.environ, **task.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "--claims: --ranks" in done.stderr

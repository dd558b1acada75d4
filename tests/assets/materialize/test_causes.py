"""Why a stage ended, where its folder holds the words of earlier attempts: real processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assets.materialize.causes import StageFailed, explain
from resources.compute.base import Status
from resources.compute.local import LocalBackend
from resources.profile import Size
from tests.toys import made_of, toy_task

GROUP_BYTES = 200 << 20
FIRST = "rank 1 met a fault"


def failed(tmp_path: Path, *faults: tuple[int, str], retries: int = 0) -> StageFailed:
    """How a stage of three ranks fails that meets the faults, one after the other."""
    task = toy_task(tmp_path, ranks=3, faults=list(faults), size=Size(retries=retries))
    made, _ = made_of(task, LocalBackend(poll_seconds=0.02))
    assert isinstance(made, StageFailed)
    return made


def test_a_killed_attempt_is_told_by_its_signal_and_not_by_the_error_of_the_one_before(tmp_path):
    assert str(failed(tmp_path, (1, "bad"))) == f"toys [r]: {FIRST}"
    killed = failed(tmp_path, (1, "bad"), (1, "kill"))
    log = (tmp_path / "toys" / "f" / "log.txt").read_text()
    assert f"error: {FIRST}" in log  # the words of the first attempt still stand there
    assert str(killed).startswith("toys [r]: ended by SIGKILL") and FIRST not in str(killed)
    assert log.count("--- attempt ") == 2


def test_an_attempt_that_dies_without_a_word_shows_its_own_end_of_the_log_alone(tmp_path):
    task = toy_task(tmp_path, ranks=3, faults=[(1, "bad")], size=Size(retries=0))
    made_of(task, LocalBackend(poll_seconds=0.02))
    (tmp_path / "toy_ranks.py").write_text("print('half a module'); import nowhere")
    made, _ = made_of(task, LocalBackend(poll_seconds=0.02))
    assert "exit code 1" in str(made) and "No module named 'nowhere'" in str(made) and FIRST not in str(made)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_stage_and_its_workers_say_of_a_secret_is_masked_wherever_it_is_kept(tmp_path, monkeypatch, workers):
    monkeypatch.setenv("TOY_API_KEY", "hush-3f9a")
    task = toy_task(tmp_path, ranks=3, faults=[(1, "tell")], size=Size(retries=0), workers=workers)
    made, _ = made_of(task, LocalBackend(poll_seconds=0.02))
    log = (tmp_path / "toys" / "f" / "log.txt").read_text()
    assert "known as ***" in log and "a server said ***" in log and "a server said ***" in str(made)
    kept = [path.read_bytes() for path in (tmp_path / "toys").rglob("*") if path.is_file()]
    assert len(kept) > 3 and not any(b"hush-3f9a" in data for data in kept)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory, for processes that enter it."""
    groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    version_1 = "memory" in groups
    home = Path(f"/sys/fs/cgroup{'/memory' if version_1 else ''}{groups['memory' if version_1 else '']}")
    group = home / f"small-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(GROUP_BYTES))
    except OSError as error:
        pytest.skip(f"control groups of one's own cannot be made here: {error}")
    yield group
    group.rmdir()


def test_what_the_kernel_ended_for_want_of_memory_is_told_so(tmp_path, small_group):
    failed(tmp_path, (1, "bad"), (1, "memory"))
    script = (
        "import os, pathlib, sys\n"
        "from tests.assets.materialize.test_causes import failed\n"
        "pathlib.Path(sys.argv[2], 'cgroup.procs').write_text(str(os.getpid()))\n"
        "print(failed(pathlib.Path(sys.argv[1]), (1, 'bad'), (1, 'memory')))"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path, small_group], capture_output=True, text=True)
    assert done.stdout.startswith("toys [r]: ended by SIGKILL; meanwhile the kernel's out-of-memory killer"), done
    assert "`workers`" in done.stdout and FIRST not in done.stdout


@pytest.mark.parametrize(("fault", "attempts"), [("bad", 1), ("raise", 2)])
def test_bad_input_spends_no_retry_and_another_error_does(tmp_path, fault, attempts):
    made = failed(tmp_path, (1, fault), (1, fault), retries=1)
    assert FIRST in str(made)
    assert (tmp_path / "toys" / "f" / "log.txt").read_text().count("--- attempt ") == attempts


@pytest.mark.parametrize(
    ("reason", "attempt", "said"),
    [
        (
            "OUT_OF_MEMORY: raise `memory_gb`",
            "7.0",
            "OUT_OF_MEMORY: raise `memory_gb`; before that the job said: no room",
        ),
        ("OUT_OF_MEMORY: raise `memory_gb`", "7.1", "OUT_OF_MEMORY: raise `memory_gb`"),
        ("TIMEOUT: raise `hours`", "8.0", "TIMEOUT: raise `hours`"),
    ],
    ids=["this attempt's words", "the words are of the start before", "the words are of another job"],
)
def test_the_scheduler_comes_first_and_words_of_other_attempts_are_not_taken(tmp_path, reason, attempt, said):
    task = toy_task(tmp_path, ranks=1, faults=[])
    (Path(task.folder) / "log.txt").write_text("--- attempt 7.0 on node1, now\nerror: no room\n")
    status = Status(state="failed", reason=reason, exit_code=-125, was_ended=True, attempt=attempt)
    assert explain(LocalBackend(), task, status) == said

"""The local backend: a task outlives who started it, is found again, and says how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resources.compute import local
from resources.compute.base import Handle, Status, Task
from resources.compute.local import LocalBackend
from resources.compute.supervise import PROCESS_FILE
from resources.profile import Size

SLEEP = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text('started'); time.sleep(300)"


def task_of(folder, code, *arguments, key="toy", **changes):
    return Task(**{"key": key, "argv": ("-c", code, *arguments), "size": Size(), "folder": str(folder), **changes})


def wait(handle, *, seconds=120.0):
    """The task's status when it is over, as a process that did not start it sees it."""
    deadline = time.monotonic() + seconds
    backend = LocalBackend()
    while not (status := backend.poll(handle)).is_over:
        assert time.monotonic() < deadline, status
        time.sleep(0.02)
    return status


def wait_for(path, *, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.02)
    return path.read_text()


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def sleeper(tmp_path):
    """A task that would run for minutes."""
    task = task_of(tmp_path, SLEEP, str(tmp_path / "mark"))
    handle = LocalBackend().submit(task)
    wait_for(tmp_path / "mark")
    yield task, handle
    LocalBackend().cancel(handle)


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (1, "failed"), (3, "failed"), (75, "failed")])
def test_the_exit_code_comes_back_with_the_log(tmp_path, code, state):
    handle = LocalBackend().submit(task_of(tmp_path, f"print('error: no'); raise SystemExit({code})"))
    status = wait(handle)
    assert (status.state, status.exit_code) == (state, code)
    assert LocalBackend().log_tail(str(tmp_path), 5) == "error: no"


def test_a_task_gets_the_variables_and_threads_it_names(tmp_path):
    code = "import os; print(os.environ['NAMED'], os.environ['OMP_NUM_THREADS'])"
    task = task_of(tmp_path, code, environment={"NAMED": "it's $HOME"}, size=Size(threads=3))
    assert wait(LocalBackend().submit(task)).state == "succeeded"
    assert LocalBackend().log_tail(str(tmp_path), 1) == "it's $HOME 3"


def test_what_is_rendered_is_a_command_for_a_shell(tmp_path):
    task = task_of(tmp_path, "print('a b')", environment={"NAMED": "it's"})
    rendered = LocalBackend().render(task)
    assert rendered == f"""NAMED='it'"'"'s' {sys.executable} -c 'print('"'"'a b'"'"')'\n"""
    assert subprocess.run(rendered, shell=True, capture_output=True, text=True).stdout == "a b\n"


def test_a_task_is_found_by_its_key_and_not_started_twice(sleeper):
    task, handle = sleeper
    backend = LocalBackend()
    assert backend.find(task.key, task.folder) == handle
    assert backend.find("another", task.folder) is None
    assert backend.submit(task) == handle


def test_an_ended_task_makes_room_for_the_next(tmp_path):
    backend = LocalBackend()
    first = backend.submit(task_of(tmp_path, "raise SystemExit(75)"))
    wait(first)
    second = backend.submit(task_of(tmp_path, "pass"))
    assert wait(second) == Status(state="succeeded", exit_code=0)
    assert backend.poll(first).state == "lost"  # the second one's exit code is not taken for it


def test_another_process_goes_on_watching_a_task_whose_orchestrator_was_killed(tmp_path):
    orchestrate = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from resources.compute.base import Task\n"
        "from resources.compute.local import LocalBackend\n"
        "from resources.profile import Size\n"
        "code = (\n"
        "    'import pathlib, sys, time\\n'\n"
        "    'while not pathlib.Path(sys.argv[1], \"seen\").exists(): time.sleep(0.02)\\n'\n"
        "    'raise SystemExit(7)'\n"
        ")\n"
        "argv = ('-c', code, sys.argv[1])\n"
        "LocalBackend().submit(Task(key='toy', argv=argv, size=Size(), folder=sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", orchestrate, str(tmp_path)])
    assert died.returncode == -signal.SIGKILL
    handle = LocalBackend().find("toy", str(tmp_path))
    assert handle is not None
    assert Handle(**json.loads(json.dumps(handle.as_json()))) == handle
    assert LocalBackend().poll(handle).state == "running"
    (tmp_path / "seen").touch()
    assert wait(handle).exit_code == 7


def test_cancel_lets_the_task_save_and_ends_its_children_too(tmp_path):
    code = (
        "import pathlib, signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "def save(*_):\n"
        "    pathlib.Path(sys.argv[1] + '.saved').write_text('saved'); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); time.sleep(300)"
    )
    handle = LocalBackend().submit(task_of(tmp_path, code, str(tmp_path / "mark")))
    child = int(wait_for(tmp_path / "mark"))
    LocalBackend().cancel(handle)
    ended = Status(state="cancelled", reason="exit code 75", exit_code=75, attempt=handle.id)
    assert LocalBackend().poll(handle) == ended
    assert (tmp_path / "mark.saved").read_text() == "saved"
    assert not lives(child), "the task's child lives on"  # the exit code is written when the whole tree has ended
    LocalBackend().cancel(handle)  # once more is no error


def test_a_task_that_ignores_the_signal_is_killed_after_the_grace(tmp_path, monkeypatch):
    monkeypatch.setattr("resources.compute.local.GRACE_SECONDS", 0.3)
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEP}"
    handle = LocalBackend().submit(task_of(tmp_path, code, str(tmp_path / "mark")))
    wait_for(tmp_path / "mark")
    LocalBackend().cancel(handle)
    assert LocalBackend().poll(handle).state == "cancelled"


def test_a_task_ends_with_its_supervisor_and_is_lost(sleeper):
    _, handle = sleeper
    os.kill(int(handle.id), signal.SIGKILL)
    assert wait(handle) == Status(state="lost", reason="its process is gone and left no exit code")


def test_an_exit_code_means_that_nothing_lives_even_in_another_session(tmp_path):
    code = (
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True)\n"
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid))"
    )
    assert wait(LocalBackend().submit(task_of(tmp_path, code, str(tmp_path / "mark")))).state == "succeeded"
    assert not lives(int((tmp_path / "mark").read_text()))


def test_what_a_killed_supervisor_owned_is_ended_wherever_it_is(tmp_path):
    code = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True)\n"
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); time.sleep(300)"
    )
    handle = LocalBackend().submit(task_of(tmp_path, code, str(tmp_path / "mark")))
    child = int(wait_for(tmp_path / "mark"))
    os.kill(int(handle.id), signal.SIGKILL)
    assert wait(handle).state == "lost" and not lives(child)


def test_what_a_killed_supervisor_left_is_removed_by_whoever_finds_the_result(tmp_path):
    code = (
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True)\n"
        "(pathlib.Path(os.environ['TMPDIR']) / 'socket').touch()\n"
        "pathlib.Path(sys.argv[1]).write_text(f'{child.pid} ' + os.environ['TMPDIR']); time.sleep(300)"
    )
    handle = LocalBackend().submit(task_of(tmp_path, code, str(tmp_path / "mark")))
    child, temporary = wait_for(tmp_path / "mark").split()
    local.tidy(tmp_path)  # the supervisor lives: nothing is ended
    assert lives(int(child)) and Path(temporary, "socket").exists()
    os.kill(int(handle.id), signal.SIGKILL)
    os.waitid(os.P_PID, int(handle.id), os.WEXITED | os.WNOWAIT)
    local.tidy(tmp_path)
    assert not lives(int(child)) and not Path(temporary).exists()
    assert wait(handle).state == "lost"


def test_a_reused_process_id_is_not_taken_for_the_task(tmp_path):
    identity = {"key": "toy", "pid": os.getpid(), "start": "another-boot:1"}
    (tmp_path / PROCESS_FILE).write_text(json.dumps(identity))
    handle = LocalBackend().find("toy", str(tmp_path))
    assert LocalBackend().poll(handle).state == "lost"


def test_several_processes_run_under_torchrun(tmp_path):
    code = (
        "import os\n"
        "line = os.environ['RANK'] + ' of ' + os.environ['WORLD_SIZE']\n"
        "open(os.environ['RESULT'], 'a').write(line + '\\n')"
    )
    (tmp_path / "toy_rank.py").write_text(code)
    task = Task(
        key="toy",
        argv=("-m", "toy_rank"),
        size=Size(processes=2, threads=1),
        folder=str(tmp_path),
        environment={"PYTHONPATH": str(tmp_path), "RESULT": str(tmp_path / "result")},
    )
    status = wait(LocalBackend().submit(task), seconds=120)
    assert status.state == "succeeded", LocalBackend().log_tail(str(tmp_path), 20)
    assert sorted((tmp_path / "result").read_text().splitlines()) == ["0 of 2", "1 of 2"]

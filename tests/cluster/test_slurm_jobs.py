"""The Slurm backend against a real Slurm: jobs start, end, are found again, and survive what clusters do to them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from assets.materialize.causes import StageFailed, as_told, explain
from assets.materialize.events import heard_by
from assets.materialize.follow import Following
from assets.materialize.patience import Patience
from assets.materialize.watchers import Watching
from resources.compute.base import Handle, Status, Task
from resources.compute.size import Size
from resources.compute.slurm import JOB_FILE, SlurmBackend, SlurmSettings, array_name, job_name
from resources.compute.slurm_calls import fields_of
from resources.compute.slurm_states import status_of
from tests.attacks.test_processes import toy_task
from tests.cluster.minislurm import MiniSlurm
from tests.toys import made_of
from tests.toys import toy_task as toy_ranks
from training.contract.artifact import Artifact, find, find_copy

pytestmark = pytest.mark.cluster

SETTINGS = SlurmSettings(partition="main", poll_seconds=0.01)  # so that each poll of a test asks anew


@pytest.fixture
def backend(slurm: MiniSlurm) -> SlurmBackend:
    return SlurmBackend(SETTINGS)


def task_of(folder: Path, code: str, *arguments: str, key: str = "toy-0123456789abcdef", num_tasks: int = 1, **size):
    """A task that runs a few lines of Python."""
    wanted = Size(**{"backend": "slurm", "workers": 1, "memory_gb": 0.25, "hours": 0.1, **size})
    return Task(key=key, argv=("-c", code, *arguments), size=wanted, folder=str(folder), num_tasks=num_tasks)


def wait(backend: SlurmBackend, handle: Handle, *, seconds: float = 240.0) -> Status:
    """The task's status when it is over."""
    deadline = time.monotonic() + seconds
    while not (status := backend.poll(handle)).is_over:
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
    return status


def wait_for(path: Path, *, seconds: float = 240.0) -> str:
    """The text of a file that a job writes."""
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.05)
    return path.read_text()


def jobs_of(slurm: MiniSlurm, task: Task) -> list[dict[str, str]]:
    """What the controller remembers of a task's jobs."""
    return slurm.jobs(job_name(task.key, Path(task.folder)))


SLEEP = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text('started'); time.sleep(300)"


def test_a_job_runs_with_what_it_asked_for_and_nothing_more(slurm, backend, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "of the orchestrator")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    task = task_of(tmp_path, code, gpus_per_node=2, threads=2)
    task = Task(**{**{name: getattr(task, name) for name in task.__slots__}, "environment": {"NAMED": "it's $HOME"}})
    handle = backend.submit(task)
    assert wait(backend, handle) == Status(state="succeeded", exit_code=0)
    variables = json.loads(backend.log_tail(task.folder, 1))
    assert variables["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert variables["NAMED"] == "it's $HOME"
    assert variables["OMP_NUM_THREADS"] == "2"
    assert "SECRET" not in variables


def test_a_job_without_a_number_of_cores_has_its_node_alone(slurm, backend, tmp_path):
    code = SLEEP.replace("'started'", "__import__('os').environ['SLURM_CPUS_ON_NODE']")
    backend.submit(task_of(tmp_path / "whole", code, str(tmp_path / "cores"), workers=None))
    assert wait_for(tmp_path / "cores") == "2"
    small = [task_of(tmp_path / f"small{number}", SLEEP, str(tmp_path / f"{number}")) for number in range(3)]
    for number, task in enumerate(small):
        backend.submit(task)
        if number < 2:
            wait_for(tmp_path / f"{number}")

    def waits() -> bool:
        """Both cores of the other node are taken; the first node has one that nobody uses."""
        assert not (tmp_path / "2").exists()
        return jobs_of(slurm, small[2])[0]["Reason"] == "Resources"

    slurm.wait_until(waits, "the third one waits for a core")


@pytest.mark.parametrize("code", [1, 3, 75])
def test_the_exit_code_of_a_job_comes_back(backend, tmp_path, code):
    status = wait(backend, backend.submit(task_of(tmp_path, f"print('error: no'); raise SystemExit({code})")))
    assert (status.state, status.exit_code) == ("failed", code)
    assert "FAILED" in status.reason
    assert backend.log_tail(str(tmp_path), 5) == "error: no"


@pytest.mark.parametrize("then", [{}, {"nodes": 2, "min_nodes": 1, "micro_batch_tokens": 8}])
def test_a_cancelled_job_hears_of_it_and_ends(slurm, backend, tmp_path, then):
    code = (
        "import pathlib, signal, sys, time\n"
        "def note(*_):\n"
        "    pathlib.Path(sys.argv[1] + '.saved').write_text('saved'); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, note)\n"
        "pathlib.Path(sys.argv[1]).write_text('started'); time.sleep(300)"
    )
    (tmp_path / "toy_saves.py").write_text(code)
    task = task_of(tmp_path, code, str(tmp_path / "mark"), **then)
    if then:  # which torchrun starts as a module
        task = replace(task, argv=("-m", "toy_saves", *task.argv[2:]), environment={"PYTHONPATH": str(tmp_path)})
    handle = backend.submit(task)
    wait_for(tmp_path / "mark")
    backend.cancel(handle)
    assert wait(backend, handle).state == "cancelled"
    assert "goes on" not in (tmp_path / "log.txt").read_text()
    assert (tmp_path / "mark.saved").read_text() == "saved"
    backend.cancel(handle)  # once more is no error


def test_a_fan_out_runs_every_range_and_then_finishes(slurm, backend, tmp_path):
    code = "import socket, sys; open(sys.argv[1], 'a').write(f'{sys.argv[2:]} on {socket.gethostname()}\\n')"
    task = task_of(tmp_path, code, str(tmp_path / "ran"), num_tasks=3)
    assert wait(backend, backend.submit(task)).state == "succeeded"
    lines = (tmp_path / "ran").read_text().splitlines()
    array = slurm.jobs(array_name(job_name(task.key, tmp_path)))[0]["ArrayJobId"]
    shares = [f"['--ranks', '{number}/3', '--claims', '{array}'" for number in range(3)]
    assert sorted(line.split("]")[0] for line in lines[:3]) == shares
    assert lines[3].startswith("['--finish', '0'] on node")  # the finishing job ran last
    assert len(lines) == 4


def test_cancelling_a_fan_out_leaves_nothing_behind(slurm, backend, tmp_path):
    task = task_of(tmp_path, SLEEP, str(tmp_path / "mark"), num_tasks=2)
    handle = backend.submit(task)
    slurm.wait_until(lambda: "its fan-out runs on node" in backend.poll(handle).reason, "where it runs is said")
    assert backend.poll(handle).state == "running"
    wait_for(tmp_path / "mark")
    backend.cancel(handle)
    assert wait(backend, handle).state == "cancelled"
    slurm.wait_until(lambda: slurm.call("squeue", "-h") == "", "the queue is empty")


def test_a_running_job_is_found_by_its_key_and_not_submitted_twice(slurm, backend, tmp_path):
    task = task_of(tmp_path, SLEEP, str(tmp_path / "mark"))
    handle = backend.submit(task)
    later = SlurmBackend(SETTINGS)
    assert later.find(task.key, task.folder) == handle
    assert later.submit(task) == handle
    (tmp_path / JOB_FILE).unlink()
    assert later.find(task.key, task.folder) == handle
    assert later.find("another-key", task.folder) is None
    assert later.find(task.key, str(tmp_path / "another-root")) is None
    assert len(jobs_of(slurm, task)) == 1
    backend.cancel(handle)


def test_an_ended_job_makes_room_for_the_next(slurm, backend, tmp_path):
    task = task_of(tmp_path, "raise SystemExit(75)")
    first = backend.submit(task)
    wait(backend, first)
    second = backend.submit(task)
    assert second != first
    wait(backend, second)
    assert backend.find(task.key, task.folder) == second


POLLS = """
import sys
from resources.compute.base import Handle
from resources.compute.slurm import SlurmBackend, SlurmSettings
backend = SlurmBackend(SlurmSettings(poll_seconds=600))
handle = Handle(backend="slurm", id=sys.argv[1], key="toy", folder=sys.argv[2])
print(*sorted({backend.poll(handle).state for _ in range(5)}))
"""
COUNTS = '#!/bin/sh\necho {command} >> {log}\nexec {real} "$@"\n'


def test_one_answer_of_slurm_is_enough_for_all_processes_that_poll(slurm, backend, tmp_path, monkeypatch):
    handles = [backend.submit(task_of(tmp_path / key, SLEEP, str(tmp_path / key / "mark"), key=key)) for key in "abc"]
    handles.append(backend.submit(task_of(tmp_path / "d", "raise SystemExit(3)", key="d")))
    wait(backend, handles[3])
    for handle in handles[:3]:
        wait_for(Path(handle.folder) / "mark")
    log, place = tmp_path / "calls", tmp_path / "bin"
    place.mkdir()
    for command in ("squeue", "scontrol"):
        real = shutil.which(command, path=slurm.variables["PATH"])
        (place / command).write_text(COUNTS.format(command=command, log=log, real=real))
        (place / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{slurm.variables['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the answer is shared
    pollers = [
        subprocess.Popen([sys.executable, "-c", POLLS, one.id, one.folder], stdout=subprocess.PIPE, text=True)
        for one in handles
    ]
    assert [one.communicate()[0].strip() for one in pollers] == ["running"] * 3 + ["failed"]
    assert log.read_text() == "squeue\n"
    for handle in handles[:3]:
        backend.cancel(handle)


LOSES_ITS_ANSWER = """#!{python}
import subprocess, sys
done = subprocess.run(["{sbatch}", *sys.argv[1:]], capture_output=True, text=True)
if {dies}:
    import os, signal
    os.kill(os.getppid(), signal.SIGKILL)
sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
"""


def deaf_sbatch(folder: Path, slurm: MiniSlurm, monkeypatch, *, dies: bool) -> None:
    """An sbatch whose answer never arrives: it times out, or takes its caller with it."""
    import shutil

    real = shutil.which("sbatch", path=slurm.variables["PATH"])
    folder.mkdir()
    fake = folder / "sbatch"
    fake.write_text(LOSES_ITS_ANSWER.format(python=sys.executable, sbatch=real, dies=dies))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{slurm.variables['PATH']}")


def test_a_lost_answer_gives_one_job(slurm, backend, tmp_path, monkeypatch):
    deaf_sbatch(tmp_path / "bin", slurm, monkeypatch, dies=False)
    task = task_of(tmp_path, "print('done')")
    handle = backend.submit(task)
    assert wait(backend, handle).state == "succeeded"
    assert [job["JobId"] for job in jobs_of(slurm, task)] == [handle.id]


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_a_submitter_that_dies_before_the_answer_leaves_one_job(slurm, backend, tmp_path, monkeypatch, num_tasks):
    task = task_of(tmp_path, "print('done')", num_tasks=num_tasks)
    with monkeypatch.context() as patch:
        deaf_sbatch(tmp_path / "bin", slurm, patch, dies=True)
        script = (
            "import sys\n"
            "from pathlib import Path\n"
            "from resources.compute.slurm import SlurmBackend\n"
            "from tests.cluster.test_slurm_jobs import SETTINGS, task_of\n"
            "SlurmBackend(SETTINGS).submit(task_of(Path(sys.argv[1]), \"print('done')\", num_tasks=int(sys.argv[2])))"
        )
        died = subprocess.run([sys.executable, "-c", script, str(tmp_path), str(num_tasks)])
        assert died.returncode == -9
    if num_tasks == 1:
        (left,) = jobs_of(slurm, task)
        assert wait(backend, Handle(backend=backend.name, id=left["JobId"], key=task.key, folder=task.folder)).is_over
    handle = backend.submit(task)  # the quick job has ended; it is still not submitted again
    assert wait(backend, handle).state == "succeeded"
    assert [job["JobId"] for job in jobs_of(slurm, task)] == [handle.id]
    arrays = slurm.jobs(job_name(task.key, tmp_path) + ".ranks")
    assert len({job.get("ArrayJobId") for job in arrays}) == (1 if num_tasks > 1 else 0)


REFUSALS = [
    ({"memory_gb": 500}, {}, "memory_gb"),
    ({"gpus_per_node": 9}, {}, "gpus_per_node"),
    ({}, {"partition": "elsewhere"}, "parts.slurm.partition"),
    ({"num_tasks": 5000}, {}, "nodes"),
]


@pytest.mark.parametrize(("size", "settings", "field"), REFUSALS, ids=[field for _, _, field in REFUSALS])
def test_a_refused_job_is_bad_input_with_a_field_of_the_profile(slurm, tmp_path, size, settings, field):
    backend = SlurmBackend(SlurmSettings(poll_seconds=0.2, **settings))
    made, said = made_of(replace(task_of(tmp_path, "pass", **size), key="toys-f"), backend)
    assert isinstance(made, StageFailed) and made.exit_code == 2 and said == []
    assert f"`{field}`" in str(made) and "in the profile: sbatch" in str(made)
    assert list(tmp_path.glob("log*")) == []


def test_a_node_that_does_not_see_the_root_is_told_in_one_sentence(slurm, backend, tmp_path):
    unseen = tmp_path / "unseen"  # the nodes have mounts of their own
    unseen.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(unseen)], check=True)
    try:
        made, said = made_of(
            toy_ranks(unseen, ranks=3, faults=[], size=Size(backend="slurm", workers=1, hours=0.1)), backend
        )
    finally:
        subprocess.run(["umount", "--lazy", str(unseen)], check=True)
    assert isinstance(made, StageFailed) and made.exit_code == 2
    assert "all nodes share" in str(made)
    assert sum(line.startswith("submitted") for line in said) == 1


def test_a_job_that_slurm_never_heard_of_is_lost(backend, tmp_path):
    unknown = Handle(backend="slurm", id="999999", key="toy", folder=str(tmp_path))
    assert backend.poll(unknown).state == "lost"


def test_a_silent_controller_is_waited_for(slurm, backend, tmp_path, monkeypatch):
    handle = backend.submit(task_of(tmp_path, "import time; time.sleep(1)"))
    monkeypatch.setattr("resources.compute.slurm_calls.CALL_SECONDS", 0.5)
    slurm.pause_controller()
    try:
        status = backend.poll(handle)
    finally:
        slurm.resume_controller()
    assert status.state == "running"
    assert "did not answer" in status.reason
    monkeypatch.undo()
    for name, value in slurm.variables.items():
        monkeypatch.setenv(name, value)
    assert wait(backend, handle).state == "succeeded"


NEVER_STARTS = [({"nodes": 9}, 1), ({"threads": 64}, 1), ({"threads": 64}, 2), ({"hours": 5}, 1)]


@pytest.mark.parametrize(("size", "num_tasks"), NEVER_STARTS, ids=["nodes", "threads", "fan-out", "hours"])
def test_a_job_that_can_never_start_says_at_once_what_to_change(backend, tmp_path, size, num_tasks):
    status = backend.poll(backend.submit(task_of(tmp_path, "pass", num_tasks=num_tasks, **size)))
    assert f"`{next(iter(size))}`" in status.reason and "in the profile" in status.reason
    assert (status.state, status.is_stuck) == ("pending", True)


def test_a_job_that_waits_too_long_is_cancelled_and_says_what_it_waited_for(slurm, backend, tmp_path):
    task = task_of(tmp_path, "pass", nodes=9, max_pending_hours=0.5 / 3600)
    said, told = [], []
    watch = SimpleNamespace(
        say=said.append, is_canceling=lambda: False, tell_waiting=lambda cell, cause: told.append(cause)
    )
    with Watching(tmp_path, run_id="toy") as watching:
        job = Following(backend=backend, task=task, run=None, watch=watch, cell=None, watching=watching)
        status = job.attempt()
    assert "PartitionConfig: the partition cannot run such a job" in said[1]  # after "submitted", and not half a minute
    assert len(told) == 1 and "PartitionConfig" in told[0]  # the webhook, once
    assert (status.state, "PartitionConfig: the partition cannot run such a job" in status.reason) == (
        "cancelled",
        True,
    )
    assert "`max_pending_hours` is 0.000138889" in status.reason
    assert [job["JobState"] for job in jobs_of(slurm, task)] == ["CANCELLED"]


def test_a_job_that_waits_for_machines_is_not_stuck_and_counts_its_hours_in_the_queue(slurm, backend, tmp_path):
    first = backend.submit(task_of(tmp_path, SLEEP, str(tmp_path / "mark"), key="first", workers=2, num_tasks=2))
    wait_for(tmp_path / "mark")
    task = task_of(tmp_path, "pass", key="second", workers=2, max_pending_hours=1.0)
    second = backend.submit(task)
    slurm.wait_until(lambda: "machines it asks for are taken" in backend.poll(second).reason, "it waits")
    status = backend.poll(second)
    assert not status.is_stuck and status.pending_seconds < 30
    assert Patience().given_up(status, 1.0) is None
    for handle in (second, first):
        backend.cancel(handle)


def test_a_job_that_somebody_cancelled_while_it_waited_is_told_by_that_alone(slurm, backend, tmp_path):
    task = task_of(tmp_path, "pass", nodes=9)
    (tmp_path / "log.txt").write_text("error: of an earlier attempt\n")
    handle = backend.submit(task)
    slurm.call("scancel", handle.id)
    status = as_told(wait(backend, handle), tmp_path, is_saved=False)
    assert status.state == "cancelled"
    assert explain(backend, task, status) == "CANCELLED: the job was cancelled (exit 0:0)"


def test_a_requeued_job_waits_shortly_and_is_another_attempt(slurm, backend, tmp_path):
    handle = backend.submit(task_of(tmp_path, SLEEP, str(tmp_path / "mark")))
    wait_for(tmp_path / "mark")
    slurm.call("scontrol", "requeue", handle.id)
    slurm.wait_until(lambda: "requeued" in backend.poll(handle).reason, "it waits")  # Slurm names the reason later
    status = backend.poll(handle)
    assert "it was requeued" in status.reason and not status.is_stuck
    assert status.state == "pending"
    assert status.pending_seconds < 1.0
    backend.cancel(handle)
    assert wait(backend, handle).attempt == f"{handle.id}.1"
    assert (tmp_path / "log.txt").read_text().startswith(f"--- attempt {handle.id}.0 on node")


def says_held(status: Status) -> bool:
    """Whether a pending job's sentence says that it is held."""
    explained = status.reason.partition(": ")[2]
    return status.state == "pending" and ("is held" in explained or "holds it" in explained)


HOLDS = {
    "by a user": ["uhold", "JOB"],
    "by an administrator": ["hold", "JOB"],
    "requeued": ["requeuehold", "JOB"],
    "special": ["requeuehold", "State=SpecialExit", "JOB"],
    "by its reservation, which ended": ["update", "JobId=JOB", "ReservationName=short", "StartTime=now+600"],
    "not launched": [],
}


@pytest.mark.parametrize("held", HOLDS)
def test_a_held_job_says_so_at_once_whichever_command_of_slurm_is_asked(slurm, backend, tmp_path, held):
    """Slurm's commands spell one reason in several ways, with blanks and with underscores."""
    refusing = slurm.folder / "no-launch"
    if held == "not launched":
        refusing.touch()
    handle = backend.submit(task_of(tmp_path, SLEEP, str(tmp_path / "mark")))
    if HOLDS[held]:
        wait_for(tmp_path / "mark")
        if held.startswith("by"):  # only a job that waits can be held
            slurm.call("scontrol", "requeue", handle.id)
            slurm.wait_until(lambda: backend.poll(handle).state == "pending", "it waits")
        if "reservation" in held:
            which = ("StartTime=now+1", "EndTime=now+6", "Users=root", "Nodes=node1", "Flags=IGNORE_JOBS")
            slurm.call("scontrol", "create", "reservation", "ReservationName=short", *which)
        slurm.call("scontrol", *(word.replace("JOB", handle.id) for word in HOLDS[held]))
    try:
        slurm.wait_until(
            lambda: backend.poll(handle).is_stuck and backend.poll(handle).state == "pending", "it is held"
        )
    finally:
        refusing.unlink(missing_ok=True)
    listed = backend.poll(handle)
    shown = status_of(fields_of(slurm.call("scontrol", "-o", "show", "job", handle.id)))
    assert shown.reason == listed.reason and (shown.state, shown.is_stuck) == ("pending", True)
    assert says_held(shown) and Patience().is_due(listed)
    backend.cancel(handle)
    if held == "not launched":  # Slurm drains the node that could not launch it
        slurm.wait_until(lambda: bool(drained(slurm)), "the node is drained", seconds=60)
        for node in drained(slurm):
            slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME")


def drained(slurm: MiniSlurm) -> set[str]:
    """Names of the nodes that take no job until an administrator says so."""
    return set(slurm.call("sinfo", "-h", "-N", "-t", "drain", "-o", "%N").split())


def test_attempts_that_lost_their_nodes_cost_no_retry_and_are_billed_as_slurm_counts_them(slurm, tmp_path):
    """Somebody requeues the job, and then another one preempts it. Slurm's own file of ended jobs is the comparison.

    A preempted job may be requeued, or fail because srun ends with 143: the ranks that import libraries do not listen.
    """
    backend, heard = SlurmBackend(replace(SETTINGS, poll_seconds=0.1)), []
    size = Size(backend="slurm", nodes=2, workers=1, threads=1, memory_gb=2, hours=0.1, retries=0, price_per_hour=3600)
    task = replace(toy_task(tmp_path, "together"), size=size)

    def running(restarts: str) -> list[str]:
        jobs = [job for job in jobs_of(slurm, task) if (job["JobState"], job["Restarts"]) == ("RUNNING", restarts)]
        return [job["JobId"] for job in jobs if job["RunTime"] >= "00:00:01"]

    def disturb() -> None:
        slurm.wait_until(lambda: bool(running("0")), "the job runs")
        slurm.call("scontrol", "requeue", *running("0"))
        slurm.wait_until(lambda: bool(running("1")), "the job runs again")
        slurm.call("sbatch", "--partition=urgent", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=true")

    disturber = threading.Thread(target=disturb)
    disturber.start()
    with heard_by(lambda kind, cell, values: heard.append(values.get("text", ""))):
        made, said = made_of(task, backend)
    disturber.join()
    assert isinstance(made, Artifact), said
    cost = find(made.path).record["cost"]
    told = [(one["attempt"], one["begin"], one["end"], one["nodes"]) for one in cost["attempts"]]
    assert told == [
        (f"{job}.{restart}", *(seconds_of(one[name]) for name in ("StartTime", "EndTime")), int(one["NodeCnt"]))
        for job in sorted({job["JobId"] for job in jobs_of(slurm, task)}, key=int)
        for restart, one in enumerate(slurm.completed(job))
    ]
    causes = [one["cause"] for one in cost["attempts"]]
    assert causes[0] == "requeued" and "preempted" in causes[1:]
    seconds = sum(nodes * (end - begin) for _, begin, end, nodes in told)
    assert cost["price"] == pytest.approx(seconds, abs=0.01)
    assert cost["work_node_hours"] < cost["node_hours"] and cost["energy"]["nodes"] == {"state": "absent"}
    news, first = "\n".join(heard), cost["attempts"][0]["attempt"]
    assert f"attempt {first} runs on node[1-2]" in news and f"attempt {first} was requeued after" in news
    assert "was preempted" in news
    assert find_copy(made.path).record == find(made.path).record


def test_attempts_that_nobody_followed_are_billed_by_their_signs_of_life_and_the_bill_says_at_least(slurm, tmp_path):
    """Slurm has no accounting here and forgets an attempt at its requeue; its file of ended jobs is the comparison."""
    backend = SlurmBackend(replace(SETTINGS, poll_seconds=0.1))
    size = Size(backend="slurm", workers=1, threads=1, memory_gb=2, hours=0.1)
    task = replace(toy_task(tmp_path, "together", sleeps=True), size=size)
    handle = backend.submit(task)
    for restart in range(2):
        process = Path(task.folder) / "attempts" / f"{handle.id}.{restart}.json"
        slurm.wait_until(process.exists, "its process began")
        begun = process.stat().st_mtime
        slurm.wait_until(lambda path=process, since=begun: path.stat().st_mtime > since, "it shows that it lives")
        toy_task(tmp_path, "together", **({} if restart else {"sleeps": True}))  # the last attempt ends by itself
        slurm.call("scontrol", "requeue", handle.id)
    made, said = made_of(task, backend)
    assert isinstance(made, Artifact), said
    cost = find(made.path).record["cost"]
    spans = [(seconds_of(one["StartTime"]), seconds_of(one["EndTime"])) for one in slurm.completed(handle.id)]
    told = [(one["begin"], one["end"]) for one in cost["attempts"]]
    assert cost["least"] == 2 and told[2] == spans[2]
    for (begin, end), (began, ended) in zip(told[:2], spans[:2], strict=True):
        assert began <= begin < end <= ended + 1  # Slurm counts in whole seconds
    assert 0 < cost["node_hours"] * 3600 <= sum(end - begin for begin, end in spans) + 2


def seconds_of(time_of_slurm: str) -> float:
    return time.mktime(time.strptime(time_of_slurm, "%Y-%m-%dT%H:%M:%S"))


ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
line = f"{dist.get_rank()} of {dist.get_world_size()} on {os.uname().nodename}: {value.item()}"
open(os.environ["RESULT"], "a").write(line + "\\n")
dist.destroy_process_group()
"""


def test_two_nodes_train_together_under_srun_and_torchrun(slurm, backend, tmp_path, monkeypatch):
    (tmp_path / "toy_all_reduce.py").write_text(ALL_REDUCE)
    size = Size(backend="slurm", nodes=2, gpus_per_node=1, workers=1, threads=1, memory_gb=2, hours=0.1)
    task = Task(
        key="train",
        argv=("-m", "toy_all_reduce"),
        size=size,
        folder=str(tmp_path),
        environment={"PYTHONPATH": str(tmp_path), "RESULT": str(tmp_path / "result")},
    )
    status = wait(backend, backend.submit(task), seconds=240)
    assert status.state == "succeeded", backend.log_tail(str(tmp_path), 40)
    lines = sorted((tmp_path / "result").read_text().splitlines())
    assert lines == ["0 of 2 on node1: 3.0", "1 of 2 on node2: 3.0"]


UNTIL_A_NODE_IS_LOST = ALL_REDUCE.replace(
    "dist.destroy",
    """import pathlib, time
while not pathlib.Path(os.environ["RESULT"] + ".lost").exists():
    time.sleep(0.1)
dist.all_reduce(value)
dist.destroy""",
)


@pytest.mark.parametrize(
    ("cluster", "how", "then"),
    [
        ("three_nodes", {"spare_nodes": 1}, ["0 of 2 on node1: 3.0", "1 of 2 on node3: 3.0"]),
        ("slurm", {"min_nodes": 1, "micro_batch_tokens": 8}, ["0 of 1 on node1: 1.0"]),
    ],
)
def test_a_training_goes_on_in_place_when_it_loses_a_node(request, tmp_path, cluster, how, then):
    """The second node loses its power; the first one goes on with a spare one, or alone, in the same job."""
    cluster, backend = request.getfixturevalue(cluster), SlurmBackend(SETTINGS)
    (tmp_path / "toy_until_lost.py").write_text(UNTIL_A_NODE_IS_LOST)
    result = tmp_path / "result"
    task = Task(
        key="train",
        argv=("-m", "toy_until_lost"),
        size=Size(backend="slurm", nodes=2, workers=1, threads=1, memory_gb=0.5, hours=0.1, **how),
        folder=str(tmp_path),
        environment={"PYTHONPATH": str(tmp_path), "RESULT": str(result)},
    )
    handle = backend.submit(task)
    cluster.wait_until(lambda: result.exists() and result.read_text().count("\n") == 2, "two nodes train", seconds=60)
    cluster.fail("node2")
    cluster.call("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=dead")  # or half a minute later
    Path(f"{result}.lost").touch()
    status, log = wait(backend, handle, seconds=240), (tmp_path / "log.txt").read_text()
    assert (status.state, status.exit_code) == ("succeeded", 0), log
    assert sorted(result.read_text().splitlines()[2:]) == then, log
    (job,) = jobs_of(cluster, task)
    assert job["Restarts"] == "0" and "node node2 was lost" in log
    assert "was lost" not in backend.log_tail(str(tmp_path), 200)  # a later failure is told by its own lines alone


FEWER = {"min_nodes": 1, "micro_batch_tokens": 8}  # nodes on which a training goes on when one is lost


@pytest.mark.parametrize("then", [{}, FEWER])
def test_bad_input_is_told_through_srun_and_torchrun_and_spends_no_retry(backend, tmp_path, then):
    size = Size(backend="slurm", nodes=2, workers=1, threads=1, memory_gb=2, hours=0.1, retries=1, **then)
    made, said = made_of(replace(toy_task(tmp_path, "together", bad="no text in it"), size=size), backend)
    assert isinstance(made, StageFailed) and made.exit_code == 2 and str(made) == "toys [r]: no text in it"
    assert sum(line.startswith("submitted") for line in said) == 1


def test_a_job_whose_node_dies_starts_again_on_another(slurm, backend, tmp_path):
    code = (
        "import pathlib, socket, sys, time\n"
        "mark = pathlib.Path(sys.argv[1])\n"
        "if not mark.exists():\n"
        "    mark.write_text(socket.gethostname()); time.sleep(300)\n"
        "mark.with_suffix('.again').write_text(socket.gethostname())"
    )
    task = task_of(tmp_path, code, str(tmp_path / "mark"))
    handle = backend.submit(task)
    node = wait_for(tmp_path / "mark")
    slurm.fail(node)
    slurm.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=dead")  # or half a minute later
    status = wait(backend, handle, seconds=240)
    assert status.state == "succeeded", status
    assert (tmp_path / "mark.again").read_text() != node
    (job,) = jobs_of(slurm, task)  # Slurm starts it again, nobody submits it again
    assert int(job["Restarts"]) >= 1  # a busy machine may keep the other node from answering, too


def test_a_job_is_warned_before_its_time_is_up_and_saves_itself(slurm, backend, tmp_path):
    """The limit is lowered below what has passed: Slurm counts in minutes, and a test should not."""
    code = f"import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); {SLEEP}"
    handle = backend.submit(task_of(tmp_path, code, str(tmp_path / "mark")))
    wait_for(tmp_path / "mark")
    slurm.call("scontrol", "update", f"JobId={handle.id}", "TimeLimit=0:01")
    status = wait(backend, handle, seconds=240)
    assert (status.state, status.exit_code) == ("failed", 75), status

"""Jobs and the chain on a real Kubernetes API server with its controllers (`make kubernetes`), and what ends them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from resources.compute.base import Handle, NotSubmitted, Status, Task
from resources.compute.kubernetes import JOB_FILE, KubernetesBackend, KubernetesSettings
from resources.compute.size import Size
from tests.cluster import minikubernetes
from tests.cluster.minikubernetes import MiniKubernetes
from tests.small_kitchen import pedigree

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

ROLE = Path(__file__).parents[2] / "examples" / "kubernetes" / "role.yaml"
WAITS = "import time; time.sleep(600)"


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[MiniKubernetes]:
    if lacking := minikubernetes.missing():
        pytest.skip(f"no Kubernetes here: {lacking}")
    cluster = MiniKubernetes(Path(tempfile.mkdtemp(prefix="mk-")))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder)


class Jobs:
    """The backend on this cluster, and the jobs of a test."""

    def __init__(self, kubernetes: MiniKubernetes) -> None:
        self.cluster = kubernetes
        self.folder = Path(tempfile.mkdtemp(dir=kubernetes.root))
        self.backend = self.backend_with()

    def backend_with(self, **changes) -> KubernetesBackend:
        return KubernetesBackend(KubernetesSettings(**self.cluster.settings(**changes)))

    def task(self, code: str, *, size: dict | None = None, **changes) -> Task:
        plain = {"backend": "kubernetes", "workers": 1, "memory_gb": 1, "hours": 0.1}
        folder = self.folder / changes.pop("name", "f")
        return Task(
            key=f"toy-{folder.name}",
            argv=("-c", code),
            folder=str(folder),
            size=Size(**{**plain, **(size or {})}),
            **changes,
        )

    def submit(self, code: str, **changes) -> Handle:
        return self.backend.submit(self.task(code, **changes))

    def until(self, handle: Handle, holds: Callable[[Status], bool], *, seconds: float = 120.0) -> Status:
        """The first status of which something holds; AssertionError with the last one if none comes."""
        deadline = time.monotonic() + seconds
        while not holds(status := self.backend.poll(handle)):
            assert time.monotonic() < deadline, status
            time.sleep(0.2)
        return status

    def running(self, handle: Handle) -> Status:
        return self.until(handle, lambda status: status.state == "running")

    def ended(self, handle: Handle, *, seconds: float = 120.0) -> Status:
        return self.until(handle, lambda status: status.is_over, seconds=seconds)

    def pods(self, handle: Handle) -> list[dict]:
        return [one for one in self.cluster.pods() if one["metadata"]["labels"]["pedigree/submission"] == handle.id]


@pytest.fixture
def jobs(kubernetes: MiniKubernetes, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    for name, value in kubernetes.variables.items():
        monkeypatch.setenv(name, value)
    return Jobs(kubernetes)


def once(then: str, folder: Path, first: str = "sys.exit(75)") -> str:
    """A program that does something in its first attempt, and something else in the next."""
    seen = repr(str(folder / "seen"))
    return f"import os, sys, time\nif not os.path.exists({seen}):\n open({seen}, 'w'); {first}\n{then}"


def processes_of(place: Path) -> list[int]:
    """The processes of containers whose command lines name a place; the namespaces around them are no such."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"python" in words[0] and any(str(place).encode() in word for word in words):
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(1)", 1, "exit 1"),
        ("raise SystemExit(2)", 2, "exit 2"),
        ("raise SystemExit(3)", 3, "exit 3"),
    ],
)
def test_a_job_ends_as_its_command_did_in_one_attempt(jobs: Jobs, code, exit_code, said):
    handle = jobs.submit(code)
    status = jobs.ended(handle)
    assert (status.state, status.exit_code) == ("failed" if exit_code else "succeeded", exit_code)
    assert said in status.reason
    (bill,) = status.allocations
    assert bill.attempt == f"{handle.id}.0" and bill.end >= bill.begin and "@sha256:" in bill.image
    assert bill.names in jobs.cluster.nodes


def test_a_job_that_saved_its_state_is_started_again(jobs: Jobs):
    handle = jobs.submit(once("print('went on')", jobs.folder))
    status = jobs.ended(handle)
    assert status.state == "succeeded"
    assert [one.attempt for one in status.allocations] == [f"{handle.id}.0", f"{handle.id}.1"]
    assert jobs.backend.log_tail(handle.folder, 5) == "went on"


def test_a_job_that_is_killed_has_failed_by_a_signal(jobs: Jobs):
    handle = jobs.submit(f"'{jobs.folder}'; {WAITS}")
    jobs.running(handle)
    jobs.cluster.wait_until(lambda: bool(processes_of(jobs.folder)), "its process is there")
    for process in processes_of(jobs.folder):
        os.kill(process, signal.SIGKILL)
    status = jobs.ended(handle)
    assert (status.state, status.exit_code, status.was_ended, status.was_preempted) == ("failed", -9, True, False)


def test_a_job_that_takes_too_long_is_told_the_field(jobs: Jobs):
    status = jobs.ended(jobs.submit(WAITS, size={"hours": 3 / 3600}), seconds=200)
    assert (status.state, status.was_ended) == ("failed", True) and "raise `hours`" in status.reason


@pytest.mark.parametrize("way", ["evicted", "drained"])
def test_a_pod_that_loses_its_node_goes_on_on_another_and_nothing_is_counted(jobs: Jobs, way):
    handle = jobs.submit(once("print('went on')", jobs.folder, "time.sleep(600)"))
    node = jobs.running(handle).reason
    jobs.cluster.wait_until((jobs.folder / "seen").exists, "its program runs")
    (pod,) = jobs.pods(handle)
    name, namespace = pod["metadata"]["name"], jobs.cluster.namespace
    if way == "evicted":
        asked = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        place = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        jobs.cluster.call("create", "--raw", place, "-f", "-", given=json.dumps(asked))
    else:
        options = ("--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=50s", "--grace-period=3")
        jobs.cluster.call("drain", node, *options)
    status = jobs.ended(handle)
    second = status.allocations[-1]  # the first pod may be gone with its object
    assert (status.state, second.attempt, second.cause) == ("succeeded", f"{handle.id}.1", "completed")
    assert jobs.backend.log_tail(handle.folder, 5) == "went on"
    if way == "drained":
        assert second.names != node
        jobs.cluster.call("uncordon", node)


@pytest.mark.parametrize(
    ("settings", "size", "is_stuck", "said"),
    [
        ({"image": "example/other:1"}, {}, True, "ErrImagePull.*`parts.kubernetes.image`"),
        ({"secrets": ("missing",)}, {}, True, "CreateContainerConfigError.*`parts.kubernetes.secrets`"),
        ({}, {"workers": 1000}, False, "Insufficient cpu.*`workers`"),
        ({}, {"gpus_per_node": 1}, False, "`gpus_per_node`"),
        ({"pod": {"nodeSelector": {"a": "b"}}}, {}, False, "`nodeSelector`"),
        ({"pod": {"serviceAccountName": "missing"}}, {}, True, "`serviceAccountName`"),
    ],
)
def test_a_job_that_does_not_start_says_which_field_to_change(jobs: Jobs, settings, size, is_stuck, said):
    if not is_stuck:
        jobs.cluster.needs_scheduler()
    jobs.backend = jobs.backend_with(**settings)
    handle = jobs.submit("pass", size=size)
    status = jobs.until(handle, lambda status: re.search(said, status.reason) is not None, seconds=30)
    assert (status.state, status.is_stuck) == ("pending", is_stuck)
    jobs.backend.cancel(handle)
    assert jobs.ended(handle).reason == "the job was cancelled"


def test_a_claim_that_is_not_there_is_said(jobs: Jobs):
    jobs.cluster.needs_scheduler()
    claims = {**jobs.cluster.settings()["claims"], "missing": "/nowhere"}
    jobs.backend = jobs.backend_with(claims=claims)
    handle = jobs.submit("pass")
    assert jobs.until(handle, lambda status: status.is_stuck, seconds=30).reason.count("`parts.kubernetes.claims`") == 1
    jobs.backend.cancel(handle)


def test_a_cancelled_job_ends_its_process_and_is_told_from_a_deleted_one(jobs: Jobs):
    mine, others = (jobs.submit(f"'{jobs.folder}'; {WAITS}", name=name) for name in "ab")
    for handle in (mine, others):
        jobs.running(handle)
    jobs.backend.cancel(mine)
    assert jobs.ended(mine).reason == "the job was cancelled"
    jobs.cluster.wait_until(lambda: len(processes_of(jobs.folder)) == 1, "one process is left")
    jobs.cluster.call("delete", "job", others.id, f"--namespace={jobs.cluster.namespace}")
    assert jobs.ended(others).reason == "somebody deleted its Job"


def test_a_queued_job_waits_until_it_is_taken(jobs: Jobs):
    jobs.backend = jobs.backend_with(queue="team")
    handle = jobs.submit("pass")
    assert "the queue team has not taken it" in jobs.until(handle, lambda one: one.state == "pending").reason
    assert not jobs.pods(handle)
    place = f"/apis/batch/v1/namespaces/{jobs.cluster.namespace}/jobs/{handle.id}"
    labels = jobs.cluster.get(place)["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "team"
    jobs.cluster.call(
        "patch", "job", handle.id, f"--namespace={jobs.cluster.namespace}", "-p", '{"spec": {"suspend": false}}'
    )
    assert jobs.ended(handle).state == "succeeded"


def test_two_submissions_are_one_job_and_an_interrupted_one_goes_on_with_its_job(jobs: Jobs):
    task = jobs.task(WAITS)
    handle = jobs.backend.submit(task)
    assert jobs.backend.submit(task) == handle
    note = Path(task.folder) / JOB_FILE
    note.write_text(json.dumps({**json.loads(note.read_text()), "created": False}))  # its answer never came
    assert jobs.backend.submit(task) == handle  # 409
    note.unlink()
    assert jobs.backend.find(task.key, task.folder) == handle
    assert len(jobs.pods(handle)) == 1
    jobs.backend.cancel(handle)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"namespace": "missing"}, "parts.kubernetes.namespace"),
        ({"pod": {"tolerationz": []}}, "tolerationz.*parts.kubernetes.pod"),
        ({"pod": {"nodeSelector": {"a": "!"}}}, "parts.kubernetes.pod"),
        ({"context": "missing"}, "parts.kubernetes.context"),
    ],
)
def test_what_the_server_refuses_names_the_field(jobs: Jobs, settings, said):
    with pytest.raises(NotSubmitted, match=said) as refused:
        jobs.backend_with(**settings).submit(jobs.task("pass"))
    assert refused.value.is_refused


def test_a_user_without_rights_and_an_expired_token_lose_no_job(jobs: Jobs, monkeypatch, tmp_path):
    """A user with the example's rights and no others; then its token becomes invalid, and it logs in again."""
    cluster, named = jobs.cluster, f"--namespace={jobs.cluster.namespace}"
    account, *rights = yaml.safe_load_all(
        ROLE.read_text().replace("namespace: default", f"namespace: {cluster.namespace}")
    )
    config = yaml.safe_load(cluster.config.read_text())

    def log_in() -> None:
        cluster.call("create", named, "-f", "-", given=json.dumps(account))
        token = cluster.call("create", "token", "pedigree", named).strip()
        users = [{**config["users"][0], "user": {"token": token}}]
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump({**config, "users": users}))

    log_in()
    with monkeypatch.context() as patch:
        patch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        with pytest.raises(NotSubmitted, match="ask for the rights"):
            jobs.submit("pass")
        for one in rights:
            cluster.call("create", named, "-f", "-", given=json.dumps(one))
        handle = jobs.submit(f"'{jobs.folder}'; {WAITS}")
        jobs.running(handle)
        cluster.call("delete", "serviceaccount", "pedigree", named)
        assert jobs.until(handle, lambda status: "log in" in status.reason).state == "running"
        log_in()
        assert jobs.until(handle, lambda status: status.reason in cluster.nodes).state == "running"
        jobs.backend.cancel(handle)
        assert jobs.ended(handle).reason == "the job was cancelled"


MEETS = """
import time
import torch.distributed as processes
processes.init_process_group("gloo")
processes.barrier()
open({met!r}, "w")
time.sleep(600)
"""


def test_a_training_meets_by_its_service_and_ends_with_its_first_lost_pod(jobs: Jobs):
    program, met = jobs.folder / "meets.py", jobs.folder / "met"
    program.write_text(MEETS.format(met=str(met)))
    size = Size(backend="kubernetes", nodes=2, threads=1, workers=1, hours=0.2)
    handle = jobs.backend.submit(Task(key="two", argv=(str(program),), folder=str(jobs.folder / "two"), size=size))
    jobs.cluster.wait_until(met.exists, "both have met")
    pods, named = jobs.pods(handle), f"--namespace={jobs.cluster.namespace}"
    assert len(pods) == 2
    jobs.cluster.call("delete", "pod", pods[1]["metadata"]["name"], named, "--grace-period=1", "--wait=false")
    assert jobs.ended(handle).state == "failed"
    jobs.cluster.call("delete", "job", handle.id, named)
    services = f"/api/v1/namespaces/{jobs.cluster.namespace}/services"
    jobs.cluster.wait_until(lambda: not jobs.cluster.get(services)["items"], "its service goes with it")


def test_the_chain_runs_there_by_changing_the_profile_alone(kubernetes: MiniKubernetes, jobs: Jobs, tmp_path, request):
    profile = kubernetes.write_profile(
        tmp_path / "cluster.yaml",
        partitions_at_once=2,
        stages={"extracted_documents": {"nodes": 2}},
    )
    there = pedigree(
        "run", "kitchen-small", "--until", "training_plan", "--profile", str(profile), root=kubernetes.root / "runs"
    )
    assert there.code == 0, there.errors
    here = request.getfixturevalue("first").answer
    made = {
        (asset, part): one["digest"] for asset, cells in there.answer["assets"].items() for part, one in cells.items()
    }
    wanted = {(asset, part): one["digest"] for asset, cells in here["assets"].items() for part, one in cells.items()}
    assert made == {cell: wanted[cell] for cell in made} and ("training_plan", "kitchen-small") in made

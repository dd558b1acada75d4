"""Jobs on a real Kubernetes API server with its controllers (`make kubernetes`), and what ends them."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from assets.answers.doctor.schedulers import look_at_schedulers
from assets.materialize.causes import StageFailed
from resources.compute.base import Handle, NotSubmitted, Status, Task
from resources.compute.kubernetes import JOB_FILE, KubernetesBackend, KubernetesSettings
from resources.compute.size import Size
from resources.profile import load_profile
from tests.cluster.minikubernetes import SMALL_CLAIM_MB, MiniKubernetes, processes_of
from tests.toys import made_of, toy_task
from training.contract.artifact import Artifact

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

ROLE = Path(__file__).parents[2] / "examples" / "kubernetes" / "role.yaml"
WAITS = "import time; time.sleep(600)"


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

    def take(self, handle: Handle) -> None:
        """Let a job go, as its queue does."""
        named = f"--namespace={self.cluster.namespace}"
        self.cluster.call("patch", "job", handle.id, named, "-p", '{"spec": {"suspend": false}}')

    def pods(self, handle: Handle) -> list[dict]:
        return [one for one in self.cluster.pods() if one["metadata"]["labels"]["pedigree/submission"] == handle.id]


@pytest.fixture
def jobs(kubernetes: MiniKubernetes) -> Jobs:
    return Jobs(kubernetes)


QUEUES = "kueue.x-k8s.io"


@pytest.fixture
def queues(kubernetes: MiniKubernetes) -> Iterator[None]:
    """The definitions of Kueue's objects, without Kueue; a cluster with Kueue has objects of its own."""
    kinds = {"LocalQueue": "localqueues", "Workload": "workloads"}
    with suppress(AssertionError):
        kubernetes.get(f"/apis/{QUEUES}")
        pytest.skip("Kueue is here")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1beta2", "served": True, "storage": True, "schema": schema}
    for kind, plural in kinds.items():
        names = {"kind": kind, "plural": plural, "singular": kind.lower()}
        spec = {"group": QUEUES, "scope": "Namespaced", "names": names, "versions": [version]}
        kubernetes.create("apiextensions.k8s.io/v1", "CustomResourceDefinition", f"{plural}.{QUEUES}", spec=spec)
        kubernetes.call("wait", "--for=condition=Established", f"crd/{plural}.{QUEUES}", "--timeout=30s")
    yield
    for plural in kinds.values():
        kubernetes.call("delete", "crd", f"{plural}.{QUEUES}")


def once(then: str, folder: Path, first: str = "sys.exit(75)") -> str:
    """A program that does something in its first attempt, and something else in the next."""
    seen = repr(str(folder / "seen"))
    return f"import os, sys, time\nif not os.path.exists({seen}):\n open({seen}, 'w'); {first}\n{then}"


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
    if way == "evicted":
        jobs.cluster.evict(pod["metadata"]["name"])
    else:
        jobs.cluster.drain(node)
    status = jobs.ended(handle)
    second = status.allocations[-1]  # the first pod may be gone with its object
    assert (status.state, second.attempt, second.cause) == ("succeeded", f"{handle.id}.1", "completed")
    assert jobs.backend.log_tail(handle.folder, 5) == "went on"
    assert way == "evicted" or second.names != node


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


def test_a_claim_that_is_full_is_said_and_the_next_run_goes_on(jobs: Jobs):
    folder = Path(tempfile.mkdtemp(dir=jobs.cluster.small))
    size = Size(backend="kubernetes", workers=1, hours=0.1, retries=0)
    task = toy_task(folder, ranks=2, faults=[(1, "fill")], size=size)
    refused, said = made_of(task, jobs.backend)
    assert isinstance(refused, StageFailed) and "disk full while writing" in str(refused), (refused, said)
    (sign,) = folder.rglob("fault-0")
    sign.write_bytes(b"")
    made, said = made_of(task, jobs.backend)
    assert isinstance(made, Artifact), (made, said)


def test_a_claim_that_became_full_before_the_pod_began_is_said(jobs: Jobs):
    jobs.folder = Path(tempfile.mkdtemp(dir=jobs.cluster.small))
    jobs.backend = jobs.backend_with(queue="team")
    handle = jobs.submit("pass")
    filler = jobs.cluster.small / "filler"
    with suppress(OSError):
        filler.write_bytes(bytes(SMALL_CLAIM_MB << 20))
    jobs.take(handle)
    status = jobs.ended(handle)
    filler.unlink()
    assert (status.state, status.exit_code) == ("failed", 1) and "no space is left" in status.reason


def test_a_pod_that_another_one_displaces_by_priority_goes_on_after_it(jobs: Jobs):
    cluster, name = jobs.cluster, f"{jobs.cluster.namespace}-high"
    cluster.needs_scheduler()
    cluster.create("scheduling.k8s.io/v1", "PriorityClass", name, value=1000)
    try:
        low = jobs.submit(once("print('went on')", jobs.folder, "time.sleep(600)"), size={"workers": 2}, name="low")
        node = jobs.running(low).reason
        jobs.backend = jobs.backend_with(
            pod={"priorityClassName": name, "nodeSelector": {"kubernetes.io/hostname": node}}
        )
        high = jobs.submit("pass", size={"workers": 2}, name="high")
        assert "preempted: a pod of higher priority" in jobs.until(low, lambda one: one.was_preempted).reason
        assert jobs.ended(high).state == "succeeded"
        status = jobs.ended(low)
        assert (status.state, status.allocations[-1].attempt) == ("succeeded", f"{low.id}.1")
    finally:
        cluster.call("delete", "priorityclass", name)


def test_the_pod_of_a_node_that_dies_goes_on_when_the_node_is_removed(jobs: Jobs):
    """The cluster taints a node that gives no sign for 40 s (50 s from Kubernetes 1.32 on)."""
    cluster = jobs.cluster
    handle = jobs.submit(once("print('went on')", jobs.folder, "time.sleep(600)"))
    node = jobs.running(handle).reason
    cluster.wait_until((jobs.folder / "seen").exists, "its program runs")
    cluster.fail(node)
    cluster.wait_until(lambda: not cluster.is_ready(node), "the cluster knows")
    assert jobs.backend.poll(handle).state == "running"
    cluster.call("delete", "node", node)
    status = jobs.ended(handle, seconds=300)
    assert (status.state, status.allocations[-1].attempt) == ("succeeded", f"{handle.id}.1")
    assert status.allocations[-1].names != node
    cluster.revive(node)
    cluster.wait_until(lambda: cluster.is_ready(node), "the node is back")


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
    jobs.take(handle)
    assert jobs.ended(handle).state == "succeeded"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Suspended", "`parts.kubernetes.queue`"),
        ("ExceedsMaxQuota", "`workers`"),
        ("WaitingForQuota", "holds it"),
    ],
)
def test_a_queue_says_why_it_takes_no_job(jobs: Jobs, queues: None, reason, said):
    """The objects are Kueue's, and what its controller would write into them is written here."""
    cluster = jobs.cluster
    jobs.backend = jobs.backend_with(queue="team")
    handle = jobs.submit("pass")
    uid = cluster.get(f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs/{handle.id}")["metadata"]["uid"]
    why = {"type": "QuotaReserved", "status": "False", "reason": reason, "message": "as it says"}
    told = {"metadata": {"name": handle.id, "labels": {"kueue.x-k8s.io/job-uid": uid}}, "status": {"conditions": [why]}}
    cluster.add({"apiVersion": f"{QUEUES}/v1beta2", "kind": "Workload", **told})
    status = jobs.backend.poll(handle)
    assert f"{reason}: as it says" in status.reason and said in status.reason
    assert (status.state, status.is_stuck) == ("pending", reason != "WaitingForQuota")
    jobs.backend.cancel(handle)


def test_a_closed_queue_is_found_before_a_job_is_submitted(jobs: Jobs, queues: None, tmp_path):
    cluster = jobs.cluster
    for name, state in (("open", "True"), ("closed", "False")):
        status = {"conditions": [{"type": "Active", "status": state, "reason": "Held", "message": "it is stopped"}]}
        cluster.create(f"{QUEUES}/v1beta2", "LocalQueue", name, status=status)
        profile = cluster.write_profile(tmp_path / f"{name}.yaml", parts={"kubernetes": cluster.settings(queue=name)})
        found = look_at_schedulers(load_profile(str(profile)), cluster.root)
        (one,) = [one for one in found if one.what == "queue"]
        assert one.state == {"True": "ok", "False": "problem"}[state]
        assert state == "True" or "it is stopped" in one.found


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
        cluster.add(account)
        token = cluster.call("create", "token", "pedigree", named).strip()
        users = [{**config["users"][0], "user": {"token": token}}]
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump({**config, "users": users}))

    log_in()
    with monkeypatch.context() as patch:
        patch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        with pytest.raises(NotSubmitted, match="ask for the rights"):
            jobs.submit("pass")
        for one in rights:
            cluster.add(one)
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

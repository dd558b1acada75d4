"""The Kubernetes backend: what it would create, as text, and what it makes of an API server's answers, by `kubectl`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from resources.compute.base import NodeFolder, NotSubmitted, Status, Task
from resources.compute.kubernetes import JOB_FILE, KubernetesBackend, KubernetesSettings, base_name, manifests
from resources.compute.kubernetes_calls import Cluster
from resources.compute.kubernetes_states import TAKEN
from resources.compute.size import Size
from tests.cluster.miniapi import MiniApi
from training.contract.records import RecipeError

SIZE = {"backend": "kubernetes", "workers": 4, "threads": 2, "memory_gb": 1.5, "hours": 2}


def settings_of(place: object = "/runs", **changes) -> KubernetesSettings:
    plain = {"image": "example/p@sha256:1f", "claims": {"runs": str(place)}, "poll_seconds": 0.01}
    return KubernetesSettings(**{**plain, **changes})


def task_of(folder: object = "/runs/f", *, size: dict | None = None, **changes) -> Task:
    plain = {"key": "base_model-0123", "argv": ("-m", "training", f"{folder}/job.json")}
    return Task(**{**plain, "size": Size(**{**SIZE, **(size or {})}), "folder": str(folder), **changes})


def script(manifest: dict) -> str:
    """What the shell of a pod reads."""
    return manifest["spec"]["template"]["spec"]["containers"][0]["command"][2].replace("$$", "$")


def command(manifest: dict) -> str:
    """The command that the shell of a pod runs."""
    (line,) = [line for line in script(manifest).splitlines() if line.endswith(" &")]
    return line.removesuffix(" 3>&- &")


ONE = task_of()
THERE = NodeFolder(path="/cache/b-runs/base_model/0123", address="s3://bucket/runs", endpoint="http://s3.example")
APART = task_of("/elsewhere/f", size={"node_cache": "/cache"}, node_folder=THERE)
TRAINING = task_of(size={"nodes": 2, "processes": 4, "gpus_per_node": 4})
FAN_OUT = task_of(num_tasks=3, size={"nodes": 3}, phases=("sort", "merge"))
BUSY = {"queue": "team", "secrets": ("hub",), "pod": {"tolerations": [{"operator": "Exists"}]}}


@pytest.mark.parametrize("task", [ONE, TRAINING, FAN_OUT, APART])
def test_what_is_created_has_the_published_schema(task):
    validate = pytest.importorskip("kubernetes_validate")
    for one in manifests(task, settings_of(**BUSY), token="1a"):
        validate.validate(one, "1.37", strict=True)
        with pytest.raises(validate.ValidationError, match="backoffLimitt"):
            validate.validate({**one, "spec": {**one["spec"], "backoffLimitt": 1}}, "1.37", strict=True)


def test_a_job_asks_for_what_the_profile_says():
    (job,) = manifests(task_of(environment={"A": "it's $(HOME)"}), settings_of(**BUSY), token="1a")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "4", "memory": "1536Mi"},
        "limits": {"memory": "1536Mi"},
    }
    assert (pod["activeDeadlineSeconds"], pod["tolerations"]) == (7200, [{"operator": "Exists"}])
    assert (job["spec"]["suspend"], job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]) == (True, "team")
    assert container["env"][:2] == [{"name": "A", "value": "it's $$(HOME)"}, {"name": "OMP_NUM_THREADS", "value": "2"}]
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert command(job) == "python -m training /runs/f/job.json"
    actions = [rule["action"] for rule in job["spec"]["podFailurePolicy"]["rules"]]
    assert (actions, job["spec"]["backoffLimitPerIndex"]) == (["FailJob", "Ignore", "Ignore"], 0)


def test_a_training_over_nodes_ends_with_the_first_pod_that_fails():
    job, service = manifests(TRAINING, settings_of(), token="1a")
    name = job["metadata"]["name"]
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["maxFailedIndexes"]) == (2, 2, 0)
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["FailJob"]
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"] == name
    assert f'--nnodes=2 --nproc-per-node=4 --node-rank="$JOB_COMPLETION_INDEX" --master-addr={name}-0.{name}' in script(
        job
    )


def test_a_fan_out_is_a_job_for_each_phase_and_one_that_finishes():
    sort, merge, finish = manifests(FAN_OUT, settings_of(), token="1a")
    assert [one["spec"]["completions"] for one in (sort, merge, finish)] == [3, 3, 1]
    name = finish["metadata"]["name"]
    assert command(merge).endswith(f'--phase merge --ranks "$JOB_COMPLETION_INDEX/3" --claims {name}-r1')
    assert ' >>"log-$JOB_COMPLETION_INDEX.txt"' in script(sort) and ' >>"log.txt"' in script(finish)
    assert command(finish).endswith("--finish 0")


@pytest.mark.parametrize("place", ["a b'c$(HOME)\"d", "ok"])
def test_the_script_runs_in_a_shell_and_says_when_it_cannot_write(tmp_path, place):
    folder = tmp_path / place
    task = Task(key="k", argv=("-c", "print('$(NODE)')"), size=Size(**SIZE), folder=str(folder))
    (job,) = manifests(task, settings_of(tmp_path, python="python3"), token="1a")

    def ran() -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", "NODE": "n1", "IGNORED": "2"}
        return subprocess.run(["/bin/sh", "-c", script(job)], env=env, capture_output=True, text=True)

    assert ran().returncode == 2 and "n1 cannot write into" in ran().stderr.splitlines()[-1]
    folder.mkdir()
    assert ran().returncode == 0
    first, *rest = (folder / "log.txt").read_text().splitlines()
    assert first.startswith(f"--- attempt {base_name('k', folder, '1a')}.2 on n1, ") and rest == ["$(NODE)"]
    (folder / "log.txt").unlink()
    (folder / "log.txt").symlink_to("/dev/full")
    assert ran().returncode == 1 and "no space is left" in ran().stderr


def test_a_root_in_a_store_needs_no_claim(tmp_path):
    (job,) = manifests(APART, settings_of(claims={}, secrets=("s3",)), token="1a")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert [one for one in pod["volumes"] if one["name"] == "node-cache"] == [{"name": "node-cache", "emptyDir": {}}]
    assert {"name": "node-cache", "mountPath": "/cache"} in container["volumeMounts"]
    assert "persistentVolumeClaim" not in str(pod) and container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    there = "python -m training.on_node s3://bucket/runs http://s3.example /cache/b-runs/base_model/0123"
    assert command(job) == f"{there} python -m training /elsewhere/f/job.json"
    folder = tmp_path / "new" / "f"
    task = replace(APART, argv=("-c", "pass"), node_folder=replace(THERE, path=str(folder)))
    (job,) = manifests(task, settings_of(claims={}, python="echo"), token="1a")
    env = {"PATH": "/usr/bin:/bin", "NODE": "n1"}
    assert subprocess.run(["/bin/sh", "-c", script(job)], env=env, check=False).returncode == 0
    assert "-m training.on_node s3://bucket/runs" in (folder / "log.txt").read_text()


@pytest.mark.parametrize(("then", "exit_code"), [("sys.exit(75)", 75), ("os.kill(os.getpid(), 9)", 128 + 9)])
def test_the_shell_hands_sigterm_on_and_ends_as_its_command_does(tmp_path, then, exit_code):
    code = f"import os, signal, sys, time\nsignal.signal(15, lambda *_: {then})\nprint('on', flush=True)\n"
    code += "while True:\n    time.sleep(0.01)"
    task = Task(key="k", argv=("-c", code), size=Size(**SIZE), folder=str(tmp_path))
    (job,) = manifests(task, settings_of(tmp_path, python=sys.executable), token="1a")
    log = tmp_path / "log.txt"
    log.touch()
    listening = partial(signal.signal, signal.SIGTERM, signal.SIG_DFL)  # other tests of this process may differ
    shell = subprocess.Popen(["/bin/sh", "-c", script(job)], preexec_fn=listening)
    while not log.read_text().endswith("\non\n"):
        assert shell.poll() is None
    shell.send_signal(signal.SIGTERM)
    assert shell.wait(timeout=60) == exit_code


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"image": None}, "image: the image of the jobs is missing"),
        ({"namespace": "A"}, "namespace: 'A' is not the name"),
        ({"claims": {"a": "runs"}}, "claims: 'runs'; an absolute path"),
        ({"pod": {"containers": []}}, r"pod\.containers: the backend sets it"),
        ({"secrets": ("x\n",)}, "secrets: "),
        ({"poll_seconds": 0}, "poll_seconds=0; above 0"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_field(given, said):
    with pytest.raises(RecipeError, match=said):
        settings_of(**given)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (task_of("/elsewhere/f"), r"on no volume; .*parts\.kubernetes\.claims"),
        (task_of(on_ray=True, size={"nodes": 2, "engine": "ray"}), "one node only; change `nodes`"),
        (task_of(size={"nodes": 2, "spare_nodes": 1}), "no use of `spare_nodes`"),
    ],
)
def test_what_it_does_not_do_is_refused(task, said):
    with pytest.raises(NotSubmitted, match=said) as refused:
        manifests(task, settings_of(), token="1a")
    assert refused.value.is_refused


# By kubectl against a server that keeps and checks objects


@pytest.fixture
def api(tmp_path, monkeypatch):
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    server = MiniApi(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    monkeypatch.setattr("resources.compute.kubernetes_calls.RETRY_SECONDS", (0.0, 0.0))
    yield server
    server.stop()


@pytest.fixture
def backend(api, tmp_path) -> KubernetesBackend:
    return KubernetesBackend(settings_of(tmp_path))


def failed(code: int, **more) -> dict:
    """What a node writes of a container that failed."""
    ending = {"exitCode": code, "finishedAt": "2026-11-29T10:01:00Z", **more}
    return {
        "phase": "Failed",
        "containerStatuses": [{"imageID": "example/p@sha256:1f", "state": {"terminated": ending}}],
    }


def test_a_task_is_submitted_once_found_again_and_billed(api, backend, tmp_path):
    task = task_of(tmp_path / "f")
    handle = backend.submit(task)
    assert backend.submit(task) == handle == backend.find(task.key, task.folder)
    assert len(api.things["jobs"]) == 1 and backend.poll(handle).state == "pending"
    pod = api.pod(api.job(), phase="Running")
    assert (backend.poll(handle).state, backend.poll(handle).reason) == ("running", "n1")
    (tmp_path / "f" / JOB_FILE).unlink()  # another machine, or somebody removed it
    assert backend.find(task.key, task.folder) == handle
    pod["status"] |= failed(0) | {"phase": "Succeeded"}
    assert backend.poll(handle).state == "running"  # the Job's controller comes later
    api.end(api.job())
    status = backend.poll(handle)
    (bill,) = status.allocations
    assert status.state == "succeeded"
    assert (bill.attempt, bill.end - bill.begin, bill.names) == (f"{handle.id}.0", 60.0, "n1")
    assert (bill.cause, bill.image) == ("completed", "example/p@sha256:1f")


def test_an_interrupted_submission_goes_on_with_the_job_that_it_made(api, backend, tmp_path):
    task = task_of(tmp_path / "f", size={"nodes": 2})
    api.faults = [None, None, *[(500, "InternalError", "")] * 3]  # the Job is made, and then no answer comes
    with pytest.raises(NotSubmitted, match="InternalError"):
        backend.submit(task)
    assert len(api.things["jobs"]) == 1 and backend.find(task.key, task.folder) is None
    handle = backend.submit(task)
    (service,) = api.things["services"].values()
    assert service["metadata"]["ownerReferences"][0]["uid"] == api.job()["metadata"]["uid"]
    assert backend.submit(task) == handle and len(api.things["jobs"]) == 1


def test_a_cancelled_task_is_told_from_one_whose_job_somebody_deleted(api, backend, tmp_path):
    mine, others = (backend.submit(task_of(tmp_path / name)) for name in "ab")
    backend.cancel(mine)
    (name,) = api.things["jobs"]
    assert name == others.id and backend.poll(mine).reason == "the job was cancelled"
    api.things["jobs"].clear()
    assert (backend.poll(others).state, backend.poll(others).reason) == ("cancelled", "somebody deleted its Job")
    os.utime(tmp_path / "b" / JOB_FILE, (0, 0))  # submitted so long ago that it may have ended and been removed
    assert (backend.poll(others).state, "7 days after" in backend.poll(others).reason) == ("lost", True)


def test_the_jobs_of_a_fan_out_follow_each_other_and_a_failed_pod_is_a_part(api, backend, tmp_path):
    task = task_of(tmp_path / "f", num_tasks=2, size={"nodes": 2}, phases=("sort", "merge"))
    handle = backend.submit(task)
    api.pod(api.job(), 0, phase="Succeeded")
    api.pod(api.job(), 1, **failed(1))
    api.pod(api.job(), 1, **failed(75))  # saved, and went on in another pod
    api.end(api.job(), "Failed", "FailedIndexes")
    assert backend.poll(handle).state == "running" and len(api.things["jobs"]) == 2
    del api.things["jobs"][f"{handle.id}-r0"]  # removed long after its end, while the next phase runs
    api.end(api.job())
    assert backend.poll(handle).state == "running"
    assert api.job()["metadata"]["name"] == handle.id
    api.pod(api.job(), **failed(4))
    api.end(api.job(), "Failed", "FailedIndexes")
    status = backend.poll(handle)
    assert (status.state, status.exit_code) == ("failed", 4)
    assert [(one.exit_code, one.log, one.attempt) for one in status.parts] == [(1, "log-1.txt", f"{handle.id}-r0_1.0")]


def test_a_fan_out_that_is_cancelled_while_its_next_job_is_created_leaves_no_job(api, backend, tmp_path):
    handle = backend.submit(task_of(tmp_path / "f", num_tasks=2, size={"nodes": 2}))
    api.end(api.job())

    class Late(Cluster):
        def find(self, kind: str, labels: str) -> list[dict]:
            found = super().find(kind, labels)
            if kind == "Pod":
                KubernetesBackend(settings_of(tmp_path)).cancel(handle)  # another process, after both lists
            return found

    backend._cluster = Late(namespace="default")
    backend.poll(handle)
    assert not api.things["jobs"]


DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]


@pytest.mark.parametrize(
    ("told", "code", "preempted", "said"),
    [
        (failed(1), 1, False, "Failed: the job ended with an error"),
        (failed(3), 3, False, "Failed"),
        (failed(137, reason="OOMKilled"), -9, False, r"OOMKilled: .*`memory_gb`.* \(n1\)"),
        ({**failed(143), "reason": "DeadlineExceeded"}, -15, False, "time limit .*`hours`"),
        ({**failed(143), "conditions": DISRUPTED}, 75, True, r"evicted: its node is drained \(n1\)"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on disk"}, 75, True, "evicted: low on disk"),
        (failed(2, message="n1 cannot write into /r"), 2, False, "^n1 cannot write into /r$"),
        *(
            ({**failed(143), "conditions": [{**DISRUPTED[0], "reason": reason}]}, 75, True, words)
            for reason, words in TAKEN.items()
        ),
    ],
)
def test_how_a_pod_ended_is_said_with_the_field_to_change(api, backend, tmp_path, told, code, preempted, said):
    handle = backend.submit(task_of(tmp_path / "f"))
    api.pod(api.job(), **told)
    api.end(api.job(), "Failed", "FailedIndexes")
    status = backend.poll(handle)
    assert (status.state, status.exit_code, status.was_preempted) == ("failed", code, preempted)
    assert re.search(said, status.reason)


def test_a_node_that_is_lost_is_said_before_its_pod_ends(api, backend, tmp_path):
    handle = backend.submit(task_of(tmp_path / "f"))
    api.pod(api.job(), phase="Running", conditions=[{**DISRUPTED[0], "reason": "DeletionByTaintManager"}])
    status = backend.poll(handle)
    assert (status.state, status.was_preempted) == ("running", True) and status.reason.startswith("n1; node lost: ")


def unscheduled(message: str) -> dict:
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [told]}


def waiting(reason: str) -> dict:
    return {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "why"}}}]}


@pytest.mark.parametrize(
    ("told", "is_stuck", "said"),
    [
        (unscheduled("0/3 nodes are available: 3 Insufficient cpu."), False, "`workers`"),
        (unscheduled("0/3 nodes are available: 3 Insufficient memory."), False, "`memory_gb`"),
        (unscheduled("0/3 nodes: 3 Insufficient nvidia.com/gpu."), False, "`gpus_per_node`"),
        (unscheduled('persistentvolumeclaim "runs" not found'), True, "`parts.kubernetes.claims`"),
        (unscheduled("0/3 nodes: 3 node(s) had untolerated taint {a: b}"), False, "`parts.kubernetes.pod`"),
        (waiting("ImagePullBackOff"), True, "`parts.kubernetes.image`"),
        (waiting("CreateContainerConfigError"), True, "`parts.kubernetes.secrets`"),
        (waiting("ContainerCreating"), False, "n1 mounts its volumes"),
    ],
)
def test_why_a_pod_waits_is_said_with_the_field_to_change(api, backend, tmp_path, told, is_stuck, said):
    handle = backend.submit(task_of(tmp_path / "f"))
    api.pod(api.job(), **told)
    status = backend.poll(handle)
    assert (status.state, status.is_stuck) == ("pending", is_stuck) and said in status.reason


def test_a_job_without_pods_says_what_its_controller_or_its_queue_says(api, backend, tmp_path):
    handle = backend.submit(task_of(tmp_path / "f"))
    event = {"metadata": {}, "involvedObject": {"name": handle.id}, "reason": "FailedCreate"}
    api.things["events"]["a"] = {**event, "message": "pods is forbidden: exceeded quota: q"}
    assert "quota is used up" in backend.poll(handle).reason and not backend.poll(handle).is_stuck
    queued = KubernetesBackend(settings_of(tmp_path, queue="team"))
    handle = queued.submit(task_of(tmp_path / "g"))
    assert "the queue team has not taken it" in queued.poll(handle).reason
    told = {"type": "QuotaReserved", "status": "False", "message": "LocalQueue team doesn't exist"}
    labels = {"kueue.x-k8s.io/job-uid": api.job()["metadata"]["uid"]}
    api.things["workloads"]["w"] = {"metadata": {"labels": labels}, "status": {"conditions": [told]}}
    status = queued.poll(handle)
    assert status.is_stuck and "`parts.kubernetes.queue`" in status.reason
    told |= {"reason": "ExceedsMaxQuota", "message": "cannot fit"}
    assert queued.poll(handle).is_stuck and "lower `nodes`" in queued.poll(handle).reason
    told |= {"reason": "WaitingForQuota"}
    assert not queued.poll(handle).is_stuck and "WaitingForQuota: cannot fit" in queued.poll(handle).reason
    handle = backend.submit(task_of(tmp_path / "h"))
    api.job()["spec"]["suspend"] = True  # by a person
    status = backend.poll(handle)
    assert status.is_stuck and "it is held" in status.reason and f"patch job {handle.id}" in status.reason


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ((403, "Forbidden", "user cannot create jobs"), r"`parts\.kubernetes\.namespace`"),
        ((403, "Forbidden", "jobs is forbidden: exceeded quota: q"), "`nodes`, `memory_gb`"),
        ((404, "NotFound", 'namespaces "x" not found'), "there is no such namespace"),
        ((401, "Unauthorized", "Unauthorized"), r"expired; log in again, or change `parts\.kubernetes\.context`"),
        ((422, "Invalid", "spec.template.spec.nodeSelector: bad"), r"`parts\.kubernetes\.pod`"),
    ],
)
def test_a_refusal_names_the_field_of_the_profile_and_leaves_nothing(api, backend, tmp_path, fault, said):
    api.faults = [None, fault]  # it first looks for Jobs of this task
    with pytest.raises(NotSubmitted, match=said) as refused:
        backend.submit(task_of(tmp_path / "f"))
    assert refused.value.is_refused and not api.things["jobs"]


def test_a_misspelt_field_of_the_profile_is_refused_by_the_schema(api, tmp_path):
    pytest.importorskip("kubernetes_validate")
    backend = KubernetesBackend(settings_of(tmp_path, pod={"tolerationz": []}))
    with pytest.raises(NotSubmitted, match=r"tolerationz.*parts\.kubernetes\.pod"):
        backend.submit(task_of(tmp_path / "f"))


@pytest.mark.parametrize("fault", [(429, "TooManyRequests", "later"), (500, "InternalError", "etcd")])
def test_a_busy_server_is_asked_again(api, backend, tmp_path, fault):
    api.faults = [fault]
    handle = backend.submit(task_of(tmp_path / "f"))
    api.faults = [fault]
    assert backend.poll(handle).state == "pending" and len(api.things["jobs"]) == 1


def test_a_job_runs_on_while_the_server_is_away_and_while_credentials_are_expired(api, backend, tmp_path):
    handle = backend.submit(task_of(tmp_path / "f"))
    api.pod(api.job(), phase="Running")
    api.faults = [(401, "Unauthorized", "Unauthorized")]
    status = backend.poll(handle)
    assert status.state == "running" and "Kubernetes refuses" in status.reason and "expired; log in" in status.reason
    api.stop()
    assert "did not answer" in backend.poll(handle).reason
    api.start()
    assert backend.poll(handle) == Status(state="running", reason="n1")

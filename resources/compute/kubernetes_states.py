"""Translate what Kubernetes says of Jobs and pods into the status of a task, with sentences that say what to do.

Sources: Kubernetes' pages "Pod Lifecycle", "Disruptions" and "Jobs" (1.31 and later), Kueue's page "Workload".
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from resources.compute.base import Allocation, Status
from training.contract.process.exit_codes import BAD_INPUT, REFUSED, REQUEUE

Thing = dict[str, Any]

# Why a pod was ended from outside: reasons of its condition DisruptionTarget.
TAKEN = {
    "PreemptionByScheduler": "preempted: a pod of higher priority took its node",
    "DeletionByTaintManager": "node lost: the node does not answer, or was tainted",
    "DeletionByPodGC": "node lost: the node is gone",
    "EvictionByEvictionAPI": "evicted: its node is drained",
    "TerminationByKubelet": "evicted by its node, which ran out of memory or disk, or shuts down",
}
MEMORY = "OOMKilled: the job used more memory than it asked for; raise `memory_gb` in the profile"
DEADLINE = "the time limit was reached; raise `hours` in the profile, or run again: checkpoints are kept"
# Why a container does not start: it never will, until a person changes something.
NEVER_STARTS = {
    "ImagePullBackOff|ErrImagePull|InvalidImageName|ErrImageNeverPull": "the image cannot be pulled; change "
    "`parts.kubernetes.image`, or give `imagePullSecrets` in `parts.kubernetes.pod`",
    "CreateContainerConfigError": "a secret is missing; change `parts.kubernetes.secrets`",
    "CreateContainerError|RunContainerError|StartError": "the container cannot start; change `parts.kubernetes.image`",
}
# Why no node takes a pod, and the fields that this depends on; whether waiting is useless.
NO_ROOM = {
    "persistentvolumeclaim .*not found": ("change `parts.kubernetes.claims` in the profile", True),
    "unbound immediate PersistentVolumeClaims": ("a claim of `parts.kubernetes.claims` has no volume yet", False),
    "Insufficient cpu": ("lower `workers`, `threads` or `processes` in the profile, or wait for a node", False),
    "Insufficient memory": ("lower `memory_gb` in the profile, or wait for a node", False),
    "Insufficient": ("lower `gpus_per_node` in the profile, change `parts.kubernetes.gpu_resource`, or wait", False),
    "node affinity|node selector|untolerated taint": (
        "change `nodeSelector` or `tolerations` in `parts.kubernetes.pod`, or wait for such a node",
        False,
    ),
}
# Why a queue of Kueue will never take a Job as it is: reasons of its condition QuotaReserved, or words of its message.
NO_QUOTA = {
    "ExceedsMaxQuota": "lower `nodes`, `memory_gb`, `workers` or `gpus_per_node`",
    "NoMatchingFlavor": "change `nodeSelector` or `tolerations` in `parts.kubernetes.pod`",
    "Misconfigured|Suspended|doesn't exist|inactive|not found|stopped": "change `parts.kubernetes.queue`",
}
# What the Job controller says when it may not make a pod.
NO_POD = {
    "exceeded quota": "the namespace's quota is used up; lower `nodes`, `memory_gb`, `workers` or `gpus_per_node`, or "
    "wait for other jobs",
    "serviceaccount|service account": "change `serviceAccountName` in `parts.kubernetes.pod`",
    "PodSecurity": "the namespace asks for more; set `securityContext` in `parts.kubernetes.pod`",
    "forbidden|admission": "the namespace does not admit the pod; change `parts.kubernetes.pod` or `namespace`",
}


def current_job(base: str, jobs: Iterable[Thing]) -> Thing | None:
    """The Job of a submission that was created last: the one of its own name, or the fan-out's last one."""
    by_number = {one["metadata"]["name"].removeprefix(base): one for one in jobs}
    if "" in by_number:
        return by_number[""]
    return by_number[max(by_number, key=lambda end: int(end.removeprefix("-r")))] if by_number else None


def ended(job: Thing) -> Thing | None:
    """The condition with which a Job ended, Complete or Failed; None if it has not ended."""
    found = job.get("status", {}).get("conditions", ())
    return next((one for one in found if one["type"] in ("Complete", "Failed") and one["status"] == "True"), None)


def status_of(base: str, jobs: list[Thing], pods: list[Thing], *, was_cancelled: bool = False) -> Status:
    """The status of a submission, by the Job that was created last and all pods that are still there."""
    job = current_job(base, jobs)
    spent = _allocations(base, jobs, pods)
    if job is None or was_cancelled or job["metadata"].get("deletionTimestamp"):
        reason = "the job was cancelled" if was_cancelled else "somebody deleted its Job"
        return Status(state="cancelled", reason=reason, was_ended=True, allocations=spent)
    mine = sorted((one for one in pods if _job_of(one) == job["metadata"]["name"]), key=_created)
    end = ended(job)
    if end is not None:
        return _ended(base, job, end, mine, [one for one in pods if _job_of(one) != base], spent)
    nodes = sorted({one["spec"].get("nodeName", "") for one in mine if one["status"].get("phase") == "Running"})
    if nodes:
        taken = {said for one in mine if one["status"]["phase"] == "Running" and (said := _taken(one))}
        said = "; ".join([", ".join(nodes), *sorted(taken)])
        return Status(state="running", reason=said, was_preempted=bool(taken), allocations=spent)
    waits = [_waits(one) for one in mine if one["status"].get("phase") == "Pending"]
    if not waits and any(one["status"].get("phase") == "Succeeded" for one in mine):
        return Status(state="running", reason="its pods have ended, which its Job does not know yet", allocations=spent)
    reason, is_stuck = max(waits, key=lambda one: one[1], default=("its pod is not made yet", False))
    since = max(0.0, time.time() - (_time(job["status"].get("startTime")) or _created(job)))
    return Status(state="pending", reason=reason, is_stuck=is_stuck, pending_seconds=since, allocations=spent)


def _ended(
    base: str, job: Thing, end: Thing, pods: list[Thing], others: list[Thing], spent: tuple[Allocation, ...]
) -> Status:
    if end["type"] == "Complete":
        return Status(state="succeeded", exit_code=0, allocations=spent)
    failed = [one for one in pods if one["status"].get("phase") == "Failed"]
    told = [_failed(base, one) for one in failed]
    lost = [one for one in told if one.was_preempted] if _is_training(job) else []
    # The pod whose failure ended the Job, if one did: those that the Job ended itself come later.
    status = next(iter(lost), None) or next((one for one in told if one.exit_code in (BAD_INPUT, REFUSED)), None)
    status = status or next((one for one in reversed(told) if one.exit_code != REQUEUE), None) or next(iter(told), None)
    if status is None:
        said = f"{end.get('reason', 'Failed')}: {end.get('message', 'its Job failed')}"
        status = Status(state="failed", reason=said, was_ended=True)
    parts = tuple(_failed(base, one) for one in others if one["status"].get("phase") == "Failed")
    parts = tuple(one for one in parts if not one.was_preempted and one.exit_code != REQUEUE)
    return Status(**{name: getattr(status, name) for name in status.__slots__} | {"parts": parts, "allocations": spent})


def _failed(base: str, pod: Thing) -> Status:
    """The status of a pod that failed."""
    ending, said = _terminated(pod), pod["status"]
    code = ending.get("exitCode")
    taken, node = _taken(pod), pod["spec"].get("nodeName", "its node")
    exit_code = -(code - 128) if code is not None and code > 128 else code
    own = ending.get("message", "").strip()
    if code == BAD_INPUT and own:  # the shell, which had no log yet
        reason = own.splitlines()[-1]
    elif taken:
        reason = f"{taken} ({node})"
    elif ending.get("reason") == "OOMKilled":
        reason = f"{MEMORY} ({node})"
    elif said.get("reason") == "DeadlineExceeded":
        reason = f"DeadlineExceeded: {DEADLINE}"
    else:
        reason = f"{said.get('reason', 'Failed')}: {own or said.get('message', 'the job ended with an error')}"
        reason += f" (exit {code})"
    by_itself = code is not None and 0 < code < 128 and not taken and said.get("reason") != "DeadlineExceeded"
    index = pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-completion-index", "0")
    return Status(
        state="failed",
        reason=reason,
        exit_code=REQUEUE if taken else exit_code,
        was_ended=not by_itself or bool(own),
        attempt=attempt_of(base, pod),
        log="log.txt" if _job_of(pod) == base else f"log-{index}.txt",
        was_preempted=bool(taken),
    )


def _waits(pod: Thing) -> tuple[str, bool]:
    """Why a pod does not run, and whether waiting is useless."""
    for container in pod["status"].get("containerStatuses", ()):
        waiting = container["state"].get("waiting", {})
        for reasons, advice in NEVER_STARTS.items():
            if re.fullmatch(reasons, waiting.get("reason", "")):
                return f"{waiting['reason']}: {advice} in the profile: {waiting.get('message', '')}", True
    for one in pod["status"].get("conditions", ()):
        if (one["type"], one["status"]) == ("PodScheduled", "False"):
            said = one.get("message", "")
            advice, is_stuck = next((told for words, told in NO_ROOM.items() if re.search(words, said)), ("", False))
            return f"{one.get('reason', 'Unschedulable')}: {said}{f' ({advice})' if advice else ''}", is_stuck
    node = pod["spec"].get("nodeName")
    return (f"{node} mounts its volumes and pulls its image" if node else "it waits for the scheduler"), False


def waits_because(job: Thing, told: list[Thing]) -> tuple[str, bool]:
    """Why a Job has no pods, and whether waiting is useless, by its events or by Kueue's objects for it."""
    if job["spec"].get("suspend"):
        queue = job["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
        if queue is None:
            name = job["metadata"]["name"]
            way = f"""`kubectl patch job {name} -p '{{"spec": {{"suspend": false}}}}'` lets it go"""
            return f"suspended: it is held, by no queue of the profile; {way}", True
        said = [c for one in told for c in one.get("status", {}).get("conditions", ()) if c["type"] == "QuotaReserved"]
        if said:
            words = f"{said[-1].get('reason', '')}: {said[-1].get('message', '')}"
            advice = next((way for why, way in NO_QUOTA.items() if re.search(why, words)), "")
            return f"the queue {queue} holds it: {words}{f'; {advice} in the profile' if advice else ''}", bool(advice)
        return f"suspended: the queue {queue} has not taken it (`parts.kubernetes.queue`)", False
    failures = [one for one in told if one.get("reason") == "FailedCreate"]
    if not failures:
        return "its pod is not made yet", False
    said = failures[-1].get("message", "")
    advice = next((way for words, way in NO_POD.items() if re.search(words, said, re.I)), "")
    return f"FailedCreate: {said}{f' ({advice} in the profile)' if advice else ''}", "exceeded quota" not in said


# Bills


def attempt_of(base: str, pod: Thing) -> str:
    """The name of a pod's attempt, as its script gives it to the job's processes (`_script`)."""
    notes = pod["metadata"].get("annotations", {})
    counts = ("job-index-failure-count", "job-index-ignored-failure-count")
    restarts = sum(int(notes.get(f"batch.kubernetes.io/{name}") or 0) for name in counts)
    index = notes.get("batch.kubernetes.io/job-completion-index", "0")
    job = _job_of(pod)
    return f"{job}.{restarts}" if job == base else f"{job}_{index}.{restarts}"


def _allocations(base: str, jobs: list[Thing], pods: list[Thing]) -> tuple[Allocation, ...]:
    """The nodes of each attempt. The pods of a training are one attempt, which ends with its Job."""
    ends = {one["metadata"]["name"]: end["lastTransitionTime"] for one in jobs if (end := ended(one))}
    by_attempt: dict[str, list[Thing]] = {}
    for pod in sorted(pods, key=_created):
        if pod["spec"].get("nodeName") and pod["status"].get("startTime"):
            by_attempt.setdefault(attempt_of(base, pod), []).append(pod)
    found = []
    for attempt, mine in by_attempt.items():
        over = [_time(_terminated(one).get("finishedAt")) for one in mine]
        end = _time(ends.get(_job_of(mine[0]))) if len(mine) > 1 else over[0]
        found.append(
            Allocation(
                attempt=attempt,
                begin=min(_time(one["status"]["startTime"]) or 0.0 for one in mine),
                end=end,
                nodes=len(mine),
                names=",".join(sorted({one["spec"]["nodeName"] for one in mine})),
                cause=_cause(mine),
                image=_image(mine),
            )
        )
    return tuple(found)


def _cause(pods: list[Thing]) -> str:
    """How an attempt ended, in the words of the bill; empty while it goes on."""
    if any(_taken(one) for one in pods):
        return "preempted"
    if all(one["status"].get("phase") == "Succeeded" for one in pods):
        return "completed"
    failed = [one for one in pods if one["status"].get("phase") == "Failed"]
    reasons = [one["status"].get("reason") or _terminated(one).get("reason") or "failed" for one in failed]
    return reasons[0].lower() if reasons else ""


def _image(pods: list[Thing]) -> str:
    named = [one.get("imageID", "") for pod in pods for one in pod["status"].get("containerStatuses", ())]
    return next((one for one in named if one), "")


def _taken(pod: Thing) -> str:
    """Why a pod lost its node, or loses it now; empty if it does not."""
    for one in pod["status"].get("conditions", ()):
        if (one["type"], one["status"]) == ("DisruptionTarget", "True"):
            reason = one.get("reason", "")
            return TAKEN.get(reason, f"{reason}: {one.get('message', 'ended from outside')}")
    return f"evicted: {pod['status'].get('message', '')}" if pod["status"].get("reason") == "Evicted" else ""


def _is_training(job: Thing) -> bool:
    return "maxFailedIndexes" in job["spec"]


def _terminated(pod: Thing) -> Thing:
    """How a pod's container ended; empty if it has not."""
    states = [one["state"].get("terminated") for one in pod["status"].get("containerStatuses", ())]
    return next((one for one in states if one), {})


def _job_of(pod: Thing) -> str:
    return pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name", "")


def _created(thing: Thing) -> float:
    return _time(thing["metadata"].get("creationTimestamp")) or 0.0


def _time(said: str | None) -> float | None:
    """A time of Kubernetes in seconds since 1970; None if there is none."""
    return datetime.fromisoformat(said.replace("Z", "+00:00")).timestamp() if said else None

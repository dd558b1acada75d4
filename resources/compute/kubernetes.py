"""The Kubernetes backend: a task is one or more Jobs, which can be found again by their labels.

`manifests` is a pure function from a task to the objects that are created; the other functions are short calls of
`kubectl`. A data stage fans out as an indexed Job for each phase, followed by a Job that finishes. Kubernetes knows no
order of Jobs, so whoever watches the task creates the next one. Training over several nodes is an indexed Job with a
headless Service, in which torchrun's processes meet.

The API server may have created an object although its answer was lost. So a submission first writes a token into the
task's folder, and all its objects are named by the token: what is there already is not created twice.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shlex
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from resources.compute.backends import BackendPart
from resources.compute.base import (
    ATTEMPT_MARK,
    LAUNCHER,
    Handle,
    Status,
    Task,
    cores_asked,
    interpreter_argv,
    read_json,
    submit_lock,
    tail,
    waited,
    write_json,
)
from resources.compute.kubernetes_calls import Cluster, KubernetesError, KubernetesRefusal
from resources.compute.kubernetes_states import current_job, ended, status_of, waits_because
from training.contract.process.exit_codes import BAD_INPUT, REFUSED, REQUEUE
from training.contract.records import RecipeError

JOB_FILE, LOG_FILE = "kubernetes.json", "log.txt"
SILENCE_SECONDS = 3600.0  # jobs keep running while the API server is down; after this long a job counts as lost
GRACE_SECONDS = 60  # between SIGTERM and SIGKILL, as before the time limit under Slurm
KEPT_SECONDS = 7 * 86400  # after which Kubernetes removes Jobs that have ended
MEETING_PORT = 29500
MOST_POLL_SECONDS = 3600

TASK_LABEL, SUBMISSION_LABEL, KEY_LABEL = "pedigree/task", "pedigree/submission", "pedigree/key"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# Of the pods' specs, what the profile may not set: the backend does.
OWN_FIELDS = ("activeDeadlineSeconds", "containers", "initContainers", "restartPolicy", "subdomain", "volumes")
# Failed and ignored starts of an index, as the Job controller counts them.
_COUNTS = {"FAILED": "job-index-failure-count", "IGNORED": "job-index-ignored-failure-count"}
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9./:@_-]*")
_RESOURCE = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesSettings:
    """The section `parts.kubernetes` of a profile: where Jobs run, in which image, and what their pods are given."""

    image: str | None = None  # of every job, with this version of Pedigree; must be given
    claims: dict[str, str] = field(default_factory=dict)  # volume claims and where each is mounted; one has the root
    namespace: str = "default"
    context: str | None = None  # of the kubeconfig; None: its current one, or the pod's own service account
    queue: str | None = None  # local queue of Kueue; None: without Kueue
    secrets: tuple[str, ...] = ()  # names of Secrets whose keys become environment variables
    python: str = "python"  # interpreter in the image
    gpu_resource: str = "nvidia.com/gpu"
    pod: dict[str, Any] = field(default_factory=dict)  # further fields of the pods' specs, such as tolerations
    poll_seconds: float = 5.0

    def __post_init__(self) -> None:
        wrong = []
        if not _IMAGE.fullmatch(self.image or ""):
            told = f"{self.image!r} is no image" if self.image else "the image of the jobs is missing"
            wrong.append(f"image: {told}; REGISTRY/NAME@sha256:… is right")
        if self.context is not None and not self.context.strip():
            wrong.append(f"context={self.context!r}; the name of one in the kubeconfig is right")
        if not _RESOURCE.fullmatch(self.gpu_resource):
            wrong.append(f"gpu_resource={self.gpu_resource!r}; a name such as nvidia.com/gpu is right")
        names = {"namespace": [self.namespace], "queue": [self.queue or "a"]}
        names |= {"claims": [*self.claims], "secrets": [*self.secrets]}
        wrong += [
            f"{field}: {name!r} is not the name of an object; lower-case letters, digits, `-` and `.` are right"
            for field, given in names.items()
            for name in given
            if not _NAME.match(name)
        ]
        places = list(self.claims.values())
        wrong += [f"claims: {one!r}; an absolute path is right" for one in places if not one.startswith("/")]
        wrong += [f"claims: {one!r} is named twice" for one in {*places} if places.count(one) > 1]
        wrong += [f"pod.{name}: the backend sets it" for name in OWN_FIELDS if name in self.pod]
        wrong += [f"pod: {name!r} is no field of a pod's spec" for name in self.pod if not name.isidentifier()]
        if not self.python.strip() or "\n" in self.python:
            wrong.append(f"python={self.python!r}; an interpreter in the image is right")
        if not 0 < self.poll_seconds <= MOST_POLL_SECONDS:
            wrong.append(f"poll_seconds={self.poll_seconds:g}; above 0, to {MOST_POLL_SECONDS}, is right")
        if wrong:
            raise RecipeError(*wrong)


class KubernetesBackend:
    """Runs tasks as Kubernetes Jobs. Folders must be on a claim, mounted where this machine has them too."""

    name = "kubernetes"

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._cluster = Cluster(namespace=settings.namespace, context=settings.context)
        self.poll_seconds = settings.poll_seconds
        self._silent_since: float | None = None

    def render(self, task: Task) -> str:
        """The manifests of the task's objects, in the order in which they are created."""
        return yaml.safe_dump_all(manifests(task, self._settings, token="TOKEN"), sort_keys=False, width=120)

    def check(self, task: Task) -> None:
        """Ask the cluster whether it would create a task's objects. Raises KubernetesError if it would not."""
        for one in manifests(task, self._settings, token="trial"):
            self._cluster.create(one, is_trial=True)

    def submit(self, task: Task) -> Handle:
        """Submit the task's first Job, unless one with this key is pending or running; return its handle.

        A Job whose submission was interrupted is returned although it has ended: nobody has seen how.
        Raises KubernetesError if the cluster refuses or does not answer.
        """
        folder = Path(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        with submit_lock(folder):
            there = self.find(task.key, task.folder)
            if there is not None and not self.poll(there).is_over:
                return there
            token = _unanswered(task.key, folder) or secrets.token_hex(4)
            wanted = manifests(task, self._settings, token=token)
            name = base_name(task.key, folder, token)
            note = {"key": task.key, "submission": name, "token": token, "cancelled": False, "objects": wanted}
            write_json(folder / JOB_FILE, {**note, "created": False})
            self._cluster.create(wanted[0])
            for service in (one for one in wanted if one["kind"] == "Service"):
                self._cluster.create(_owned(service, *self._cluster.find("Job", f"{SUBMISSION_LABEL}={name}")))
            write_json(folder / JOB_FILE, {**note, "created": True})
            return self._handle(task.key, folder, name)

    def poll(self, handle: Handle) -> Status:
        """Return the task's status by its Jobs and pods. If a Job of a fan-out has ended, create the next one."""
        note = _note_of(handle)
        try:
            chosen = f"{SUBMISSION_LABEL}={handle.id}"
            jobs, pods = self._cluster.find("Job", chosen), self._cluster.find("Pod", chosen)
            status = status_of(handle.id, jobs, pods, was_cancelled=bool(note and note["cancelled"]))
            if status.state == "pending" and not any(_is_active(one) for one in pods):
                status = self._why_no_pod(status, handle.id, jobs)
            if status.state in ("succeeded", "failed"):
                status = self._after(handle, note, jobs, status)
            if not jobs and note is not None and not note["cancelled"] and _is_old(handle):
                said = f"its Job is gone: Kubernetes removes Jobs {KEPT_SECONDS // 86400} days after their end"
                status = replace(status, state="lost", reason=said)
        except KubernetesError as error:
            return self._unanswered(error)
        self._silent_since = None
        return status

    def _why_no_pod(self, status: Status, name: str, jobs: list[dict[str, Any]]) -> Status:
        """The status of a Job without pods, with what its queue or its controller says of it."""
        job = current_job(name, jobs)
        assert job is not None
        if job["spec"].get("suspend"):
            told = self._cluster.workloads(job["metadata"]["uid"])
        else:
            told = self._cluster.events(job["metadata"]["name"])
        reason, is_stuck = waits_because(job, told)
        return replace(status, reason=reason, is_stuck=is_stuck)

    def _after(self, handle: Handle, note: dict[str, Any] | None, jobs: list[dict[str, Any]], status: Status) -> Status:
        """The status of a task whose last Job has ended: the next Job, if there is one, is created."""
        last = current_job(handle.id, jobs)
        assert last is not None
        if last["metadata"]["name"] == handle.id:
            return status
        if note is None:
            said = "its fan-out has ended, and the note in its folder, of what follows, is gone"
            return replace(status, state="lost", reason=said)
        names = [one["metadata"]["name"] for one in note["objects"]]
        self._cluster.create(note["objects"][names.index(last["metadata"]["name"]) + 1])
        if (_note_of(handle) or note)["cancelled"]:  # by another process, which may have deleted the Jobs before
            self.cancel(handle)
        return Status(state="running", reason="the next part of its fan-out begins", allocations=status.allocations)

    def _unanswered(self, error: KubernetesError) -> Status:
        """The status of a task of which the cluster does not tell, or whose next Job it refuses."""
        self._silent_since = self._silent_since or time.monotonic()
        is_over = time.monotonic() - self._silent_since > SILENCE_SECONDS
        said = str(error) if error.is_refused else f"Kubernetes did not answer: {error}"
        return Status(state="lost" if is_over else "running", reason=said)

    def cancel(self, handle: Handle) -> None:
        """Delete the task's Jobs, which ends their pods: SIGTERM, and SIGKILL when their time of grace is over."""
        note = _note_of(handle)
        if note is not None:
            write_json(Path(handle.folder) / JOB_FILE, {**note, "cancelled": True})
        self._cluster.delete_jobs(f"{TASK_LABEL}={task_label(handle.key, Path(handle.folder))}")

    def find(self, key: str, folder: str) -> Handle | None:
        """Find a task that was submitted before, by the note in its folder, or else by its label on unfinished Jobs.

        Return None if there is none. Raises KubernetesError if the cluster does not answer.
        """
        place = Path(folder)
        note = read_json(place / JOB_FILE)
        if note is not None and note["key"] == key and note["created"]:
            return self._handle(key, place, note["submission"])
        if note is not None and note["key"] == key:
            return None  # interrupted: `submit` goes on with its token
        jobs = self._cluster.find("Job", f"{TASK_LABEL}={task_label(key, place)}")
        names = [one["metadata"]["labels"][SUBMISSION_LABEL] for one in jobs if ended(one) is None]
        return self._handle(key, place, names[-1]) if names else None

    def _handle(self, key: str, folder: Path, name: str) -> Handle:
        return Handle(backend=self.name, id=name, key=key, folder=str(folder))

    def log_tail(self, folder: str, lines: int, attempt: str = "") -> str:
        """The last lines of the last attempt in `log.txt`; empty if `attempt` is given and is another one."""
        return tail(Path(folder) / LOG_FILE, lines, attempt)


# Rendering


def task_label(key: str, folder: Path) -> str:
    """The label of all submissions of a task. The folder is included because two roots may make the same artifact."""
    return hashlib.sha256(f"{key}\n{folder}".encode()).hexdigest()[:16]


def base_name(key: str, folder: Path, token: str) -> str:
    """The name of a submission, which begins the names of its objects: at most 49 lower-case characters."""
    asset = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")[:24].strip("-")
    return f"t-{asset}-{task_label(key, folder)[:8]}-{token}".lower()


def manifests(task: Task, settings: KubernetesSettings, *, token: str) -> list[dict[str, Any]]:
    """Return the objects of a task in the order in which they are created.

    A fan-out has a Job for each phase and one that finishes; any other task has one Job, and over several nodes a
    Service. Raises KubernetesRefusal for what this backend does not do.
    """
    _check(task, settings)
    name = base_name(task.key, Path(task.folder), token)
    if task.num_tasks > 1:
        ranks = [_ranks(task, settings, name, number, phase) for number, phase in enumerate(task.phases or ("",))]
        finish = [*interpreter_argv(task, settings.python), "--finish", f"{task.size.missing_ranks_share:g}"]
        return [*ranks, _job(task, settings, name, name, shlex.join(finish))]
    if task.size.nodes == 1:
        return [_job(task, settings, name, name, shlex.join(interpreter_argv(task, settings.python)))]
    return [_training(task, settings, name), _service(task, settings, name)]


def _owned(service: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """The Service of a training as a thing of its Job, with which it goes."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    return {**service, "metadata": {**service["metadata"], "ownerReferences": [owner]}}


def _check(task: Task, settings: KubernetesSettings) -> None:
    where = "the backend kubernetes"
    if task.on_ray:
        raise KubernetesRefusal(f"{where} starts Ray on one node only; change `nodes` or `engine` in the profile")
    if task.size.spare_nodes or task.size.min_nodes:
        raise KubernetesRefusal(f"{where} has no use of `spare_nodes` and `min_nodes`; remove them from the profile")
    if task.node_folder is None and not _is_on_claim(task.folder, settings):
        raise KubernetesRefusal(
            f"{task.folder} is on no volume; name the claim with the root in `parts.kubernetes.claims` of the profile,"
            " and the path where this machine has it, or keep the root in a store and name `node_cache`"
        )


def _is_on_claim(folder: str, settings: KubernetesSettings) -> bool:
    return any(Path(folder).is_relative_to(place) for place in settings.claims.values())


def _ranks(task: Task, settings: KubernetesSettings, name: str, number: int, phase: str) -> dict[str, Any]:
    """The indexed Job of a phase: the index selects the ranks that a pod begins with, and it claims others."""
    own = f"{name}-r{number}"
    command = shlex.join([*interpreter_argv(task, settings.python), *(["--phase", phase] if phase else [])])
    shares = f'--ranks "$JOB_COMPLETION_INDEX/{task.num_tasks}" --claims {own}'
    return _job(task, settings, name, own, f"{command} {shares}", pods=task.num_tasks)


def _training(task: Task, settings: KubernetesSettings, name: str) -> dict[str, Any]:
    """The indexed Job of a training over several nodes. It ends with the first pod that fails, for whatever reason."""
    size = f"--nnodes={task.size.nodes} --nproc-per-node={task.size.processes}"
    meeting = f'--node-rank="$JOB_COMPLETION_INDEX" --master-addr={name}-0.{name} --master-port={MEETING_PORT}'
    command = f"{shlex.join([settings.python, *LAUNCHER])} {size} {meeting} {shlex.join(task.argv)}"
    job = _job(task, settings, name, name, command, pods=task.size.nodes)
    job["spec"]["maxFailedIndexes"] = 0
    job["spec"]["podFailurePolicy"]["rules"] = job["spec"]["podFailurePolicy"]["rules"][:1]
    job["spec"]["template"]["spec"]["subdomain"] = name
    return job


def _service(task: Task, settings: KubernetesSettings, name: str) -> dict[str, Any]:
    """The headless Service that gives each pod of a training a name."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {SUBMISSION_LABEL: name}}
    return _object(task, settings, name, name, "v1", "Service", spec)


def _object(
    task: Task, settings: KubernetesSettings, base: str, name: str, version: str, kind: str, spec: dict[str, Any]
) -> dict[str, Any]:
    metadata = {"name": name, "namespace": settings.namespace, "labels": _labels(task, base)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _labels(task: Task, base: str) -> dict[str, str]:
    key = re.sub(r"[^A-Za-z0-9_.-]", "-", task.key)[:63].strip("_.-")
    mine = {"app.kubernetes.io/managed-by": "pedigree", KEY_LABEL: key}
    return mine | {TASK_LABEL: task_label(task.key, Path(task.folder)), SUBMISSION_LABEL: base}


def _job(
    task: Task, settings: KubernetesSettings, base: str, name: str, command: str, *, pods: int | None = None
) -> dict[str, Any]:
    """An indexed Job of so many pods, each of which runs a command of the shell; None: of one, which is no fan-out."""
    rules = [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [BAD_INPUT, REFUSED]}},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [REQUEUE]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": pods or 1,
        "parallelism": pods or 1,
        "backoffLimitPerIndex": 0,
        "podFailurePolicy": {"rules": rules},
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": {"metadata": {"labels": _labels(task, base)}, "spec": _pod(task, settings, name, command, pods)},
    }
    job = _object(task, settings, base, name, "batch/v1", "Job", spec)
    if settings.queue:
        job["metadata"]["labels"][QUEUE_LABEL] = settings.queue
        job["spec"]["suspend"] = True
    return job


def _pod(task: Task, settings: KubernetesSettings, name: str, command: str, pods: int | None) -> dict[str, Any]:
    mounts = {claim: {"persistentVolumeClaim": {"claimName": claim}} for claim in settings.claims}
    shared = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    places = [{"name": f"claim-{n}", "mountPath": one} for n, one in enumerate(settings.claims.values())]
    own = list[dict[str, Any]]()
    if task.node_folder is not None and not _is_on_claim(task.node_folder.path, settings):
        own = [{"name": "node-cache", "emptyDir": {}}]
        places += [{"name": "node-cache", "mountPath": task.size.node_cache}]
    container = {
        "name": "job",
        "image": settings.image,
        "command": ["/bin/sh", "-c", _unexpanded(_script(task, name, command, pods))],
        "env": _environment(task),
        "envFrom": [{"secretRef": {"name": one}} for one in settings.secrets],
        "resources": _resources(task, settings),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*places, {"name": shared["name"], "mountPath": "/dev/shm"}],
    }
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        **settings.pod,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": max(1, round(task.size.hours * 3600)),
        "containers": [container],
        "volumes": [*({"name": f"claim-{n}", **one} for n, one in enumerate(mounts.values())), *own, shared],
    }


def _script(task: Task, name: str, command: str, pods: int | None) -> str:
    """The shell script of a pod: it names the attempt, writes into the log on the root, and runs the command.

    The kernel keeps SIGTERM from the first process of a container, unless it listens. So that is the shell, which hands
    the signal on. What it cannot write into the log, it says at the pod's own output, which the status repeats.

    All pods of a training over several nodes are one attempt; a fan-out's are told apart by their index.
    """
    one_attempt = pods is None or task.num_tasks == 1
    log = LOG_FILE if one_attempt else "log-$JOB_COMPLETION_INDEX.txt"
    attempt = name if one_attempt else f"{name}_$JOB_COMPLETION_INDEX"
    folder, make = shlex.quote(task.work_folder), ""
    advice = "mount the claim with the root there (parts.kubernetes.claims in the profile)"
    if task.node_folder is not None:
        make, advice = f"mkdir -p {folder} && ", "change node_cache in the profile"
    full = f'echo "$NODE cannot write into "{folder}": no space is left; free some and run again" >&3'
    lines = [
        f'{make}cd {folder} && [ -w . ] || {{ echo "$NODE cannot write into "{folder}": {advice}" >&2; exit 2; }}',
        f'exec 3>&2 >>"{log}" 2>&1',
        "cd /",
        f'export PEDIGREE_ATTEMPT="{attempt}.$((${{FAILED:-0}} + ${{IGNORED:-0}}))"',
        f'echo "{ATTEMPT_MARK}$PEDIGREE_ATTEMPT on $NODE, $(date -Is)" || {{ {full}; exit 1; }}',
        """trap 'again=1; kill -TERM "$!" 2>/dev/null' TERM""",
        f"{command} 3>&- &",
        waited("$!"),
        'exit "$code"',
    ]
    return "\n".join(lines)


def _unexpanded(text: str) -> str:
    """The text as Kubernetes must read it so that it replaces no $(NAME) in it."""
    return text.replace("$", "$$")


def _environment(task: Task) -> list[dict[str, Any]]:
    given = dict(task.environment)
    if task.size.threads:
        given["OMP_NUM_THREADS"] = str(task.size.threads)
    if wrong := [name for name in given if not _VARIABLE.match(name)]:
        raise KubernetesRefusal(f"environment: {wrong[0]!r} is not the name of a variable")
    fields = {name: f"metadata.annotations['batch.kubernetes.io/{count}']" for name, count in _COUNTS.items()}
    told = {**fields, "NODE": "spec.nodeName"}
    return [
        *({"name": name, "value": _unexpanded(given[name])} for name in sorted(given)),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in told.items()),
    ]


def _resources(task: Task, settings: KubernetesSettings) -> dict[str, dict[str, str]]:
    """What a pod asks for. Memory and GPUs are limits too; a limit of processors would only slow it down."""
    size, requests, limits = task.size, dict[str, str](), dict[str, str]()
    if cores := cores_asked(task):
        requests["cpu"] = str(cores)
    if size.memory_gb:
        requests["memory"] = limits["memory"] = f"{round(size.memory_gb * 1024)}Mi"
    if size.gpus_per_node:
        requests[settings.gpu_resource] = limits[settings.gpu_resource] = str(size.gpus_per_node)
    return {"requests": requests, "limits": limits}


# Notes in the task's folder


def _is_active(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Pending", "Running")


def _is_old(handle: Handle) -> bool:
    """Whether a task was submitted so long ago that its Job may have been removed because it had ended."""
    return time.time() - (Path(handle.folder) / JOB_FILE).stat().st_mtime > KEPT_SECONDS


def _note_of(handle: Handle) -> dict[str, Any] | None:
    note = read_json(Path(handle.folder) / JOB_FILE)
    return note if note is not None and note["submission"] == handle.id else None


def _unanswered(key: str, folder: Path) -> str | None:
    """Return the token of an interrupted submission; None if there is none."""
    note = read_json(folder / JOB_FILE)
    return note["token"] if note is not None and note["key"] == key and not note["created"] else None


backend = BackendPart(make=KubernetesBackend, settings=KubernetesSettings, counts_cores=True, own_folders=True)

"""What the schedulers of a profile say of it: whether they would take its jobs, and what its user may do there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import which

from assets.answers.doctor.finding import Finding
from assets.state.chain import CHAIN
from resources.compute.backends import make_backend
from resources.compute.base import NodeFolder, NotSubmitted, Task
from resources.compute.kubernetes import KubernetesBackend, KubernetesSettings
from resources.compute.kubernetes_calls import ASK, RIGHTS, Cluster, KubernetesError
from resources.compute.slurm import SlurmBackend, SlurmSettings
from resources.compute.slurm_calls import Login, SlurmError
from resources.compute.slurm_environment import FIELD, PLACE, PYTHON, check_archive, digest_of, is_sent
from resources.profile import Profile
from training.contract.parts.outside import PartsOf

SLURM = ("sbatch", "squeue", "sacct", "scontrol", "scancel")


def look_at_schedulers(profile: Profile, root: Path) -> Iterator[Finding]:
    """Yield what Slurm and Kubernetes say, if the profile names them and their programs are here; submit nothing."""
    named = {profile.size_for(asset).backend for asset in CHAIN}
    if "slurm" in named:
        yield from _slurm(profile, root)
    if "kubernetes" in named and which("kubectl"):
        yield from _kubernetes(profile, root)


def _slurm(profile: Profile, root: Path) -> Iterator[Finding]:
    settings = PartsOf("profile", profile.parts).settings("slurm", SlurmSettings)
    login = Login(ssh=settings.ssh)
    if settings.ssh is not None:
        yield (reached := _reached(login))
        if reached.state == "problem":
            return
    elif missing := [name for name in SLURM if which(name) is None]:
        found = f"no {', '.join(missing)} on the PATH"
        yield Finding("slurm", "problem", found, "run `pedigree` where jobs are submitted, or set parts.slurm.ssh")
        if "sbatch" in missing:
            return
    yield from _trials("slurm", profile, root)
    yield _accounting(login)
    if unset := [name for name in settings.environment if name not in os.environ]:
        found = f"parts.slurm.environment: {', '.join(unset)}, not set here"
        yield Finding("variables", "warning", found, "set them, or jobs start without them")
    if settings.environment_file is not None:
        yield _environment(settings, login)


def _reached(login: Login) -> Finding:
    """Return whether the login node lets this user in, and has Slurm's commands."""
    try:
        for name in (one for one in SLURM if one != "sacct"):
            login.call([name, "--version"])
    except SlurmError as error:
        return Finding("login", "problem", str(error), "change parts.slurm.ssh, or what ssh knows of it")
    return Finding("login", "ok", f"{login.ssh} has Slurm's commands")


def _environment(settings: SlurmSettings, login: Login) -> Finding:
    """Return whether the archive of the jobs' environment has its interpreter, and whether it was sent already."""
    file, python = str(settings.environment_file), settings.python or PYTHON
    try:
        digest = digest_of(file)
        check_archive(file, python)
        where = "there" if is_sent(digest, login) else "not there yet; the first job sends it"
    except NotSubmitted as error:
        return Finding("environment", "problem", str(error), f"change {FIELD}")
    return Finding("environment", "ok", f"sha256 {digest[:12]}, in ~/{PLACE}: {where}")


def _kubernetes(profile: Profile, root: Path) -> Iterator[Finding]:
    settings = PartsOf("profile", profile.parts).settings("kubernetes", KubernetesSettings)
    cluster = Cluster(namespace=settings.namespace, context=settings.context)
    try:
        yield _rights(cluster)
    except KubernetesError as error:
        advice = "name a cluster that answers (KUBECONFIG, parts.kubernetes.context)"
        yield Finding("kubernetes", "problem", str(error), advice)
        return
    yield from _trials("kubernetes", profile, root)
    yield from (_claim(cluster, name) for name in settings.claims)
    yield _image(settings.image or "")
    if settings.queue:
        yield _queue(cluster, settings.queue)


def _trials(name: str, profile: Profile, root: Path) -> Iterator[Finding]:
    """Yield whether the scheduler would take a job of each size that the profile names."""
    backend = make_backend(name, profile.parts, where="default")
    assert isinstance(backend, (SlurmBackend, KubernetesBackend))
    every = [_task(profile, asset, root) for asset in CHAIN if profile.size_for(asset).backend == name]
    tasks = {(task.size, task.num_tasks, task.on_ray): task for task in every}
    refused: dict[str, list[str]] = {}
    for task in tasks.values():
        try:
            backend.check(task)
        except NotSubmitted as error:
            refused.setdefault(str(error), []).append(task.key)
    for said, keys in refused.items():
        yield Finding(name, "problem", f"{', '.join(keys)}: {said}", "change the profile as it says")
    if not refused:
        yield Finding(name, "ok", f"it would take the profile's jobs, of {len(tasks)} sizes")


def _task(profile: Profile, asset: str, root: Path) -> Task:
    """The job of an asset, as far as a scheduler looks at it."""
    size, in_ranks = profile.size_for(asset), CHAIN[asset].stage.in_ranks
    on_ray = in_ranks and size.engine == "ray" and size.nodes > 1
    plain = {"key": asset, "argv": ("-c", "pass"), "size": size, "folder": str(root / asset)}
    there = NodeFolder(path=f"{size.node_cache}/{asset}", address="", endpoint="") if size.node_cache else None
    num_tasks = size.nodes if in_ranks and not on_ray else 1
    return Task(**plain, num_tasks=num_tasks, on_ray=on_ray, node_folder=there)


def _accounting(login: Login) -> Finding:
    try:
        login.call(["sacct", "-X", "-n", "-S", "now"])
    except SlurmError as error:
        advice = "without accounting, energy and attempts before a requeue are not billed"
        return Finding("sacct", "warning", str(error), advice)
    return Finding("sacct", "ok", "accounting answers")


def _rights(cluster: Cluster) -> Finding:
    """Return what the user may not do in the namespace. Raises KubernetesError if the cluster does not tell."""
    asked = [(verb, group, kind) for (group, kind), verbs in RIGHTS.items() for verb in verbs]
    missing = [f"{verb} {kind}" for verb, group, kind in asked if not cluster.may(verb, group, kind)]
    if missing:
        return Finding("rights", "problem", f"in {cluster.namespace}: may not {', '.join(missing)}", ASK)
    return Finding("rights", "ok", f"all that are needed, in {cluster.namespace}")


def _claim(cluster: Cluster, name: str) -> Finding:
    """Return whether a claim has a volume, which pods on several nodes can mount."""
    try:
        told = cluster.claim(name)
    except KubernetesError as error:
        return _unseen("claim", error, "change parts.kubernetes.claims")
    phase = told["status"].get("phase", "")
    if phase != "Bound":
        advice = "unless it waits for its first pod, see `kubectl describe pvc`"
        return Finding("claim", "warning", f"{name} is {phase}", advice)
    if not any(mode.endswith("Many") for mode in told["spec"]["accessModes"]):
        return Finding("claim", "warning", f"{name} can be mounted on one node", "for several, take ReadWriteMany")
    return Finding("claim", "ok", f"{name} has a volume, for several nodes")


def _image(image: str) -> Finding:
    if "@sha256:" in image:
        return Finding("image", "ok", f"{image.partition('@')[0]}, by its digest")
    return Finding("image", "warning", f"{image} may become another image between two jobs", "name it by its digest")


def _queue(cluster: Cluster, name: str) -> Finding:
    try:
        told = cluster.queue(name)
    except KubernetesError as error:
        return _unseen("queue", error, "change parts.kubernetes.queue")
    active = [one for one in told.get("status", {}).get("conditions", ()) if one["type"] == "Active"]
    if active and active[-1]["status"] != "True":
        said = f"{name}: {active[-1].get('message', 'not active')}"
        return Finding("queue", "problem", said, "change parts.kubernetes.queue")
    return Finding("queue", "ok", f"{name} takes jobs")


def _unseen(what: str, error: KubernetesError, advice: str) -> Finding:
    """Return that an object is not there, or may not be looked at."""
    if "forbidden" in str(error).lower():
        return Finding(what, "not looked at", "the user may not get it", "examples/kubernetes/role.yaml has the right")
    return Finding(what, "problem", str(error), advice)

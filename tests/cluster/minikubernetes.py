"""A real Kubernetes API server that the environment names, with nodes of ours: `tests/cluster/kubelet.py`.

`python -m tests.cluster.minikubernetes` says what is missing (exit code 2). The API server needs a controller manager
beside it, and no node: each node of ours is a process of its own namespaces, so killing its first process kills the
whole "machine" at once. Pods have one network, in which nothing but pods can be reached, and what `in_network` starts.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from tests.cluster.kubelet import LABEL, SCHEDULER_LEASE

VARIABLE = "PEDIGREE_TEST_KUBECONFIG"
IMAGE = "example/pedigree@sha256:" + "1f" * 32  # the name of the one image, which is the files of this machine
PROGRAMS = ("kubectl", "unshare", "nsenter", "mount", "ip")
NETWORK = "ip link set lo up && echo up && exec cat"
WITHOUT_NAMESPACE = ("CustomResourceDefinition", "Namespace", "PersistentVolume", "PriorityClass")
CLONE_NEWNET = 0x40000000  # of <sched.h>
SMALL_CLAIM_MB = 2
Found = TypeVar("Found")
NEEDED = (
    f"the address or the kubeconfig of an API server with a controller manager, on which nodes, a namespace and a "
    f"volume may be made: make kubernetes KUBECONFIG=FILE (the tests read {VARIABLE})"
)


def missing() -> str:
    """What is missing for the tests, for people; empty if nothing is."""
    if absent := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"not installed: {', '.join(absent)} (kubernetes-client, util-linux and iproute2)"
    if not os.environ.get(VARIABLE):
        return NEEDED
    if os.geteuid() != 0:
        return "nodes are namespaces, which needs root"
    if subprocess.run(["unshare", "--pid", "--fork", "--uts", "--net", "true"], capture_output=True).returncode:
        return "this machine does not let root make namespaces (unshare --pid --uts --net)"
    server = kubeconfig()
    for asked in (["get", "--raw", "/readyz"], ["auth", "can-i", "create", "nodes"]):
        done = subprocess.run([*server, "--request-timeout=10s", *asked], capture_output=True, text=True)
        if done.returncode:
            return f"kubectl {' '.join(asked)}: {(done.stderr or done.stdout).strip()}; {NEEDED}"
    return ""


def kubeconfig() -> list[str]:
    """The beginning of a call of kubectl: with a kubeconfig, or with an address that asks for no credentials."""
    named = os.environ[VARIABLE]
    return ["kubectl", f"--server={named}" if "://" in named else f"--kubeconfig={named}"]


class MiniKubernetes:
    """A namespace of a cluster, claims on folders of this machine, and nodes that run the namespace's pods.

    The claim `small` has room for SMALL_CLAIM_MB. `hidden` is a folder of this machine in whose place pods see an empty
    one.
    """

    def __init__(self, folder: Path, *, nodes: int = 2, cpus: int = 2) -> None:
        token = secrets.token_hex(3)
        self.folder, self.namespace, self.claim = folder, f"pedigree-{token}", f"runs-{token}"
        self.nodes = tuple(f"{self.namespace}-node{number}" for number in range(1, nodes + 1))
        self.root, self.small, self.hidden = folder / "claim", folder / "small", folder / "hidden"
        self.claims = {self.claim: self.root, f"small-{token}": self.small}
        self.config = folder / "kubeconfig"
        self._cpus = cpus
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def variables(self) -> dict[str, str]:
        """What the environment of a client needs to talk to this cluster."""
        return {"KUBECONFIG": str(self.config)}

    def start(self) -> None:
        """Make namespace and claim, and boot the nodes; return when pods can run."""
        for place in (self.root, self.small, self.hidden):
            place.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_CLAIM_MB}m", "none", self.small], check=True)
        named = subprocess.run(
            [*kubeconfig(), "config", "view", "--raw", "--flatten", "--minify", "-o", "json"],
            capture_output=True,
            text=True,
        )
        address = os.environ[VARIABLE]
        config = _config(address) if "://" in address else json.loads(named.stdout)
        self.config.touch(mode=0o600)
        self.config.write_text(json.dumps(config), "utf-8")
        self.create("v1", "Namespace", self.namespace)
        for name, place in self.claims.items():
            self._make_claim(name, place)
        self._spawn("proxy", ["sh", "-c", f"kubectl proxy --unix-socket={self._socket} & cat; kill $!"])
        network = self._spawn("network", ["unshare", "--net", "--fork", "--kill-child=KILL", "sh", "-c", NETWORK])
        self.wait_until(lambda: "up" in (self.folder / "network.out").read_text(), "the network of pods is up")
        (holder,) = Path(f"/proc/{network.pid}/task/{network.pid}/children").read_text().split()
        self._network = Path(f"/proc/{holder}/ns/net")
        for node in self.nodes:
            self.revive(node)
        self.wait_until(lambda: all(map(self.is_ready, self.nodes)), "every node is ready")
        claims = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        self.wait_until(
            lambda: all(one["status"].get("phase") == "Bound" for one in self.get(claims)["items"]),
            "the claims are bound",
        )
        accounts = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        self.wait_until(lambda: bool(self.get(accounts)["items"]), "the namespace has its service account")

    def stop(self) -> None:
        """Remove what was made and end what was started."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.call("delete", "jobs,pods", "--all", f"--namespace={self.namespace}", "--grace-period=1")
            self.call("delete", "namespace", self.namespace)
            self.call("delete", "persistentvolume", *self.claims)
        for process in reversed(self._daemons.values()):
            process.communicate(timeout=60)  # each ends with its input
        for node in self.nodes:
            with suppress(AssertionError, subprocess.TimeoutExpired):
                self.call("delete", "node", node)
        subprocess.run(["umount", self.small], check=False)

    def _make_claim(self, name: str, place: Path) -> None:
        room = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": ""}
        self.create("v1", "PersistentVolume", name, spec={**room, "hostPath": {"path": str(place)}})
        del room["capacity"]
        wanted = {**room, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}
        self.create("v1", "PersistentVolumeClaim", name, spec=wanted)

    def in_network(self, start: Callable[[], Found]) -> Found:
        """Call a function in the network of pods, such as one that listens there; return what it returns."""

        def enter() -> None:
            with self._network.open("rb") as network:
                assert ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) == 0, ctypes.get_errno()

        with ThreadPoolExecutor(max_workers=1, initializer=enter) as thread:  # the network is the thread's alone
            return thread.submit(start).result()

    def revive(self, node: str) -> None:
        """Boot a node."""
        number = self.nodes.index(node) + 1
        options = {
            "group": self.namespace,
            "socket": self._socket,
            "folder": self.folder / node,
            "number": number,
            "cpus": self._cpus,
            "hidden": self.hidden,
        }
        program = [sys.executable, "-m", "tests.cluster.kubelet", node, f"--image={IMAGE}"]
        program += [f"--{name}={value}" for name, value in options.items()]
        namespaces = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--uts"]
        self._spawn(node, ["nsenter", f"--net={self._network}", *namespaces, *program])

    def fail(self, node: str) -> None:
        """Cut a node's power: its kubelet and all its containers are gone at once."""
        process = self._daemons.pop(node)
        process.kill()
        process.communicate(timeout=60)

    def is_ready(self, node: str) -> bool:
        """Whether the cluster would send pods to a node."""
        with suppress(AssertionError):
            told = self.get(f"/api/v1/nodes/{node}")
            states = [(one["type"], one["status"]) for one in told["status"].get("conditions", ())]
            return ("Ready", "True") in states and not told["spec"].get("taints")
        return False

    def needs_scheduler(self) -> None:
        """Skip a test where the nodes bind pods themselves: only a scheduler says why it does not."""
        with suppress(AssertionError):
            self.get(SCHEDULER_LEASE)
            return
        pytest.skip("no scheduler here")

    def create(self, version: str, kind: str, name: str, **fields: Any) -> None:
        """Create an object."""
        self.add({"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields})

    def add(self, thing: dict[str, Any]) -> None:
        """Create an object as it is, in this namespace if its kind has any. The server checks it, not kubectl."""
        of_namespace = [] if thing["kind"] in WITHOUT_NAMESPACE else [f"--namespace={self.namespace}"]
        self.call("create", "--validate=false", *of_namespace, "-f", "-", given=json.dumps(thing))

    def get(self, path: str) -> dict[str, Any]:
        """Return an object or a list."""
        return json.loads(self.call("get", "--raw", path))

    def pods(self) -> list[dict[str, Any]]:
        """Return the namespace's pods, oldest first."""
        found = self.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return sorted(found, key=lambda one: one["metadata"]["creationTimestamp"])

    def call(self, *argv: str, given: str = "") -> str:
        """Return what kubectl prints; AssertionError if it fails."""
        called = ["kubectl", *argv]
        environment = {**os.environ, **self.variables}
        done = subprocess.run(called, input=given, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def wait_until(self, happened: Callable[[], bool], what: str, *, seconds: float = 120.0) -> None:
        """Look five times a second until it has happened. AssertionError names what did not."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; logs lie in {self.folder}"
            time.sleep(0.2)

    def evict(self, name: str) -> None:
        """Evict a pod, as whoever drains its node does."""
        asked = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": self.namespace}}
        place = f"/api/v1/namespaces/{self.namespace}/pods/{name}/eviction"
        self.call("create", "--raw", place, "-f", "-", given=json.dumps(asked))

    def drain(self, node: str) -> None:
        """Drain a node, and let it take pods again when no pod is left."""
        options = ("--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=50s", "--grace-period=3")
        self.call("drain", node, *options)
        self.call("uncordon", node)

    def settings(self, **changes: Any) -> dict[str, Any]:
        """The section `parts.kubernetes` of a profile for this cluster."""
        claims = {name: str(place) for name, place in self.claims.items()}
        plain = {"image": IMAGE, "claims": claims, "namespace": self.namespace}
        pod = {"nodeSelector": {LABEL: self.namespace}, **changes.pop("pod", {})}
        return {**plain, "python": sys.executable, "poll_seconds": 0.3, "pod": pod, **changes}

    def write_profile(self, path: Path, **changes: object) -> Path:
        """Write a profile that runs every stage here. `changes` replace whole fields of it."""
        size = {"backend": "kubernetes", "workers": 1, "threads": 1, "memory_gb": 2, "hours": 0.5}
        profile = {"name": path.stem, "default": size, "parts": {"kubernetes": self.settings()}}
        path.write_text(yaml.safe_dump({**profile, **changes}), "utf-8")
        return path

    @property
    def _socket(self) -> Path:
        return self.folder / "api.socket"

    def _spawn(self, name: str, argv: list[str]) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.out", "ab") as output:
            self._daemons[name] = subprocess.Popen(
                argv,
                env={**os.environ, **self.variables},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._daemons[name]


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


def _config(address: str) -> dict[str, Any]:
    """A kubeconfig that names an address and no credentials."""
    named = {"clusters": [{"name": "a", "cluster": {"server": address}}], "users": [{"name": "a", "user": {}}]}
    contexts = [{"name": "a", "context": {"cluster": "a", "user": "a"}}]
    return {"apiVersion": "v1", "kind": "Config", "current-context": "a", **named, "contexts": contexts}


if __name__ == "__main__":
    if lacking := missing():
        sys.exit(print(lacking, file=sys.stderr) or 2)

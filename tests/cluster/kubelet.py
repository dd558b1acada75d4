"""A stand-in for a kubelet: a node of a Kubernetes cluster, whose containers are processes of this machine.

It registers the node, renews its lease and runs the pods that are bound to it. Where no scheduler is at work, it binds
pods that it has room for. There is one image, the files of this machine; any other cannot be pulled. A container has
process, host-name and mount namespaces of its own. It sees volumes of claims as the folders of their volumes
(`hostPath`), all other volumes as empty folders in memory, and the names that the endpoints of a service give to pods.
One folder of this machine is hidden from it: in its place is an empty one.

A pod has one container, without probes and without a limit of memory, and `kubectl logs` gets no answer.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Thing = dict[str, Any]
LABEL = "pedigree/nodes"  # of which tests a node is
LOOK_SECONDS, SIGN_SECONDS = 0.25, 5.0
SCHEDULER_LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
TAIL = 2048  # bytes of a container's output that its status repeats
OVERDUE = {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"}
GONE = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "The container could not be located"}
IMAGE_VARIABLES = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
MERGE = "application/strategic-merge-patch+json"


class Refused(Exception):
    """The API server refuses a request; `code` is its status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Api:
    """The API server, as `kubectl proxy` hands it on at a socket of this machine."""

    def __init__(self, path: str) -> None:
        self._path = path

    def ask(self, method: str, target: str, given: Thing | None = None, form: str = "application/json") -> Thing:
        """Return the answer to a request. Raises Refused, and OSError if the server does not answer."""
        connection = http.client.HTTPConnection("localhost", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(30)
            connection.sock.connect(self._path)
            connection.request(method, target, given and json.dumps(given), {"Content-Type": form})
            answer = connection.getresponse()
            body = answer.read().decode()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()
        if answer.status >= 500:
            raise OSError(body)
        if answer.status >= 400:
            raise Refused(answer.status, body)
        return json.loads(body)


@dataclass
class Container:
    """A container that was started. `kill_at` is when it is killed, once it was asked to end."""

    process: subprocess.Popen[bytes]
    log: Path
    hosts: Path
    address: str
    began: str
    started: float = field(default_factory=time.monotonic)
    kill_at: float | None = None
    overdue: bool = False
    told: str = ""  # the phase that the API server knows

    def end(self, grace: float) -> None:
        """Ask it to end, and kill it when its time of grace is over."""
        if self.kill_at is None:
            self.kill_at = time.monotonic() + grace
            self._send(signal.SIGTERM)
        elif time.monotonic() > self.kill_at:
            self.process.kill()

    def _send(self, number: int) -> None:
        first = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with suppress(OSError):
            subprocess.run(["kill", f"-{number}", *first.read_text().split()], check=False)

    def code(self) -> int | None:
        """The exit code, as a container runtime tells it; None while it runs."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code


class Node:
    """A node and its containers."""

    def __init__(
        self, name: str, api: Api, *, group: str, folder: Path, number: int, cpus: int, image: str, hidden: Path
    ) -> None:
        self.name, self.api, self.group, self.folder, self.image = name, api, group, folder, image
        self.number, self.cpus, self.hidden = number, cpus, hidden
        self.containers: dict[str, Container] = {}
        self._pods_had, self._signed = 0, 0.0

    def look(self) -> None:
        """One round: a sign of life, then each pod of the node, then pods that no node has."""
        if time.monotonic() - self._signed > SIGN_SECONDS:
            self._sign()
        mine = self.api.ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={self.name}")["items"]
        for pod in mine:
            try:
                self._follow(pod)
            except Refused as refused:
                print(pod["metadata"]["name"], refused, flush=True)
        for uid in self.containers.keys() - {one["metadata"]["uid"] for one in mine}:
            self.containers.pop(uid).process.kill()  # removed by force
        self._bind([one for one in mine if one["status"].get("phase") not in ("Succeeded", "Failed")])

    # The node

    def _sign(self) -> None:
        """Renew the lease and the node's status; register the node, if it is not there."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now}
        room = {"cpu": str(self.cpus), "memory": "64Gi", "pods": "50", "ephemeral-storage": "64Gi"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": stamp()}
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", LABEL: self.group}
        named = {"metadata": {"name": self.name, "labels": labels}}
        self._put("/api/v1/nodes", named, named)
        self.api.ask("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status}, MERGE)
        self._put(LEASES, {"metadata": {"name": self.name}, "spec": spec}, {"spec": spec})
        self._signed = time.monotonic()

    def _put(self, place: str, whole: Thing, change: Thing) -> None:
        """Change an object, or create it."""
        try:
            self.api.ask("PATCH", f"{place}/{self.name}", change, MERGE)
        except Refused as refused:
            if refused.code != 404:
                raise
            self.api.ask("POST", place, whole)

    def _bind(self, mine: list[Thing]) -> None:
        """Take pods without a node for which there is room, if no scheduler does."""
        if self._scheduler_works():
            return
        node = self.api.ask("GET", f"/api/v1/nodes/{self.name}")
        room = self.cpus - sum(map(cpus_of, mine))
        for pod in self.api.ask("GET", "/api/v1/pods?fieldSelector=spec.nodeName=,status.phase=Pending")["items"]:
            if fits(pod, node) and cpus_of(pod) <= room and not pod["metadata"].get("deletionTimestamp"):
                named = pod["metadata"]
                target = {"apiVersion": "v1", "kind": "Node", "name": self.name}
                binding = {"metadata": {"name": named["name"]}, "target": target}
                with suppress(Refused):  # another node has it
                    self.api.ask("POST", f"{path_of(pod)}/binding", binding)
                    room -= cpus_of(pod)

    def _scheduler_works(self) -> bool:
        try:
            renewed = self.api.ask("GET", SCHEDULER_LEASE)["spec"].get("renewTime", "1970-01-01T00:00:00Z")
        except Refused:
            return False
        return (datetime.now(UTC) - datetime.fromisoformat(renewed.replace("Z", "+00:00"))).total_seconds() < 30

    # Its pods

    def _follow(self, pod: Thing) -> None:
        """Start, watch, end or remove a pod, as its object asks."""
        phase, is_deleted = pod["status"].get("phase"), bool(pod["metadata"].get("deletionTimestamp"))
        container = self.containers.get(pod["metadata"]["uid"])
        if container is not None:
            self._watch(pod, container)
        elif phase == "Running":  # before this node was started again
            self._tell(pod, phase="Failed", **self._state(pod, {"terminated": GONE}))
        elif is_deleted:
            self._remove(pod)
        elif phase not in ("Succeeded", "Failed"):
            self._start(pod)

    def _start(self, pod: Thing) -> None:
        container = pod["spec"]["containers"][0]
        if container["image"] != self.image:
            self._wait(pod, "ErrImagePull", f'failed to pull and unpack image "{container["image"]}": not found')
            return
        try:
            environment = self._environment(pod, container)
        except Refused as refused:
            self._wait(pod, "CreateContainerConfigError", str(refused))
            return
        self._pods_had += 1
        address = f"10.244.{self.number}.{self._pods_had % 250 + 1}"
        subprocess.run(["ip", "address", "replace", f"{address}/32", "dev", "lo"], check=True)
        place = self.folder / pod["metadata"]["uid"]
        place.mkdir(parents=True, exist_ok=True)
        hosts = place / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{address} {host_of(pod)}\n")
        command = [replaced(word, environment) for word in [*container["command"], *container.get("args", ())]]
        script = "\n".join(
            ["set -e", f"hostname {host_of(pod)}", *self._mounts(pod, hosts), f"exec {shlex.join(command)}"]
        )
        namespaces = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--uts"]
        log = place / "output"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*namespaces, "sh", "-c", script],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.containers[pod["metadata"]["uid"]] = Container(process, log, hosts, address, stamp())

    def _mounts(self, pod: Thing, hosts: Path) -> list[str]:
        """The commands that mount a pod's volumes."""
        volumes = {one["name"]: one for one in pod["spec"].get("volumes", ())}
        lines = [f"mount --bind {hosts} /etc/hosts", f"mount -t tmpfs none {shlex.quote(str(self.hidden))}"]
        for mount in pod["spec"]["containers"][0].get("volumeMounts", ()):
            place = shlex.quote(mount["mountPath"])
            claim = volumes[mount["name"]].get("persistentVolumeClaim")
            source = shlex.quote(self._folder_of(pod, claim["claimName"])) if claim else ""
            lines.append(f"mount --bind {source} {place}" if claim else f"mount -t tmpfs none {place}")
        return lines

    def _folder_of(self, pod: Thing, claim: str) -> str:
        namespace = pod["metadata"]["namespace"]
        bound = self.api.ask("GET", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
        volume = self.api.ask("GET", f"/api/v1/persistentvolumes/{bound['spec']['volumeName']}")
        return volume["spec"]["hostPath"]["path"]

    def _environment(self, pod: Thing, container: Thing) -> dict[str, str]:
        """The variables of a container: those of the image, of secrets, and of its own."""
        given = {name: os.environ[name] for name in IMAGE_VARIABLES if name in os.environ}
        namespace = pod["metadata"]["namespace"]
        for source in container.get("envFrom", ()):
            secret = self.api.ask("GET", f"/api/v1/namespaces/{namespace}/secrets/{source['secretRef']['name']}")
            given |= {name: base64.b64decode(value).decode() for name, value in secret.get("data", {}).items()}
        for one in container.get("env", ()):
            path = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            given[one["name"]] = field_of(pod, path) if path else replaced(one.get("value", ""), given)
        return given

    def _watch(self, pod: Thing, container: Container) -> None:
        """Tell what became of a container, and end it if its pod is removed or has run for too long."""
        code, spec = container.code(), pod["spec"]
        pod["status"] |= {"podIP": container.address, "podIPs": [{"ip": container.address}]}
        self._name_others(pod, container)
        if code is None:
            container.overdue |= time.monotonic() - container.started > spec.get("activeDeadlineSeconds", 1e9)
            if pod["metadata"].get("deletionTimestamp"):
                container.end(pod["metadata"].get("deletionGracePeriodSeconds", 30))
            elif container.overdue:
                container.end(spec.get("terminationGracePeriodSeconds", 30))
            if not container.told:
                self._tell(pod, phase="Running", **self._state(pod, {"running": {"startedAt": container.began}}))
                container.told = "Running"
        elif container.told in ("", "Running"):
            output = container.log.read_bytes()[-TAIL:].decode("utf-8", "replace") if code else ""
            reason = "Error" if code else "Completed"
            ending = {"exitCode": code, "reason": reason, "message": output, "startedAt": container.began}
            state = self._state(pod, {"terminated": {**ending, "finishedAt": stamp()}})
            phase = "Failed" if code or container.overdue else "Succeeded"
            self._tell(pod, phase=phase, **state, **(OVERDUE if container.overdue else {}))
            container.told = phase
        elif pod["metadata"].get("deletionTimestamp"):
            self._remove(pod)

    def _name_others(self, pod: Thing, container: Container) -> None:
        """Let a pod of a headless service find the others by their names, as a cluster's DNS does."""
        subdomain = pod["spec"].get("subdomain")
        if not subdomain:
            return
        named = pod["metadata"]["namespace"]
        place = f"/apis/discovery.k8s.io/v1/namespaces/{named}/endpointslices"
        slices = self.api.ask("GET", f"{place}?labelSelector=kubernetes.io/service-name={subdomain}")["items"]
        ends = [end for one in slices for end in one.get("endpoints") or () if end.get("hostname")]
        names = [f"{end['addresses'][0]} {end['hostname']}.{subdomain}" for end in ends]
        before = container.hosts.read_text().splitlines()
        if wanted := [line for line in names if line not in before]:
            with container.hosts.open("a") as hosts:
                hosts.write("".join(f"{line}\n" for line in wanted))

    def _wait(self, pod: Thing, reason: str, message: str) -> None:
        state = {"waiting": {"reason": reason, "message": message}}
        if state not in [one["state"] for one in pod["status"].get("containerStatuses", ())]:
            self._tell(pod, phase="Pending", **self._state(pod, state))

    def _state(self, pod: Thing, state: Thing) -> Thing:
        """What the status of a pod says of its container."""
        container = pod["spec"]["containers"][0]
        digest = f"{container['image'].partition('@')[0]}@sha256:{hashlib.sha256(self.image.encode()).hexdigest()}"
        runs = "running" in state
        ready = {"ready": runs, "started": runs, "restartCount": 0}
        named = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "" if "waiting" in state else digest,
        }
        conditions = [{"type": name, "status": str(runs)} for name in ("Ready", "ContainersReady")]
        return {"containerStatuses": [{**named, **ready, "state": state}], "conditions": conditions}

    def _tell(self, pod: Thing, **status: Any) -> None:
        """Write a pod's status."""
        addresses = {name: pod["status"][name] for name in ("podIP", "podIPs") if name in pod["status"]}
        begin = {"startTime": pod["status"].get("startTime") or stamp()}
        change = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {**addresses, **begin, **status}}
        self.api.ask("PATCH", f"{path_of(pod)}/status", change, MERGE)

    def _remove(self, pod: Thing) -> None:
        """Confirm that a pod has ended, after which its object goes."""
        if pod["status"].get("phase") not in ("Succeeded", "Failed"):
            self._tell(pod, phase="Failed")
        uid = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        with suppress(Refused):  # it is gone
            self.api.ask(
                "DELETE", path_of(pod), {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, **uid}
            )
        self.containers.pop(pod["metadata"]["uid"], None)


def fits(pod: Thing, node: Thing) -> bool:
    """Whether a pod wants a node, and a node a pod."""
    wanted = pod["spec"].get("nodeSelector", {})
    taints = [one for one in node["spec"].get("taints", ()) if one["effect"] in ("NoSchedule", "NoExecute")]
    tolerations = pod["spec"].get("tolerations", ())
    return wanted.items() <= node["metadata"]["labels"].items() and all(
        any(
            one.get("key") in (None, taint["key"]) and one.get("effect") in (None, taint["effect"])
            for one in tolerations
        )
        for taint in taints
    )


def cpus_of(pod: Thing) -> float:
    """The processors that a pod asks for."""
    asked = str(pod["spec"]["containers"][0].get("resources", {}).get("requests", {}).get("cpu", "0"))
    return float(asked[:-1]) / 1000 if asked.endswith("m") else float(asked)


def replaced(text: str, variables: dict[str, str]) -> str:
    """A text as Kubernetes hands it to a container: $(NAME) is a variable, and $$ a dollar."""

    def one(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)", one, text)


def field_of(pod: Thing, path: str) -> str:
    """A field of a pod's object: an annotation or a label, or a name with dots."""
    if entry := re.fullmatch(r"metadata\.(annotations|labels)\['(.*)'\]", path):
        return pod["metadata"].get(entry[1], {}).get(entry[2], "")
    found: Any = pod
    for name in path.split("."):
        found = found.get(name, "")
    return found


def host_of(pod: Thing) -> str:
    """The host name of a pod."""
    return pod["spec"].get("hostname") or pod["metadata"]["name"][:63].strip(".-")


def path_of(pod: Thing) -> str:
    """Where the API server has a pod."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def stamp() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _end_with_parent() -> None:
    """End this process, which is the first of its namespace, and with it all others, when nobody holds its input."""
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """Be a node until somebody ends this process, and with it all containers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--group", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--cpus", type=int, required=True)
    parser.add_argument("--image", required=True)
    parser.add_argument("--hidden", type=Path, required=True)
    given = parser.parse_args()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    options = {name: value for name, value in vars(given).items() if name not in ("name", "socket")}
    node = Node(given.name, Api(given.socket), **options)
    while True:
        try:
            node.look()
        except (OSError, Refused) as error:  # containers run on while the server is away
            print(stamp(), error, flush=True)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()

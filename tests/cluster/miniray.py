"""A real Ray cluster of a few virtual nodes on one machine.

It has a network namespace of its own, because Ray listens on every address.

Each node is a process, host-name and mount namespace of its own, so that killing its first process kills the whole
"machine" at once, and `hostname` says node1. The first node is the head and has no cores, so every rank runs on another
node. Needs root and the extra `ray`; costs about eight seconds of the processor.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ADDRESS = "127.0.0.2:6379"
# Holds the namespace as long as its standard input is open; SIOCSIFFLAGS sets IFF_UP, IFF_LOOPBACK and IFF_RUNNING.
NETWORK = """
import fcntl, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh22x", b"lo", 0x1 | 0x8 | 0x40))
print("up", flush=True)
sys.stdin.read()
"""


def missing() -> str:
    """What this machine lacks to run the cluster, for people; empty when it lacks nothing."""
    if importlib.util.find_spec("ray") is None:
        return "the extra `ray` is not installed (pip install 'pedigree[ray]')"
    absent = [name for name in ("unshare", "nsenter", "mount") if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (package util-linux)"
    if os.geteuid() != 0:
        return "virtual nodes are namespaces, which needs root"
    if subprocess.run(["unshare", "--pid", "--fork", "--uts", "--net", "true"], capture_output=True).returncode:
        return "this machine does not let root make namespaces (unshare --pid --uts --net)"
    return ""


class MiniRay:
    """One cluster. Every node sees `modules` and what lies beside it, but not `unseen`, which each one has for itself.

    A node looks for modules in `own/NODE` first. A job's process has `modules` on its path by another name. By its real
    name Ray would let workers look there first, because it is the folder of the program that the job runs.
    """

    def __init__(self, folder: Path, *, workers: int = 2, cpus: int = 1, python_path: Iterable[str] = ()) -> None:
        self.folder, self._cpus = folder, cpus
        self.modules, self.unseen = folder / "modules", folder / "unseen"
        self.nodes = tuple(f"node{number}" for number in range(1, workers + 2))
        self.variables = {
            "RAY_ADDRESS": ADDRESS,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join([str(folder / "job"), *(python_path or [str(Path.cwd())])]),
        }
        self._network: subprocess.Popen[bytes] | None = None
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Boot the nodes; return when every one of them is in the cluster."""
        for place in (self.modules, self.unseen, *(self.own(node) for node in self.nodes)):
            place.mkdir(parents=True)
        (self.folder / "job").symlink_to(self.modules)
        holder = ["unshare", "--net", "--fork", "--kill-child=KILL", sys.executable, "-c", NETWORK]
        self._network = subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._network.stdout is not None
        assert self._network.stdout.readline() == b"up\n"
        for node in self.nodes:
            self.revive(node)
        self.wait_until(lambda: all(map(self.is_up, self.nodes)), "every node is in the cluster", seconds=240)

    def stop(self) -> None:
        """End everything that was started."""
        for node in reversed(list(self._daemons)):
            self.fail(node)
        if self._network is not None:
            self._network.communicate(timeout=20)

    def own(self, node: str) -> Path:
        """Where a node looks for modules before it looks where all do."""
        return self.folder / "own" / node

    def fail(self, node: str) -> None:
        """Cut a node's power: its raylet and all its workers are gone at once."""
        process = self._daemons.pop(node)
        process.kill()
        process.wait(timeout=60)

    def revive(self, node: str) -> None:
        """Boot a node."""
        number, is_head = self.nodes.index(node), node == self.nodes[0]
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        start += [f"--node-ip-address=127.0.0.{number + 2}", "--num-gpus=0", "--object-store-memory=78643200"]
        if is_head:
            start += ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false"]
            start += [f"--temp-dir={self._session}"]
        else:
            start += [f"--address={ADDRESS}", f"--num-cpus={self._cpus}"]
        self._session.mkdir(exist_ok=True)
        # A job's process finds the head's sockets; those of the other nodes are their own.
        own = [] if is_head else [f"mount -t tmpfs none {self._session}", f"mount -t tmpfs none {self.unseen}"]
        inside = " && ".join([f"hostname {node}", *own, 'until "$@"; do sleep 0.2; done'])
        namespaces = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--uts"]
        flags = {"RAY_process_group_cleanup_enabled": "1", "RAY_memory_monitor_refresh_ms": "0"}
        flags["PYTHONPATH"] = f"{self.own(node)}{os.pathsep}{self.variables['PYTHONPATH']}"
        with open(self.folder / f"{node}.out", "wb") as output:
            self._daemons[node] = subprocess.Popen(
                [*self._inside, *namespaces, "sh", "-c", inside, "sh", *start],
                env={**os.environ, **self.variables, **flags},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def spawn(self, argv: list[str], **options: object) -> subprocess.Popen[str]:
        """Start a command beside the head, where it reaches the cluster."""
        return subprocess.Popen(
            [*self._inside, *argv],
            env={**os.environ, **self.variables},
            text=True,
            **options,  # type: ignore[call-overload]
        )

    def is_up(self, node: str) -> bool:
        """Whether the node has joined the cluster since it was booted last."""
        return "Ray runtime started" in (self.folder / f"{node}.out").read_text("utf-8")

    def wait_until(self, happened: Callable[[], bool], what: str, *, seconds: float = 240.0) -> None:
        """Look ten times a second until it has happened. AssertionError names what did not."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; logs lie in {self.folder}"
            time.sleep(0.1)

    @property
    def _session(self) -> Path:
        return self.folder / "s"

    @property
    def _inside(self) -> list[str]:
        assert self._network is not None
        (holder,) = Path(f"/proc/{self._network.pid}/task/{self._network.pid}/children").read_text().split()
        return ["nsenter", f"--net=/proc/{holder}/ns/net"]

"""A real Slurm of a few virtual nodes on one machine: its own controller, daemons, queue and fake GPUs.

Each node is a process, host-name and mount namespace of its own, so that killing the first process of one kills the
whole "machine" at once, and `hostname` says node1. Needs root and the packages slurm-wlm and munge; starts in about a
second and needs neither systemd nor a database.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import yaml

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "squeue", "scancel", "srun", "unshare")
SEARCH_PATH = f"/usr/sbin:/sbin:{os.environ.get('PATH', os.defpath)}"
NODE_LOST_SECONDS = 5  # without an answer from a node's daemon, its jobs are requeued
KILL_WAIT_SECONDS = 3
URGENT = "urgent"  # a partition whose jobs preempt those of `main`
GRACE_SECONDS = 4  # between the warning of a preempted job and its end


def missing() -> str:
    """What this machine lacks to run the cluster, for people; empty when it lacks nothing."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCH_PATH) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (packages slurm-wlm, munge and util-linux)"
    if os.geteuid() != 0:
        return "virtual Slurm nodes are namespaces, which needs root"
    if subprocess.run(["unshare", "--pid", "--fork", "--uts", "true"], capture_output=True).returncode:
        return "this machine does not let root make namespaces (unshare --pid --uts)"
    return ""


class MiniSlurm:
    """One cluster. `start` returns when every node is idle.

    In place of the `hidden` folders, which lie in the cluster's or are absolute, each node has empty ones of its own.
    """

    def __init__(
        self, folder: Path, *, nodes: int = 2, cpus: int = 2, gpus: int = 2, hidden: tuple[str, ...] = ()
    ) -> None:
        self.folder, self._hidden = folder, [folder / name for name in hidden]
        self.nodes = tuple(f"node{number}" for number in range(1, nodes + 1))
        self.config = folder / "slurm.conf"
        self._cpus, self._gpus = cpus, gpus
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def variables(self) -> dict[str, str]:
        """What a client's environment needs to talk to this cluster."""
        return {"SLURM_CONF": str(self.config), "PATH": SEARCH_PATH}

    def start(self) -> None:
        """Boot munge, controller and nodes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for place in self._hidden:
            place.mkdir(exist_ok=True)
        self.folder.chmod(0o755)  # munge refuses a socket whose folder others cannot reach
        self._start_munge()
        devices = [self._device(number) for number in range(self._gpus)]
        ports = free_ports(1 + len(self.nodes))
        self.config.write_text(self._slurm_conf(ports), "utf-8")
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in devices), "utf-8")
        (self.folder / "state").mkdir(exist_ok=True)
        self._daemons["slurmctld"] = self._spawn(["slurmctld", "-D", "-f", str(self.config)])
        for node in self.nodes:
            self.revive(node)
        self.wait_until(lambda: self.idle_nodes() == set(self.nodes), "every node is idle")

    def stop(self) -> None:
        """End everything that was started, nodes first."""
        for name in sorted(self._daemons, key=lambda name: name in ("slurmctld", "munged")):
            process = self._daemons.pop(name)
            # unshare ignores SIGTERM; killed, it takes its node along
            process.send_signal(signal.SIGKILL if name in self.nodes else signal.SIGTERM)
            process.wait(timeout=60)

    def fail(self, node: str) -> None:
        """Cut a node's power: its daemon and all its jobs' processes are gone at once."""
        process = self._daemons.pop(node)
        process.kill()
        process.wait(timeout=60)

    def revive(self, node: str) -> None:
        """Boot a node."""
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        # slurmd as the first process of its namespace would not reap what its jobs leave behind; a shell does.
        # Before a job, slurmd logs its user in. A profile takes time there, and a node that is cut off meanwhile may
        # leave a lock for which every later login waits.
        profiles = "~/.bash_profile ~/.bash_login ~/.profile"
        bare = f"for file in {profiles}; do [ -e $file ] && mount --bind /dev/null $file; done"
        hides = "".join(f"mount -t tmpfs node {place}; " for place in self._hidden)
        inside = f"{bare}; {hides}hostname {node}; slurmd -D -N {node} -f {self.config} & wait $!"
        namespaces = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--uts"]
        self._daemons[node] = self._spawn([*namespaces, "sh", "-c", inside])

    def running_nodes(self) -> tuple[str, ...]:
        """The nodes that have power."""
        return tuple(node for node in self.nodes if node in self._daemons)

    def pause_controller(self) -> None:
        """Let the controller hang: clients wait for it in vain."""
        self._daemons["slurmctld"].send_signal(signal.SIGSTOP)

    def resume_controller(self) -> None:
        """End `pause_controller`."""
        self._daemons["slurmctld"].send_signal(signal.SIGCONT)

    def call(self, *argv: str) -> str:
        """What a client command prints."""
        done = subprocess.run(argv, env={**os.environ, **self.variables}, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def idle_nodes(self) -> set[str]:
        """Names of the nodes that would take a job now."""
        try:
            return set(self.call("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split())
        except AssertionError:
            return set()  # the controller does not listen yet

    def jobs(self, name: str) -> list[dict[str, str]]:
        """Every job the controller remembers under this name, ended ones included: fields of `scontrol show job`."""
        lines = self.call("scontrol", "-o", "show", "job").splitlines()
        jobs = [dict(part.split("=", 1) for part in line.split() if "=" in part) for line in lines]
        return [job for job in jobs if job.get("JobName") == name]

    def running_jobs(self) -> list[dict[str, str]]:
        """Every job that has nodes now: fields of `scontrol show job`."""
        lines = self.call("scontrol", "-o", "show", "job").splitlines()
        jobs = [dict(part.split("=", 1) for part in line.split() if "=" in part) for line in lines]
        return [job for job in jobs if job.get("JobState") == "RUNNING"]

    def wait_until(self, happened: Callable[[], bool], what: str, *, seconds: float = 240.0) -> None:
        """Look ten times a second until it has happened. AssertionError names what did not."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; logs lie in {self.folder}"
            time.sleep(0.1)

    def write_profile(self, path: Path, **changes: object) -> Path:
        """A profile that runs every stage here. `changes` replace whole fields of it."""
        profile: dict[str, object] = {
            "name": path.stem,
            "default": {"backend": "slurm", "workers": 1, "threads": 1, "memory_gb": 2, "hours": 0.5},
            "parts": {
                "slurm": {"partition": "main", "poll_seconds": 0.2, "environment": ["SLURM_CONF"]},
            },
        }
        path.write_text(yaml.safe_dump({**profile, **changes}), "utf-8")
        return path

    def _spawn(self, argv: list[str]) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{argv[0]}.out", "ab") as output:
            return subprocess.Popen(
                argv,
                env={**os.environ, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _prolog(self) -> Path:
        """A program that each node runs before a job: it fails while the file `no-launch` is there."""
        program = self.folder / "prolog.sh"
        program.write_text(f"#!/bin/sh\ntest ! -e {self.folder}/no-launch\n", "utf-8")
        program.chmod(0o755)
        return program

    def completed(self, job: str) -> list[dict[str, str]]:
        """What Slurm itself wrote of each attempt at a job: fields StartTime, EndTime, NodeCnt, JobState and others."""
        lines = (self.folder / "completed.txt").read_text("utf-8").splitlines()
        found = [dict(part.split("=", 1) for part in line.split() if "=" in part) for line in lines]
        return [one for one in found if one["JobId"] == job]

    def _start_munge(self) -> None:
        private = self.folder / "munge"
        private.mkdir(mode=0o700, exist_ok=True)
        key = private / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        places = {"socket": self._munge_socket, "key-file": key, "seed-file": private / "seed"}
        places |= {"pid-file": private / "pid", "log-file": private / "log"}
        options = [f"--{name}={path}" for name, path in places.items()]
        self._daemons["munged"] = self._spawn(["munged", "--foreground", "--num-threads=2", *options])
        self.wait_until(self._munge_socket.exists, "munge listens")

    @property
    def _munge_socket(self) -> Path:
        return self.folder / "munge.socket"

    def _device(self, number: int) -> Path:
        """A fake GPU: Slurm counts only character or block devices, so it is a second /dev/null."""
        path = self.folder / f"gpu{number}"
        if not path.exists():
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        return path

    def _slurm_conf(self, ports: list[int]) -> str:
        host, user = socket.gethostname().partition(".")[0], pwd.getpwuid(os.geteuid()).pw_name
        settings = {
            "ClusterName": "mini",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": ports[0],
            "SlurmUser": user,
            "SlurmdUser": user,
            "AuthType": "auth/munge",
            # A requeued job waits until its first credential has expired: two minutes, unless 5 s or more are named.
            "AuthInfo": f"socket={self._munge_socket},cred_expire=5",
            "CredType": "cred/munge",
            "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool" / "%n",
            "SlurmctldPidFile": self.folder / "slurmctld.pid",
            "SlurmdPidFile": self.folder / "slurmd.%n.pid",
            "SlurmctldLogFile": self.folder / "slurmctld.log",
            "SlurmdLogFile": self.folder / "slurmd.%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "SwitchType": "switch/none",
            "MailProg": "/bin/true",
            "ReturnToService": 2,
            "SlurmctldTimeout": 10,
            "SlurmdTimeout": NODE_LOST_SECONDS,
            "MinJobAge": 3600,
            "KillWait": KILL_WAIT_SECONDS,
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0,"
            "requeue_delay=1",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU_Memory",
            "SlurmdParameters": "config_overrides",
            "DefMemPerCPU": 256,
            "GresTypes": "gpu",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "JobCompType": "jobcomp/filetxt",
            "JobCompLoc": self.folder / "completed.txt",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
            "Prolog": self._prolog(),
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        for node, port in zip(self.nodes, ports[1:], strict=True):
            place = f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
            lines.append(f"{place} CPUs={self._cpus} RealMemory=8000 Gres=gpu:{self._gpus}")
        common = "Nodes=ALL MaxTime=1:00:00 DefaultTime=10:00 State=UP"
        lines.append(f"PartitionName=main {common} Default=YES PriorityTier=1 GraceTime={GRACE_SECONDS}")
        lines.append(f"PartitionName={URGENT} {common} PriorityTier=9 PreemptMode=OFF")
        return "\n".join([*lines, ""])


def free_ports(number: int) -> list[int]:
    """Ports that nothing listens on now, all different."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()

"""Slurm: a task is a batch job, found again by its name.

`render` is a pure function from a task to an sbatch script; the rest is a few short calls. Data stages fan out as an array of
rank ranges with a finishing job behind it; training over several nodes runs torchrun under srun.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from resources.compute.base import Handle, Status, Task, interpreter_argv
from resources.compute.local import LOG_FILE, tail

if TYPE_CHECKING:
    from resources.profile import SlurmSettings

SCRIPT_FILE, JOB_FILE = "job.sh", "slurm.json"
CALL_SECONDS = 30.0  # a client waits about 10 s for a dead controller
SIGNAL_SECONDS_BEFORE_END = 60
MAX_SILENT_POLLS = 30  # polls without an answer from the controller before a job counts as lost
REQUEUE_EXIT_CODE = 75

PENDING = {
    "PENDING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "SUSPENDED",
    "CONFIGURING",
    "RESV_DEL_HOLD",
}
RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"}
ENDED = {
    "FAILED": "the job ended with an error",
    "CANCELLED": "the job was cancelled",
    "TIMEOUT": "the time limit was reached; raise `hours` in the profile, or let it resume",
    "NODE_FAIL": "a node failed and the job was not requeued",
    "PREEMPTED": "the job was preempted and not requeued",
    "OUT_OF_MEMORY": "the job used more memory than it asked for; raise `memory_gb` in the profile",
    "BOOT_FAIL": "a node did not boot",
    "DEADLINE": "the deadline was reached",
    "REVOKED": "the job was revoked",
}
_SAFE = re.compile(r"[A-Za-z0-9_.:,=@/+-]*\Z")


class SlurmError(RuntimeError):
    """Slurm refused a call or gave no usable answer; the message holds what it said."""


class SlurmBackend:
    """Runs tasks as Slurm jobs. Folders must be on a file system that the nodes share."""

    name = "slurm"

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self.poll_seconds = settings.poll_seconds
        self._silent_polls = 0

    def render(self, task: Task) -> str:
        """The sbatch script of the job that ends the task (its only one, unless it fans out)."""
        return render(task, self._settings)

    def submit(self, task: Task) -> Handle:
        """Submit, unless a job with this key is on its way already: a lost reply never gives two jobs."""
        there = self._in_queue(task.key)
        if there is not None:
            return self._remember(there, task.key, task.folder)
        folder = Path(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        dependency = []
        if task.num_tasks > 1:
            array = folder / f"array-{SCRIPT_FILE}"
            array.write_text(render_array(task, self._settings), "utf-8")
            dependency = [f"--dependency=afterany:{_sbatch([], array)}"]
        script = folder / SCRIPT_FILE
        script.write_text(self.render(task), "utf-8")
        return self._remember(_sbatch(dependency, script), task.key, task.folder)

    def _remember(self, job: str, key: str, folder: str) -> Handle:
        Path(folder, JOB_FILE).write_text(json.dumps({"job": job, "key": key}), "utf-8")
        return Handle(backend=self.name, id=job, key=key, folder=folder)

    def poll(self, handle: Handle) -> Status:
        """What the controller says; accounting where the controller has forgotten the job."""
        try:
            fields = _fields(_call(["scontrol", "-o", "show", "job", handle.id]))
        except SlurmError as error:
            return self._without_controller(handle, str(error))
        self._silent_polls = 0
        return status_of(fields)

    def _without_controller(self, handle: Handle, said: str) -> Status:
        if "Invalid job id" in said:
            return _accounted(handle.id) or Status(state="lost", reason=f"Slurm no longer knows job {handle.id}")
        self._silent_polls += 1
        if self._silent_polls > MAX_SILENT_POLLS:
            return Status(state="lost", reason=f"the Slurm controller does not answer: {said}")
        return Status(state="running", reason=f"the Slurm controller did not answer: {said}")

    def cancel(self, handle: Handle) -> None:
        """scancel every job with the task's name, the array of a fan-out included."""
        _call(["scancel", "--quiet", f"--name={handle.key}"])
        _call(["scancel", "--quiet", handle.id])

    def find(self, key: str, folder: str) -> Handle | None:
        """The job with this name in the queue, else the one remembered in the folder."""
        there = self._in_queue(key)
        if there is not None:
            return self._remember(there, key, folder)
        try:
            known = json.loads(Path(folder, JOB_FILE).read_text("utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return Handle(backend=self.name, id=known["job"], key=key, folder=folder) if known["key"] == key else None

    def _in_queue(self, key: str) -> str | None:
        """The finishing job with this name. Array tasks show as 12_3 and are not it."""
        answer = _call(["squeue", "--noheader", "--me", f"--name={key}", "--format=%i %T"])
        jobs = [line.split() for line in answer.splitlines() if line.strip()]
        plain = [job for job, state in jobs if "_" not in job and state in PENDING | RUNNING]
        return plain[-1] if plain else None

    def log_tail(self, folder: str, lines: int) -> str:
        """The last lines of `log.txt`."""
        return tail(Path(folder) / LOG_FILE, lines)


def render(task: Task, settings: SlurmSettings) -> str:
    """The sbatch script of a task, as text."""
    size = task.size
    distributed = size.nodes > 1 and task.num_tasks == 1
    lines = _head(task, settings, nodes=size.nodes if distributed else 1)
    if distributed:
        lines += _torchrun(task, settings)
    else:
        lines.append(f"exec {shlex.join(interpreter_argv(task, settings.python or sys.executable))}")
    return "\n".join([*lines, ""])


def render_array(task: Task, settings: SlurmSettings) -> str:
    """The sbatch script of a fan-out's array: every task takes the n-th ranks from its own index."""
    lines = _head(task, settings, nodes=1)
    lines.insert(1, f"#SBATCH --array=0-{task.num_tasks - 1}")
    command = shlex.join(interpreter_argv(task, settings.python or sys.executable))
    lines.append(f"exec {command} --ranks $SLURM_ARRAY_TASK_ID/{task.num_tasks}")
    return "\n".join([*lines, ""])


def _head(task: Task, settings: SlurmSettings, *, nodes: int) -> list[str]:
    size = task.size
    options = {
        "job-name": task.key,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "nodes": str(nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(max(size.workers, size.threads * size.processes, 1)),
        "mem": f"{round(size.memory_gb * 1024)}M" if size.memory_gb else "",
        "gpus-per-node": str(size.gpus_per_node) if size.gpus_per_node else "",
        "time": str(max(1, round(size.hours * 60))),
        "signal": f"TERM@{SIGNAL_SECONDS_BEFORE_END}",
        "open-mode": "append",
        "output": _checked(str(Path(task.folder) / LOG_FILE), "folder"),
        "chdir": _checked(str(Path(__file__).parent.parent.parent), "project folder"),
    }
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{name}={_checked(value, name)}" for name, value in options.items() if value]
    lines.append("#SBATCH --requeue")
    exports = {**{name: os.environ[name] for name in settings.environment if name in os.environ}, **task.environment}
    if size.threads:
        exports["OMP_NUM_THREADS"] = str(size.threads)
    lines += ["", *(f"export {name}={shlex.quote(value)}" for name, value in sorted(exports.items()))]
    # The same job runs again from its checkpoint when a stage saved itself and asked for it.
    return lines


def _torchrun(task: Task, settings: SlurmSettings) -> list[str]:
    python = settings.python or sys.executable
    launcher = [
        python,
        "-m",
        "torch.distributed.run",
        "--nnodes=$SLURM_NNODES",
        f"--nproc-per-node={task.size.processes}",
    ]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT", "--rdzv-id=$SLURM_JOB_ID"]
    command = " ".join(part if "$" in part else shlex.quote(part) for part in launcher)
    return [
        # Node names resolve on a real cluster; where they do not, the address Slurm itself uses does.
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        'MASTER_ADDR=$(scontrol -o show node "$first" | grep -o "NodeAddr=[^ ]*" | cut -d= -f2)',
        "export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
        f"exec srun --kill-on-bad-exit=1 bash -c {shlex.quote('exec ' + command + ' ' + shlex.join(task.argv))}",
    ]


def _checked(value: str, what: str) -> str:
    """`value`, unless it could end or bend an #SBATCH line."""
    if not _SAFE.match(value):
        raise SlurmError(f"{what}: {value!r} holds characters that may not stand in an #SBATCH line")
    return value


def status_of(fields: dict[str, str]) -> Status:
    """A job's status from the fields of `scontrol -o show job`."""
    state = fields["JobState"].split()[0]
    reason = fields.get("Reason", "")
    code, _, sign = fields.get("ExitCode", "0:0").partition(":")
    if state in PENDING:
        return Status(state="pending", reason=reason)
    if state in RUNNING:
        return Status(state="running", reason=fields.get("NodeList", ""))
    if state == "COMPLETED":
        return Status(state="succeeded", exit_code=0)
    exit_code = int(code) or (-int(sign) if sign.isdigit() and int(sign) else None)
    said = f"{state}: {ENDED.get(state, 'unknown to this backend')} (exit {fields.get('ExitCode', '?')})"
    return Status(state="cancelled" if state == "CANCELLED" else "failed", reason=said, exit_code=exit_code)


def _accounted(job: str) -> Status | None:
    try:
        answer = _call(["sacct", "-X", "-n", "-P", "-j", job, "-o", "State,ExitCode"])
    except SlurmError:
        return None
    line = next((line for line in answer.splitlines() if "|" in line), "")
    if not line:
        return None
    state, code = line.split("|")[:2]
    return status_of({"JobState": state, "ExitCode": code})


def _sbatch(options: list[str], script: Path) -> str:
    return _call(["sbatch", "--parsable", *options, str(script)]).strip().split(";")[0]


def _fields(line: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def _call(argv: list[str]) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=CALL_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise SlurmError(f"{argv[0]} is not installed here; the slurm backend needs Slurm's client commands") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]} gave no answer in {CALL_SECONDS:.0f} s") from None
    if done.returncode:
        raise SlurmError(f"{' '.join(argv[:4])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout

"""The Slurm backend: a task is a batch job, which can be found again by its name.

`render` is a pure function from a task to an sbatch script; the other functions are short calls of Slurm's commands. A
data stage fans out as a job array, each task with a share of the ranks, followed by a finishing job. Training over
several nodes runs torchrun under srun.

Slurm may have accepted a job although its answer was lost. So a submission first writes a token into the task's folder,
the job carries the token as its comment, and the next submission looks for a job with this token first.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

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
from resources.compute.slurm_accounting import accounted
from resources.compute.slurm_calls import Login, SlurmError, SlurmRefusal
from resources.compute.slurm_environment import PYTHON, digest_of, folder_on_node, send, unpack_lines
from resources.compute.slurm_states import (
    ENVIRONMENT_FAILED,
    NAME_OF_ARRAY_TASK,
    NAME_OF_JOB,
    PENDING,
    RUNNING,
    refused,
    state_of,
    status_of,
)
from training.contract.process.exit_codes import BAD_INPUT, MISSING_RANKS
from training.contract.records import RecipeError

SCRIPT_FILE, ARRAY_SCRIPT_FILE, JOB_FILE, LOG_FILE = "job.sh", "array-job.sh", "slurm.json", "log.txt"
UNCERTAIN_SECONDS = 60.0  # how long to search for a job whose submission got no answer, while Slurm does not answer
SETTLE_SECONDS = 3.0  # a submission that timed out may still be in the controller's queue of calls
SILENCE_SECONDS = 3600.0  # jobs keep running while the controller is down; after this long a job counts as lost
SIGNAL_SECONDS_BEFORE_END = 60
ANSWER_SECONDS = 60  # within which a node that is not lost starts a process
MOST_POLL_SECONDS = 3600
OBJECT_STORE_BYTES = 75 * 2**20  # the least that Ray takes; ranks hand over files

# Environment variables that every job gets, for paths and user. The profile lists all others.
PASSED_ON = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "USER")
# The array that a finishing job still waits for, in its field Dependency: afterany:8_*(unfulfilled).
_AWAITED = re.compile(r"afterany:(\d+)(_\*)?\(unfulfilled\)")
_SAFE = re.compile(r"[A-Za-z0-9_.:,=@/+-]*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LOGIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:/-]{0,254}\Z")  # no option of ssh's, no white space
# Error messages of Slurm's clients after which it is unknown whether the controller received the call.
_UNCERTAIN = re.compile(
    "timed out|gave no answer|unable to contact|connect failure|connection refused|be reached", re.I
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmSettings:
    """The settings with which jobs are submitted to Slurm."""

    partition: str | None = None  # None, here and below: Slurm's own default
    account: str | None = None
    qos: str | None = None
    ssh: str | None = None  # login node where Slurm's commands run, as ssh names it; None: this machine
    python: str | None = None  # on the nodes; None: that of the next two, or else the one that runs Dagster
    environment_file: str | None = None  # archive with bin/python that nodes unpack; None: nodes have an environment
    container: tuple[str, ...] = ()  # command that runs another in a container, such as apptainer exec IMAGE
    environment: tuple[str, ...] = ()  # names of environment variables passed to jobs
    poll_seconds: float = 2.0

    def __post_init__(self) -> None:
        named = {name: getattr(self, name) for name in ("partition", "account", "qos")}
        wrong = [
            f"{name}={value!r}; letters, digits and _.:,=@/+- are right"
            for name, value in named.items()
            if value is not None and not (value and _SAFE.match(value))
        ]
        wrong += [
            f"environment: {one!r} is not the name of a variable"
            for one in self.environment
            if not _VARIABLE.match(one)
        ]
        if self.python is not None and (not self.python.strip() or "\n" in self.python):
            wrong.append(f"python={self.python!r}; the path of an interpreter is right")
        if self.ssh is not None and not _LOGIN.match(self.ssh):
            wrong.append(f"ssh={self.ssh!r}; HOST, USER@HOST or a host of ~/.ssh/config is right")
        if self.environment_file is not None and not Path(self.environment_file).expanduser().is_absolute():
            wrong.append(f"environment_file={self.environment_file!r}; an absolute path, or one from ~, is right")
        if self.environment_file is not None and self.python is not None and self.python.startswith("/"):
            wrong.append(f"python={self.python!r}; a path in environment_file, such as bin/python, is right")
        if self.environment_file is not None and self.container:
            wrong.append("environment_file and container: jobs use one environment; remove one of them")
        if any(not one.strip() or "\n" in one for one in self.container):
            wrong.append("container: a word is empty or has several lines; [apptainer, exec, IMAGE] is right")
        if not 0 < self.poll_seconds <= MOST_POLL_SECONDS:
            wrong.append(f"poll_seconds={self.poll_seconds:g}; above 0, to {MOST_POLL_SECONDS}, is right")
        if wrong:
            raise RecipeError(*wrong)


class SlurmBackend:
    """Runs tasks as Slurm jobs. Folders must be on a file system that the nodes share, or in a store."""

    name = "slurm"

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._login = Login(ssh=settings.ssh)
        self.poll_seconds = settings.poll_seconds
        self._silent_since: float | None = None
        self._seen: dict[str, Status] = {}  # failed or cancelled tasks of arrays, by attempt
        self._ended: dict[str, list[Status]] = {}  # the tasks of arrays that have ended, by array

    def render(self, task: Task) -> str:
        """The sbatch script of the task's job; for a fan-out, the script of the finishing job."""
        return render(task, self._settings)

    def check(self, task: Task) -> None:
        """Ask the queue whether it would take a task. Raises SlurmError if it would not."""
        script = render_array(task, self._settings) if task.num_tasks > 1 else self.render(task)
        try:
            self._login.call(["sbatch", "--test-only"], script)
        except SlurmError as error:
            raise _explained(error) from None

    def submit(self, task: Task) -> Handle:
        """Submit the task's job, unless one with this key is pending or running; return its handle.

        The archive of an environment is sent first. A job whose submission was interrupted is returned although it has
        ended: nobody has seen how.
        Raises SlurmError if Slurm refuses or does not answer.
        """
        folder = Path(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        with submit_lock(folder):
            was_interrupted = _unanswered(task.key, folder) is not None
            there = self.find(task.key, task.folder)
            if there is not None and (was_interrupted or not self.poll(there).is_over):
                return there
            script, file = self.render(task), self._settings.environment_file
            if file is not None:
                send(file, self._login, self._settings.python or PYTHON)
            token = _unanswered(task.key, folder) or secrets.token_hex(8)
            note = {"key": task.key, "token": token, "image": environment_name(self._settings)}
            self._note(folder, job="", **note)
            arrays = self._arrays(task, token) if task.num_tasks > 1 else []
            job = self._submit(script, folder / SCRIPT_FILE, _after(arrays), token)
            return self._note(folder, job=job, array=",".join(arrays), **note)

    def _arrays(self, task: Task, token: str) -> list[str]:
        """The job ids of the fan-out's arrays, one for each phase, each of which waits for the one before.

        An array that an interrupted submission has left is found by its comment.
        """
        folder = Path(task.folder)
        arrays: list[str] = []
        for phase in task.phases or ("",):
            script = folder / (f"array-job-{phase}.sh" if phase else ARRAY_SCRIPT_FILE)
            text, comment = render_array(task, self._settings, phase), _comment(token, phase)
            there = self._queued(array_name(job_name(task.key, folder)), token=comment)
            arrays.append(there or self._submit(text, script, _after(arrays), comment))
        return arrays

    def poll(self, handle: Handle) -> Status:
        """The job's status from the controller, or from accounting if the controller no longer knows the job."""
        status, image = self._status(handle), _note_of(handle).get("image", "")
        return replace(status, allocations=tuple(replace(one, image=image) for one in status.allocations))

    def _status(self, handle: Handle) -> Status:
        try:
            (fields, *_) = self._login.jobs_of(handle.id, within_seconds=self.poll_seconds)
        except SlurmError as error:
            return self._without_controller(handle, str(error))
        self._silent_since = None
        status, awaited = status_of(fields), _AWAITED.match(fields.get("Dependency", ""))
        arrays = _noted_arrays(handle)
        if awaited is not None and awaited[1] not in arrays:
            arrays = [awaited[1]]
        tasks = self._tasks(arrays)
        spent = tuple(one for task in tasks for one in task.allocations)
        if awaited is not None:
            return replace(self._of_fan_out(tasks, status), allocations=spent)
        kept = accounted(self._login, handle.id, *arrays) if status.is_over else None
        status = replace(status, allocations=kept.allocations if kept else (*spent, *status.allocations))
        if arrays and status.exit_code == MISSING_RANKS:
            ended = (one for name, one in sorted(self._seen.items()) if name.partition("_")[0] in arrays)
            # A task that found ranks of an earlier phase missing is no cause.
            return replace(status, parts=tuple(one for one in ended if one.exit_code != MISSING_RANKS))
        return status

    def _tasks(self, arrays: list[str]) -> list[Status]:
        """The statuses of the arrays' tasks. Failed and cancelled ones are kept, because Slurm soon forgets them.

        An array whose tasks have all ended, or that Slurm has forgotten, is not asked about again.
        """
        found: list[Status] = []
        for array in arrays:
            if array in self._ended:
                found += self._ended[array]
                continue
            try:
                tasks = [status_of(fields) for fields in self._login.jobs_of(array, within_seconds=self.poll_seconds)]
            except SlurmError as error:
                if "Invalid job id" in str(error):
                    self._ended[array] = []
                continue
            found += tasks
            if tasks and all(one.is_over for one in tasks):
                self._ended[array] = tasks
        self._seen |= {one.attempt: one for one in found if one.state in ("failed", "cancelled")}
        return found

    def _of_fan_out(self, found: list[Status], finishing: Status) -> Status:
        """The status of a fan-out (a task split into job arrays) while its finishing job waits for the last array."""
        nodes = sorted(status.reason for status in found if status.state == "running")
        if nodes:
            return Status(state="running", reason=f"its fan-out runs on {', '.join(nodes)}")
        waiting = sorted((one for one in found if one.state == "pending"), key=lambda one: not one.is_stuck)
        return replace(waiting[0], reason=f"its fan-out waits: {waiting[0].reason}") if waiting else finishing

    def _without_controller(self, handle: Handle, said: str) -> Status:
        if "Invalid job id" in said:
            return accounted(self._login, handle.id, *_noted_arrays(handle)) or Status(
                state="lost", reason=f"Slurm no longer knows job {handle.id}"
            )
        self._silent_since = self._silent_since or time.monotonic()
        if time.monotonic() - self._silent_since > SILENCE_SECONDS:
            return Status(state="lost", reason=f"Slurm does not answer: {said}")
        return Status(state="running", reason=f"Slurm did not answer: {said}")

    def cancel(self, handle: Handle) -> None:
        """Cancel the task's jobs, the finishing job first, because it would start when the array ends."""
        name = job_name(handle.key, Path(handle.folder))
        for one in (name, array_name(name)):
            self._login.call(["scancel", "--quiet", "--me", f"--name={one}"])

    def find(self, key: str, folder: str) -> Handle | None:
        """The job whose id is stored in the folder, or else a queued job with the task's name; None if there is none.

        Raises SlurmError if Slurm does not answer.
        """
        place = Path(folder)
        return self._noted(key, place) or self._handle(key, place, self._queued(job_name(key, place)))

    def _noted(self, key: str, folder: Path) -> Handle | None:
        note = read_json(folder / JOB_FILE)
        if note is None or note["key"] != key:
            return None
        if note["job"]:
            return self._handle(key, folder, note["job"])
        # The process that wrote this note ended before it got Slurm's answer.
        name, token = job_name(key, folder), note["token"]
        job = self._queued(name, token=token)
        arrays = ",".join(self._all_queued(array_name(name), token=token))
        return self._note(folder, **{**note, "job": job, "array": arrays}) if job else None

    def _note(self, folder: Path, *, key: str, job: str, **noted: str) -> Handle:
        write_json(folder / JOB_FILE, {"key": key, "job": job, **noted})
        return Handle(backend=self.name, id=job, key=key, folder=str(folder))

    def _handle(self, key: str, folder: Path, job: str | None) -> Handle | None:
        return None if job is None else Handle(backend=self.name, id=job, key=key, folder=str(folder))

    def _queued(self, name: str, *, token: str = "") -> str | None:
        """The id of this user's last pending or running job with this name; None if there is none.

        With `token`, the id of the job that has it as its comment, in whatever state.
        """
        if token:
            found = [job for job, _, comment in self._jobs(name, ["--states=all"]) if comment == token]
        else:
            found = [job for job, state, _ in self._jobs(name, []) if state_of(state) in PENDING | RUNNING]
        return found[-1] if found else None

    def _all_queued(self, name: str, *, token: str) -> list[str]:
        """The ids of the arrays of all phases whose comments begin with the token, in whatever state, in order."""
        found = {job for job, _, comment in self._jobs(name, ["--states=all"]) if comment.partition(".")[0] == token}
        return sorted(found, key=int)

    def _jobs(self, name: str, states: list[str]) -> list[tuple[str, str, str]]:
        """Yield id, state and comment of this user's Slurm jobs with this name."""
        answer = self._login.call(["squeue", "--noheader", *states, "--me", f"--name={name}", "--format=%i|%T|%k"])
        rows = [line.split("|", 2) for line in answer.splitlines() if "|" in line]
        # Waiting array tasks are shown as 12_[0-3]; their job id is 12.
        return [(job.partition("_")[0], state, comment.strip()) for job, state, comment in rows]

    def _submit(self, text: str, script: Path, options: list[str], token: str) -> str:
        """Submit a script and return the job's id. If sbatch's answer is lost, find the job by its token instead."""
        script.write_text(text, "utf-8")
        name = next(line.partition("=")[2] for line in text.splitlines() if line.startswith("#SBATCH --job-name="))
        passed = self._settings.environment
        try:
            answer = self._login.call(["sbatch", "--parsable", f"--comment={token}", *options], text, passed=passed)
            return answer.split()[-1].split(";")[0]  # a login may say more before
        except SlurmError as error:
            if not _UNCERTAIN.search(str(error)):
                raise _explained(error) from None
            job = self._look_for(name, token)
            if job is None:
                raise
            return job

    def _look_for(self, name: str, token: str) -> str | None:
        """Return the id of the job that was submitted with this token although sbatch's answer was lost.

        The result is None if there is no such job. Raises SlurmError if Slurm does not answer for UNCERTAIN_SECONDS.
        """
        started = time.monotonic()
        while True:
            waited = time.monotonic() - started
            try:
                job = self._queued(name, token=token)
                if job is not None or waited > SETTLE_SECONDS:
                    return job
            except SlurmError:
                if waited > UNCERTAIN_SECONDS:
                    raise
            time.sleep(0.5)

    def log_tail(self, folder: str, lines: int, attempt: str = "") -> str:
        """The last lines of the last attempt in `log.txt`; empty if `attempt` is given and is another one."""
        return tail(Path(folder) / LOG_FILE, lines, attempt)


def _unanswered(key: str, folder: Path) -> str | None:
    """Return the token of an interrupted submission, whose job id was never stored; None if there is none."""
    note = read_json(folder / JOB_FILE)
    return note["token"] if note is not None and note["key"] == key and not note["job"] else None


def _explained(error: SlurmError) -> SlurmError:
    """Return an error of `sbatch` as a refusal that names the fields of the profile, if it is one."""
    fields = refused(str(error))
    said = f"the queue refuses the job because of {fields} in the profile: {error}"
    return SlurmRefusal(said) if fields else error


def _note_of(handle: Handle) -> dict[str, str]:
    """Return what was noted of a job when it was submitted; empty if there is no note."""
    return read_json(Path(handle.folder) / JOB_FILE) or {}


def _noted_arrays(handle: Handle) -> list[str]:
    return [one for one in _note_of(handle).get("array", "").split(",") if one]


# Rendering


def job_name(key: str, folder: Path) -> str:
    """The task's name in the queue: its key and eight hex digits of a hash of its folder.

    The folder is included because two roots may make the same artifact.
    """
    return f"{key}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def array_name(name: str) -> str:
    """The name of a fan-out's job arrays; `name` itself is the name of the finishing job."""
    return f"{name}.ranks"


def _comment(token: str, phase: str) -> str:
    return f"{token}.{phase}" if phase else token


def _after(arrays: list[str]) -> list[str]:
    """The option of sbatch that lets a job wait for the last of these arrays to end, however its tasks end."""
    return [f"--dependency=afterany:{arrays[-1]}"] if arrays else []


def render(task: Task, settings: SlurmSettings) -> str:
    """The sbatch script of a task; for a fan-out, of its finishing job.

    Raises SlurmError for a value that is not allowed in an #SBATCH line.
    """
    distributed = task.size.nodes > 1 and task.num_tasks == 1
    head = _head(task, settings, name=job_name(task.key, Path(task.folder)), log=LOG_FILE, distributed=distributed)
    head += _says_attempt(NAME_OF_JOB) + _unpacks(task, settings)
    if task.on_ray:
        return "\n".join([*head, *_on_ray(task, settings), ""])
    if distributed:
        goes_on = bool(task.size.spare_nodes or task.size.min_nodes)
        return "\n".join([*head, *(_torchrun_again(task, settings) if goes_on else _torchrun(task, settings)), ""])
    finishes = ["--finish", f"{task.size.missing_ranks_share:g}"] if task.num_tasks > 1 else []
    return "\n".join([*head, f"exec {shlex.join([*_command(task, settings), *finishes])}", ""])


def render_array(task: Task, settings: SlurmSettings, phase: str = "") -> str:
    """Return the sbatch script of a fan-out's job array.

    The array index of a task selects the ranks that it begins with (`--ranks i/n`). All tasks of the array take the
    other ranks as they come to them (`--claims`).
    """
    name = array_name(job_name(task.key, Path(task.folder)))
    head = _head(task, settings, name=name, log="log-%a.txt", distributed=False)
    head.insert(1, f"#SBATCH --array=0-{task.num_tasks - 1}")
    head += _says_attempt(NAME_OF_ARRAY_TASK) + _unpacks(task, settings)
    command = shlex.join([*_command(task, settings), *(["--phase", phase] if phase else [])])
    shares = f'--ranks "$SLURM_ARRAY_TASK_ID/{task.num_tasks}" --claims "$SLURM_ARRAY_JOB_ID"'
    return "\n".join([*head, f"exec {command} {shares}", ""])


def environment_name(settings: SlurmSettings) -> str:
    """The name, in the record of an attempt, of the environment that a job brings along; empty if there is none."""
    if settings.environment_file is None:
        return shlex.join(settings.container)
    return f"{Path(settings.environment_file).name}@sha256:{digest_of(settings.environment_file)}"


def _python(task: Task, settings: SlurmSettings) -> str:
    """The interpreter on a node. Raises SlurmRefusal if there is no folder for the environment that it is in."""
    if settings.environment_file is None:
        return settings.python or ("python" if settings.container else sys.executable)
    if task.size.node_cache is None or task.node_folder is None:
        raise SlurmRefusal(
            "parts.slurm.environment_file is unpacked below `node_cache`, which is null in the profile; set it, or"
            " name an interpreter on the nodes by parts.slurm.python"
        )
    folder = folder_on_node(digest_of(settings.environment_file), task.size.node_cache)
    return f"{folder}/{settings.python or PYTHON}"


def _command(task: Task, settings: SlurmSettings) -> list[str]:
    return [*settings.container, *interpreter_argv(task, _python(task, settings))]


def _unpacks(task: Task, settings: SlurmSettings) -> list[str]:
    if settings.environment_file is None or task.size.node_cache is None:
        return []
    return unpack_lines(digest_of(settings.environment_file), task.size.node_cache, code=ENVIRONMENT_FAILED)


def _head(task: Task, settings: SlurmSettings, *, name: str, log: str, distributed: bool) -> list[str]:
    size = task.size
    # Slurm signals the batch shell only with the prefix `B:`; under srun the job steps get the signal.
    whom = "" if distributed and not task.on_ray else "B:"
    options = {
        "job-name": name,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "nodes": str(size.nodes + size.spare_nodes if distributed else 1),
        "ntasks-per-node": "1",
        "cpus-per-task": str(cores_asked(task) or ""),
        "mem": f"{round(size.memory_gb * 1024)}M" if size.memory_gb else "",
        "gpus-per-node": str(size.gpus_per_node) if size.gpus_per_node else "",
        "time": str(max(1, round(size.hours * 60))),
        "signal": f"{whom}TERM@{SIGNAL_SECONDS_BEFORE_END}",
        "export": ",".join(_checked_variable(one) for one in sorted({*PASSED_ON, *settings.environment})),
        "open-mode": "append",
        "chdir": _checked(_first_folder(settings), "project folder"),
    }
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{option}={_checked(value, option)}" for option, value in options.items() if value]
    lines += ["#SBATCH --exclusive"] if cores_asked(task) is None else []
    lines += ["#SBATCH --no-kill"] if distributed and (size.spare_nodes or size.min_nodes) else []
    output = f"/tmp/{name}-%j.txt" if task.node_folder else f"{_checked(task.folder, 'folder')}/{log}"
    lines += [f"#SBATCH --output={output}", "#SBATCH --requeue", ""]
    lines += _own_log(task, log) if task.node_folder else []
    exports = dict(task.environment)
    if size.threads:
        exports["OMP_NUM_THREADS"] = str(size.threads)
    return lines + [f"export {_checked_variable(one)}={shlex.quote(exports[one])}" for one in sorted(exports)]


def _first_folder(settings: SlurmSettings) -> str:
    """The folder in which a job starts: this project's, unless the job's environment has a Pedigree of its own."""
    brings_its_own = settings.ssh or settings.environment_file or settings.container
    return "/" if brings_its_own else str(Path(__file__).parent.parent.parent)


def _own_log(task: Task, log: str) -> list[str]:
    """Return a shell line that writes the log into the node's own folder of the artifact, which it makes."""
    folder, name = shlex.quote(task.work_folder), log.replace("%a", "$SLURM_ARRAY_TASK_ID")
    return [f'mkdir -p {folder} && exec >>{folder}/"{name}" 2>&1 || exit {BAD_INPUT}']


def _says_attempt(name: str) -> list[str]:
    """Return shell lines that export the attempt's name and write a line with it into the log.

    The variable is for training/contract/running/attempt.py.
    """
    return [
        f"export PEDIGREE_ATTEMPT={name}",
        f'echo "{ATTEMPT_MARK}$PEDIGREE_ATTEMPT on $(hostname), $(date -Is)" >&2',
    ]


def _torchrun(task: Task, settings: SlurmSettings) -> list[str]:
    """Return shell lines that run torchrun on every node; the first node is the rendezvous and has rank 0."""
    return [*_meeting_place(), f"exec {_step(task, settings, nodes=str(task.size.nodes))}"]


def _step(task: Task, settings: SlurmSettings, *, nodes: str, options: str = "") -> str:
    """Return a shell command that runs torchrun under srun, on a number of nodes that a word of the shell gives."""
    fixed = shlex.join([*settings.container, _python(task, settings), *LAUNCHER])
    size = f"--nnodes={nodes} --nproc-per-node={task.size.processes}"
    meeting = '--node-rank="$SLURM_PROCID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"'
    on_node = f"exec {fixed} {size} {meeting} {shlex.join(task.argv)}"
    # By itself srun inherits neither the job's processors nor, after --export in the head, its variables.
    step = f"--kill-on-bad-exit=1 --export=ALL --cpus-per-task={_cores_on_node(task)}"
    return f"srun {step}{options} bash -c {shlex.quote(on_node)}"


def _torchrun_again(task: Task, settings: SlurmSettings) -> list[str]:
    """Return shell lines that run torchrun, and run it again on the nodes that are left when a node was lost.

    The job ends with a training that ends although all nodes answer, and with a training that was asked to stop. If too
    few nodes are left, Slurm puts the job back into the queue.
    """
    step = _step(task, settings, nodes='"$nodes"', options=' --nodes="$nodes" --ntasks="$nodes" --nodelist="$chosen"')
    answers = f"timeout {ANSWER_SECONDS} srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=1 --nodelist"
    return [
        *_meeting_place(),
        'left=($(scontrol show hostnames "$SLURM_JOB_NODELIST")) asked=',
        "trap 'asked=1 again=1; kill \"$step\" 2>/dev/null' TERM",
        "while true; do",
        "  export nodes=0",
        f"  for n in {shlex.join(map(str, reversed(task.size.node_counts())))}; do",
        '    if [ "$n" -le "${#left[@]}" ]; then nodes=$n; fi',
        "  done",
        '  if [ "$nodes" = 0 ]; then',
        '    echo "too few nodes are left (${left[*]}): the job goes back into the queue" >&2',
        '    exec scontrol requeue "$SLURM_JOB_ID"',
        "  fi",
        '  chosen=$(IFS=,; echo "${left[*]:0:nodes}")',
        f"  {step} & step=$!",
        f"  {waited('$step')}",
        '  if [ "$code" = 0 ] || [ "$asked" ]; then exit "$code"; fi',
        "  alive=()",
        '  for node in "${left[@]}"; do',
        f'    if {answers}="$node" true; then alive+=("$node"); else echo "node $node was lost" >&2; fi',
        "  done",
        '  if [ "${#alive[@]}" = "${#left[@]}" ]; then exit "$code"; fi',
        '  left=("${alive[@]}") MASTER_PORT=$((MASTER_PORT + 1))',
        f'  echo "{ATTEMPT_MARK}$PEDIGREE_ATTEMPT goes on with ${{left[*]}}, $(date -Is)" >&2',
        "done",
    ]


def _cores_on_node(task: Task) -> str:
    """Return the number of a job's cores on a node, as a word of the shell: the profile's or what Slurm gave."""
    return str(cores_asked(task) or '"$SLURM_CPUS_ON_NODE"')


def _meeting_place() -> list[str]:
    """Shell lines that export the address of the first node, and a port of this job, as MASTER_ADDR and MASTER_PORT."""
    return [
        # The address that Slurm uses for the first node; the node's name if Slurm gives no address.
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        'MASTER_ADDR=$(scontrol -o show node "$first" | grep -o "NodeAddr=[^ ]*" | cut -d= -f2)',
        'export MASTER_ADDR="${MASTER_ADDR:-$first}" MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))',
    ]


def _on_ray(task: Task, settings: SlurmSettings) -> list[str]:
    """Shell lines that start Ray on every node, and run the command on the first node.

    Ray starts in the background. The command waits only for Ray's head; other nodes may join while it works. When
    the command ends, the job ends, and Slurm ends everything else.
    """
    python = shlex.join([*settings.container, _python(task, settings)])
    memory = [f"--memory={round(task.size.memory_gb * 2**30)}"] if task.size.memory_gb else []
    common = ["--num-gpus=0", *memory]
    common += [f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats", "--block"]
    start = f"{python} -m ray.scripts.scripts start --num-cpus {_cores_on_node(task)} {shlex.join(common)}"
    on_node = [
        'if [ "$SLURM_NODEID" = 0 ]; then',
        f'  exec {start} --head --port="$MASTER_PORT" --include-dashboard=false --temp-dir="/tmp/ray-$SLURM_JOB_ID"',
        "fi",
        f'until {start} --address="$RAY_ADDRESS"; do sleep 2; done',  # the head may not listen yet
    ]
    step = f"--overlap --export=ALL --cpus-per-task={_cores_on_node(task)}"
    return [
        *_meeting_place(),
        'export RAY_ADDRESS="$MASTER_ADDR:$MASTER_PORT" RAY_AUTH_MODE=token',
        "export RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')",
        "export RAY_USAGE_STATS_ENABLED=0 RAY_process_group_cleanup_enabled=1",
        f"srun {step} bash -c {shlex.quote(chr(10).join(on_node))} &",
        "trap 'kill %1; rm -rf \"/tmp/ray-$SLURM_JOB_ID\"' EXIT",
        shlex.join(_command(task, settings)),
    ]


def _checked(value: str, what: str) -> str:
    """Return `value`. Raises SlurmError if it has characters that could end or change an #SBATCH line."""
    if not _SAFE.match(value):
        raise SlurmError(
            f"{what}: {value!r} holds characters that may not stand in an #SBATCH line; "
            "letters, digits and _.:,=@/+- may"
        )
    return value


def _checked_variable(name: str) -> str:
    if not _VARIABLE.match(name):
        raise SlurmError(f"environment: {name!r} is not the name of a variable")
    return name


backend = BackendPart(make=SlurmBackend, settings=SlurmSettings, counts_cores=True, own_folders=True)

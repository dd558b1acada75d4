"""Supervise a local task until it has ended, and write its exit code, so that a later orchestrator can read it.

Run by path with `python -I -S supervise.py FOLDER KEY LOCK COMMAND`: it imports nothing of the project and starts in
milliseconds. LOCK is the descriptor of the submission's lock. It is released when the process file is written, so that
nobody can submit the same task in between, whatever happens to the submitter.

The supervisor owns every process that the task starts. It adopts orphans (Linux: PR_SET_CHILD_SUBREAPER), and it kills
and reaps the processes that still live shortly after the task's main process ended. So an exit file means that no
process of the task lives. If the supervisor is killed, the kernel kills the task's main process (PR_SET_PDEATHSIG), and
the next poll finds the other processes by the environment variable that names their supervisor. On other systems than
Linux, the process group gets SIGTERM.

Temporary files of the task (sockets of a process pool, files of torchrun) are in a folder of their own. The supervisor
removes it, because a killed process cannot remove its files.
"""

import glob
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, cast

PROCESS_FILE, EXIT_FILE = "process.json", "exit.json"
OWNER_VARIABLE = "PEDIGREE_SUPERVISOR"  # in the environment of everything that a task starts
METER_SECONDS = 60.0  # a processor's counter wraps around after some minutes
LINGER_SECONDS = 1.0  # how long other processes may live after the task's main process has ended
LONGEST_SOCKET, SOCKET_NAME = 107, "pymp-12345678/listener-12345678"  # longest socket path in bytes; a pool's socket
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def supervise(folder: str, key: str, lock: int, command: list[str]) -> None:
    """Write the process file, run the command, and write its exit code; each file is written atomically."""
    # A signal to the group reaches the task too; the supervisor ignores it and waits for the task to end.
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: None)
    pid = os.getpid()
    owns_orphans = prctl(PR_SET_CHILD_SUBREAPER, 1)
    here: dict[str, object] = {"key": key, "pid": pid, "start": start_of(pid), "began": time.time()}
    write(os.path.join(folder, PROCESS_FILE), here)
    os.close(lock)
    for stale in glob.glob(os.path.join(glob.escape(folder), "attempts", f"{pid}.*")):  # of a process that had this id
        os.unlink(stale)
    # The beginning of an attempt in the log; base.ATTEMPT_MARK.
    print(f"--- attempt {pid} on {os.uname().nodename}, {time.strftime('%Y-%m-%dT%H:%M:%S%z')}", flush=True)
    kills_before, meter = oom_kills(), make_meter()
    code = run(command, pid)
    if not owns_orphans:
        os.killpg(0, signal.SIGTERM)
    end_descendants()
    remove_temporary(pid, start_of(pid))
    spent = {"began": here["began"], "ended": time.time(), "energy": meter.read() if meter else {}}
    kills = oom_kills() - kills_before
    write(os.path.join(folder, EXIT_FILE), {"pid": pid, "exit_code": code, "oom_kills": kills, **spent})


def make_meter() -> Any:
    """The machine's energy meter (energy.py), which is read every minute from now on; None if there can be none."""
    try:
        # By its path: this process imports nothing of the project.
        from importlib.machinery import SourceFileLoader
        from importlib.util import module_from_spec, spec_from_loader

        place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "energy.py")
        loader = SourceFileLoader("energy", place)
        module: Any = module_from_spec(cast(Any, spec_from_loader("energy", loader)))
        loader.exec_module(module)
        meter = module.EnergyMeter()
        signal.signal(signal.SIGALRM, lambda *_: meter.read())
        signal.setitimer(signal.ITIMER_REAL, METER_SECONDS, METER_SECONDS)
        return meter
    except Exception:  # a counter must not cost the task
        return None


def run(command: list[str], pid: int) -> int:
    """Run the command and return its exit code; orphans that end meanwhile are reaped."""
    # The stage records under the attempt's name how it ended (training/contract/running/attempt.py).
    names = {"PEDIGREE_ATTEMPT": str(pid), OWNER_VARIABLE: owner_of(pid, start_of(pid))}
    names |= make_temporary(pid)
    process = subprocess.Popen(command, env={**os.environ, **names}, preexec_fn=lambda: die_with(pid))
    while process.returncode is None:
        ended, status = os.wait()
        if ended == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode


def make_temporary(pid: int) -> dict[str, str]:
    """Make a folder for the attempt's temporary files; return the environment variables that point to it.

    Empty if the folder cannot be made or its path is too long for a socket. The cache of torch's compiler stays outside
    the folder, for the next attempt.
    """
    folder = temporary_of(pid, start_of(pid))
    if len(os.fsencode(os.path.join(folder, SOCKET_NAME))) > LONGEST_SOCKET:
        return {}
    try:
        os.mkdir(folder, 0o700)
    except OSError:
        return {}
    compiled = os.path.join(os.path.dirname(folder), f"torchinductor_{os.getuid()}")
    return {"TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", compiled)}


def remove_temporary(pid: int, start: str) -> None:
    """Remove the temporary files of a supervisor's task, after the task has ended."""
    import shutil  # here, because a process that only polls does not need it

    shutil.rmtree(temporary_of(pid, start), ignore_errors=True)


def temporary_of(pid: int, start: str) -> str:
    """The folder for the temporary files of a supervisor's task."""
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"pedigree-{pid}-{start.rpartition(':')[2]}")


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; exit at once if the parent has already ended."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_descendants() -> None:
    """Wait until this process has no descendants; kill those that still live after LINGER_SECONDS."""
    patient_until = time.monotonic() + LINGER_SECONDS
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if ended:
            continue
        if time.monotonic() > patient_until:
            kill(descendants_of(os.getpid()))
        time.sleep(0.01)


def descendants_of(pid: int) -> list[int]:
    """Return the process ids of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for one in os.listdir("/proc"):
        fields = stat_of(int(one)) if one.isdigit() else None
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(one))
    found = list(children.get(pid, ()))
    for one in found:  # the list grows during the loop
        found += children.get(one, ())
    return found


def kill(pids: list[int]) -> None:
    """Send SIGKILL to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def prctl(option: int, value: int) -> bool:
    """Set an option of this process with Linux's `prctl`; return whether it succeeded. False on other systems."""
    import ctypes  # here, because a process that only polls does not need it

    try:
        return ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0
    except (AttributeError, OSError):
        return False


def oom_kills() -> int:
    """The number of out-of-memory kills in this process's control group; 0 if the kernel does not report it."""
    try:
        with open("/proc/self/cgroup") as stream:
            groups = [line.rstrip("\n").split(":", 2)[1:] for line in stream]
    except FileNotFoundError:
        return 0
    for controllers, group in groups:
        if controllers not in ("", "memory"):
            continue
        # Version 2, then version 1. In a container the group may be the root of the visible hierarchy.
        place, name = ("", "memory.events") if not controllers else ("/memory", "memory.oom_control")
        for path in (f"/sys/fs/cgroup{place}{group}/{name}", f"/sys/fs/cgroup{place}/{name}"):
            try:
                with open(path) as stream:
                    return next(int(line.split()[1]) for line in stream if line.startswith("oom_kill "))
            except (OSError, StopIteration):
                continue
    return 0


def owner_of(pid: int, start: str) -> str:
    """The value of the environment variable OWNER_VARIABLE by which the processes of a supervisor are recognized."""
    return f"{pid} {start}"


def start_of(pid: int) -> str:
    """Boot id and start time of a process, which differ for a later process with the same pid; "" if it is gone."""
    fields = stat_of(pid)
    if fields is None:
        return ""
    with open("/proc/sys/kernel/random/boot_id") as boot:
        return f"{boot.read().strip()}:{fields[19]}"


def stat_of(pid: int) -> list[str] | None:
    """The fields of `/proc/PID/stat` from the state on (state, parent, group, …); None if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def write(path: str, value: dict[str, object]) -> None:
    """Write JSON to a file, whole or not at all."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as stream:
        json.dump(value, stream)
    os.replace(f"{path}.tmp", path)


if __name__ == "__main__":
    supervise(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))

"""Own a local task to its end, and leave its exit code, so that an orchestrator started later finds how it ended.

Run by path with `python -I -S supervise.py FOLDER KEY LOCK COMMAND`: it imports nothing of the project and starts in
milliseconds. LOCK is the descriptor of the submission's lock: it is let go when the process file is there, so that
nobody can submit the same task in between, whatever happens to the submitter.

Whatever the task starts belongs to this process: orphans come to it (Linux: PR_SET_CHILD_SUBREAPER), and what still
lives shortly after the task's own process ended is killed and waited for. So an exit file means that nothing of the
task lives. When this process is killed the kernel kills the task's own process (PR_SET_PDEATHSIG), and whoever looks
next finds the others by the variable that names their supervisor. Elsewhere than on Linux the group hears SIGTERM.

What the task's processes write for the moment (sockets of a pool, files of torchrun) goes to a folder of its own, which
is removed with them: a process that is killed removes nothing.
"""

import glob
import json
import os
import signal
import subprocess
import sys
import time

PROCESS_FILE, EXIT_FILE = "process.json", "exit.json"
OWNER_VARIABLE = "PEDIGREE_SUPERVISOR"  # in the environment of everything that a task starts
LINGER_SECONDS = 1.0  # what ends by itself when the task's own process has ended gets so long to do it
LONGEST_SOCKET, SOCKET_NAME = 107, "pymp-12345678/listener-12345678"  # bytes of a socket's path; a pool's in the folder
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def supervise(folder: str, key: str, lock: int, command: list[str]) -> None:
    """Run the command; write who runs it, then its exit code, each whole or not at all."""
    # The group's signal reaches the task by itself; the supervisor only waits for what the task makes of it.
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: None)
    pid = os.getpid()
    owns_orphans = prctl(PR_SET_CHILD_SUBREAPER, 1)
    write(os.path.join(folder, PROCESS_FILE), {"key": key, "pid": pid, "start": start_of(pid)})
    os.close(lock)
    for stale in glob.glob(os.path.join(glob.escape(folder), "attempts", f"{pid}.*")):  # of a process that had this id
        os.unlink(stale)
    # The beginning of an attempt in the log; base.ATTEMPT_MARK.
    print(f"--- attempt {pid} on {os.uname().nodename}, {time.strftime('%Y-%m-%dT%H:%M:%S%z')}", flush=True)
    kills_before = oom_kills()
    code = run(command, pid)
    if not owns_orphans:
        os.killpg(0, signal.SIGTERM)
    end_descendants()
    remove_temporary(pid, start_of(pid))
    write(os.path.join(folder, EXIT_FILE), {"pid": pid, "exit_code": code, "oom_kills": oom_kills() - kills_before})


def run(command: list[str], pid: int) -> int:
    """The command's exit code. Orphans that end meanwhile are taken leave of too."""
    # Under the first name the stage says how it ended (training/attempt.py).
    names = {"PEDIGREE_ATTEMPT": str(pid), OWNER_VARIABLE: owner_of(pid, start_of(pid))}
    names |= make_temporary(pid)
    process = subprocess.Popen(command, env={**os.environ, **names}, preexec_fn=lambda: die_with(pid))
    while process.returncode is None:
        ended, status = os.wait()
        if ended == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode


def make_temporary(pid: int) -> dict[str, str]:
    """The variables that send temporary files to a folder of this attempt; none where there cannot be one.

    What torch's compiler keeps for the next attempt stays outside.
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
    """Remove the temporary files of a supervisor's task, which is over."""
    import shutil  # here, for a process that only polls does without it

    shutil.rmtree(temporary_of(pid, start), ignore_errors=True)


def temporary_of(pid: int, start: str) -> str:
    """Where a supervisor has its task's temporary files."""
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"pedigree-{pid}-{start.rpartition(':')[2]}")


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, however that ends; it may have ended already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_descendants() -> None:
    """Return when this process has no descendant any more; those that linger are killed."""
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
    """The processes that a process started, and those that they started."""
    children: dict[int, list[int]] = {}
    for one in os.listdir("/proc"):
        fields = stat_of(int(one)) if one.isdigit() else None
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(one))
    found = list(children.get(pid, ()))
    for one in found:  # it grows
        found += children.get(one, ())
    return found


def kill(pids: list[int]) -> None:
    """SIGKILL for each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def prctl(option: int, value: int) -> bool:
    """Tell the kernel something about this process; whether it took it. Linux alone has this call."""
    import ctypes  # here, for a process that only polls does without it

    try:
        return ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0
    except (AttributeError, OSError):
        return False


def oom_kills() -> int:
    """How often the kernel's out-of-memory killer struck in this process's control group; 0 where it does not say."""
    try:
        with open("/proc/self/cgroup") as stream:
            groups = [line.rstrip("\n").split(":", 2)[1:] for line in stream]
    except FileNotFoundError:
        return 0
    for controllers, group in groups:
        if controllers not in ("", "memory"):
            continue
        # Version 2, then version 1. In a container the group may be the root of what can be seen.
        place, name = ("", "memory.events") if not controllers else ("/memory", "memory.oom_control")
        for path in (f"/sys/fs/cgroup{place}{group}/{name}", f"/sys/fs/cgroup{place}/{name}"):
            try:
                with open(path) as stream:
                    return next(int(line.split()[1]) for line in stream if line.startswith("oom_kill "))
            except (OSError, StopIteration):
                continue
    return 0


def owner_of(pid: int, start: str) -> str:
    """What a supervisor is called in the environment of what it owns."""
    return f"{pid} {start}"


def start_of(pid: int) -> str:
    """When a process started, on which boot of the machine, so that a reused id is not taken for it; "" when gone."""
    fields = stat_of(pid)
    if fields is None:
        return ""
    with open("/proc/sys/kernel/random/boot_id") as boot:
        return f"{boot.read().strip()}:{fields[19]}"


def stat_of(pid: int) -> list[str] | None:
    """State, parent, group and so on of a process, as `/proc` has them; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def write(path: str, value: dict[str, object]) -> None:
    """Write JSON whole or not at all."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as stream:
        json.dump(value, stream)
    os.replace(f"{path}.tmp", path)


if __name__ == "__main__":
    supervise(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))

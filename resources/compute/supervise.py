"""Wait for a local task and leave its exit code, so that an orchestrator started later finds how it ended.

Run by path with `python -I -S supervise.py FOLDER KEY LOCK COMMAND`: it imports nothing of the project and starts in
milliseconds. LOCK is the descriptor of the submission's lock: it is let go when the process file is there, so that
nobody can submit the same task in between, whatever happens to the submitter.
"""

import glob
import json
import os
import signal
import subprocess
import sys

PROCESS_FILE, EXIT_FILE = "process.json", "exit.json"


def supervise(folder: str, key: str, lock: int, command: list[str]) -> None:
    """Run the command; write who runs it, then its exit code, each whole or not at all."""
    # The group's signal reaches the task by itself; the supervisor only waits for what the task makes of it.
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: None)
    pid = os.getpid()
    write(os.path.join(folder, PROCESS_FILE), {"key": key, "pid": pid, "start": start_of(pid)})
    os.close(lock)
    for stale in glob.glob(os.path.join(glob.escape(folder), "attempts", f"{pid}.*")):  # of a process that had this id
        os.unlink(stale)
    # Under this name the stage says how it ended (training/attempt.py).
    code = subprocess.Popen(command, env={**os.environ, "PEDIGREE_ATTEMPT": str(pid)}).wait()
    write(os.path.join(folder, EXIT_FILE), {"pid": pid, "exit_code": code})


def start_of(pid: int) -> str:
    """When a process started, on which boot of the machine, so that a reused id is not taken for it; "" when gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat, open("/proc/sys/kernel/random/boot_id") as boot:
            return f"{boot.read().strip()}:{stat.read().rpartition(')')[2].split()[19]}"
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return ""


def write(path: str, value: dict) -> None:
    """Write JSON whole or not at all."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as stream:
        json.dump(value, stream)
    os.replace(f"{path}.tmp", path)


if __name__ == "__main__":
    supervise(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))

"""Wait for a local task and leave its exit code, so that an orchestrator started later finds how it ended.

Run by path with `python -I -S supervise.py EXIT_FILE COMMANDS`: it imports nothing of the project and starts in
milliseconds.
"""

import json
import os
import signal
import subprocess
import sys


def supervise(exit_file: str, commands: list[list[str]]) -> int:
    """Run the commands in order until one fails; write the exit code whole or not at all."""
    # The group's signal reaches the task by itself; the supervisor only waits for what the task makes of it.
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: None)
    code = 0
    for command in commands:
        code = subprocess.Popen(command).wait()
        if code != 0:
            break
    temporary = f"{exit_file}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump({"exit_code": code}, stream)
    os.replace(temporary, exit_file)
    return code


if __name__ == "__main__":
    supervise(sys.argv[1], json.loads(sys.argv[2]))

"""End the services of `pedigree dev` if that process was killed before it could end them.

Run by path with `python -I -S end_with_parent.py GROUP …`: it imports nothing of the project. Its standard input is a
pipe from `pedigree dev`, which the kernel closes when that process ends in any way. A line in the pipe means that the
services have already been ended.
"""

import os
import signal
import sys
import time

GRACE_SECONDS = 10.0


def end(groups: list[int]) -> None:
    """Send SIGINT to every process group, and SIGKILL to groups that still live after GRACE_SECONDS."""
    deadline = time.monotonic() + GRACE_SECONDS
    for sign in (signal.SIGINT, signal.SIGKILL):
        left = [group for group in groups if _struck(group, sign)]
        while sign == signal.SIGINT and left and time.monotonic() < deadline:
            time.sleep(0.1)
            left = [group for group in left if _struck(group, 0)]


def _struck(group: int, sign: int) -> bool:
    try:
        os.killpg(group, sign)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not sys.stdin.readline():
        end([int(group) for group in sys.argv[1:]])

"""The process that programs are forked from, each into a sandbox of its own.

It has imported what programs import most, and runs no foreign code. Of this process a program has a copy: it is the
first process of a new namespace, in which no other has a number, with a `/tmp` and channels of its own, no capability,
and the filter of system calls.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import time
from contextlib import suppress
from importlib import import_module

from training.contract.sandbox.inside.candidate import main as answer

IMPORTED_MOST = ("typing", "math", "re", "collections", "itertools", "functools", "copy", "string", "heapq", "bisect")
NAMESPACES = 0x00020000 | 0x08000000 | 0x20000000  # CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID
FIRST = 1
NOSUID_NODEV = 2 | 4
SET_SECCOMP, BY_FILTER = 22, 2  # of prctl
CAPABILITIES_3 = 0x20080522
FILES = 10_000  # that a program can make; an empty one takes no room of its folder
_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    """`struct sock_fprog` of Linux's headers."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def main() -> None:
    """Start a program for each pair of descriptors that arrives, and end the one before it."""
    control = socket.socket(fileno=0)
    start = json.loads(control.recv(1 << 16))
    if os.getpid() != FIRST:  # `_end_all` must not be called elsewhere
        raise OSError(f"process {os.getpid()} is not the first of a namespace")
    for name in IMPORTED_MOST:
        import_module(name)
    for name, function, given in start["calls"]:  # what they leave in memory is there for all programs
        found = getattr(import_module(name), function)
        with suppress(Exception):
            found(*given)
    gc.freeze()  # so that no collection of a program's copies these pages
    while True:
        asked, given, _, _ = socket.recv_fds(control, 1, 2)
        if not asked:
            return _end_all()
        if given:
            _end_all()
            _start(given, bytes.fromhex(start["filter"]), start["scratch_bytes"])
            for one in given:
                os.close(one)
        else:
            control.sendall(b"%d %d" % _ended())


def _start(given: list[int], filter_bytes: bytes, scratch_bytes: int) -> None:
    """Start a program in namespaces of its own.

    Forked twice, because a new namespace of processes holds the children of the process that asked for it.
    """
    between = os.fork()
    if between:
        if code := os.waitstatus_to_exitcode(os.waitpid(between, 0)[1]):
            raise OSError(code, f"no namespaces and folder for a program: {os.strerror(code)}")
        return
    try:
        _checked(_libc.unshare(NAMESPACES))
        options = f"size={scratch_bytes},nr_inodes={FILES}".encode()
        _checked(_libc.mount(b"tmpfs", b"/tmp", b"tmpfs", NOSUID_NODEV, options))
        os.chdir("/tmp")
        _drop_capabilities()
        if os.fork():
            os._exit(0)
    except BaseException as error:  # this process must not go on as the one that starts programs
        os._exit(getattr(error, "errno", None) or 1)
    try:
        for number, one in enumerate([*given, given[0]]):
            os.dup2(one, number)
        os.closerange(3, 1 << 20)
        held = _Filter(len(filter_bytes) // 8, filter_bytes)
        _checked(_libc.prctl(SET_SECCOMP, BY_FILTER, ctypes.byref(held), 0, 0))
        answer()
        os._exit(0)
    finally:
        os._exit(1)


def _drop_capabilities() -> None:
    """Give up every capability, which the process before needed to mount a folder."""
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()))


def _end_all() -> None:
    """End whatever is left of a program: all processes but this one."""
    try:
        os.kill(-1, signal.SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def _ended() -> tuple[int, int]:
    """Return the program's exit code, or 128 plus the number of its signal, and the processor time in milliseconds.

    The code is -1 if it still runs after a second.
    """
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        found, status, used = os.wait4(-1, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code, int(1000 * (used.ru_utime + used.ru_stime))
        time.sleep(0.005)
    return -1, 0


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

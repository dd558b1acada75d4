"""The writer process, which sends the reports in the spool (a file) to MLflow until its parent process has ended."""

from __future__ import annotations

import atexit
import fcntl
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from resources.tracking.errors import reason_of
from resources.tracking.spool import append_line, read_applied, spool_bytes
from resources.tracking.store import shown
from resources.tracking.writer import Writer
from training.contract.files.checksums import at_once
from training.contract.secrets import masked_errors, masked_output, remember_address

PROJECT = Path(__file__).parents[2]
LOCK_FILE, LOG_FILE, SCRATCH_FOLDER = "writer.lock", "writer.log", "scratch"
RETRY_SECONDS = 5.0
LINGER_SECONDS = 60.0  # how long a writer whose parent has ended keeps trying while MLflow does not answer

# Identifies this process in the spool, so that runs that it left open are closed after it has ended.
OWNER = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"

# One writer process per store and root. Its standard input is a pipe that the kernel closes when this process ends.
_WRITERS: dict[tuple[str, Path], tuple[subprocess.Popen[bytes], float]] = {}


def start_writer(uri: str, root: Path) -> None:
    """Start the writer process unless it is running. It ends by itself after this process has ended."""
    started = _WRITERS.get((uri, root))
    if started is not None:
        process, since = started
        if process.poll() is None or time.monotonic() - since < RETRY_SECONDS:
            return
        _close_pipe(process)
    with open(root / "tracking" / LOG_FILE, "ab", opener=at_once) as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "resources.tracking", str(root), OWNER],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=PROJECT,
            start_new_session=True,
        )
    _WRITERS[uri, root] = (process, time.monotonic())
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        # Not on the command line, which every user of the machine can read: a URI may hold a password.
        process.stdin.write(f"{uri}\n".encode())
        process.stdin.flush()


@atexit.register
def _leave_writers() -> None:
    """Close the pipes to the writers without waiting; the writers go on until everything is sent."""
    for process, _ in _WRITERS.values():
        _close_pipe(process)
        if process.poll() is None:
            process.returncode = 0  # otherwise Python would warn of a process that is still running


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()


@contextmanager
def writer_lock(folder: Path) -> Iterator[bool]:
    """Try to take the folder's writer lock; yields whether this process holds it, without waiting.

    The kernel releases the lock when the process ends, in whatever way.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK_FILE, "w", encoding="utf-8", opener=at_once) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


@contextmanager
def own_temporary_files(folder: Path) -> Iterator[None]:
    """Context manager: keep the temporary files of MLflow's client in a folder that is empty at first and removed last.

    Only the holder of the writer lock may use it, so that all files found in it at the start were left by a killed
    writer.
    """
    scratch = folder / SCRATCH_FOLDER
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(scratch)
    try:
        yield
    finally:
        tempfile.tempdir = before
        shutil.rmtree(scratch, ignore_errors=True)


def follow(uri: str, root: Path, owner: str, parent_lives: Callable[[], bool]) -> None:
    """Send the spool as it grows, until the parent has ended and everything is sent.

    Gives up if MLflow does not answer for LINGER_SECONDS after the parent has ended. Runs that the parent (`owner`)
    left open are closed.
    """
    folder = root / "tracking"
    closed = False
    while True:
        with writer_lock(folder) as owned:
            if owned:
                with own_temporary_files(folder):
                    _send_while(uri, root, parent_lives)
        # Either the parent has ended, or another writer holds the lock and sends the reports of both parents.
        if parent_lives():
            time.sleep(0.3)
            continue
        applied = read_applied(folder, uri)
        if closed or (not applied["open"] and applied["offset"] == spool_bytes(folder)):
            return
        append_line(folder, {"do": "gone", "owner": owner})
        closed = True


def _send_while(uri: str, root: Path, parent_lives: Callable[[], bool]) -> None:
    """Send the spool until the parent has ended and all is sent, or MLflow has not answered for LINGER_SECONDS."""
    writer: Writer | None = None
    silent_since: float | None = None
    while True:
        alive = parent_lives()  # checked before the spool is read, so that the parent's last lines are read too
        try:
            writer = writer or Writer(uri, root)
            sent = writer.apply_pending()
            silent_since = None
        except Exception as error:  # MLflow may raise anything; the reports wait in the spool
            said = f"MLflow at {shown(uri)} is not taking reports: {reason_of(error)}"
            print(f"{time.strftime('%F %T')} {said}", flush=True)
            writer = None
            silent_since = silent_since or time.monotonic()
            if not alive and time.monotonic() - silent_since > LINGER_SECONDS:
                return
            time.sleep(RETRY_SECONDS)
            continue
        if not sent:
            if not alive:
                return
            time.sleep(0.3)


def _input_is_open() -> bool:
    """Whether standard input is still open, which means that the parent process, at its other end, still lives."""
    readable, _, _ = select.select([0], [], [], 0)
    return not readable or os.read(0, 1) != b""


def main(root: Path, owner: str) -> None:
    """Run the process that writes to MLflow.

    Its standard input begins with the address of MLflow's store, and is closed when the parent process ends.
    """
    os.nice(10)  # stages have priority
    uri = sys.stdin.buffer.raw.readline().decode().strip()  # pyrefly: ignore[missing-attribute]  # unbuffered
    remember_address(uri)
    with masked_output(), masked_errors():
        follow(uri, root, owner, _input_is_open)

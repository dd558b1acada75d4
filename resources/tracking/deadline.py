"""Calls of an MLflow server that end within a time-out, however slowly the server answers.

MLflow's own time-out counts from one byte of the answer to the next. A server that sends one byte a second would keep
its caller for hours.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS_VARIABLE = "MLFLOW_HTTP_REQUEST_TIMEOUT"  # MLflow's own variable, for one request
DEFAULT_SECONDS = "30"
SLOWEST_BYTES_PER_SECOND = 100_000  # of files that are sent or fetched
SENDING = ("log_artifact", "log_artifacts", "log_model_artifacts")  # their last argument is a file or a folder


class BoundedClient:
    """An MLflow client whose calls raise TimeoutError when the answer is not whole after the time-out.

    A call that sends files gets more time, by their size. While a call that was given up still waits for the server,
    all other calls fail at once. So a server that never ends an answer keeps one thread of this process and no more.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._given_up: threading.Thread | None = None

    def __getattr__(self, name: str) -> Any:
        def asked(*arguments: Any, **options: Any) -> Any:
            seconds = _seconds()
            if name in SENDING:
                seconds += _bytes_of(Path(arguments[-1])) / SLOWEST_BYTES_PER_SECOND
            return self._within(seconds, lambda: getattr(self._client, name)(*arguments, **options))

        return asked

    def _within(self, seconds: float, call: Callable[[], Any]) -> Any:
        if self._given_up is not None and self._given_up.is_alive():
            raise TimeoutError("an earlier call timed out, and the server has not ended its answer")
        made: list[Any] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                made.append(call())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="call of MLflow", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            self._given_up = thread
            raise TimeoutError(f"timed out: the answer is not whole after {seconds:.0f} s")
        if failed:
            raise failed[0]
        return made[0]


def wait_while_growing(process: subprocess.Popen[bytes], folder: Path) -> tuple[bytes, bytes]:
    """Wait for a process that downloads into `folder`, and return its output.

    Kill it and raise TimeoutError if less than SLOWEST_BYTES_PER_SECOND arrive during one time-out.
    """
    seconds, before = _seconds(), 0
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=seconds)
        now = _bytes_of(folder)
        if now - before < seconds * SLOWEST_BYTES_PER_SECOND:
            process.kill()
            process.communicate()
            raise TimeoutError(f"timed out: {now - before} bytes of files in {seconds:.0f} s")
        before = now


def _seconds() -> float:
    """MLflow's time-out for one request in seconds."""
    return float(os.environ.get(SECONDS_VARIABLE, DEFAULT_SECONDS))


def _bytes_of(place: Path) -> int:
    files = place.rglob("*") if place.is_dir() else (place,)
    return sum(file.stat().st_size for file in files if file.is_file())

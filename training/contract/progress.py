"""Reports of a running job: metrics as lines of JSON, and messages in the Dagster Pipes protocol.

This module writes both itself, so that a job reports in the same way where dagster-pipes is not installed.
Protocol: dagster-pipes 1.13, message version 0.1; each line is a JSON object with `method` and `params`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from training.contract.secrets import masked

PIPES_VERSION = "0.1"
METRICS_FILE = "metrics.jsonl"
MESSAGES_FILE = "messages.jsonl"
SAVED = "saved"  # key of the custom message that `Progress.saved` writes
WAITS = "waits"  # key of the custom message that `Progress.waits` writes
PHASE = "phase"  # key of the custom message that `Progress.phase` writes
WRITING = "checking and writing the model"  # the phase of a training after its last step


class Progress:
    """Appends to `metrics.jsonl` and `messages.jsonl` in one folder; readers may follow both while the job runs.

    Each line is written with one `write` call and flushed, so a killed job leaves at most one torn last line, which
    readers skip. With `enabled=False` nothing is written.
    """

    def __init__(self, folder: Path, *, enabled: bool = True) -> None:
        self.num_lines = 0  # lines reported so far; a rising number is a sign of life
        self._metrics = _open_lines(folder / METRICS_FILE) if enabled else None
        self._messages = _open_lines(folder / MESSAGES_FILE) if enabled else None

    def log(self, *, step: int, **values: float) -> None:
        """Report numbers at a step, such as loss, tokens_per_second or documents. Units are in the names.

        `values` may have the total number of steps, `steps` (or `ranks` if a step is a rank), from which the time left
        is estimated.
        """
        self._write(self._metrics, {"time": round(time.time(), 3), "step": step, **values})

    def sample(self, *, step: int, text: str) -> None:
        """Report a generated text or an example at a step, as a metric line and as a message."""
        self._write(self._metrics, {"time": round(time.time(), 3), "step": step, "sample": text})
        self.message(f"step {step}: {text}")

    def message(self, text: str, *, level: str = "INFO") -> None:
        """Report one log line, which the Dagster UI shows. Secrets in it are masked."""
        self._pipes("log", {"message": masked(text), "level": level})

    def saved(self, text: str) -> None:
        """Report that the job stopped on request with its state saved, so that the same command resumes from there.

        The exit code 75 means the same, but a launcher of several processes turns every nonzero code into 1.
        """
        self._pipes("report_custom_message", {"payload": {SAVED: text}})

    def waits(self, what: str) -> None:
        """Report what the job is waiting for before it starts its work.

        A call of `opened` reports that the wait is over.
        """
        self._pipes("report_custom_message", {"payload": {WAITS: what}})

    def phase(self, what: str) -> None:
        """Report what the job does from now on, if this is not one of its steps."""
        self._pipes("report_custom_message", {"payload": {PHASE: what}})

    def opened(self) -> None:
        """Report to a Pipes reader that the job has started."""
        self._pipes("opened", {"extras": {}})

    def closed(self, error: BaseException | None = None) -> None:
        """Report to a Pipes reader that the job has ended, with the exception if it failed, and close both files."""
        params: dict[str, Any] = {}
        if error is not None:
            params["exception"] = {
                "message": masked(str(error)),
                "stack": list[str](),
                "name": type(error).__name__,
                "cause": None,
                "context": None,
            }
        self._pipes("closed", params)
        self.close()

    def close(self) -> None:
        """Close both files. Later reports are not written."""
        for stream in (self._metrics, self._messages):
            if stream is not None:
                stream.close()
        self._metrics = self._messages = None

    def _pipes(self, method: str, params: dict[str, Any]) -> None:
        self._write(self._messages, {"__dagster_pipes_version": PIPES_VERSION, "method": method, "params": params})

    def _write(self, stream: TextIO | None, value: dict[str, Any]) -> None:
        self.num_lines += 1
        if stream is not None:
            stream.write(json.dumps(value, ensure_ascii=False) + "\n")
            stream.flush()


def _open_lines(path: Path) -> TextIO:
    """Open a file for appending, and end a torn last line that a killed job left."""
    torn = path.exists() and path.stat().st_size > 0 and not _ends_with_newline(path)
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)  # waits for no pipe
    stream = open(number, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the job
    if torn:
        stream.write("\n")
    return stream


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a `metrics.jsonl`, without torn lines that a killed job left. Empty if it is no file."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text("utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def curve(rows: Iterable[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return (step, value) of one metric in rows of a `metrics.jsonl`, by ascending steps.

    A resumed job does steps again after its last checkpoint; the last value of a step counts.
    """
    named = (row for row in rows if "step" in row and isinstance(row.get(name), (int, float)))
    return sorted({row["step"]: row[name] for row in named}.items())

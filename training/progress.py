"""What a running job says: metrics as lines of JSON, messages in the Dagster Pipes protocol.

One small module writes both, so that a job reports the same way where dagster-pipes is not installed.
Protocol: dagster-pipes 1.13, message version 0.1: one JSON object a line with `method` and `params`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, TextIO

from training.secrets import masked

PIPES_VERSION = "0.1"
METRICS_FILE = "metrics.jsonl"
MESSAGES_FILE = "messages.jsonl"
SAVED = "saved"  # the key of a custom message: what `Progress.saved` tells


class Progress:
    """Appends to `metrics.jsonl` and `messages.jsonl` in one folder; readers may follow both while the job runs.

    A line is written with one `write` call and flushed, so a killed job leaves at most one torn last line, which
    readers
    skip.
    """

    def __init__(self, folder: Path, *, enabled: bool = True) -> None:
        self.num_lines = 0  # said so far: a sign of life
        self._metrics = _open_lines(folder / METRICS_FILE) if enabled else None
        self._messages = _open_lines(folder / MESSAGES_FILE) if enabled else None

    def log(self, *, step: int, **values: float) -> None:
        """Numbers at a step: loss, tokens_per_second, documents. Units are in the names."""
        self._write(self._metrics, {"time": round(time.time(), 3), "step": step, **values})

    def sample(self, *, step: int, text: str) -> None:
        """A piece of generated or example text, for people who watch."""
        self._write(self._metrics, {"time": round(time.time(), 3), "step": step, "sample": text})
        self.message(f"step {step}: {text}")

    def message(self, text: str, *, level: str = "INFO") -> None:
        """One log line, shown in the Dagster UI."""
        self._pipes("log", {"message": masked(text), "level": level})

    def saved(self, text: str) -> None:
        """Tell that the job was asked to stop, that its state is saved, and that the same command goes on from there.

        An exit code says so too, but a launcher of several processes makes 1 of every code.
        """
        self._pipes("report_custom_message", {"payload": {SAVED: text}})

    def opened(self) -> None:
        """Tell a Pipes reader that the job has started."""
        self._pipes("opened", {"extras": {}})

    def closed(self, error: BaseException | None = None) -> None:
        """Tell a Pipes reader that the job has ended, with the exception if it failed; what is reported later is
        lost."""
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
    """Open for appending, first closing a torn last line that a killed job left."""
    torn = path.exists() and path.stat().st_size > 0 and not _ends_with_newline(path)
    stream = open(path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the job
    if torn:
        stream.write("\n")
    return stream


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a `metrics.jsonl`; torn lines of a killed job are skipped."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text("utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows

"""Forward what a job writes while it runs: metrics and text samples to MLflow, log lines to Dagster."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.materialize.events import announce
from resources.compute.base import read_json
from training.contract.files.checksums import at_once
from training.contract.progress import MESSAGES_FILE, METRICS_FILE, PHASE, SAVED, WAITS
from training.contract.running.leftovers import RANKS_FOLDER
from training.contract.running.marks import TOTAL_FILE, num_finished

if TYPE_CHECKING:
    from assets.materialize.watch import Watch
    from assets.state.cell import Cell

SAMPLE_CHARACTERS = 2000  # longest text sample in a tag of an MLflow run
OBSERVED_SECONDS = 60.0  # between two observations of a training


class Reports:
    """Forwards what a job writes during one attempt to MLflow, Dagster and the terminal.

    Metrics are read from the first line on, so that rows written while nobody watched are not lost. MLflow keeps equal
    rows once; it gets only the first of several numbers of one name and step, because a resumed job takes the steps
    after its last checkpoint again. `is_saved` tells whether the job has reported that it saved its state and stops.
    """

    def __init__(self, folder: Path, run: Any, watch: Watch, cell: Cell) -> None:
        self._metrics, self._messages = Tail(folder / METRICS_FILE), Tail(folder / MESSAGES_FILE, from_end=True)
        self._folder, self._run, self._watch, self._cell = folder, run, watch, cell
        self._newest: dict[str, Any] = {}  # row with a loss that Dagster has not seen
        self._observed_at = time.monotonic() - OBSERVED_SECONDS
        self._ranks: dict[str, int] = {}
        self._sent: set[tuple[int, str]] = set()
        self.is_saved = False

    def forward(self, *, is_last: bool) -> None:
        """Send on the metrics, text samples and messages that the job has written since the last call."""
        new = self._metrics.new_rows()
        rows = [row for row in new if "sample" not in row]
        if rows:
            self._run.log_metrics([self._unsent(row) for row in rows])
            announce("progress", self._cell, rows[-1])
        samples = {f"sample/step {row['step']}": row["sample"][:SAMPLE_CHARACTERS] for row in new if "sample" in row}
        if samples:
            self._run.set_tags(samples)
        for message in self._messages.new_rows():
            self._forward_message(message)
        self._observe(rows, is_last=is_last)

    def _unsent(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row without the numbers that were sent for its step before."""
        step = row["step"]
        left = {name: value for name, value in row.items() if (step, name) not in self._sent}
        self._sent |= {(step, name) for name in left}
        return left | {name: row[name] for name in ("time", "step") if name in row}

    def _forward_message(self, message: dict[str, Any]) -> None:
        if message.get("method") == "log":
            self._watch.say(message["params"]["message"])
        payload = message["params"]["payload"] if message.get("method") == "report_custom_message" else {}
        self.is_saved |= SAVED in payload
        if WAITS in payload or message.get("method") == "opened":
            announce("waits", self._cell, {"for": payload.get(WAITS, "")})
        if PHASE in payload:
            announce("phase", self._cell, {"name": payload[PHASE]})

    def _observe(self, rows: list[dict[str, Any]], *, is_last: bool) -> None:
        """Report the newest row of a training to Dagster, every OBSERVED_SECONDS and once at the end."""
        self._newest = next((row for row in reversed(rows) if "loss" in row), self._newest)
        if self._newest and (is_last or time.monotonic() - self._observed_at > OBSERVED_SECONDS):
            self._watch.observe({name: value for name, value in self._newest.items() if name != "time"})
            self._newest, self._observed_at = {}, time.monotonic()

    def count_ranks(self) -> None:
        """Announce how many ranks a fan-out has finished, if the number changed: its tasks write no metrics."""
        total = read_json(self._folder / RANKS_FOLDER / TOTAL_FILE)
        row = {} if total is None else {"step": num_finished(self._folder), **total}
        if row and row != self._ranks:
            self._ranks = row
            announce("progress", self._cell, row)


class Tail:
    """Reads new complete lines of a growing JSON-lines file, from its beginning or from its present end."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def new_rows(self) -> list[dict[str, Any]]:
        """The rows written since the last call; an incomplete last line is left for the next call."""
        if not self._path.exists():
            return []
        with open(self._path, "rb", opener=at_once) as stream:
            stream.seek(self._offset)
            data = stream.read()
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [row for line in whole.splitlines() if (row := _row(line)) is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None  # a line torn by a kill; Progress closes it before it writes on

"""Forward what a job writes while it runs: metrics and text samples to MLflow, log lines to Dagster."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.materialize.events import announce
from resources.compute.base import read_json
from training.contract.progress import PHASE, SAVED, WAITS
from training.contract.running.leftovers import RANKS_FOLDER
from training.contract.running.marks import TOTAL_FILE, num_finished

if TYPE_CHECKING:
    from assets.materialize.watch import Watch
    from assets.state.cell import Cell

SAMPLE_CHARACTERS = 2000  # longest text sample in a tag of an MLflow run
OBSERVED_SECONDS = 60.0  # between two observations of a training


class Observed:
    """Reports the newest metrics of a training to Dagster, every OBSERVED_SECONDS and once at the end."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._row: dict[str, Any] = {}
        self._observed_at = time.monotonic() - OBSERVED_SECONDS

    def see(self, rows: list[dict[str, Any]], *, is_last: bool) -> None:
        """Process new rows of metrics, and report the newest if it is time; rows without a loss are ignored."""
        self._row = next((row for row in reversed(rows) if "loss" in row), self._row)
        if self._row and (is_last or time.monotonic() - self._observed_at > OBSERVED_SECONDS):
            self._watch.observe({name: value for name, value in self._row.items() if name != "time"})
            self._row, self._observed_at = {}, time.monotonic()


def forward(metrics: Tail, messages: Tail, run: Any, watch: Watch, cell: Cell) -> tuple[list[dict[str, Any]], bool]:
    """Send the metrics and messages that the job has written since the last call to MLflow and Dagster.

    Returns the new rows of metrics, and whether the job reported that it saved its state and stops.
    """
    new = metrics.new_rows()
    rows = [row for row in new if "sample" not in row]
    if rows:
        run.log_metrics(rows)
        announce("progress", cell, rows[-1])
    samples = {f"sample/step {row['step']}": row["sample"][:SAMPLE_CHARACTERS] for row in new if "sample" in row}
    if samples:
        run.set_tags(samples)
    is_saved = False
    for message in messages.new_rows():
        if message.get("method") == "log":
            watch.say(message["params"]["message"])
        payload = message["params"]["payload"] if message.get("method") == "report_custom_message" else {}
        is_saved |= SAVED in payload
        if WAITS in payload or message.get("method") == "opened":
            announce("waits", cell, {"for": payload.get(WAITS, "")})
        if PHASE in payload:
            announce("phase", cell, {"name": payload[PHASE]})
    return rows, is_saved


class FanOut:
    """Counts the ranks that the tasks of a fan-out have finished; none of these tasks reports to the job's files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, int] = {}

    def new_row(self) -> dict[str, int]:
        """Return `step` (finished ranks) and `ranks` (all), if they changed; empty as long as no task has begun."""
        total = read_json(self._folder / RANKS_FOLDER / TOTAL_FILE)
        row = {} if total is None else {"step": num_finished(self._folder), **total}
        if row == self._seen:
            return {}
        self._seen = row
        return row


class Tail:
    """Reads new complete lines of a growing JSON-lines file, from its beginning or from its present end."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def new_rows(self) -> list[dict[str, Any]]:
        """The rows written since the last call; an incomplete last line is left for the next call."""
        if not self._path.exists():
            return []
        with open(self._path, "rb") as stream:
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

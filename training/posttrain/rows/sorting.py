"""Write each row to exactly one file: kept, dropped with a reason, or quarantined with a reason."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from training.contract.artifact import written
from training.contract.job import Counts
from training.data.sources import row_json
from training.posttrain.rows.given import Given
from training.posttrain.rows.source import SourceRow

# Files of kept rows, by the stage that writes them.
INSTRUCTIONS_FILE = "instructions.jsonl"
TRAIN_FILE, HELD_OUT_FILE = "train.jsonl", "held_out.jsonl"  # preference pairs
PROMPTS_FILE = "prompts.jsonl"
DROPPED_FILE = "dropped.jsonl"
QUARANTINE_FILE = "quarantine.jsonl"


class Sorter:
    """A context manager that writes kept rows to the files `names`, and other rows to DROPPED_FILE or QUARANTINE_FILE.

    The files appear whole when the block ends without an error.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        self.files = (*names, DROPPED_FILE, QUARANTINE_FILE)
        self.sources: dict[str, Given] = {}
        self.totals: Counter[str] = Counter()
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Sorter:
        self._streams = {name: self._stack.enter_context(written(self._folder / name, "w")) for name in self.files}
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def kept(self) -> int:
        """The number of rows that were kept."""
        return sum(one.kept for one in self.sources.values())

    def counts(self, records_in: int) -> Counts:
        """Return the counts for `records_in` rows that were read."""
        given = self.sources.values()
        dropped = sum((one.dropped for one in given), Counter())
        quarantined = sum((one.quarantined for one in given), Counter())
        return Counts(
            records_in=records_in,
            kept=self.kept,
            dropped=dict(sorted(dropped.items())),
            quarantined=dict(sorted(quarantined.items())),
        )

    def keep(self, record: SourceRow, row: dict[str, Any], file: str = "") -> None:
        """Write what was made of a row to the file for kept rows, `file`, by default the first one."""
        self._write(file or self.files[0], {"id": record.id, **row, "source": _source(record), **record.marks})
        self._given(record).add(record)
        self.totals["turns"] += len(row.get("messages", ()))

    def refuse(self, record: SourceRow) -> None:
        """Write a row that is not kept to the dropped or quarantine file, with its reason."""
        name = QUARANTINE_FILE if record.is_damaged else DROPPED_FILE
        self._write(name, {"id": record.id, "reason": record.reason, **record.marks, "row": record.row})
        self._given(record).add(record)

    def _given(self, record: SourceRow) -> Given:
        return self.sources.setdefault(_source(record), Given())

    def _write(self, name: str, row: dict[str, Any]) -> None:
        try:
            line = row_json(row, sort_keys=True, allow_nan=True, default=str)
        except RecursionError:  # json goes deeper
            line = json.dumps(row, ensure_ascii=False, sort_keys=True, default=str)
        # Halves of characters, which only a quarantined row has, become question marks.
        self._streams[name].write(line.encode("utf-8", "replace").decode("utf-8") + "\n")


def _source(record: SourceRow) -> str:
    return record.id.rpartition("#")[0]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file that a Sorter wrote."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]

"""What a job took: begin, end, nodes and cause of each attempt, as its backend counts them, and the sum in the record.

While a run follows a job, it writes what the backend says of each attempt into a file beside the artifact. When the job
has ended, the sums replace the job's own estimate in the record: a job sees neither its start-up nor its earlier
attempts. Costs are no part of a record's digest, so this changes no identity.

If no backend tells when an attempt began or ended, it counts from the first to the last sign of life that is known, and
its row has `least`: it took at least so long.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from resources.compute.base import HANDLE_FILE, Allocation, Backend, Handle, NotSubmitted, Status, read_json
from training.contract import artifact
from training.contract.artifact import ARTIFACT_FILE, COPY_FILE, Artifact
from training.contract.files.checksums import at_once
from training.contract.files.writing import Unsealed, regular_bytes
from training.contract.job import DataError
from training.contract.running.attempt import last_sign_of, read_attempts

BILL_FILE = "bill.jsonl"
COUNTERS = ("processors", "gpus", "nodes")  # what energy may be measured of


class Bill:
    """The file with the attempts at one artifact; a later line about an attempt completes the earlier ones."""

    def __init__(self, folder: Path, *, backend: str, run: str) -> None:
        self._folder, self._by = folder, {"backend": backend, "run": run}
        self._known = {one["attempt"]: one for one in attempts(folder)}
        self._seen: dict[str, float] = {}  # when the backend last said that an attempt has its nodes

    def note(self, allocations: Iterable[Allocation]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Write what is new of these attempts; return the old and the new row of each of which something is new."""
        changed = []
        for one in allocations:
            before = self._known.get(one.attempt, {})
            row = _completed(before or self._by, asdict(one))
            if row != before:
                self._known[one.attempt] = row
                changed.append((before, row))
        if changed:
            with open(self._folder / BILL_FILE, "a", encoding="utf-8", opener=at_once) as stream:
                # The first line ends one that a killed process left incomplete.
                stream.write("".join(f"\n{json.dumps(row)}\n" for _, row in changed))
        return changed

    def follow(self, status: Status) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Note the attempts of a job whose backend was asked just now, and return as `note` does.

        When the job is over, an attempt whose end the backend does not tell had its nodes when it was last seen.
        """
        if not status.is_over:
            self._seen |= {one.attempt: time.time() for one in status.allocations if one.end is None}
            return self.note(status.allocations)
        changed = self.note(status.allocations)
        left = [row for name, row in self._known.items() if row["end"] is None and name in self._seen]
        ends = [(row, self._seen[row["attempt"]]) for row in left]
        return changed + self.note(
            Allocation(attempt=row["attempt"], begin=None, end=end, nodes=row["nodes"], least=True) for row, end in ends
        )

    def node_hours(self) -> float:
        """The node-hours of the attempts that this run saw first."""
        rows = (_closed(row, self._folder) for row in self._known.values())
        return node_hours(row for row in rows if row["run"] == self._by["run"])


def _completed(before: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """An attempt's row with what is said of it now. That a job was requeued tells less than what was known before.

    Who knows of no end does not say that the known one was seen.
    """
    news = {name: value for name, value in said.items() if value not in (None, "", {})}
    if before.get("least") and said["end"] is None:
        del news["least"]
    if before.get("cause") and news.get("cause") == "requeued":
        del news["cause"]
    return {"begin": None, "end": None, "cause": "", **before, **news}


def attempts(folder: Path) -> list[dict[str, Any]]:
    """The attempts in an artifact's folder as its backends counted them, oldest first; empty if none was noted.

    Raise DataError if something else stands in the place of the file.
    """
    rows: dict[str, dict[str, Any]] = {}
    try:
        lines = regular_bytes(folder / BILL_FILE).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    except Unsealed as error:
        raise DataError(f"{folder}: {error}, and the seconds of its jobs are not counted; remove it") from None
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # torn by a process that was killed while it wrote
        rows[row["attempt"]] = row
    return sorted(rows.values(), key=lambda row: row["begin"] or row["end"] or 0.0)


def node_hours(rows: Iterable[dict[str, Any]]) -> float:
    """The node-hours of attempts whose begin and end are known."""
    return sum(row["nodes"] * max(0.0, row["end"] - row["begin"]) for row in rows if None not in _span(row)) / 3600


def elapsed_seconds(rows: Iterable[dict[str, Any]]) -> float:
    """Return the number of seconds in which at least one attempt had nodes; what overlaps counts once."""
    total, until = 0.0, 0.0
    for begin, end in sorted(_span(row) for row in rows if None not in _span(row)):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _span(row: dict[str, Any]) -> tuple[Any, Any]:
    return row["begin"], row["end"]


def settled(made: Artifact, price_per_hour: float | None) -> Artifact:
    """Write the sums of all attempts into the cost of the artifact's record, and return the artifact with it.

    The job's own figure stays beside them as `work_node_hours`. Nothing changes if no backend counted an attempt.
    """
    rows = attempts(made.path)
    if not rows:
        return made
    rows = [_closed(row, made.path) for row in (*_unseen(made.path, rows), *rows)]
    before = made.record["cost"]
    cost = before | {
        "work_node_hours": before.get("work_node_hours", before.get("node_hours")),
        "node_hours": round(node_hours(rows), 6),
        "least": sum(row.get("least", False) for row in rows),
        "elapsed_seconds": round(elapsed_seconds(rows), 3),
        "energy": energy_of(rows),
        "attempts": rows,
    }
    if price_per_hour:
        cost["price"] = round(cost["node_hours"] * price_per_hour, 6)
    if cost == before:
        return made
    files = [made.path / name for name in (ARTIFACT_FILE, COPY_FILE)]
    times = [(path, path.stat()) for path in files if path.exists()]
    artifact.commit_record(made.path, {**made.record, "cost": cost})
    for path, stat in times:  # a record's time is that of its commit
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return Artifact(path=made.path, record={**made.record, "cost": cost})


def settled_late(made: Artifact, backend: Backend, *, run: str, price_per_hour: float | None) -> Artifact:
    """Settle the bill of a job that ended while no run followed it, as far as its backend still knows it."""
    handle, rows = read_json(made.path / HANDLE_FILE), made.record["cost"].get("attempts", ())
    is_known = bool(rows) and all(None not in _span(row) for row in rows)
    if handle is None or is_known or handle["backend"] != backend.name:
        return made
    with suppress(NotSubmitted, OSError):  # a backend that does not answer; a root that is not ours
        Bill(made.path, backend=backend.name, run=run).note(backend.poll(Handle(**handle)).allocations)
        return settled(made, price_per_hour)
    return made


def energy_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each counter the joules of all attempts, as `measured`; `absent` if one attempt was not measured."""
    told = {}
    for name in COUNTERS:
        joules = [row.get("energy", {}).get(name) for row in rows]
        measured = None not in joules
        told[name] = {"state": "measured", "joules": round(sum(joules), 3)} if measured else {"state": "absent"}
    return told


def _unseen(folder: Path, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row without times of each attempt that only its own processes recorded. The last run is billed for it."""
    known = {row["attempt"].partition("@")[0] for row in rows}
    hosts: dict[str, set[str]] = {}
    for said in read_attempts(folder):
        hosts.setdefault(said["attempt"], set()).add(said["host"])
    blank = {name: rows[-1][name] for name in ("backend", "run")} | {"begin": None, "end": None, "cause": ""}
    for name in sorted(hosts.keys() - known):
        yield blank | {"attempt": name, "nodes": len(hosts[name]), "names": ",".join(sorted(hosts[name]))}


def _closed(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The row of an attempt; what no backend told is bounded by the signs of life of the attempt's own processes."""
    if None not in _span(row):
        return row
    own = read_attempts(folder, row["attempt"].partition("@")[0])
    begin = row["begin"] or min((one["started"] for one in own), default=None)
    end = row["end"] or max((last_sign_of(folder, one) for one in own), default=begin)
    told_by = "its own processes" if own else "nobody"
    return row | {"begin": begin, "end": end, "least": True, "told_by": told_by}

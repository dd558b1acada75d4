"""The spool: an append-only file in which reports wait for MLflow, and the note of how far it was sent."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from resources.tracking.errors import TrackingError

SPOOL_FILE, APPLIED_FILE = "spool.jsonl", "applied.json"
READ_BYTES = 1 << 20  # of the spool at once; the cursor is written once for that much


def append_line(folder: Path, line: dict[str, Any]) -> None:
    """Add one line to the spool. The newline before it closes a line that a killed process left torn."""
    folder.mkdir(parents=True, exist_ok=True)
    data = b"\n" + json.dumps({"time": time.time(), **line}, ensure_ascii=False).encode() + b"\n"
    descriptor = os.open(folder / SPOOL_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        written = os.write(descriptor, data)  # one call: lines of several processes do not mix
    finally:
        os.close(descriptor)
    if written < len(data):
        raise TrackingError(f"{folder / SPOOL_FILE}: {written} of {len(data)} bytes written; is the disk full?")


def read_spool(folder: Path, offset: int) -> tuple[list[bytes], int]:
    """Whole lines after `offset`, and the offset after them."""
    try:
        with open(folder / SPOOL_FILE, "rb") as stream:
            stream.seek(offset)
            data = stream.read(READ_BYTES)
            if b"\n" not in data.strip(b"\n"):
                data += stream.readline()  # one line may be longer than that
    except FileNotFoundError:
        return [], offset
    whole, newline, _ = data.rpartition(b"\n")
    return [line for line in whole.splitlines() if line], offset + len(whole) + len(newline)


def read_applied(folder: Path, uri: str) -> dict[str, Any]:
    """How far the spool was sent to this store; from the start for another one, or for a spool that was cut."""
    try:
        known = json.loads((folder / APPLIED_FILE).read_text("utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return nothing_applied(uri)
    is_same = known["store"] == _identity(uri) and spool_bytes(folder) >= known["offset"]
    return known if is_same else nothing_applied(uri)


def nothing_applied(uri: str) -> dict[str, Any]:
    """The writer's state before any line was sent. `runs`: id by key. `open`: owner and parent run by key. `launches`:
    status by stage, for launches that nobody opened."""
    fresh: dict[str, Any] = {"runs": {}, "open": {}, "launches": {}}
    return {"store": _identity(uri), "experiment": "", "made": "", "offset": 0, **fresh}


def _identity(uri: str) -> str:
    return hashlib.sha256(uri.encode()).hexdigest()[:16]


def spool_bytes(folder: Path) -> int:
    """The size of the spool; 0 when nothing was reported."""
    spool = folder / SPOOL_FILE
    return spool.stat().st_size if spool.exists() else 0


def write_applied(folder: Path, state: dict[str, Any]) -> None:
    """Note how far the spool was sent, and what the writer must know to go on from there."""
    temporary = folder / f".{APPLIED_FILE}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(state), "utf-8")
    os.replace(temporary, folder / APPLIED_FILE)

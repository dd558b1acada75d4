"""The spool, an append-only file in which reports wait for MLflow, and the file that records how far it was sent."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from resources.tracking.errors import TrackingError
from resources.tracking.store import default_uri
from training.contract.files.checksums import at_once
from training.contract.files.writing import regular_bytes

SPOOL_FILE, APPLIED_FILE = "spool.jsonl", "applied.json"
READ_BYTES = 1 << 20  # how much of the spool is read at once; after each such part its offset is written


def append_line(folder: Path, line: dict[str, Any]) -> None:
    """Append one line to the spool. A newline before it ends a line that a killed process left incomplete."""
    folder.mkdir(parents=True, exist_ok=True)
    data = b"\n" + json.dumps({"time": time.time(), **line}, ensure_ascii=False).encode() + b"\n"
    descriptor = os.open(folder / SPOOL_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
    try:
        written = os.write(descriptor, data)  # one call: lines of several processes do not mix
    finally:
        os.close(descriptor)
    if written < len(data):
        raise TrackingError(f"{folder / SPOOL_FILE}: {written} of {len(data)} bytes written; is the disk full?")


def read_spool(folder: Path, offset: int) -> tuple[list[bytes], int]:
    """Return complete lines of the spool after byte `offset`, about READ_BYTES, and the offset after the last one."""
    try:
        with open(folder / SPOOL_FILE, "rb", opener=at_once) as stream:
            stream.seek(offset)
            data = stream.read(READ_BYTES)
            if b"\n" not in data.strip(b"\n"):
                data += stream.readline()  # one line may be longer than that
    except FileNotFoundError:
        return [], offset
    whole, newline, _ = data.rpartition(b"\n")
    return [line for line in whole.splitlines() if line], offset + len(whole) + len(newline)


def read_applied(folder: Path, uri: str) -> dict[str, Any]:
    """The writer's saved state for this store; a fresh state for another store, or if the spool became shorter."""
    try:
        known = json.loads(regular_bytes(folder / APPLIED_FILE))
    except (FileNotFoundError, ValueError):
        return nothing_applied(folder, uri)
    is_same = known["store"] == _identity(folder, uri) and spool_bytes(folder) >= known["offset"]
    return known if is_same else nothing_applied(folder, uri)


def nothing_applied(folder: Path, uri: str) -> dict[str, Any]:
    """The writer's state before any line was sent.

    `runs` maps a run's key to its id in MLflow, `places` to the id of its experiment, and `open` the key of an open run
    to its owner and parent run. `experiments` maps a recipe to the id of its experiment, and `made` to the time when
    that was created. `launches` maps launches that were not opened explicitly to the final statuses of their stages.
    """
    fresh: dict[str, Any] = {"runs": {}, "open": {}, "launches": {}, "experiments": {}, "made": {}, "places": {}}
    return {"store": _identity(folder, uri), "offset": 0, **fresh}


def _identity(folder: Path, uri: str) -> str:
    """Return what names a store; for the root's own it is the same after the root was moved or copied."""
    address = "" if uri == default_uri(folder.parent) else uri
    return hashlib.sha256(address.encode()).hexdigest()[:16]


def spool_bytes(folder: Path) -> int:
    """The size of the spool in bytes; 0 if nothing was reported."""
    spool = folder / SPOOL_FILE
    return spool.stat().st_size if spool.exists() else 0


def write_applied(folder: Path, state: dict[str, Any]) -> None:
    """Save the writer's state, atomically: how far the spool was sent, and which runs are known and open."""
    temporary = folder / f".{APPLIED_FILE}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(state), "utf-8")
    os.replace(temporary, folder / APPLIED_FILE)

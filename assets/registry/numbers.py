"""The numbers of a finished artifact that MLflow's tables compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training.contract.artifact import ARTIFACT_FILE, Artifact

SYSTEM = {"cpu_seconds": 1.0, "wall_seconds": 1.0, "peak_memory_bytes": 1e-6}  # with the factor to MLflow's unit


def row_of(made: Artifact) -> dict[str, Any]:
    """Return the metrics of a finished stage as one row.

    They are counts, measurements, and the time and memory that the job used.
    """
    record = made.record
    row: dict[str, Any] = {"step": 0, "time": committed_at(made), **record["metrics"]}
    counts = record["counts"] or {}
    for name, value in counts.items():
        row |= (
            {f"counts/{name}/{why}": n for why, n in value.items()}
            if isinstance(value, dict)
            else {f"counts/{name}": value}
        )
    for name, factor in SYSTEM.items():
        if name in record["cost"]:
            row[f"system/{name.replace('bytes', 'megabytes')}"] = record["cost"][name] * factor
    return row


def committed_at(made: Artifact) -> float:
    """Return when an artifact was committed, in seconds since 1970. This time is the same in every report."""
    return Path(made.path, ARTIFACT_FILE).stat().st_mtime

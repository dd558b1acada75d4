"""A pipe in the place of a file under a root keeps nobody waiting who looks for the file by its name."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assets.answers.doctor.finding import Finding
from assets.answers.doctor.stores import look_at_stores
from assets.graph.bill import BILL_FILE, attempts
from assets.materialize.reports import Tail
from assets.registry.kept_digests import told_dagster
from assets.run.automation import _one_at_a_time
from assets.services.stores import CONFIG_FILE, opened_instance, use_storage
from assets.state.liveness import lives
from evaluation.report.scoreboard import _json_file
from resources.compute.base import HANDLE_FILE, read_json, tail
from resources.tracking.errors import TrackingError
from resources.tracking.process import LOCK_FILE, writer_lock
from resources.tracking.reports import Tracking
from resources.tracking.spool import APPLIED_FILE, SPOOL_FILE, append_line, read_spool
from resources.tracking.store import DATABASE, make_client, page_address
from training.contract.files.checksums import sha256_of
from training.contract.files.writing import Unsealed
from training.contract.job import DataError
from training.contract.progress import Progress
from training.data.crawl.crawl import LIST_FILE, read_listing
from training.data.documents import read_lines

Read = Callable[[Path], Any]  # of the folder
SCORES: Any = {"asset": "model_scores", "files": [{"path": "scores.json"}]}


def locked(folder: Path) -> None:
    with _one_at_a_time(folder):
        pass


def written_to(folder: Path) -> None:
    with writer_lock(folder):
        pass


def stores_of(folder: Path) -> list[Finding]:
    return list(look_at_stores(as_dagster(folder), None))


def as_dagster(folder: Path) -> Path:
    """Let the folder be Dagster's; return the root."""
    folder.rename(folder.parent / "dagster")
    return folder.parent


READS_NOTHING: dict[str, tuple[str, Read, Any]] = {
    "what runs the job": (HANDLE_FILE, lambda folder: read_json(folder / HANDLE_FILE), None),
    "log": ("log.txt", lambda folder: tail(folder / "log.txt", 3), ""),
    "how far reports were sent": (APPLIED_FILE, lambda folder: Tracking("", folder.parent).pending(), 0),
    "lines": ("a.jsonl", lambda folder: list(read_lines(folder / "a.jsonl")), []),
    "checksum": ("weights", lambda folder: sha256_of(folder / "weights"), hashlib.sha256().hexdigest()),
    "MLflow's pages": ("page", lambda folder: page_address("", folder.parent), "http://127.0.0.1:5000"),
    "Dagster's settings": (CONFIG_FILE, lambda folder: stores_of(folder)[0].state, "problem"),
    "sign of life": ("sign", lambda folder: lives(folder / "sign"), False),
}
IS_REFUSED: dict[str, tuple[str, Read]] = {
    "bill": (BILL_FILE, attempts),
    "reports": (SPOOL_FILE, lambda folder: read_spool(folder, 0)),
    "metrics": ("metrics.jsonl", lambda folder: Tail(folder / "metrics.jsonl").new_rows()),
    "archives": (LIST_FILE, read_listing),
    "scores": ("scores.json", lambda folder: _json_file([(folder, SCORES)], "model_scores", "scores.json")),
    "reports that are written": (SPOOL_FILE, lambda folder: append_line(folder, {})),
    "lock of the writer": (LOCK_FILE, written_to),
    "lock of the database": (f"{DATABASE}.lock", lambda folder: make_client(f"sqlite:///{folder / DATABASE}", folder)),
    "lock of the automation": ("automation.lock", locked),
    "metrics that are written": ("metrics.jsonl", Progress),
    "Dagster's settings": (CONFIG_FILE, lambda folder: opened_instance(as_dagster(folder))),
    "Dagster's settings for a profile": (CONFIG_FILE, lambda folder: use_storage(as_dagster(folder), {"storage": {}})),
    "Dagster's settings for what it was told": (CONFIG_FILE, lambda folder: told_dagster(as_dagster(folder), [])),
    "MLflow's runs": (DATABASE, lambda folder: make_client(f"sqlite:///{folder / DATABASE}", folder)),
}


@pytest.fixture
def folder(tmp_path) -> Path:
    (made := tmp_path / "tracking").mkdir()
    return made


@pytest.mark.parametrize("kind", READS_NOTHING)
@pytest.mark.timeout(30)
def test_a_pipe_reads_as_nothing(folder, kind):
    name, read, expected = READS_NOTHING[kind]
    os.mkfifo(folder / name)
    assert read(folder) == expected


@pytest.mark.parametrize("kind", IS_REFUSED)
@pytest.mark.timeout(30)
def test_a_pipe_is_refused_where_nothing_would_be_wrong(folder, kind):
    name, read = IS_REFUSED[kind]
    os.mkfifo(folder / name)
    with pytest.raises((DataError, Unsealed, OSError, TrackingError, sqlite3.Error)):
        read(folder)

"""The databases of Dagster and MLflow, as a run will use them: whole, readable, answering."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from assets.answers.doctor.finding import Finding
from assets.services.stores import CONFIG_FILE, DAGSTER_FILES, OWN_STORAGE, opened_instance
from resources.tracking.errors import CheckedClient, TrackingError
from resources.tracking.store import default_uri, make_client, read_store, shown, sqlite_file
from training.contract.secrets import masked

BROKEN = "set it aside: artifacts make it again"
UNREAD = "mend the rights of the file and of its folder"
ADVICE = {"locked": "end what uses it and look again", "unable to open": UNREAD}  # by a word of SQLite's


def look_at_stores(root: Path, tracking_uri: str | None) -> Iterator[Finding]:
    """Yield what is found of the stores of a root, with the tracking address of a profile; None: under the root."""
    yield _dagster(root / "dagster")
    uri = tracking_uri or default_uri(root)
    file = sqlite_file(uri)
    yield _sqlite("MLflow", [Path(file)]) if file else _server(uri, root)


def _dagster(home: Path) -> Finding:
    config = home / CONFIG_FILE
    if config.exists() and not config.is_file():
        return Finding("Dagster", "problem", f"{config}: no regular file", "remove it: the next run writes it")
    try:
        is_own = OWN_STORAGE.search(config.read_text("utf-8")) is not None
    except FileNotFoundError:
        is_own = False
    except (OSError, UnicodeDecodeError) as error:
        return Finding("Dagster", "problem", f"{config}: {getattr(error, 'strerror', None) or error}", UNREAD)
    if is_own:
        return _asked(home.parent)
    return _sqlite("Dagster", [home / name for name in DAGSTER_FILES])


def _asked(root: Path) -> Finding:
    """Return whether the database that a root's Dagster is told to use answers."""
    try:
        with opened_instance(root) as instance:
            runs = instance.get_runs_count()
    except Exception as error:  # of the database's driver, once it is open
        return Finding("Dagster", "problem", masked(str(error)), "start it, or mend dagster_storage")
    return Finding("Dagster", "ok", f"its database answers and has {runs:,} runs")


def _sqlite(what: str, files: list[Path]) -> Finding:
    """Return what SQLite's own check of each file says; it reads the whole file."""
    there = [file for file in files if os.path.lexists(file)]
    if not there:
        return Finding(what, "not looked at", "not made yet; the first run makes it")
    for file in there:
        try:
            with read_store(file) as database:
                said = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            said = str(error)
        if said != "ok":
            advice = next((one for word, one in ADVICE.items() if word in said), BROKEN)
            return Finding(what, "problem", f"{file}: {said}", advice)
    size = sum(file.stat().st_size for file in there) / 1e6
    return Finding(what, "ok", f"{size:.1f} MB of SQLite, whole")


def _server(uri: str, root: Path) -> Finding:
    try:
        CheckedClient(uri, lambda: make_client(uri, root)).search_experiments(max_results=1)
    except TrackingError as error:
        return Finding("MLflow", "problem", str(error), "start it, or mend tracking_uri; training goes on without it")
    return Finding("MLflow", "ok", f"{shown(uri)} answers")

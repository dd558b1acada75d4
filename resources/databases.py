"""SQLite files that a library makes in many steps: each appears whole under its name, or not at all.

The library makes a new file in a folder beside the place. The file gets a mark and is renamed. If the process is killed
before that, the next one begins anew. A file without the mark was made by other means, perhaps by a process that was
killed: `is_whole` and `put_in_place` tell.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

MARK = 0x50454447  # in the header of a file, as SQLite's application_id
ALEMBIC = "alembic"  # which makes the tables of both libraries; its own tables are named after it
BESIDE = ("-journal", "-wal", "-shm")  # what SQLite keeps beside a file


def make_whole(
    paths: Iterable[Path], folder: Path, make: Callable[[], None], *, first_rows: Mapping[str, int] | None = None
) -> list[Path]:
    """Make those of these database files that are missing or half-made; return where half-made ones were set aside.

    `make` makes new ones of the same names in `folder`, which is empty before and gone afterwards. A file counts as
    half-made if it lacks what a new one has and holds nothing else; any other file is left as it is. `first_rows` are
    the numbers of rows that the library writes into tables when it first uses a file. Only one process at a time may
    call this.
    """
    open_ones = [path for path in paths if not _is_whole(path)]
    if not open_ones:
        return []
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with _unsynced(folder):
            make()
        new = {path: next(folder.rglob(path.name)) for path in open_ones}
        return [aside for path in open_ones for aside in _put_in_place(new[path], path, first_rows or {})]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _unsynced(folder: Path) -> Iterator[None]:
    """Context manager: SQLAlchemy does not wait for the disk at each of the hundreds of commits that make new files.

    `_put_in_place` waits once, before a file gets its name.
    """
    from sqlalchemy import Engine, event

    def opened(connection: object, _: object) -> None:
        if not isinstance(connection, sqlite3.Connection):
            return
        if Path(connection.execute("PRAGMA database_list").fetchone()[2]).is_relative_to(folder.absolute()):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", opened)
    try:
        yield
    finally:
        event.remove(Engine, "connect", opened)


def _is_whole(path: Path) -> bool:
    """Whether a file is there and has the mark, or a row in a table `runs`, or cannot be read."""
    if not path.exists():
        return False
    try:
        with _opened(path) as database:
            if database.execute("PRAGMA application_id").fetchone()[0] == MARK:
                return True
            return _rows(database).get("runs", 0) > 0
    except sqlite3.Error:
        return True  # no database, locked or without rights: its library says it


def _put_in_place(new: Path, path: Path, first_rows: Mapping[str, int]) -> Iterator[Path]:
    """Rename a new file to `path`, unless there is one that has more than it; yield where a half-made one went."""
    with _opened(new) as database:
        fresh = _rows(database)
        database.execute(f"PRAGMA application_id = {MARK}")
    with open(new, "rb") as stream:
        os.fsync(stream.fileno())
    if path.exists():
        with _opened(path) as database:
            there = _rows(database)
        if all(there.get(table, -1) >= rows for table, rows in fresh.items()):
            _mark(path)
            return
        if any(
            rows > fresh.get(table, 0) + first_rows.get(table, 0)
            for table, rows in there.items()
            if ALEMBIC not in table
        ):
            return
    yield from _set_aside(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(new, path)


def _set_aside(path: Path) -> Iterator[Path]:
    """Rename a file and what SQLite keeps beside it, with which the next file of this name would be read wrongly."""
    aside = path.with_name(f"{path.name}.half-made-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}")
    for suffix in (*BESIDE, ""):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
            if not suffix:
                yield aside


def _mark(path: Path) -> None:
    with suppress(sqlite3.Error), _opened(path) as database:  # a file that cannot be written is asked again
        database.execute(f"PRAGMA application_id = {MARK}")


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Context manager: open an existing file; SQLite first undoes what a killed process left unfinished in it."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as database:
        yield database


def _rows(database: sqlite3.Connection) -> dict[str, int]:
    """The number of rows of each table; the row of alembic's table is named by the revision of the schema in it."""
    asked = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    names = [name for (name,) in database.execute(asked).fetchall()]
    rows = {name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}
    if f"{ALEMBIC}_version" in rows:
        revisions = database.execute(f"SELECT version_num FROM {ALEMBIC}_version").fetchall()
        rows |= {f"{ALEMBIC} {revision}": 1 for (revision,) in revisions}
    return rows

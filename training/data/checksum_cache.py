"""The checksums of source files, kept in a table under the root, so that a file is read again only if it has changed.

A local file is known by its path, size, time of change and inode; a remote one by its URL, size and ETag. The table is
an SQLite file of any length, which several processes may use at the same time. It saves reading and decides nothing:
whoever reads a source compares its bytes with the checksum in the job. Standard library only.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

TABLE_FILE = "sources.sqlite"
TIMEOUT_SECONDS = 30.0  # for another process that writes
# File systems note times in ticks of up to 2 s. A file that was changed within the last tick could change again without
# a new time, so its checksum is not kept.
TICK_NS = 2_000_000_000
HEX_DIGITS = 64


class Table:
    """The table of checksums of source files under one root."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def find(self, place: str, identity: str) -> str:
        """Return the stored sha256 (hex) of the source at `place` with this identity; empty if there is none."""
        if not self.path.exists():
            return ""
        with suppress(sqlite3.Error):  # a table that cannot be read knows nothing
            row = self._opened().execute("SELECT identity, sha256 FROM sources WHERE place = ?", (place,)).fetchone()
            if row is not None and row[0] == identity and len(row[1]) == HEX_DIGITS:
                return row[1]
        return ""

    def keep(self, place: str, identity: str, sha256: str, *, changed_ns: int | None = None) -> None:
        """Store the checksum of a source, unless the source changed only just now.

        After a very recent change (`changed_ns`), an equal time of change would not prove that the source is
        still the same.
        """
        is_fresh = changed_ns is not None and time.time_ns() - changed_ns < TICK_NS
        if is_fresh or not self.path.parent.is_dir():
            return
        with suppress(sqlite3.Error, OSError), self._opened() as table:  # a root that is only read keeps nothing
            table.execute("CREATE TABLE IF NOT EXISTS sources (place TEXT PRIMARY KEY, identity TEXT, sha256 TEXT)")
            table.execute("INSERT OR REPLACE INTO sources VALUES (?, ?, ?)", (place, identity, sha256))

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(self.path, timeout=TIMEOUT_SECONDS)
            self._connection.execute("PRAGMA synchronous = OFF")  # what a power failure takes is read again
        return self._connection

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()


_table: ContextVar[Table | None] = ContextVar("table", default=None)


@contextmanager
def known_under(root: Path) -> Iterator[None]:
    """Look up and store checksums of sources in the table under this root while the context is open."""
    table = Table(Path(root) / TABLE_FILE)
    token = _table.set(table)
    try:
        yield
    finally:
        _table.reset(token)
        table.close()


def table_in_use() -> Table | None:
    """Return the table that `known_under` has opened in this process, or None if none is open. Jobs open none."""
    return _table.get()


def forget(root: Path) -> None:
    """Remove the table of checksums under a root, so that every source is read again."""
    (Path(root) / TABLE_FILE).unlink(missing_ok=True)

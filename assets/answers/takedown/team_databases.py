"""The databases in which a team's Dagster and MLflow keep what they saw: read and masked as files of the root are.

PostgreSQL alone, and its columns of text and JSON; what is packed in binary columns is not read. Words are masked in
columns of text, in a transaction that ends with all other changes of a takedown. Then every table is written again,
because the server keeps former versions of rows in its files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.answers.takedown.erasing import Scanned
from assets.answers.takedown.masking import cleaned
from assets.services.stores import has_own_storage, opened_instance
from resources.run_storage import DRIVER
from training.contract.job import DataError
from training.contract.secrets import masked
from training.data.words.ngrams import Hashes
from training.provenance.grams import count_in
from training.provenance.swap import Commit

if TYPE_CHECKING:
    from sqlalchemy import Connection

KIND = "PostgreSQL, tables"
WAIT_SECONDS = 60  # for whoever reads or writes a table that is written again, or still sees it as it was
# Who may still see rows as they were before the mask: VACUUM keeps these rows in the tables' files.
LOOKERS = """
SELECT 'process ' || pid || ' with snapshot ' || backend_xmin FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND datname = current_database() AND pid <> pg_backend_pid()
UNION ALL SELECT 'replication slot ' || slot_name FROM pg_replication_slots WHERE xmin IS NOT NULL
UNION ALL SELECT 'prepared transaction ' || gid FROM pg_prepared_xacts WHERE database = current_database()
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamDatabase:
    """A database outside the root: who keeps it, and its address, which may hold a password."""

    owner: str
    address: str = field(repr=False)

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"{self.owner}'s database"

    def scan(self, wanted: Hashes, found: Scanned) -> None:
        """Read every text of every table, and note the places in which one of the wanted runs stands."""
        with self._opened() as connection:
            own = found.by_kind.setdefault(KIND, {"files": 0, "bytes": 0})
            for table, columns in _tables(connection):
                own["files"] += 1
                for column in columns:
                    runs = 0
                    for _, text in _texts(connection, table, column):
                        own["bytes"] += len(text.encode("utf-8", "replace"))
                        runs += count_in([text], wanted)[0]
                    if runs:
                        found.hits.append({"path": self.name, "place": f"{table}.{column}", "runs": runs})

    def begin(self, wanted: Hashes, stack: ExitStack) -> Commit:
        """Mask the texts in a transaction; return what ends it. Without that it is undone."""
        connection = stack.enter_context(self._opened())
        for table, columns in _tables(connection):
            for column in (name for name, is_json in columns.items() if not is_json):
                some = _texts(connection, table, column)
                changed = [(place, new) for place, text in some if (new := cleaned(text, wanted)) != text]
                for place, new in changed:
                    connection.exec_driver_sql(
                        f'UPDATE "{table}" SET "{column}" = %s WHERE ctid = %s::tid', (new, place)
                    )
        return connection.commit

    def without_former_rows(self) -> None:
        """Write every table again, so that no former version of a row stays in the server's files of it.

        Raise DataError if another transaction still sees the rows as they were, as far as this user is told of it, or
        if a table is another user's.
        """
        with self._opened(isolation_level="AUTOCOMMIT") as connection:
            self._wait_for_lookers(connection)
            connection.exec_driver_sql(f"SET lock_timeout = '{WAIT_SECONDS}s'")
            tables, driver = [table for table, _ in _tables(connection)], connection.connection.driver_connection
            assert driver is not None
            with driver.cursor() as cursor:  # SQLAlchemy would take the notices away
                for table in tables:
                    cursor.execute(f'VACUUM (FULL) "{table}"')
            if skipped := [line for line in driver.notices if "skipping" in line]:
                raise DataError(f"{self.name}: {' '.join(skipped[0].split())}; former rows stay in its files")

    def _wait_for_lookers(self, connection: Connection) -> None:
        left, end = set(connection.exec_driver_sql(LOOKERS).scalars()), time.monotonic() + WAIT_SECONDS
        while left and time.monotonic() < end:
            time.sleep(0.2)
            left &= set(connection.exec_driver_sql(LOOKERS).scalars())
        if left:
            raise DataError(
                f"{self.name}: {min(left)} still sees rows as they were, so they would stay in the server's files; end"
                " it, and give the command again"
            )

    @contextmanager
    def _opened(self, **options: Any) -> Iterator[Connection]:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import SQLAlchemyError

        engine = create_engine(self.address, **options)
        try:
            with engine.connect() as connection:
                yield connection
        except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
            why = masked(str(error.__cause__ or error)).strip().splitlines() or [type(error).__name__]
            raise DataError(f"{self.name}: {why[0]}") from None
        finally:
            engine.dispose()


def team_databases(root: Path, tracker: str) -> list[TeamDatabase]:
    """Return the databases that a root's Dagster, and a profile's MLflow at the address `tracker`, keep in PostgreSQL.

    Raise DataError if Dagster's cannot be opened.
    """
    found = []
    if has_own_storage(root):
        with opened_instance(root) as instance:
            kept = (instance.run_storage, instance.event_log_storage, instance.schedule_storage)
            addresses = {getattr(one, "postgres_url", "") for one in kept} - {""}
            found += [TeamDatabase(owner="Dagster", address=address) for address in sorted(addresses)]
    if tracker.startswith("postgresql"):
        scheme, _, rest = tracker.partition("://")
        found.append(TeamDatabase(owner="MLflow", address=f"{scheme if '+' in scheme else DRIVER}://{rest}"))
    return found


def _tables(connection: Connection) -> Iterator[tuple[str, dict[str, bool]]]:
    """Yield each table with its columns of text and JSON, and whether a column is JSON."""
    from sqlalchemy import JSON, String, inspect

    looked = inspect(connection)
    for table in sorted(looked.get_table_names()):
        columns = [(one["name"], one["type"]) for one in looked.get_columns(table)]
        yield table, {name: isinstance(kind, JSON) for name, kind in columns if isinstance(kind, (JSON, String))}


def _texts(connection: Connection, table: str, column: str) -> Iterator[Any]:
    """Yield the place of each row that has a text in a column, and the text."""
    yield from connection.exec_driver_sql(
        f'SELECT ctid::text, "{column}"::text FROM "{table}" WHERE "{column}" IS NOT NULL',
        execution_options={"stream_results": True},
    )

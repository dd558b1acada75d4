"""Attacks on the stores of a root: processes that are killed while they make them, and a tracker that never ends."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from resources.databases import make_whole
from tests.attacks.kill_stores import POINTS


@pytest.mark.parametrize("what", POINTS)
def test_a_kill_while_a_store_is_made_costs_the_root_nothing(what, tmp_path, times):
    short, long = POINTS[what]
    points = [str(point) for point in (short, long)[times(short=0, long=1)]]
    done = subprocess.run(
        [sys.executable, "-m", "tests.attacks.kill_stores", str(tmp_path), what, *points],
        capture_output=True,
        text=True,
        check=True,
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == 2 * len(points) and all(one["killed"] for one in outcomes)
    assert [one["next"] for one in outcomes] == [0] * len(outcomes), done.stderr
    assert [one["left"] for one in outcomes if one["way"] == "pedigree"] == [[]] * len(points)
    # The half-made file, with its journal if the kill was within a transaction.
    assert all((one["aside"] > 0) == (one["way"] == "library") for one in outcomes)


def fill(file, *, tables, revision="2"):
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE alembic_version (version_num)")
        database.execute("INSERT INTO alembic_version VALUES (?)", (revision,))
        for name, rows in tables.items():
            database.execute(f"CREATE TABLE {name} (value)")
            database.executemany(f"INSERT INTO {name} VALUES (?)", [(row,) for row in rows])
        database.commit()


NEW = {"runs": [], "experiments": [], "seeds": ["s"]}


@pytest.mark.parametrize(
    ("there", "revision", "is_replaced"),
    [
        ({}, "1", True),
        ({**NEW, "experiments": ["default"]}, "1", True),  # whole but for the last step
        ({"experiments": ["default", "a person's"]}, "1", False),
        ({"experiments": ["default"], "notes": ["a table that new stores lack"]}, "1", False),
        ({"runs": ["a run"]}, "1", False),
        ({**NEW, "experiments": ["default", "a person's"]}, "2", False),
        ({**NEW, "experiments": ["default"]}, "2", False),
    ],
)
def test_only_a_store_that_lacks_something_and_holds_nothing_is_made_again(there, revision, is_replaced, tmp_path):
    file, folder = tmp_path / "a.db", tmp_path / "new"
    fill(file, tables=there, revision=revision)
    (tmp_path / "a.db-journal").touch()
    before = file.read_bytes()
    aside = make_whole([file], folder, lambda: fill(folder / "a.db", tables=NEW), first_rows={"experiments": 1})
    assert len(aside) == is_replaced and not folder.exists()
    with closing(sqlite3.connect(file)) as database:
        assert {"runs", "seeds"} <= {row[0] for row in database.execute("SELECT name FROM sqlite_master")} or there
        kept = [row[0] for name in there for row in database.execute(f"SELECT value FROM {name}")]
    assert is_replaced or kept == [row for rows in there.values() for row in rows]
    assert [one.read_bytes() for one in aside] == [before] * is_replaced


def test_a_journal_that_outlived_its_store_does_not_reach_the_next_one(tmp_path):
    file, folder = tmp_path / "a.db", tmp_path / "new"
    for suffix in ("-journal", "-wal"):
        (tmp_path / f"a.db{suffix}").write_bytes(b"of another file")
    make_whole([file], folder, lambda: fill(folder / "a.db", tables=NEW))
    assert not list(tmp_path.glob("a.db-*")) and len(list(tmp_path.glob("a.db.half-made-*"))) == 2


@pytest.fixture
def dripping() -> Iterator[str]:
    """The address of a server that begins each answer and goes on with one byte a second."""
    server, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n")
            while not ended.wait(1):
                connection.sendall(b" ")

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    ended.set()
    server.shutdown(socket.SHUT_RDWR)
    server.close()


COMMANDS = {
    "rollback": ["rollback", "some-model"],
    "evaluate": ["evaluate", "some-model@champion", "--suites", "kitchen"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_tracker_that_sends_a_byte_a_second_keeps_no_command_longer_than_its_time_out(command, dripping, tmp_path):
    (tmp_path / "drip.yaml").write_text(f"name: drip\ntracking_uri: {dripping}\n")
    command_line = [Path(sys.executable).with_name("pedigree"), *COMMANDS[command]]
    done = subprocess.run(
        [*command_line, "--profile", tmp_path / "drip.yaml", "--root", tmp_path / "root"],
        env={**os.environ, "MLFLOW_HTTP_REQUEST_TIMEOUT": "3"},
        capture_output=True,
        text=True,
        timeout=120,  # never reached: 3 s and the start of the process
    )
    assert done.returncode == 1, done.stderr
    assert "it does not answer in time (timed out: the answer is not whole after 3 s)" in done.stderr

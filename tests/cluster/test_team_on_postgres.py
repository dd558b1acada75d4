"""A team whose Dagster keeps its runs in a real PostgreSQL."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from sqlalchemy import create_engine

from assets.answers.takedown import team_databases
from assets.answers.takedown.team_databases import TeamDatabase
from assets.graph import pipeline
from assets.graph.job import LAUNCH_TAG
from resources.run_storage import DRIVER
from resources.tracking.store import default_uri
from tests.assets.promotable import Kitchen
from tests.commands import profile_file
from tests.end_to_end.dagster_dev import OVER, services, wait_for
from tests.small_kitchen import RECIPES
from training.contract.files.writing import read_sealed
from training.contract.job import DataError
from training.data.documents import read_documents

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), Path("/usr/bin"))
USER = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
WORD = "postgres-of-the-team"
RECIPE = str(RECIPES / "kitchen-small.yaml")
OF_TESTS = {"PEDIGREE_RECIPES": str(RECIPES)}


@dataclass
class Server:
    """A PostgreSQL of the tests' own, on a port of this machine."""

    folder: Path
    port: int

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self.folder}"
        self._do("pg_ctl", "-w", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log", "-o", options, "start")

    def stop(self) -> None:
        self._do("pg_ctl", "-w", "-m", "immediate", "-D", f"{self.folder}/data", "stop")

    def make(self) -> None:
        word = self.folder / "word"
        word.write_text(WORD)
        shutil.chown(self.folder, *("postgres", "postgres") if USER else ())
        self._do("initdb", "-D", f"{self.folder}/data", "-U", "team", "--auth=scram-sha-256", f"--pwfile={word}")

    def made(self, database: str) -> str:
        """Create a database; return its address in a profile."""
        self.asked("postgres", f'create database "{database}"')
        return f"postgresql://team:${{TEAM_WORD}}@127.0.0.1:{self.port}/{database}"

    def asked(self, database: str, sql: str) -> str:
        address = f"postgresql://team@127.0.0.1:{self.port}/{database}"
        argv = [PROGRAMS / "psql", "-X", "-A", "-t", "-c", sql, address]
        return subprocess.run(
            argv, check=True, capture_output=True, text=True, env={**os.environ, "PGPASSWORD": WORD}
        ).stdout.strip()

    def files(self) -> list[Path]:
        """Return the files of the tables of all databases."""
        return [path for path in (self.folder / "data" / "base").rglob("*") if path.is_file()]

    def _do(self, program: str, *arguments: str) -> None:
        subprocess.run([*USER, PROGRAMS / program, *arguments], check=True, stdout=subprocess.DEVNULL, cwd="/")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if not (PROGRAMS / "initdb").exists() or importlib.util.find_spec("dagster_postgres") is None:
        pytest.skip("needs PostgreSQL and dagster-postgres; `make postgres` installs the second")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = Server(Path(tempfile.mkdtemp(prefix="pg-")), port)
    made.folder.chmod(0o755)
    made.make()
    made.start()
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(made.folder)


def begun(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    code = "from assets.commands.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "TEAM_WORD": WORD, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate()
    return process.returncode, output, errors


def test_two_people_run_at_once_on_one_root_and_their_runs_are_in_the_database(server, tmp_path):
    profile = profile_file(tmp_path, f"dagster_storage: '{server.made('two')}'\n")
    given = ("--root", str(tmp_path / "root"), "--profile", profile)
    at_once = [begun("run", RECIPE, "--until", until, *given) for until in ("extracted_documents", "crawl_archives")]
    for process in at_once:
        code, _, errors = ended(process)
        assert code == 0, errors
    runs = server.asked("two", "select count(*) from runs where status = 'SUCCESS'")
    made = server.asked(
        "two", "select count(distinct asset_key) from asset_keys where last_materialization is not null"
    )
    assert int(runs) >= 2 and int(made) == 2
    assert not list((tmp_path / "root" / "dagster").rglob("*.db")), "nothing of Dagster is in a file"
    assert WORD not in (tmp_path / "root" / "dagster" / "dagster.yaml").read_text()
    code, output, errors = ended(begun("verify", RECIPE, "--json", *given))
    assert code == 0 and json.loads(output)["problems"] == [], errors


def test_three_people_run_backfill_and_go_back_at_once_and_who_did_what_is_recorded(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TEAM_WORD", WORD)
    root = tmp_path / "root"
    uri, storage = default_uri(root), server.made("three")
    profile = profile_file(tmp_path, f"dagster_storage: '{storage}'\ntracking_uri: '{uri}'\n")
    given = ("--root", str(root), "--profile", profile)
    assert ended(begun("run", RECIPE, "--until", "crawl_archives", *given, env={"LOGNAME": "ada"}))[0] == 0
    kitchen = Kitchen(root=root, uri=uri, profile=profile, model_name="of-three")
    monkeypatch.setitem(pipeline._TRACKING, (root, uri), kitchen.tracking)
    for name, right in (("first", 10), ("second", 19)):
        kitchen.run(kitchen.model(name, right=right))
    (root / "recipes").mkdir(exist_ok=True)
    new = {"extends": "kitchen-small", "name": "new", "extract": {"min_characters": 51}}
    (root / "recipes" / "new.yaml").write_text(yaml.safe_dump(new))
    with services(root, "--profile", profile, TEAM_WORD=WORD, LOGNAME="bert") as running:
        backfill = running.launch_backfill(["extracted_documents"], ["new@kitchen-1", "new@kitchen-2"])
        at_once = [
            begun("run", "new", "--until", "extracted_documents", *given, env={"LOGNAME": "ada", **OF_TESTS}),
            begun("rollback", "of-three", "--reason", "slow", *given, env={"LOGNAME": "cleo"}),
        ]
        for process in at_once:
            code, _, errors = ended(process)
            assert code == 0, errors
        wait_for(lambda: {one["status"] for one in running.backfills() if one["id"] == backfill} <= OVER, 300)
        assert [one["status"] for one in running.backfills()] == ["COMPLETED_SUCCESS"]
        runs = [(one["status"], {tag["key"]: tag["value"] for tag in one["tags"]}) for one in running.runs()]
    host = socket.gethostname()
    assert {status for status, _ in runs} == {"SUCCESS"}
    of_commands = [tags for _, tags in runs if LAUNCH_TAG in tags]
    assert {tags["user"] for tags in of_commands if tags["pedigree/recipe"] == "new"} == {f"ada@{host}"}
    assert [(move.action, move.version, move.who) for move in kitchen.registry.history()[-1:]] == [
        ("rollback", "1", f"cleo@{host}")
    ]
    made = [read_sealed(path) for path in (root / "extracted_documents").glob("*/artifact.json")]
    assert len([one for one in made if one["partition"].startswith("new@")]) == 2
    code, output, errors = ended(begun("verify", "new", "--json", *given, env=OF_TESTS))
    assert code == 0 and json.loads(output)["problems"] == [], errors


def test_a_database_is_of_one_root(server, tmp_path):
    profile = profile_file(tmp_path, f"dagster_storage: '{server.made('one')}'\n")
    given = ("run", RECIPE, "--until", "crawl_archives", "--profile", profile, "--root")
    assert ended(begun(*given, str(tmp_path / "a")))[0] == 0
    code, _, errors = ended(begun(*given, str(tmp_path / "b")))
    assert code == 2 and "is that of another root; each needs its own" in errors


def test_a_root_whose_runs_are_in_files_is_not_moved_without_a_word(server, tmp_path):
    given = ("run", RECIPE, "--until", "crawl_archives", "--root", str(tmp_path / "root"))
    assert ended(begun(*given))[0] == 0
    profile = profile_file(tmp_path, f"dagster_storage: '{server.made('late')}'\n")
    code, _, errors = ended(begun(*given, "--profile", profile))
    assert code == 2 and "keeps Dagster's runs in files, which would stay behind" in " ".join(errors.split())
    assert server.asked("late", "select count(*) from pg_tables where schemaname = 'public'") == "0"


def test_a_server_that_is_down_or_refuses_is_one_sentence(server, tmp_path):
    profile = profile_file(tmp_path, f"dagster_storage: '{server.made('down')}'\n")
    given = ("run", RECIPE, "--until", "crawl_archives", "--profile", profile, "--root", str(tmp_path / "a"))
    code, _, errors = ended(begun(*given, env={"TEAM_WORD": "wrong-word"}))
    assert code == 2 and "could not be opened" in errors and "password authentication failed" in errors
    assert "Traceback" not in errors and "wrong-word" not in errors
    server.stop()
    try:
        code, _, errors = ended(begun(*given))
    finally:
        server.start()
    assert code == 2 and "could not be opened" in errors and "Traceback" not in errors
    code, output, _ = ended(begun("doctor", "--profile", profile, "--root", str(tmp_path / "a")))
    assert "its database answers" in " ".join(output.split())


def test_a_takedown_reaches_the_database_and_the_files_of_its_server(server, tmp_path):
    address, root = server.made("gone"), tmp_path / "root"
    profile = profile_file(tmp_path, f"dagster_storage: '{address}'\n")
    given = ("--root", str(root), "--profile", profile)
    code, _, errors = ended(begun("run", RECIPE, "--until", "provenance_index", *given))
    assert code == 0, errors
    shards = next(iter(sorted((root / "decontaminated_documents").glob("*/documents/*.parquet"))))
    page = next(row for row in read_documents(shards, ("url", "text")) if len(row["text"].split()) > 40)
    words = " ".join(page["text"].split()[:60])  # short, so that the server does not compress it
    server.asked("gone", f"insert into kvs (key, value) values ('seen', '{words.replace(chr(39), chr(39) * 2)}')")
    server.asked("gone", "update kvs set value = value || ' twice' where key = 'seen'")
    server.asked("gone", "checkpoint")
    assert any(words.encode() in path.read_bytes() for path in server.files()), "nothing is shown by its absence"

    code, output, errors = ended(
        begun("takedown", "--url", page["url"], "--reason", "asked for", "--yes", "--json", *given)
    )
    assert code == 0, errors
    report = json.loads(output)["report"]
    assert report["proof"]["verdict"] == "proved"
    assert [one["place"] for one in report["proof"]["hits_before"] if "database" in one["path"]] == ["kvs.value"]
    assert "█" in server.asked("gone", "select value from kvs where key = 'seen'")
    server.asked("gone", "checkpoint")
    assert not [path for path in server.files() if words.encode() in path.read_bytes()]
    assert server.asked("gone", "select count(*) from runs where status = 'SUCCESS'") != "0"
    written = (root / "takedowns" / "000001.report.md").read_text()
    assert "in the texts of Dagster's database" in written and "write-ahead log" in written


def test_rows_that_somebody_still_sees_or_may_not_be_written_are_not_said_to_be_gone(server, monkeypatch):
    address = server.made("seen").replace("postgresql:", f"{DRIVER}:").replace("${TEAM_WORD}", WORD)
    server.asked("seen", "create table said (words text); insert into said values ('a text')")
    database = TeamDatabase(owner="Dagster", address=address)
    engine = create_engine(address, isolation_level="REPEATABLE READ")
    monkeypatch.setattr(team_databases, "WAIT_SECONDS", 1)
    with engine.connect() as looker:
        looker.exec_driver_sql("select * from said")
        server.asked("seen", "update said set words = 'another'")
        with pytest.raises(DataError, match=r"process \d+ with snapshot \d+ still sees rows as they were"):
            database.without_former_rows()
    engine.dispose()
    database.without_former_rows()
    server.asked("seen", "create role other; alter table said owner to other; create role weak login password 'weak'")
    server.asked("seen", "grant select on said to weak")
    weak = TeamDatabase(owner="Dagster", address=address.replace(f"team:{WORD}", "weak:weak"))
    with pytest.raises(DataError, match=r"skipping"):
        weak.without_former_rows()

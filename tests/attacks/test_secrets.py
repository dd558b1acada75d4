"""Fifty secrets, each in a place of its own; then everything that was written, printed or started is searched for them.

The tracking servers are real ones on loopback, which repeat what they were sent, as error pages do. The group asks
four of them, `make attack` all.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from assets.commands.cli import main
from assets.state.recipe_folders import load_recipe
from tests.assets.fabricate import make_all
from tests.small_kitchen import RECIPES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# One process, many commands, as in a person's day. Each line of its input is a command.
SESSION = """
import json, os, sys
from assets.commands.cli import main
for line in sys.stdin:
    sys.argv = ["pedigree", *json.loads(line)]
    try:
        main()
    except SystemExit as ended:
        print("ended with", ended.code, flush=True)
"""
SMALL = ("run", "kitchen-small", "--snapshots", "kitchen-1", "--until", "crawl_archives")


class Canaries:
    """Secrets that are told apart. `core` is what nobody may find again; around it stand characters that are quoted."""

    def __init__(self) -> None:
        self.cores: list[str] = []

    def new(self, before: str = "", after: str = "") -> str:
        core = f"q{len(self.cores):02d}" + hashlib.sha256(str(len(self.cores)).encode()).hexdigest()[:14]
        self.cores.append(core)
        return f"{before}{core}{after}"

    def found_in(self, data: bytes) -> set[int]:
        return {number for number, core in enumerate(self.cores) if core.encode() in data}


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers by the first part of the path, and repeats what it was sent: address, headers, and the user in clear."""

    def do_GET(self) -> None:
        mode = self.path.lstrip("/").split("/")[0].split("?")[0]
        if mode == "slow":
            self.server.closing.wait(30)
        if mode in ("close", "slow"):
            self.close_connection = True
            return
        if mode == "leads":
            self.answer(302, b"", Location=f"/404/a.warc.gz?X-Amz-Signature={self.server.signature}")
            return
        sent = f"{self.path} {dict(self.headers)}".encode()
        with suppress(ValueError, IndexError):
            sent += base64.b64decode(self.headers.get("Authorization", "").split()[1])
        self.answer(
            int(mode) if mode.isdigit() else 500,
            b'{"error_code": "INTERNAL_ERROR", "message": %s}' % json.dumps(sent.decode()).encode(),
        )

    do_POST = do_HEAD = do_PATCH = do_GET

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body)), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads, server.closing, server.signature = True, threading.Event(), ""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


class Day:
    """What one person types, with which profiles, recipes and variables."""

    def __init__(self, folder: Path, echo: http.server.ThreadingHTTPServer) -> None:
        self.inputs, self.root, self.canaries = folder / "inputs", folder / "root", Canaries()
        self.inputs.mkdir()
        self.host = f"127.0.0.1:{echo.server_address[1]}"
        self.commands: list[list[str]] = []
        self.variables: dict[str, str] = {}

    def profile(self, text: str) -> str:
        path = self.inputs / f"profile-{len(list(self.inputs.iterdir()))}.yaml"
        path.write_text(f"name: p\ndefault: {{workers: 1, retries: 0}}\n{text}\n")
        return str(path)

    def recipe(self, text: str) -> str:
        path = self.inputs / f"recipe-{len(list(self.inputs.iterdir()))}.yaml"
        path.write_text(f"extends: {RECIPES / 'kitchen-small.yaml'}\nname: mine\n{text}\n")
        return str(path)

    def type(self, *command: str, profile: str = "", root: Path | None = None) -> None:
        self.commands.append(
            [*command, "--root", str(root or self.root / "empty"), *(["--profile", profile] if profile else [])]
        )

    def by_variable(self, before: str = "", after: str = "") -> str:
        name = f"CANARY_{len(self.canaries.cores)}"
        self.variables[name] = self.canaries.new(before, after)
        return f"${{{name}}}"


def refused_recipes(day: Day) -> None:
    new = day.canaries.new
    for path in (
        f"https://me:{new()}@host/a.warc.gz",
        f"https://{new()}@host/a.warc.gz",
        f"simplecache::https://me:{new()}@host/a.warc.gz",
        f"ftp://me:{new()}@host/a.warc.gz",
        f"https://host/a.warc.gz?X-Amz-Signature={new()}&X-Amz-Expires=9",
        f"https://host/a.warc.gz?token={new()}",
        f"https://host/a.warc.gz?sv=1&sig={new()}",
        f"https://host/a.warc.gz#access_token={new()}",
    ):
        day.type("run", day.recipe(f"snapshots: [{{name: a, source: warc, paths: ['{path}']}}]"), "--json")
    day.type("status", day.recipe(f"filter: {{c4_bad_words: 'https://me:{new()}@host/words'}}"))
    day.type("show", day.recipe(f"description: [https://me:{new()}@host/"))
    day.type("run", day.recipe(f"sft: {{trl: {{run_name: 'https://host/?api_key={new()}'}}}}"))


def refused_profiles(day: Day) -> None:
    new = day.canaries.new
    for text in (
        f"tracking_uri: [http://me:{new()}@host:5000]",
        f"tracking_uri: {{http://me:{new()}@host: 5000}}",
        f"tracking_uri: http://me:{new()}@host:5000\n  nonsense: [",
        f"tracking_uri: http://me:{new()}@host:5000/${{NOT_SET}}",
        f"stages: {{base_model: 'postgresql://me:{new()}@host/db'}}",
        f"parts: {{slurm: {{partition: 5, account: ['https://host/?token={new()}']}}}}",
        f"description: 5\ntracking_uri: https://host/?access_token={new()}",
        f"notify: 'https://host/{new()}'",
        f"notify: {{webhook: ['https://host/{new()}']}}",
    ):
        day.type(*SMALL, profile=day.profile(text))


def variables(day: Day) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "FSSPEC_S3_SECRET", "HF_TOKEN", "WANDB_API_KEY"):
        day.variables[name] = day.canaries.new()
    day.variables["PEDIGREE_FETCH_PROXY_PASSWORD"] = day.canaries.new()
    day.variables["FSSPEC_S3"] = json.dumps({"secret": day.canaries.new()})


def downloads(day: Day, echo: http.server.ThreadingHTTPServer) -> None:
    """A recipe names no secret; the server that it names leads to an address with one, and repeats it."""
    echo.signature = day.canaries.new()
    day.variables["PEDIGREE_FETCH_ALLOW"] = "127.0.0.1"
    path = f"http://{day.host}/leads/a.warc.gz"
    day.type("run", day.recipe(f"snapshots: [{{name: a, source: warc, paths: ['{path}']}}]"), "--json")


def trackers(day: Day) -> list[str]:
    """Profiles of trackers that fail, each in its way; the first five are servers, the others databases."""
    new, held = day.canaries.new, day.by_variable
    addresses = [
        f"http://me:{held()}@{day.host}/401?token={new()}",
        f"http://me:{new('p%40', '%22')}@{day.host}/500",
        f"http://me:{held('a%2F', 'b')}@{day.host}/close?sig={new()}",
        f"http://me:{held()}@127.0.0.1:1/dead?api_key={new()}",
        f"http://me:{new()}@{day.host}/slow?token={held()}",
        f"postgresql://me:{held()}@127.0.0.1:1/mlflow",
        f"mysql+pymysql://me:{new('x', '!')}@127.0.0.1:1/mlflow?password={new()}",
        f"mssql+pyodbc://me:{new()}@127.0.0.1:1/mlflow",
        f"sqlite:////proc/nothing/mlflow.db?password={new()}",
        f"databricks://{new()}:{new()}@host",
        f"nonsense://me:{held()}@host/",
    ]
    return [day.profile(f"tracking_uri: '{address}'") for address in addresses]


def searched(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file that was written, databases and their journals among them, and every path."""
    for path in folder.rglob("*"):
        yield str(path), str(path).encode()
        if path.is_file() and not path.is_symlink():
            yield str(path), path.read_bytes()


class Watched(threading.Thread):
    """The command lines of every process, as anybody on the machine may read them, while something runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[bytes] = set()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    self.seen.add(entry.read_bytes())


def end_writers(root: Path) -> None:
    """End the tracker's writers of a root, which go on asking a server that does not answer for a minute."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            parts = entry.read_bytes().split(b"\0")
            if b"resources.tracking" in parts and any(part.startswith(str(root).encode()) for part in parts):
                os.kill(int(entry.parent.name), signal.SIGKILL)


def test_a_typed_address_with_a_secret_is_refused_before_anything_is_fetched_or_written(
    tmp_path, echo, monkeypatch, capsys
):
    secret, place = "hunter2hunter2", f"127.0.0.1:{echo.server_address[1]}/a.jsonl"
    monkeypatch.setenv("PEDIGREE_FETCH_ALLOW", "127.0.0.1")
    suites, data = tmp_path / "suites.yaml", tmp_path / "data.jsonl"
    suites.write_text(f"suites: [{{name: own, uri: 'https://{place}?token={secret}', kind: multiple_choice}}]")
    data.write_text('{"text": "a"}\n')
    written = tmp_path / "written"
    for command in (
        ("init", f"http://me:{secret}@{place}", "--output", f"{written}.yaml"),
        ("contamination", f"http://{place}?token={secret}", "--against", "kitchen", "--output", str(written)),
        ("contamination", str(data), "--against", str(suites), "--output", str(written)),
        ("evaluate", str(tmp_path), "--suites", str(suites), "--output", str(written)),
    ):
        monkeypatch.setattr("sys.argv", ["pedigree", *command])
        with pytest.raises(SystemExit, match="2"):
            main()
        said = capsys.readouterr()
        assert " holds a " in said.err and secret not in said.err + said.out, command
    assert set(tmp_path.iterdir()) == {suites, data}


def test_fifty_secrets_leave_nothing_behind(tmp_path, echo, times):
    day = Day(tmp_path, echo)
    variables(day)
    refused_recipes(day)
    refused_profiles(day)
    downloads(day, echo)
    profiles = trackers(day)
    number = len(profiles)
    made, fresh = day.root / "made", day.root / "fresh"
    make_all(load_recipe(str(RECIPES / "kitchen-small.yaml")), made)
    shutil.rmtree(made / "promoted_model")
    # The registry is asked through Dagster, which keeps what a promotion failed of.
    for profile in [profiles[0], profiles[5], *profiles[1 : times(short=1, long=number)]]:
        day.type("run", "kitchen-small", "--json", profile=profile, root=made)
    # A stage is made, whose writer keeps what it could not send.
    success = f"tracking_uri: 'sqlite:///{day.root}/own.db?password={day.canaries.new()}'"
    for profile in [profiles[3], *[day.profile(success), *profiles[:3], *profiles[4:]][: times(short=0, long=number)]]:
        day.type(*SMALL, profile=profile, root=fresh)
        fresh = fresh.with_name(f"{fresh.name}-")
    while len(day.canaries.cores) < 50:
        day.variables[f"SERVICE_{len(day.canaries.cores)}_PASSWORD"] = day.canaries.new()
    log = tmp_path / "terminal.txt"
    watched = Watched()
    watched.start()
    try:
        with log.open("wb") as terminal:
            done = subprocess.run(
                [sys.executable, "-c", SESSION],
                input="".join(f"{json.dumps(command)}\n" for command in day.commands).encode(),
                stdout=terminal,
                stderr=subprocess.STDOUT,
                check=False,
                env={
                    **os.environ,
                    **day.variables,
                    "PEDIGREE_RECIPES": str(RECIPES),
                    "MLFLOW_HTTP_REQUEST_TIMEOUT": "1",
                },
            )
    finally:
        watched.over.set()
        watched.join()
        end_writers(day.root)
    said = log.read_text("utf-8", "replace")
    assert done.returncode == 0 and said.count("ended with") == len(day.commands), said[-3000:]
    assert said.count("ended with 2") >= 19 and "ended with 0" in said and "Traceback" not in said, said[-3000:]
    shutil.rmtree(day.inputs)
    assert len(day.canaries.cores) >= 50
    found = {place: hits for place, data in searched(tmp_path) if (hits := day.canaries.found_in(data))}
    found |= {line.decode(): hits for line in watched.seen if (hits := day.canaries.found_in(line))}
    assert found == {}

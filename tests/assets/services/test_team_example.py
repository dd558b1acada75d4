"""The files of examples/team: units and containers start the same commands, and the proxy keeps what guards the UI."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from assets.services.webserver import refusal
from resources.profile import load_profile
from tests.groups import PROJECT

TEAM = PROJECT / "examples" / "team"
PREFIX = "/opt/pedigree/.venv"


def started(unit: str) -> list[str]:
    (command,) = re.findall(r"^ExecStart=(.*)$", (TEAM / unit).read_text(), re.MULTILINE)
    return shlex.split(command.removeprefix(f"{PREFIX}/bin/"))


def test_units_are_what_systemd_reads(tmp_path):
    if (program := shutil.which("systemd-analyze")) is None:
        pytest.skip("no systemd-analyze here")
    for unit in TEAM.glob("*.service"):
        (tmp_path / unit.name).write_text(unit.read_text().replace(PREFIX, sys.prefix))
    done = subprocess.run([program, "verify", *tmp_path.glob("*.service")], capture_output=True, text=True)
    own = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "pedigree" in line]
    assert own == [] and done.returncode == 0, done.stderr


def test_containers_start_what_the_units_start():
    services = yaml.safe_load((TEAM / "compose.yaml").read_text())["services"]
    assert services["pedigree"]["command"] == started("pedigree.service")
    assert services["mlflow"]["command"] == started("pedigree-mlflow.service")
    behind = {name for name, one in services.items() if one.get("network_mode") == "service:proxy"}
    assert behind == services.keys() - {"proxy"} and not any("ports" in services[name] for name in behind)


def test_the_profile_names_the_servers_that_are_started(monkeypatch):
    monkeypatch.setenv("DATABASE_PASSWORD", "word-of-the-team")
    profile, command = load_profile(str(TEAM / "team.yaml")), started("pedigree-mlflow.service")
    named = dict(pairwise(command))
    assert profile.tracker == f"http://{named['--host']}:{named['--port']}"
    assert profile.dagster_storage == "postgresql://pedigree:${DATABASE_PASSWORD}@127.0.0.1/dagster"


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({"origin": "https://dagster.example"}, False),
        ({"origin": "https://evil.example"}, True),
        ({"origin": "https://dagster.example.evil.example"}, True),
        ({"origin": "https://dagsterXexample"}, True),
        ({"origin": "https://dagster.example", "sec-fetch-site": "cross-site"}, True),
    ],
)
def test_the_proxy_passes_on_requests_of_its_own_pages_alone(headers, is_refused):
    """As Caddy rewrites headers: `header_up NAME VALUE`, and `header_up NAME PATTERN VALUE`."""
    rules = [shlex.split(line, posix=True) for line in (TEAM / "Caddyfile").read_text().splitlines() if "_up" in line]
    (host,) = (rule[2] for rule in rules if rule[1] == "Host")
    (pattern, new) = next(rule[2:] for rule in rules if rule[1] == "Origin")
    sent = {**headers, "host": host, "origin": re.sub(pattern, new, headers["origin"])}
    scope = {"type": "http", "method": "POST", "path": "/graphql"}
    raw = [(name.encode(), value.encode()) for name, value in sent.items()]
    assert bool(refusal({**scope, "headers": raw})) is is_refused


def test_every_file_of_the_folder_is_named():
    said = (TEAM / "compose.yaml").read_text() + (PROJECT / "docs" / "days-after.md").read_text()
    assert not [path.name for path in Path(TEAM).iterdir() if path.name not in said]

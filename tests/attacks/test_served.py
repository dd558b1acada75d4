"""What is asked of servers: MLflow's over HTTP, and `pedigree dev` with a person in its UI. Long forms only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from assets.materialize.causes import StageFailed
from assets.registry.by_hand import promote_by_hand, roll_back
from resources.profile import SHIPPED
from resources.tracking.errors import TrackingError
from resources.tracking.registry import ChampionMoved, Move, now
from resources.tracking.reports import Tracking
from resources.tracking.store import server_command
from tests.assets.promotable import Kitchen
from tests.attacks.test_automation import said, start, stopped_job
from tests.attacks.test_promotion import command, pass_gates, rewritten
from tests.end_to_end.dagster_dev import free_port, services, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _only_long(times):
    if not times(short=0, long=1):
        pytest.skip("starts servers; `make attack` does")


class Server:
    """MLflow's server as `pedigree dev` starts it."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.uri = f"http://127.0.0.1:{port}"
        argv, environment = server_command("", folder, port)
        with open(folder / "server.log", "wb") as output:
            self.process = subprocess.Popen(
                argv,
                env={**os.environ, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
        wait_for(self.answers, 300, lambda: (folder / "server.log").read_text()[-3000:])

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=10) as response:
                return response.status == 200
        except OSError:
            return False

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server(tmp_path_factory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    if made.process.poll() is None:
        made.end()


@pytest.fixture
def kitchen(server, tmp_path) -> Kitchen:
    profile = tmp_path / "served.yaml"
    text = (SHIPPED / "local.yaml").read_text("utf-8")
    profile.write_text(text.replace("tracking_uri: null", f"tracking_uri: {server.uri}"))
    return Kitchen(root=tmp_path / "root", uri=server.uri, profile=str(profile), model_name="served")


def test_promotions_through_a_server(kitchen, server):
    """Decided, compared, stale, moved by hand and back, overtaken, rewritten; then the server is gone."""
    good, bad = kitchen.model("good", right=19), kitchen.model("bad", right=2)
    assert kitchen.decide(good)["promoted"]
    source = kitchen.registry.holder("champion").source
    assert source.startswith(("mlflow-artifacts:", "http", "models:")) and str(kitchen.root) not in source
    ran = kitchen.run(bad)
    assert (ran.promoted, ran.exit_code) == (False, 3)
    assert ran.refusals[0]["evidence"]["failed"]["drop_cloze"]["champion"] == 0.95
    assert promote_by_hand(bad, kitchen.tracking, "try it")["champion"] == "2"
    assert not kitchen.decide(good)["promoted"]  # stale: decided again, and it was champion before
    assert kitchen.decision(good)["champion"]["version"] == "2"
    late = Move(action="promotion", version="1", before="1", why="decided before that", who="x", when=now())
    with pytest.raises(ChampionMoved, match="version 2 "):
        kitchen.registry.move(late)
    back = roll_back("served", kitchen.tracking, "it was not better")
    assert (back["champion"], back["previous"], back["checked"]) == ("1", "2", True)
    assert kitchen.run(good).promoted and kitchen.registry.under_way() is None
    assert [move.action for move in kitchen.registry.history()] == ["promotion", "override", "rollback"]

    Tracking(kitchen.uri, kitchen.root).flush(180)
    code, answer = command(kitchen, bad, "verify")
    assert (code, answer["not_asked"]) == (0, []), answer
    rewritten(kitchen, bad, "promoted_model", pass_gates)
    code, answer = command(kitchen, bad, "verify")
    assert code == 1 and any("MLflow was told" in problem["problem"] for problem in answer["problems"])
    with pytest.raises(StageFailed, match="was told"):
        kitchen.decide(bad)

    server.end()
    code, answer = command(kitchen, good, "verify")
    assert code == 0 and any("MLflow" in line for line in answer["not_asked"])
    ran = kitchen.run(good)
    assert ran.exit_code == 1 and "does not answer" in ran.error and not ran.promoted
    with pytest.raises(TrackingError, match="does not answer"):
        roll_back("served", kitchen.tracking, "")


CANCEL = """mutation($id: String!) { cancelPartitionBackfill(backfillId: $id) {
  __typename ... on CancelBackfillSuccess { backfillId } ... on PythonError { message } } }"""


def test_a_backfill_that_is_cancelled_in_the_ui_leaves_its_job_to_the_terminal_that_waits_for_it(tmp_path):
    with services(tmp_path) as running:
        terminal = start(tmp_path)
        with stopped_job(tmp_path) as job:
            backfill = running.launch_backfill(["crawl_archives"], ["kitchen-small@kitchen-1"])
            wait_for(lambda: said(tmp_path, "going on watching it"), 600)
            cancelled = running.ask(CANCEL, id=backfill)["cancelPartitionBackfill"]
            assert cancelled["__typename"] == "CancelBackfillSuccess", cancelled
            wait_for(lambda: said(tmp_path, "this run was cancelled"), 300)
            wait_for(lambda: said(tmp_path, "has left; the job goes on"), 300)
            os.kill(job, 0)  # it is there
        out, errors = terminal.communicate(timeout=600)
        assert terminal.returncode == 0, errors
        made = json.loads(out.splitlines()[-1])["assets"]["crawl_archives"]["kitchen-small@kitchen-1"]
        assert not made["reused"] and "the job goes on" in errors
        assert not list(Path(made["uri"]).glob("watchers*"))
        (said_by_backfill,) = said(tmp_path, "this run was cancelled")
        assert "the job goes on, watched by run " in said_by_backfill
        wait_for(lambda: running.backfills()[0]["status"] == "CANCELED", 300, running.backfills)


def test_nothing_of_the_services_lives_on_when_their_parent_is_killed(tmp_path):
    with services(tmp_path) as running:
        assert living(tmp_path) > 3
        running.kill()
        wait_for(lambda: living(tmp_path) == 0, 120, lambda: living(tmp_path))


def living(root: Path) -> int:
    """The processes that carry this root in their environment."""
    mark, found = f"PEDIGREE_ROOT={root}".encode(), 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            found += not is_zombie and mark in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # gone, or another user's
    return found

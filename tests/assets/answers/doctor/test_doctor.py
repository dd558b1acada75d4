"""`pedigree doctor` on this machine as it is, and with one thing made wrong at a time."""

from __future__ import annotations

import json
import socket
import sqlite3
from pathlib import Path

import pytest

from assets.answers.doctor import machine, storage
from assets.answers.doctor.doctor import lines_of
from assets.answers.doctor.finding import Finding
from assets.answers.doctor.machine import look_at_machine
from assets.answers.doctor.schedulers import look_at_schedulers
from assets.answers.doctor.storage import look_at_storage, speed
from assets.answers.doctor.stores import UNREAD, look_at_stores
from assets.services.stores import DAGSTER_FILES, opened_instance
from resources.compute.size import Size
from resources.profile import load_profile
from tests.cluster.minis3 import MiniS3
from tests.cluster.minislurm import free_ports
from tests.cluster.store_servers import KEY, SECRET
from tests.cluster.test_nodes_apart import SECRETS
from tests.commands import said
from training.contract.files.objects import Objects
from training.contract.files.stored_root import make_stored_root


def by_name(findings) -> dict[str, Finding]:
    return {one.what: one for one in findings}


def test_this_machine_can_run_and_nothing_is_left_at_the_root(monkeypatch, capsys, tmp_path):
    code, answer, _ = said(monkeypatch, capsys, "doctor", "--root", str(tmp_path / "root"), "--json")
    told = json.loads(answer)
    assert (code, told["ok"]) == (0, True), told
    states = {one["what"]: one["state"] for one in told["findings"]}
    assert states["torch"] == states["locks"] == states["hard links"] == "ok" and states["MLflow"] == "not looked at"
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_asks_for_more_than_there_is(tmp_path):
    asked = Size(gpus_per_node=8, memory_gb=1e5, workers=10**4)
    found = by_name(look_at_machine([Size(), asked]))
    assert {name for name, one in found.items() if one.state == "problem"} == {"memory", "torch"}
    assert found["cores"].state == "warning" and "asks for 8 GPUs" in found["torch"].found
    assert "cores" not in by_name(look_at_machine([Size(backend="slurm", gpus_per_node=8)]))  # not this machine's


def test_packages_that_are_not_the_declared_ones(monkeypatch):
    declared = ["dagster==0.1", "no-such-package>=1", "numpy>=2", 'ray==0.1; extra == "ray"']
    monkeypatch.setattr(machine, "requires", lambda name: declared)
    found = by_name(look_at_machine([]))["packages"]
    assert found.state == "problem"
    assert found.found.startswith("dagster is 1.") and found.found.endswith("no-such-package is not installed")


def test_programs_that_the_profile_runs_and_this_machine_lacks(monkeypatch):
    assert not {"ray", "slurm"} & by_name(look_at_machine([Size()])).keys()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    asked = by_name(look_at_machine([Size(engine="ray")]))
    assert asked["ray"].state == "problem" and asked["ray"].advice == "pip install 'pedigree[ray]'"
    profile = load_profile("slurm")
    found = by_name(look_at_schedulers(profile, Path("/runs")))
    assert found["slurm"].found == "no sbatch, squeue, sacct, scontrol, scancel on the PATH"
    assert "parts.slurm.ssh" in found["slurm"].advice


def test_a_port_that_is_in_use(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(machine, "PORTS", {taken.getsockname()[1]: "--port"})
        (found,) = [one for one in look_at_machine([]) if one.what.startswith("port")]
    assert found.state == "warning" and "--port" in found.advice


@pytest.mark.parametrize(
    ("written", "small", "state"), [(2e9, 0.001, "ok"), (20e6, 0.001, "warning"), (2e9, 0.5, "warning")]
)
def test_a_slow_place_is_told_with_what_a_checkpoint_takes(written, small, state):
    found = speed("speed", written, small)
    assert found.state == state and (f"{1e10 / written / 60:,.0f} min" in found.advice) == (state == "warning")
    assert f"{written / 1e6:,.0f} MB/s" in found.found


def test_a_store_is_tried_and_nothing_is_left_there(tmp_path, monkeypatch):
    server = MiniS3()
    try:
        for name, value in zip(SECRETS, (KEY, SECRET, "us-east-1"), strict=True):
            monkeypatch.setenv(name, value)
        make_stored_root(tmp_path / "root", Objects("s3://bucket/run", server.endpoint))
        found = by_name(look_at_storage(tmp_path / "root"))
        assert found["store"].state == "ok" and "MB/s are written" in found["store speed"].found
        assert not [key for key in server.objects if "probe" in key]
        server.holds_conditions = False
        found = by_name(look_at_storage(tmp_path / "root"))
        assert found["store"].state == "problem" and "cannot hold a root" in found["store"].found
        assert "store speed" not in found
    finally:
        server.stop()


def test_a_place_where_nothing_can_be_written():
    found = by_name(look_at_storage(Path("/proc/root-of-runs")))
    assert found["root"].state == "problem" and "locks" not in found


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file/runs"):
        (found,) = look_at_storage(root)
        assert found.state == "problem" and found.found == f"{tmp_path / 'file'} is no folder"


def test_stores_that_cannot_be_opened_are_not_said_to_be_broken(tmp_path):
    (tmp_path / "mlflow.db").symlink_to(tmp_path / "nowhere")
    (tmp_path / "dagster/dagster.yaml").mkdir(parents=True)
    found = by_name(look_at_stores(tmp_path, None))
    advice = {"Dagster": "remove it: the next run writes it", "MLflow": UNREAD}
    assert {name: (one.state, one.advice) for name, one in found.items()} == {
        name: ("problem", said) for name, said in advice.items()
    }


@pytest.mark.parametrize(
    ("what", "spoil", "told"),
    [
        ("locks", lambda scratch, patch: patch.setattr(storage, "TAKE_LOCK", ""), "got a lock that is held"),
        ("locks", lambda scratch, patch: patch.setattr(storage, "TAKE_LOCK", "raise SystemExit(3)"), "that is free"),
        ("names", lambda scratch, patch: (scratch / "NAME").write_text(""), "are the same file"),
        ("hard links", lambda scratch, patch: (scratch / "two").write_text(""), "File exists"),
        ("renaming", lambda scratch, patch: (scratch / "renamed").write_text(""), "Not a directory"),
    ],
)
def test_a_file_system_that_lacks_something(tmp_path, monkeypatch, what, spoil, told):
    spoil(tmp_path, monkeypatch)
    attempt, advice = next((attempt, advice) for name, attempt, advice in storage.ATTEMPTS if name == what)
    found = storage._tried(what, attempt, tmp_path, advice)
    assert found.state == "problem" and told in found.found and "--root" in found.advice


def test_databases_that_are_whole_locked_and_broken(tmp_path):
    with opened_instance(tmp_path):
        pass
    whole = by_name(look_at_stores(tmp_path, None))
    assert whole["Dagster"].state == "ok" and whole["MLflow"].state == "not looked at"
    file = tmp_path / "dagster" / DAGSTER_FILES[0]
    data = bytearray(file.read_bytes())
    data[4096:8192] = b"x" * 4096
    file.write_bytes(data)
    broken = by_name(look_at_stores(tmp_path, None))["Dagster"]
    assert broken.state == "problem" and str(file) in broken.found
    with sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None) as other:
        other.execute("CREATE TABLE runs (id)")
        assert by_name(look_at_stores(tmp_path, None))["MLflow"].state == "ok"
        other.execute("BEGIN EXCLUSIVE")
        assert "locked" in by_name(look_at_stores(tmp_path, None))["MLflow"].found


def test_a_tracker_that_does_not_answer(tmp_path):
    found = by_name(look_at_stores(tmp_path, f"http://me:secret@127.0.0.1:{free_ports(1)[0]}"))["MLflow"]
    assert found.state == "problem" and "does not answer" in found.found and "secret" not in found.found


def test_lines_fit_a_terminal_and_end_with_the_sum():
    findings = [Finding("locks", "problem", "word " * 40, "other " * 30), Finding("clock", "ok", "now")]
    lines = list(lines_of(findings))
    assert max(map(len, lines)) <= 80 and lines[-1] == "1 ok, 1 to mend"

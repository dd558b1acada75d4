"""Slurm's commands on a login node, and jobs on nodes that have no Pedigree: they unpack an environment."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from assets.answers.doctor.schedulers import look_at_schedulers
from assets.graph.bill import attempts
from assets.materialize.causes import StageFailed
from assets.materialize.jobs import hand_over
from resources.compute.base import Task
from resources.compute.slurm import SlurmBackend, SlurmSettings
from resources.compute.slurm_calls import Login, SlurmError, SlurmRefusal
from resources.compute.slurm_environment import PLACE, SEND, digest_of, send
from resources.profile import load_profile
from tests.cluster import minissh
from tests.cluster.conftest import cluster_of
from tests.cluster.minis3 import MiniS3
from tests.cluster.minislurm import MiniSlurm
from tests.cluster.minissh import MiniSsh, packed
from tests.cluster.store_servers import KEY, SECRET
from tests.cluster.test_nodes_apart import PHASES, SECRETS, apart_task, digest_in_a_folder, submissions
from tests.toys import made_of
from training.contract.artifact import Artifact

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def far() -> Iterator[MiniSlurm]:
    """A cluster whose nodes see neither folders of roots nor any Pedigree; nothing here knows how to call it."""
    if lacking := minissh.missing():
        pytest.skip(lacking)
    hidden = ("here", "there", *minissh.hidden())
    with cluster_of(nodes=2, hidden=hidden) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEDIGREE_CACHE", str(cluster.folder / "here"))
        yield cluster


@pytest.fixture(scope="module")
def login(far: MiniSlurm) -> Iterator[MiniSsh]:
    """The cluster's login node, which `ssh login` reaches."""
    folder = Path(tempfile.mkdtemp(prefix="ssh-"))
    login = MiniSsh(folder, far.variables)
    login.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{login.bin}:{os.environ['PATH']}")
        yield login
    login.stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(far: MiniSlurm) -> Iterator[MiniS3]:
    server = MiniS3()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        for name, value in zip(SECRETS, (KEY, SECRET, "us-east-1"), strict=True):
            patch.setenv(name, value)
        yield server
    server.stop()


@pytest.fixture(scope="module")
def settings(login: MiniSsh) -> SlurmSettings:
    file = str(packed(login.folder / "environment.tar"))
    return SlurmSettings(partition="main", poll_seconds=0.2, environment=SECRETS, ssh="login", environment_file=file)


def far_task(far: MiniSlurm, server: MiniS3, name: str, *, phases: tuple[str, ...] = (), **size) -> Task:
    """A toy whose module alone is seen by the nodes."""
    cache = str(far.folder / "there")
    task = apart_task(far, server, name, phases=phases, node_cache=cache, **size)
    return replace(task, environment={"PYTHONPATH": str(far.folder / name)})


def test_a_fan_out_by_ssh_on_nodes_without_pedigree(far, login, server, settings, tmp_path):
    made, said = made_of(far_task(far, server, "whole", phases=PHASES), SlurmBackend(settings))
    assert isinstance(made, Artifact), made
    assert made.digest == digest_in_a_folder(tmp_path, PHASES) and submissions(said) == 1
    told = attempts(made.path)
    digest = digest_of(settings.environment_file)
    assert {one["image"] for one in told} == {f"environment.tar@sha256:{digest}"} and len(told) == 5
    assert "rank 0 of 6" in "".join((made.path / f"log-{task}.txt").read_text() for task in (0, 1))
    (sent,) = (login.home / PLACE).iterdir()
    before = sent.stat().st_mtime_ns
    made, _ = made_of(far_task(far, server, "again", nodes=1), SlurmBackend(settings))
    assert isinstance(made, Artifact) and sent.stat().st_mtime_ns == before, "it is sent once"


def test_a_job_goes_on_while_its_login_is_lost(far, login, server, settings):
    task, backend = far_task(far, server, "lost", nodes=1), SlurmBackend(settings)
    hand_over(task)
    handle = backend.submit(task)
    login.stop()
    try:
        status = SlurmBackend(replace(settings, poll_seconds=0.001)).poll(handle)
        assert status.state == "running" and "parts.slurm.ssh: login cannot be reached" in status.reason
        record = "bucket/lost/records/toys/f.json"
        far.wait_until(lambda: record in server.objects, "the job has made its artifact")
    finally:
        login.start()
    far.wait_until(lambda: backend.poll(handle).state == "succeeded", "its state is back")


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("stranger", "its host key is not the one known here"),
        ("closed", "it lets nobody in without a password"),
        ("no-such-host.invalid", "there is no such host"),
        ("bare", "has no command squeue"),
    ],
)
def test_a_login_that_does_not_serve_is_told_in_one_sentence(far, login, server, settings, host, said):
    task = far_task(far, server, host, nodes=1)
    made, told = made_of(task, SlurmBackend(replace(settings, ssh=host)))
    assert isinstance(made, StageFailed) and made.exit_code == 2 and not submissions(told)
    assert f"parts.slurm.ssh: {host}" in str(made) and said in str(made) and "\n" not in str(made)


def test_an_archive_that_somebody_changed_is_not_unpacked(far, login, server, settings):
    other = shutil.copy(settings.environment_file, login.folder / "other.tar")
    with open(other, "ab") as stream:
        stream.write(b"\0")
    send(str(other), Login(ssh="login"))
    with open(login.home / PLACE / digest_of(str(other)), "r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\1")
    backend = SlurmBackend(replace(settings, environment_file=str(other)))
    made, _ = made_of(far_task(far, server, "changed", nodes=1), backend)
    assert isinstance(made, StageFailed) and made.exit_code == 2
    assert "could not unpack parts.slurm.environment_file" in str(made)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ("pixi-pack.json", "environment.yml", "channel/noarch/repodata.json"),
            "pixi-pack's own archive, .* `pixi-unpack",
        ),
        (("env/bin/python",), "has no bin/python; `tar -tf` must list it"),
    ],
)
def test_an_archive_without_its_interpreter_is_not_sent(login, tmp_path, names, said):
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"./{name}"))
    with pytest.raises(SlurmRefusal, match=said):
        send(str(tmp_path / "other.tar"), Login(ssh="login"))
    assert not (login.home / PLACE / digest_of(str(tmp_path / "other.tar"))).exists()


def test_an_archive_that_does_not_arrive_whole_is_not_there(login, tmp_path):
    (tmp_path / "some.tar").write_bytes(b"the half of it")
    with open(tmp_path / "some.tar", "rb") as stream, pytest.raises(SlurmError):
        Login(ssh="login").call(["sh", "-c", SEND, "sh", f"{PLACE}/half", "0" * 64], stream)
    assert not list((login.home / PLACE).glob("half*"))


def test_the_doctor_asks_by_ssh(far, login, settings, tmp_path):
    def found(**changes: object) -> dict:
        parts = {"ssh": "login", "partition": "main", "environment_file": settings.environment_file, **changes}
        size = {"backend": "slurm", "workers": 1, "memory_gb": 1, "node_cache": "/scratch"}
        text = yaml.safe_dump({"name": "p", "default": size, "parts": {"slurm": parts}})
        (tmp_path / "p.yaml").write_text(text, "utf-8")
        return {one.what: one for one in look_at_schedulers(load_profile(str(tmp_path / "p.yaml")), tmp_path)}

    told = found()
    assert {what: one.state for what, one in told.items()} == {
        "login": "ok",
        "slurm": "ok",
        "sacct": "warning",
        "environment": "ok",
    }
    assert found(partition="other")["slurm"].state == "problem"
    assert "UNSET_HERE" in found(environment=["UNSET_HERE"])["variables"].found
    assert [one.state for one in found(ssh="closed").values()] == ["problem"]
    (tmp_path / "no.tar").write_bytes(b"no archive")
    assert found(environment_file=str(tmp_path / "no.tar"))["environment"].state == "problem"

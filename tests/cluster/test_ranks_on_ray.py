"""What becomes of ranks that are tasks of Ray: a toy stage, and real ones, on a real cluster of three virtual nodes."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import miniray
from tests.cluster.miniray import MiniRay
from tests.toys import TOY, toy_task
from tests.training.data.test_reuse import BASE, Corpus
from training.contract import artifact
from training.contract.job import read_job, write_job
from training.contract.run_settings import RunSettings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ONCE = [f"rank {rank}\n" for rank in range(6)]


@pytest.fixture(scope="module")
def ray() -> Iterator[MiniRay]:
    lacking = miniray.missing()
    if lacking:
        pytest.skip(f"no Ray cluster here: {lacking}")
    # Sockets have paths of at most 107 bytes, which pytest's own folders may exceed.
    cluster = MiniRay(Path(tempfile.mkdtemp(prefix="mr-")), python_path=[path for path in sys.path if path])
    try:
        cluster.start()
        (cluster.modules / "toy_ranks.py").write_text(TOY)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder)


@dataclass(frozen=True)
class Driver:
    """The process of a job on its way, and the job's folder."""

    process: subprocess.Popen[str]
    folder: Path

    def ends(self) -> tuple[int, str]:
        """Its exit code, and what it printed."""
        errors = self.process.communicate(timeout=600)[1]
        return self.process.returncode, errors

    def node_of(self, rank: int) -> str:
        """The node that makes a rank now; empty when none does."""
        signs = list(self.folder.glob(f"scratch/ray-*/{rank}"))
        return signs[0].read_text().partition(" ")[0] if signs else ""

    def messages(self) -> str:
        """What it has reported to whoever watches the job."""
        path = self.folder / "messages.jsonl"
        return path.read_text() if path.exists() else ""


Start = Callable[..., Driver]


@pytest.fixture
def start(ray: MiniRay, tmp_path: Path) -> Iterator[Start]:
    """A function that starts a toy job of six ranks on the cluster; the drivers have ended after the test."""
    drivers: list[Driver] = []

    def started(*faults: tuple[int, str], folder: Path = tmp_path, **run: object) -> Driver:
        task = toy_task(folder, ranks=6, faults=list(faults))
        job = read_job(Path(task.folder, "job.json"))
        write_job(dataclasses.replace(job, run=RunSettings(engine="ray", **run)), Path(task.folder, "job.json"))
        return driver([sys.executable, *task.argv], Path(task.folder))

    def driver(argv: list[str], folder: Path) -> Driver:
        process = ray.spawn(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        drivers.append(Driver(process, folder))
        return drivers[-1]

    yield started
    for one in drivers:
        one.process.kill()
        one.process.communicate()


def ranks_of(folder: Path) -> list[str]:
    """What the ranks that were made have written; a rank that was made twice has written twice."""
    return [path.read_text() for path in sorted(folder.glob("[0-9].txt"))]


def command_lines() -> list[str]:
    """The command lines of this machine's processes, with null characters between arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(entry.read_bytes().decode())
        except OSError:
            continue
    return found


def tasks_of_ray() -> list[str]:
    """The command lines of Ray's workers on this machine that make a rank."""
    return [line for line in command_lines() if line.startswith("ray::rank")]


def test_a_killed_worker_and_a_lost_node_change_no_byte(ray: MiniRay, start: Start, tmp_path: Path):
    driver = start((1, "kill"), (4, "sleep"))
    ray.wait_until(lambda: (driver.folder.parent / "fault-1").exists(), "rank 4 sleeps", seconds=240)
    lost = driver.node_of(4)
    ray.fail(lost)
    code, errors = driver.ends()
    ray.revive(lost)
    assert code == 0, errors
    assert ranks_of(driver.folder) == ONCE
    assert "rank 1 was lost" in errors
    assert f"rank 4 was lost with its node (node {lost}); it is made again, try 2 of 3" in driver.messages()

    (tmp_path / "plain").mkdir()
    plain = toy_task(tmp_path / "plain", ranks=6, faults=[])
    subprocess.run([sys.executable, *plain.argv], env={**os.environ, **plain.environment}, check=True)
    here, there = artifact.find(Path(plain.folder)), artifact.find(driver.folder)
    assert here is not None and there is not None and here.digest == there.digest
    assert not list(driver.folder.glob("scratch"))
    ray.wait_until(lambda: ray.is_up(lost), "the node is back", seconds=240)


def test_an_error_of_a_rank_is_told_as_it_is_and_not_tried_again(start: Start, tmp_path: Path):
    code, errors = start((0, "bad")).ends()
    assert code == 2 and "error: rank 0 met a fault" in errors
    # In a folder of its own: of the first job, ranks 2 and 3 may have ended before rank 0 began.
    (tmp_path / "second").mkdir()
    code, errors = start((2, "raise"), (3, "raise"), folder=tmp_path / "second").ends()
    assert code == 1 and re.search("RuntimeError: rank [23] met a fault", errors) and "in run_rank" in errors


def test_a_rank_that_is_lost_too_often_ends_the_job(start: Start):
    code, errors = start((5, "kill"), (5, "kill"), rank_retries=1).ends()
    assert code == 1
    assert "rank 5 was lost" in errors
    assert "and was made 2 times (`rank_retries` in the profile)" in errors


def test_the_tasks_of_a_killed_driver_end_and_the_next_one_goes_on_from_the_marks(ray: MiniRay, start: Start):
    driver = start((5, "sleep"))
    ray.wait_until(lambda: len(ranks_of(driver.folder)) == 5, "only the sleeping rank is left", seconds=240)
    ray.wait_until(lambda: (driver.folder.parent / "fault-0").exists(), "rank 5 sleeps")
    assert tasks_of_ray()
    os.kill(driver.process.pid, signal.SIGKILL)
    driver.process.wait()
    ray.wait_until(lambda: not tasks_of_ray(), "no task is left")
    code, errors = start((5, "sleep")).ends()
    assert code == 0, errors
    assert ranks_of(driver.folder) == ONCE


def test_ray_of_a_killed_jobs_own_ends_and_the_next_job_removes_its_folder(ray: MiniRay, tmp_path: Path):
    task = toy_task(tmp_path, ranks=2, faults=[(1, "sleep")])
    job = read_job(Path(task.folder, "job.json"))
    write_job(dataclasses.replace(job, run=RunSettings(engine="ray")), Path(task.folder, "job.json"))
    with tempfile.TemporaryDirectory(prefix="o") as place:  # short, or Ray would use /tmp for its sockets
        argv, environment = [sys.executable, *task.argv], {**os.environ, **task.environment, "TMPDIR": place}
        killed = subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL)
        try:
            ray.wait_until((Path(task.folder).parent / "fault-0").exists, "rank 1 sleeps", seconds=240)
        finally:
            killed.kill()
            killed.wait()
        (left,) = Path(place).glob("ray-*")
        ray.wait_until(lambda: not any(str(left) in line for line in command_lines()), "its Ray has ended")
        ray.wait_until(lambda: not tasks_of_ray(), "its task has ended")
        subprocess.run(argv, env=environment, check=True)
        assert not list(Path(place).glob("ray-*"))
    assert ranks_of(Path(task.folder)) == ONCE[:2]


def test_nodes_with_other_code_or_without_the_folder_are_refused_by_name(ray: MiniRay, start: Start):
    for node in ray.nodes[1:]:
        (ray.own(node) / "toy_ranks.py").write_text(TOY.replace("met a fault", "fails"))
    code, errors = start().ends()
    for node in ray.nodes[1:]:
        shutil.rmtree(ray.own(node))
    assert code == 2
    assert "error: engine: node node" in errors and "has other versions than this job: toy_ranks " in errors
    code, errors = start(folder=ray.unseen).ends()
    assert code == 2 and f"does not see {ray.unseen}" in errors
    assert "all nodes share" in errors


def test_a_job_that_no_node_can_run_says_what_it_waits_for(ray: MiniRay, start: Start):
    driver = start(rank_memory_gb=10_000.0)
    ray.wait_until(lambda: "`rank_memory_gb` in the profile" in driver.messages(), "it says so", seconds=240)
    assert "1 core and 10000 GiB" in driver.messages()


def test_real_stages_make_the_same_data(ray: MiniRay, tmp_path: Path):
    """One that begins with archives, and one that reads models; `python -m benchmarks.engines` runs all of them."""
    made = Corpus(tmp_path).build("local", BASE, until="document_signatures")
    for asset in ("extracted_documents", "filtered_documents"):
        here = artifact.find(Path(made[asset].path))
        assert here is not None
        job = read_job(here.path / "job.json")
        folder = artifact.folder_of(tmp_path / "ray", asset, job.fingerprint)
        write_job(dataclasses.replace(job, output=str(folder), run=RunSettings(engine="ray")), folder / "job.json")
        driver = ray.spawn([sys.executable, "-m", "training", str(folder / "job.json")])
        assert driver.wait(timeout=600) == 0
        there = artifact.find(folder)
        assert there is not None
        assert there.record["cost"]["peak_memory_bytes"] > 0
        decided = ("digest", "counts", "metrics", "gates", "files", "settings", "libraries")
        assert {name: there.record[name] for name in decided} == {name: here.record[name] for name in decided}

"""Jobs on nodes that see neither the root's folder nor each other's: all that they share is the root's store."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assets.materialize.causes import StageFailed
from assets.materialize.events import heard_by
from assets.materialize.jobs import hand_over
from assets.state.chain import descendants
from resources.compute.base import NodeFolder, Task
from resources.compute.size import Size
from resources.compute.slurm import SlurmBackend, SlurmSettings
from resources.tracking.reports import FLUSH_SECONDS, Tracking
from tests.cluster.minis3 import MiniS3
from tests.cluster.minislurm import MiniSlurm
from tests.cluster.store_servers import KEY, SECRET
from tests.small_kitchen import Ran, pedigree
from tests.toys import made_of, toy_task
from training.contract.artifact import Artifact, find
from training.contract.files.objects import Objects
from training.contract.files.stored_root import StoredRoot, make_stored_root
from training.contract.job import read_job, write_job
from training.contract.running.attempt import read_attempts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PHASES = ("make", "gather")
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")


@pytest.fixture(scope="module")
def server(apart: MiniSlurm) -> Iterator[MiniS3]:
    server = MiniS3()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        for name, value in zip(SECRETS, (KEY, SECRET, "us-east-1"), strict=True):
            patch.setenv(name, value)
        yield server
    server.stop()


def apart_task(
    apart: MiniSlurm, server: MiniS3, name: str, *faults: tuple[int, str], phases: tuple[str, ...] = (), **size
) -> Task:
    """Six toy ranks, of each phase if there are several, over two tasks; of a root whose folder nodes do not see."""
    visible, root, there = apart.folder / name, apart.folder / "here" / name, apart.folder / "there" / name
    visible.mkdir()
    wanted = Size(**{"backend": "slurm", "nodes": 2, "workers": 1, "memory_gb": 0.5, "hours": 0.1, **size})
    task = toy_task(visible, ranks=6, faults=list(faults), size=wanted, num_tasks=wanted.nodes, phases=phases)
    job = read_job(Path(task.folder) / "job.json")
    objects = Objects(f"s3://bucket/{name}", server.endpoint)
    make_stored_root(root, objects)
    output = root / "toys" / "f"
    write_job(replace(job, output=str(output), settings=job.settings | {"signs": str(visible)}), output / "job.json")
    return replace(
        task,
        folder=str(output),
        argv=("-m", "toy_ranks", str(there / "toys" / "f" / "job.json")),
        node_folder=NodeFolder(path=str(there / "toys" / "f"), address=objects.address, endpoint=objects.endpoint),
    )


@pytest.fixture
def backend(server: MiniS3) -> SlurmBackend:
    return SlurmBackend(SlurmSettings(partition="main", poll_seconds=0.2, environment=SECRETS))


def submissions(said: list[str]) -> int:
    """How often the stage was submitted."""
    return sum(line.startswith("submitted") for line in said)


def digest_in_a_folder(folder: Path, phases: tuple[str, ...] = ()) -> str:
    """The digest of the same toy ranks in a folder of this machine."""
    task = toy_task(folder, ranks=6, faults=[], phases=phases)
    env = {**os.environ, **task.environment}
    subprocess.run([sys.executable, *task.argv], env=env, check=True, capture_output=True)
    made = find(Path(task.folder))
    assert made is not None
    return made.digest


def test_a_fan_out_needs_nothing_but_the_store(apart: MiniSlurm, server: MiniS3, backend, tmp_path):
    task, heard = apart_task(apart, server, "whole", phases=PHASES), []
    with heard_by(lambda kind, cell, values: heard.append((kind, values))):
        made, said = made_of(task, backend)
    assert isinstance(made, Artifact), made
    assert made.digest == digest_in_a_folder(tmp_path, PHASES)
    folder = Path(task.folder)
    assert not list((apart.folder / "there").iterdir()), "what nodes have is seen by nobody else"
    assert not list(folder.glob("all-*.txt")) and made.file("all-5.txt").exists()
    assert "rank 0 of 6" in "".join((folder / f"log-{task}.txt").read_text() for task in (0, 1))
    assert "--- attempt " in (folder / "log.txt").read_text()
    assert len(read_attempts(folder)) == 5, "two tasks of each phase, and the job that finishes"
    assert any(kind == "progress" and values["ranks"] == 12 for kind, values in heard) and submissions(said) == 1
    left = [key for key in server.objects if key.startswith("bucket/whole/toys/f/ranks/")]
    assert not left, "marks and claims go with the commit"


def test_what_a_rank_of_another_node_says_is_told(apart: MiniSlurm, server: MiniS3, backend):
    made, said = made_of(apart_task(apart, server, "bad", (0, "bad")), backend)
    assert isinstance(made, StageFailed) and made.exit_code == 2 and submissions(said) == 1
    assert "rank 0 met a fault (log-" in str(made)


def test_the_ranks_of_a_node_that_dies_are_made_by_others(apart: MiniSlurm, server: MiniS3, backend, tmp_path):
    name = "dies"
    task = apart_task(apart, server, name, (1, "sleep"))
    hand_over(task)
    backend.submit(task)
    apart.wait_until((apart.folder / name / "fault-0").exists, "rank 1 sleeps")
    (claim,) = [text for key, text in server.objects.items() if f"/{name}/" in key and key.endswith("00001.0.claim")]
    (job,) = [one for one in apart.running_jobs() if one.get("ArrayTaskId") == re.split("[_.]", claim.decode())[1]]
    apart.fail(job["NodeList"])
    made, _ = made_of(task, backend)
    assert isinstance(made, Artifact), made
    assert made.digest == digest_in_a_folder(tmp_path)


def test_a_node_that_cannot_use_the_store_is_told_apart_from_a_failed_stage(apart: MiniSlurm, server: MiniS3):
    backend = SlurmBackend(SlurmSettings(partition="main", poll_seconds=0.2))
    made, _ = made_of(apart_task(apart, server, "closed", nodes=1), backend)
    assert isinstance(made, StageFailed) and made.exit_code == 2
    assert "its node sent no log" in str(made)


def put_into_store(root: Path, objects: Objects, without: Sequence[str]) -> None:
    """Put the artifacts of a folder and its references into a store, but those of some assets."""
    stored = StoredRoot(root, objects)
    for record in root.glob("*/*/artifact.json"):
        if record.parents[1].name not in without:
            fields = json.loads(record.read_text("utf-8"))
            for one in (*fields["files"], *fields.get("beside", ())):
                path = record.parent / one["path"]
                objects.put_file(stored.key_of_file(path, one["sha256"]), path)
            objects.put_file(stored.key_of_record(record.parent), record)
    for reference in root.glob("refs/*/*.json"):
        if reference.parent.name not in without:
            objects.put_file(stored.key(reference), reference)


@pytest.mark.slow
@pytest.mark.parametrize("again", [("extracted_documents",), ("token_shards", "training_plan", "base_model")])
def test_stages_have_the_digests_of_a_folder(apart: MiniSlurm, server: MiniS3, first, untouched, again):
    """A fan-out, jobs of one node, and a training: of its bytes, if its numerics are those of the folder's."""
    root = f"s3://bucket/{again[-1]}"
    put_into_store(untouched, Objects(root, server.endpoint), (*again, *descendants("base_model")))
    size = {"backend": "slurm", "workers": 1, "threads": 1, "memory_gb": 2, "hours": 0.5}
    whole = {"workers": None, "threads": None, "memory_gb": None}
    profile = apart.write_profile(
        apart.folder / "apart.yaml",
        default=size | {"node_cache": str(apart.folder / "there")},
        stages={"extracted_documents": {"nodes": 2}, "base_model": whole},
        parts={"slurm": {"partition": "main", "poll_seconds": 0.2, "environment": ["SLURM_CONF", *SECRETS]}},
    )
    check_digests(first, again, root, profile)
    assert not list((apart.folder / "there").iterdir())


def check_digests(first: Ran, again: tuple[str, ...], root: str, profile: Path) -> None:
    """Make assets of a root in a store by a profile, and compare their digests with those of a folder."""
    assert first.code == 0, first.errors
    made = pedigree("run", "kitchen-small", "--until", again[-1], "--profile", str(profile), root=root)
    assert made.code == 0, made.errors
    place = Path(next(iter(made.answer["assets"][again[-1]].values()))["uri"]).parents[1]
    Tracking("", place, in_background=False).flush(FLUSH_SECONDS)  # into a folder that goes with the cluster
    new = {(asset, key) for asset, some in made.answer["assets"].items() for key in some if not some[key]["reused"]}
    assert {asset for asset, _ in new} == {*again}
    for asset, key in new:
        there, here = (one.answer["assets"][asset][key] for one in (made, first))
        assert there["digest"] == here["digest"] or numerics_of(there) != numerics_of(here), asset


def numerics_of(told: dict[str, Any]) -> Any:
    """The numerics of an artifact, of which an answer tells; None for data."""
    made = find(Path(told["uri"]))
    assert made is not None
    return made.record.get("numerics")

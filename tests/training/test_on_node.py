"""A job on a node that has nothing but the address of its root's store, as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.jobs import job_by_hand
from tests.training.contract.files.test_stored_root import machine
from training.contract.artifact import commit_record, digest_of_files
from training.contract.files.stored_root import store_small
from training.contract.files.stored_takedowns import remember
from training.contract.files.written_lines import Follower
from training.contract.job import InputArtifact, read_job, write_job

SAYS = "import sys; print('ran', *sys.argv[1:], flush=True)"


@pytest.fixture
def here(store, tmp_path) -> Path:
    """The artifact's folder of whoever submits: its job is in the store."""
    folder = machine(store, tmp_path / "here")
    told = {"asset": "crawl", "partition": "p", "fingerprint": "0" * 32, "digest": "d"}
    read = InputArtifact(**told, path=str(tmp_path / "here" / "crawl" / ("0" * 32)))
    job = job_by_hand("toy", folder, inputs=[read], asset=folder.parent.name, fingerprint=folder.name)
    job = replace(job, goes_on_from=read)
    write_job(job, folder / "job.json")
    store_small(folder / "job.json", (folder / "job.json").read_bytes())
    return folder


@pytest.fixture
def withdrawn(here) -> Path:
    """A list of withdrawn pages, as a takedown on the machine of whoever submits has written it."""
    path = here.parents[1] / "takedowns" / f"{'a' * 32}.txt"
    remember(path, "a.example\twhy\n")
    return path


def start(store, node: Path, *command: str) -> subprocess.Popen[str]:
    place = node / "documents" / ("0123456789abcdef" * 2)
    place.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "training.on_node", "s3://bucket/root", store.endpoint, str(place)]
    with (place / "log.txt").open("a") as log:
        log.write("--- attempt 8.0 on node1\n")
        log.flush()
        env = {**os.environ, "PEDIGREE_ATTEMPT": "8.0"}
        return subprocess.Popen([*argv, sys.executable, *command], stdout=log, stderr=log, env=env, text=True)


def test_the_job_is_that_of_the_nodes_folder_and_its_words_come_back(store, here, tmp_path):
    node = tmp_path / "node"
    assert start(store, node, "-c", SAYS, "well").wait() == 0
    job = read_job(node / "documents" / here.name / "job.json")
    assert Path(job.output) == node / "documents" / here.name
    assert Path(job.inputs[0].path) == node / "crawl" / ("0" * 32)
    assert job.goes_on_from == job.inputs[0]
    Follower(here).bring()
    assert (here / "log.txt").read_text() == "--- attempt 8.0 on node1\nran well\n"


def test_lists_of_withdrawn_pages_come_with_the_job(store, here, withdrawn, tmp_path):
    job = replace(read_job(here / "job.json"), settings={"extract": {"takedown": [str(withdrawn), "data://own"]}})
    write_job(job, here / "job.json")
    store_small(here / "job.json", (here / "job.json").read_bytes())
    assert start(store, tmp_path / "node", "-c", SAYS).wait() == 0
    own, other = read_job(tmp_path / "node" / "documents" / here.name / "job.json").settings["extract"]["takedown"]
    assert Path(own).read_text() == withdrawn.read_text() and Path(own).is_relative_to(tmp_path / "node")
    assert other == "data://own"


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_this_node_has_and_the_store_has_no_more_is_made_again(store, here, tmp_path, is_stored):
    """As after `verify --mend` elsewhere, which set it aside."""
    place = machine(store, tmp_path / "node")
    files = [{"path": "a.txt", "bytes": 1, "sha256": "0" * 64}]
    fields = {"asset": "documents", "fingerprint": place.name, "partition": "p", "inputs": []}
    commit_record(place, fields | {"files": files, "digest": digest_of_files(files)})
    if not is_stored:
        del store.objects["/".join(("bucket/root", "records", "documents", f"{place.name}.json"))]
    assert start(store, tmp_path / "node", "-c", SAYS).wait() == 0
    assert (place / "artifact.json").exists() is is_stored


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_the_command_and_its_exit_is_that_of_the_job(store, here, tmp_path, number):
    waits = "import signal, sys, time\nfor one in (10, 15): signal.signal(one, lambda n, _: sys.exit(60 + n))\n"
    process = start(store, tmp_path / "node", "-c", waits + "print('waits', flush=True); time.sleep(60)")
    while "waits" not in (tmp_path / "node" / "documents" / here.name / "log.txt").read_text():
        assert process.poll() is None
    process.send_signal(number)
    assert process.wait() == 60 + number


def test_a_command_that_is_killed_has_told_what_it_wrote(store, here, tmp_path):
    kills = "import os; print('last words', flush=True); os.kill(os.getpid(), 9)"
    assert start(store, tmp_path / "node", "-c", kills).wait() == -signal.SIGKILL
    Follower(here).bring()
    assert (here / "log.txt").read_text().endswith("last words\n")


def test_a_job_that_is_not_what_was_written_is_refused_in_one_sentence(store, here, tmp_path):
    key = "/".join(("bucket/root", "documents", here.name, "job.json"))
    store.objects[key] = store.objects[key].replace(b'"crawl"', b'"other"')
    assert start(store, tmp_path / "node", "-c", SAYS).wait() == 2
    Follower(here).bring()
    (said,) = (here / "attempts").glob("*.json")
    assert json.loads(said.read_text())["exit_code"] == 2
    assert "its checksum differs; run again" in (here / "log.txt").read_text()
    assert "ran" not in (here / "log.txt").read_text().replace("run again", "").split()

"""Roots in an object store: one commit of two writers, nothing read of a killed one, a store that fails for a while."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import fsspec
import pytest

from assets.state.references import aside
from tests.cluster.minis3 import MiniS3
from tests.jobs import job_by_hand
from tests.outside import importable
from training.contract import artifact
from training.contract.files import objects, stored_root
from training.contract.files.objects import Objects, StoreDown
from training.contract.job import DataError, InputArtifact, RefusedInput
from training.contract.running.runner import run_job
from training.contract.stage import Stage
from training.provenance.lineage import artifacts_under

PLACE = "documents/0123456789abcdef0123456789abcdef"


def machine(store: MiniS3, folder: Path) -> Path:
    """Return the folder in which another machine works on an artifact of the root in the store."""
    stored_root.make_stored_root(folder, Objects("s3://bucket/root", store.endpoint))
    (folder / PLACE).mkdir(parents=True)
    return folder / PLACE


def write(folder: Path, text: str, name: str = "a.txt") -> dict:
    """Write a file of the artifact as a stage does, and store it; return the artifact's record, not yet committed."""
    artifact.write_text(folder / name, text)
    files = artifact.manifest(folder, [name])
    stored_root.store_files(folder, files)
    return {"digest": artifact.digest_of_files(files), "files": files, "inputs": [], "gates": []}


def opened(folder: Path) -> str:
    made = artifact.find(folder)
    assert made is not None
    item = InputArtifact(
        asset="documents", partition="p", fingerprint=folder.name, digest=made.digest, path=str(folder)
    )
    (name,) = item.files()
    return item.file(name).read_text()


def test_what_one_machine_commits_another_one_finds_and_reads(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    artifact.commit_record(here, write(here, "what was made"))
    assert opened(there) == "what was made"
    assert (there / artifact.ARTIFACT_FILE).read_bytes() == (here / artifact.ARTIFACT_FILE).read_bytes()
    third = machine(store, tmp_path / "third")
    made = artifact.find(third)
    assert made is not None and [path.name for path in made.file("").glob("*.txt")] == ["a.txt"]


def test_a_writer_that_is_killed_before_its_record_leaves_nothing_that_is_read(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    write(here, "half of it")
    assert store.objects and artifact.find(there) is None
    artifact.commit_record(there, write(there, "all of it"))
    assert opened(here) == "all of it", "the file that the killed one left here is not the one that was committed"


def test_two_writers_give_one_commit(store, tmp_path):
    first, second, third = (machine(store, tmp_path / name) for name in ("first", "second", "third"))
    both = [write(first, "of the first"), write(second, "of the second", "b.txt")]
    artifact.commit_record(first, both[0])
    artifact.commit_record(second, both[1])
    assert [opened(one) for one in (first, second, third)] == ["of the first"] * 3
    assert not (second / "b.txt").exists()


def test_what_a_job_cost_is_written_over_its_own_record_and_over_no_other(store, tmp_path):
    first, second = machine(store, tmp_path / "first"), machine(store, tmp_path / "second")
    record = write(first, "equal")
    artifact.commit_record(first, record | {"cost": {"node_hours": 1.0}})
    artifact.commit_record(second, write(second, "equal") | {"cost": {"node_hours": 5.0}})
    artifact.commit_record(first, record | {"cost": {"node_hours": 2.0}})
    made = artifact.find(machine(store, tmp_path / "third"))
    assert made is not None and made.record["cost"] == {"node_hours": 2.0}


@pytest.mark.parametrize("damage", ["gone", "other", "link"])
def test_a_file_that_is_damaged_here_is_brought_again(store, tmp_path, damage):
    here = machine(store, tmp_path / "here")
    artifact.commit_record(here, write(here, "what was made"))
    (here / "a.txt").unlink()
    if damage == "other":
        (here / "a.txt").write_text("what was fake")
    if damage == "link":
        (here / "a.txt").symlink_to(here / artifact.ARTIFACT_FILE)
        with pytest.raises(RefusedInput, match="is no regular file"):
            opened(here)
    else:
        assert opened(here) == "what was made"


def test_a_file_that_is_damaged_in_the_store_is_refused(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    artifact.commit_record(here, write(here, "what was made"))
    (key,) = (name for name in store.objects if "/files/" in name)
    store.objects[key] = b"what was fake"
    with pytest.raises(RefusedInput, match=r"a\.txt: missing"):
        opened(there)
    assert not (there / "a.txt").exists()
    assert stored_root.not_stored(here, artifact.manifest(here, ["a.txt"])) == []
    store.objects[key] = b"short"
    assert "of another size" in stored_root.not_stored(here, artifact.manifest(here, ["a.txt"]))[0]


@pytest.mark.parametrize("fault", [500, 503, 1.0])
def test_a_store_that_fails_for_a_while_is_asked_again_and_said(store, tmp_path, caplog, monkeypatch, fault):
    monkeypatch.setattr(objects, "S3_CONFIG", objects.S3_CONFIG | {"read_timeout": 0.3})
    here = machine(store, tmp_path / "here")
    store.faults = [fault, fault]
    with caplog.at_level(logging.WARNING):
        artifact.commit_record(here, write(here, "what was made"))
    assert opened(machine(store, tmp_path / "there")) == "what was made"
    assert [line.endswith("trying again in 0 s") for line in caplog.messages] == [True, True]


@pytest.mark.parametrize(("fault", "error", "num_requests"), [(503, StoreDown, 3), (403, DataError, 1)])
def test_what_does_not_pass_is_one_sentence(store, fault, error, num_requests):
    store.faults = [fault] * 9
    with pytest.raises(error, match=r"cannot read refs/a\.json"):
        Objects("s3://bucket/root", store.endpoint).get("refs/a.json")
    assert len(store.requests) == num_requests


@pytest.mark.parametrize(
    ("fault", "way_out"),
    [
        ("ExpiredToken", "renew the credentials of AWS_ACCESS_KEY_ID or AWS_PROFILE"),
        ("InvalidToken", "renew the credentials of AWS_ACCESS_KEY_ID or AWS_PROFILE"),
        ("AccessDenied", "give the user of AWS_ACCESS_KEY_ID or AWS_PROFILE the right.*, or renew"),
        ("NoSuchBucket", "there is no bucket bucket: make it"),
        ("RequestTimeTooSkewed", "RequestTimeTooSkewed.*set this machine's clock"),
        ("AuthorizationHeaderMalformed", "set AWS_DEFAULT_REGION"),
        ("PermanentRedirect", "does not say where to.*set AWS_DEFAULT_REGION .* or AWS_ENDPOINT_URL"),
        ("SignatureDoesNotMatch", "set AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_store_that_refuses_in_the_middle_says_the_way_out_and_half_of_it_is_not_read(
    store, tmp_path, fault, way_out
):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    record = write(here, "what was made")
    store.faults = [fault] * 999  # a package that is sent away without a region asks for it again and again
    with pytest.raises(DataError, match=way_out):
        artifact.commit_record(here, record)
    store.faults = []
    assert artifact.find(there) is None and artifact.find(here) is None
    artifact.commit_record(here, record)
    assert opened(there) == "what was made"


@pytest.mark.parametrize(("fault", "way_out"), [("ExpiredToken", "renew"), ("AccessDenied", "AWS_PROFILE the right")])
def test_a_record_that_cannot_be_moved_stays_and_the_store_is_named(store, tmp_path, fault, way_out):
    here = machine(store, tmp_path / "here")
    artifact.commit_record(here, write(here, "what was made"))
    before = dict(store.objects)
    store.faults = [fault] * 9
    with pytest.raises(DataError, match=way_out):
        stored_root.move_stored(here, here.with_name("moved"))
    assert store.objects == before


def test_without_credentials_the_variables_are_named(store, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(DataError, match="set AWS_ACCESS_KEY_ID"):
        Objects("s3://bucket/root", store.endpoint).get("a")
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_a_store_whose_answer_is_lost_after_it_wrote_holds_to_conditions(store, monkeypatch):
    does, lost = store.answer, [500]

    def answer(*asked):
        said = does(*asked)
        return (lost.pop(), b"", {}) if lost else said

    monkeypatch.setattr(store, "answer", answer)
    Objects("s3://bucket/root", store.endpoint).check_conditions()
    assert not lost and store.objects == {}


def test_a_store_that_does_not_hold_to_conditions_is_refused(store):
    Objects("s3://bucket/root", store.endpoint).check_conditions()
    store.holds_conditions = False
    with pytest.raises(DataError, match="only if there is none, so two jobs could commit"):
        Objects("s3://bucket/root", store.endpoint).check_conditions()
    assert store.objects == {}


def test_a_list_is_one_request_also_where_nothing_is_there(store):
    root, bucket = (Objects(address, store.endpoint) for address in ("s3://bucket/root", "s3://bucket"))
    for key in ("refs/a/p.json", "refs-of-others/b", "ref"):
        root.put(key, b"1")
    store.requests.clear()
    assert root.listed("takedowns") == {} and root.listed("refs").keys() == {"refs/a/p.json"}
    assert root.listed("").keys() == {"refs/a/p.json", "refs-of-others/b", "ref"}
    assert bucket.listed("root/refs").keys() == {"root/refs/a/p.json"} and len(bucket.listed("")) == 3
    assert [method for method, _ in store.requests] == ["GET"] * 5


def test_what_is_missing_is_known_from_one_list(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    artifact.commit_record(here, write(here, "what was made"))
    root = there.parents[1]
    with stored_root.listed(root):
        store.requests.clear()
        assert artifact.find(there) is not None
        assert [artifact.find(root / "documents" / f"{number:032x}") for number in range(50)] == [None] * 50
    assert len(store.requests) == 1


def test_what_is_set_aside_here_is_not_brought_back(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    artifact.commit_record(here, write(here, "what was made"))
    kept = aside(here, "damaged")
    assert artifact.find(here) is None and artifact.find(there) is None
    assert [key.endswith(f"/{kept.name}.json") for key in store.objects if "/records/" in key] == [True]


@pytest.mark.parametrize("is_damaged_there", [False, True])
def test_a_record_that_is_damaged_here_is_brought_again(store, tmp_path, is_damaged_there, caplog):
    here = machine(store, tmp_path / "here")
    artifact.commit_record(here, write(here, "what was made"))
    (here / artifact.ARTIFACT_FILE).write_text("{}")
    if is_damaged_there:
        (key,) = (name for name in store.objects if "/records/" in name)
        store.objects[key] = store.objects[key].replace(b"a.txt", b"b.txt")
        with pytest.raises(artifact.Damaged):
            artifact.find(here)
    else:
        assert opened(here) == "what was made" and "artifact.json was not what was written" in caplog.text


STAGE = """
from training.contract.files.writing import write_text
from training.contract.job import Outcome

def num_ranks(job):
    return 3

def run_rank(job, work, rank):
    with open(job.settings["log"], "a") as log:
        log.write(f"{rank} ")
    write_text(work.path / f"{rank}.txt", f"rank {rank}")
    return {"files": [f"{rank}.txt"]}

def finish(job, work, ranks):
    return Outcome(files=tuple(name for rank in ranks for name in rank["files"]))
"""


def test_ranks_that_one_machine_finished_another_one_commits(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    with importable(tmp_path / "modules", "stored_stage", STAGE):
        stages = {"toy": Stage(name="toy", version="1", module="stored_stage", in_ranks=True)}
        jobs = [job_by_hand("toy", folder, {"log": str(tmp_path / "log")}, ()) for folder in (here, there)]
        run_job(jobs[0], stages, ranks="0,2")
        run_job(jobs[1], stages)
    assert (tmp_path / "log").read_text().split() == ["0", "2", "1"]
    assert [path.name for path in there.glob("*.txt")] == ["1.txt"], "what no stage reads is not brought to commit it"
    made = artifact.find(here)
    assert made is not None and [one["path"] for one in made.record["files"]] == ["0.txt", "1.txt", "2.txt"]
    assert artifact.problems_of(made) == [] and not [key for key in store.objects if "/ranks/" in key]


def test_a_rank_whose_file_the_store_lost_is_made_again(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    with importable(tmp_path / "modules", "stored_stage", STAGE):
        stages = {"toy": Stage(name="toy", version="1", module="stored_stage", in_ranks=True)}
        jobs = [job_by_hand("toy", folder, {"log": str(tmp_path / "log")}, ()) for folder in (here, there)]
        run_job(jobs[0], stages, ranks="0,1,2")
        (key,) = [key for key, data in store.objects.items() if data == b"rank 1"]
        del store.objects[key]
        run_job(jobs[1], stages)
    assert (tmp_path / "log").read_text().split() == ["0", "1", "2", "1"]
    assert artifact.find(here) is not None and store.objects[key] == b"rank 1"


def test_a_plain_folder_asks_for_no_store_in_every_artifact_and_minds_no_file_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "store.json").write_text('{"name": "a shop"}')
    asked: list[Path] = []
    monkeypatch.setattr(stored_root, "_store_named", lambda file: asked.append(file))
    stored_root.stored_root.cache_clear()
    for number in range(100):
        assert artifact.find(tmp_path / "runs" / "documents" / f"{number:032x}") is None
    assert len(asked) <= len(tmp_path.parts) + 2
    monkeypatch.undo()
    stored_root.stored_root.cache_clear()
    assert stored_root.stored_root(tmp_path / "runs") is None
    (tmp_path / "store.json").write_text('{"address": "s3://bucket/root", "endpoint": ""}')
    stored_root.stored_root.cache_clear()
    with pytest.raises(DataError, match="its checksum differs; remove this file"):
        stored_root.stored_root(tmp_path / "runs")


def test_nothing_is_written_outside_of_the_folder_whatever_the_keys_of_a_store(store, tmp_path):
    folder = machine(store, tmp_path / "a" / "b")
    objects_ = Objects("s3://bucket/root", store.endpoint)
    for key in ("refs/documents/p.txt", "refs/documents/binary.json", "refs/documents/../../../../out.json"):
        objects_.put(key, b'\xff{"fingerprint": "../../out"}')
    with stored_root.listed(tmp_path / "a" / "b"):
        pass
    data = b"text"
    sha256 = hashlib.sha256(data).hexdigest()
    objects_.put(f"{PLACE}/files/{sha256}", data)
    assert not stored_root.bring(folder / ".." / ".." / ".." / ".." / "out", sha256)
    assert stored_root.bring(folder / "in", sha256)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert not (tmp_path / "a" / "b" / "refs" / "documents" / "p.txt").exists()


def test_a_machine_that_has_nothing_sees_every_artifact(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    artifact.commit_record(here, write(here, "what was made"))
    aside(here, "replaced")
    again = machine(store, tmp_path / "again")
    artifact.commit_record(again, write(again, "what was made again"))
    assert list(artifacts_under(there.parents[1])) == []
    stored_root.bring_records(there.parents[1])
    assert [one.path for one in artifacts_under(there.parents[1])] == [there]


def test_marks_that_a_slower_writer_left_do_not_outlive_a_commit_that_is_set_aside(store, tmp_path):
    here = machine(store, tmp_path / "here")
    artifact.commit_record(here, write(here, "what was made"))
    stored_root.store_small(here / "ranks" / "00000.json", b"{}")
    aside(here, "replaced")
    assert not [key for key in store.objects if "/ranks/" in key]

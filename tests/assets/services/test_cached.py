"""What may go from this machine's folder of a root in a store, and what stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from assets.services.cached import MAX_VARIABLE, cached, free, make_room, max_bytes
from assets.state.liveness import sign_of_life
from resources.profile import load_profile
from tests.commands import printed
from tests.training.contract.files.test_stored_root import opened, write
from training.contract import artifact
from training.contract.files.objects import Objects
from training.contract.files.stored_root import make_stored_root
from training.contract.job import DataError

LOCAL = load_profile("local")
ONE, OTHER = (f"filtered_documents/{digit * 32}" for digit in "12")


@pytest.fixture
def root(store, tmp_path) -> Path:
    """A root in the store with two artifacts, the first of which was used longer ago."""
    make_stored_root(tmp_path / "root", Objects("s3://bucket/root", store.endpoint))
    for seconds, place in enumerate((ONE, OTHER)):
        folder = tmp_path / "root" / place
        folder.mkdir(parents=True)
        artifact.commit_record(folder, write(folder, f"made for {place}"))
        os.utime(folder / "a.txt", (1e9 + seconds, 1e9 + seconds))
    return tmp_path / "root"


def listed(root: Path) -> list[str]:
    return [str(one.folder.relative_to(root)) for one in cached(root, LOCAL)]


def test_what_the_store_has_goes_and_is_brought_again(root, store):
    before = dict(store.objects)
    assert listed(root) == [ONE, OTHER]
    assert [one.bytes for one in free(root, LOCAL, cached(root, LOCAL))] == [len(f"made for {ONE}")] * 2
    assert not list(root.rglob("*.txt")) and listed(root) == [] and store.objects == before
    assert opened(root / ONE) == f"made for {ONE}"


@pytest.mark.parametrize("lacking", ["file", "size", "record", "link"])
def test_what_the_store_does_not_hold_for_certain_stays(root, store, lacking):
    (key,) = (key for key in store.objects if ONE in key and ("records" if lacking == "record" else "files") in key)
    if lacking == "size":
        store.objects[key] += b"!"
    elif lacking == "link":
        os.replace(root / ONE / "a.txt", root / "elsewhere.txt")
        (root / ONE / "a.txt").symlink_to(root / "elsewhere.txt")
    else:
        del store.objects[key]
    assert listed(root) == [OTHER]


def test_what_is_unfinished_stays(root):
    (root / ONE / artifact.ARTIFACT_FILE).unlink()
    assert listed(root) == [OTHER]


def job_at_work(root: Path) -> Path:
    """Write the job of a third artifact, which reads the first; return the sign of life of the run that watches it."""
    folder = root / f"document_signatures/{'3' * 32}"
    folder.mkdir(parents=True)
    inputs = [{"asset": "filtered_documents", "fingerprint": Path(ONE).name}]
    (folder / "job.json").write_text(json.dumps({"inputs": inputs}))
    return folder / "watchers" / "run.json"


WATCHER = json.dumps({"run_id": "0123456789", "host": "here", "pid": 1})


def test_what_a_job_at_work_reads_stays_also_if_it_began_meanwhile(root):
    found = cached(root, LOCAL)
    with sign_of_life(job_at_work(root), WATCHER):
        assert listed(root) == [OTHER]
        assert [one.folder for one in free(root, LOCAL, found)] == [root / OTHER]
    assert listed(root) == [ONE]


@pytest.mark.parametrize(("over_bytes", "left"), [(0, [ONE, OTHER]), (1, [OTHER]), (10**6, [])])
def test_room_is_made_up_to_the_limit_by_what_was_used_longest_ago(root, monkeypatch, over_bytes, left):
    here = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    monkeypatch.setenv(MAX_VARIABLE, str(max(1, here - over_bytes) / 1e9))
    make_room(root, LOCAL)
    assert listed(root) == left


def test_a_store_that_refuses_ends_no_run(root, store, monkeypatch, caplog):
    monkeypatch.setenv(MAX_VARIABLE, "1e-9")
    store.faults = [403] * 9
    make_room(root, LOCAL)
    assert "no room could be made" in caplog.text and list(root.rglob("a.txt"))


def test_without_a_limit_or_below_it_the_store_is_asked_nothing(root, store, monkeypatch):
    store.requests.clear()
    make_room(root, LOCAL)
    monkeypatch.setenv(MAX_VARIABLE, "1")
    make_room(root, LOCAL)
    assert store.requests == []


@pytest.mark.parametrize("text", ["ten", "0", "-1", "nan"])
def test_a_limit_that_is_no_number_is_refused(monkeypatch, text):
    monkeypatch.setenv(MAX_VARIABLE, text)
    with pytest.raises(DataError, match="expected a number of gigabytes above 0"):
        max_bytes()


def test_gc_frees_this_machine_and_removes_nothing_in_the_store(root, store, monkeypatch, capsys):
    before = dict(store.objects)
    for yes in ((), ("--yes",)):
        code, answer, _ = printed(monkeypatch, capsys, "gc", "--root", str(root), *yes)
        assert code == 0 and "filtered_documents/111111111111  in the store too: 1 file\n" in answer
        assert "kept: everything in s3://bucket/root, where nothing is removed\n" in answer
        assert answer.endswith("2 removed, 120 bytes\n" if yes else "2 can be removed by --yes, 120 bytes\n")
        assert bool(list(root.rglob("*.txt"))) == (not yes)
    assert store.objects == before

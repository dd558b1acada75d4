"""A takedown of a root in a store: no words are left in it, and other machines read what it made of files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from assets.answers.takedown.erasing import grams_file
from assets.answers.takedown.report import finish, markdown_of
from assets.answers.takedown.stored import AT_WORK, whole
from assets.services.root import root_folder
from assets.state.tombstones import Tombstone, append, erased_by, is_masked, read_tombstones
from resources.tracking.reports import Tracking
from tests.assets.answers.takedown.test_erasing import HARMLESS, SECRET, WANTED
from tests.cluster.minis3 import MiniS3
from training.contract.artifact import commit_record, damaged_files, digest_of_files, find, manifest, write_json
from training.contract.files.objects import Objects
from training.contract.files.stored_root import bring_records, make_stored_root, not_stored, store_files
from training.contract.files.stored_takedowns import bring_takedowns
from training.contract.files.writing import sealed_text, this_process
from training.contract.job import DataError
from training.data.words.ngrams import Hashes

PLACE = "base_model/" + "a" * 32
UNFINISHED = "base_model/" + "b" * 32


def machine(store: MiniS3, folder: Path) -> Path:
    """Return another machine's folder of the root."""
    make_stored_root(folder, Objects("s3://bucket/r", store.endpoint))
    return folder


def made(root: Path, name: str = PLACE) -> None:
    """Commit an artifact with the words in a file and in its record."""
    folder = root / name
    folder.mkdir(parents=True)
    write_json(folder / "samples.json", [SECRET, HARMLESS])
    write_json(folder / "other.json", [HARMLESS])
    files = manifest(folder, ["samples.json", "other.json"])
    store_files(folder, files)
    notes = {"nearest": [{"text": SECRET}]}
    fields = {"asset": "base_model", "fingerprint": folder.name, "partition": "r"}
    commit_record(folder, fields | {"files": files, "digest": digest_of_files(files), "inputs": [], "notes": notes})


def asked(root: Path, words: Hashes = WANTED) -> None:
    """Write a tombstone whose words are known, as the command does before it erases."""
    number = len(read_tombstones(root)) + 1
    append(root, Tombstone(number=number, time="2026-01-01T00:00:00", reason="asked", entries=()))
    write_json(grams_file(root, number).with_suffix(".json"), {"runs_elsewhere": 0, "in_other_sources": []})
    np.save(grams_file(root, number), words)


def finished(root: Path) -> dict:
    return finish(root, tracking=Tracking("", root, in_background=False), say=lambda line: None)


def words_in(store: MiniS3) -> list[str]:
    return [key for key, data in store.objects.items() if b"silver spoons" in data]


def test_no_object_has_the_words_and_other_machines_read_the_new_files(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    made(here)
    (here / UNFINISHED).mkdir(parents=True)
    write_json(here / UNFINISHED / "samples.json", [SECRET])
    store_files(here / UNFINISHED, manifest(here / UNFINISHED, ["samples.json"]))
    store.objects[f"bucket/r/{UNFINISHED}/written/log.txt/00000-a"] = SECRET.encode()
    bring_records(there)
    assert find(there / PLACE).file("samples.json").exists() and len(words_in(store)) == 4
    store.keeps_versions = True
    asked(here)
    report = finished(here)
    assert report["proof"]["verdict"] == "proved" and words_in(store) == []
    assert (report["store"]["address"], report["store"]["objects"]) == ("s3://bucket/r", 9)
    assert "and in the 9 objects (" in "\n".join(markdown_of(report)) and not any(
        UNFINISHED in key for key in store.objects
    )
    assert any("earlier versions of objects that the bucket keeps" in one for one in report["unreachable"])
    assert not read_tombstones(there)
    bring_takedowns(there)
    assert len(read_tombstones(there)) == 1 and not (there / PLACE / "samples.json").exists()
    for root in (there, machine(store, tmp_path / "third")):
        bring_takedowns(root)
        again = find(root / PLACE)
        assert again is not None and not damaged_files(again) and SECRET not in str(again.record)
        assert "spoons under" not in again.file("samples.json").read_text() and erased_by(again)[1] == []
        entries = again.record["files"]
        assert not_stored(root / PLACE, entries) == [] and is_masked(again, again.record["replaces"][0])


def test_a_strangers_object_with_the_words_is_named_and_nothing_is_proved(store, tmp_path):
    here = machine(store, tmp_path / "here")
    made(here)
    store.objects["bucket/r/notes.txt"] = SECRET.encode()
    asked(here)
    report = finished(here)
    assert report["proof"]["verdict"] == "not proved" and words_in(store) == ["bucket/r/notes.txt"]
    assert [one["path"] for one in report["proof"]["hits"]] == ["s3://bucket/r/notes.txt"]
    del store.objects["bucket/r/notes.txt"]
    assert finished(here)["proof"]["verdict"] == "proved"


def test_an_object_that_is_not_what_was_written_is_named(store, tmp_path):
    here = machine(store, tmp_path / "here")
    made(here)
    (key,) = [key for key in store.objects if store.objects[key] == (here / PLACE / "other.json").read_bytes()]
    store.objects[key] = b"of somebody"
    asked(here)
    (left,) = finished(here)["proof"]["not_read"]
    assert left["path"] == f"s3://{key}" and "is not what was written" in left["why"]


def test_of_a_damaged_record_nothing_is_removed_and_nothing_is_proved(store, tmp_path):
    here = machine(store, tmp_path / "here")
    made(here)
    key, before = f"bucket/r/records/{PLACE}.json", len(store.objects)
    store.objects[key] = store.objects[key].replace(b"samples", b"Samples")
    asked(there := machine(store, tmp_path / "there"))
    report = finished(there)
    assert report["proof"]["verdict"] == "not proved" and len([one for one in store.objects if PLACE in one]) == before
    assert any(one["path"] == f"s3://{key}" and "is damaged" in one["why"] for one in report["proof"]["not_read"])
    del store.objects[key]
    shutil.rmtree(there / PLACE)
    assert finished(there)["proof"]["verdict"] == "proved" and words_in(store) == []


@pytest.mark.parametrize("requests", [5, 12, 18, 30])
def test_what_a_store_that_went_down_left_is_done_by_the_next_command_on_any_machine(store, tmp_path, requests):
    here = machine(store, tmp_path / "here")
    made(here)
    asked(here)
    store.faults = [0] * requests + [503] * 60
    with pytest.raises((OSError, DataError), match="given up"):
        finished(here)
    store.faults = []
    has_words = any("grams.npy" in key for key in store.objects)
    there = machine(store, tmp_path / "there") if has_words else here
    with whole(there, alone=True, say=print):
        report = finished(there)
    assert report["proof"]["is_proved"] and words_in(store) == []
    bring_takedowns(third := machine(store, tmp_path / "third"))
    again = find(third / PLACE)
    assert again is not None and not damaged_files(again)


def test_tombstones_that_do_not_go_on_as_those_here_are_refused(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    append(here, Tombstone(number=1, time="2026-01-01", reason="asked", entries=()))
    bring_takedowns(there)
    key = "bucket/r/takedowns/takedowns.jsonl"
    store.objects[key] = store.objects[key].replace(b"asked", b"other")
    with pytest.raises(DataError, match="has other tombstones"):
        bring_takedowns(there)
    del store.objects[key]
    with pytest.raises(DataError, match="has other tombstones"):
        bring_takedowns(there)
    assert read_tombstones(there)[0].reason == "asked"


@pytest.mark.parametrize("key", ["../../outside.json", "erased/../../outside.json", "takedowns.lock", "a/b.json"])
def test_no_key_of_an_object_writes_another_file(store, tmp_path, key):
    here = machine(store, tmp_path / "here" / "deep")
    before = sorted(tmp_path.rglob("*"))
    store.objects[f"bucket/r/takedowns/{key}"] = b"{}"
    bring_takedowns(here)
    assert sorted(tmp_path.rglob("*")) == before


def test_one_machine_withdraws_at_a_time(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    with whole(here, alone=True, say=print):
        with pytest.raises(DataError, match="a `pedigree takedown` is at work on"), whole(there, alone=True, say=print):
            pass
        with whole(there, alone=False, say=print):
            pass
    of_ended = this_process().rpartition("-")[0] + "-1"
    ended = sealed_text({"process": of_ended, "host": "h", "time": "t"})
    store.objects[f"bucket/r/{AT_WORK}"] = ended.encode()
    with whole(there, alone=True, say=print):
        pass
    assert store.objects == {}


def test_what_does_not_fit_on_the_disk_is_refused_before_anything_changes(store, tmp_path, monkeypatch):
    made(machine(store, tmp_path / "here"))
    there, before = machine(store, tmp_path / "there"), dict(store.objects)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(DataError, match=r"MB of it do not fit into"), whole(there, alone=True, say=print):
        pass
    assert store.objects == before


def test_services_start_while_the_store_is_down(store, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PEDIGREE_CACHE", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    folder = root_folder("s3://bucket/r", "--root")
    store.faults = [503] * 3
    assert root_folder("s3://bucket/r", "--root") == folder
    assert "what was withdrawn elsewhere is not known" in caplog.text

"""The state of a training under way, in its root's store: whole or not at all, and only what is newer than here."""

from __future__ import annotations

import logging

import pytest

from tests.training.contract.files.test_stored_root import PLACE, machine
from training.contract.artifact import checkpoint_step, write_json, write_text
from training.contract.files.objects import Objects
from training.contract.files.writing import sealed_text
from training.contract.stored_state import StateSender, bring_state, forget_state, saved_step, store_state


def trained_to(folder, step):
    """Write what a training leaves that has made its checkpoints, the last one of this step."""
    scratch = folder / "scratch"
    for one in (step - 1, step):
        write_text(scratch / "checkpoints" / f"step-{one:08d}" / "tensors", f"weights of {one}")
    write_text(scratch / "checkpoints" / f".step-{step + 1:08d}.tmp" / "tensors", "half a")
    write_json(scratch / "numerics" / "00000-00000.json", {"step": 0})


def files_in(folder):
    return {
        path.relative_to(folder / "scratch").as_posix(): path.read_text()
        for path in (folder / "scratch").rglob("*")
        if path.is_file()
    }


STORED = {"checkpoints/step-00000007/tensors": "weightsof7", "numerics/00000-00000.json": '{"step":0}'}


def test_another_machine_goes_on_from_the_checkpoint_that_was_stored_last(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    bring_state(there)
    assert checkpoint_step(there) is None and saved_step(there) is None
    with StateSender(here) as sender:
        for step in (5, 7):
            trained_to(here, step)
            sender.send(step)
    trained_to(there, 3)
    assert (checkpoint_step(there), saved_step(there)) == (3, 7)
    bring_state(there)
    assert {name: "".join(text.split()) for name, text in files_in(there).items()} == STORED
    assert len([key for key in store.objects if "/state/" in key]) == 2, "what checkpoints before it had is removed"


def test_what_is_newer_here_stays_and_a_folder_that_is_no_root_in_a_store_asks_for_nothing(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    trained_to(here, 7)
    store_state(here, 7)
    trained_to(there, 7)
    (there / "scratch" / "checkpoints" / "step-00000007" / "tensors").write_text("my own")
    bring_state(there)
    assert files_in(there)["checkpoints/step-00000007/tensors"] == "my own"
    plain = tmp_path / "plain" / PLACE
    plain.mkdir(parents=True)
    with StateSender(plain) as sender:
        sender.send(1)
    bring_state(plain)
    forget_state(plain)
    assert list(plain.iterdir()) == []


def test_a_list_that_grows_while_it_is_sent_is_stored_as_it_was(store, tmp_path, monkeypatch):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    trained_to(here, 7)
    steps, put_file = here / "scratch" / "steps.jsonl", Objects.put_file
    write_text(steps, "6\n")

    def put(*args):
        with open(steps, "a") as stream:
            stream.write("7\n")
        put_file(*args)

    monkeypatch.setattr(Objects, "put_file", put)
    store_state(here, 7)
    bring_state(there)
    assert checkpoint_step(there) == 7 and files_in(there)["steps.jsonl"] == "6\n"


@pytest.mark.parametrize("damage", ["names", "gone", "other", "outside"])
def test_a_state_that_is_not_whole_is_not_used(store, tmp_path, damage, caplog):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    trained_to(here, 7)
    store_state(here, 7)
    (names,) = (key for key in store.objects if key.endswith("state.json"))
    (weights,) = (key for key, data in store.objects.items() if data == b"weights of 7")
    if damage == "names":
        store.objects[names] = store.objects[names].replace(b"00000007", b"00000008")
    elif damage == "gone":
        del store.objects[weights]
    elif damage == "other":
        store.objects[weights] = b"weights of 8"
    else:
        entry = {"path": "scratch/../../outside", "bytes": 12, "sha256": weights.rpartition("/")[2]}
        store.objects[names] = sealed_text({"step": 7, "files": [entry]}).encode()
    with caplog.at_level(logging.WARNING):
        bring_state(there)
    assert "is not used" in caplog.text
    assert files_in(there) == {}
    assert not (there.parent / "outside").exists()


def test_a_writer_that_is_killed_before_the_names_leaves_what_was_stored_before(store, tmp_path, monkeypatch):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    trained_to(here, 7)
    store_state(here, 7)
    trained_to(here, 9)
    put = Objects.put
    monkeypatch.setattr(Objects, "put", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store_state(here, 9)
    monkeypatch.setattr(Objects, "put", put)
    bring_state(there)
    assert checkpoint_step(there) == 7


def test_the_state_of_a_committed_artifact_is_removed_and_of_another_one_stays(store, tmp_path):
    here = machine(store, tmp_path / "here")
    other = here.parent / "fedcba9876543210fedcba9876543210"
    for folder in (here, other):
        trained_to(folder, 7)
        store_state(folder, 7)
    forget_state(here)
    assert {key.split("/")[-3 if "/state/" in key else -2] for key in store.objects if "state" in key} == {other.name}

"""Notes that processes leave for each other: the same in a folder and in a store."""

from __future__ import annotations

import pytest

from tests.training.contract.files.test_stored_root import machine
from training.contract.files.notes import FolderNotes, StoredNotes, notes_in
from training.contract.files.objects import Objects


@pytest.fixture(params=["folder", "store"])
def place(request, store, tmp_path):
    folder = machine(store, tmp_path / "root") if request.param == "store" else tmp_path
    notes = notes_in(folder / "notes")
    assert isinstance(notes, StoredNotes if request.param == "store" else FolderNotes)
    return notes


def test_a_note_is_created_once_and_written_as_often_as_wanted(place):
    assert place.create("a", "first") and not place.create("a", "other") and place.read("a") == "first"
    place.write("b", "works")
    place.write("b", "ended")
    assert (place.read("b"), place.read("c"), sorted(place.names())) == ("ended", "", ["a", "b"])


def test_a_note_whose_answer_was_lost_is_its_writers(store, tmp_path, monkeypatch):
    notes = notes_in(machine(store, tmp_path / "root") / "notes")
    monkeypatch.setattr(Objects, "create", lambda objects, key, data: objects.put(key, data) is not None)
    assert notes.create("a", "8_0.0.beat")

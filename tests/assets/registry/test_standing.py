"""What is looked at before a promotion, of a root in a store: nothing is brought for a look at names and sizes."""

from __future__ import annotations

import pytest

from assets.registry.standing import looked_over
from tests.training.contract.files.test_stored_root import machine, write
from training.contract import artifact


@pytest.fixture
def made(store, tmp_path) -> artifact.Artifact:
    """An artifact of another machine, of which this one has the record."""
    here = machine(store, tmp_path / "here")
    artifact.commit_record(here, write(here, "what was made"))
    found = artifact.find(machine(store, tmp_path / "there"))
    assert found is not None
    return found


def test_a_file_that_only_the_store_has_is_looked_for_and_not_brought(store, made):
    store.requests.clear()
    assert looked_over(made) == [] and not (made.path / "a.txt").exists()
    assert len(store.requests) == 1, "one list"
    artifact.write_text(made.path / "a.txt", "what was made")
    store.requests.clear()
    assert looked_over(made) == [] and store.requests == []


def test_a_folder_whose_files_were_freed_is_not_foreign(store, tmp_path):
    here = machine(store, tmp_path / "here")
    (here / "archives").mkdir()
    artifact.commit_record(here, write(here, "what was made", "archives/a.txt"))
    made = artifact.find(here)
    assert made is not None and looked_over(made) == []
    (here / "archives" / "a.txt").unlink()
    assert looked_over(made) == [] and (here / "archives").exists()


def test_what_the_store_lacks_what_is_short_there_and_what_lies_beside_it_here_are_named(store, made):
    (key,) = (name for name in store.objects if "/files/" in name)
    store.objects[key] = b"short"
    assert "a.txt is missing or of another size there" in looked_over(made)[0]
    del store.objects[key]
    (made.path / "b.txt").write_text("mine")
    assert [line.partition(": ")[2].split(";")[0] for line in looked_over(made)] == [
        "a.txt is missing or of another size there",
        "is not in the manifest",
    ]


def test_a_file_that_a_plain_folder_lacks_is_missing(tmp_path):
    folder = tmp_path / "documents" / ("0" * 32)
    folder.mkdir(parents=True)
    artifact.commit_record(folder, write(folder, "what was made"))
    made = artifact.find(folder)
    assert made is not None and looked_over(made) == []
    (folder / "a.txt").unlink()
    assert looked_over(made) == [f"{folder / 'a.txt'}: missing"]

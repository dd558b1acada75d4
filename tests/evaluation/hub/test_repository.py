"""What an export reads of a model: its files, from the root's store if they are not here, against their checksums."""

from __future__ import annotations

import pytest

from evaluation.hub.repository import checked_files
from tests.training.contract.files.test_stored_root import machine, write
from training.contract import artifact
from training.contract.job import DataError


def test_a_model_that_only_the_store_has_is_brought_and_one_that_was_changed_is_refused(store, tmp_path):
    here, there = machine(store, tmp_path / "here"), machine(store, tmp_path / "there")
    (here / "model").mkdir()
    artifact.commit_record(here, write(here, "{}", "model/config.json"))
    made = artifact.find(there)
    assert made is not None
    assert [name for name, _ in checked_files(made)] == ["config.json"]
    assert (there / "model" / "config.json").read_text() == "{}"
    (there / "model" / "config.json").write_text("[]")
    with pytest.raises(DataError, match="its checksum is not that of the record"):
        checked_files(made)
    (there / "model" / "config.json").unlink()
    store.objects.clear()
    with pytest.raises(DataError, match="its checksum is not that of the record"):
        checked_files(made)

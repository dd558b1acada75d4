"""Laying a model out for a hub, from an artifact made by hand. tests/end_to_end/test_chain.py loads a real one."""

from __future__ import annotations

import json

import pytest

from evaluation.hub import export_model
from tests.evaluation.conftest import commit
from training.artifact import find
from training.job import DataError


@pytest.fixture
def parts(tmp_path):
    for place, text in {
        "model/model/weights": "1 2 3",
        "model/trained.json": "{}",
        "card/README.md": "# A model",
    }.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    for folder, asset in (("model", "aligned_model"), ("card", "model_card")):
        commit(tmp_path / folder, asset)
    return find(tmp_path / "model"), find(tmp_path / "card")


def test_a_model_is_laid_out_with_its_card_and_its_origin_alone(parts, tmp_path):
    model, card = parts
    names = export_model(model, card, (), ("mine://rows",), tmp_path / "out")
    assert sorted(names) == ["LICENCES.md", "README.md", "pedigree.json", "weights"]
    origin = json.loads((tmp_path / "out" / "pedigree.json").read_text())
    assert (origin["digest"], origin["card"]) == (model.digest, card.digest)
    assert "mine://rows" in (tmp_path / "out" / "LICENCES.md").read_text()


def test_a_file_that_is_not_the_records_is_not_laid_out(parts, tmp_path):
    (tmp_path / "model" / "model" / "weights").write_text("1 2 4")
    with pytest.raises(DataError, match="model/weights: its checksum is not that of the record"):
        export_model(*parts, (), (), tmp_path / "out")

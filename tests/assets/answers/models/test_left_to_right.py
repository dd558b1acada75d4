"""What writes, scores or exports a text from left to right refuses a model that sees ahead, by its name."""

from __future__ import annotations

import json

import pytest

from assets.answers.models.export import export
from assets.answers.models.outside import check_left_to_right
from assets.state.compare import compare
from resources.tracking.reports import Tracking
from tests.examples import example
from training.contract.job import DataError


def test_a_model_that_no_class_of_transformers_runs_is_neither_asked_nor_served(tmp_path):
    for kind in ("qwen3", "pedigree_decoder"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps({"model_type": kind}))
    check_left_to_right(tmp_path / "qwen3")
    with pytest.raises(DataError, match=r"pedigree_decoder, a model that sees later tokens.* it answers nothing"):
        check_left_to_right(tmp_path / "pedigree_decoder")


def test_a_model_that_sees_ahead_is_not_exported_before_it_is_made_or_later(tmp_path):
    comparison = compare(example("kitchen-masked"), tmp_path)
    with pytest.raises(DataError, match=r"export: base_model sees later tokens, by pretrain\.objective masked"):
        export(comparison, "", tmp_path / "out", tracking=Tracking("", tmp_path))
    with pytest.raises(DataError, match=r"decontaminated_documents .* is missing under"):
        export(comparison, "decontaminated_documents", tmp_path / "out", tracking=Tracking("", tmp_path))

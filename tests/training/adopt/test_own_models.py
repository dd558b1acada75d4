"""Models that people download go through the stages; what cannot be done with it is refused by name."""

from __future__ import annotations

import pytest

from tests.own_models import MODELS, cells
from training.pretrain.models import families
from training.pretrain.models.borrowed import BORROWED

# Families of this project have tests of their own (tests/training/posttrain/sft/test_sft_of_families.py).
WITH_ADAPTERS = ("GPT-2", "Pythia")  # layers of its own with tied embeddings, and a head of its own name
TRIED = [model for model, given in MODELS.items() if given["kind"] in BORROWED or given.get("pieces")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", TRIED)
def test_a_model_is_adopted_tuned_aligned_scored_asked_and_exported(model, tmp_path, monkeypatch):
    monkeypatch.setattr(families, "_named", {})  # where other tests name a family from outside: granite
    without = ("grpo",) if model in WITH_ADAPTERS else ("grpo", "adapters")
    found, kind, pieces = cells(model, tmp_path, without=without), MODELS[model]["kind"], MODELS[model].get("pieces")
    refused = dict.fromkeys(
        ("several shards", "pretrain further") if kind in BORROWED else (),
        f"'{kind}' is run by transformers' own class alone",
    )
    refused |= {"pretrain further": "not byte-level"} if pieces else {}
    assert found == {column: found[column] if column in refused else "ok" for column in found}
    for column, said in refused.items():
        assert said in found[column], found

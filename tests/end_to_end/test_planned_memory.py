"""What `pedigree plan` predicts of memory is what the small kitchen's stages took."""

from __future__ import annotations

import json

from tests.commands import said
from tests.small_kitchen import RECIPES


def test_what_is_predicted_is_what_each_model_took(monkeypatch, capsys, first, untouched):
    """The models are tiny, so that most of it is libraries."""
    recipe = str(RECIPES / "kitchen-small.yaml")
    _, answer, _ = said(monkeypatch, capsys, "plan", recipe, "--root", str(untouched), "--json")
    memory = {one["asset"]: one["memory"] for one in json.loads(answer)["models"]}
    trained = {"base_model", "sft_model", "reward_model", "aligned_model"}
    assert memory.keys() == trained | {"model_scores", "alignment_rewards"}
    for asset, one in memory.items():
        assert 0.8 < one["measured_peak_bytes"] / one["peak_bytes"] < 1.25, asset

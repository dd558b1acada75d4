"""The comparison of objectives at a size for tests: every model has its figures, and the same tokens are asked for."""

from __future__ import annotations

import numpy as np

from benchmarks import objectives
from tests.training.pretrain import tiny

SHAPE = {"width": 16, "layers": 1, "heads": 2, "kv_heads": 2, "mlp_width": 32}


def test_each_objective_is_scored_beside_the_causal_model_on_the_same_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(objectives, "LENGTH", 32)
    texts = [tiny.sentence(number, words=20) for number in range(40)]
    labelled = [f"{text} {number % 2}" for number, text in enumerate(texts)], [str(n % 2) for n in range(40)]
    found = objectives.compared(texts, labelled, tmp_path, vocabulary=320, steps=6, shape=SHAPE)
    assert list(found) == list(objectives.KINDS)
    named = {kind: [name for name in objectives.HEADS if name in one] for kind, one in found.items()}
    assert named == {
        "causal": ["hidden_tokens", "pseudo_perplexity", "continuation", "probe"],
        "masked": ["hidden_tokens", "pseudo_perplexity", "probe"],
        "prefix": ["continuation", "probe"],
        "span_corruption": ["exact_spans", "probe"],
    }
    models = {kind: objectives.OwnModel(tmp_path / kind) for kind in ("causal", "masked", "prefix")}
    for kind, unit in (("masked", "targets"), ("prefix", "bytes")):
        sums = [
            [getattr(one, unit) for one in objectives._summed(models[name], texts, kind, from_before=before).sums]
            for name, before in (("causal", True), (kind, False))
        ]
        assert sums[0] == sums[1] and np.sum(sums[0]) > 0

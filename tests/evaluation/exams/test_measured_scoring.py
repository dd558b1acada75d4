"""What the code of scoring holds on tensors without content, beside the closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluation.exams.measured import measured
from tests.training.pretrain.test_measured import SHAPE
from training.contract.run_settings import RunSettings
from training.pretrain.capacity.needs import TOLERANCE, Tuning, scoring_bytes

SHORT, LONG = replace(SHAPE, max_length=1024), replace(SHAPE, max_length=8192)
FEW_WORDS = replace(SHAPE, max_length=2048, vocab_size=8192, tied_embeddings=True)
SHARED = {"processes": 4, "shard": 4}
# By name: the shape, the rows of a batch, and the layout; whether weights stay gathered while answers are drawn.
OTHER_SCORINGS = {
    "long rows": (LONG, 4, {}, False),
    "few words": (FEW_WORDS, 32, {}, False),
    "whole in each of two processes": (SHORT, 8, {"processes": 2}, False),
    "shared": (SHORT, 8, SHARED, False),
    "shared by two nodes, gathered": (SHORT, 8, {"nodes": 2, "processes": 4, "shard": 8}, True),
}


def check(shape, rows, layout, gathers):
    run = RunSettings(**layout)
    stated = scoring_bytes(Tuning.scored(shape, shard=run.shard, rows=rows), gathers=gathers)
    found = measured({"batch_size": rows, "gathers": gathers}, shape, run)
    ratios = {name: found[name] / sum(parts.values()) for name, parts in stated.items()}
    assert {name: ratio for name, ratio in ratios.items() if abs(ratio - 1) > TOLERANCE} == {}


def test_every_moment_of_a_scoring_holds_what_is_stated():
    check(SHORT, 8, {}, False)


@pytest.mark.parametrize("given", OTHER_SCORINGS.values(), ids=OTHER_SCORINGS)
def test_every_moment_of_other_scorings_holds_what_is_stated(given):
    check(*given)

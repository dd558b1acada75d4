"""A recorded digest that changed is said by asset and partition, and fails where nothing may change."""

from __future__ import annotations

import json

import pytest

from assets.recipe_folders import SHIPPED
from benchmarks import baseline

MADE = {"tokenizer": {"kitchen": "a"}, "base_model": {"kitchen": "b"}, "model_card": {"kitchen": "c"}}


@pytest.mark.parametrize(
    ("change", "said", "matters"),
    [
        ({}, [], False),
        ({"model_card": {"kitchen": "x"}}, ["kitchen: model_card [kitchen]: c -> x"], False),
        ({"tokenizer": {"kitchen": "x"}}, ["kitchen: tokenizer [kitchen]: a -> x"], True),
        ({"base_model": {}}, ["kitchen: base_model [kitchen]: b -> not made"], True),
        ({"sft_model": {"kitchen": "d"}}, ["kitchen: sft_model [kitchen]: not recorded -> d"], True),
    ],
)
def test_a_digest_that_changed_is_said_and_counts_up_to_the_scores(change, said, matters):
    found = baseline.differences("kitchen", MADE, MADE | change)
    assert [line for line, _ in found] == said and any(one for _, one in found) == matters


def test_what_was_recorded_is_every_part_with_twenty_losses_that_are_exact():
    recorded = json.loads((baseline.CHECKOUT / "benchmarks" / "baseline.json").read_text("utf-8"))["parts"]
    assert set(recorded) == set(baseline.PARTS)
    assert all((SHIPPED / f"{name}.yaml").exists() for name in ("kitchen", "webdocs"))
    for bits in recorded["steps"].values():
        assert len(bits) == baseline.STEPS + 1
        assert float.fromhex(bits["loss of step 1"]) > float.fromhex(bits["loss of step 20"]) > 0

"""A recorded digest that changed is said by asset and partition, and fails where nothing may change."""

from __future__ import annotations

import pytest

from assets.state.recipe_folders import SHIPPED
from tests import golden

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
    found = golden.differences("kitchen", MADE, MADE | change)
    assert [line for line, _ in found] == said and any(one for _, one in found) == matters


def test_what_was_trained_in_another_class_is_not_compared_and_what_was_not_trained_is():
    before, now = ({**MADE, "numerics": {"base_model": name}} for name in ("a machine", "another"))
    changed = now | {"base_model": {"kitchen": "x"}}
    ((line, matters),) = golden.differences("kitchen", before, changed)
    assert line == "kitchen: base_model: not compared, recorded in another numerics class" and not matters
    ((line, matters),) = golden.differences("kitchen", before, before | {"base_model": {"kitchen": "x"}})
    assert line.endswith("b -> x") and matters
    found = golden.differences("kitchen", before, changed | {"tokenizer": {"kitchen": "x"}})
    assert [matters for _, matters in found] == [False, True]


def test_what_was_recorded_is_every_part_with_twenty_losses_that_are_exact():
    recorded = golden.read_record()
    assert set(recorded) == set(golden.PARTS)
    assert all((SHIPPED / f"{name}.yaml").exists() for name in ("kitchen", "webdocs"))
    assert {*recorded["kitchen-small"]["numerics"]} == {*golden.TRAINED}
    steps = {name: bits for name, bits in recorded["steps"].items() if name != "numerics"}
    assert steps.keys() == recorded["steps"]["numerics"].keys()
    for bits in steps.values():
        assert len(bits) == golden.STEPS + 1
        assert float.fromhex(bits["loss of step 1"]) > float.fromhex(bits["loss of step 20"]) > 0

"""Names of kept steps, beside paths of recipes and aliases of the registry."""

from __future__ import annotations

import pytest

from assets.answers.trace.kept_step import kept_step, kept_step_lines, last_clean, recipe_and_step
from training.contract.job import DataError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kitchen@step-500", ("kitchen", "step-500")),
        ("recipes/own.yaml@step-5", ("recipes/own.yaml", "step-5")),
        ("kitchen@average", ("kitchen", "average")),
        ("kitchen@sft-step-50", ("kitchen", "sft-step-50")),
        ("kitchen@align-epoch-1", ("kitchen", "align-epoch-1")),
        ("kitchen@long_context-epoch-1", ("kitchen@long_context-epoch-1", "")),
        ("kitchen", ("kitchen", "")),
        ("kitchen@champion", ("kitchen@champion", "")),
        ("models:/kitchen@step-500", ("models:/kitchen@step-500", "")),
    ],
)
def test_a_step_is_named_behind_a_recipe_or_its_path(name, expected):
    assert recipe_and_step(name) == expected


def test_behind_another_name_it_is_left_to_the_registry_and_a_step_that_is_not_kept_is_refused(tmp_path):
    assert kept_step("a-registered-model@step-5", tmp_path) is None
    with pytest.raises(DataError, match=r"kitchen keeps no step-5 \(pretrain.keep\); there are none"):
        kept_step("kitchen@step-5", tmp_path)
    with pytest.raises(DataError, match=r"kitchen averages no steps \(pretrain.keep.average\)"):
        kept_step("kitchen@average", tmp_path)


def steps(**read):
    """Steps of recipes, as an answer has them: by recipe, the steps and whether each had read a page."""
    return [
        {"partition": f"{recipe}@step-{step}", "step": step, "read": has_read}
        for recipe, own in read.items()
        for step, has_read in own.items()
    ]


def test_the_last_clean_step_is_the_highest_that_had_read_nothing():
    found = steps(one={1000: True, 100: False, 400: False, 500: True}, none={5: True}, all={5: False})
    assert last_clean(found) == {"none": None, "all": "all@step-5", "one": "one@step-400"}
    assert list(kept_step_lines(found))[2:4] == [
        "Kept steps of none that had read any of them: 5 of 1",
        "  the last one that had not: none",
    ]
    assert "Kept steps of all that had read any of them: none of 1" in list(kept_step_lines(found))
    assert "Kept steps of one that had read any of them: 500, 1,000 of 4" in list(kept_step_lines(found))
    assert list(kept_step_lines([])) == []


def test_a_step_of_the_long_context_training_is_behind_those_of_pretraining():
    longer = {"partition": "one@long_context-step-2", "step": 2}
    found = [longer | {"read": True}, *steps(one={5: False, 9: False})]
    assert last_clean(found) == {"one": "one@step-9"}
    assert next(kept_step_lines(found)) == "Kept steps of one that had read any of them: long_context-step-2 of 3"
    assert last_clean([longer | {"read": False}, *steps(one={5: False})]) == {"one": "one@long_context-step-2"}

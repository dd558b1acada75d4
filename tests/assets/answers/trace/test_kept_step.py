"""Names of kept steps, beside paths of recipes and aliases of the registry."""

from __future__ import annotations

import pytest

from assets.answers.trace.kept_step import kept_step, recipe_and_step
from training.contract.job import DataError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kitchen@step-500", ("kitchen", "step-500")),
        ("recipes/own.yaml@step-5", ("recipes/own.yaml", "step-5")),
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

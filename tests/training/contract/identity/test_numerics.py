from __future__ import annotations

import pytest

from evaluation.stages import STAGES as EVALUATION_STAGES
from training.contract.identity.numerics import merged
from training.stages import STAGES as TRAINING_STAGES

STAGES = {**TRAINING_STAGES, **EVALUATION_STAGES}


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_names_its_numerics_class_if_and_only_if_torch_decides_its_bytes(name):
    assert STAGES[name].by_a_model == ("torch" in STAGES[name].libraries)


def test_what_changed_between_two_attempts_is_the_list_of_its_values():
    one, other = {"threads": 1, "degrees": {}}, {"threads": 2, "degrees": {}}
    assert merged([one, other, one]) == {"threads": [1, 2], "degrees": {}}
    assert merged([one, one]) == one

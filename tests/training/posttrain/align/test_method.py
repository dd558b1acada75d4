"""What the preference methods declare, and what of it is checked before anything is trained."""

from __future__ import annotations

import pytest

from training.parts import load_part
from training.posttrain.align.method import method_names, method_of, start_gates
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.passed_through import fields_of
from training.records import RecipeError, read_record


@pytest.mark.parametrize("name", method_names())
def test_a_method_says_of_itself_what_it_does(name):
    module, declared = load_part("training.posttrain.methods.*", name), method_of(name)
    assert declared == module.METHOD and callable(module.train)
    assert declared.decides.keys() <= fields_of(declared.config).keys()
    assert (declared.learns_from == "pairs") == (declared.start_gate is not None)
    if declared.start_gate:
        gate = module.start_gate(1e9, 1, 0.1)
        assert gate.name == declared.start_gate in start_gates() and not gate.passed


def test_a_method_without_a_module_is_refused_with_the_methods_that_there_are():
    told = r"^align\.method: 'ppo' is not one of 'dpo', .*'grpo', .*'rloo'; did you mean `[di]po`\?$"
    with pytest.raises(RecipeError, match=told):
        read_record(AlignRecipe, {"method": "ppo"}, where="align")


def test_a_field_that_makes_the_method_is_the_method_s():
    assert AlignRecipe(trl={"loss_type": "sigmoid"}) and AlignRecipe(trl={"loss_type": ["sigmoid"]})
    with pytest.raises(
        RecipeError, match=r"align\.trl: loss_type and use_weighting stay as they are; .* ln 2.*; .* dpo or ipo$"
    ):
        AlignRecipe(trl={"use_weighting": True})


@pytest.mark.parametrize("beta", [0.0, -0.1])
def test_pairs_need_a_beta_above_zero(beta):
    with pytest.raises(RecipeError, match=f"align.beta={beta}; method dpo needs one above 0"):
        AlignRecipe(beta=beta)
    assert AlignRecipe(method="grpo", beta=0.0)


def test_the_losses_on_pairs_are_methods_of_their_own():
    assert AlignRecipe(method="ipo", trl={"loss_type": "ipo"})
    with pytest.raises(RecipeError, match=r"align\.trl: loss_type and use_weighting stay as they are; .* 1/\(4β²\)"):
        AlignRecipe(method="ipo", trl={"loss_type": ["sigmoid"]})

"""What the preference methods declare, and what of it is checked before anything is trained."""

from __future__ import annotations

import math

import pytest

from training.contract.parts.packages import load_part
from training.contract.records import RecipeError, read_record
from training.posttrain.align.initial_loss import Start
from training.posttrain.align.losses import OF_PAIRS, answers_start, pairs_start
from training.posttrain.align.method import method_names, method_of, start_gates
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.passed_through import fields_of


@pytest.mark.parametrize("name", method_names())
def test_a_method_says_of_itself_what_it_does(name):
    module, declared = load_part("training.posttrain.methods.*", name), method_of(name)
    assert declared == module.METHOD and callable(module.train)
    assert declared.decides.keys() <= fields_of(declared.config).keys()
    assert (declared.learns_from != "samples") == bool(declared.start_gates) and set(declared.start_gates) <= {
        *start_gates()
    }
    start = Start(loss=1e9, rows=1, rewards={})
    if declared.learns_from == "pairs" and hasattr(module, "start_gate"):  # orpo's asks for what its trainer computes
        gate = module.start_gate(start, AlignRecipe(method=name))
        assert gate.name in declared.start_gates and not gate.passed


def test_a_method_without_a_module_is_refused_with_the_methods_that_there_are():
    told = r"^align\.method: 'ppo' is not one of 'dpo', .*'rloo', nor .*pedigree\.methods; did you mean `[di]po`\?$"
    with pytest.raises(RecipeError, match=told):
        read_record(AlignRecipe, {"method": "ppo"}, where="align")


def test_a_field_that_makes_the_method_is_the_method_s():
    assert AlignRecipe(trl={"loss_type": "sigmoid"}) and AlignRecipe(trl={"loss_type": ["sigmoid"]})
    with pytest.raises(
        RecipeError,
        match=r"align\.trl: loss_type and use_weighting .* 1/\(4β²\).*; .* orpo$",
    ):
        AlignRecipe(method="ipo", trl={"use_weighting": True})


def test_every_loss_on_pairs_starts_where_its_formula_says():
    for beta in (0.1, 0.5):
        starts = {name: pairs_start({"loss_type": [name], "label_smoothing": 0.2}, beta) for name in OF_PAIRS}
        assert starts == pytest.approx(
            {
                **dict.fromkeys(("sigmoid", "sigmoid_norm", "robust", "aot", "aot_unpaired"), math.log(2)),
                **dict.fromkeys(("hinge", "apo_zero", "apo_down"), 1.0),
                **dict.fromkeys(("nca_pair", "bco_pair"), 2 * math.log(2)),
                "ipo": 1 / (4 * beta**2),
                "sppo_hard": 1 / (2 * beta**2),
                "exo_pair": 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2),
                "discopop": 0.5 * math.log(2) + 0.5,
                "sft": None,
            }
        )
    assert pairs_start({"loss_type": ["hinge", "ipo"], "loss_weights": [0.5, 2.0]}, 0.5) == pytest.approx(2.5)
    assert pairs_start({"use_weighting": True}, 0.1) is None
    assert answers_start({"desirable_weight": 3.0}, 1, 3) == pytest.approx(0.5 * (3 + 3) / 4)


@pytest.mark.parametrize(
    ("trl", "said"),
    [
        ({"loss_type": "hing"}, r"align\.trl\.loss_type\[0\]: 'hing' is not one of .*; did you mean `hinge`"),
        ({"loss_type": ["hinge", "sft"], "loss_weights": [1.0]}, r"loss_weights: 1 weights for 2 losses, hinge, sft"),
        ({"loss_type": "exo_pair"}, r"label_smoothing=0\.0: the loss exo_pair needs one between 0 and 1"),
        ({"loss_type": "robust", "label_smoothing": 0.5}, r"the loss robust needs one between 0 and 0\.5"),
    ],
)
def test_a_loss_that_cannot_be_trained_is_refused_when_the_recipe_is_read(trl, said):
    with pytest.raises(RecipeError, match=said):
        AlignRecipe(trl=trl)


@pytest.mark.parametrize("beta", [0.0, -0.1])
def test_pairs_need_a_beta_above_zero(beta):
    with pytest.raises(RecipeError, match=f"align.beta={beta}; .* above 0"):
        AlignRecipe(beta=beta)
    assert AlignRecipe(method="grpo", beta=0.0)


def test_the_losses_on_pairs_are_methods_of_their_own():
    assert AlignRecipe(method="ipo", trl={"loss_type": "ipo"})
    with pytest.raises(RecipeError, match=r"loss_type and use_weighting"):
        AlignRecipe(method="ipo", trl={"loss_type": ["sigmoid"]})

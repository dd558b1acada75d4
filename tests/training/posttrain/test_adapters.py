"""Every field of peft's LoraConfig that a recipe may set trains, merges, saves and loads, or is refused before."""

from __future__ import annotations

import json

import pytest
import torch

from tests.training.posttrain import tiny
from tests.training.posttrain.conftest import SFT
from training.contract.progress import read_metrics
from training.contract.records import RecipeError
from training.posttrain.adapter_settings import check_adapters, check_matched
from training.posttrain.passed_through import REFUSED, check_passed_through, fields_of
from training.posttrain.reward.settings import RewardRecipe
from training.posttrain.sft.settings import SftRecipe
from training.posttrain.trainer.models import load_model
from training.pretrain.models.shape import ModelConfig

NOT_MERGED = "refused when the recipe is read"
LATER = "refused by the stage before the training"
LAYERS = {"target_modules": ["q_proj"]}
# Fields, and what they come to with tied weights and without: a name of weights that are trained, or a refusal.
CASES = [
    ({"r": 4}, "q_proj", "q_proj"),
    ({"target_modules": ["q_proj"]}, "q_proj", "q_proj"),
    ({"target_modules": ".*q_proj"}, "q_proj", "q_proj"),
    ({"target_modules": ["embed_tokens"]}, NOT_MERGED, "embed_tokens"),
    ({"target_modules": ".*(q_proj|embed_tokens)"}, NOT_MERGED, "embed_tokens"),
    ({"target_modules": ["embed_tokens"], "use_dora": True}, NOT_MERGED, "embed_tokens"),
    ({"target_modules": ["lm_head"]}, NOT_MERGED, NOT_MERGED),
    ({"target_modules": "(.*"}, NOT_MERGED, NOT_MERGED),
    ({"target_modules": ["nothing"]}, NOT_MERGED, NOT_MERGED),
    ({"target_modules": ["norm"]}, LATER, LATER),
    ({"exclude_modules": ["k_proj"]}, "q_proj", "q_proj"),
    ({"exclude_modules": ["k_proj", "c_attn"]}, NOT_MERGED, NOT_MERGED),
    ({"exclude_modules": ".*nothing"}, NOT_MERGED, NOT_MERGED),
    ({"target_modules": ["q_proj", "c_attn"]}, NOT_MERGED, NOT_MERGED),
    ({"modules_to_save": ["nothing"]}, NOT_MERGED, NOT_MERGED),
    ({"rank_pattern": {"nothing": 4}}, NOT_MERGED, NOT_MERGED),
    *(
        ({name: value}, NOT_MERGED, NOT_MERGED)
        for name, value in (("exclude_modules", "(.*"), ("rank_pattern", {"(": 4}))
    ),
    ({"alpha_pattern": {"^nothing": 4}}, NOT_MERGED, NOT_MERGED),
    ({"lora_alpha": 32}, "q_proj", "q_proj"),
    ({"lora_dropout": 0.1}, "q_proj", "q_proj"),
    ({"lora_dropout": 1.5}, NOT_MERGED, NOT_MERGED),
    ({"fan_in_fan_out": True}, NOT_MERGED, NOT_MERGED),
    ({"bias": "all"}, "q_proj", "q_proj"),
    ({"use_rslora": True}, "q_proj", "q_proj"),
    ({"use_dora": True}, "q_proj", "q_proj"),
    ({"velora_config": {}}, "q_proj", "q_proj"),
    ({"modules_to_save": ["lm_head"]}, NOT_MERGED, "lm_head"),
    ({"modules_to_save": ["embed_tokens"]}, NOT_MERGED, "embed_tokens"),
    ({"modules_to_save": ["norm"]}, "norm", "norm"),
    *(({"init_lora_weights": name}, "q_proj", "q_proj") for name in (False, "gaussian", "orthogonal", "olora", "mica")),
    *(({"init_lora_weights": name}, "q_proj", "q_proj") for name in ("pissa", "pissa_niter_4")),
    *(({"init_lora_weights": name}, NOT_MERGED, NOT_MERGED) for name in ("eva", "corda", "loftq", "lora_ga", "none")),
    ({"layers_to_transform": 1}, NOT_MERGED, NOT_MERGED),
    ({"layers_to_transform": 1, **LAYERS}, "q_proj", "q_proj"),
    ({"layers_to_transform": 9, **LAYERS}, NOT_MERGED, NOT_MERGED),
    ({"layers_to_transform": [0], "layers_pattern": "layers", **LAYERS}, "q_proj", "q_proj"),
    ({"layers_pattern": "layers", **LAYERS}, NOT_MERGED, NOT_MERGED),
    ({"rank_pattern": {"q_proj": 4}}, "q_proj", "q_proj"),
    ({"rank_pattern": {"q_proj": 0}}, NOT_MERGED, NOT_MERGED),
    ({"alpha_pattern": {"q_proj": 4}}, "q_proj", "q_proj"),
    ({"trainable_token_indices": [3, 4]}, NOT_MERGED, "embed_tokens"),
    ({"trainable_token_indices": {"embed_tokens": [3]}}, NOT_MERGED, "embed_tokens"),
    ({"trainable_token_indices": {"lm_head": [3]}}, NOT_MERGED, NOT_MERGED),
    ({"trainable_token_indices": [99999]}, NOT_MERGED, LATER),
    ({"lora_bias": True}, NOT_MERGED, NOT_MERGED),
    ({"target_parameters": ["mlp.gate_proj.weight"], **LAYERS}, "gate_proj", "gate_proj"),
    ({"target_parameters": ["q_proj.weight"]}, LATER, LATER),
    ({"target_parameters": ["mlp.nothing.weight"], **LAYERS}, NOT_MERGED, NOT_MERGED),
    *(({"ensure_weight_tying": True, **more}, NOT_MERGED, NOT_MERGED) for more in ({}, LAYERS)),
    *(({name: {}}, NOT_MERGED, NOT_MERGED) for name in ("eva_config", "corda_config", "lora_ga_config", "use_bdlora")),
    *(({name: {}}, NOT_MERGED, NOT_MERGED) for name in ("monteclora_config", "kasa_config")),
]


@pytest.fixture(scope="module")
def roots(chain, tmp_path_factory):
    """Two roots with a base model and conversations: with tied weights, and without."""
    root = tmp_path_factory.mktemp("untied")
    tiny.write_model(root / "base_model" / "model", tied=False)
    tiny.commit(root, "base_model")
    (root / "instruction_data").symlink_to(chain / "instruction_data")
    return {True: chain, False: root}


def recipe_of(peft):
    return SftRecipe(data=(), peft={"r": 2, **peft})


def shape_of(tied):
    """Return the shape of the models in `roots`."""
    sizes = {"width": 32, "layers": 2, "heads": 2, "kv_heads": 1, "mlp_width": 64, "max_length": 256}
    return ModelConfig(**sizes, vocab_size=300, tied_embeddings=tied)


def trained(root, output, peft):
    inputs = tuple(tiny.made(root, asset) for asset in ("base_model", "instruction_data"))
    return tiny.run("sft", output, {"sft": SFT | {"epochs": 1 / 4, "peft": {"r": 2, **peft}}}, inputs)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(("peft", "on_tied", "on_untied"), CASES, ids=str)
def test_adapters_are_trained_merged_saved_and_loaded_or_refused_before(
    roots, tmp_path, peft, on_tied, on_untied, tied
):
    root, expected = roots[tied], on_tied if tied else on_untied
    if expected == NOT_MERGED:
        with pytest.raises(RecipeError, match=r"sft\.peft\."):
            check_passed_through(recipe_of(peft), "SFTConfig", where="sft", shape=shape_of(tied))
    else:
        check_passed_through(recipe_of(peft), "SFTConfig", where="sft", shape=shape_of(tied))
    if expected in (NOT_MERGED, LATER):
        with pytest.raises(RecipeError, match="peft"):
            trained(root, tmp_path / "sft_model", peft)
        assert not list(tmp_path.rglob("adapter*"))
        assert not any("loss" in line for line in read_metrics(tmp_path / "sft_model" / "metrics.jsonl"))
        return
    record = trained(root, tmp_path / "sft_model", peft)
    assert tiny.gate(record, "merged_equals_adapter")["passed"]
    before, after = (load_model(one / "model").state_dict() for one in (root / "base_model", tmp_path / "sft_model"))
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert before.keys() == after.keys() and any(expected in name for name in changed)
    config = json.loads((tmp_path / "sft_model" / "model" / "config.json").read_text())
    assert config["tie_word_embeddings"] is tied


def test_the_cases_have_every_field_that_passes():
    passing = {name for name in fields_of("LoraConfig") if not name.startswith(REFUSED["peft"])}
    tried = {name for peft, *_ in CASES for name in peft}
    assert passing <= tried


def test_a_parameter_is_named_with_its_module_or_alone():
    for name in ("gate_up_proj", "experts.gate_up_proj", "layers.0.mlp.experts.gate_up_proj"):
        check_matched({"target_parameters": [name]}, {"model.layers.0.mlp.experts"}, where="sft.peft")
    with pytest.raises(RecipeError, match="no module 'router"):
        check_matched({"target_parameters": ["router.weight"]}, {"model.layers.0.mlp.experts"}, where="sft.peft")


def test_the_head_of_a_reward_model_is_tied_to_nothing():
    fields = {"target_modules": ["embed_tokens"]}
    check_passed_through(RewardRecipe(peft=fields), "RewardConfig", where="reward", shape=shape_of(True))
    check_adapters(fields, where="sft.peft", tied=None)  # not known where the recipe is read
    with pytest.raises(RecipeError, match=r"sft\.peft\.target_modules=.* so neither can be changed without the other"):
        check_adapters(fields, where="sft.peft", tied=True)


def test_heads_and_embeddings_of_other_names_are_known_too():
    for peft, tied, said in (
        ({"target_modules": ["embed_out"]}, False, "the head takes no adapters"),
        ({"target_modules": ["wte"]}, True, "so neither can be changed without the other; leave wte out"),
    ):
        with pytest.raises(RecipeError, match=said):
            check_adapters(peft, where="sft.peft", tied=tied)


def test_adapters_are_on_disk_when_merging_fails(roots, tmp_path, monkeypatch):
    from peft.tuners.lora import LoraModel

    def fails(self):
        raise RuntimeError("no room")

    monkeypatch.setattr(LoraModel, "merge_and_unload", fails)
    with pytest.raises(RuntimeError, match="no room"):
        trained(roots[True], tmp_path / "sft_model", {})
    assert {path.name for path in (tmp_path / "sft_model").rglob("adapter_*")} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }

"""The modules of a model, read from the source of transformers, are those of the class."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from training.posttrain.model_modules import modules_of
from training.pretrain.models.borrowed import BORROWED
from training.pretrain.models.families import FAMILIES
from training.pretrain.models.shape import ModelConfig

CHOOSING = ("deepseek_v3", "qwen3_moe", "gpt2", "phi")  # by their config, between two modules of one name, or none


@pytest.mark.parametrize("name", [*FAMILIES, *BORROWED])
def test_the_modules_of_a_family_are_those_of_its_class(name, monkeypatch):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, num_hidden_layers=4))
    monkeypatch.setattr("training.posttrain.model_modules.family_of", lambda _: name)
    monkeypatch.setattr("training.posttrain.model_modules.find_family", lambda _: (FAMILIES | BORROWED)[name])
    shape = ModelConfig(vocab_size=9, width=8, layers=4, heads=2, kv_heads=2, mlp_width=8, max_length=8)
    there, found = {one for one, _ in model.named_modules() if one}, modules_of(shape)
    assert there <= found if name in CHOOSING else there == found

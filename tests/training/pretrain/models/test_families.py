"""Families: every shape belongs to one, and comes back from the config.json that its family writes."""

from __future__ import annotations

import dataclasses

import pytest

from training.pretrain.models.account import preset_shape
from training.pretrain.models.config_json import read_config
from training.pretrain.models.export import hugging_face_config
from training.pretrain.models.families import FAMILIES, family_of, inexpressible
from training.pretrain.models.presets import PRESETS, SMALL
from training.pretrain.models.shape import ExpertLayers, ModelConfig

PLAIN = ModelConfig(vocab_size=50, width=32, layers=4, heads=4, kv_heads=2, mlp_width=48, max_length=64)
EXPERTS = ExpertLayers(count=4, active=2, width=16)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "llama"),
        ({"qk_norm": True}, "qwen3"),
        ({"qk_norm": True, "experts": EXPERTS}, "qwen3_moe"),
        ({"experts": EXPERTS}, "qwen3_moe"),
        ({"qk_norm": True, "family": "olmo2"}, "olmo2"),
        ({"qk_norm": True, "window": 8, "window_pattern": ("window", "full"), "family": "olmo3"}, "olmo3"),
    ],
)
def test_every_shape_belongs_to_one_family(fields, name):
    assert family_of(dataclasses.replace(PLAIN, **fields)) == name


@pytest.mark.parametrize("name", PRESETS)
def test_a_published_shape_is_its_family_s_and_comes_back_from_its_config(name):
    shape = preset_shape(name)
    family = next((one for one, family in FAMILIES.items() if name in family.presets), "qwen3" if name in SMALL else "")
    assert family_of(shape) == family and inexpressible(shape) == ()
    assert read_config(hugging_face_config(shape, eos_id=0)) == shape


@pytest.mark.parametrize("pattern", [("window",), ("window", "full"), ("full", "full", "window")])
def test_windows_come_back_from_the_config(pattern):
    shape = dataclasses.replace(PLAIN, qk_norm=True, layers=6, window=8, window_pattern=pattern)
    assert read_config(hugging_face_config(shape, eos_id=0)) == shape


def test_a_shape_that_a_class_cannot_run_says_what_of_it():
    windowed = dataclasses.replace(PLAIN, window=8, window_pattern=("window",), logit_softcap=15.0)
    assert [reason.partition(":")[0] for reason in inexpressible(windowed)] == [
        "logit_softcap",
        "window without qk_norm",
    ]

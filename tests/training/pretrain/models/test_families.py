"""Families: every shape belongs to one, and comes back from the config.json that its family writes."""

from __future__ import annotations

import dataclasses

import pytest

from tests.training.pretrain.shapes import preset_shape
from training.contract.records import RecipeError
from training.pretrain.models.config_json import read_config
from training.pretrain.models.export import hugging_face_config
from training.pretrain.models.families import FAMILIES, family_of, inexpressible
from training.pretrain.models.presets import PRESETS, SMALL
from training.pretrain.models.shape import ExpertLayers, ModelConfig

PLAIN = ModelConfig(vocab_size=50, width=32, layers=4, heads=4, kv_heads=2, mlp_width=48, max_length=64)
EXPERTS = ExpertLayers(count=4, active=2, width=16)
LATENT = {"key_value_rank": 12, "plain_width": 8, "value_width": 10}
DEEPSEEK = {
    "family": "deepseek_v3",
    "kv_heads": 4,
    "experts": dataclasses.replace(EXPERTS, shared=1, balancing="bias"),
    "parts": {"deepseek_v3": LATENT},
}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "llama"),
        ({"window": 8, "window_pattern": ("window",)}, "mistral"),
        ({"window": 8, "window_pattern": ("window", "full")}, "llama"),
        ({"family": "qwen2"}, "qwen2"),
        ({"qk_norm": True}, "qwen3"),
        ({"qk_norm": True, "experts": EXPERTS}, "qwen3_moe"),
        ({"experts": EXPERTS}, "qwen3_moe"),
        ({"qk_norm": True, "family": "olmo2"}, "olmo2"),
        (DEEPSEEK, "deepseek_v3"),
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
    windowed = dataclasses.replace(PLAIN, window=8, window_pattern=("window", "full"), logit_softcap=15.0)
    assert [reason.partition(":")[0] for reason in inexpressible(windowed)] == [
        "logit_softcap",
        "window in some layers without qk_norm",
    ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"parts": {}}, "model.parts.deepseek_v3.key_value_rank: missing"),
        ({"parts": {"deepseek_v3": {**LATENT, "from": "mine:family"}}}, "deepseek_v3.from: .* a part of Pedigree's"),
        ({"parts": {"deepseek_v3": {**LATENT, "rank": 3}}}, "parts.deepseek_v3.rank: unknown"),
        ({"parts": {"deepseek_v3": {**LATENT, "active_groups": 2}}}, "no more active groups than groups"),
        (
            {"parts": {"deepseek_v3": {**LATENT, "groups": 4}}},
            "experts.count=4 in groups=4; equal groups of at least 2",
        ),
        ({"parts": {"deepseek_v3": {**LATENT, "groups": 3}}}, "experts.count=4 in groups=3"),
        ({"kv_heads": 2}, "kv_heads other than heads"),
        ({"qk_norm": True}, "qk_norm; its latent states are normed"),
        ({"window": 8, "window_pattern": ("window",)}, "does not have: window"),
        ({"experts": ExpertLayers()}, "layers without experts"),
        ({"experts": EXPERTS}, r"without shared ones \(experts.shared\); experts.balancing auxiliary; it has a bias"),
    ],
)
def test_a_shape_that_deepseek_v3_does_not_have_is_refused(changed, said):
    with pytest.raises(RecipeError, match=said):
        dataclasses.replace(PLAIN, **{**DEEPSEEK, **changed})


def test_a_token_needs_enough_experts_in_its_groups():
    given = {**DEEPSEEK, "parts": {"deepseek_v3": {**LATENT, "groups": 2}}}
    dataclasses.replace(PLAIN, **given)
    with pytest.raises(RecipeError, match=r"experts\.active=3"):
        dataclasses.replace(PLAIN, **{**given, "experts": dataclasses.replace(given["experts"], active=3)})

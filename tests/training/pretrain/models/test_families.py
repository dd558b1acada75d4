"""Families: every shape belongs to one, and comes back from the config.json that its family writes."""

from __future__ import annotations

import dataclasses

import pytest

from tests.training.pretrain.shapes import preset_shape
from training.contract.records import RecipeError
from training.pretrain.models.config_json import read_config
from training.pretrain.models.export import hugging_face_config
from training.pretrain.models.families import FAMILIES, family_of, inexpressible, is_borrowed
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


def sized(vocab: int, width: int, mlp: int, layers: int, heads: int, **more: object) -> dict[str, object]:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    given = dict(zip(names, (vocab, width, mlp, layers, heads), strict=True))
    return {**given, "max_position_embeddings": 2048, **more}


GPT_2 = {"vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "n_inner": None}


@pytest.mark.parametrize(
    ("name", "published", "parameters"),
    [
        ("gpt2", GPT_2, 124_439_808),
        ("gemma2", sized(256_000, 2304, 9216, 26, 8, num_key_value_heads=4, head_dim=256), 2_614_341_888),
        ("gemma3_text", sized(262_144, 1152, 6912, 26, 4, num_key_value_heads=1, head_dim=256), 999_885_952),
        ("phi", sized(51_200, 2560, 10_240, 32, 32), 2_779_683_840),
        ("phi3", sized(32_064, 3072, 8192, 32, 32), 3_821_079_552),
        ("gpt_neox", sized(50_304, 768, 3072, 12, 12), 162_322_944),
        ("smollm3", sized(128_256, 2048, 11_008, 36, 16, num_key_value_heads=4), 3_075_098_624),
    ],
)
def test_the_weights_of_a_model_of_transformers_are_counted_to_one_in_a_hundred(name, published, parameters):
    shape = read_config({"model_type": name, **published})
    assert is_borrowed(shape) and shape.parameter_count == pytest.approx(parameters, rel=0.01)


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

"""Shapes and presets against published counts, transformers' own classes, and what a recipe may ask for."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from assets.state.recipe_folders import load_recipe
from training.contract.records import RecipeError, read_record
from training.pretrain.models.decoder import Decoder, meta_decoder
from training.pretrain.models.export import hugging_face_config
from training.pretrain.models.families import inexpressible
from training.pretrain.models.presets import PRESETS
from training.pretrain.models.shape import ExpertLayers, ModelConfig, ModelRecipe, RotaryScaling

SMALL = {"vocab_size": 50, "width": 32, "layers": 3, "heads": 4, "kv_heads": 2, "mlp_width": 48, "max_length": 64}
EXPERTS = ExpertLayers(count=4, active=2, width=16)


def shape_of(name: str) -> ModelConfig:
    preset = PRESETS[name]
    return read_record(ModelRecipe, preset.model).shape(vocab_size=preset.vocab_size)


# Written down here and not read from the presets: parameters of the published weight files, a tied head counted once,
# and what their cards and papers print of them (Llama: arXiv 2407.21783 and the cards of meta-llama; Qwen3: arXiv
# 2505.09388, tables 1 and 2, and the cards, which also give the count without embeddings; OLMo 2 and 3,
# Qwen2.5 and Mistral: the safetensors totals and cards), in 10^9.
PUBLISHED = {
    "llama-3.2-1b": (1_235_814_400, 1.23, None),
    "llama-3.2-3b": (3_212_749_824, 3.21, None),
    "llama-3-8b": (8_030_261_248, 8.03, None),
    "llama-3.1-8b": (8_030_261_248, 8.03, None),
    "llama-3-70b": (70_553_706_496, 70.6, None),
    "llama-3.1-70b": (70_553_706_496, 70.6, None),
    "mistral-7b-v0.1": (7_241_732_096, 7.24, None),
    "olmo-2-1b": (1_484_916_736, 1.48, None),
    "olmo-2-7b": (7_298_617_344, 7.3, None),
    "olmo-2-13b": (13_716_198_400, 13.7, None),
    "olmo-2-32b": (32_234_279_936, 32.2, None),
    "olmo-3-7b": (7_298_011_136, 7.3, None),
    "olmo-3-32b": (32_233_522_176, 32.2, None),
    # The paper's table and the card count the files' numbers, which include 14,848 of the routers' biases.
    "deepseek-v3": (671_026_404_352, 671, None),
    "qwen2.5-0.5b": (494_032_768, 0.49, 0.36),
    "qwen2.5-1.5b": (1_543_714_304, 1.54, 1.31),
    "qwen2.5-3b": (3_085_938_688, 3.09, 2.77),
    "qwen2.5-7b": (7_615_616_512, 7.61, 6.53),
    "qwen3-0.6b": (596_049_920, 0.6, 0.44),
    "qwen3-1.7b": (1_720_574_976, 1.7, 1.4),
    "qwen3-4b": (4_022_468_096, 4.0, 3.6),
    "qwen3-8b": (8_190_735_360, 8.2, 6.95),
    "qwen3-14b": (14_768_307_200, 14.8, 13.2),
    "qwen3-32b": (32_762_123_264, 32.8, 31.2),
    "qwen3-30b-a3b": (30_532_122_624, 30.5, 29.9),
    "qwen3-235b-a22b": (235_093_634_560, 235, 234),
}
ACTIVE = {"qwen3-30b-a3b": 3.3, "qwen3-235b-a22b": 22, "deepseek-v3": 37}  # 10^9 for a token, of the same cards


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_counts_to_its_published_number_here_and_in_transformers(name):
    shape = shape_of(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**hugging_face_config(shape, eos_id=0)))
    assert shape.parameter_count == sum(p.numel() for p in model.parameters()) == PRESETS[name].parameters
    if name in PUBLISHED:
        assert shape.parameter_count == PUBLISHED[name][0]
    else:
        assert name in ("1m", "3m", "10m", "30m", "100m", "300m")  # a ladder of our own


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_the_cards_print_is_the_count_in_their_digits(name):
    shape, (_, total, without_embeddings) = shape_of(name), PUBLISHED[name]
    embeddings = shape.vocab_size * shape.width * (1 if shape.tied_embeddings else 2)
    printed = [(shape.parameter_count, total), (shape.parameter_count - embeddings, without_embeddings)]
    printed.append((shape.active_parameter_count, ACTIVE.get(name)))
    for count, said in printed:
        if said is not None:
            digits = len(str(said).partition(".")[2])
            # Within one of the last digit: cards cut as often as they round.
            assert abs(count / 1e9 - said) < 10**-digits, (name, count, said)


def test_deepseek_v3_counts_like_its_published_files_once_the_biases_are_added():
    shape = shape_of("deepseek-v3")
    biases = sum(buffer.numel() for buffer in meta_decoder(shape).buffers())
    assert (biases, shape.parameter_count + biases) == (58 * 256, 671_026_419_200)
    # 248 of 256 experts idle in 58 layers, each 3 · 7168 · 2048.
    assert shape.active_parameter_count == 671_026_404_352 - 58 * 248 * 3 * 7168 * 2048 == 37_552_282_624


def test_the_reading_order_names_files_that_are_there():
    root = Path(__file__).parents[4]
    page = root.joinpath("docs", "pretraining.md").read_text("utf-8").partition("in an evening**")[2]
    said = set(re.findall(r"`([\w/]+\.py)`", page.partition("\n## ")[0]))
    folders = {
        "": "training/pretrain",
        "models/": "training/pretrain/models",
        "families/": "training/pretrain/models/families",
        "losses/": "training/pretrain/losses",
        "optim/": "training/pretrain/optim",
        "stages/": "training/pretrain/stages",
        "order/": "training/order",
    }
    there = {
        f"{label}{file.name}"
        for label, folder in folders.items()
        for file in (root / folder).glob("*.py")
        if file.name != "__init__.py"
    }
    assert len(said) > 10 and said <= there


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_every_field_of_the_recipe(name):
    assert PRESETS[name].model.keys() == {field.name for field in dataclasses.fields(ModelRecipe)}


def test_active_parameters_are_those_that_one_token_meets():
    # Qwen3-30B-A3B: 120 of 128 experts idle in 48 layers, each 3 · 2048 · 768.
    shape = shape_of("qwen3-30b-a3b")
    assert shape.active_parameter_count == 30_532_122_624 - 48 * 120 * 3 * 2048 * 768 == 3_353_032_704


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"qk_norm": True, "head_width": 16},
        {"tied_embeddings": False, "activation": "relu2"},
        {"experts": EXPERTS},
        {"experts": dataclasses.replace(EXPERTS, shared=2, first_layer=1), "activation": "relu2"},
    ],
)
def test_the_count_is_what_the_model_holds(fields):
    config = ModelConfig(**SMALL, **fields)
    with torch.device("meta"):
        assert config.parameter_count == sum(parameter.numel() for parameter in Decoder(config).parameters())


def test_flops_count_what_a_window_leaves_of_the_attention():
    full, windowed = ModelConfig(**SMALL), ModelConfig(**SMALL, window=8, window_pattern=("window", "full"))
    # By hand: 6 · (3 · (3 · 32 · 32 + 3 · 32 · 48) + 50 · 32), and 12 · 32 · 16 positions a layer at length 32.
    assert full.training_flops_per_token(32) == 6 * 24_640 + 3 * 12 * 32 * 16
    # Layers 0 and 2 see 8 · (1 - 8 / 64) = 7 positions.
    assert windowed.training_flops_per_token(32) == 6 * 24_640 + 12 * 32 * (7 + 16 + 7)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"heads": 3}, "width=32 must be a multiple of heads=3"),
        ({"head_width": 5}, "head_width=5; it must be even"),
        ({"kv_heads": 3}, "heads=4 is not a multiple of kv_heads=3"),
        ({"window": 8}, "a window needs a layer"),
        ({"window_pattern": ("window",)}, "a window needs a layer"),
        ({"logit_softcap": -1.0}, "logit_softcap=-1.0"),
    ],
)
def test_a_shape_that_does_not_fit_together_is_refused(fields, said):
    with pytest.raises(RecipeError, match=said):
        ModelConfig(**{**SMALL, **fields})


def test_scalings_and_experts_that_mean_nothing_are_refused():
    with pytest.raises(RecipeError, match="1 without a kind"):
        RotaryScaling(factor=2.0)
    with pytest.raises(RecipeError, match="original_length=0; yarn"):
        RotaryScaling(kind="yarn", factor=2.0)
    with pytest.raises(RecipeError, match=r"active=5 \(1 to count\)"):
        ExpertLayers(count=4, active=5, width=8)


# In a recipe


def recipe_with(tmp_path, text: str):
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: kitchen\nname: mine\n{text}\n")
    return load_recipe(str(path))


def test_a_recipe_may_name_a_preset_and_change_a_field_of_it(tmp_path):
    recipe = recipe_with(tmp_path, "model: {preset: llama-3.1-8b, max_length: 4096}")
    assert recipe.model == dataclasses.replace(read_record(ModelRecipe, PRESETS["llama-3.1-8b"].model), max_length=4096)
    with pytest.raises(RecipeError, match=r"'llama-9' .*'1m', '3m'"):
        recipe_with(tmp_path, "model: {preset: llama-9}")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("{logit_softcap: 30.0}", "logit_softcap: none of the classes caps logits"),
        ("{activation: relu2}", "activation relu2: the classes' MLPs are gated"),
        ("{qk_norm: false, window: 8, window_pattern: [window, full]}", "window in some layers without qk_norm"),
        ("{qk_norm: false, experts: {count: 4, width: 8}}", "experts without qk_norm"),
        ("{experts: {count: 4, width: 8, shared: 1}}", "experts.shared: Qwen3-MoE has none"),
        ("{experts: {count: 4, width: 8, balancing: bias}}", "experts.balancing bias"),
        ("{experts: {count: 4, width: 8}, window: 8, window_pattern: [window, full]}", "windows in some layers"),
    ],
)
def test_what_no_class_of_transformers_has_is_refused_where_later_stages_load_the_model(tmp_path, model, said):
    with pytest.raises(RecipeError, match=said):
        recipe_with(tmp_path, f"model: {model}")


def test_what_a_class_has_is_taken(tmp_path):
    recipe = recipe_with(tmp_path, "model: {experts: {count: 4, width: 8, balancing: auxiliary}}")
    assert recipe.model.experts.count == 4 and inexpressible(recipe.model.shape(vocab_size=9)) == ()

"""What is written is what transformers runs, and what comes back is what was written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.pretrain import tiny
from tests.training.pretrain.shapes import preset_shape
from training.contract.job import DataError
from training.contract.records import RecipeError, write_record
from training.pretrain.models import export
from training.pretrain.models.attention import one_document
from training.pretrain.models.config_json import read_config
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.families.deepseek_v3.settings import LatentSettings
from training.pretrain.models.shape import ExpertLayers, ModelConfig, RotaryScaling

SMALL = ModelConfig(
    vocab_size=tiny.VOCABULARY, width=32, layers=3, heads=4, kv_heads=2, mlp_width=48, max_length=64, norm_epsilon=1e-6
)
EXPERTS = ExpertLayers(count=4, active=2, width=24)


def latent(**more) -> dict:
    return write_record(LatentSettings(key_value_rank=12, plain_width=8, value_width=10, **more))


DEEPSEEK = {
    "family": "deepseek_v3",
    "kv_heads": 4,
    "head_width": 6,
    "experts": dataclasses.replace(EXPERTS, shared=2, balancing="bias", balance_weight=0.001),
    "parts": {"deepseek_v3": latent()},
}
SHAPES = {
    "llama": {},
    "llama untied": {"tied_embeddings": False},
    "llama with wide heads": {"head_width": 16},
    "llama linear": {"rope_scaling": RotaryScaling(kind="linear", factor=2.0)},
    "llama yarn": {"rope_scaling": RotaryScaling(kind="yarn", factor=4.0, original_length=16)},
    "llama llama3": {"rope_scaling": RotaryScaling(kind="llama3", factor=4.0, original_length=16)},
    "mistral": {"window": 5, "window_pattern": ("window",), "tied_embeddings": False},
    "qwen2": {"family": "qwen2"},
    "qwen2 windows, untied": {
        "family": "qwen2",
        "tied_embeddings": False,
        "window": 5,
        "window_pattern": ("window", "full"),
    },
    "qwen3": {"qk_norm": True},
    "qwen3 untied": {"qk_norm": True, "tied_embeddings": False, "head_width": 16},
    "qwen3 windows": {"qk_norm": True, "window": 5, "window_pattern": ("window", "full")},
    "qwen3 all windows": {"qk_norm": True, "window": 5, "window_pattern": ("window",)},
    "qwen3_moe": {"qk_norm": True, "experts": EXPERTS},
    "qwen3_moe dense start": {
        "qk_norm": True,
        "tied_embeddings": False,
        "experts": dataclasses.replace(EXPERTS, first_layer=1, normalize_weights=False, balancing="none"),
    },
    "olmo2": {"family": "olmo2", "qk_norm": True},
    "olmo2 untied, wide heads": {"family": "olmo2", "qk_norm": True, "tied_embeddings": False, "head_width": 16},
    "olmo3": {"family": "olmo3", "qk_norm": True, "window": 5, "window_pattern": ("window", "window", "full")},
    "olmo3 yarn, untied": {
        "family": "olmo3",
        "qk_norm": True,
        "tied_embeddings": False,
        "window": 7,
        "window_pattern": ("window", "full", "full"),
        "rope_scaling": RotaryScaling(kind="yarn", factor=4.0, original_length=16),
    },
    "olmo3 llama3": {
        "family": "olmo3",
        "qk_norm": True,
        "window": 5,
        "window_pattern": ("window", "full"),
        "rope_scaling": RotaryScaling(kind="llama3", factor=4.0, original_length=16),
    },
    "deepseek_v3": DEEPSEEK,
    "deepseek_v3 groups, yarn, untied": {
        **DEEPSEEK,
        "tied_embeddings": False,
        "rope_scaling": RotaryScaling(kind="yarn", factor=4.0, original_length=16),
        "experts": dataclasses.replace(DEEPSEEK["experts"], count=8, active=3, first_layer=1, normalize_weights=False),
        "parts": {"deepseek_v3": latent(query_rank=10, groups=4, active_groups=2, weight_scale=2.5)},
    },
    "qwen3_moe windows": {"qk_norm": True, "window": 5, "window_pattern": ("window",), "experts": EXPERTS},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    return Path(tiny.make_tokenizer(tmp_path_factory.mktemp("tokenizer")).path)


def model_of(config: ModelConfig) -> Decoder:
    """Every weight away from where it starts, so that none can stand in for another."""
    model = Decoder(config)
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(0))
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=noise))
    return model


def tokens() -> torch.Tensor:
    return torch.randint(tiny.VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(2))


def logits_of(model: Decoder) -> torch.Tensor:
    return model.logits(tokens(), one_document(tokens(), dtype=torch.float32, window=model.config.window))


@pytest.mark.parametrize("name", SHAPES)
def test_the_export_is_the_model_and_comes_back_the_same(tokenizer, tmp_path, name):
    model = model_of(dataclasses.replace(SMALL, **SHAPES[name]))
    export.write_model(model, tmp_path, tokenizer=tokenizer, eos_id=tiny.EOS)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == name.split()[0]
    comparison = tiny.compared(model, tmp_path, tokens())
    assert comparison.is_equal and comparison.largest_difference < 1e-4, comparison
    back = export.read_model(tmp_path)
    assert back.config == model.config
    assert torch.equal(logits_of(back), logits_of(model))


@pytest.mark.parametrize("name", SHAPES)
def test_several_files_hold_the_same_model_and_are_read_a_layer_at_a_time(tokenizer, tmp_path, tmp_path_factory, name):
    model = model_of(dataclasses.replace(SMALL, **SHAPES[name]))
    weights, limit = (*model.named_parameters(), *model.named_buffers()), 20_000
    names = export.write_weights(
        model.config, weights, tmp_path, tokenizer=tokenizer, eos_id=tiny.EOS, file_bytes=limit
    )
    listed = json.loads((tmp_path / export.INDEX).read_text())["weight_map"]
    assert set(listed.values()) == {name for name in names if name.endswith(".safetensors")} and len(listed) > 9
    for file in set(listed.values()):
        sizes = {name: 4 * tensor.numel() for name, tensor in load_file(tmp_path / file).items()}
        assert {name for name, of in listed.items() if of == file} == set(sizes)
        assert sum(sizes.values()) <= limit or len(sizes) == 1
    back = export.read_model(tmp_path)
    assert all(torch.equal(back.get_parameter(name), one) for name, one in model.named_parameters())
    written, apart = set(tmp_path.iterdir()), tmp_path_factory.mktemp("apart")
    assert export.difference(logits_of(model), tmp_path, tokens(), offload_folder=apart).is_equal
    assert set(tmp_path.iterdir()) == written


def test_a_layer_that_is_not_the_models_is_noticed_when_it_is_read_alone(tokenizer, tmp_path):
    model = model_of(SMALL)
    export.write_model(model, tmp_path, tokenizer=tokenizer, eos_id=tiny.EOS)
    ours = logits_of(model)
    with torch.no_grad():
        model.blocks[1].mlp.down[0, 0] += 0.5
    export.write_model(model, tmp_path, tokenizer=tokenizer, eos_id=tiny.EOS)
    assert not export.difference(ours, tmp_path, tokens(), offload_folder=tmp_path / "apart").is_equal


def test_a_raised_base_is_written_as_the_base_that_it_is(tokenizer, tmp_path):
    model = model_of(dataclasses.replace(SMALL, rope_scaling=RotaryScaling(kind="ntk", factor=4.0)))
    export.write_model(model, tmp_path, tokenizer=tokenizer, eos_id=tiny.EOS)
    assert tiny.compared(model, tmp_path, tokens()).is_equal
    # Head width 8: 10,000 · 4^(8 / 6).
    assert export.read_model(tmp_path).config.rope_theta == pytest.approx(63_496.04)


SAVED = {
    "Llama": {},
    "Mistral": {"sliding_window": 5},
    "Qwen2": {},
    "Qwen3": {},
    "Olmo3": {
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "DeepseekV3": {
        "num_key_value_heads": 4,
        "head_dim": 6,
        "q_lora_rank": 10,
        "kv_lora_rank": 12,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 6,
        "v_head_dim": 10,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
    },
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [0]},
}


@pytest.fixture
def saved(tmp_path):
    """A function that has transformers save a random model of a class, and returns the model and its folder."""
    import transformers

    def save(name: str, **more) -> tuple[torch.nn.Module, Path]:
        torch.manual_seed(0)
        common = {
            "vocab_size": tiny.VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
            "initializer_range": 0.3,
        }  # fmt: skip
        given = {key: more.pop(key) for key in ("tie_word_embeddings",) if key in more}
        config = getattr(transformers, f"{name}Config")(**{**common, **SAVED[name], **given})
        model = getattr(transformers, f"{name}ForCausalLM")(config).eval().requires_grad_(False)
        biases = (buffer for name, buffer in model.named_buffers() if name.endswith("bias"))
        for tensor in (*model.parameters(), *biases):  # norms start at one, where each could stand in for another
            tensor.add_(0.1 * torch.randn(tensor.shape))
        model.save_pretrained(tmp_path, **more)
        return model, tmp_path

    return save


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", [{}, {"max_shard_size": "20KB"}], ids=["one file", "sharded"])
@pytest.mark.parametrize("name", SAVED)
def test_what_transformers_saves_is_read(saved, name, shard, tied):
    theirs, folder = saved(name, tie_word_embeddings=tied, **shard)
    assert (folder / "model.safetensors").exists() == (not shard)
    ours = export.read_model(folder)
    assert ours.config.tied_embeddings == tied
    assert ours.config.parameter_count == sum(p.numel() for p in theirs.parameters())
    wanted = theirs(tokens(), use_cache=False).logits
    difference = logits_of(ours) - wanted
    assert difference.abs().max() <= export.TOLERANCE and wanted.std() > 0.5
    assert torch.equal(logits_of(ours).argmax(-1), wanted.argmax(-1))


def test_weights_that_are_not_the_models_are_refused(saved, tmp_path):
    _, folder = saved("Llama", tie_word_embeddings=False, max_shard_size="20KB")
    index = folder / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    last = sorted(good["weight_map"].values())[-1]
    (folder / last).rename(folder / "aside.safetensors")
    with pytest.raises(DataError, match=f"names {last}, and there is no such file"):
        export.read_model(folder)
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"x": f"../{folder.name}/aside.safetensors"}}))
    with pytest.raises(DataError, match=r"names '\.\./"):
        export.read_model(folder)
    index.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    with pytest.raises(DataError, match=r"pytorch_model\.bin is a pickle, which is never read: save it again"):
        export.read_model(folder)


def test_a_weight_too_many_or_of_another_shape_is_refused(saved):
    _, folder = saved("Llama")
    path = folder / "model.safetensors"
    weights = load_file(path)
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}
    save_file(weights | bias, path)
    with pytest.raises(DataError, match=r"q_proj.bias .* llama"):
        export.read_model(folder)
    turned = {name: weight.t().contiguous() if "gate_proj" in name else weight for name, weight in weights.items()}
    save_file(turned, path)
    with pytest.raises(DataError, match=r"gate_proj.weight .*\(32, 48\).*\(48, 32\)"):
        export.read_model(folder)


INEXPRESSIBLE = {
    "softcap": {"logit_softcap": 5.0},
    "ungated": {"activation": "relu2"},
    "shared experts": {"qk_norm": True, "experts": dataclasses.replace(EXPERTS, shared=1)},
    "biased router": {"experts": dataclasses.replace(EXPERTS, balancing="bias")},
}


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_a_model_that_no_class_is_keeps_its_own_layout(tokenizer, tmp_path, name):
    model = model_of(dataclasses.replace(SMALL, **INEXPRESSIBLE[name]))
    with pytest.raises(RecipeError, match="no class of transformers"):
        export.write_model(model, tmp_path, tokenizer=tokenizer, eos_id=tiny.EOS)
    for buffer in model.buffers():
        buffer.add_(torch.arange(len(buffer)) * 0.1)
    export.write_model(model, tmp_path, tokenizer=tokenizer, eos_id=tiny.EOS, own_layout=True)
    back = export.read_model(tmp_path)
    assert back.config == model.config and torch.equal(logits_of(back), logits_of(model))
    shape = json.loads((tmp_path / "config.json").read_text())["shape"]
    assert shape["tied"] == model.config.tied_embeddings and shape["norm_eps"] == 1e-6  # as in models made before


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "gizmo"}, "model_type 'gizmo'"),
        ({"attention_bias": True}, "biases"),
        ({"hidden_act": "gelu"}, "activations other than silu"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "rotary positions"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_refused(changed, said):
    with pytest.raises(DataError, match=said):
        read_config(export.hugging_face_config(SMALL, eos_id=0) | changed)


def test_a_mistral_without_a_window_is_a_llama():
    data = export.hugging_face_config(SMALL, eos_id=0)
    assert read_config(data | {"model_type": "mistral", "sliding_window": None}) == read_config(data)
    assert read_config(data | {"model_type": "mistral"}).window == 4096, "as transformers reads one that names none"


def test_a_published_configuration_is_read():
    data = {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 28,
    }
    assert read_config(data).parameter_count == 596_049_920
    windowed = read_config({**data, "use_sliding_window": True, "sliding_window": 512, "max_window_layers": 27})
    assert windowed.window == 512 and [windowed.is_windowed(n) for n in (0, 26, 27)] == [False, False, True]


# As allenai/Olmo-3-1025-7B has it, written by transformers 4; the kinds of layers are those of the class.
OLMO_3 = {
    "model_type": "olmo3",
    "vocab_size": 100_278,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 65_536,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500_000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
    "sliding_window": 4096,
    "tie_word_embeddings": False,
}


def test_a_published_olmo_3_is_its_preset_and_stretches_only_layers_without_a_window():
    shape = read_config(OLMO_3)
    assert shape == preset_shape("olmo-3-7b")
    assert [shape.own_layers.scaling(shape, n).kind for n in range(4)] == ["none", "none", "none", "yarn"]


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("full_attention", {"attention_factor": 1.5}, r"attention_factor=1.5 of rotary positions yarn; 1.2079"),
        ("full_attention", {"mscale": 1.0}, r"rotary positions .*mscale"),
        ("sliding_attention", {"rope_theta": 10_000.0}, r"in layers with a window; .* with rope_theta=500000"),
        ("sliding_attention", {"rope_type": "linear", "factor": 2.0}, r"in layers with a window; .* without scaling"),
    ],
)
def test_rotary_positions_that_olmo_3_cannot_have_here_are_refused(kind, changed, said):
    written = export.hugging_face_config(preset_shape("olmo-3-7b"), eos_id=0)
    written["rope_parameters"][kind] |= changed
    with pytest.raises(DataError, match=said):
        read_config(written)


# As deepseek-ai/DeepSeek-V3 has it.
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "vocab_size": 129_280,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "topk_method": "noaux_tc",
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "max_position_embeddings": 163_840,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "tie_word_embeddings": False,
}


def test_a_published_deepseek_v3_is_its_preset():
    assert read_config(DEEPSEEK_V3) == preset_shape("deepseek-v3")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"scoring_func": "softmax"}, "'scoring_func': 'softmax'}; readable"),
        ({"rope_interleave": False}, "'rope_interleave': False}; readable"),
        ({"rope_scaling": {"type": "yarn", "factor": 40}}, "readable are yarn with .*mscale"),
        ({"rope_scaling": {"type": "linear", "factor": 4, "mscale": 1.0}}, "readable are yarn with .*mscale"),
    ],
)
def test_what_deepseek_v3_cannot_have_here_is_refused(changed, said):
    with pytest.raises(DataError, match=said):
        read_config(DEEPSEEK_V3 | changed)

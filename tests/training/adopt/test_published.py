"""Configurations as they are published, with their own fields and forms and small sizes: adopted whole or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import own_models
from tests.own_model import write_tokenizer
from training.contract.records import RecipeError
from training.pretrain.models.borrowed import BORROWED

ROPE = {"rope_theta": 10000.0, "rope_scaling": None}
NO_DROPOUT = {"attention_bias": False, "attention_dropout": 0.0}
LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
LONG = [1.0, 1.1, 1.2, 1.3]  # a factor for each pair of a head's numbers
GEMMA = {"cache_implementation": "hybrid", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256}
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen2.5-0.5B": {
        "model_type": "qwen2", "max_window_layers": 24, "sliding_window": 32768, "use_sliding_window": False,
        "use_mrope": False, "tie_word_embeddings": True, "rope_theta": 1000000.0, "attention_dropout": 0.0,
    },
    "Llama-3.2-1B-Instruct": {
        "model_type": "llama", "head_dim": 8, "mlp_bias": False, "pretraining_tp": 1, "tie_word_embeddings": True,
        "rope_theta": 500000.0, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64},
        "eos_token_id": [1, 2, 3], **NO_DROPOUT,
    },
    "gemma-2-2b": {
        "model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 8,
        "hidden_act": "gelu_pytorch_tanh", "sliding_window": 16, "rope_theta": 10000.0, "pad_token_id": 0, **GEMMA,
    },
    "gemma-3-1b-it": {
        "model_type": "gemma3_text", "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 8,
        "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 16,
        "sliding_window_pattern": 6, "eos_token_id": [1, 106], "pad_token_id": 0, "num_hidden_layers": 7, **GEMMA,
    },
    "SmolLM3-3B": {
        "model_type": "smollm3", "layer_types": ["full_attention"] * 4, "max_window_layers": 28, "mlp_bias": False,
        "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0], "num_hidden_layers": 4, "pretraining_tp": 2,
        "sliding_window": None, "use_sliding_window": False, "use_cache": False, "rope_theta": 5000000.0,
        "rope_scaling": None, "pad_token_id": 4, **NO_DROPOUT,
    },
    "Phi-3.5-mini-instruct": {
        "model_type": "phi3", "original_max_position_embeddings": 64, "sliding_window": 262144, "embd_pdrop": 0.0,
        "resid_pdrop": 0.0, "rope_theta": 10000.0, "pad_token_id": 2, "tie_word_embeddings": False,
        "rope_scaling": {"type": "longrope", "long_factor": LONG, "short_factor": [1.0] * 4}, **NO_DROPOUT,
        "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
    },
    "phi-1_5": {
        "model_type": "phi", "bos_token_id": None, "eos_token_id": None, "hidden_act": "gelu_new", "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "num_key_value_heads": None, "partial_rotary_factor": 0.5, "qk_layernorm": False,
        "layer_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "float16", **ROPE,
    },
    "granite-3.1-2b": {
        "model_type": "granite", "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
        "residual_multiplier": 0.22, "rope_theta": 5000000.0, "rope_scaling": None, "tie_word_embeddings": True,
        "mlp_bias": False, "pad_token_id": 0, "eos_token_id": 0, "attention_dropout": 0.1, "attention_bias": False,
    },
    "OLMo-2-0425-1B": {
        "model_type": "olmo2", "num_key_value_heads": 4, "pad_token_id": 2, "rope_theta": 500000, "rope_scaling": None,
        "tie_word_embeddings": False, "bos_token_id": None, **NO_DROPOUT,
    },
    "OLMo-1B-hf": {"model_type": "olmo", "clip_qkv": None, "tie_word_embeddings": True, "pad_token_id": 1, **ROPE},
    "gpt2": {
        "model_type": "gpt2", "activation_function": "gelu_new", "n_ctx": 256, "n_embd": 32, "n_head": 4, "n_layer": 2,
        "n_positions": 256, "attn_pdrop": 0.1, "summary_type": "cls_index", "layer_norm_epsilon": 1e-5,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    },
    "pythia-70m": {
        "model_type": "gpt_neox", "rotary_emb_base": 10000, "rotary_pct": 0.25, "use_parallel_residual": True,
        "layer_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "float16", "hidden_act": "gelu",
    },
    "Mistral-7B-v0.1": {"model_type": "mistral", "sliding_window": 16, "rope_theta": 10000.0},
    "Mistral-7B-v0.3": {"model_type": "mistral", "sliding_window": None, "rope_theta": 1000000.0},
}  # fmt: skip
SIZES = {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
    "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
}  # fmt: skip
IN_GPT2 = {"vocab_size", "bos_token_id", "eos_token_id", "torch_dtype", "transformers_version"}
# What adoption changes, and what says nothing of the numbers.
CHANGED = {
    *("vocab_size", "eos_token_id", "bos_token_id", "pad_token_id", "dtype", "architectures", "transformers_version"),
    *("use_cache", "cache_implementation", "_name_or_path", "auto_map", "task_specific_params", "pretraining_tp"),
}
# What the families of this project write in another form; their numbers are compared by the gate of the import.
REWORDED = {"model_type", "head_dim", "attention_bias", "mlp_bias", "use_mrope", "max_window_layers"}


def write(folder, published):
    """Write a folder with this configuration as it is published, and weights that transformers makes of it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {name: one for name, one in SIZES.items() if published["model_type"] != "gpt2" or name in IN_GPT2}
    config = sizes | published
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    model.to(getattr(torch, config["torch_dtype"])).save_pretrained(folder)
    architectures = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config | {"architectures": architectures}, indent=2))
    generation = {"eos_token_id": [1, 2], "bos_token_id": 0, "do_sample": True, "temperature": 0.7, "top_k": 20}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_configuration_is_read_whole(name, tmp_path):
    from transformers import AutoConfig

    write(tmp_path / "given", CONFIGS[name])
    own_models.read(tmp_path)
    own_models.adopt(tmp_path)
    given, made = (
        AutoConfig.from_pretrained(tmp_path / folder).to_dict() for folder in ("given", "adopted_model/model")
    )
    differing = {
        field: (given.get(field), made.get(field))
        for field in {*given, *made} - CHANGED - (set() if given["model_type"] in BORROWED else REWORDED)
        if given.get(field) != made.get(field)
    }
    assert not differing


@pytest.mark.parametrize("kind", ["gemma3", "llava", "qwen2_5_vl", "mistral3"])
def test_a_model_of_images_and_text_is_refused_in_one_sentence(kind, tmp_path):
    write(tmp_path / "given", CONFIGS["gemma-3-1b-it"])
    path = tmp_path / "given" / "config.json"
    text = json.loads(path.read_text())
    path.write_text(json.dumps({"model_type": kind, "text_config": text, "vision_config": {"hidden_size": 32}}))
    with pytest.raises(RecipeError, match="reads images or sound beside text; take a model of text alone") as refused:
        own_models.read(tmp_path)
    assert "\n" not in str(refused.value), refused.value

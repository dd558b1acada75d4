"""The model in the transformers layout, as Llama or, with QK-norm, Qwen3; and back.

Writing and reading need torch and safetensors only. `compare` loads transformers, because its logits are the proof.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from training.artifact import write_json
from training.job import DataError
from training.pretrain.attention import one_document
from training.pretrain.checkpoint import save_tensors
from training.pretrain.model import Block, Decoder, ModelConfig
from training.records import RecipeError

TOLERANCE = 1e-4  # largest difference of fp32 logits
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def hugging_face_config(
    config: ModelConfig, *, eos_id: int, bos_id: int | None = None, pad_id: int | None = None
) -> dict[str, Any]:
    """What `config.json` holds. `bos_id` and `pad_id` are None when the tokenizer has no such token."""
    name = "Qwen3" if config.qk_norm else "Llama"
    result = {
        "architectures": [f"{name}ForCausalLM"],
        "model_type": name.lower(),
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm_eps,
        # transformers 5 reads the first, 4 the second
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied,
        "attention_bias": False,
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
        "use_cache": True,
        "dtype": "float32",
    }
    return result if config.qk_norm else {**result, "mlp_bias": False}


def read_config(data: dict[str, Any]) -> ModelConfig:
    """The shape that a `config.json` of Llama or Qwen3 describes. DataError for any other, or for what is not here."""
    if data.get("model_type") not in ("llama", "qwen3"):
        raise DataError(f"config.json: model_type {data.get('model_type')!r}; llama and qwen3 can be read")
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default" or data.get("attention_bias") or data.get("use_sliding_window"):
        raise DataError("config.json: scaled rotary positions, attention biases and sliding windows cannot be read")
    head_width = data.get("head_dim") or data["hidden_size"] // data["num_attention_heads"]
    if head_width * data["num_attention_heads"] != data["hidden_size"]:
        raise DataError(f"config.json: head_dim={head_width} times the heads must be hidden_size={data['hidden_size']}")
    return ModelConfig(
        vocab_size=data["vocab_size"],
        width=data["hidden_size"],
        layers=data["num_hidden_layers"],
        heads=data["num_attention_heads"],
        kv_heads=data.get("num_key_value_heads", data["num_attention_heads"]),
        mlp_width=data["intermediate_size"],
        max_length=data["max_position_embeddings"],
        rope_theta=rope.get("rope_theta") or data.get("rope_theta", 10_000.0),
        qk_norm=data["model_type"] == "qwen3",
        tied=data.get("tie_word_embeddings", False),
        norm_eps=data["rms_norm_eps"],
    )


def hugging_face_views(model: Decoder) -> Iterator[tuple[str, Tensor]]:
    """transformers' name of every weight, with the part of this model's parameters that holds it, as a view."""
    yield "model.embed_tokens.weight", model.embedding
    for number, block in enumerate(model.blocks):
        for name, view in _block_views(block):
            yield f"model.layers.{number}.{name}", view
    yield "model.norm.weight", model.norm
    if not model.config.tied:
        yield "lm_head.weight", model.head


def _block_views(block: Block) -> Iterator[tuple[str, Tensor]]:
    attention, mlp = block.attention, block.mlp
    config = attention.config
    heads = attention.query_key_value.view(config.kv_heads, config.group + 2, config.head_width, config.width)
    yield "input_layernorm.weight", attention.norm
    yield "self_attn.q_proj.weight", heads[:, : config.group]
    yield "self_attn.k_proj.weight", heads[:, config.group]
    yield "self_attn.v_proj.weight", heads[:, config.group + 1]
    yield "self_attn.o_proj.weight", attention.output
    if config.qk_norm:
        yield "self_attn.q_norm.weight", attention.query_norm
        yield "self_attn.k_norm.weight", attention.key_norm
    yield "post_attention_layernorm.weight", mlp.norm
    yield "mlp.gate_proj.weight", mlp.gate
    yield "mlp.up_proj.weight", mlp.up
    yield "mlp.down_proj.weight", mlp.down


@torch.no_grad()
def write_model(model: Decoder, folder: Path, *, tokenizer: Path, eos_id: int) -> tuple[str, ...]:
    """Write weights, configuration and the tokenizer's files into `folder`; returns the names written."""
    folder.mkdir(parents=True, exist_ok=True)
    copied = [name for name in TOKENIZER_FILES if (tokenizer / name).exists()]
    for name in copied:
        shutil.copyfile(tokenizer / name, folder / name)
    bos_id, pad_id = _special_id(tokenizer, "bos_token"), _special_id(tokenizer, "pad_token")
    weights = {name: _as_matrix(view).cpu() for name, view in hugging_face_views(model)}
    save_tensors(weights, folder / "model.safetensors")
    write_json(folder / "config.json", hugging_face_config(model.config, eos_id=eos_id, bos_id=bos_id, pad_id=pad_id))
    generation = {"bos_token_id": bos_id, "eos_token_id": eos_id, "pad_token_id": pad_id, "do_sample": False}
    given = {name: value for name, value in generation.items() if value is not None}
    write_json(folder / "generation_config.json", given)
    return ("model.safetensors", "config.json", "generation_config.json", *copied)


def _as_matrix(view: Tensor) -> Tensor:
    """A contiguous copy with the heads' axes joined into rows."""
    return (view.reshape(-1, view.shape[-1]) if view.dim() > 1 else view).detach().clone().contiguous()


@torch.no_grad()
def read_model(folder: Path) -> Decoder:
    """The model in a folder of transformers' layout. DataError when a weight is missing or has another shape."""
    model = Decoder(read_config(json.loads((folder / "config.json").read_text("utf-8"))))
    weights = load_file(folder / "model.safetensors")
    for name, view in hugging_face_views(model):
        if name not in weights or weights[name].numel() != view.numel():
            given = tuple(weights[name].shape) if name in weights else "nothing"
            raise DataError(f"{folder}: {name} is {given}, the configuration wants {view.numel()} numbers")
        view.copy_(weights[name].view(view.shape))
    return model


def _special_id(tokenizer: Path, name: str) -> int | None:
    """The id of the token that `tokenizer_config.json` gives a role; None when it gives none."""
    path = tokenizer / "tokenizer_config.json"
    token = json.loads(path.read_text("utf-8")).get(name) if path.exists() else None
    if isinstance(token, dict):
        token = token.get("content")
    return token_ids(tokenizer).get(token) if token else None


def token_ids(tokenizer: Path) -> dict[str, int]:
    """Every token of a `tokenizer.json` with its id, added ones included."""
    data = json.loads((tokenizer / "tokenizer.json").read_text("utf-8"))
    return data["model"]["vocab"] | {token["content"]: token["id"] for token in data.get("added_tokens", [])}


def require_transformers() -> None:
    """RecipeError when transformers is missing, which is better known before training than after."""
    if importlib.util.find_spec("transformers") is None:
        raise RecipeError(
            "base_model: the export is checked with transformers, which is not installed; pip install transformers"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How far transformers' logits are from the trainer's, both in fp32, over `positions` positions."""

    largest_difference: float
    differing_argmax: int
    positions: int

    @property
    def is_equal(self) -> bool:
        """Whether the export is the model that was trained."""
        return self.largest_difference <= TOLERANCE and self.differing_argmax == 0


@torch.no_grad()
def compare(model: Decoder, folder: Path, tokens_BL: Tensor) -> Comparison:
    """Run the exported model by transformers and this one on the same tokens."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    device = model.embedding.device
    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).to(device).eval()
    theirs = other(tokens_BL, use_cache=False).logits
    ours = model.logits(tokens_BL, one_document(tokens_BL, dtype=torch.float32))
    return Comparison(
        largest_difference=(theirs - ours).abs().max().item(),
        differing_argmax=int((theirs.argmax(-1) != ours.argmax(-1)).sum()),
        positions=tokens_BL.numel(),
    )

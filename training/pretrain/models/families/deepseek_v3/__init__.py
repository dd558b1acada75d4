"""The DeepSeek-V3 family (arXiv 2412.19437): latent attention, shared experts, and a bias that balances the load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from training.contract.job import DataError
from training.contract.records import write_record
from training.pretrain.models.families.deepseek_v3.settings import LatentSettings, settings_of
from training.pretrain.models.family import Family, Fields, Layers, NamedShapes, mlp_weights, preset, sizes
from training.pretrain.models.rotary_json import given_rotary, read_rotary, written_rotary
from training.pretrain.models.shape import ExpertLayers, HeadWidths, ModelConfig, RotaryScaling

if TYPE_CHECKING:
    from torch import Tensor

    from training.pretrain.models.decoder import Block

# YaRN sharpens attention on all numbers of a head, not only on the rotated ones.
SHARPENED = {"mscale": 1.0, "mscale_all_dim": 1.0}
# What transformers' class has and other models with its fields of config.json do not. Absent fields are as here.
FIXED = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "rope_interleave": True}


def why_not(config: ModelConfig) -> list[str]:
    """Return which features of the shape DeepSeek-V3 does not have; empty if it has all."""
    experts, given = config.experts, settings_of(config)
    found = ["qk_norm; its latent states are normed"] if config.qk_norm else []
    found += ["window"] if config.window else []
    found += ["kv_heads other than heads"] if config.kv_heads != config.heads else []
    if not experts.count:
        return [*found, "layers without experts"]
    found += ["experts without shared ones (experts.shared)"] if not experts.shared else []
    found += [f"experts.balancing {experts.balancing}; it has a bias"] if experts.balancing != "bias" else []
    size, rest = divmod(experts.count, given.groups)
    if rest or size < 2:
        found.append(f"experts.count={experts.count} in groups={given.groups}; equal groups of at least 2")
    elif experts.active > size * given.active_groups:
        found.append(f"experts.active={experts.active} of {given.active_groups} groups of {size}")
    return found


def make(config: ModelConfig, layer: int) -> Block:
    """Return layer `layer` of a decoder."""
    from training.pretrain.models.families.deepseek_v3.layer import DeepSeekBlock

    return DeepSeekBlock(config, layer)


def weights(config: ModelConfig, layer: int) -> NamedShapes:
    """Yield name and shape of each weight in a layer."""
    D, H, given = config.width, config.heads, settings_of(config)
    query_key = given.plain_width + config.head_width
    yield "attention.norm", (D,)
    if given.query_rank is None:
        yield "attention.query", (H * query_key, D)
    else:
        yield "attention.query_down", (given.query_rank, D)
        yield "attention.query_norm", (given.query_rank,)
        yield "attention.query_up", (H * query_key, given.query_rank)
    yield "attention.key_value_down", (given.key_value_rank + config.head_width, D)
    yield "attention.key_value_norm", (given.key_value_rank,)
    yield "attention.key_value_up", (H * (given.plain_width + given.value_width), given.key_value_rank)
    yield "attention.output", (D, H * given.value_width)
    yield "mlp.norm", (D,)
    yield from ((f"mlp.{name}", shape) for name, shape in mlp_weights(config, layer))


def head_widths(config: ModelConfig) -> HeadWidths:
    """Return the widths of queries and keys, plain and rotated parts together, and of values."""
    given = settings_of(config)
    keys, values = config.heads * (given.plain_width + config.head_width), config.heads * given.value_width
    return HeadWidths(queries=keys, keys=keys, values=values, mixed=values)


def kept(config: ModelConfig, layer: int) -> int:
    """Return how many numbers for each token the latent states keep: their unit vectors and scales."""
    del layer
    given = settings_of(config)
    return given.key_value_rank + 1 + (0 if given.query_rank is None else given.query_rank + 1)


def names(block: Block) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight with its name inside a layer of transformers' class."""
    from training.pretrain.models.experts import Experts
    from training.pretrain.models.layer_views import mlp_views

    yield "input_layernorm.weight", block.attention.norm
    for name, weight in block.attention.named_parameters():
        if name != "norm":
            yield f"self_attn.{_NAMES[name]}.weight", weight
    yield from mlp_views(block.mlp)
    if isinstance(block.mlp, Experts):
        for name in ("gate", "up", "down"):
            yield f"mlp.shared_experts.{name}_proj.weight", block.mlp.get_parameter(f"shared_{name}")
        yield "mlp.gate.e_score_correction_bias", block.mlp.get_buffer("bias")


_NAMES = {
    "query": "q_proj",
    "query_down": "q_a_proj",
    "query_norm": "q_a_layernorm",
    "query_up": "q_b_proj",
    "key_value_down": "kv_a_proj_with_mqa",
    "key_value_norm": "kv_a_layernorm",
    "key_value_up": "kv_b_proj",
    "output": "o_proj",
}


def fields(config: ModelConfig) -> Fields:
    """Return the fields of `config.json` on latent attention, experts and rotary positions."""
    experts, given = config.experts, settings_of(config)
    sharpened = SHARPENED if config.rope_scaling.kind == "yarn" else {}
    rotary = {name: one | sharpened for name, one in written_rotary(config).items() if isinstance(one, dict)}
    return {
        **FIXED,
        **rotary,
        "q_lora_rank": given.query_rank,
        "kv_lora_rank": given.key_value_rank,
        "qk_nope_head_dim": given.plain_width,
        "qk_rope_head_dim": config.head_width,
        "v_head_dim": given.value_width,
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared,
        "num_experts_per_tok": experts.active,
        "moe_intermediate_size": experts.width,
        "first_k_dense_replace": experts.first_layer,
        "norm_topk_prob": experts.normalize_weights,
        "n_group": given.groups,
        "topk_group": given.active_groups,
        "routed_scaling_factor": given.weight_scale,
        "num_nextn_predict_layers": 0,
    }


def read(data: Fields) -> Fields:
    """Return the experts, the width of the rotated part, rotary positions and settings of a `config.json`.

    The step by which the bias moves is in no such file; it is 0.001, as in the paper.
    """
    differing = {name: data[name] for name, value in FIXED.items() if data.get(name, value) != value}
    if differing:
        raise DataError(f"config.json: {differing}; readable is {FIXED}")
    settings = LatentSettings(
        query_rank=data.get("q_lora_rank"),
        key_value_rank=data["kv_lora_rank"],
        plain_width=data["qk_nope_head_dim"],
        value_width=data["v_head_dim"],
        groups=data.get("n_group") or 1,
        active_groups=data.get("topk_group") or 1,
        weight_scale=data.get("routed_scaling_factor", 1.0),
    )
    return {
        "head_width": data["qk_rope_head_dim"],
        **_read_rotary(data),
        "experts": _experts(
            count=data["n_routed_experts"],
            active=data["num_experts_per_tok"],
            width=data["moe_intermediate_size"],
            shared=data["n_shared_experts"],
            first_layer=data["first_k_dense_replace"],
            normalize_weights=data.get("norm_topk_prob", True),
        ),
        "settings": write_record(settings),
    }


def _read_rotary(data: Fields) -> Fields:
    rope = given_rotary(data)
    given = {name: rope[name] for name in SHARPENED if rope.get(name)}
    is_yarn = rope.get("rope_type", rope.get("type")) == "yarn"
    if given != (SHARPENED if is_yarn else {}):
        raise DataError(f"config.json: rotary positions {rope}; readable are yarn with {SHARPENED}, others without")
    return read_rotary({name: value for name, value in rope.items() if name not in SHARPENED}, data)


def _experts(**numbers: Any) -> ExpertLayers:
    return ExpertLayers(balancing="bias", balance_weight=0.001, **numbers)


FAMILY = Family(
    class_name="DeepseekV3",
    why_not=why_not,
    fields=fields,
    read=read,
    layers=Layers(make=make, weights=weights, kept=kept, names=names, head_widths=head_widths),
    settings=LatentSettings,
    presets={
        # Without the module that predicts a second token, and without the biases of 58 routers (14,848 numbers), which
        # are not trained by gradients. The published files count 671,026,419,200 with the biases.
        "deepseek-v3": preset(
            129_280,
            671_026_404_352,
            **sizes(7168, 61, 128, 128, 18_432),
            head_width=64,
            max_length=163_840,
            rope_theta=10_000.0,
            rope_scaling=write_record(RotaryScaling(kind="yarn", factor=40.0, original_length=4096)),
            norm_epsilon=1e-6,
            tied_embeddings=False,
            experts=write_record(_experts(count=256, active=8, width=2048, shared=1, first_layer=3)),
            family="deepseek_v3",
            parts={
                "deepseek_v3": write_record(
                    LatentSettings(
                        query_rank=1536,
                        key_value_rank=512,
                        plain_width=128,
                        value_width=128,
                        groups=8,
                        active_groups=4,
                        weight_scale=2.5,
                    )
                )
            },
        )
    },
)

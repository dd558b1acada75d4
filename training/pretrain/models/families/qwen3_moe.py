"""The Qwen3-MoE family: QK-norm, experts, and windows in all layers or none."""

from __future__ import annotations

from training.contract.job import DataError
from training.pretrain.models.families.qwen3 import qwen_3
from training.pretrain.models.family import Family, Fields, sizes
from training.pretrain.models.shape import ExpertLayers, ModelConfig


def has(config: ModelConfig) -> bool:
    """Whether a shape belongs to the Qwen3-MoE family."""
    return bool(config.experts.count)


def why_not(config: ModelConfig) -> list[str]:
    """Return which features of the shape transformers' Qwen3-MoE class does not have; empty if it has all."""
    found = []
    if not config.qk_norm:
        found.append("experts without qk_norm: Qwen3-MoE has QK-norm")
    if config.window and set(config.window_pattern) != {"window"}:
        found.append("experts with windows in some layers: Qwen3-MoE has them in all or none")
    if config.experts.shared:
        found.append("experts.shared: Qwen3-MoE has none")
    if config.experts.balancing == "bias":
        found.append("experts.balancing bias: Qwen3-MoE chooses experts without one")
    return found


def fields(config: ModelConfig) -> Fields:
    """Return the fields of `config.json` on the window and the experts."""
    windows = {"use_sliding_window": True, "sliding_window": config.window} if config.window else {}
    return {**windows, **_expert_fields(config)}


def _expert_fields(config: ModelConfig) -> Fields:
    experts = config.experts
    return {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.active,
        "moe_intermediate_size": experts.width,
        "norm_topk_prob": experts.normalize_weights,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(range(min(experts.first_layer, config.layers))),
        "router_aux_loss_coef": experts.balance_weight if experts.balancing == "auxiliary" else 0.0,
        "output_router_logits": False,
    }


def read(data: Fields) -> Fields:
    """Return QK-norm, the window and the experts from a `config.json`, as fields of a shape."""
    window = data.get("sliding_window") if data.get("use_sliding_window") else None
    windows = {"window": window, "window_pattern": ("window",)} if window else {}
    return {"qk_norm": True, **windows, "experts": _read_experts(data)}


def _read_experts(data: Fields) -> ExpertLayers:
    dense = data.get("mlp_only_layers") or []
    if data.get("decoder_sparse_step", 1) != 1 or dense != list(range(len(dense))):
        raise DataError("config.json: only the first layers may be without experts")
    coefficient = data.get("router_aux_loss_coef", 0.0)
    return ExpertLayers(
        # transformers wrote the first name until 5.17 or later, the second in 5.23.
        count=data["num_experts"] if "num_experts" in data else data["num_local_experts"],
        active=data["num_experts_per_tok"],
        width=data["moe_intermediate_size"],
        first_layer=len(dense),
        normalize_weights=data.get("norm_topk_prob", False),
        balancing="auxiliary" if coefficient else "none",
        balance_weight=coefficient or 0.01,
    )


FAMILY = Family(
    class_name="Qwen3Moe",
    has=has,
    why_not=why_not,
    fields=fields,
    read=read,
    presets={
        "qwen3-30b-a3b": qwen_3(
            30_532_122_624, sizes(2048, 48, 32, 4, 6144), experts=ExpertLayers(count=128, active=8, width=768)
        ),
        "qwen3-235b-a22b": qwen_3(
            235_093_634_560, sizes(4096, 94, 64, 4, 12_288), experts=ExpertLayers(count=128, active=8, width=1536)
        ),
    },
)

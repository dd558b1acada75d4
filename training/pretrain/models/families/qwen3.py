"""The Qwen3 family: QK-norm, and optional windows in some or all layers."""

from __future__ import annotations

from training.contract.records import write_record
from training.pretrain.models.family import Family, Fields, Preset, preset, sizes
from training.pretrain.models.rotary_json import layer_kinds, read_kinds
from training.pretrain.models.shape import ExpertLayers, ModelConfig


def has(config: ModelConfig) -> bool:
    """Whether a shape belongs to the Qwen3 family."""
    return config.qk_norm and not config.experts.count


def fields(config: ModelConfig) -> Fields:
    """Return the fields of `config.json` on windows, with the kind of every layer."""
    if not config.window:
        return {}
    return {
        "use_sliding_window": True,
        "sliding_window": config.window,
        "layer_types": layer_kinds(config),
        "max_window_layers": config.layers,
    }


def read(data: Fields) -> Fields:
    """Return QK-norm, the window and its pattern.

    A `config.json` either lists the kind of every layer or gives the first layer with a window.
    """
    window = data.get("sliding_window") if data.get("use_sliding_window") else None
    first, layers = data.get("max_window_layers", 0), data["num_hidden_layers"]
    kinds = data.get("layer_types") or ["sliding_attention" if n >= first else "full_attention" for n in range(layers)]
    return {"qk_norm": True, **read_kinds(kinds, window)}


def qwen_3(
    parameters: int, numbers: dict[str, int], *, tied: bool = False, experts: ExpertLayers | None = None
) -> Preset:
    """Return the preset of a Qwen3 base model (arXiv 2505.09388)."""
    return preset(
        151_936,
        parameters,
        **numbers,
        head_width=128,
        max_length=32_768,
        rope_theta=1_000_000.0,
        norm_epsilon=1e-6,
        qk_norm=True,
        tied_embeddings=tied,
        experts=write_record(experts or ExpertLayers()),
    )


FAMILY = Family(
    class_name="Qwen3",
    has=has,
    why_not=lambda _: [],
    fields=fields,
    read=read,
    presets={
        "qwen3-0.6b": qwen_3(596_049_920, sizes(1024, 28, 16, 8, 3072), tied=True),
        "qwen3-1.7b": qwen_3(1_720_574_976, sizes(2048, 28, 16, 8, 6144), tied=True),
        "qwen3-4b": qwen_3(4_022_468_096, sizes(2560, 36, 32, 8, 9728), tied=True),
        "qwen3-8b": qwen_3(8_190_735_360, sizes(4096, 36, 32, 8, 12_288)),
        "qwen3-14b": qwen_3(14_768_307_200, sizes(5120, 40, 40, 8, 17_408)),
        "qwen3-32b": qwen_3(32_762_123_264, sizes(5120, 64, 64, 8, 25_600)),
    },
)

"""Known shapes by name: published ones, and a ladder of small ones. A recipe's `model.preset` names one.

`parameters` is the count over the preset's own vocabulary; a recipe's vocabulary is its tokenizer's. The published
counts are those of the weight files, a tied head counted once; a test holds each against the formula and against
transformers' class. Plain data, so that reading a recipe needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from training.pretrain.models.shape import ExpertLayers, RotaryScaling
from training.records import write_record


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A shape. `model` has every field of a recipe's `model`, so that nothing of an extended recipe shines through."""

    vocab_size: int
    parameters: int
    model: dict[str, Any]


def _preset(vocab_size: int, parameters: int, **fields: Any) -> Preset:
    plain = {
        "head_width": None,
        "rope_theta": 10_000.0,
        "rope_scaling": write_record(RotaryScaling()),
        "norm_epsilon": 1e-5,
        "qk_norm": False,
        "tied_embeddings": True,
        "activation": "swiglu",
        "window": 0,
        "window_pattern": ["full"],
        "logit_softcap": 0.0,
        "experts": write_record(ExpertLayers()),
    }
    return Preset(vocab_size=vocab_size, parameters=parameters, model={**plain, **fields})


def _sizes(width: int, layers: int, heads: int, kv_heads: int, mlp_width: int) -> dict[str, int]:
    return {"width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads, "mlp_width": mlp_width}


def _small(vocab_size: int, parameters: int, sizes: dict[str, int], max_length: int) -> Preset:
    """A rung of the ladder: tied, QK-norm, about as many layers as is usual for the width."""
    return _preset(vocab_size, parameters, **sizes, max_length=max_length, qk_norm=True)


def _llama_3(
    parameters: int, sizes: dict[str, int], *, stretched: float = 0.0, tied: bool = False, head_width: int = 0
) -> Preset:
    """Llama 3 (arXiv 2407.21783); from 3.1 on `stretched` from 8,192 positions to 131,072 by that factor."""
    scaling = RotaryScaling(kind="llama3", factor=stretched, original_length=8192) if stretched else RotaryScaling()
    return _preset(
        128_256,
        parameters,
        **sizes,
        head_width=head_width,
        max_length=131_072 if stretched else 8192,
        rope_theta=500_000.0,
        rope_scaling=write_record(scaling),
        tied_embeddings=tied,
    )


def _qwen_3(
    parameters: int, sizes: dict[str, int], *, tied: bool = False, experts: ExpertLayers | None = None
) -> Preset:
    """Qwen3 base models (arXiv 2505.09388)."""
    return _preset(
        151_936,
        parameters,
        **sizes,
        head_width=128,
        max_length=32_768,
        rope_theta=1_000_000.0,
        norm_epsilon=1e-6,
        qk_norm=True,
        tied_embeddings=tied,
        experts=write_record(experts or ExpertLayers()),
    )


PRESETS: dict[str, Preset] = {
    "1m": _small(2048, 1_066_368, _sizes(128, 4, 4, 4, 352), 512),
    "3m": _small(4096, 3_443_520, _sizes(192, 6, 6, 6, 512), 512),
    "10m": _small(8192, 10_131_968, _sizes(256, 10, 4, 4, 704), 1024),
    "30m": _small(16_384, 31_721_920, _sizes(448, 10, 7, 7, 1216), 1024),
    "100m": _small(32_768, 100_684_032, _sizes(768, 12, 12, 4, 2048), 2048),
    "300m": _small(32_768, 304_140_288, _sizes(1024, 24, 16, 4, 2816), 2048),
    "llama-3.2-1b": _llama_3(1_235_814_400, _sizes(2048, 16, 32, 8, 8192), stretched=32.0, tied=True),
    "llama-3.2-3b": _llama_3(3_212_749_824, _sizes(3072, 28, 24, 8, 8192), stretched=32.0, tied=True),
    "llama-3-8b": _llama_3(8_030_261_248, _sizes(4096, 32, 32, 8, 14_336)),
    "llama-3.1-8b": _llama_3(8_030_261_248, _sizes(4096, 32, 32, 8, 14_336), stretched=8.0),
    "llama-3-70b": _llama_3(70_553_706_496, _sizes(8192, 80, 64, 8, 28_672)),
    "llama-3.1-70b": _llama_3(70_553_706_496, _sizes(8192, 80, 64, 8, 28_672), stretched=8.0),
    "qwen3-0.6b": _qwen_3(596_049_920, _sizes(1024, 28, 16, 8, 3072), tied=True),
    "qwen3-1.7b": _qwen_3(1_720_574_976, _sizes(2048, 28, 16, 8, 6144), tied=True),
    "qwen3-4b": _qwen_3(4_022_468_096, _sizes(2560, 36, 32, 8, 9728), tied=True),
    "qwen3-8b": _qwen_3(8_190_735_360, _sizes(4096, 36, 32, 8, 12_288)),
    "qwen3-14b": _qwen_3(14_768_307_200, _sizes(5120, 40, 40, 8, 17_408)),
    "qwen3-32b": _qwen_3(32_762_123_264, _sizes(5120, 64, 64, 8, 25_600)),
    "qwen3-30b-a3b": _qwen_3(
        30_532_122_624, _sizes(2048, 48, 32, 4, 6144), experts=ExpertLayers(count=128, active=8, width=768)
    ),
    "qwen3-235b-a22b": _qwen_3(
        235_093_634_560, _sizes(4096, 94, 64, 4, 12_288), experts=ExpertLayers(count=128, active=8, width=1536)
    ),
}

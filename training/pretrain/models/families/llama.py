"""The Llama family: no QK-norm, no windows and no experts."""

from __future__ import annotations

from training.contract.records import write_record
from training.pretrain.models.families import mistral
from training.pretrain.models.family import Family, Fields, Preset, preset, sizes
from training.pretrain.models.shape import ModelConfig, RotaryScaling


def has(config: ModelConfig) -> bool:
    """Whether a shape belongs to the Llama family."""
    return not config.qk_norm and not config.experts.count and not mistral.has(config)


def why_not(config: ModelConfig) -> list[str]:
    """Return which features of the shape transformers' Llama class does not have; empty if it has all."""
    return ["window in some layers without qk_norm: Mistral has it in all, Qwen3 has both"] if config.window else []


def _llama_3(
    parameters: int,
    numbers: dict[str, int],
    *,
    stretched: float = 0.0,
    tied: bool = False,
    head_width: int | None = None,
) -> Preset:
    """Return a preset of Llama 3 (arXiv 2407.21783); from 3.1 on, `stretched` is the factor of its rotary scaling.

    Llama 3 has 8,192 positions; from 3.1 on there are 131,072.
    """
    scaling = RotaryScaling(kind="llama3", factor=stretched, original_length=8192) if stretched else RotaryScaling()
    return preset(
        128_256,
        parameters,
        **numbers,
        head_width=head_width,
        max_length=131_072 if stretched else 8192,
        rope_theta=500_000.0,
        rope_scaling=write_record(scaling),
        tied_embeddings=tied,
    )


FAMILY = Family(
    class_name="Llama",
    has=has,
    why_not=why_not,
    fields=lambda _: {"mlp_bias": False},
    read=lambda _: Fields(qk_norm=False),
    presets={
        "llama-3.2-1b": _llama_3(1_235_814_400, sizes(2048, 16, 32, 8, 8192), stretched=32.0, tied=True),
        "llama-3.2-3b": _llama_3(3_212_749_824, sizes(3072, 28, 24, 8, 8192), stretched=32.0, tied=True),
        "llama-3-8b": _llama_3(8_030_261_248, sizes(4096, 32, 32, 8, 14_336)),
        "llama-3.1-8b": _llama_3(8_030_261_248, sizes(4096, 32, 32, 8, 14_336), stretched=8.0),
        "llama-3-70b": _llama_3(70_553_706_496, sizes(8192, 80, 64, 8, 28_672)),
        "llama-3.1-70b": _llama_3(70_553_706_496, sizes(8192, 80, 64, 8, 28_672), stretched=8.0),
    },
)

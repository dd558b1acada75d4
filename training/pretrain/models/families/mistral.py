"""The Mistral family (arXiv 2310.06825): layers of Llama that all have a window.

A model of this type without a window, as all later ones are, is one of Llama: the same layers under another name.
"""

from __future__ import annotations

from training.pretrain.models.family import Family, Fields, preset, sizes
from training.pretrain.models.shape import ModelConfig

DEFAULT_WINDOW = 4096  # of transformers' class, where `config.json` names none; null: no window


def has(config: ModelConfig) -> bool:
    """Whether a shape belongs to the Mistral family."""
    return all(map(config.is_windowed, range(config.layers))) and not config.qk_norm and not config.experts.count


def read(data: Fields) -> Fields:
    """Return the window of all layers, if there is one."""
    window = data.get("sliding_window", DEFAULT_WINDOW)
    return {"qk_norm": False, **({"window": window, "window_pattern": ("window",)} if window else {})}


FAMILY = Family(
    class_name="Mistral",
    has=has,
    fields=lambda config: {"sliding_window": config.window},
    read=read,
    presets={
        "mistral-7b-v0.1": preset(
            32_000,
            7_241_732_096,
            **sizes(4096, 32, 32, 8, 14_336),
            max_length=32_768,
            tied_embeddings=False,
            window=4096,
            window_pattern=["window"],
        )
    },
)

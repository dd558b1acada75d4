"""The shapes of the presets."""

from training.contract.records import read_record
from training.pretrain.models.presets import PRESETS
from training.pretrain.models.shape import ModelConfig, ModelRecipe


def preset_shape(name: str) -> ModelConfig:
    """Return the shape of a preset with its own vocabulary."""
    preset = PRESETS[name]
    return read_record(ModelRecipe, preset.model).shape(vocab_size=preset.vocab_size)

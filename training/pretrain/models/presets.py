"""Known shapes by name: a ladder of small models, and the published models of each family.

A recipe selects one as `model.preset`.

`parameters` is the count with the preset's own vocabulary; a recipe's vocabulary is its tokenizer's. The published
counts are those of the weight files, with a tied head counted once; a test compares each with the formula and with
transformers' class. Plain data, so that reading a recipe needs no torch.
"""

from __future__ import annotations

from training.pretrain.models.families import FAMILIES
from training.pretrain.models.family import Preset, preset, sizes


def _small(vocab_size: int, parameters: int, numbers: dict[str, int], max_length: int) -> Preset:
    """Return a preset of the ladder: tied embeddings, QK-norm, and about the usual number of layers for the width."""
    return preset(vocab_size, parameters, **numbers, max_length=max_length, qk_norm=True)


SMALL: dict[str, Preset] = {
    "1m": _small(2048, 1_066_368, sizes(128, 4, 4, 4, 352), 512),
    "3m": _small(4096, 3_443_520, sizes(192, 6, 6, 6, 512), 512),
    "10m": _small(8192, 10_131_968, sizes(256, 10, 4, 4, 704), 1024),
    "30m": _small(16_384, 31_721_920, sizes(448, 10, 7, 7, 1216), 1024),
    "100m": _small(32_768, 100_684_032, sizes(768, 12, 12, 4, 2048), 2048),
    "300m": _small(32_768, 304_140_288, sizes(1024, 24, 16, 4, 2816), 2048),
}

PRESETS: dict[str, Preset] = SMALL | {
    name: known for family in FAMILIES.values() for name, known in family.presets.items()
}

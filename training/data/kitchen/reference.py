"""Clean editorial texts from outside the world, for training the quality models and the perplexity model."""

from __future__ import annotations

from training.data.kitchen.world import KitchenWorld


def reference_texts(world: KitchenWorld) -> list[dict[str, object]]:
    return []

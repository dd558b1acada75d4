"""A cache of keys and values that leaves room for further tokens, so that no step of sampling copies it.

transformers' own cache is copied whole for each new token. Here keys and values have the precision of the keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

ROOM = 64  # tokens for which room is made at once


def roomy_cache(config: Any) -> DynamicCache:
    """Return an empty cache for a model with this configuration."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class RoomyLayer(DynamicLayer):
    """The cache of one layer: `keys` and `values` are the filled beginnings of larger tensors."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add keys and values [rows, heads, tokens, width], and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._rooms: list[Tensor] = []
        before, new = self.get_seq_length(), key_states.shape[-2]
        if not self._rooms or len(self._rooms[0]) != len(key_states) or self._rooms[0].shape[-2] < before + new:
            self._rooms = [self._room(one, before + new + ROOM, key_states.dtype) for one in (key_states, value_states)]
            if before and self.keys is not None and self.values is not None:
                for room, known in zip(self._rooms, (self.keys, self.values), strict=True):
                    room[..., :before, :] = known
        for room, some in zip(self._rooms, (key_states, value_states), strict=True):
            room[..., before : before + new, :] = some
        self.keys, self.values = (room[..., : before + new, :] for room in self._rooms)
        return self.keys, self.values

    @staticmethod
    def _room(like: Tensor, length: int, dtype: torch.dtype) -> Tensor:
        return like.new_empty((*like.shape[:-2], length, like.shape[-1]), dtype=dtype)

"""Attention in fp32 on a CPU, for models whose matrix products are in bf16.

There flash attention in bf16 takes four times as long as in fp32 (torch 2.13), and a product of bf16 with a part of a
larger tensor copies this part first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

IN_FP32 = "pedigree_fp32"  # the attention's name, as transformers knows it


@contextmanager
def attending(config: Any, name: str) -> Iterator[None]:
    """Context manager in whose block a model with this configuration has the attention of this name."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def in_fp32(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Return the attention [rows, tokens, heads, width], in fp32; key and value may have fewer heads than the query."""
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    with torch.autocast(query.device.type, enabled=False):
        made = functional.scaled_dot_product_attention(query.float(), key.float(), value.float(), **options)
    return made.transpose(1, 2)


def _of_rows(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    is_causal = attention_mask is None and query.shape[2] > 1
    return in_fp32(query, key, value, attn_mask=attention_mask, is_causal=is_causal, scale=scaling).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(IN_FP32, _of_rows)
ALL_MASK_ATTENTION_FUNCTIONS.register(IN_FP32, sdpa_mask)

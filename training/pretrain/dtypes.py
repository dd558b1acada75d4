"""The number formats that a run used, read off its tensors and the graph of one of its passes, not off its recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

# What autograd calls the products of matrices, ours and torch's; attention's are inside one node.
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "linear", "groupedmm", "blockattention")
ATTENTION = ("scaleddotproduct", "flexattention")  # in several forms, which begin so
FP8_PRODUCT = "matmul_with_hp_or_float8_args"  # torchao's: in fp8 inside, in the states' format outside


def formats_of(tensors: Iterable[Tensor]) -> str:
    """The formats of all of them, sorted, as one text; empty where there is none."""
    return ", ".join(sorted({_name(tensor.dtype) for tensor in tensors}))


def products_in(result: Tensor) -> dict[str, int]:
    """How many products of matrices were made on the way to `result`, by the format that they came out in.

    What torch compiled is one node for many products, and counted as `compiled`. The head's product lies within the
    loss, which is fp32 and no product: its format is that of the states.
    """
    found: Counter[str] = Counter()
    waiting, met = [result.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        waiting += [before for before, _ in node.next_functions]
        if (kind := _kind(node.name())) is not None:
            found[kind or _name(node._input_metadata[0].dtype)] += 1
    return dict(sorted(found.items()))


def _kind(name: str) -> str | None:
    """What a node is counted as: "" by its format; None not at all."""
    if name.startswith(FP8_PRODUCT):
        return "float8"
    if name.startswith("CompiledFunction"):
        return "compiled"
    plain = name.lower().lstrip("_").partition("backward")[0]
    return "" if plain in PRODUCTS or plain.startswith(ATTENTION) else None


def states_of(optimizers: Mapping[str, torch.optim.Optimizer]) -> Iterable[Tensor]:
    """Every tensor that optimizers keep."""
    for optimizer in optimizers.values():
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

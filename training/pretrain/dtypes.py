"""The number formats that a run used, read from its tensors and the autograd graph of one pass, not from its recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

# Autograd's names for matrix products, ours and torch's. All products of one attention are inside one node.
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "linear", "leanlinear", "groupedmm", "leangroupedmm", "blockattention")
ATTENTION = ("scaleddotproduct", "flexattention")  # prefixes of the names of several forms
FP8_PRODUCT = "matmul_with_hp_or_float8_args"  # torchao's product: fp8 inside, result in the states' format


def formats_of(tensors: Iterable[Tensor]) -> str:
    """Return the names of the tensors' number formats in one string: each once, sorted; empty without tensors."""
    return ", ".join(sorted({_name(tensor.dtype) for tensor in tensors}))


def products_in(result: Tensor) -> dict[str, int]:
    """Count the matrix products in the graph that led to `result`, by the format of their results.

    A compiled part is one node for many products and is counted as `compiled`. The head's product is not counted: it is
    inside the loss, whose node is fp32. Its format is that of the model's hidden states.
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
    """Return the label under which a node of the autograd graph is counted.

    The label is "" if the node's number format is to be the label, and None if the node is not counted.
    """
    if name.startswith(FP8_PRODUCT):
        return "float8"
    if name.startswith("CompiledFunction"):
        return "compiled"
    plain = name.lower().lstrip("_").partition("backward")[0]
    return "" if plain in PRODUCTS or plain.startswith(ATTENTION) else None


def states_of(optimizers: Mapping[str, torch.optim.Optimizer]) -> Iterable[Tensor]:
    """Yield every tensor of the optimizers' states."""
    for optimizer in optimizers.values():
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

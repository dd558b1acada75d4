"""A counter of the messages between processes."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Messages(TorchDispatchMode):
    """Counts the messages that this process takes part in, by the name of torch's operation: their number and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[int, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if function.namespace == "c10d":
            name = function.overloadpacket.__name__.strip("_")
            count, size = self.found.get(name, (0, 0))
            # The larger side: what a gather gives, and what a sum is given.
            sides = [sum(leaf.nbytes for leaf in tree_leaves(side) if isinstance(leaf, Tensor)) for side in args[:2]]
            self.found[name] = count + 1, size + max(sides)
        return function(*args, **(kwargs or {}))

"""Run code on tensors that have a shape and no content, and count the bytes that it holds, as on a GPU.

Tensors are those of torch's FakeTensorMode; other processes do not exist, and messages go nowhere. Counted are the
bytes of all live storages after each of torch's operations. Memory inside a kernel, of libraries and of the allocator
is not seen, and copies in the host's memory are not counted. Of torch itself only what needs content is replaced.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from training.contract.process.device_kind import as_on_gpu

DEVICE, ELSEWHERE = "device", "elsewhere"
# What is read from a tensor, by the method, unless torch knows the number. A file gets no bytes.
READS: dict[str, Any] = {"item": 1, "__int__": 1, "__index__": 1, "__float__": 1.0, "__bool__": True}
NO_BYTES = np.empty(0, dtype=np.uint8)
SHAPES_ALONE = "_propagate_tensor_meta_non_cached"  # DTensor computes the shape of a result with tensors of its own


class Memory(TorchDispatchMode):
    """Counts the bytes of all storages that torch's operations return, while they are alive.

    `peaks` has the most of each moment, on the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = DEVICE
        self.live = {DEVICE: 0, ELSEWHERE: 0}
        self.peaks: dict[str, int] = {}
        self.moment = ""
        self._held: dict[int, tuple[str, int]] = {}  # place and bytes of each storage

    def begin(self, moment: str) -> None:
        """Begin a moment, whose peak is at least what is held now."""
        self.moment, self.peaks[moment] = moment, max(self.peaks.get(moment, 0), self.live[DEVICE])

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Count storages that are made in this context as memory of the host, not of the device."""
        before, self.place = self.place, ELSEWHERE
        try:
            yield
        finally:
            self.place = before

    def each_elsewhere(self, made: Iterable[Any]) -> Iterator[Any]:
        """Yield what `made` yields, with its storages counted as memory of the host."""
        iterator = iter(made)
        while True:
            with self.elsewhere():
                one = next(iterator, None)
            if one is None:
                return
            yield one

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count the present size of a storage."""
        key = id(storage)
        if key not in self._held:
            self._held[key] = self.place, 0
            weakref.finalize(storage, self._freed, key)
        place, before = self._held[key]
        self._held[key] = place, storage.nbytes()
        self.live[place] += storage.nbytes() - before
        if self.moment:
            self.peaks[self.moment] = max(self.peaks[self.moment], self.live[DEVICE])

    def _freed(self, key: int) -> None:
        place, size = self._held.pop(key)
        self.live[place] -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own operations on local tensors come here
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                self.resized(leaf.untyped_storage())
        return made


class WithoutContent(TorchFunctionMode):
    """Gives a number wherever the code reads one from a tensor, and copies a tensor that goes to the host."""

    def __init__(self, counted: Memory) -> None:
        super().__init__()
        self.counted = counted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and isinstance(args[0], (FakeTensor, DTensor)):
            known = getattr(args[0], "constant", None)
            return READS[name] if known is None else getattr(known, name)()
        if name == "numpy" and isinstance(args[0], FakeTensor):
            return NO_BYTES
        if name == "__getitem__" and isinstance(args[1], FakeTensor) and args[1].dtype is torch.bool:
            return args[0].flatten(0, args[1].dim() - 1)  # as if the mask chose all
        if name == "data_ptr" and isinstance(args[0], FakeTensor):
            return id(args[0].untyped_storage())
        if func is torch.nonzero:
            return torch.arange(len(args[0]))  # and every row
        if name == "asarray" and isinstance(args[0], torch.UntypedStorage):  # safetensors reads a weight
            with self.counted.elsewhere():
                return torch.empty(args[0].nbytes(), dtype=torch.uint8)
        if name == "exponential_":
            return args[0]  # torch draws none by a generator
        if name == "cpu":
            with self.counted.elsewhere():
                return args[0].clone()
        return func(*args, **(kwargs or {}))


@contextmanager
def alone_of(processes: int, *, rank: int = 0) -> Iterator[None]:
    """Be one of so many processes of torch.distributed, of which no other exists; at the end be none of them."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=processes)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def without_content(counted: Memory) -> Iterator[None]:
    """Let torch compute shapes alone, by the code that is chosen on a GPU, and count what is held."""
    resize, shapes_of = torch.UntypedStorage.resize_, getattr(ShardingPropagator, SHAPES_ALONE)

    def resized(storage: torch.UntypedStorage, size: int) -> None:
        resize(storage, size)
        counted.resized(storage)

    def only_shapes(*given: Any) -> Any:
        with counted.elsewhere():
            return shapes_of(*given)

    replaced = (
        (FakeTensor, "tolist", _listed),
        (torch.UntypedStorage, "resize_", resized),  # torch does not dispatch this
        (ShardingPropagator, SHAPES_ALONE, only_shapes),
        (nn.Module, "_apply", _applying()),
        (dist, "all_gather_object", _all_told),
    )
    with ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(as_on_gpu())
        for mode in (FakeTensorMode(allow_non_fake_inputs=True), counted, WithoutContent(counted)):
            stack.enter_context(mode)
        yield


def _listed(tensor: FakeTensor) -> Any:
    """Return the numbers of a tensor in lists of its shape, as far as torch knows them; else zeros."""
    if tensor.constant is not None:
        return tensor.constant.tolist()
    zeros: Any = 0.0 if tensor.is_floating_point() else 0
    for size in reversed(tensor.shape):
        zeros = [zeros] * size
    return zeros


def _applying() -> Callable[..., nn.Module]:
    """Return a form of `Module._apply` that puts new weights in place of those that move or change.

    torch cannot exchange weights that have no content. A weight that has some gets a copy without; a weight that
    several modules share stays one.
    """
    made_of: Any = WeakIdKeyDictionary()  # what stands in place of a weight

    def applied(function: Callable[[Tensor], Tensor], weight: Tensor) -> Tensor:
        if weight in made_of:
            return made_of[weight]
        with torch.no_grad():
            made = function(weight)
        if made is weight and (made.is_meta or isinstance(made, (FakeTensor, DTensor))):
            return weight
        made = torch.empty_like(made) if made is weight else made
        is_parameter = isinstance(weight, nn.Parameter)
        made_of[weight] = nn.Parameter(made, requires_grad=weight.requires_grad) if is_parameter else made
        return made_of[weight]

    def apply(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        for child in module.children() if recurse else ():
            child._apply(function)
        for owned in cast("tuple[dict[str, Any], ...]", (module._parameters, module._buffers)):
            owned.update({name: applied(function, one) for name, one in owned.items() if one is not None})
        return module

    return apply


def _all_told(told: list[Any], own: Any, group: Any = None) -> None:
    """Let each other process say what this one says; of numbered batches, that it has those that are next."""
    is_numbered = isinstance(own, dict) and all(isinstance(number, int) for number in own)
    told[:] = [{n + rank: one for n, one in own.items()} if is_numbered else own for rank in range(len(told))]

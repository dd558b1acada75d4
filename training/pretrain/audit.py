"""Gradients added up in one order whatever the number of processes, so that 1, 2, 4, … of them give the same bits.

The micro-batches of a step are the leaves of a binary tree, in the order of their rows; what lies behind the last one
is missing. Every process takes the leaves of one subtree, and makes each one's gradients from nothing. Then pairs of
processes exchange what they have and both add it: a sum of two numbers does not depend on their order.

It takes one copy of the gradients for each level of a process's subtree, a pass over them for each micro-batch, and a
message of all of them for each doubling of the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from training.pretrain.parallel import World


def leaves(count: int, world: World) -> range:
    """The micro-batches, of `count`, that this process takes; none if the last processes have nothing to do."""
    share = _width(count) // world.size
    return range(min(count, world.rank * share), min(count, (world.rank + 1) * share))


def sum_gradients(
    tensors: Sequence[Tensor], backward: Callable[[int], Tensor], *, own: range, count: int, extras: int, world: World
) -> Tensor:
    """Leave the gradients of all `count` micro-batches in `tensors`; the sum of what `backward` gave, `extras` numbers.

    `backward` makes the gradients of one micro-batch, which it gets by its number.
    """

    def leaf(number: int) -> Tensor:
        for tensor in tensors:
            tensor.grad = None
        sums = backward(number)
        return torch.cat([sums, *(tensor.grad.reshape(-1) for tensor in tensors)])

    share = _width(count) // world.size
    total = subtree(leaf, world.rank * share, (world.rank + 1) * share, count=count) if own else None
    if total is None:
        total = torch.empty(extras + sum(tensor.numel() for tensor in tensors), device=world.device)
    total = _over_processes(total, share=share, count=count, world=world)
    at = extras
    for tensor in tensors:
        tensor.grad = total[at : at + tensor.numel()].view_as(tensor)
        at += tensor.numel()
    return total[:extras]


def subtree(leaf: Callable[[int], Tensor], first: int, stop: int, *, count: int) -> Tensor:
    """The sum of the leaves from `first` to before `stop`, a power of two of them, of which those from `count` miss."""
    if stop - first == 1:
        return leaf(first)
    middle = (first + stop) // 2
    left = subtree(leaf, first, middle, count=count)
    return left if middle >= count else left.add_(subtree(leaf, middle, stop, count=count))


def _over_processes(total: Tensor, *, share: int, count: int, world: World) -> Tensor:
    """The whole tree's sum from those of the processes' subtrees; that of one without leaves is not looked at."""
    step = 1
    while step < world.size:
        partner, block = world.rank ^ step, step * share
        has = [(rank // step) * block < count for rank in (world.rank, partner)]
        theirs = torch.empty_like(total)
        messages = []
        if has[0]:
            messages.append(dist.P2POp(dist.isend, total, partner))
        if has[1]:
            messages.append(dist.P2POp(dist.irecv, theirs, partner))
        for message in dist.batch_isend_irecv(messages) if messages else ():
            message.wait()
        if all(has):
            total = total + theirs
        elif has[1]:
            total = theirs
        step *= 2
    return total


def _width(count: int) -> int:
    """Leaves of the smallest full tree that has `count`."""
    return 1 << (count - 1).bit_length()

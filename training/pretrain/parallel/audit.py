"""Sum gradients in the same order for every number of processes, so that 1, 2, 4, … processes give the same bits.

The micro-batches of a step are the leaves of a full binary tree, in the order of their rows; the tree's last leaves may
be missing. Every process takes the leaves of one subtree and computes the gradients of each leaf separately. Then pairs
of processes exchange their sums and both add them: a sum of two numbers does not depend on their order.

The cost is one copy of the gradients for each level of a process's subtree, a pass over them for each micro-batch, and
a message with all gradients each time the number of processes doubles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from training.pretrain.optim.gradient import gradient_of
from training.pretrain.parallel.world import World


def leaves(count: int, world: World) -> range:
    """Return which of `count` micro-batches this process takes; the last processes may have an empty range."""
    share = _width(count) // world.size
    return range(min(count, world.rank * share), min(count, (world.rank + 1) * share))


def sum_gradients(
    tensors: Sequence[Tensor], backward: Callable[[int], Tensor], *, own: range, count: int, extras: int, world: World
) -> Tensor:
    """Set each tensor's gradient to the sum over all `count` micro-batches; return the sums of their numbers.

    `backward` computes the gradients of the micro-batch with the given number and returns its `extras` numbers, such as
    its loss.
    """

    def leaf(number: int) -> Tensor:
        for tensor in tensors:
            tensor.grad = None
        sums = backward(number)
        return torch.cat([sums, *(gradient_of(tensor).reshape(-1) for tensor in tensors)])

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
    """Return the sum over the leaves (micro-batches) `first` to `stop` - 1, whose number is a power of two.

    Leaves from `count` on do not exist and are left out.
    """
    if stop - first == 1:
        return leaf(first)
    middle = (first + stop) // 2
    left = subtree(leaf, first, middle, count=count)
    return left if middle >= count else left.add_(subtree(leaf, middle, stop, count=count))


def _over_processes(total: Tensor, *, share: int, count: int, world: World) -> Tensor:
    """Return the sum over the whole tree. `total` is the sum over this process's subtree of `share` leaves.

    The `total` of a process without leaves is not used.
    """
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
    """Return the number of leaves of the smallest full binary tree with at least `count` leaves."""
    return 1 << (count - 1).bit_length()

"""Communication between the layers of different processes: sums and concatenations with gradients.

A layer calls the methods of its `Lanes`. In a process that holds the whole model they return their argument unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

# torch 2.13 renamed both functions and warns about the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    """The groups of processes with which a layer communicates along each axis; None means that this process is alone.

    positions: the processes that hold parts of the same rows, that is, the group along the axes context and tensor
    together.
    """

    tensor: ProcessGroup | None = None
    context: ProcessGroup | None = None
    expert: ProcessGroup | None = None
    positions: ProcessGroup | None = None

    def enter(self, x_BLD: Tensor) -> Tensor:
        """Gather all positions of the rows from the tensor group.

        This comes before a layer of which this process has some heads or columns.
        """
        return x_BLD if self.tensor is None else joined(x_BLD, 1, self.tensor)

    def leave(self, x_BLD: Tensor) -> Tensor:
        """Sum the partial results of the tensor group after a layer; return this process's positions.

        Source: sequence parallelism, arXiv 2205.05198.
        """
        return x_BLD if self.tensor is None else summed(x_BLD, 1, self.tensor)

    @property
    def parts(self) -> int:
        """Number of processes among which the positions of a row are divided."""
        return 1 if self.positions is None else dist.get_world_size(self.positions)

    def row_counts(self, counts: Tensor) -> Tensor:
        """Return counts summed over the processes that hold parts of the same rows, without a gradient."""
        if self.positions is None:
            return counts
        counts = counts.clone()
        dist.all_reduce(counts, group=self.positions)
        return counts


def joined(x: Tensor, axis: int, group: ProcessGroup) -> Tensor:
    """Concatenate the group's parts along `axis`; in the backward pass the gradients are summed and cut into parts."""
    return _Joined.apply(x, axis, group)


def joined_ends(x: Tensor, axis: int, group: ProcessGroup) -> Tensor:
    """Put the positions of all processes along `axis` into their order in the row, if each has those of `both_ends`.

    In the backward pass the gradients are summed, and each process gets those of its positions.
    """
    return _JoinedEnds.apply(x, axis, group)


def summed(x: Tensor, axis: int, group: ProcessGroup) -> Tensor:
    """Return this process's part, along `axis`, of the sum over the group; the backward pass concatenates gradients."""
    return _Summed.apply(x, axis, group)


def exchanged(rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    """Send `sent[0]` rows to the group's first process, the next `sent[1]` to the second, and so on.

    Return the received rows in the order of their senders.
    """
    return _Exchanged.apply(rows, sent, received, group)


def both_ends(length: int, parts: int, place: int) -> tuple[range, range]:
    """Return one context-parallel process's positions in a row of tokens: one run near each end of the row.

    `place` is the process's number among `parts`.

    With causal attention early positions see few others and late ones many, so that this gives each process as much
    work (arXiv 2407.21783, section 3.3.2).
    """
    head = length // parts // 2
    tail = length // parts - head
    start = length - (place + 1) * tail
    return range(place * head, (place + 1) * head), range(start, start + tail)


def join(x: Tensor, axis: int, group: ProcessGroup) -> Tensor:
    """Concatenate the group's parts along `axis`, as `joined` does, but without a gradient."""
    parts = _gathered(x, group).unflatten(0, (dist.get_world_size(group), -1))
    return parts.movedim(0, axis).flatten(axis, axis + 1)  # a copy only if the parts do not lie one after the other


def join_at_first(x: Tensor, axis: int, group: ProcessGroup) -> Tensor:
    """Do the same as `join` in the group's first process; the others send their parts and get theirs back."""
    if dist.get_rank(group):
        dist.gather(x.contiguous(), group=group, group_dst=0)
        return x
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.gather(x.contiguous(), parts, group=group, group_dst=0)
    return torch.cat(parts, axis)


def cut_sum(x: Tensor, axis: int, group: ProcessGroup) -> Tensor:
    """Return this process's part of the sum over the group, as `summed` does, but without a gradient."""
    parts = x.unflatten(axis, (dist.get_world_size(group), -1)).movedim(axis, 0).flatten(0, 1)
    return _own_sum(parts.contiguous(), group)


def _gathered(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return the parts of all processes, one after the other along the first axis."""
    parts = x.new_empty(dist.get_world_size(group) * x.shape[0], *x.shape[1:])
    _all_gather(parts, x.contiguous(), group=group)
    return parts


def _own_sum(parts: Tensor, group: ProcessGroup) -> Tensor:
    """Sum over the group what has a part for each process along the first axis; return this process's part."""
    own = parts.new_empty(parts.shape[0] // dist.get_world_size(group), *parts.shape[1:])
    _reduce_scatter(own, parts, group=group)
    return own


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, axis, group):
        ctx.axis, ctx.group = axis, group
        return join(x, axis, group)

    @staticmethod
    def backward(ctx, grad):
        return cut_sum(grad, ctx.axis, ctx.group), None, None


class _JoinedEnds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, axis, group):
        ctx.axis, ctx.group = axis, group
        parts, size = _gathered(x, group).chunk(dist.get_world_size(group)), x.shape[axis]
        heads, tails = zip(*(part.split((size // 2, size - size // 2), dim=axis) for part in parts), strict=True)
        return torch.cat((*heads, *reversed(tails)), dim=axis)

    @staticmethod
    def backward(ctx, grad):
        axis, size = ctx.axis, dist.get_world_size(ctx.group)
        runs = (run for place in range(size) for run in both_ends(grad.shape[axis], size, place))
        parts = [grad.narrow(axis, run.start, len(run)) for run in runs]
        pairs = [torch.cat(pair, dim=axis) for pair in zip(parts[::2], parts[1::2], strict=True)]
        return _own_sum(torch.cat(pairs), ctx.group), None, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, axis, group):
        ctx.axis, ctx.group = axis, group
        return cut_sum(x, axis, group)

    @staticmethod
    def backward(ctx, grad):
        return join(grad, ctx.axis, ctx.group), None, None


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchange(rows, sent, received, group)

    @staticmethod
    def backward(ctx, grad):
        return _exchange(grad, ctx.received, ctx.sent, ctx.group), None, None, None


def _exchange(rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    came = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(came, rows.contiguous(), received, sent, group=group)
    return came

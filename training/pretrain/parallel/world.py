"""One process of those that torchrun started: its position on the device mesh, its process groups, and its rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from training.pretrain.models.collectives import Lanes, both_ends
from training.pretrain.parallel.degrees import AXES, OF_A_TENSOR, OF_AN_EXPERT, WHOLE, Degrees, micro_batches_in
from training.pretrain.parallel.watchdog import remember_messages

POSITIONS = ("context", "tensor")
ROWS = ("replicate", "shard", "expert")
PARTS_OF_A_ROW = ("pipeline", *POSITIONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """The distributed job as one process sees it: its rank and device, the number of processes, mesh and groups.

    If every process holds the whole model, `mesh` is None and there are no groups.
    """

    rank: int
    size: int
    device: torch.device
    degrees: Degrees = field(default_factory=Degrees)
    mesh: DeviceMesh | None = None
    groups: dict[tuple[str, ...], ProcessGroup] = field(default_factory=dict)
    backward: ProcessGroup | None = None  # another group of the same pipeline processes, for gradients
    ends: ProcessGroup | None = None  # the pipeline's first and last process; None in others

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files and the log."""
        return self.rank == 0

    @property
    def is_split(self) -> bool:
        """Whether a model is spread over several processes."""
        return self.degrees.product > 1

    def length(self, *axes: str) -> int:
        """Return the number of processes along these axes together."""
        sizes = self.degrees.sizes(self.size)
        return prod(sizes[axis] for axis in axes)

    def place(self, *axes: str) -> int:
        """Return this process's number among the processes along these axes, numbered with the last axis fastest."""
        own = _places(self.rank, self.degrees.sizes(self.size))
        number = 0
        for axis in axes:
            number = number * self.length(axis) + own[axis]
        return number

    def group(self, *axes: str) -> ProcessGroup | None:
        """Return the group of processes that differ from this one along these axes only.

        The result is None if there are no other processes.
        """
        return self.groups.get(tuple(axis for axis in axes if self.length(axis) > 1))

    def lanes(self) -> Lanes:
        """Return the groups that this process's layers exchange data with."""
        return Lanes(
            tensor=self.group("tensor"),
            context=self.group("context"),
            expert=self.group("expert"),
            positions=self.group(*POSITIONS),
        )

    def positions(self, length: int, *axes: str) -> list[int]:
        """Return this process's positions, ascending, in a row of `length` that is divided along these axes.

        Along `context` each process has a run near each end of the row, so that all have as much work in attention.
        Along `tensor` each has a part of these.
        """
        own = list(range(length))
        if "context" in axes:
            own = [place for run in both_ends(length, self.length("context"), self.place("context")) for place in run]
        if "tensor" in axes:
            size = len(own) // self.length("tensor")
            own = own[self.place("tensor") * size :][:size]
        return own

    def sum(self, vector: Tensor, *axes: str) -> Tensor:
        """Sum `vector` in place over all processes, or along these axes; every process gets the same bits."""
        if self.size > 1 and (not axes or self.length(*axes) > 1):
            dist.all_reduce(vector, group=self.group(*axes) if axes else None)
        return vector

    def largest(self, vector: Tensor) -> Tensor:
        """Return the largest value of each number over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(vector, op=dist.ReduceOp.MAX)
        return vector

    def first_said(self, said: str) -> str:
        """Return the first non-empty text that any process passed as `said`, in the order of ranks.

        It is "" if all are empty. All processes must call this, and all get the same text.
        """
        return next(filter(None, self.all_said(said)), "")

    def all_said(self, said: str) -> list[str]:
        """Return the text that each process passed as `said`, in the order of ranks. All processes must call this."""
        if self.size == 1:
            return [said]
        told = [""] * self.size
        dist.all_gather_object(told, said)
        return told

    def wait(self) -> None:
        """Wait until every process has called this (a barrier)."""
        if self.size > 1:
            dist.barrier()


def own_device() -> torch.device:
    """Return this process's GPU if there is one, otherwise the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def joined_world(degrees: Degrees | None = None, *, hang_seconds: float = 1800.0) -> Iterator[World]:
    """Join the processes that torchrun's environment variables describe; leave the process group at the end.

    Without these variables the process is alone. Raise RecipeError if the degrees do not fit the number of processes.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    degrees = degrees or Degrees()
    degrees.sizes(size)
    if size > 1:
        remember_messages()
        dist.init_process_group(
            # Longer than the watchdog's limit, because the watchdog can report which process hangs.
            "nccl" if device.type == "cuda" else "gloo",
            timeout=timedelta(seconds=2 * hang_seconds + 60),
        )
    try:
        yield make_world(degrees, rank=rank, size=size, device=device)
    finally:
        if size > 1:
            dist.destroy_process_group()


def make_world(degrees: Degrees, *, rank: int, size: int, device: torch.device) -> World:
    """Return a world with its mesh and groups. Every process must call this with the same degrees."""
    if degrees.product == 1:
        return World(rank=rank, size=size, device=device)
    sizes = degrees.sizes(size)
    sums = [WHOLE, OF_A_TENSOR, OF_AN_EXPERT]
    by_us = [tuple(axis for axis in axes if axis not in degrees.summed_by_fsdp) for axes in sums]
    wanted = [*((axis,) for axis in AXES), POSITIONS, PARTS_OF_A_ROW, ROWS, *sums, *by_us]
    present = dict.fromkeys(tuple(axis for axis in axes if sizes[axis] > 1) for axes in wanted)
    groups = {axes: _group(_fellows(axes, rank, sizes)) for axes in present if axes}
    stages = _fellows(("pipeline",), rank, sizes) if degrees.pipeline > 1 else []
    backward = _group(stages) if stages else None
    for group in (groups.get(("pipeline",)), backward):
        if group is not None:  # NCCL joins a group at its first collective, but not at a batch between neighbours
            dist.all_reduce(torch.zeros((), device=device), group=group)
    return World(
        rank=rank,
        size=size,
        device=device,
        degrees=degrees,
        mesh=_mesh(groups, sizes, device) if degrees.shard > 1 else None,
        groups=groups,
        backward=backward,
        ends=_group(stages[:1] + stages[-1:]) if rank in stages[:1] + stages[-1:] else None,
    )


def _group(ranks: list[int]) -> ProcessGroup:
    """Create the process group of these ranks. They alone must call this, each in the same order of groups."""
    group = dist.new_group(ranks, use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup), "each member creates the group"
    return group


def _fellows(axes: tuple[str, ...], rank: int, sizes: dict[str, int]) -> list[int]:
    """Return, ascending, the ranks of the processes that differ from this one along `axes` only."""
    own = _places(rank, sizes)
    found = [0]
    for axis in AXES:
        chosen = range(sizes[axis]) if axis in axes else [own[axis]]
        found = [before * sizes[axis] + place for before in found for place in chosen]
    return found


def _mesh(groups: dict[tuple[str, ...], ProcessGroup], sizes: dict[str, int], device: torch.device) -> DeviceMesh:
    """Return a mesh of the axes that have several processes, with the groups that exist."""
    axes = [axis for axis in AXES if sizes[axis] > 1]
    ranks = torch.arange(prod(sizes.values())).view([sizes[axis] for axis in axes])
    return DeviceMesh.from_group(
        [groups[(axis,)] for axis in axes],
        device.type,
        mesh=ranks,
        mesh_dim_names=tuple(axes),
    )


def _places(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    """Return the place along each axis of the process with this rank."""
    places = {}
    for axis in reversed(AXES):
        rank, places[axis] = divmod(rank, sizes[axis])
    return places


def micro_batches(
    rows: int,
    *,
    sequence_length: int,
    micro_batch_tokens: int | None,
    world: World,
    chosen: Callable[[int], Iterable[int]] | None = None,
) -> list[range]:
    """Return the rows of the global batch that this process takes in each pass; one pass without `micro_batch_tokens`.

    `chosen` returns the numbers of this process's micro-batches, given how many there are; None deals them out in turn.
    Some processes have one pass more than others if the micro-batches do not divide evenly. Raise RecipeError if rows
    do not divide over micro-batches, or if a process would have none.
    """
    sets = world.length(*ROWS)
    count = micro_batches_in(
        global_batch_tokens=rows * sequence_length,
        sequence_length=sequence_length,
        micro_batch_tokens=micro_batch_tokens,
        data_parallel=sets,
    )
    size = rows // count
    own = range(world.place(*ROWS), count, sets) if chosen is None else chosen(count)
    return [range(number * size, (number + 1) * size) for number in own]

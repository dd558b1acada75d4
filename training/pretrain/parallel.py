"""Data parallelism over the processes that torchrun started: who this process is, and sums over all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from training.recipe import accumulation_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """This process among its peers."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def sum(self, vector: Tensor) -> Tensor:
        """`vector` summed over all processes, in place; every process gets the same bits."""
        if self.size > 1:
            dist.all_reduce(vector)
        return vector

    def wait(self) -> None:
        """Return when every process has come here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined_world() -> Iterator[World]:
    """The world that torchrun's variables describe; alone when there are none. Leaves the process group at the end."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(rank=rank, size=size, device=device)
    finally:
        if size > 1:
            dist.destroy_process_group()


def micro_batches(rows: int, *, sequence_length: int, micro_batch_tokens: int, world: World) -> list[range]:
    """The rows of the global batch that this process takes in each pass; 0 `micro_batch_tokens` means one pass.

    RecipeError when rows do not divide over passes and processes.
    """
    passes = accumulation_steps(
        global_batch_tokens=rows * sequence_length,
        sequence_length=sequence_length,
        micro_batch_tokens=micro_batch_tokens,
        data_parallel=world.size,
    )
    size = rows // (passes * world.size)
    starts = [(number * world.size + world.rank) * size for number in range(passes)]
    return [range(start, start + size) for start in starts]


def sum_gradients(parameters: Sequence[Tensor], extras: Tensor, world: World) -> Tensor:
    """Replace each gradient by its sum over processes; returns `extras` (a few fp32 numbers) summed likewise.

    One message a step: for the model sizes this is for, latency costs more than the copy.
    """
    if world.size == 1:
        return extras
    flat = world.sum(torch.cat([extras, *(p.grad.reshape(-1) for p in parameters)]))
    at = len(extras)
    for parameter in parameters:
        parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()
    return flat[: len(extras)]

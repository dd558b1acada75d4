"""Data parallelism over the processes that torchrun started: who this process is, and sums over all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from training.records import RecipeError


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


def accumulation_steps(*, global_batch_tokens: int, micro_batch_tokens: int, data_parallel: int) -> int:
    """Micro-batches each rank runs per optimizer step.

    The global batch is the recipe's and fixes the result; the other two are the profile's and fix only how it is
    spread over the machine. Raises RecipeError when they do not divide evenly, because rounding would train a
    different model than the recipe names.
    """
    tokens_per_pass = micro_batch_tokens * data_parallel
    if tokens_per_pass < 1:
        raise RecipeError(
            f"micro_batch_tokens={micro_batch_tokens} over {data_parallel} processes; both must be at least 1"
        )
    steps, remainder = divmod(global_batch_tokens, tokens_per_pass)
    if remainder or steps == 0:
        raise RecipeError(
            f"global_batch_tokens={global_batch_tokens} is not a multiple of "
            f"micro_batch_tokens * data_parallel = {micro_batch_tokens} * {data_parallel} = {tokens_per_pass}"
        )
    return steps


def micro_batches(rows: int, *, sequence_length: int, micro_batch_tokens: int, world: World) -> list[range]:
    """The rows of the global batch that this process takes in each pass; 0 `micro_batch_tokens` means one pass.

    RecipeError when rows do not divide over passes and processes.
    """
    total = rows * sequence_length
    wanted = micro_batch_tokens or total // world.size
    if wanted % sequence_length:
        raise RecipeError(f"micro_batch_tokens={wanted} is not a multiple of sequence_length={sequence_length}")
    passes = accumulation_steps(global_batch_tokens=total, micro_batch_tokens=wanted, data_parallel=world.size)
    size = wanted // sequence_length
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

"""Pipeline parallelism: which chunks of layers each process has, and in what order micro-batches pass through them.

1F1B (arXiv 2104.04473, section 2.2.1): after a warmup every process alternates forward and backward passes, so that it
stores no more micro-batches than there are stages. With several chunks in each process it is the interleaved schedule
of the same paper (section 2.2.2), which has shorter idle times and more messages. Chunk c of process s has number c · S
+ s among all chunks, where S is the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from training.pretrain.optim.gradient import gradient_of
from training.pretrain.parallel import World


class Action(NamedTuple):
    """A pass of one micro-batch through one of a process's chunks."""

    is_forward: bool
    chunk: int
    number: int  # of the micro-batch


def schedule(stage: int, *, stages: int, chunks: int, count: int) -> list[Action]:
    """Return the actions of a process in order. With several chunks, `count` must be a multiple of `stages`."""
    total = count * chunks
    ahead = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    ahead = min(ahead, total)

    def action(number: int, is_forward: bool) -> Action:
        chunk = number // stages % chunks
        micro = number // (stages * chunks) * stages + number % stages if chunks > 1 else number
        return Action(is_forward, chunk if is_forward else chunks - 1 - chunk, micro)

    order = [action(number, True) for number in range(ahead)]
    for number in range(total - ahead):
        order += [action(ahead + number, True), action(number, False)]
    return order + [action(number, False) for number in range(total - ahead, total)]


def layers_of(number: int, *, layers: int, parts: int) -> range:
    """Return the layers of chunk `number` of `parts` equal chunks."""
    size = layers // parts
    return range(number * size, (number + 1) * size)


class PipelinePart:
    """This process's part of the pipeline (a stage): its layers, and its messages to neighbouring stages."""

    def __init__(self, world: World, *, layers: int) -> None:
        self.world = world
        self.stage, self.stages, self.chunks = (
            world.place("pipeline"),
            world.length("pipeline"),
            world.degrees.pipeline_chunks,
        )
        parts = self.stages * self.chunks
        self.layers = [
            layers_of(chunk * self.stages + self.stage, layers=layers, parts=parts) for chunk in range(self.chunks)
        ]
        self._sent: list[tuple[dist.Work | None, Tensor]] = []

    def padded(self, count: int) -> int:
        """Return the number of micro-batches to run: `count` rounded up to what the interleaved schedule requires."""
        return count if self.chunks == 1 else -(-count // self.stages) * self.stages

    def is_first(self, chunk: int) -> bool:
        """Whether a chunk begins with the embedding."""
        return chunk == 0 and self.stage == 0

    def is_last(self, chunk: int) -> bool:
        """Whether a chunk ends with the loss."""
        return chunk == self.chunks - 1 and self.stage == self.stages - 1

    def train(
        self,
        count: int,
        forward: Callable[[int, int, Tensor | None], tuple[Tensor, Tensor | None]],
        like: Callable[[int], Tensor],
    ) -> None:
        """Run the forward and backward passes of `count` micro-batches.

        `forward(number, chunk, given)` returns a chunk's output for the input `given` (None at the embedding), which
        for the last chunk is the loss, and a further term to minimize (None: no such term). `like(number)` returns a
        tensor with the shape and dtype of the states that are sent on.
        """
        kept: dict[tuple[int, int], tuple[Tensor | None, Tensor, Tensor | None]] = {}
        for is_forward, chunk, number in schedule(self.stage, stages=self.stages, chunks=self.chunks, count=count):
            if is_forward:
                given = None if self.is_first(chunk) else self._received(like(number), forward=True).requires_grad_()
                made, more = forward(number, chunk, given)
                kept[chunk, number] = given, made, more
                if not self.is_last(chunk):
                    self._send(made.detach(), forward=True)
                continue
            given, made, more = kept.pop((chunk, number))
            gradient = None if self.is_last(chunk) else self._received(like(number), forward=False)
            minimized = [(made, gradient), *([(more, None)] if more is not None else [])]
            torch.autograd.backward([one for one, _ in minimized], [gradient for _, gradient in minimized])
            if given is not None:
                self._send(gradient_of(given), forward=False)
        self._settle()

    def evaluate(self, forward: Callable[[int, Tensor | None], Tensor], like: Tensor) -> Iterator[Tensor]:
        """Run a forward pass through all stages.

        The process that has the last chunk yields its output; the others yield nothing.
        """
        for chunk in range(self.chunks):
            given = None if self.is_first(chunk) else self._received(like, forward=True)
            made = forward(chunk, given)
            if self.is_last(chunk):
                yield made
            else:
                self._send(made, forward=True)
        self._settle()

    # Neighbours differ only in their place in the pipeline. Each direction has its own group, so that a message that
    # waits in one direction does not block the other.

    def _rank(self, step: int) -> int:
        block = self.world.size // self.stages
        return (self.stage + step) % self.stages * block + self.world.rank % block

    def _send(self, tensor: Tensor, *, forward: bool) -> None:
        tensor = tensor.contiguous()
        work = dist.isend(tensor, self._rank(1 if forward else -1), group=self._group(forward))
        self._sent.append((work, tensor))

    def _received(self, like: Tensor, *, forward: bool) -> Tensor:
        tensor = torch.empty_like(like)
        dist.recv(tensor, self._rank(-1 if forward else 1), group=self._group(forward))
        return tensor

    def _group(self, forward: bool) -> dist.ProcessGroup | None:
        return self.world.group("pipeline") if forward else self.world.backward

    def _settle(self) -> None:
        for work, _ in self._sent:
            if work is not None:
                work.wait()
        self._sent.clear()

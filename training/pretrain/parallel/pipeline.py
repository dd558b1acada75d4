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
from training.pretrain.parallel.world import World


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


class _Exchange(NamedTuple):
    """Messages that were issued together; their tensors are kept until they are over."""

    works: list[dist.Work]
    sent: Tensor | None
    received: Tensor | None


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
        self._posted: list[_Exchange] = []
        self._coming: dict[bool, _Exchange] = {}  # by direction, the batch with the next state or gradient

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
        actions = schedule(self.stage, stages=self.stages, chunks=self.chunks, count=count)
        following = {forward: iter([one for one in actions if one.is_forward == forward]) for forward in (True, False)}

        def exchange(made: Tensor | None, *, forward: bool) -> None:
            """Send a result, and begin to receive what the next pass of this direction needs."""
            coming = next(following[forward], None)
            receives = coming is not None and not self._begins(coming)
            self._post(made, like(coming.number) if coming is not None and receives else None, forward=forward)

        exchange(None, forward=True)
        exchange(None, forward=False)
        for action in actions:
            is_forward, chunk, number = action
            given = None if self._begins(action) else self._received(forward=is_forward)
            if is_forward:
                given = given.requires_grad_() if given is not None else None
                made, more = forward(number, chunk, given)
                kept[chunk, number] = given, made, more
                exchange(None if self.is_last(chunk) else made.detach(), forward=True)
                continue
            state, made, more = kept.pop((chunk, number))
            minimized = [(made, given), *([(more, None)] if more is not None else [])]
            torch.autograd.backward([one for one, _ in minimized], [gradient for _, gradient in minimized])
            exchange(gradient_of(state) if state is not None else None, forward=False)
        self._settle()

    def _begins(self, action: Action) -> bool:
        """Whether a pass needs nothing from another process: the embedding's forward, and the loss's backward pass."""
        return self.is_first(action.chunk) if action.is_forward else self.is_last(action.chunk)

    def evaluate(self, forward: Callable[[int, Tensor | None], Tensor], like: Tensor) -> Iterator[Tensor]:
        """Run a forward pass through all stages.

        The process that has the last chunk yields its output; the others yield nothing.
        """
        for chunk in range(self.chunks):
            given = None
            if not self.is_first(chunk):
                self._post(None, like, forward=True)
                given = self._received(forward=True)
            made = forward(chunk, given)
            if self.is_last(chunk):
                yield made
            else:
                self._post(made, None, forward=True)
        self._settle()

    # Neighbours differ only in their place in the pipeline. NCCL runs the messages of a group in the order in which a
    # process issues them, and each waits for its partner's. With several chunks the last stage sends to the first, so
    # that all could wait in a send for a receive that stands behind the next one's send. So a result is sent together
    # with the receive of the next pass's input, as one batch, and each direction has its own group. Every message is in
    # a batch, also a lone one, because torch issues others on other communicators.

    def _rank(self, step: int) -> int:
        block = self.world.size // self.stages
        return (self.stage + step) % self.stages * block + self.world.rank % block

    def _post(self, made: Tensor | None, like: Tensor | None, *, forward: bool) -> None:
        """Begin to send `made` on and to receive a tensor such as `like`, both in one direction and each if given."""
        step, group = (1, self.world.group("pipeline")) if forward else (-1, self.world.backward)
        sent = made.contiguous() if made is not None else None
        received = torch.empty_like(like) if like is not None else None
        messages = [dist.P2POp(dist.isend, sent, self._rank(step), group)] if sent is not None else []
        messages += [dist.P2POp(dist.irecv, received, self._rank(-step), group)] if received is not None else []
        if messages:
            batch = _Exchange(dist.batch_isend_irecv(messages), sent, received)
            self._posted = [one for one in self._posted if not all(work.is_completed() for work in one.works)]
            self._posted.append(batch)
            if received is not None:
                self._coming[forward] = batch

    def _received(self, *, forward: bool) -> Tensor:
        """Return the tensor whose receive was posted last in this direction, once it is there."""
        batch = self._coming.pop(forward)
        # NCCL has one work for the whole batch, gloo one for each message, and none may be waited for twice.
        batch.works.pop().wait()
        assert batch.received is not None
        return batch.received

    def _settle(self) -> None:
        for batch in self._posted:
            for work in batch.works:
                work.wait()
        self._posted.clear()

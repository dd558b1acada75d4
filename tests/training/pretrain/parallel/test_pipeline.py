"""The messages of a pipeline do not wait for each other in a circle, by the rule by which NCCL runs them.

gloo does not have this rule, so meshes of CPUs hide such a circle. The rule: a process issues messages without waiting;
those of one group run in the order in which they were issued, a batch at a time; a message is over when its partner
runs too, a batch when all its messages are; what a pass needs it waits for, and a message begins after the pass before
it.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch

from training.pretrain.parallel import pipeline
from training.pretrain.parallel.degrees import Degrees
from training.pretrain.parallel.pipeline import PipelinePart, schedule
from training.pretrain.parallel.world import World

PASS = "pass"


class Batch(NamedTuple):
    """Messages that were issued together: (kind, the other process), `kind` one of isend and irecv."""

    group: str
    messages: tuple[tuple[str, int], ...]
    at: int  # how many passes and waits come before


class Wait(NamedTuple):
    """The process's passes go on when this batch, one of `issued` by number, is over."""

    number: int


class Process(NamedTuple):
    """What one process issues: batches, and beside them its passes and waits in order."""

    issued: list[Batch]
    passes: list[str | Wait]


def recorded(stage: int, *, stages: int, chunks: int, count: int, monkeypatch) -> Process:
    """Run the real pipeline of one process; its messages are recorded, and what it receives is 0."""
    process = Process([], [])

    class Work:
        def __init__(self, number):
            self._number = number

        def wait(self):
            process.passes.append(Wait(self._number))

        def is_completed(self):
            return False

    def batch_isend_irecv(messages):
        (group,) = {group for *_, group in messages}
        process.issued.append(Batch(group, tuple((kind, peer) for kind, _, peer, _ in messages), len(process.passes)))
        return [Work(len(process.issued) - 1)]

    told = types.SimpleNamespace(
        isend="isend", irecv="irecv", P2POp=lambda *message: message, batch_isend_irecv=batch_isend_irecv
    )
    monkeypatch.setattr(pipeline, "dist", told)
    degrees = Degrees(pipeline=stages, pipeline_chunks=chunks)
    world = World(rank=stage, size=stages, device=torch.device("cpu"), degrees=degrees, backward="backward")
    monkeypatch.setattr(World, "group", lambda self, *axes: "forward")
    part = PipelinePart(world, layers=stages * chunks)

    def forward(number, chunk, given):
        process.passes.append(PASS)
        start = given if given is not None else torch.zeros(1, requires_grad=True)
        return start * 2.0, None

    part.train(count, forward, lambda number: torch.zeros(1))
    return process


def alone(stage: int, *, stages: int, chunks: int, count: int) -> Process:
    """The same messages, each issued by itself: a send after the pass that made it, a receive before its pass."""
    process = Process([], [])

    def post(kind, forward, step):
        place = (stage + step) % stages
        process.issued.append(Batch("forward" if forward else "backward", ((kind, place),), len(process.passes)))

    for is_forward, chunk, _ in schedule(stage, stages=stages, chunks=chunks, count=count):
        number, step = chunk * stages + stage, 1 if is_forward else -1
        begins, ends = (0, stages * chunks - 1)[::step]
        if number != begins:
            post("irecv", is_forward, -step)
            process.passes.append(Wait(len(process.issued) - 1))
        process.passes.append(PASS)
        if number != ends:
            post("isend", is_forward, step)
    return process


def left_over(processes: list[Process]) -> list[int]:
    """Run the processes by NCCL's rule; return how many passes and waits of each are left when all wait."""
    done = [0] * len(processes)
    over: list[set[int]] = [set() for _ in processes]
    missing = [[list(batch.messages) for batch in process.issued] for process in processes]

    def running(rank: int) -> Iterator[int]:
        for group in {batch.group for batch in processes[rank].issued}:
            numbers = [number for number, batch in enumerate(processes[rank].issued) if batch.group == group]
            first = next((number for number in numbers if number not in over[rank]), None)
            if first is not None and processes[rank].issued[first].at <= done[rank]:
                yield first

    moved = True
    while moved:
        moved = False
        for rank, process in enumerate(processes):
            for number in list(running(rank)):
                group = process.issued[number].group
                for kind, peer in list(missing[rank][number]):
                    partner = ({"isend": "irecv", "irecv": "isend"}[kind], rank)
                    for other in running(peer):
                        if processes[peer].issued[other].group == group and partner in missing[peer][other]:
                            missing[rank][number].remove((kind, peer))
                            missing[peer][other].remove(partner)
                            moved = True
                            break
            ended = {number for number in running(rank) if not missing[rank][number]}
            over[rank] |= ended
            moved = moved or bool(ended)
            while done[rank] < len(process.passes):
                here = process.passes[done[rank]]
                if isinstance(here, Wait) and here.number not in over[rank]:
                    break
                done[rank] += 1
                moved = True
    return [len(process.passes) - at for process, at in zip(processes, done, strict=True)]


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_no_message_waits_for_itself(stages, chunks, monkeypatch):
    for count in (stages, 2 * stages, 4 * stages):
        given = {"stages": stages, "chunks": chunks, "count": count}
        processes = [recorded(stage, **given, monkeypatch=monkeypatch) for stage in range(stages)]
        assert left_over(processes) == [0] * stages
        assert all(len(process.passes) > count * chunks for process in processes)


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_messages_that_are_issued_alone_would(stages):
    """The control: between two stages of one chunk they are in order, with more chunks they stop."""
    processes = [alone(stage, stages=stages, chunks=1, count=2 * stages) for stage in range(stages)]
    assert left_over(processes) == [0] * stages
    processes = [alone(stage, stages=stages, chunks=2, count=2 * stages) for stage in range(stages)]
    assert 0 not in left_over(processes)

"""Measure what the first process of a pretraining holds, with tensors that have no content (`pedigree plan --measure`).

It is the trainer's own code, from the first weights over two steps and held-out text to the written files, for the
recipe's settings and the profile's layout, under torch's FakeTensorMode and with messages that go nowhere. Only what
needs content is replaced: numbers that are read from a device, and the bytes of files. Counted are the bytes of all
live storages after each of torch's operations, as on a GPU: attention keeps no probabilities, and memory inside a
kernel, of libraries and of the allocator is not seen. Copies in the host's memory are not counted.

`python -m training.pretrain.measured` reads the settings as JSON and prints the most bytes of each moment as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from training.order.batches import Plan, PlannedSource, PlanRecord, Shards
from training.order.documents import HELD_OUT, Documents
from training.pretrain import loss
from training.pretrain import step as training_step
from training.pretrain.degrees import Degrees
from training.pretrain.held_out import held_out
from training.pretrain.mesh import wholes
from training.pretrain.models import attention, experts, export
from training.pretrain.models.account import evaluated_rows
from training.pretrain.models.decoder import meta_decoder
from training.pretrain.models.shape import ModelRecipe
from training.pretrain.needs import Pretraining
from training.pretrain.parallel import World, make_world
from training.pretrain.pretrain import first_weights, own_layout
from training.pretrain.settings import PretrainRecipe
from training.pretrain.step import Trainer
from training.records import read_record
from training.run_settings import RunSettings

STEPS = 2  # the second one has the optimizer's state
DEVICE, ELSEWHERE = "device", "elsewhere"
READS = {"item": 1, "__int__": 1, "__float__": 1.0, "__bool__": True}  # what is read from a tensor, by the method
SHAPES_ALONE = "_propagate_tensor_meta_non_cached"  # DTensor computes the shape of a result with tensors of its own
TOKENIZER = {"tokenizer.json": {"added_tokens": []}, "tokenizer_config.json": {}}


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
        self.moment, self.peaks[moment] = moment, self.live[DEVICE]

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

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own operations on local tensors come here
        made = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                self.resized(leaf.untyped_storage())
        return made


class WithoutContent(TorchFunctionMode):
    """Gives a number wherever the code reads one from a tensor, and copies a tensor that goes to the host."""

    def __init__(self, counted: Memory) -> None:
        super().__init__()
        self.counted = counted

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in READS and isinstance(args[0], (FakeTensor, DTensor)):
            return READS[name]
        if name == "__getitem__" and isinstance(args[1], FakeTensor) and args[1].dtype is torch.bool:
            return args[0].flatten(0, args[1].dim() - 1)  # as if the mask chose all
        if name == "cpu":
            with self.counted.elsewhere():
                return args[0].clone()
        return function(*args, **(kwargs or {}))


class FirstOfMany(World):
    """The world of the first process of a mesh whose other processes do not exist; they have nothing to say."""

    def all_said(self, said: str) -> list[str]:
        """Return this process's text and an empty one for each of the others."""
        return [said, *[""] * (self.size - 1)]

    def wait(self) -> None:
        """Do not wait: there is nobody else."""


@contextmanager
def fake_world(degrees: Degrees, processes: int) -> Iterator[World]:
    """Join a mesh of which only this process exists, as its first process; leave it at the end."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    try:
        made = make_world(degrees, rank=0, size=processes, device=torch.device("cpu"))
        yield FirstOfMany(**{one.name: getattr(made, one.name) for one in fields(World)})
    finally:
        dist.destroy_process_group()


def listed(tensor: FakeTensor) -> Any:
    """Return zeros in place of the numbers of a tensor, in lists of its shape."""
    zeros: Any = 0.0 if tensor.is_floating_point() else 0
    for size in reversed(tensor.shape):
        zeros = [zeros] * size
    return zeros


@contextmanager
def without_content(counted: Memory) -> Iterator[None]:
    """Let torch compute shapes alone, as on a GPU: its attention, its products of experts, its chunks of the loss."""
    resize, to_empty, shapes_of = (
        torch.UntypedStorage.resize_,
        nn.Module.to_empty,
        getattr(ShardingPropagator, SHAPES_ALONE),
    )
    grouped_mm, chunk_rows = functional.grouped_mm, loss.chunk_rows

    def emptied(module: nn.Module, *, device: torch.device) -> nn.Module:
        if any(isinstance(weight, DTensor) for weight in module.parameters()):
            return to_empty(module, device=device)
        for owner in module.modules():  # torch cannot exchange weights that have no content
            for name, weight in list(owner.named_parameters(recurse=False)):
                owner.register_parameter(name, nn.Parameter(torch.empty_like(weight, device=device)))
            for name, buffer in list(owner.named_buffers(recurse=False)):
                owner.register_buffer(name, torch.empty_like(buffer, device=device))
        return module

    def resized(storage: torch.UntypedStorage, size: int) -> None:
        resize(storage, size)
        counted.resized(storage)

    def only_shapes(*given: Any) -> Any:
        with counted.elsewhere():
            return shapes_of(*given)

    def attended(query: Tensor, key: Tensor, value: Tensor, _: Any) -> Tensor:
        return attention.grouped_attention(query, key, value, None)

    def grouped(runs: Tensor, matrices: Tensor, *, offs: Tensor) -> Tensor:
        if runs.dtype is torch.bfloat16:
            return grouped_mm(runs, matrices, offs=offs)
        return runs.new_empty(len(runs), matrices.shape[-1])  # what a GPU computes in fp32, one expert after the other

    def rows_on_gpu(vocabulary: int, **_: Any) -> int:
        return chunk_rows(vocabulary, on_gpu=True)

    replaced = (
        (FakeTensor, "tolist", listed),
        (torch.UntypedStorage, "resize_", resized),  # torch does not dispatch this
        (ShardingPropagator, SHAPES_ALONE, only_shapes),
        (attention, "flex_grouped_attention", attended),
        (nn.Module, "to_empty", emptied),
        (loss, "TILE", loss.GPU_LOGITS),  # no chunk is divided
        (loss, "chunk_rows", rows_on_gpu),
        (experts, "has_grouped_products", _answer(True)),
        (functional, "grouped_mm", grouped),
    )
    with ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(patch.object(owner, name, value))
        for mode in (FakeTensorMode(allow_non_fake_inputs=True), counted, WithoutContent(counted)):
            stack.enter_context(mode)
        yield


def _answer(value: Any) -> Callable[..., Any]:
    """Return a function that returns `value`, whatever it is given."""

    def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


def measured(training: Pretraining, run: RunSettings) -> dict[str, int]:
    """Return the most bytes that the first process holds at each moment of a training: those of `training_bytes`."""
    counted, degrees = Memory(), Degrees.of(run)
    with fake_world(degrees, run.nodes * run.processes) as world, without_content(counted):
        counted.begin("start")
        trainer = _trainer(training, run, world, counted)
        counted.begin("step")
        for _ in range(STEPS):
            trainer.run_step()
        counted.begin("held-out text")
        held_out(trainer)
        counted.begin("export")
        with tempfile.TemporaryDirectory() as name, patch.object(export, "save_tensors", _answer(None)):
            for file, content in TOKENIZER.items():
                Path(name, file).write_text(json.dumps(content))
            places = {"tokenizer": Path(name), "own_layout": bool(own_layout(training.shape, training.recipe))}
            weights = wholes(trainer.model, trainer.pieces)
            export.write_weights(training.shape, weights, Path(name, "model"), eos_id=0, **places)
    return counted.peaks


def _trainer(training: Pretraining, run: RunSettings, world: World, counted: Memory) -> Trainer:
    recipe = replace(training.recipe, distill=type(training.recipe.distill)())
    plan, shards = _plan(training)
    weights = counted.each_elsewhere(first_weights(training.shape, recipe))
    with patch.object(training_step, "replaced_here", _answer("")):  # bf16, as on a GPU
        trainer = Trainer(
            meta_decoder(training.shape),
            recipe,
            plan,
            shards,
            world,
            weights=weights,
            micro_batch_tokens=run.micro_batch_tokens,
        )
    trainer.attention = "flex"  # as on a GPU
    trainer.model.set_recompute(run.recompute)
    return trainer


def _plan(training: Pretraining) -> tuple[Plan, Shards]:
    """Return a plan of the phase's batches over one document, and as much held-out text as fills a pass everywhere."""
    phase = training.phase
    length, rows = phase.sequence_length, phase.rows
    tokens = np.zeros(rows * length // 4 or length, dtype=np.uint32)
    looked_at = 4 * evaluated_rows(length) * 2
    number = 1 + looked_at
    positions = (np.arange(number + 1) * len(tokens)).astype(np.uint64)
    positions[1:-1] |= HELD_OUT
    places, none = np.arange(number), np.zeros(number, dtype=np.int64)
    sizes = np.full(number, len(tokens))
    look = np.stack((none, places, none, sizes, sizes), axis=1)[1:]
    held = looked_at * len(tokens)
    source = PlannedSource(
        name="made",
        weight=1.0,
        samples=2 * STEPS * rows,
        first_document=0,
        documents=1,
        tokens=len(tokens),
        held_out_documents=looked_at,
        held_out_tokens=held,
        look_documents=looked_at,
        look_tokens=held,
    )
    record = PlanRecord(
        seed=0,
        sequence_length=length,
        global_batch_tokens=phase.global_batch_tokens,
        steps=2 * STEPS,
        tokenizer_digest="",
        eos_id=0,
        dtype=str(tokens.dtype),
        shards=(),
        sources=(source,),
    )
    return Plan(record, Documents(positions, np.stack([places, none, places, none])), look, digest=""), Shards([tokens])


def main() -> None:
    """Read what is trained, and where, from standard input; print the bytes of each moment."""
    given = json.load(sys.stdin)
    recipe = read_record(PretrainRecipe, given["pretrain"])
    shape = read_record(ModelRecipe, given["model"]).shape(vocab_size=given["vocabulary"])
    phase = max(recipe.phases, key=lambda one: one.sequence_length)
    training = Pretraining(shape=shape, recipe=recipe, phase=phase)
    print(json.dumps(measured(training, read_record(RunSettings, given["run"]))))


if __name__ == "__main__":
    main()

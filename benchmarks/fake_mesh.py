"""Measure what one process of a large mesh holds in each phase of a pretraining, with tensors that have no content.

`python -m benchmarks.fake_mesh` (or `make mesh`) trains the shape of `llama-3-70b` as the first of 128 processes
under torch's FakeTensorMode, with messages that go nowhere. It is the trainer's own code, from the first weights to the
written files; only what has no content is replaced (numbers that are read from a device, the bytes of files). The bytes
are those of all live storages after each of torch's operations, so memory inside a kernel is not seen. Beside each peak
is the sum of what `pedigree plan` predicts for this moment, and the exit code is 1 if they differ by more than a tenth.

The device is counted as a GPU: attention keeps no probabilities, and copies on the host are counted apart from it.
Libraries are not counted. The controls must fail: `--control gathered` joins all weights at once to write a text,
`--control copies` lets autograd keep copies of the layers' weights.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

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

from benchmarks.rows import made_tokens, plan_over
from training.order.batch_settings import BatchPhase
from training.pretrain import loss
from training.pretrain import step as training_step
from training.pretrain.checkpoint import Store, pack, places, unpack
from training.pretrain.division import divided
from training.pretrain.forecast import (
    Layout,
    PlannedTraining,
    copied_bytes,
    gathered_for_a_text,
    memory,
    sent_bytes,
)
from training.pretrain.held_out import held_out
from training.pretrain.mesh import wholes
from training.pretrain.models import attention, experts, export
from training.pretrain.models.account import FILE_BYTES, FP32, evaluated_rows, parameter_shapes, preset_shape
from training.pretrain.models.decoder import Decoder, meta_decoder
from training.pretrain.models.shape import ModelConfig
from training.pretrain.parallel import World, make_world
from training.pretrain.pretrain import first_weights
from training.pretrain.samples import continued
from training.pretrain.settings import PretrainRecipe
from training.pretrain.step import Trainer
from training.pretrain.tensor_files import Saved

STATE_BYTES = 16  # of a weight: itself, its gradient and AdamW's two numbers
LIMIT = 0.10  # largest difference of measured from predicted bytes, relative to the predicted
PASSES = 2  # micro-batches of a process in a step
DEVICE, HOST, NOWHERE = "device", "host", "nowhere"
READS = {"item": 1, "__int__": 1, "__float__": 1.0, "__bool__": True}  # what is read from a tensor, by the method
SHAPES_ALONE = "_propagate_tensor_meta_non_cached"  # DTensor computes the shape of a result with tensors of its own
CONTROLS = ("gathered", "copies")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A shape, the layout of its processes, and the length of its rows.

    passes: of a process in a step, each with one row. control: the fault that is put in; None means none.
    """

    shape: ModelConfig
    layout: Layout
    length: int
    passes: int = PASSES
    control: str | None = None

    @property
    def planned(self) -> PlannedTraining:
        """The training for which memory is predicted: a row in each pass."""
        rows = self.passes * self.layout.degrees.row_sets(self.layout.world)
        batch = {"sequence_length": self.length, "global_batch_tokens": rows * self.length}
        recipe = PretrainRecipe(tokens=4 * rows * self.length, precision="bf16", optimizer="adamw", **batch)
        return PlannedTraining(shape=self.shape, recipe=recipe, phase=BatchPhase(tokens=recipe.tokens, **batch))


Peaks = dict[tuple[str, str], int]  # bytes at the peak of a phase, in a place (`DEVICE` or `HOST`)


class Memory(TorchDispatchMode):
    """Counts the bytes of all storages that torch's operations return, while they are alive.

    `peaks` has the most of each phase, in the device and in the host's memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = DEVICE
        self.live = {DEVICE: 0, HOST: 0, NOWHERE: 0}
        self.peaks: Peaks = {}
        self.phase = ""
        self._held: dict[int, tuple[str, int]] = {}  # place and bytes of each storage

    def begin(self, phase: str) -> None:
        """Begin a phase; its peak is at least what is held now."""
        self.phase = phase
        for place, held in self.live.items():
            self.peaks[phase, place] = held

    @contextmanager
    def inside(self, phase: str) -> Iterator[None]:
        """Count this context as another phase, which may come several times."""
        before, self.phase = self.phase, phase
        for place, held in self.live.items():
            self.peaks[phase, place] = max(held, self.peaks.get((phase, place), 0))
        try:
            yield
        finally:
            self.phase = before

    @contextmanager
    def on(self, place: str) -> Iterator[None]:
        """Count the storages that are made in this context as those of `place`."""
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before

    def each_on_host(self, made: Iterable[Any]) -> Iterator[Any]:
        """Yield what `made` yields, with the memory of its making counted as the host's."""
        iterator = iter(made)
        while True:
            with self.on(HOST):
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
        if self.phase:
            self.peaks[self.phase, place] = max(self.peaks[self.phase, place], self.live[place])

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


class Messages(TorchDispatchMode):
    """Counts the messages that this process takes part in, by the name of torch's operation: their number and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[int, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if function.namespace == "c10d":
            name = function.overloadpacket.__name__.strip("_")
            count, size = self.found.get(name, (0, 0))
            # The larger side: what a gather gives, and what a sum is given.
            sides = [sum(leaf.nbytes for leaf in tree_leaves(side) if isinstance(leaf, Tensor)) for side in args[:2]]
            self.found[name] = count + 1, size + max(sides)
        return function(*args, **(kwargs or {}))


class WithoutContent(TorchFunctionMode):
    """Gives a number wherever the trainer reads one from a tensor, and copies a tensor that goes to the host."""

    def __init__(self, counted: Memory) -> None:
        super().__init__()
        self.counted, self.reads = counted, 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in READS and isinstance(args[0], (FakeTensor, DTensor)):
            self.reads += 1
            return READS[name]
        if name == "__getitem__" and isinstance(args[1], FakeTensor) and args[1].dtype is torch.bool:
            return args[0].flatten(0, args[1].dim() - 1)  # as if the mask chose all
        if name == "cpu":
            with self.counted.on(HOST):
                return args[0].clone()
        return function(*args, **(kwargs or {}))

    def listed(self, tensor: FakeTensor) -> Any:
        """Return zeros in place of the numbers of a tensor, in lists of its shape."""
        self.reads += 1
        zeros: Any = 0.0 if tensor.is_floating_point() else 0
        for size in reversed(tensor.shape):
            zeros = [zeros] * size
        return zeros


class FirstOfMany(World):
    """The world of the first process of a mesh whose other processes do not exist; they have nothing to say."""

    def all_said(self, said: str) -> list[str]:
        """Return this process's text and an empty one for each of the others."""
        return [said, *[""] * (self.size - 1)]

    def wait(self) -> None:
        """Do not wait: there is nobody else."""


class UnwrittenStore(Store):
    """A store of checkpoints that copies each to host memory, as the real one does, and writes no file."""

    counted: Memory

    def _copy(self, share: Any) -> None:
        with self.counted.on(HOST):
            super()._copy(share)

    def _write(self, step: int, state: dict[str, Any] | None) -> None:
        pass

    def commit(self) -> None:
        """Drop the checkpoint, as if it had been written."""
        self._begun = self._thread = None


class UnreadSaved(Saved):
    """The tensors of a checkpoint in files that do not exist, as another mesh would have written them."""

    def __init__(self, trainer: Trainer) -> None:
        held = pack(trainer.model, trainer.optimizers)
        whole = places(trainer.model, trainer.optimizers)
        self._shapes = {
            name: whole[name].shape if name in whole and whole[name].shape else tuple(tensor.shape)
            for name, tensor in held.items()
        }

    def part(self, name: str, start: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return a part without content."""
        return torch.empty(tuple(shape))


def measured(case: Case) -> Peaks:
    """Go through the phases of a training as the first of the case's processes; return the peaks."""
    counted = Memory()
    with fake_world(case.layout) as world, without_content(counted):
        counted.begin("begin")
        fault = patch.object(Decoder, "keep_no_copies", lambda _: None) if case.control == "copies" else nullcontext()
        with fault:
            trainer = trainer_of(case, world, counted)
        counted.begin("step")
        for _ in range(2):  # the second one has the optimizer's state
            trainer.run_step()
        counted.begin("held-out text")
        held_out(trainer)
        counted.begin("sample")
        continued(trainer, [5, 6, 7], new_tokens=2)
        if case.control == "gathered":
            counted.begin("sample by the whole")
            joined = list(wholes(trainer.model, trainer.pieces))
            continued(trainer, [5, 6, 7], new_tokens=2)
            del joined
        counted.begin("save")
        trainer.state.store = UnwrittenStore(Path("nowhere"), world)
        trainer.state.store.counted = counted
        trainer.state.save()
        trainer.state.store.settle()
        saved = UnreadSaved(trainer)
        trainer.state.store = None
        if trainer.gathers_bf16:
            counted.begin("logits in fp32")
            trainer.logits([5, 6, 7], at=[1], dtype=torch.float32)
        counted.begin("export")
        write_export(trainer)
        del trainer
        gc.collect()
        counted.begin("resume")
        trainer = trainer_of(case, world, counted, weights=())
        unpack(saved, trainer.model, trainer.optimizers, world)
    return counted.peaks


def messages(case: Case) -> dict[str, tuple[int, int]]:
    """Return number and bytes of each kind of message in which a process takes part in a step.

    Under `reads` is how often it waits for numbers from the device.
    """
    counted = Memory()
    with fake_world(case.layout) as world, without_content(counted) as numbers:
        trainer = trainer_of(case, world, counted)
        before = numbers.reads
        with Messages() as found:
            trainer.run_step()
    return found.found | {"reads": (numbers.reads - before, 0)}


def trainer_of(case: Case, world: World, counted: Memory, weights: Iterable[Any] | None = None) -> Trainer:
    """Return a trainer of the case's shape. `weights` None means that they are drawn, one after the other."""
    planned = case.planned
    phase, recipe = planned.phase, planned.recipe
    # Documents of a quarter of a batch; as many are held out as fill a pass of every process.
    tokens = made_tokens(phase.rows * case.length // 4, vocabulary=min(case.shape.vocab_size, 1024))
    looked_at = [(0, len(tokens))] * 4 * -(-evaluated_rows(case.length) // case.passes)
    plan, shards = plan_over(
        tokens, [(0, len(tokens))], steps=4, rows=phase.rows, length=case.length, held_out=looked_at
    )
    if weights is None:
        weights = counted.each_on_host(first_weights(case.shape, recipe))
    with patch.object(training_step, "replaced_here", lambda *_: ""):  # bf16, as on a GPU
        trainer = Trainer(
            meta_decoder(case.shape),
            recipe,
            plan,
            shards,
            world,
            weights=weights,
            micro_batch_tokens=case.layout.micro_batch_tokens,
        )
    trainer.attention = "flex"  # as on a GPU
    trainer.model.set_recompute(case.layout.recompute)
    return trainer


def write_export(trainer: Trainer) -> None:
    """Export the model as a training does, except that the bytes of its weights are not written to the files."""
    from tests.training.pretrain.tiny import make_tokenizer

    with tempfile.TemporaryDirectory() as name, patch.object(export, "save_tensors", lambda *_: None):
        tokenizer = make_tokenizer(Path(name, "tokenizer")).folder
        weights = wholes(trainer.model, trainer.pieces)
        export.write_weights(trainer.model.config, weights, Path(name, "model"), tokenizer=tokenizer, eos_id=0)


@contextmanager
def fake_world(layout: Layout) -> Iterator[World]:
    """Join a mesh of which only this process exists, as its first process; leave it at the end."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world)
    try:
        made = make_world(layout.degrees, rank=0, size=layout.world, device=torch.device("cpu"))
        yield FirstOfMany(**{one.name: getattr(made, one.name) for one in fields(World)})
    finally:
        dist.destroy_process_group()


@contextmanager
def without_content(counted: Memory) -> Iterator[WithoutContent]:
    """Let torch compute shapes alone, as on a GPU: its attention, its products of experts, its chunks of the loss."""
    resize, to_empty = torch.UntypedStorage.resize_, nn.Module.to_empty

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

    shapes_of = getattr(ShardingPropagator, SHAPES_ALONE)

    def only_shapes(*given: Any) -> Any:
        with counted.on(NOWHERE):
            return shapes_of(*given)

    def attended(query: Tensor, key: Tensor, value: Tensor, _: Any) -> Tensor:
        return attention.grouped_attention(query, key, value, None)

    grouped_mm, chunk_rows = functional.grouped_mm, loss.chunk_rows

    def grouped(runs: Tensor, matrices: Tensor, *, offs: Tensor) -> Tensor:
        if runs.dtype is torch.bfloat16:
            return grouped_mm(runs, matrices, offs=offs)
        return runs.new_empty(len(runs), matrices.shape[-1])  # what a GPU computes in fp32, one expert after the other

    numbers = WithoutContent(counted)
    with ExitStack() as stack:
        stack.enter_context(patch.object(FakeTensor, "tolist", lambda tensor: numbers.listed(tensor)))
        stack.enter_context(patch.object(torch.UntypedStorage, "resize_", resized))  # torch does not dispatch this
        stack.enter_context(patch.object(ShardingPropagator, SHAPES_ALONE, only_shapes))
        stack.enter_context(patch.object(attention, "flex_grouped_attention", attended))
        stack.enter_context(patch.object(nn.Module, "to_empty", emptied))
        stack.enter_context(patch.object(loss, "TILE", loss.GPU_LOGITS))  # no chunk is divided
        stack.enter_context(patch.object(loss, "chunk_rows", lambda size, **_: chunk_rows(size, on_gpu=True)))
        stack.enter_context(patch.object(experts, "has_grouped_products", lambda *_: True))
        stack.enter_context(patch.object(functional, "grouped_mm", grouped))
        for mode in (FakeTensorMode(allow_non_fake_inputs=True), counted, numbers):
            stack.enter_context(mode)
        yield numbers


def predicted(case: Case) -> Peaks:
    """Return what `pedigree plan` predicts for each phase, without libraries."""
    moments = memory(case.planned, case.layout, on_gpu=True)
    sums = {name: sum(parts.values()) - parts["libraries"] for name, parts in moments.items()}
    step = moments["step"]
    held = step["weights"] + step["optimizer"]
    sizes = [FP32 * prod(sides) for _, sides in parameter_shapes(case.shape)]
    sent = sent_bytes(case.planned, case.layout)
    sample = held + step["weights"]
    if case.layout.degrees.shard > 1:
        sample += gathered_for_a_text(case.shape, case.layout.degrees, number_bytes=sent)
    else:  # a weight times its gain, in fp32 and in bf16
        of_layers = [one.held for one in divided(case.shape, case.layout.degrees) if one.unit]
        sample += max((FP32 + 2) * max(of_layers), 2 * case.shape.vocab_size * case.shape.width)
    return {
        ("begin", DEVICE): step["weights"],
        ("begin", HOST): max(a + b for a, b in pairwise(sizes)),  # one weight is drawn while the last one still exists
        ("step", DEVICE): sums["step"],
        ("held-out text", DEVICE): sums["held-out text"],
        ("sample", DEVICE): sample,
        **({("sample by the whole", DEVICE): sample} if case.control == "gathered" else {}),
        ("save", HOST): copied_bytes(case.planned, case.layout),
        **({("logits in fp32", DEVICE): sums["logits in fp32"]} if "logits in fp32" in sums else {}),
        ("export", DEVICE): sums["export"],
        ("export", HOST): min(FILE_BYTES, FP32 * case.shape.parameter_count),
        ("resume", DEVICE): held,
    }


def rows_of(case: Case) -> Iterator[tuple[str, str, int, int]]:
    """Yield phase, place, measured and predicted bytes."""
    found = measured(case)
    for (phase, place), expected in predicted(case).items():
        yield phase, place, found[phase, place], expected


def differs(measured_bytes: int, predicted_bytes: int) -> bool:
    """Whether a measured peak is further from the predicted one than the limit allows."""
    return abs(measured_bytes / predicted_bytes - 1) > LIMIT


def main() -> int:
    """Measure every phase and print it beside the prediction; return 1 if one differs by more than a tenth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="llama-3-70b")
    parser.add_argument("--processes", type=int, default=128, help="on nodes of eight")
    parser.add_argument("--length", type=int, default=8192, help="positions in a row; a pass has one row")
    parser.add_argument("--recompute", default="full", choices=("none", "selective", "full"))
    for degree in ("shard", "tensor", "context", "pipeline", "expert"):
        parser.add_argument(f"--{degree}", type=int, default=128 if degree == "shard" else 1)
    parser.add_argument("--zero-stage", type=int, default=3)
    parser.add_argument("--gather-dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--passes", type=int, default=PASSES, help="micro-batches of a process in a step")
    parser.add_argument("--messages", action="store_true", help="count the messages of a step instead, by ZeRO stage")
    parser.add_argument("--control", choices=CONTROLS, help="a fault that must show")
    given = vars(parser.parse_args())
    shape, length, control = preset_shape(given.pop("preset")), given.pop("length"), given.pop("control")
    passes, counts_messages = given.pop("passes"), given.pop("messages")
    on_node = min(8, given["processes"])
    layout = Layout(**given | {"nodes": given["processes"] // on_node, "processes": on_node}, micro_batch_tokens=length)
    case = Case(shape=shape, layout=layout, length=length, passes=passes, control=control)
    if counts_messages:
        print("| zero_stage | message | number | GB |\n|---|---|---|---|")
        for stage in (3, 2, 1):
            for name, (count, size) in messages(replace(case, layout=replace(layout, zero_stage=stage))).items():
                print(f"| {stage} | {name} | {count} | {size / 1e9:.2f} |", flush=True)
        return 0
    rows = list(rows_of(case))
    share = STATE_BYTES * shape.parameter_count / 1e9
    print(f"{shape.parameter_count:,} weights; weights, gradients and optimizer: {share:,.0f} GB, by {layout.world}")
    print("| phase | memory | measured GB | predicted GB | ratio |")
    print("|---|---|---|---|---|")
    for phase, place, found, expected in rows:
        mark = "  DIFFERS" if differs(found, expected) else ""
        print(f"| {phase} | {place} | {found / 1e9:.2f} | {expected / 1e9:.2f} | {found / expected:.2f} |{mark}")
    return 1 if any(differs(found, expected) for _, _, found, expected in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

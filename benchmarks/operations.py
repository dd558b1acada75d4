"""Measure the processor time of a training step on a CPU by operation, and compare it with the machine's limits.

`python -m benchmarks.operations` trains in one thread and reads that thread's clock around every operation of torch, so
other processes on the machine have little effect. The limit for a matrix product is the rate of a square product; for
all other operations it is the rate at which bytes are copied. Both rates are measured between the steps. `--full` also
lists each operation by its shapes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.rows import made_plan
from benchmarks.speed import SHAPES
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.parallel import World
from training.pretrain.settings import PretrainRecipe
from training.pretrain.step import Trainer
from training.pretrain.usage import keep_freed_memory

PARTS = {
    "products of weights": ("mm", "addmm"),
    "products of attention": ("bmm", "baddbmm", "baddbmm_"),
    "softmax": ("_softmax", "_log_softmax", "_softmax_backward_data", "exp_", "amax"),
    "activation": ("silu", "silu_backward"),
    "copies, casts, joining": ("clone", "copy_", "_to_copy", "cat", "zeros_like", "fill_"),
    "optimizer and clipping": ("_fused_adamw_", "_foreach_mul_", "_foreach_norm"),
}
REST = "other arithmetic: norms, rotation, gates, sums"
VIEWS = "views and empty tensors"
MAKES_NOTHING = frozenset(
    "_unsafe_view alias as_strided chunk detach empty empty_like expand permute select slice split split_with_sizes"
    " squeeze t transpose unbind unsqueeze view".split()
)


@dataclass(slots=True)
class Spent:
    """Calls, seconds, operations and bytes of one kind of operation."""

    calls: int = 0
    seconds: float = 0.0
    operations: float = 0.0  # of products
    bytes: float = 0.0  # read and written, everything else


@dataclass(slots=True)
class Rates:
    """The machine's measured best rates in one thread.

    They are the operations per second of a product, and the bytes per second of a copy.
    """

    flops: list[float] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)

    def measure(self, dtype: torch.dtype, size: int = 1024) -> None:
        """Measure both rates once more."""
        square, target = torch.randn(size, size).to(dtype), torch.empty(size, size, dtype=dtype)
        self.flops.append(2 * size**3 / _thread_seconds(lambda: torch.mm(square, square, out=target)))
        numbers, copied = torch.ones(2**22), torch.empty(2**22)  # 16 MB each: beyond what a core keeps for itself
        self.bytes.append(2 * numbers.nbytes / _thread_seconds(lambda: copied.copy_(numbers)))


def _thread_seconds(do: Callable[[], Any], repeats: int = 5) -> float:
    do()
    started = time.thread_time()
    for _ in range(repeats):
        do()
    return (time.thread_time() - started) / repeats


class Watching(TorchDispatchMode):
    """Reads the thread's clock around every torch operation."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str], Spent] = defaultdict(Spent)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        started = time.thread_time()
        made = function(*args, **(kwargs or {}))
        seconds = time.thread_time() - started
        name = function.overloadpacket.__name__
        # What is overwritten is not read.
        read = args[1:] if name in ("copy_", "fill_") else args
        given = [*_tensors(read), *_tensors({key: one for key, one in (kwargs or {}).items() if key != "out"})]
        spent = self.found[name, " ".join(str(list(tensor.shape)) for tensor in given[:3])]
        spent.calls += 1
        spent.seconds += seconds
        if _part(name).startswith("products"):
            first, second = given[-2:] if name in ("addmm", "baddbmm", "baddbmm_") else given[:2]
            spent.operations += 2 * first.numel() * second.shape[-1]
        elif name not in MAKES_NOTHING:
            spent.bytes += sum(tensor.nbytes for tensor in (*given, *_tensors(made)))
        return made


def _tensors(made: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]


def _part(name: str) -> str:
    if name in MAKES_NOTHING:
        return VIEWS
    return next((part for part, names in PARTS.items() if name in names), REST)


def own_trainer(shape: str, *, rows: int, length: int) -> Trainer:
    """Return the trainer of `benchmarks.speed`: bf16, AdamW, one pass per step."""
    keep_freed_memory()
    tokens, steps = rows * length, 1000
    recipe = PretrainRecipe(
        tokens=steps * tokens, sequence_length=length, global_batch_tokens=tokens, optimizer="adamw", precision="bf16"
    )
    plan, shards = made_plan(vocabulary=SHAPES[shape].vocab_size, steps=steps, rows=rows, length=length)
    model = Decoder(SHAPES[shape])
    initialise(model, zero_outputs=True, generator=torch.Generator().manual_seed(0))
    world = World(rank=0, size=1, device=torch.device("cpu"))
    return Trainer(model, recipe, plan, shards, world, micro_batch_tokens=tokens)


def main() -> None:
    """Train the steps and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="12.5M")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="each operation by its shapes as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trainer = own_trainer(options.shape, rows=options.rows, length=options.length)
    for _ in range(2):
        trainer.run_step()
    watching, rates, plain = Watching(), Rates(), []
    for _ in range(options.steps):
        rates.measure(torch.bfloat16)
        plain.append(_thread_seconds(trainer.run_step, repeats=1))
        with watching:
            trainer.run_step()
    print(account(watching.found, rates, step=statistics.median(plain), steps=options.steps))
    if options.full:
        print(by_shape(watching.found, steps=options.steps))


def account(found: dict[tuple[str, str], Spent], rates: Rates, *, step: float, steps: int) -> str:
    """Return the table of time by part of the step."""
    flops, moved = statistics.median(rates.flops), statistics.median(rates.bytes)
    parts: dict[str, Spent] = {name: Spent() for name in (*PARTS, REST, VIEWS)}
    for (name, _), spent in found.items():
        part = parts[_part(name)]
        part.calls += spent.calls
        part.seconds += spent.seconds
        part.operations += spent.operations
        part.bytes += spent.bytes
    lines = [
        f"a step {1e3 * step:.0f} ms of one thread; square products {flops / 1e9:.0f} GFLOP/s, copies {moved / 1e9:.1f}"
        f" GB/s; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n",
        "| part | calls | ms | at the machine's bound, ms |",
        "|---|---|---|---|",
    ]
    for name, part in parts.items():
        bound = part.operations / flops + part.bytes / moved
        lines.append(
            f"| {name} | {part.calls / steps:.0f} | {1e3 * part.seconds / steps:.0f} | {1e3 * bound / steps:.0f} |"
        )
    return "\n".join(lines)


def by_shape(found: dict[tuple[str, str], Spent], *, steps: int) -> str:
    """Return the operations that take at least a thousandth of the time, by shapes, the slowest first."""
    total = sum(spent.seconds for spent in found.values())
    rows = sorted(found.items(), key=lambda item: -item[1].seconds)
    return "\n".join(
        f"{1e3 * spent.seconds / steps:8.2f} ms {spent.calls / steps:6.0f} calls  {name} {shapes}"
        for (name, shapes), spent in rows
        if spent.seconds > total / 1000
    )


if __name__ == "__main__":
    main()

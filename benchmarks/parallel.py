"""Check that a model spread over processes trains like the same model in one process, for all combinations of settings.

`python -m benchmarks.parallel` (or `make parallel`) starts 2, 3 and 4 processes on this machine's CPU, with gloo, and
compares loss, every weight's gradient, the experts' loads and the loss after an update with those of one process. It
prints a row for each combination; the exit code is 1 if a relative difference exceeds 1e-4, or 1e-3 with Muon.
Gradients are compared by the norm of their difference. Combinations that are refused are listed with the reason.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.contract.job import InputArtifact
from training.contract.records import RecipeError, differing_from_defaults
from training.order.batches import Plan, Shards, open_shards, read_plan
from training.pretrain.capacity.divisible import check_degrees
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.shape import ExpertLayers, ModelConfig, RotaryScaling
from training.pretrain.optim.optimizers import OPTIMIZERS
from training.pretrain.parallel.degrees import CHOSEN, Degrees
from training.pretrain.parallel.mesh import from_stages
from training.pretrain.parallel.world import World, make_world
from training.pretrain.settings import PretrainRecipe
from training.pretrain.step import Trainer

LIMIT = 1e-4
# Muon makes all directions of a gradient equally long, also those in which there is only the noise of rounding.
MUON_LIMIT = 1e-3
STEPS = 2  # the second one sees an update
TEXT = 11  # tokens of a text; not a multiple of any number of processes
ROWS, LENGTH = 4, 32
ALONE = World(rank=0, size=1, device=torch.device("cpu"))

_SHAPE = ModelConfig(vocab_size=258, width=32, layers=4, heads=8, kv_heads=4, mlp_width=48, max_length=64)
MODELS = {
    "dense": replace(_SHAPE, tied_embeddings=False, window=8, window_pattern=("window", "full"), logit_softcap=15.0),
    "experts": replace(
        _SHAPE,
        qk_norm=True,
        # Six: two processes along `expert` have three each, of which two along `shard` have a part of each.
        experts=ExpertLayers(count=6, active=2, width=16, shared=1, first_layer=1, balance_weight=0.5),
    ),
}
MODELS["deepseek_v3"] = replace(
    _SHAPE,
    kv_heads=8,
    head_width=4,
    rope_scaling=RotaryScaling(kind="yarn", factor=4.0, original_length=16),
    experts=ExpertLayers(count=8, active=2, width=16, shared=1, first_layer=1, balancing="bias", balance_weight=0.01),
    family="deepseek_v3",
    parts={"deepseek_v3": {"query_rank": 24, "key_value_rank": 16, "plain_width": 6, "value_width": 8, "groups": 2}},
)
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """One combination of settings.

    The settings are number of processes, parallel degrees, kind of model, recomputation, optimizer and compilation.
    """

    processes: int
    degrees: Degrees
    model: str = "dense"
    recompute: str = "none"
    optimizer: str = "adamw"
    compile: bool = False

    @property
    def limit(self) -> float:
        """The largest relative difference from one process that is right."""
        return MUON_LIMIT if self.optimizer == "muon" else LIMIT

    def refusal(self) -> str:
        """Return why the combination is refused; empty if it is accepted."""
        try:
            check_degrees(
                self.degrees,
                MODELS[self.model],
                phases=[recipe_of(self)],
                optimizer=self.optimizer,
                processes=self.processes,
            )
        except RecipeError as error:
            return str(error)
        return ""

    def __str__(self) -> str:
        named = " ".join(f"{name}={value}" for name, value in differing_from_defaults(self.degrees).items())
        rest = " ".join((self.model, self.recompute, self.optimizer, *(["compiled"] if self.compile else [])))
        return f"{self.processes}: {named or 'replicas'} | {rest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The artifacts with a training plan and with its token shards."""

    plan: InputArtifact
    shards: InputArtifact

    def open(self) -> tuple[Plan, Shards]:
        """Open the plan and the shards."""
        plan = read_plan(Path(self.plan.path), digest=self.plan.digest)
        return plan, open_shards(plan, {self.shards.fingerprint: self.shards}, verify=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The results of a few training steps: losses, the first step's gradients by name, experts' loads, and logits.

    The logits are those of a short text after the last step, as texts and the check of the export need them.
    """

    losses: list[float]
    norm: float
    gradients: dict[str, torch.Tensor]
    loads: torch.Tensor
    logits: torch.Tensor

    def difference(self, other: Run) -> float:
        """Return the largest relative difference between two runs, over losses, gradients and loads."""
        pairs = [*zip(self.losses, other.losses, strict=True), (self.norm, other.norm)]
        numbers = [abs(a - b) / abs(b) for a, b in pairs]
        assert self.gradients.keys() == other.gradients.keys()
        tensors = [
            ((gradient - other.gradients[name]).norm() / other.gradients[name].norm().clamp(min=1e-12)).item()
            for name, gradient in self.gradients.items()
        ]
        tensors.append(((self.logits - other.logits).norm() / other.logits.norm()).item())
        return max(*numbers, *tensors, (self.loads - other.loads).abs().max().item() if self.loads.numel() else 0.0)


def all_combinations() -> Iterator[Combination]:
    """Yield every combination with 2 to 4 processes, accepted or refused."""
    for processes in (2, 3, 4):
        factors = [degree for degree in range(1, processes + 1) if processes % degree == 0]
        for values in product(factors, repeat=len(CHOSEN)):
            degrees = Degrees(**dict(zip(CHOSEN, values, strict=True)))
            forms = [degrees, *([replace(degrees, pipeline_chunks=2)] if degrees.pipeline > 1 else [])]
            forms += [replace(degrees, zero_stage=stage) for stage in (1, 2) if degrees.summed_by_fsdp]
            if processes % degrees.product == 0:
                for degrees, model, recompute, optimizer in product(forms, MODELS, RECOMPUTE, OPTIMIZERS):
                    yield Combination(
                        processes=processes, degrees=degrees, model=model, recompute=recompute, optimizer=optimizer
                    )


def pairwise() -> list[Combination]:
    """Return a few combinations that together contain every compatible pair of values of two settings."""
    allowed = [one for one in all_combinations() if not one.refusal() and one.processes != 3]
    missing = {pair for one in allowed for pair in _pairs(one)}
    chosen = []
    while missing:
        best = max(allowed, key=lambda one: len(missing & _pairs(one)))
        missing -= _pairs(best)
        chosen.append(best)
    return chosen


@cache
def _pairs(one: Combination) -> frozenset[tuple[Any, ...]]:
    """Return all pairs of values of two settings in a combination."""
    values = {axis: min(2, size) for axis, size in one.degrees.sizes(one.processes).items()}
    values |= {
        "chunks": one.degrees.pipeline_chunks,
        "zero_stage": one.degrees.zero_stage,
        "model": one.model,
        "recompute": one.recompute,
        "optimizer": one.optimizer,
    }
    names = sorted(values)
    return frozenset((a, values[a], b, values[b]) for a in names for b in names if a < b)


def recipe_of(one: Combination) -> PretrainRecipe:
    """Return the settings of a combination's training, without clipping.

    So the gradients after a step are the step's own.
    """
    return PretrainRecipe(
        tokens=12 * ROWS * LENGTH,
        sequence_length=LENGTH,
        global_batch_tokens=ROWS * LENGTH,
        precision="fp32",
        optimizer=one.optimizer,
        learning_rate=1e-3,
        muon_learning_rate=1e-3,
        gradient_clip=None,
        z_loss=1e-3,
        seed=3,
    )


def run(one: Combination, data: Data, world: World) -> Run:
    """Train a few steps with a combination; return the results."""
    plan, shards = data.open()
    model = Decoder(MODELS[one.model])
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(1))
    trainer = Trainer(model, recipe_of(one), plan, shards, world, micro_batch_tokens=LENGTH)
    model.set_recompute(one.recompute)
    if one.compile:
        for block in model.blocks:
            block.compile()
    report = trainer.run_step()
    gradients = {}
    for name, shape in trainer.pieces.shapes.items():
        piece = trainer.pieces.by_name.get(name)
        own = None if piece is None else trainer.pieces.whole(piece, piece.own.grad)
        gradients[name] = from_stages(own, shape, world).clone()
    losses = [report.loss, *(trainer.run_step().loss for _ in range(STEPS - 1))]
    logits = trainer.logits(range(2, 2 + TEXT), at=range(TEXT))
    return Run(losses=losses, norm=report.gradient_norm, gradients=gradients, loads=report.loads, logits=logits)


# A task is done by so many processes; what it gives in the first of them is its result.
Task = tuple[int, Callable[[int, int], Any]]


def compared(combinations: Sequence[Combination], data: Data, folder: Path) -> dict[Combination, float]:
    """Return the largest relative difference between each combination and one process; print each when it is known."""
    tasks = [(one.processes, partial(compare, one, data)) for one in combinations]

    def told(number: int, difference: float) -> None:
        mark = "" if difference <= combinations[number].limit else "  DIFFERS"
        print(f"{combinations[number]!s:70} {difference:.1e}{mark}", flush=True)

    return dict(zip(combinations, in_processes(tasks, folder, told=told), strict=True))


def compare(one: Combination, data: Data, rank: int, size: int) -> float:
    """Train a combination and return its difference from one process; every process of the combination calls this."""
    made = run(one, data, _world(one.degrees, rank, size))
    return made.difference(_expected(one.model, one.optimizer, data)) if rank == 0 else 0.0


@cache
def _world(degrees: Degrees, rank: int, size: int) -> World:
    return make_world(degrees, rank=rank, size=size, device=ALONE.device)


@cache
def _expected(model: str, optimizer: str, data: Data) -> Run:
    return run(Combination(processes=1, degrees=Degrees(), model=model, optimizer=optimizer), data, ALONE)


def in_processes(
    tasks: Sequence[Task],
    folder: Path,
    *,
    told: Callable[[int, Any], None] = lambda *_: None,
    preload: Sequence[str] = ("training.pretrain.step",),
) -> list[Any]:
    """Run tasks in one set of worker processes and return their results in order.

    Tasks of the same size follow each other. The modules `preload` are imported once for all processes.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    results = context.SimpleQueue()
    workers = [
        context.Process(target=_worker, args=(rank, list(tasks), folder, results), daemon=True)
        for rank in range(max(size for size, _ in tasks))
    ]
    for worker in workers:
        worker.start()
    found: dict[int, Any] = {}
    try:
        while len(found) < len(tasks):
            while results.empty():
                if any(worker.exitcode for worker in workers):
                    raise RuntimeError(f"a process ended; {len(found)} of {len(tasks)} tasks are done")
                time.sleep(0.01)
            number, result = results.get()
            found[number] = result
            told(number, result)
        for worker in workers:
            worker.join(30)
    finally:
        for worker in workers:
            worker.kill()
    return [found[number] for number in range(len(tasks))]


def _worker(rank: int, tasks: list[Task], folder: Path, results: Any) -> None:
    torch.set_num_threads(1)
    for size in sorted({size for size, _ in tasks}, reverse=True):
        if rank >= size:
            continue
        store = dist.FileStore(str(folder / f"store-{size}"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
        for number, (_, task) in enumerate(tasks):
            if tasks[number][0] == size:
                result = task(rank, size)
                if rank == 0:
                    results.put((number, result))
        dist.barrier()
        dist.destroy_process_group()


def make_data(folder: Path, *, rows: int = ROWS) -> Data:
    """Make a tiny training plan, of batches of `rows` rows, and its shards from generated documents."""
    from tests.training.pretrain import tiny

    recipe = recipe_of(Combination(processes=1, degrees=Degrees()))
    recipe = replace(recipe, tokens=12 * rows * LENGTH, global_batch_tokens=rows * LENGTH)
    chain = tiny.TinyChain(folder, pretrain=recipe)
    return Data(plan=chain.plan_artifact, shards=chain.shards)


def main() -> int:
    """Compare all combinations and print the table; return 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairwise", action="store_true", help="the few that the tests compare")
    parser.add_argument("--compiled", action="store_true", help="each with compiled blocks as well")
    parser.add_argument("--match", default="", help="only those whose row has this text in it")
    options = parser.parse_args()
    chosen = pairwise() if options.pairwise else list(all_combinations())
    chosen = [one for one in chosen if options.match in str(one)]
    chosen += [replace(one, compile=True) for one in chosen] if options.compiled else []
    refused = {one: why for one in chosen if (why := one.refusal())}
    accepted = [one for one in chosen if one not in refused]
    with tempfile.TemporaryDirectory() as folder:
        found = compared(accepted, make_data(Path(folder, "chain")), Path(folder))
    for why in sorted(set(refused.values())):
        print(f"refused ({sum(other == why for other in refused.values())}): {why}")
    wrong = sum(not difference <= one.limit for one, difference in found.items())
    largest = max(found.values(), default=0.0)
    print(f"{len(accepted)} combinations, {len(refused)} refused; largest difference {largest:.1e}, {wrong} too large")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Train a model that is larger than the memory of each of its processes, with a ceiling that the kernel enforces.

`python -m benchmarks.ceiling` (or `make ceiling`) starts four processes. Each may allocate its share of the model's
weights, gradients and optimizer (16 bytes a weight in all) and a quarter more, beyond what a process has after a tiny
training. With that they begin a training, take steps, write a text, save, and two processes go on from the checkpoint
and join one weight after the other for the export.

The ceiling is RLIMIT_DATA, which also counts mapped files. A save on a CPU copies the share, and a checkpoint that is
read is mapped, so the ceiling is higher by this for the time.

The controls must fail: `--control gathered` joins all weights at once to write the text, `--control copies` lets
autograd keep copies of the layers' weights.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import parallel
from training.pretrain import pretrain
from training.pretrain.checkpoint import Store
from training.pretrain.degrees import Degrees
from training.pretrain.mesh import wholes
from training.pretrain.models.decoder import Decoder, meta_decoder
from training.pretrain.models.shape import ModelConfig
from training.pretrain.parallel import World, make_world
from training.pretrain.samples import continued
from training.pretrain.step import Trainer

LARGE = ModelConfig(vocab_size=300, width=512, layers=48, heads=8, kv_heads=4, mlp_width=2048, max_length=64)
SLACK = 1.25
STATE_BYTES = 16  # of a weight: itself, its gradient and AdamW's two numbers
Found = dict[str, float]  # the most bytes of a phase beyond those before all of them, by phase


def main() -> int:
    """Run the phases and print the peak of each; return 1 if a process needed more than its ceiling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--control", choices=("gathered", "copies"), help="a fault that the ceiling must stop")
    control = parser.parse_args().control
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = parallel.make_data(folder / "chain")
        tasks = [
            (4, partial(begin, data, folder / "kept", control)),
            (2, partial(go_on, data, folder / "kept", folder / "model")),
        ]
        try:
            begun, ended = parallel.in_processes(tasks, folder)
        except RuntimeError as error:
            print(f"a ceiling was too low: {error}")
            return 1
    print(f"{LARGE.parameter_count:,} weights; the whole: {STATE_BYTES * LARGE.parameter_count / 1e6:,.0f} MB")
    for processes, found in ((4, begun), (2, ended)):
        share = STATE_BYTES * LARGE.parameter_count / processes
        print(f"{processes} processes, a share of {share / 1e6:,.0f} MB:")
        for phase, peak in found.items():
            print(f"  {phase:12} {peak / 1e6:7,.0f} MB  {peak / share:.2f} of the share")
    return 0


def begin(data: parallel.Data, kept: Path, control: str | None, rank: int, size: int) -> Found:
    """Begin a training and take two steps, write a text and save, under the ceiling."""
    world = spread_world(rank, size)
    warm_up(data, world)
    found: Found = {}
    with ceiling(size) as phase:
        with phase("begin", found):
            trainer = trainer_of(data, world, control)
        with phase("steps", found):
            trainer.run_step()
            trainer.run_step()
        with phase("text", found):
            joined = list(wholes(trainer.model, trainer.pieces)) if control == "gathered" else []
            continued(trainer, [5, 6, 7], new_tokens=4)
            del joined
        with phase("save", found, copies=1), Store(kept, world) as trainer.state.store:
            trainer.state.save()
            trainer.state.store.settle()
    return found


def go_on(data: parallel.Data, kept: Path, folder: Path, rank: int, size: int) -> Found:
    """Go on from the checkpoint with fewer processes, take a step and export the model, under the ceiling."""
    world = spread_world(rank, size)
    found: Found = {}
    with ceiling(size) as phase:
        with phase("resume", found, copies=size):
            trainer = trainer_of(data, world, None)
            assert trainer.state.resume(Store(kept, world)) == () and trainer.state.position.step == 2
        with phase("step", found):
            trainer.run_step()
        with phase("export", found):
            for name, whole in wholes(trainer.model, trainer.pieces):
                if world.is_first:
                    save_weight(folder, name, whole)
    return found


def save_weight(folder: Path, name: str, whole: object) -> None:
    """Write one weight to a file of its own, as the export writes one after the other."""
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    save_file({name: whole.detach().contiguous()}, folder / f"{name}.safetensors")


def trainer_of(data: parallel.Data, world: World, control: str | None) -> Trainer:
    """Return a trainer of the large model, spread over the processes."""
    plan, shards = data.open()
    recipe = parallel.recipe_of(parallel.Combination(processes=1, degrees=Degrees()))
    if control == "copies":
        Decoder.keep_no_copies = lambda self: None
    weights = pretrain.first_weights(LARGE, recipe)
    return Trainer(
        meta_decoder(LARGE), recipe, plan, shards, world, weights=weights, micro_batch_tokens=parallel.LENGTH
    )


def spread_world(rank: int, size: int) -> World:
    """Return a world in which every process has a part of each weight."""
    return make_world(Degrees(shard=size), rank=rank, size=size, device=parallel.ALONE.device)


def warm_up(data: parallel.Data, world: World) -> None:
    """Train a tiny model for a step, so that libraries are loaded before memory is measured."""
    plan, shards = data.open()
    recipe = parallel.recipe_of(parallel.Combination(processes=1, degrees=Degrees()))
    tiny = dataclasses.replace(LARGE, layers=1, width=64, mlp_width=64)
    Trainer(Decoder(tiny), recipe, plan, shards, world).run_step()


@contextmanager
def ceiling(processes: int) -> Iterator[object]:
    """Yield a context manager for phases, in which the kernel refuses memory beyond this process's ceiling."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    base, share = status("VmData"), STATE_BYTES * LARGE.parameter_count // processes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]

    @contextmanager
    def phase(name: str, found: Found, *, copies: float = 0.0) -> Iterator[None]:
        gc.collect()  # files that were mapped
        resource.setrlimit(resource.RLIMIT_DATA, (base + int((SLACK + copies) * share), hard))
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = status("VmRSS") - status("VmData")
        yield
        found[name] = status("VmHWM") - before - base

    try:
        yield phase
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def status(field: str) -> int:
    """Return a field of this process's memory in bytes."""
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(f"{field}:")]
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    sys.exit(main())

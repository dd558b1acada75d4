"""Measure the seconds that a checkpoint adds to training, written by a thread beside training or at once between steps.

`python -m benchmarks.checkpoints` trains a preset over bytes. A round trains the same number of steps three times:
without a checkpoint, with one that is written between two steps (safetensors, sha256, fsync), and with one that is
copied there and written by a thread. The cost of a checkpoint is the seconds of its steps minus those of the steps
without one.

`python -m benchmarks.checkpoints --opens 64 1024 16384` counts what one process of so many does to load its share of a
checkpoint that as many processes wrote: the files that it opens, the bytes of lists that it reads, and its processor
seconds; and what the first process does to publish it. All 640 tensors are divided among all processes. Of the files
with tensors only that of one process is written; the lists are whole.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.rows import BYTES_VOCABULARY, made_plan
from training.contract.artifact import sha256_of, write_json
from training.contract.records import read_record, write_record
from training.pretrain import checkpoint
from training.pretrain.capacity.usage import keep_freed_memory
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.presets import PRESETS
from training.pretrain.models.shape import ModelConfig, ModelRecipe
from training.pretrain.parallel.world import World
from training.pretrain.report import Told
from training.pretrain.settings import PretrainRecipe
from training.pretrain.step import Trainer
from training.pretrain.tensor_files import Saved, TensorPlace, own_parts, read_parts, save_tensors

DIVIDED = 640  # tensors of a checkpoint whose lists are read


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Seconds for a series of steps: wall time, processor time, and time that training waited for the checkpoint."""

    wall: float
    processor: float
    blocked: float = 0.0


def main() -> None:
    """Run the rounds, and print medians and ratios within the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="30m", choices=PRESETS)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8, help="of a round; the checkpoint comes after the first")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--opens", type=int, nargs="+", metavar="PROCESSES", help="count only this")
    options = parser.parse_args()
    if options.opens:
        for processes in options.opens:
            print(opens(processes))
        return
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    shape = read_record(ModelRecipe, PRESETS[options.preset].model).shape(vocab_size=BYTES_VOCABULARY)
    with tempfile.TemporaryDirectory() as temporary:
        trainer = trainer_of(Path(temporary), shape, rows=options.rows, length=options.length)
        spent = rounds_of(trainer, rounds=options.rounds, steps=options.steps)
    nbytes = state_bytes(trainer)
    print(f"{options.preset}: {nbytes / 1e6:.0f} MB of state, {options.threads} threads, n = {options.rounds}")
    table(spent, options.steps)


def opens(processes: int) -> str:
    """Publish a checkpoint of so many processes, load the share of one in the middle, and return what that took."""
    rank, tensors = processes // 2, [f"model.{number}.weight" for number in range(DIVIDED)]
    with tempfile.TemporaryDirectory() as temporary:
        folder, final = Path(temporary) / ".writing", Path(temporary) / "step-00000001"
        folder.mkdir()
        (folder / checkpoint.STATE_FILE).write_text(json.dumps({"format": checkpoint.FORMAT, "step": 1}))
        for number in range(processes):
            places = {name: TensorPlace((2 * number, 0), (2 * processes, 8), ()) for name in tensors}
            own = {name: torch.full((2, 8), float(number)) for name in tensors} | {
                f"random.cpu.{number}": torch.zeros(8, dtype=torch.uint8)
            }
            file = folder / checkpoint.tensors_file(number, processes)
            if number == rank:
                save_tensors(own, file)
            write_json(folder / f"{file.name}.json", {"sha256": "0" * 64, "parts": own_parts(own, places)})
        begun = time.process_time()
        checkpoint._publish(folder, final)
        published, begun = time.process_time() - begun, time.process_time()
        listed = sum((final / name).stat().st_size for name in (checkpoint.MANIFEST_FILE, checkpoint.PARTS_FILE))
        json.loads((final / checkpoint.MANIFEST_FILE).read_text("utf-8"))
        saved = Saved(final, read_parts(json.loads((final / checkpoint.PARTS_FILE).read_text("utf-8"))))
        parts = [saved.part(name, (2 * rank, 0), (2, 8)) for name in tensors]
        loaded = time.process_time() - begun
    assert all(bool((part == rank).all()) for part in parts)
    return (
        f"{processes:,} processes: {len(saved._files)} file opened of {processes:,}, {listed / 1e6:.2f} MB of lists"
        f" read, {loaded:.2f} processor s to load a share, {published:.2f} to publish"
    )


def state_bytes(trainer: Trainer) -> int:
    """Return the bytes of a checkpoint: weights and optimizer states."""
    return sum(tensor.nbytes for tensor in checkpoint.pack(trainer.model, trainer.optimizers).values())


def rounds_of(trainer: Trainer, *, rounds: int, steps: int, until: float = float("inf")) -> dict[str, list[Spent]]:
    """Run each way of writing checkpoints in turns, for `rounds` rounds or until the monotonic clock reaches `until`.

    An extra round at the beginning is a warm-up and is not counted. It leaves out the way `at once`, which may take
    minutes and needs no warm-up.
    """
    ways = {"none": nothing, "at once": at_once, "beside": beside}
    spent: dict[str, list[Spent]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        if number > 1 and time.monotonic() > until:
            break
        made = {name: one_round(trainer, way, steps) for name, way in ways.items() if number or name != "at once"}
        for name, one in made.items() if number else ():
            spent[name].append(one)
    return spent


def table(spent: dict[str, list[Spent]], steps: int) -> None:
    """Return a table of the wall seconds that each way adds, and the ratio of the two ways within a round."""
    print(f"step without a checkpoint: {statistics.median(one.wall for one in spent['none']) / steps:.3f} s")
    added = {}
    for name in ("at once", "beside"):
        pairs = list(zip(spent[name], spent["none"], strict=True))
        added[name] = [one.wall - plain.wall for one, plain in pairs]
        processor = [one.processor - plain.processor for one, plain in pairs]
        blocked = [one.blocked for one in spent[name]]
        print(
            f"{name:8} adds {statistics.median(added[name]):.3f} s [{min(added[name]):.3f} to {max(added[name]):.3f}],"
            f" processor {statistics.median(processor):.3f} s, blocked {statistics.median(blocked):.3f} s"
        )
    ratio = statistics.median(added["beside"]) / statistics.median(added["at once"])
    print(f"beside / at once: {ratio:.2f} of the seconds added")


def trainer_of(folder: Path, shape: ModelConfig, *, rows: int, length: int, device: str = "cpu") -> Trainer:
    """Return a trainer of a model with this shape that has made its first step, so that its optimizer has a state.

    Its plan has more steps than are needed.
    """
    steps, batch = 100_000, rows * length
    recipe = PretrainRecipe(tokens=steps * batch, sequence_length=length, global_batch_tokens=batch)
    plan, shards = made_plan(vocabulary=shape.vocab_size, steps=steps, rows=rows, length=length)
    model = Decoder(shape)
    initialise(model, zero_outputs=True, generator=torch.Generator().manual_seed(0))
    world = World(rank=0, size=1, device=torch.device(device))
    trainer = Trainer(model, recipe, plan, shards, world)
    trainer.state.store = checkpoint.Store(folder / "checkpoints", world)
    trainer.run_step()
    return trainer


def one_round(trainer: Trainer, way: Callable[[Trainer], None], steps: int) -> Spent:
    """Train `steps` steps with a checkpoint after the first; return the seconds until both are finished."""
    store = trainer.state.store
    assert store is not None
    shutil.rmtree(store.folder, ignore_errors=True)
    store.folder.mkdir()
    wall, processor, blocked = time.perf_counter(), time.process_time(), 0.0
    for number in range(steps):
        report = trainer.run_step(Told(writing=store.is_writing))
        boundary = time.perf_counter()
        if not report.told.writing:
            store.commit()
        if number == 0:
            way(trainer)
        blocked += time.perf_counter() - boundary
    boundary = time.perf_counter()
    store.settle()
    ended = time.perf_counter()
    return Spent(wall=ended - wall, processor=time.process_time() - processor, blocked=blocked + ended - boundary)


def nothing(trainer: Trainer) -> None:
    """Write no checkpoint."""


def beside(trainer: Trainer) -> None:
    """Write a checkpoint as the trainer does, by a thread beside training."""
    trainer.state.save()


def at_once(trainer: Trainer) -> None:
    """Write a checkpoint at once, with the same guarantees: flushed to disk, with checksums, complete or absent."""
    store = trainer.state.store
    assert store is not None
    folder = store.folder / "at-once"
    folder.mkdir()
    save_tensors(checkpoint.pack(trainer.model, trainer.optimizers), folder / "tensors.safetensors")
    write_json(folder / "state.json", write_record(trainer.state.position))
    files = {name: sha256_of(folder / name) for name in ("tensors.safetensors", "state.json")}
    write_json(folder / "manifest.json", files)


if __name__ == "__main__":
    main()

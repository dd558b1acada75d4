"""Train a model that is larger than the memory of each of its processes, with a ceiling that the kernel enforces.

`python -m benchmarks.ceiling` (or `make ceiling`) starts four processes. Each may allocate its share of the model's
weights, gradients and optimizer (16 bytes a weight in all) and a quarter more, beyond what a process has after a tiny
training. With that they begin a training, take steps, write a text, save, and two processes go on from the checkpoint
and join one weight after the other for the export. Then four processes fine-tune the exported model (SFT), align it
(DPO) and score it, each with its share and a quarter more again; scoring needs the weights alone.

The ceiling is RLIMIT_DATA, which also counts mapped files. A save on a CPU copies the share, and a checkpoint or a
model that is read is mapped, so the ceiling is higher by this for the time.

The controls must fail: `--control gathered` joins all weights at once to write the text, `--control copies` lets
autograd keep copies of the layers' weights, and `--control whole` gives each process of SFT the whole model.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks import parallel
from training.pretrain import pretrain
from training.pretrain.checkpoint import Store
from training.pretrain.degrees import Degrees
from training.pretrain.mesh import wholes
from training.pretrain.models import export
from training.pretrain.models.decoder import Decoder, meta_decoder
from training.pretrain.models.shape import ModelConfig
from training.pretrain.parallel import World, make_world
from training.pretrain.samples import continued
from training.pretrain.step import Trainer

LARGE = ModelConfig(vocab_size=344, width=512, layers=48, heads=8, kv_heads=4, mlp_width=2048, max_length=64)
FILE_BYTES = 2**26  # of a file of the exported model
PRELOADED = ("trl.trainer.sft_trainer", "training.posttrain.align.paired", "evaluation.local_model")
STACK_BYTES = 2**20  # of a thread; the usual 8 MiB are hardly used
SLACK = 1.25
STATE_BYTES = 16  # of a weight: itself, its gradient and AdamW's two numbers
WEIGHT_BYTES = 4
TUNED = {
    "batch_size": 4,
    "learning_rate": 1e-3,
    "max_length": 64,
    "precision": "fp32",
    "trl": {"activation_checkpointing": True},
}
Found = dict[str, float]  # the most bytes of a phase beyond those before all of them, by phase


def main() -> int:
    """Run the phases and print the peak of each; return 1 if a process needed more than its ceiling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--control", choices=("gathered", "copies", "whole"), help="a fault that the ceiling must stop")
    control = parser.parse_args().control
    # gloo has two threads for each group of processes, and the whole of a thread's stack would count.
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = parallel.make_data(folder / "chain")
        tasks = [
            (4, partial(begin, data, folder / "kept", control)),
            (2, partial(go_on, data, folder / "kept", folder / "chain of models")),
        ]
        try:
            begun, ended = parallel.in_processes(tasks, folder)
            make_rows(folder / "chain of models")
            (stores := folder / "stores").mkdir()
            task = partial(tune, folder / "chain of models", control == "whole")
            (tuned,) = parallel.in_processes([(4, task)], stores, preload=PRELOADED)
        except RuntimeError as error:
            print(f"a ceiling was too low: {error}")
            return 1
    print(f"{LARGE.parameter_count:,} weights; the whole: {STATE_BYTES * LARGE.parameter_count / 1e6:,.0f} MB")
    for processes, found in ((4, begun), (2, ended), (4, tuned)):
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
            weights = wholes(trainer.model, trainer.pieces)
            if world.is_first:
                write_base(folder, weights)
            else:
                for _ in weights:
                    pass
    return found


def write_base(root: Path, weights: Iterator[tuple[str, Any]]) -> None:
    """Write the model of these weights as transformers reads it."""
    from tests.training.posttrain import tiny

    tokenizer = tiny.write_tokenizer(root / "tokenizer")
    export.write_weights(
        LARGE, weights, root / "base_model" / "model", tokenizer=tokenizer, eos_id=0, file_bytes=FILE_BYTES
    )


def make_rows(root: Path) -> None:
    """Make artifacts of the exported model, of a tiny one, of conversations and of preferences."""
    from tests.training.posttrain import tiny

    tiny.commit(root, "base_model")
    tiny.write_model(root / "tiny_model" / "model")
    tiny.commit(root, "tiny_model")
    said = tiny.write_rows(root / "sft.jsonl", tiny.conversations()[:8])
    preferred = tiny.write_rows(root / "pairs.jsonl", tiny.preference_rows(12))
    tiny.run("instructions", root / "instruction_data", {"sft": {"data": [{"uri": said}]}})
    pairs = {"data": [{"uri": preferred, "format": "chosen_rejected"}], "held_out_fraction": 0.25}
    tiny.run("preferences", root / "preference_data", {"preferences": pairs})


def tune(root: Path, whole: bool, rank: int, size: int) -> Found:
    """Fine-tune the exported model, align and score it, under the ceiling. `whole` is the control."""
    from evaluation.local_model import LocalModel
    from training.posttrain.align import paired
    from training.posttrain.sft import sft

    placed = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": 29500}
    os.environ |= {name: str(value) for name, value in placed.items()} | {"MASTER_ADDR": "127.0.0.1"}
    warnings.simplefilter("ignore")
    run_stage(root, "sft", "small", "tiny_model", size, size)
    run_stage(root, "align", "small_aligned", "small", size, size)
    LocalModel(root / "small" / "model", batch_size=4, shard=size)
    found: Found = {}
    with ceiling(size) as phase:

        def opened(name: str, load: Callable[..., Any]) -> Callable[..., Any]:
            def opening(*args: Any, **options: Any) -> Any:
                with phase(f"open for {name}", found, copies=WEIGHT_BYTES * size / STATE_BYTES):  # the files are mapped
                    return load(*args, **options)

            return opening

        sft.load_for_training = opened("SFT", sft.load_for_training)
        paired.load_for_training = opened("DPO", paired.load_for_training)
        with phase("SFT", found):
            run_stage(root, "sft", "sft_model", "base_model", size, 1 if whole else size)
        with phase("DPO", found):
            run_stage(root, "align", "aligned_model", "sft_model", size, size)
        with phase("scores", found, copies=WEIGHT_BYTES / STATE_BYTES - 1):
            model = opened("scores", LocalModel)(root / "aligned_model" / "model", batch_size=4, shard=size)
            model._loglikelihood_tokens([(("", ""), [5, 6, 7], [8 + number]) for number in range(8)])
            model.answers(["Which colour?"] * 4, max_new_tokens=4)
    return found


def run_stage(root: Path, stage: str, name: str, model: str, processes: int, shard: int) -> None:
    """Run SFT or DPO on a model for a step or two, as a job does."""
    from accelerate.state import AcceleratorState

    from tests.training.posttrain import tiny

    AcceleratorState._reset_state(reset_partial_state=True)
    begun_with, rows = ("base_model", "instruction_data") if stage == "sft" else ("sft_model", "preference_data")
    settings = (
        {**TUNED, "epochs": 1, "data": [{"uri": "x"}]} if stage == "sft" else {**TUNED, "method": "dpo", "epochs": 0.7}
    )
    inputs = dataclasses.replace(tiny.made(root, model), asset=begun_with), tiny.made(root, rows)
    tiny.run_job(tiny.job(stage, root / name, {stage: settings}, inputs, processes=processes, shard=shard), tiny.STAGES)
    dist.barrier()  # until the first process has written the artifact


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
        outer = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (base + int((SLACK + copies) * share), hard))
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = status("VmRSS") - status("VmData")
        yield
        gc.collect()
        found[name] = status("VmHWM") - before - base
        resource.setrlimit(resource.RLIMIT_DATA, outer)
        Path("/proc/self/clear_refs").write_text("5")  # for the phase around this one

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

"""Measure what audit mode costs: seconds per training step with it and without it, in turns in the same processes.

`python -m benchmarks.audit` trains the kitchen's shape of model (2.0M parameters, bf16, AdamW, 16 rows of 256 tokens,
micro-batches of `--rows`) in 1 and in 2 processes of one thread each. It prints medians over pairs of steps (with,
without, with, …) of wall seconds and of the first process's processor seconds, and whether 1 and 2 processes ended with
the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from benchmarks.parallel import ALONE, Data, in_processes
from training.order.settings import MixtureRecipe
from training.pretrain import checkpoint
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.shape import ModelConfig
from training.pretrain.parallel import World
from training.pretrain.settings import PretrainRecipe
from training.pretrain.step import Trainer

MODEL = ModelConfig(vocab_size=2048, width=192, layers=4, heads=6, kv_heads=3, mlp_width=512, max_length=256)
LENGTH, ROWS = 256, 16


def recipe_of(steps: int) -> PretrainRecipe:
    """Return the training settings: AdamW in bf16 for this number of steps."""
    return PretrainRecipe(
        tokens=steps * ROWS * LENGTH, sequence_length=LENGTH, global_batch_tokens=ROWS * LENGTH, optimizer="adamw"
    )


def measured(data: Data, rounds: int, rows: int, rank: int, size: int) -> dict[str, list[tuple[float, float]] | str]:
    """Return wall and processor seconds of each step, with and without audit mode.

    A digest of the audited weights is returned too.
    """
    torch.set_num_threads(1)
    plan, shards = data.open()
    world = World(rank=rank, size=size, device=ALONE.device)
    trainers = {}
    for name in ("plain", "audited"):
        model = Decoder(MODEL)
        initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(1))
        trainers[name] = Trainer(
            model,
            recipe_of(rounds + 1),
            plan,
            shards,
            world,
            micro_batch_tokens=rows * LENGTH,
            is_audited=name == "audited",
        )
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in trainers}
    for _ in range(rounds + 1):
        for name, trainer in trainers.items():
            world.wait()
            started = time.perf_counter(), time.process_time()
            trainer.run_step()
            seconds[name].append((time.perf_counter() - started[0], time.process_time() - started[1]))
    digest = hashlib.sha256()
    for tensor in checkpoint.pack(trainers["audited"].model, trainers["audited"].optimizers).values():
        digest.update(tensor.detach().numpy().tobytes())
    return {name: pairs[1:] for name, pairs in seconds.items()} | {"digest": digest.hexdigest()}


def main() -> int:
    """Measure both modes in 1 and in 2 processes and print the table; return 1 if the audited weights differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="pairs of steps")
    parser.add_argument("--rows", type=int, default=2, help="rows of a micro-batch")
    options = parser.parse_args()
    from tests.training.pretrain import tiny

    with tempfile.TemporaryDirectory() as folder:
        mixture = MixtureRecipe(max_epochs=100_000, held_out_fraction=0.1)
        recipe = replace(recipe_of(options.rounds + 1), seed=1)
        chain = tiny.TinyChain(Path(folder, "chain"), pretrain=recipe, mixture=mixture)
        data = Data(plan=chain.plan_artifact, shards=chain.shards)
        alone = measured(data, options.rounds, options.rows, 0, 1)
        tasks = [(2, partial(measured, data, options.rounds, options.rows))]
        results = {1: alone, 2: in_processes(tasks, Path(folder))[0]}
    for size, result in results.items():
        for what, place in (("wall", 0), ("processor", 1)):
            plain, audited = ([pair[place] for pair in result[name]] for name in ("plain", "audited"))
            ratios = sorted(b / a for a, b in zip(plain, audited, strict=True))
            print(
                f"{size} processes, {what}: {median(plain):.3f} s plain, {median(audited):.3f} s audited,"
                f" ratio {median(ratios):.2f} [{ratios[0]:.2f} to {ratios[-1]:.2f}], n = {len(ratios)}"
            )
    is_same = results[1]["digest"] == results[2]["digest"]
    print(f"weights and optimizer of 1 and 2 audited processes: {'the same bits' if is_same else 'DIFFERENT BITS'}")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())

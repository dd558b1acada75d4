"""Check whether training slows down as the data grow, and whether resuming takes longer after more steps.

    python -m benchmarks.steps data [--rounds 24]
    python -m benchmarks.steps resume [--rounds 20]

`data` trains the same small model over a token file on disk, with plans over 1, 2, 4, 8 and 16 times as many documents;
every round makes the same number of steps with each plan, in a new random order. Printed are the steps per second
relative to the smallest plan in the same round, and the change per doubling with a 95 % interval over resampled rounds.

`resume` stops stages by SIGTERM, after which they save, at larger and larger numbers of steps, and starts them again as
a backend does, in a new random order each round. Printed are the median seconds from the start to the next finished
step, and the change per doubling of the steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.rows import made_tokens, plan_over
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.shape import ModelConfig
from training.pretrain.parallel import World
from training.pretrain.settings import PretrainRecipe
from training.pretrain.step import Trainer
from training.pretrain.usage import keep_freed_memory
from training.progress import read_metrics

TIMES = (1, 2, 4, 8, 16)
DOCUMENT = 300  # tokens
SHAPE = ModelConfig(vocab_size=2048, width=64, layers=2, heads=2, kv_heads=2, mlp_width=176, max_length=256)
ROWS, LENGTH = 16, 256
RESAMPLES = 2000
STAGE_STEPS = (100, 200, 400, 800, 1600)


def main() -> None:
    """Measure and print one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("data", "resume"))
    parser.add_argument("--documents", type=int, default=20_000, help="of the smallest data")
    parser.add_argument("--steps", type=int, default=25, help="of a turn")
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if options.what == "data":
            by_data(Path(temporary), documents=options.documents, steps=options.steps, rounds=options.rounds or 24)
        else:
            by_steps(Path(temporary), rounds=options.rounds or 20)


# Steps a second by the size of the data


def by_data(folder: Path, *, documents: int, steps: int, rounds: int) -> None:
    """Measure and print the speed with each amount of data, in turns."""
    torch.set_num_threads(1)
    keep_freed_memory()
    file = token_file(folder / "tokens.bin", documents * TIMES[-1])
    trainers = [trainer_over(file, documents * times, steps=(rounds + 1) * steps) for times in TIMES]
    seconds: list[list[float]] = []
    draw = random.Random(0)
    for number in range(rounds + 1):
        spent = [0.0] * len(TIMES)
        for place in draw.sample(range(len(TIMES)), len(TIMES)):
            spent[place] = seconds_of(trainers[place], steps)
        seconds += [spent] if number else []  # the first round warms up and shuffles the epoch's documents
    print(f"{rounds} rounds of {steps} steps; {documents:,} documents of {DOCUMENT} tokens in the smallest data\n")
    print("| data | milliseconds a step | steps a second, beside the smallest |\n|---|---|---|")
    for place, times in enumerate(TIMES):
        ratios = [spent[0] / spent[place] for spent in seconds]
        print(
            f"| {times} x | {1000 * statistics.median(spent[place] for spent in seconds) / steps:.2f} |"
            f" {statistics.median(ratios):.4f} [{min(ratios):.3f}-{max(ratios):.3f}] |"
        )
    print(slope_line("steps a second", [[spent[0] / one for one in spent] for spent in seconds]))


def token_file(path: Path, documents: int) -> np.ndarray:
    """Write generated tokens in documents of equal length; return the file, memory-mapped as a shard is in training."""
    made_tokens(documents * DOCUMENT, vocabulary=SHAPE.vocab_size).astype("<u2").tofile(path)
    return np.memmap(path, dtype="<u2", mode="r")


def trainer_over(tokens: np.ndarray, documents: int, *, steps: int) -> Trainer:
    """Return a trainer over the first documents, with `steps` steps, or one epoch if that is more."""
    batch = ROWS * LENGTH
    steps = max(steps, documents * DOCUMENT // batch)
    recipe = PretrainRecipe(tokens=steps * batch, sequence_length=LENGTH, global_batch_tokens=batch)
    table = [(number * DOCUMENT, DOCUMENT) for number in range(documents)]
    plan, shards = plan_over(tokens[: documents * DOCUMENT], table, steps=steps, rows=ROWS, length=LENGTH)
    model = Decoder(SHAPE)
    initialise(model, zero_outputs=True, generator=torch.Generator().manual_seed(0))
    return Trainer(model, recipe, plan, shards, World(rank=0, size=1, device=torch.device("cpu")))


def seconds_of(trainer: Trainer, steps: int) -> float:
    """Return the wall seconds of some steps; waiting for the disk is included."""
    began = time.perf_counter()
    for _ in range(steps):
        trainer.run_step()
    return time.perf_counter() - began


# Seconds to the next step by the number of those before


def by_steps(folder: Path, *, rounds: int) -> None:
    """Measure and print how long a stage takes to resume after more and more steps.

    The order is random and new in each round.
    """
    from tests.training.pretrain import tiny
    from training.job import write_job
    from training.order.settings import MixtureRecipe

    recipe = dataclasses.replace(tiny.PRETRAIN, tokens=2 * STAGE_STEPS[-1] * 256)  # a note every twelve
    chain = tiny.TinyChain(folder, pretrain=recipe, mixture=MixtureRecipe(max_epochs=1e9, held_out_fraction=0.1))
    jobs = {}
    for steps in STAGE_STEPS:
        jobs[steps] = folder / f"{steps}.json", Path(chain.job(f"run-{steps}").output) / "metrics.jsonl"
        write_job(chain.job(f"run-{steps}"), jobs[steps][0])
        to_next_step(*jobs[steps], until=steps)
    draw, turns = random.Random(0), []
    for _ in range(rounds):
        order = draw.sample(STAGE_STEPS, k=len(STAGE_STEPS))
        taken = {steps: to_next_step(*jobs[steps], until=0) for steps in order}
        turns.append([taken[steps] for steps in STAGE_STEPS])
    for steps, seconds in zip(STAGE_STEPS, zip(*turns, strict=True), strict=True):
        print(f"after {steps} steps and more: {statistics.median(seconds):.2f} s to the next")
    print(slope_line("seconds to the next step", [[one / turn[0] for one in turn] for turn in turns]))


def to_next_step(job: Path, metrics: Path, *, until: int) -> float:
    """Return the seconds from a process's start to its first finished step.

    The process is stopped after step `until`.
    """
    before = last_step(metrics)
    began = time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", "training", str(job)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while last_step(metrics) <= before:
        time.sleep(0.02)
        if process.poll() is not None:
            sys.exit(f"the stage ended with {process.returncode}")
    first = next(row["time"] for row in read_metrics(metrics) if row["step"] > before and "loss" in row)
    while last_step(metrics) < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.wait()
    return first - began


def last_step(metrics: Path) -> int:
    """Return the last step in the metrics file."""
    return max((row["step"] for row in read_metrics(metrics) if "loss" in row), default=-1)


# Both


def slope_line(what: str, rows: Sequence[Sequence[float]]) -> str:
    """Return a line with the slope of the measured quantity `what` per doubling of the size that was varied.

    It is in percent, with a 95 % interval over resampled rounds. Each row of `rows` is a round, relative to its
    smallest size.
    """
    draw = random.Random(0)
    slopes = sorted(slope(draw.choices(rows, k=len(rows))) for _ in range(RESAMPLES))
    low, high = slopes[int(0.025 * RESAMPLES)], slopes[int(0.975 * RESAMPLES)]
    return f"{what}: {100 * slope(rows):+.2f} % a doubling [{100 * low:+.2f}, {100 * high:+.2f}]"


def slope(rows: Sequence[Sequence[float]]) -> float:
    """Return the slope per doubling: least squares over the medians of the rounds."""
    middles = np.median(np.asarray(rows), axis=0)
    return float(np.polyfit(np.arange(len(middles)), middles, 1)[0])


if __name__ == "__main__":
    main()

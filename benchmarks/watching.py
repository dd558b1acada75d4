"""Measure what it costs to watch a training, in time and memory, and to keep steps of it while it goes on.

`python -m benchmarks.watching` trains a small model over bytes on this machine's CPU. Three ways answer the same items:
requests packed into rows of the training's length, as the trainer does it; a pass for each item with its choices as
rows, padded to the longest, with the loss at every position (nanochat's `core_eval`); and passes over several requests
of all items, padded likewise (OLMo-core's in-loop evaluator). The two others are written anew here with this trainer's
model, so that only the way differs. The exit code is 1 if they give other likelihoods.

The memory of looks is the difference of the largest resident memory of two processes, one of which looks. A kept step
is the job that trains the model, with and without kept steps, in turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.checkpoints import trainer_of
from benchmarks.rows import BYTES_VOCABULARY
from tests.training.pretrain import tiny
from training.contract.artifact import find
from training.contract.records import read_record
from training.contract.running.runner import run_job
from training.pretrain.capacity.usage import keep_freed_memory
from training.pretrain.looks.answers import AskedItems
from training.pretrain.models.attention import one_document
from training.pretrain.models.presets import PRESETS
from training.pretrain.models.shape import ModelConfig, ModelRecipe
from training.pretrain.step import Trainer
from training.pretrain.watch.items import WatchedItem
from training.stages import STAGES

ROWS = 32  # of a step, and requests of a padded pass
KEPT_AFTER = (10, 20)  # steps, of 30
TOLERANCE = 1e-3  # nats
Request = tuple[tuple[int, ...], tuple[int, ...]]


def main() -> int:
    """Run what is asked for, print medians and ranges, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="1m", choices=PRESETS)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--items", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--looks", type=int, default=0, help="train a few steps with so many looks; print the memory")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    model = read_record(ModelRecipe, PRESETS[options.preset].model)
    if options.looks or "--looks" in sys.argv:
        print(peak_of(model.shape(vocab_size=BYTES_VOCABULARY), options))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        shape = model.shape(vocab_size=BYTES_VOCABULARY)
        trainer = trainer_of(Path(temporary), shape, rows=ROWS, length=options.length)
        if not ways_compared(trainer, made_items(options.items), options):
            return 1
        memory_compared(options)
        kept_compared(Path(temporary), model, options)
    return 0


def made_items(number: int) -> list[WatchedItem]:
    """Return items of four choices: a context of 24 to 64 tokens and continuations of 3 to 12."""
    chance, items = random.Random(0), []
    for item in range(number):
        context = tuple(chance.choices(range(1, BYTES_VOCABULARY), k=chance.randint(24, 64)))
        ends = (tuple(chance.choices(range(1, BYTES_VOCABULARY), k=chance.randint(3, 12))) for _ in range(4))
        asked = {"requests": tuple((context, end) for end in ends), "lengths": (1.0,) * 4, "right": (0,), "bytes": 8}
        items.append(WatchedItem(suite="made", item=str(item), is_greedy=False, **asked))
    return items


def packed(trainer: Trainer, asked: AskedItems) -> float:
    """Return the bits per byte of the right answers, from packed rows."""
    return asked.answered(trainer)["watched_bits_per_byte_made"]


def padded(trainer: Trainer, items: Sequence[WatchedItem], *, together: int | None) -> float:
    """Return the same from passes over the requests of one item, or over so many requests of all items."""
    requests = [request for item in items for request in item.requests]
    cuts = range(0, len(requests), together or 4)  # the four requests of an item follow each other
    passes = (requests[at : at + (together or 4)] for at in cuts)
    nats = [one for some in passes for one in nats_of(trainer, some)]
    right = sum(nats[4 * number] for number in range(len(items)))
    return right / torch.log(torch.tensor(2.0)).item() / sum(item.bytes for item in items)


@torch.no_grad()
def nats_of(trainer: Trainer, requests: Sequence[Request]) -> Iterator[float]:
    """Yield the nats of each continuation, from one pass over rows that are padded to the longest."""
    longest = max(len(context) + len(end) for context, end in requests)
    rows = torch.zeros(len(requests), longest, dtype=torch.long)
    for number, (context, end) in enumerate(requests):
        rows[number, : len(context) + len(end)] = torch.tensor((*context, *end))
    mask = one_document(rows, dtype=trainer.dtype, window=trainer.model.config.window)
    logits = trainer.model.logits(rows, mask).float()
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
    losses = losses.view(len(requests), -1)
    for number, (context, end) in enumerate(requests):
        yield losses[number, len(context) - 1 : len(context) + len(end) - 1].sum().item()


def ways_compared(trainer: Trainer, items: Sequence[WatchedItem], options: argparse.Namespace) -> bool:
    """Print what a look costs in each way, in turns; return whether all give the same numbers."""
    asked = AskedItems({"made": items}, options.length)
    answers: dict[str, Callable[[], float]] = {
        "packed": partial(packed, trainer, asked),
        "item by item": partial(padded, trainer, items, together=None),
        f"{ROWS} requests": partial(padded, trainer, items, together=ROWS),
    }
    ways: dict[str, Callable[[], object]] = {"a step": trainer.run_step, **answers}
    found = [way() for way in answers.values()]
    if max(found) - min(found) > TOLERANCE:
        print(f"other likelihoods: {found}")
        return False
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            started = time.process_time()
            way()
            spent[name].append(time.process_time() - started)
    print(
        f"{options.preset}, {len(items)} items in {len(asked.rows.tokens)} rows, processor seconds,"
        f" n = {options.rounds}"
    )
    for name, seconds in spent.items():
        ratio = statistics.median(one / ours for one, ours in zip(seconds, spent["packed"], strict=True))
        print(f"{name:14} {spread(seconds)}, {ratio:.2f} of packed")
    return True


def spread(values: Sequence[float]) -> str:
    """Return the median with the range."""
    return f"{statistics.median(values):.3f} [{min(values):.3f} to {max(values):.3f}]"


def memory_compared(options: argparse.Namespace) -> None:
    """Print the largest resident memory of a process that trains, and of one that also looks."""
    peaks: dict[int, list[float]] = {0: [], 3: []}
    for _ in range(3):
        for looks, own in peaks.items():
            words = ["--preset", options.preset, "--length", str(options.length), "--items", str(options.items)]
            argv = [sys.executable, "-m", "benchmarks.watching", *words, "--looks", str(looks)]
            own.append(float(subprocess.run(argv, capture_output=True, text=True, check=True).stdout))
    print(f"MB without looks {spread(peaks[0])}, with looks {spread(peaks[3])}, n = 3")


def peak_of(shape: ModelConfig, options: argparse.Namespace) -> float:
    """Return the largest resident memory of this process in MB, after some steps and looks."""
    with tempfile.TemporaryDirectory() as temporary:
        trainer = trainer_of(Path(temporary), shape, rows=ROWS, length=options.length)
        asked = AskedItems({"made": made_items(options.items)}, options.length)
        for number in range(4):
            trainer.run_step()
            if number < options.looks:
                packed(trainer, asked)
    # Not ru_maxrss, which a process takes over from the one that started it.
    (peak,) = (line for line in Path("/proc/self/status").read_text("utf-8").splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


def kept_compared(folder: Path, model: ModelRecipe, options: argparse.Namespace) -> None:
    """Print the seconds of a training without and with kept steps, in turns, and what one of these takes in steps."""
    texts = {"web": [tiny.sentence(number, words=60) for number in range(400)]}
    batch, steps = ROWS * options.length, 30
    recipe = dataclasses.replace(
        tiny.PRETRAIN, tokens=steps * batch, sequence_length=options.length, global_batch_tokens=batch
    )
    chain = tiny.TinyChain(folder, texts=texts, pretrain=recipe)
    wall: dict[bool, list[float]] = {False: [], True: []}
    per_step: list[float] = []
    for number in range(options.rounds + 1):
        for keeps, own in wall.items():
            job = chain.job(f"m-{number}-{keeps:d}", model=model, threads=options.threads)
            output = Path(job.output).parents[1] / "kept_steps"
            on_the_way = [
                dataclasses.replace(
                    job,
                    asset="kept_steps",
                    partition=f"tiny@step-{step}",
                    fingerprint=f"{job.fingerprint}-{step}",
                    settings=job.settings | {"kept": {"step": step}},
                    output=str(output / f"{job.fingerprint}-{step}"),
                )
                for step in KEPT_AFTER
            ]
            started = time.perf_counter()
            assert run_job(dataclasses.replace(job, on_the_way=tuple(on_the_way) if keeps else ()), STAGES) == 0
            own.append(time.perf_counter() - started)
        made = find(Path(job.output))
        assert made is not None
        per_step.append(made.record["metrics"]["training_seconds"] / steps)
    plain, keeping = wall[False][1:], wall[True][1:]  # the first is a warm-up
    added = [(one - other) / len(KEPT_AFTER) for one, other in zip(keeping, plain, strict=True)]
    print(f"a training of {steps} steps {spread(plain)} s, with {len(KEPT_AFTER)} kept steps {spread(keeping)} s")
    step = statistics.median(per_step)
    print(
        f"a kept step takes {spread(added)} s, as long as {statistics.median(added) / step:.1f} steps of {step:.3f} s"
    )


if __name__ == "__main__":
    sys.exit(main())

"""The GPU table: figures of this project's trainer and of other trainers on one GPU, in parts of at most eight minutes.

    python -m benchmarks.gpu mfu --out DIR
    python -m benchmarks.gpu torchtitan --out DIR --peers PEERS      (and nanochat, litgpt, hf)
    python -m benchmarks.gpu fp8 --out DIR --peers PEERS
    python -m benchmarks.gpu checkpoint --out DIR
    python -m benchmarks.gpu kill --out DIR
    python -m benchmarks.gpu table --out DIR

Each part writes DIR/<part>.json and can be repeated; `table` combines the parts that exist. Several parts in one
command share a trainer of this project: it holds its memory and waits while another trainer takes its turn. This
project's trainer needs torch, numpy and safetensors. The other trainers are in folders (`benchmarks/trainers.py`);
torchao, for `pretrain.precision: fp8`, is in PEERS/torchao if the environment has none. The data are generated. If a
figure could not be measured, the reason is in its place.

`--tiny` (with `--device cpu` without a GPU) runs all parts in seconds. Its figures mean nothing, and every line of its
output says so.

MFU is the model's operations per second divided by the manufacturer's peak for dense bf16 (989 TFLOP/s for H100 and
H200). The operations for a token are: 6 for each weight of a matrix, including the head, and 12 · attention width ·
half the row's length for each layer (arXiv 2204.02311, appendix B, with the half of the row that a causal model sees;
many authors count the whole row and get more). Recomputation is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.kills import first_step_after
from benchmarks.trainers import NotMeasured, Running, Task, Turn
from training.contract.artifact import write_json
from training.pretrain.models.account import peak_teraflops
from training.pretrain.models.shape import ModelConfig

PART_SECONDS = 480.0
START_SECONDS = 90.0  # left before the end, under which no further trainer is started
NOT_A_MEASUREMENT = "DRY RUN, NOT A MEASUREMENT"
PEAK_TERAFLOPS = 989.0  # of the table; another GPU's peak is its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The sizes of all measurements.

    `rows` are the rows of a batch, which are one pass: as many as fit twice on a GPU of 141 GB without recomputation.
    """

    shape: ModelConfig
    length: int
    rows: int
    most_rows: int  # of the best try of MFU: more than two trainers have room for at once
    long: int  # the other length that MFU is tried at, with as many tokens a step
    turns: int
    turn_steps: int
    fp8_steps: int
    checkpoint_steps: int
    checkpoint_rounds: int
    kills: int
    kill_steps: int
    checkpoint_seconds: float


# 1.25e9 parameters that every peer can have: heads of 128, no shared keys, an untied head, nanochat's vocabulary, and
# an MLP with as many weights as an ungated one of four times the width.
FULL = Size(
    shape=ModelConfig(
        vocab_size=32_768,
        width=2048,
        layers=22,
        heads=16,
        kv_heads=16,
        mlp_width=5504,
        max_length=4096,
        tied_embeddings=False,
    ),
    length=2048,
    rows=8,
    most_rows=16,
    long=4096,
    turns=3,
    turn_steps=6,
    fp8_steps=100,
    checkpoint_steps=40,
    checkpoint_rounds=3,
    kills=3,
    kill_steps=200,
    checkpoint_seconds=5.0,
)
TINY = Size(
    shape=ModelConfig(
        vocab_size=128, width=32, layers=2, heads=1, kv_heads=1, mlp_width=96, max_length=64, tied_embeddings=False
    ),
    length=32,
    rows=2,
    most_rows=4,
    long=64,
    turns=2,
    turn_steps=2,
    fp8_steps=6,
    checkpoint_steps=3,
    checkpoint_rounds=1,
    kills=1,
    kill_steps=4000,
    checkpoint_seconds=0.0,
)


class Part:
    """One part of the measurements while it runs.

    It has its device, sizes, output folder, and the time at which it must end.
    """

    def __init__(self, options: argparse.Namespace, *, start: Callable[..., Running] = Running) -> None:
        self._start = start
        self.device: Literal["cpu", "cuda"] = options.device
        self.size = TINY if options.tiny else FULL
        self.out: Path = options.out
        self.peers: Path | None = options.peers
        self.is_dry = options.tiny or options.device == "cpu"
        self.seconds: float = options.seconds
        self.until = time.monotonic() + self.seconds
        self._kept: dict[Task, Future[Running]] = {}
        self._pool = ThreadPoolExecutor(2)

    def begin(self) -> None:
        """Start the time limit of the next part."""
        self.until = time.monotonic() + self.seconds

    def close(self) -> None:
        """End the trainers that were kept from part to part."""
        while self._kept:
            _, started = self._kept.popitem()
            with contextlib.suppress(NotMeasured):
                started.result().close()

    def task(self, **changes: Any) -> Task:
        """Return the task for this project's trainer at this part's size, with `changes` to its fields."""
        size = self.size
        compiled = "no" if self.device == "cpu" else "blocks"
        base = Task(
            trainer="own",
            shape=size.shape,
            rows=size.rows,
            length=size.length,
            device=self.device,
            compiled=compiled,
            threads=1 if self.device == "cpu" else 0,
        )
        return replace(base, **changes)

    def rate(self, task: Task) -> dict[str, Any]:
        """Return the tokens per second of one trainer that uses the device alone."""
        try:
            with self.running(task) as trainer:
                return self.turns(trainer)["own"]
        except NotMeasured as why:
            return {"not_measured": str(why)}

    def turns(self, own: Running, peer: Running | None = None) -> dict[str, dict[str, Any]]:
        """Return the speed of a trainer, and of another one, which take turns. The first turn of each is not counted.

        Raise NotMeasured if one of them ends.
        """
        sides = {"own": own} if peer is None else {"own": own, "peer": peer}
        made: dict[str, list[Turn]] = {side: [] for side in sides}
        for _ in range(1 + self.size.turns):
            for side, trainer in sides.items():
                made[side].append(trainer.steps(self.size.turn_steps))
        return {
            side: self.speed_of(trainer, [one.steps * trainer.task.tokens / one.wall for one in made[side][1:]])
            | {"peak_gigabytes": made[side][-1].peak_gigabytes}
            for side, trainer in sides.items()
        }

    def kept(self, task: Task) -> Future[Running]:
        """Begin to start a trainer that is kept for all parts of this command, unless it was begun before."""
        if task not in self._kept:
            self._kept[task] = self.starting(task)
        return self._kept[task]

    def starting(self, task: Task) -> Future[Running]:
        """Begin to start a trainer, while another one starts too: most of that time is its compiler's."""
        return self._pool.submit(self.running, task)

    def speed_of(self, trainer: Running, rates: list[float]) -> dict[str, Any]:
        """Return a trainer's speed and settings in the form that the part's file has."""
        rate, ready = statistics.median(rates), trainer.ready
        return {
            "settings": ready.settings,
            "tokens": f"{trainer.task.rows} x {trainer.task.length}",
            "parameters": ready.parameters,
            "tokens_per_second": rate,
            "spread": [min(rates), max(rates)],
            "teraflops_per_second": rate * ready.flops_per_token / 1e12,
            "first_step_seconds": ready.first_step_seconds,
        }

    def running(self, task: Task) -> Running:
        """Start a trainer that may use the rest of the part's time. Raise NotMeasured if too little time is left."""
        left = self.until - time.monotonic()
        if left < START_SECONDS:
            raise NotMeasured(f"the part's {self.seconds:.0f} s were used up")
        return self._start(task, peers=self.peers, timeout=left)


# The parts


def mfu(part: Part) -> dict[str, Any]:
    """Measure this project's trainer with several settings; the best one gives the figure."""
    size = part.size
    tries = [
        part.task(rows=2 * size.most_rows, passes=2),
        part.task(rows=size.most_rows),
        part.task(length=size.long, rows=size.most_rows * size.length // size.long),
        part.task(optimizer="muon"),
        part.task(compiled="no"),
    ]
    found = [part.rate(task) for task in tries[: 1 if part.device == "cpu" else None]]
    peak = device_peak(part)
    for one, task in zip(found, tries, strict=False):
        if "not_measured" not in one:
            one["predicted_gigabytes"] = predicted_bytes(task) / 1e9
            if peak:
                one["mfu"] = one["teraflops_per_second"] / peak
    return {"peak_teraflops": peak, "tries": found}


def predicted_bytes(task: Task) -> int:
    """Return what `pedigree plan` predicts for a step of this trainer, without the GPU's own context."""
    from training.contract.run_settings import RunSettings
    from training.order.batch_settings import BatchPhase
    from training.pretrain.capacity.needs import Pretraining, training_bytes
    from training.pretrain.settings import PretrainRecipe

    sizes: dict[str, Any] = {"sequence_length": task.length, "global_batch_tokens": task.tokens}
    recipe = PretrainRecipe(tokens=task.tokens, optimizer=task.optimizer, precision=task.precision, **sizes)
    training = Pretraining(shape=task.shape, recipe=recipe, phase=BatchPhase(tokens=task.tokens, **sizes))
    run = RunSettings(micro_batch_tokens=task.tokens // task.passes, recompute=task.recompute)
    parts = training_bytes(training, run, on_gpu=task.device == "cuda")["step"]
    return sum(size for name, size in parts.items() if name not in ("libraries", "copy for a checkpoint"))


def device_peak(part: Part) -> float | None:
    """Return the device's peak for dense bf16 in TFLOP/s; for a dry run, the peak that the GPU table assumes."""
    if part.is_dry:
        return PEAK_TERAFLOPS
    import torch

    return peak_teraflops(torch.cuda.get_device_name())


def against(peer: str) -> Callable[[Part], dict[str, Any]]:
    """Return a part that compares this project's trainer with another one, at the other's stock and best settings.

    Shape, batch and precision are the same. The two trainers take turns.
    """

    def run(part: Part) -> dict[str, Any]:
        task = part.task(optimizer="muon" if peer == "nanochat" else "adamw")
        settings = ("stock",) if peer == "nanochat" or part.device == "cpu" else ("best", "stock")
        own, theirs = {}, {}
        for setting in settings:
            try:
                beside = part.kept(task)
                with part.running(part.task(trainer=peer, setting=setting, compiled="no")) as other:
                    both = part.turns(beside.result(), other)
                own[setting], theirs[setting] = both["own"], both["peer"]
            except NotMeasured as why:
                theirs[setting] = {"not_measured": str(why)}
        return {"own": own, "peer": theirs}

    return run


def fp8(part: Part) -> dict[str, Any]:
    """Measure this project's trainer in bf16 and in fp8 on the same batches.

    Measured are the speed, and the loss after the same tokens.
    """
    found: dict[str, Any] = {}
    started = {
        precision: part.starting(part.task(precision=precision, steps=part.size.fp8_steps))
        for precision in ("bf16", "fp8")
    }
    for precision, one in started.items():
        try:
            with one.result() as trainer:
                wait(started.values())
                found[precision] = trained(part, trainer)
        except NotMeasured as why:
            found[precision] = {"not_measured": str(why)}
    return found


def trained(part: Part, trainer: Running) -> dict[str, Any]:
    """Train all steps of the schedule after the first, in ten turns; return the speed and the loss.

    The loss is the mean of the losses at the ends of the last five turns.
    """
    steps = (part.size.fp8_steps - 1) // 10 or 1
    turns = [trainer.steps(steps) for _ in range(min(10, part.size.fp8_steps - 1))]
    rates = [turn.steps * trainer.task.tokens / turn.wall for turn in turns[1:]]
    losses = [turn.loss for turn in turns[-5:] if turn.loss is not None]
    return part.speed_of(trainer, rates) | {"loss": statistics.fmean(losses), "steps": 1 + steps * len(turns)}


def checkpoint(part: Part) -> dict[str, Any]:
    """Measure the seconds that a checkpoint adds to training, written by a thread and written at once."""
    from benchmarks import checkpoints

    size = part.size
    with tempfile.TemporaryDirectory(dir=part.out) as folder:
        trainer = checkpoints.trainer_of(
            Path(folder), size.shape, rows=size.rows, length=size.length, device=part.device
        )
        spent = checkpoints.rounds_of(
            trainer, rounds=size.checkpoint_rounds, steps=size.checkpoint_steps, until=part.until - 160
        )
    added = {
        way: statistics.median(one.wall - plain.wall for one, plain in zip(spent[way], spent["none"], strict=True))
        for way in ("beside", "at once")
    }
    return {
        "state_gigabytes": checkpoints.state_bytes(trainer) / 1e9,
        "seconds_added": added,
        "seconds_blocked": {way: statistics.median(one.blocked for one in spent[way]) for way in added},
        "rounds": len(spent["none"]),
        "step_seconds": statistics.median(one.wall for one in spent["none"]) / size.checkpoint_steps,
    }


def kill(part: Part) -> dict[str, Any]:
    """Measure the seconds from `kill -9` to the next finished step of the process that resumes the training."""
    folder = part.out / "killed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    lapses: list[float] = []
    chance = random.Random(0)
    process = started(part, folder)
    try:
        if first_step_after(folder, 0.0, process) is None:
            return {"not_measured": f"the training ended: {last_words(folder)}"}
        for _ in range(part.size.kills):
            await_checkpoint(part, folder, process)
            time.sleep(chance.uniform(0.0, part.size.checkpoint_seconds))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            killed = time.time()
            process = started(part, folder)
            first = first_step_after(folder, killed, process)
            if first is None:
                return {"not_measured": f"the training ended: {last_words(folder)}"}
            lapses.append(first - killed)
            if time.monotonic() > part.until - START_SECONDS:
                break
    except NotMeasured as why:
        return {"not_measured": str(why)}
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return {"seconds": lapses}


def started(part: Part, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that trains in `folder`, resuming from its newest checkpoint."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu", "train", "--out", str(folder)]
    command += ["--device", part.device, *(["--tiny"] if part.size is TINY else [])]
    with open(folder / "errors.log", "ab") as errors:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)


def await_checkpoint(part: Part, folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a new checkpoint is complete. Raise NotMeasured if the training ends or the part's time is over."""
    before = set((folder / "checkpoints").glob("step-*"))
    while not set((folder / "checkpoints").glob("step-*")) - before:
        if process.poll() is not None:
            raise NotMeasured(f"the training ended: {last_words(folder)}")
        if time.monotonic() > part.until:
            raise NotMeasured("no checkpoint was finished in the part's time")
        time.sleep(0.02)


def last_words(folder: Path) -> str:
    """Return the last line that the training wrote to standard error."""
    lines = (folder / "errors.log").read_text("utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "without a word"


def train(part: Part) -> None:
    """Train as the process that the part `kill` starts, with the trainer's own loop and checkpoints."""
    import torch

    from benchmarks.rows import made_plan
    from training.contract.progress import Progress
    from training.pretrain import checkpoint as checkpoints
    from training.pretrain.models.decoder import Decoder, initialise
    from training.pretrain.parallel.world import World
    from training.pretrain.run import RunHooks
    from training.pretrain.run import train as run
    from training.pretrain.settings import PretrainRecipe
    from training.pretrain.step import Trainer

    size = part.size
    batch = size.rows * size.length
    recipe = PretrainRecipe(tokens=size.kill_steps * batch, sequence_length=size.length, global_batch_tokens=batch)
    plan, shards = made_plan(
        vocabulary=size.shape.vocab_size, steps=size.kill_steps, rows=size.rows, length=size.length
    )
    model = Decoder(size.shape)
    initialise(model, zero_outputs=True, generator=torch.Generator().manual_seed(0))
    world = World(rank=0, size=1, device=torch.device(part.device))
    trainer = Trainer(model, recipe, plan, shards, world)
    store = checkpoints.Store(part.out / "checkpoints", world, kept=1)  # two of these are thirty gigabytes
    trainer.state.resume(store)
    watch = RunHooks(
        progress=Progress(part.out),
        checkpoint_seconds=size.checkpoint_seconds,
        bundle=part.out / "stopped",
        describe=lambda documents: [],
    )
    run(trainer, watch)


PARTS: dict[str, Callable[[Part], dict[str, Any]]] = {
    "mfu": mfu,
    "torchtitan": against("torchtitan"),
    "nanochat": against("nanochat"),
    "litgpt": against("litgpt"),
    "hf": against("hf"),
    "fp8": fp8,
    "checkpoint": checkpoint,
    "kill": kill,
}


# Putting it together


def write_part(name: str, part: Part) -> None:
    """Run a part and write its result to its file, or the reason why there is none."""
    import torch

    part.out.mkdir(parents=True, exist_ok=True)
    began, has_device = time.monotonic(), part.device == "cpu" or torch.cuda.is_available()
    try:
        part.begin()
        with within(part.seconds):
            found = PARTS[name](part) if has_device else {"not_measured": "no GPU was at hand"}
    except NotMeasured as why:
        found = {"not_measured": str(why)}
    record = {
        "label": NOT_A_MEASUREMENT if part.is_dry else "",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() and part.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "seconds": time.monotonic() - began,
        "found": found,
    }
    write_json(part.out / f"{name}.json", record)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise NotMeasured in the context's block after `seconds`, so that a part that hangs still writes its file."""

    def late(*_: object) -> None:
        raise NotMeasured(f"it took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def table(out: Path) -> str:
    """Return the table made of the parts in `out`. Exit with a message if dry runs are among the measurements."""
    read = {
        name: json.loads((out / f"{name}.json").read_text("utf-8")) for name in PARTS if (out / f"{name}.json").exists()
    }
    labels = {one["label"] for one in read.values()}
    if len(labels) > 1:
        sys.exit(f"{out} holds dry runs among measurements; keep them in folders of their own")
    label = next(iter(labels), "")
    cells = {name: read[name]["found"] if name in read else {"not_measured": "the part was not run"} for name in PARTS}
    head = "| what | reach | aim | measured |\n|---|---|---|---|"
    rows = [f"| {what} | {reach} | {aim} | {labelled(label, text)} |" for what, reach, aim, text in rows_of(cells)]
    where = {f"{one['device']}, torch {one['torch']}, Python {one['python']}" for one in read.values()}
    said = "; ".join(sorted(where)) or "nothing was run"
    return "\n".join(
        [*filter(None, [label]), said, "", head, *rows, "", *details(cells, label), *filter(None, [label])]
    )


def labelled(label: str, text: str) -> str:
    """Return a cell of the table with the label of a dry run in front.

    So it cannot be mistaken for a measurement.
    """
    return f"{label}: {text}" if label and not text.startswith("not measured") else text


def rows_of(cells: dict[str, Any]) -> Iterable[tuple[str, str, str, str]]:
    """Yield the rows of the table: the quantity, the figure to reach, the figure to aim at, and the measured figure."""
    yield "MFU in bf16, at least 1B dense, 2k to 4k tokens", "55 %", "62 %", mfu_cell(cells["mfu"])
    goals = {"torchtitan": ("1.25", "1.5"), "nanochat": ("1.10", "1.2"), "litgpt": ("1.4", "1.8"), "hf": ("2", "3")}
    for peer, (reach, aim) in goals.items():
        yield f"tokens a second against {peer}", f"{reach} x", f"{aim} x", against_cell(cells[peer])
    yield "fp8 against own bf16, loss within 0.5 %", "1.20 x", "1.30 x", fp8_cell(cells["fp8"])
    yield "seconds that a checkpoint adds, of those at once", "1/30", "1/50", checkpoint_cell(cells["checkpoint"])
    yield "kill -9 to the next finished step", "20 s", "10 s", kill_cell(cells["kill"])


def missing(found: dict[str, Any]) -> str | None:
    """Return why a part has no figure; None if it has one."""
    return f"not measured: {found['not_measured']}" if "not_measured" in found else None


def mfu_cell(found: dict[str, Any]) -> str:
    """Return the table's cell for MFU: the best of the settings tried."""
    if text := missing(found):
        return text
    made = [one for one in found["tries"] if "mfu" in one]
    if not made:
        return missing(found["tries"][0]) or "not measured: this GPU's peak is not known"
    best = max(made, key=lambda one: one["mfu"])
    return (
        f"{100 * best['mfu']:.3g} % of {found['peak_teraflops']:.0f} TFLOP/s:"
        f" {best['tokens_per_second']:,.0f} tokens/s, {best['tokens']} tokens, {best['settings']}"
    )


def against_cell(found: dict[str, Any]) -> str:
    """Return the table's cell for another trainer, with ratios at each of its settings.

    The ratios are in tokens and, if shapes differ, in operations.
    """
    if text := missing(found):
        return text
    return "; ".join(f"{setting}: {ratio(found['own'].get(setting), one)}" for setting, one in found["peer"].items())


def ratio(own: dict[str, Any] | None, peer: dict[str, Any]) -> str:
    """Return this project's speed divided by the other trainer's, as text."""
    if own is None:
        return missing(peer) or "not measured"
    tokens, operations = (own[key] / peer[key] for key in ("tokens_per_second", "teraflops_per_second"))
    also = "" if abs(tokens / operations - 1) < 0.005 else f" ({operations:.2f} x in operations)"
    return f"{tokens:.2f} x{also}"


def fp8_cell(found: dict[str, Any]) -> str:
    """Return the table's cell for fp8: the speed relative to bf16, and the difference in loss."""
    if text := missing(found):
        return text
    if text := missing(found["fp8"]) or missing(found["bf16"]):
        return text
    speed = found["fp8"]["tokens_per_second"] / found["bf16"]["tokens_per_second"]
    apart = found["fp8"]["loss"] / found["bf16"]["loss"] - 1
    return f"{speed:.2f} x, loss {100 * apart:+.2f} % after {found['fp8']['steps']} steps"


def checkpoint_cell(found: dict[str, Any]) -> str:
    """Return the table's cell for checkpoints: the seconds that one adds, and the ratio to writing it at once."""
    if text := missing(found):
        return text
    beside, at_once = (found["seconds_added"][way] for way in ("beside", "at once"))
    return (
        f"{beside / at_once:.3f}: {beside:.2f} s of {at_once:.2f} s, {found['state_gigabytes']:.3g} GB of state,"
        f" n = {found['rounds']}"
    )


def kill_cell(found: dict[str, Any]) -> str:
    """Return the table's cell for kills: the median and the range of the seconds."""
    if text := missing(found):
        return text
    seconds = found["seconds"]
    return f"{statistics.median(seconds):.1f} s [{min(seconds):.1f} to {max(seconds):.1f}], n = {len(seconds)}"


def details(cells: dict[str, Any], label: str) -> Iterable[str]:
    """Yield a line for each trainer that ran, or with the reason why it did not."""
    for name, found in cells.items():
        for who, one in members(found):
            if "settings" in one or "not_measured" in one:
                text = missing(one) or (
                    f"{one['tokens_per_second']:,.0f} tokens/s [{one['spread'][0]:,.0f} to {one['spread'][1]:,.0f}],"
                    f" {one['teraflops_per_second']:.3g} TFLOP/s, {one['parameters']:,} parameters, {one['tokens']}"
                    f" tokens, first step {one['first_step_seconds']:.0f} s; {memory_of(one)}{one['settings']}"
                )
                yield f"- {name}, {who}: {labelled(label, text)}"


def memory_of(one: dict[str, Any]) -> str:
    """Return a trainer's peak of memory and the predicted one, as text; empty if it was not measured."""
    if "peak_gigabytes" not in one:
        return ""
    predicted = f" ({one['predicted_gigabytes']:.1f} predicted)" if "predicted_gigabytes" in one else ""
    return f"peak {one['peak_gigabytes']:.1f} GB{predicted}; "


def members(found: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the name and the result of each trainer in a part's file."""
    for number, one in enumerate(found.get("tries", [])):
        yield f"try {number + 1}", one
    for name in ("bf16", "fp8"):
        if name in found:
            yield name, found[name]
    for setting, one in found.get("own", {}).items():
        yield f"own beside {setting}", one
    yield from found.get("peer", {}).items()


def main() -> None:
    """Run the part that the command line names, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=(*PARTS, "table", "train"), metavar="part")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a dry run: seconds, and no measurement")
    parser.add_argument("--seconds", type=float, default=PART_SECONDS, help="the most that a part may take")
    options = parser.parse_args()
    part = Part(options)
    try:
        for name in options.parts:
            if name == "train":
                train(part)
            elif name != "table":
                write_part(name, part)
    finally:
        part.close()
    if "train" not in options.parts:
        print(table(options.out))


if __name__ == "__main__":
    main()

"""Kill a pretraining at random moments, start it again, and compare weights and optimizer with an undisturbed run.

`python -m benchmarks.kills --kills 200`. A small model reads its documents for several epochs, packed, with several
passes per step, and its data contain a stretch of noise that causes a rollback. SIGKILL is sent a random time after a
process made its first step, or, one time in eight, while it starts. Printed is the time from a kill to the next
finished step, importing torch included; the exit code is 1 if a bit differs.

With `--folder` every finished run is recorded there, and the same command continues after the last one. `make kills`
does the full set: 160 kills of one process, and 40 of torchrun with two.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

# A process that goes on where another was killed is measured from its start, so nothing slow is imported up here.

NOISY_STEPS = range(60, 66)
START_SECONDS = 3.0  # about what a process takes to its first step
DONE_FILE = "done.json"
RUNS_FILE = "runs.jsonl"


def main() -> int:
    """Train once undisturbed, then with kills, until the number of kills is reached; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--processes", type=int, default=1, help="by torchrun; a kill ends all of them")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--packing", choices=("end_to_end", "best_fit"), default="end_to_end")
    parser.add_argument("--checkpoint-seconds", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keeps what was done; without it nothing is kept")
    parser.add_argument("--train", type=Path, help="do this job (what the processes are started with)")
    options = parser.parse_args()
    if options.train:
        train_as(options.train)
        return 0
    if options.folder:
        return compare(options.folder / name_of(options), options)
    with tempfile.TemporaryDirectory() as temporary:
        return compare(Path(temporary), options)


def name_of(options: argparse.Namespace) -> str:
    """Return the folder name of a set of kills, which contains every option on which the bits may depend."""
    more = [f"threads-{options.threads}"] if options.threads > 1 else []
    more += [options.packing] if options.packing != "end_to_end" else []
    return "-".join([f"{options.processes}-of-{options.steps}-seed-{options.seed}", *more])


def compare(root: Path, options: argparse.Namespace) -> int:
    """Compare killed runs with an undisturbed one; runs that are finished in `root` are not repeated."""
    root.mkdir(parents=True, exist_ok=True)
    write = jobs_in(
        root,
        steps=options.steps,
        packing=options.packing,
        threads=options.threads,
        micro_batch_tokens=64,
        checkpoint_seconds=options.checkpoint_seconds,
        processes=options.processes,
    )
    job = write("undisturbed")
    done = folder_of(job) / DONE_FILE
    reference = json.loads(done.read_text("utf-8")) if done.exists() else outcome_of(start(job), job)
    print(f"undisturbed: {reference}", flush=True)
    noted = [json.loads(line) for line in lines_of(root / RUNS_FILE)]
    while sum(run["kills"] for run in noted) < options.kills:
        number, left = len(noted), options.kills - sum(run["kills"] for run in noted)
        job = write(f"run-{number}")
        shutil.rmtree(folder_of(job), ignore_errors=True)  # of a run that this command was stopped in
        found, killed, taken = disturbed(job, random.Random(f"{options.seed}/{number}"), reference["seconds"], left)
        run = {
            "kills": killed,
            "same_bits": {**found, "seconds": 0} == {**reference, "seconds": 0},
            "seconds_to_next_step": [round(one, 2) for one in taken],
            "epochs": found["epochs"],
        }
        noted.append(run)
        with open(root / RUNS_FILE, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(run) + "\n")
        print(f"run {number + 1}: {run}" + ("" if run["same_bits"] else f" DIFFERENT: {found}"), flush=True)
    print(summary(noted, options.processes))
    return 0 if all(run["same_bits"] for run in noted) else 1


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file; none if it does not exist."""
    return path.read_text("utf-8").splitlines() if path.exists() else []


def summary(noted: list[dict[str, Any]], processes: int) -> str:
    """Return the results of all runs together, as text."""
    lapses = [one for run in noted for one in run["seconds_to_next_step"]]
    spread = f"{statistics.median(lapses):.2f} s [{min(lapses):.2f} to {max(lapses):.2f}]" if lapses else "never seen"
    same = all(run["same_bits"] for run in noted)
    return (
        f"{sum(run['kills'] for run in noted)} kills of {processes} process(es) in {len(noted)} runs,"
        f" {'all' if same else 'NOT all'} with the same bits; from a kill to the next finished step {spread},"
        f" n = {len(lapses)}"
    )


def jobs_in(root: Path, *, steps: int, packing: Literal["end_to_end", "best_fit"], **settings: float) -> Any:
    """Return a function that writes the job of a run with a given name; all jobs share the same inputs."""
    from tests.training.pretrain import tiny
    from training.contract.job import write_job
    from training.order.settings import MixtureRecipe
    from training.pretrain.optim.average_settings import AverageRecipe
    from training.pretrain.spikes import SpikeRecipe

    recipe = dataclasses.replace(
        tiny.PRETRAIN,
        tokens=steps * 256,
        packing=packing,
        learning_rate=3e-3,
        average=AverageRecipe(kind="ema"),
        spikes=SpikeRecipe(deviations=6.0, window=24, rollback_steps=20, skipped_after=10),
    )
    chain = tiny.TinyChain(root, pretrain=recipe, mixture=MixtureRecipe(max_epochs=1e6, held_out_fraction=0.1))

    def write(name: str) -> Path:
        path = root / f"{name}.json"
        write_job(chain.job(name, **settings), path)
        return path

    return write


def start(job: Path) -> subprocess.Popen[bytes]:
    """Start a process, or torchrun and its processes, that resumes the job's training.

    It has a process group of its own.
    """
    settings = json.loads(job.read_text("utf-8"))["run"]
    processes = settings["processes"]
    launcher = []
    if processes > 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", str(port)]
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "benchmarks.kills", "--train", str(job)],
        env={**os.environ, "OMP_NUM_THREADS": str(settings["threads"])},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to the process and to those that it started, as torchrun gives each a group of its own."""
    import psutil

    for one in [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.communicate()


def disturbed(job: Path, chance: random.Random, seconds: float, most: int) -> tuple[dict[str, Any], int, list[float]]:
    """Train a job to its end while killing it up to `most` times.

    Return the result, the number of kills, and the seconds from each kill to the next finished step.
    """
    killed_at, kills, lapses = 0.0, 0, []
    while True:
        process = start(job)
        if kills < most and chance.random() < 1 / 8:
            wait = chance.uniform(0, START_SECONDS)
        else:
            first = first_step_after(folder_of(job), killed_at, process)
            if killed_at and first is not None:
                lapses.append(first - killed_at)
            # Long enough to get on, short enough to be killed several times.
            wait = chance.expovariate(5 / seconds)
        try:
            process.wait(wait if kills < most else None)
        except subprocess.TimeoutExpired:
            kill(process)
            killed_at, kills = time.time(), kills + 1
            continue
        return outcome_of(process, job), kills, lapses


def folder_of(job: Path) -> Path:
    """Return the folder of a job's run."""
    return Path(json.loads(job.read_text("utf-8"))["output"])


def first_step_after(folder: Path, moment: float, process: subprocess.Popen[bytes]) -> float | None:
    """Return the time at which the process that trains in `folder` finished its first step after `moment`.

    None if the process ended without one.
    """
    from training.contract.progress import read_metrics

    path, size = folder / "metrics.jsonl", -1
    while True:
        ended = process.poll() is not None
        grown = path.stat().st_size if path.exists() else 0
        if grown != size or ended:  # reading takes time from what is measured
            size = grown
            later = [row["time"] for row in read_metrics(path) if "loss" in row and row["time"] > moment]
            if later or ended:
                return later[0] if later else None
        time.sleep(0.02)


def outcome_of(process: subprocess.Popen[bytes], job: Path) -> dict[str, Any]:
    """Return the result that a finished process wrote. Raise RuntimeError if the process failed."""
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"training failed with {process.returncode}:\n{errors.decode()[-2000:]}")
    return json.loads((folder_of(job) / DONE_FILE).read_text("utf-8"))


def train_as(path: Path) -> None:
    """Train as the stage does, up to the last step, and write the digest of everything that must be equal."""
    from training.contract.artifact import write_json
    from training.contract.job import read_job
    from training.contract.progress import Progress
    from training.pretrain import checkpoint
    from training.pretrain.models.shape import ModelRecipe
    from training.pretrain.parallel.world import joined_world
    from training.pretrain.run import RunHooks, train
    from training.pretrain.settings import PretrainRecipe
    from training.pretrain.stages import pretrain as stage

    job = read_job(path)
    folder = Path(job.output)
    folder.mkdir(parents=True, exist_ok=True)
    recipe = job.settings_as(PretrainRecipe, "pretrain")
    plan, shards, sidecars = stage.open_inputs(job, recipe)
    stage.set_up_torch(job)
    with joined_world() as world:
        shape = stage.model_shape(job.settings_as(ModelRecipe, "model"), Path(job.input_of("tokenizer").path))
        trainer = noisy_trainer()(
            stage.meta_decoder(shape),
            recipe,
            plan,
            shards,
            world,
            weights=stage.first_weights(shape, recipe),
            micro_batch_tokens=job.run.micro_batch_tokens,
        )
        trainer.state.resume(checkpoint.Store(folder / "checkpoints", world))
        progress = Progress(folder, enabled=world.is_first)
        train(
            trainer,
            RunHooks(
                progress=progress,
                checkpoint_seconds=job.run.checkpoint_seconds,
                bundle=folder / "stopped",
                describe=sidecars.describe,
            ),
        )
        progress.closed()
        if not world.is_first:
            return
    digest = hashlib.sha256()
    for name, tensor in sorted(checkpoint.pack(trainer.model, trainer.optimizers).items()):
        digest.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    source = plan.record.sources[0]
    write_json(
        folder / DONE_FILE,
        {
            "weights_and_optimizer": digest.hexdigest(),
            "last_loss": trainer.state.position.last_losses[-1],
            "ledger": [[entry.first, entry.last] for entry in trainer.state.ledger.entries],
            "epochs": source.samples * recipe.sequence_length / source.tokens,
            "seconds": trainer.state.position.seconds,
        },
    )


def noisy_trainer() -> type:
    """Return a class of trainer whose rows are noise at some steps, so that the run has a spike to roll back from."""
    import numpy as np

    from training.pretrain.step import Trainer

    class Noisy(Trainer):
        def batch(self, samples, *, step, numbers):  # type: ignore[no-untyped-def]
            made = super().batch(samples, step=step, numbers=numbers)
            if step not in NOISY_STEPS:
                return made
            draws = np.random.Generator(np.random.Philox(key=[step, numbers[0]]))
            noise = draws.integers(2, self.model.config.vocab_size, size=made.tokens.shape)
            return made._replace(tokens=noise, targets=np.roll(noise, 7, axis=1))

    return Noisy


if __name__ == "__main__":
    sys.exit(main())

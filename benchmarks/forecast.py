"""Compare the predicted memory of a training on a CPU with the measured one.

    python -m benchmarks.forecast [--shapes 1m 10m 30m]

Each training is a process of its own that makes two steps over generated tokens with one thread. Predicted is the
moment `step` of `training.pretrain.forecast.memory`, without the copy for a checkpoint, because these processes save
none. Measured are the bytes of the tensors at their peak, and the peak of the resident memory (`ru_maxrss`), which also
has the libraries, the kernels' own buffers, and what the C library's heap cannot use again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

STEPS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One training: a preset, its batch, and how the batch is passed through."""

    preset: str
    rows: int = 8
    length: int = 512
    passes: int = 1
    recompute: str = "none"
    precision: str = "bf16"
    optimizer: str = "adamw"


CASES = (
    Case(preset="1m", length=256),
    Case(preset="10m"),
    Case(preset="10m", rows=32),
    Case(preset="10m", rows=32, passes=4),
    Case(preset="10m", rows=32, recompute="selective"),
    Case(preset="10m", rows=32, recompute="full"),
    Case(preset="10m", rows=16, precision="fp32"),
    Case(preset="30m", rows=16),
    Case(preset="30m", rows=16, passes=2, optimizer="muon"),
    Case(preset="100m", rows=4),
    Case(preset="100m", rows=8, passes=4),
)


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", help="presets; all of the table when none is given")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(Case(**json.loads(options.one)))))
        return
    print("| preset | rows × length, passes | recompute | precision | tensors, MB | ratio | resident, MB | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if options.shapes and case.preset not in options.shapes:
            continue
        made = json.loads(
            subprocess.run(
                [sys.executable, "-m", "benchmarks.forecast", "--one", json.dumps(asdict(case))],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        predicted, libraries = made["predicted"], made["parts"]["libraries"]
        print(
            f"| {case.preset} {case.optimizer} | {case.rows} × {case.length}, {case.passes} | {case.recompute} |"
            f" {case.precision} | {made['tensors'] / 1e6:.0f} | {made['tensors'] / (predicted - libraries):.2f} |"
            f" {made['resident'] / 1e6:.0f} | {made['resident'] / predicted:.2f} |",
            flush=True,
        )


def measure(case: Case) -> dict[str, Any]:
    """Train a few steps in this process; return the predicted and the measured peaks in bytes."""
    import torch

    from benchmarks.fake_mesh import DEVICE, Memory
    from benchmarks.rows import made_tokens, plan_over
    from training.order.batch_settings import BatchPhase
    from training.pretrain import forecast
    from training.pretrain.models.account import preset_shape
    from training.pretrain.models.decoder import Decoder, initialise
    from training.pretrain.parallel import World
    from training.pretrain.settings import PretrainRecipe
    from training.pretrain.step import Trainer
    from training.pretrain.usage import keep_freed_memory, peak_memory_bytes

    torch.set_num_threads(1)
    keep_freed_memory()
    batch = case.rows * case.length
    recipe = PretrainRecipe(
        tokens=STEPS * batch,
        sequence_length=case.length,
        global_batch_tokens=batch,
        precision=case.precision,  # pyrefly: ignore
        optimizer=case.optimizer,
    )
    shape = preset_shape(case.preset)
    documents = [(number * 256, 256) for number in range(STEPS * batch // 256 + 1)]
    tokens = made_tokens(256 * len(documents), vocabulary=1024)
    plan, shards = plan_over(tokens, documents, steps=STEPS, rows=case.rows, length=case.length)
    world = World(rank=0, size=1, device=torch.device("cpu"))
    micro_batch_tokens = batch // case.passes
    with Memory() as counted:
        counted.begin("step")
        model = Decoder(shape)
        initialise(model, zero_outputs=True, generator=torch.Generator().manual_seed(0))
        trainer = Trainer(model, recipe, plan, shards, world, micro_batch_tokens=micro_batch_tokens)
        model.set_recompute(case.recompute)  # pyrefly: ignore
        for _ in range(STEPS):
            trainer.run_step()
    phase = BatchPhase(tokens=recipe.tokens, sequence_length=case.length, global_batch_tokens=batch)  # pyrefly: ignore
    layout = forecast.Layout(micro_batch_tokens=micro_batch_tokens, recompute=case.recompute)  # pyrefly: ignore
    training = forecast.PlannedTraining(shape=shape, recipe=recipe, phase=phase)
    parts = forecast.memory(training, layout, on_gpu=False)["step"]
    predicted = sum(size for name, size in parts.items() if name != forecast.COPY)
    resident = peak_memory_bytes(world.device)
    return {"predicted": predicted, "tensors": counted.peaks["step", DEVICE], "resident": resident, "parts": parts}


if __name__ == "__main__":
    main()

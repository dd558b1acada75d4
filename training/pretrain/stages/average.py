"""The stage `average`: the mean of the weights of kept steps, which no training has to run for.

Each tensor is read from every step, summed in fp64 in the order of the steps, and written in the format that it had, so
all machines write the same bytes.
Configuration and tokenizer are those of the last step. Method: averages of checkpoints of one run (arXiv 2306.03241);
`ema` is the moving average over the kept steps alone, not over those between them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.contract.job import InputArtifact, Job, Outcome, Work
from training.contract.model_files import model_files, number_of_weights, open_weights, tensor_of, weight_files
from training.pretrain.tensor_files import save_tensors
from training.pretrain.watch.keep_settings import StepAverageRecipe

MODEL_FOLDER = "model"


def run(job: Job, work: Work) -> Outcome:
    """Write the mean of the job's kept steps as a model; the notes give the weight of each step."""
    recipe = job.settings_as(StepAverageRecipe, "average")
    steps = {_step_of(item): item for item in job.inputs}
    shares = dict(zip(sorted(steps), shares_of(recipe, len(steps)), strict=True))
    folders = [steps[step].file(MODEL_FOLDER) for step in shares]
    files = write_mean(folders, list(shares.values()), work.path / MODEL_FOLDER)
    last = steps[max(steps)].record()["metrics"]
    return Outcome(
        files=tuple(f"{MODEL_FOLDER}/{name}" for name in files),
        metrics={
            "parameters": number_of_weights(work.path / MODEL_FOLDER),
            "steps": last["steps"],
            "tokens": last["tokens"],
            "averaged": len(steps),
        },
        notes={"kind": recipe.kind, "shares": {str(step): share for step, share in shares.items()}},
    )


def shares_of(recipe: StepAverageRecipe, count: int) -> list[float]:
    """Return the share of each of so many steps in their mean, the first step first; the sum is 1.

    With `ema`, the mean begins with the first step, and each later one enters as mean ← decay · mean + (1 - decay) ·
    step.
    """
    if recipe.kind == "uniform":
        return [1 / count] * count
    shares = [1.0]
    for _ in range(count - 1):
        shares = [recipe.decay * share for share in shares] + [1 - recipe.decay]
    return shares


def _step_of(item: InputArtifact) -> int:
    return item.record()["settings"]["kept"]["step"]


def write_mean(folders: Sequence[Path], shares: Sequence[float], target: Path) -> list[str]:
    """Write the model whose tensors are the sums of those in `folders` by `shares`; return the names of its files.

    No more than one file's tensors are in memory. Raise DataError if a value is not finite.
    """
    target.mkdir(parents=True, exist_ok=True)
    last, names = folders[-1], model_files(folders[-1])
    weights = weight_files(last)
    with ExitStack() as opened:
        given = [(folder, opened.enter_context(open_weights(folder))) for folder in folders]
        held: dict[int, list[str]] = {}  # by open file, in the order of the files
        for name, file in given[-1][1].items():
            held.setdefault(id(file), []).append(name)
        for file, tensors in zip(weights, held.values(), strict=True):
            save_tensors({name: _mean(name, given, shares) for name in tensors}, target / file)
    for name in names:
        if name not in weights:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(last / name, target / name)
    return names


def _mean(name: str, given: Sequence[tuple[Path, Mapping[str, Any]]], shares: Sequence[float]) -> Tensor:
    total, kind = torch.zeros((), dtype=torch.float64), torch.float32
    for (folder, weights), share in zip(given, shares, strict=True):
        tensor = tensor_of(folder, weights, name)
        total, kind = total + share * tensor.double(), tensor.dtype
    return total.to(kind)

"""Run the code of a pretraining on tensors without content, in a process of its own, and return what it held."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields

from resources.compute.size import Size
from training.recipe import Recipe
from training.records import write_record
from training.run_settings import RunSettings

MODULE = "training.pretrain.measured"
MOST_LINES = 3  # of what a process said that failed


def measured(recipe: Recipe, size: Size) -> tuple[dict[str, int], str]:
    """Return the most bytes that the first process of a pretraining holds at each moment, as on a GPU, and "".

    If its code cannot be run without content: nothing, and why.
    """
    unlike = {  # settings whose code has no form without content, or whose memory would be that of another setting
        "distill.teacher": recipe.pretrain.distill.teacher,
        "precision: fp8": recipe.pretrain.precision == "fp8",
        "expert above 1": size.expert > 1,
    }
    if named := [name for name, is_set in unlike.items() if is_set]:
        return {}, f"not possible with {', '.join(named)}"
    given = {
        "model": write_record(recipe.model),
        "vocabulary": recipe.tokenizer.vocabulary,
        "pretrain": write_record(recipe.pretrain),
        "run": {one.name: getattr(size, one.name) for one in fields(RunSettings)},
    }
    # No GPU is used, and no other process is started.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", MODULE]
    done = subprocess.run(argv, input=json.dumps(given), capture_output=True, text=True, env=environment)
    if done.returncode:
        said = "; ".join(done.stderr.strip().splitlines()[-MOST_LINES:])
        return {}, said or f"its process ended with {done.returncode}"
    return json.loads(done.stdout.splitlines()[-1]), ""

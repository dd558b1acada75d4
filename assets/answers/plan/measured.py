"""Run the code of a stage on tensors without content, in a process of its own, and return what that process held."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from assets.answers.plan.capacity import Section, chats, learns
from assets.state.chain import CHAIN
from resources.compute.size import Size
from training.contract.records import write_record
from training.contract.run_settings import RunSettings
from training.posttrain.align.method import method_names
from training.posttrain.align.settings import AlignRecipe
from training.pretrain.models.borrowed import BY_TRANSFORMERS
from training.pretrain.models.families import is_borrowed
from training.recipe.recipe import Recipe

MOST_LINES = 3  # of what a process said that failed
Measured = tuple[dict[str, int], str]  # the most bytes of each moment, as on a GPU, and ""; or nothing, and why


def measured_training(recipe: Recipe, size: Size) -> Measured:
    """Return what the first process of a pretraining holds."""
    unlike = {  # settings whose code has no form without content, or whose memory would be that of another setting
        "distill.teacher": recipe.pretrain.distill.teacher,
        "precision: fp8": recipe.pretrain.precision == "fp8",
        "expert above 1": size.expert > 1,
    }
    return _measured("training.pretrain.measured", recipe, size, unlike, {"pretrain": write_record(recipe.pretrain)})


def measured_tuning(recipe: Recipe, asset: str, section: Section, size: Size) -> Measured:
    """Return what the first process of SFT, of a reward model or of an alignment holds."""
    shard = size.shard if section.can_be_spread else 1
    unlike = {
        "model.experts": recipe.model.experts.count,
        "answers that the model samples": learns(section) == "samples",
        "a method from outside": isinstance(section, AlignRecipe) and section.method not in method_names(),
        "several processes that each have the whole model": size.nodes * size.processes > shard == 1,
    }
    stage = CHAIN[asset].stage.name
    given = {"stage": stage, "section": write_record(section)}
    return _measured("training.posttrain.measured", recipe, size, unlike, given)


def measured_scoring(recipe: Recipe, asset: str, size: Size, *, gathers: bool) -> Measured:
    """Return what the first process that scores models holds."""
    given = {"batch_size": chats(recipe).get(asset, recipe.evaluation).batch_size, "gathers": gathers}
    given |= {"align": write_record(recipe.align)} if asset == "alignment_rewards" else {}
    return _measured("evaluation.exams.measured", recipe, size, {"model.experts": recipe.model.experts.count}, given)


def _measured(module: str, recipe: Recipe, size: Size, unlike: Mapping[str, Any], given: Mapping[str, Any]) -> Measured:
    if named := [name for name, is_set in unlike.items() if is_set]:
        return {}, f"not possible with {', '.join(named)}"
    if is_borrowed(recipe.model.shape(vocab_size=recipe.tokenizer.vocabulary)):
        return {}, f"not possible: model.family {recipe.model.family!r} {BY_TRANSFORMERS}"
    run = {one.name: getattr(size, one.name) for one in fields(RunSettings)}
    told = {"model": write_record(recipe.model), "vocabulary": recipe.tokenizer.vocabulary, "run": run, **given}
    # No GPU is used, and no other process is started.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", module]
    done = subprocess.run(argv, input=json.dumps(told), capture_output=True, text=True, env=environment)
    if done.returncode:
        said = "; ".join(done.stderr.strip().splitlines()[-MOST_LINES:])
        return {}, said or f"its process ended with {done.returncode}"
    return json.loads(done.stdout.splitlines()[-1]), ""

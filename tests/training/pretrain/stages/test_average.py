"""Means of the weights of kept steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.jobs import commit_by_hand
from training.contract.artifact import find
from training.contract.job import DataError, Job
from training.contract.records import RecipeError
from training.contract.running.runner import run_job
from training.pretrain.settings import PretrainRecipe
from training.pretrain.stages.average import shares_of, write_mean
from training.pretrain.watch.keep_settings import KeepRecipe, StepAverageRecipe
from training.stages import STAGES

FILES = {"model-00001-of-00002.safetensors": ("a",), "model-00002-of-00002.safetensors": ("b", "c")}


def model(folder: Path, *numbers: float) -> Path:
    """A model folder of three tensors in two files."""
    folder.mkdir(parents=True)
    for file, names in FILES.items():
        tensors = {name: torch.full((2, 3), float(numbers["abc".index(name)])) for name in names}
        save_file(tensors, folder / file)
    placed = {name: file for file, names in FILES.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    (folder / "config.json").write_text(json.dumps({"of": folder.parent.name}))
    return folder


def test_each_tensor_is_the_weighted_mean_and_all_else_is_the_last_step_s(tmp_path):
    folders = [model(tmp_path / "one" / "model", 1, 2, 3), model(tmp_path / "two" / "model", 3, 4, 0.5)]
    names = write_mean(folders, [0.25, 0.75], tmp_path / "mean")
    assert names == sorted([*FILES, "config.json", "model.safetensors.index.json"])
    found = {name: one for file in FILES for name, one in load_file(tmp_path / "mean" / file).items()}
    assert {name: one.unique().tolist() for name, one in found.items()} == {"a": [2.5], "b": [3.5], "c": [1.125]}
    assert all(one.dtype == torch.float32 and one.shape == (2, 3) for one in found.values())
    assert json.loads((tmp_path / "mean" / "config.json").read_text()) == {"of": "two"}


def test_a_weight_that_is_not_finite_is_refused(tmp_path):
    folders = [model(tmp_path / "one" / "model", 1, 2, 3), model(tmp_path / "two" / "model", 3, float("nan"), 0)]
    with pytest.raises(DataError, match="b has values that are not finite"):
        write_mean(folders, [0.5, 0.5], tmp_path / "mean")


def test_the_stage_orders_the_steps_by_their_numbers_and_says_their_shares(tmp_path):
    numbers = {10: 1.0, 9: 5.0}  # as text, 10 would be the first
    inputs = []
    for step, number in numbers.items():
        folder = tmp_path / "kept_steps" / f"{step:032x}"
        model(folder / "model", number, number, number)
        made = {"settings": {"kept": {"step": step}}, "metrics": {"steps": step, "tokens": step * 256}}
        inputs.append(commit_by_hand(folder, "kept_steps", **made))
    job = Job(
        stage="average",
        asset="averaged_model",
        partition="tiny",
        recipe="tiny",
        fingerprint="f" * 32,
        stage_version=STAGES["average"].version,
        settings={"average": {"steps": "all", "kind": "ema", "decay": 0.75}},
        inputs=tuple(inputs),
        output=str(tmp_path / "averaged_model" / "f"),
    )
    assert run_job(job, STAGES) == 0
    made = find(Path(job.output))
    assert made.record["notes"]["shares"] == {"9": 0.75, "10": 0.25} and made.record["metrics"]["steps"] == 10
    assert load_file(made.file("model") / next(iter(FILES)))["a"].unique().tolist() == [4.0]


def test_shares_of_an_average_follow_its_formula():
    assert shares_of(StepAverageRecipe(steps="all"), 4) == [0.25] * 4
    assert shares_of(StepAverageRecipe(steps="all", kind="ema", decay=0.5), 3) == [0.25, 0.25, 0.5]


KEPT = PretrainRecipe(tokens=256 * 12, sequence_length=64, global_batch_tokens=256, keep=KeepRecipe(steps=(3, 7)))


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (KeepRecipe(steps=(3, 7), average=StepAverageRecipe(steps=(3, 5))), "5 is not kept; kept is 3, 7"),
        (KeepRecipe(average=StepAverageRecipe(steps=(3, 5))), "3 is not kept; kept is none"),
        (KeepRecipe(steps=(3,), average=StepAverageRecipe(steps="all")), "1 kept; an average needs two steps"),
    ],
)
def test_an_average_of_steps_that_are_not_kept_is_refused(keep, said):
    with pytest.raises(RecipeError, match=said):
        replace(KEPT, keep=keep)


def test_an_average_of_one_step_or_without_decay_is_refused():
    with pytest.raises(RecipeError, match=r"\[3\]; an average needs two steps, or all"):
        StepAverageRecipe(steps=(3,))
    with pytest.raises(RecipeError, match="decay=1; between 0 and 1 is right"):
        StepAverageRecipe(steps="all", kind="ema", decay=1.0)


def test_a_decay_or_a_kind_without_effect_is_refused():
    with pytest.raises(RecipeError, match="decay: without effect, because kind is uniform"):
        StepAverageRecipe(steps="all", decay=0.9)
    with pytest.raises(RecipeError, match="kind: without effect, because no steps are averaged"):
        StepAverageRecipe(kind="ema")

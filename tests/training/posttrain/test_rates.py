"""The learning rate of each optimizer step of post-training is that of pretraining's schedule."""

from __future__ import annotations

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.training.posttrain import tiny
from tests.training.posttrain.align.test_align import DPO, RL, inputs
from tests.training.posttrain.conftest import REWARD, SFT
from training.contract.progress import read_metrics
from training.contract.records import RecipeError
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.passed_through import check_passed_through
from training.posttrain.sft.settings import SftRecipe
from training.posttrain.trainer.models import load_model
from training.pretrain.optim.schedule import learning_rate_factor

PLAIN = {"schedule": "cosine", "warmup_fraction": 0.05, "decay_fraction": 0.2, "final_learning_rate_fraction": 0.1}
LINEAR = {"schedule": "linear", "warmup_fraction": 0.25, "final_learning_rate_fraction": 0.0}
WSD = {"schedule": "wsd", "warmup_fraction": 0.25, "decay_fraction": 0.5, "final_learning_rate_fraction": 0.2}
TRAININGS = {
    "sft": ("sft", SFT | {"epochs": 1}),
    "reward": ("reward", REWARD | {"epochs": 1}),
    "dpo": ("align", DPO | {"epochs": 1}),
    "kto": ("align", DPO | {"method": "kto", "epochs": 0.5}),
    "grpo": ("align", RL | {"max_steps": 4}),
    "grpo, answers by transformers": ("align", RL | {"max_steps": 4, "trl": {"generation_kwargs": {"top_k": 5}}}),
}


@pytest.fixture
def rates():
    """A list that takes the rate of each optimizer step from now on."""
    taken: list[float] = []

    def take(optimizer, *_):
        (rate,) = {group["lr"] for group in optimizer.param_groups}
        taken.append(float(rate))

    handle = register_optimizer_step_pre_hook(take)
    yield taken
    handle.remove()


def read_by(chain, stage, settings):
    if stage == "sft":
        return tuple(tiny.made(chain, asset) for asset in ("base_model", "instruction_data"))
    return inputs(chain, settings.get("method", "dpo"))


@pytest.mark.parametrize(
    ("name", "schedule"),
    [*((name, {}) for name in TRAININGS), ("sft", LINEAR), ("reward", LINEAR), ("dpo", WSD), ("kto", WSD)],
    ids=str,
)
def test_rates_by_step_are_those_of_pretraining(chain, tmp_path, rates, name, schedule):
    stage, settings = TRAININGS[name]
    settings = settings | schedule
    tiny.run(stage, tmp_path / "trained", {stage: settings}, read_by(chain, stage, settings))
    given = {**PLAIN, **schedule}
    final = given.pop("final_learning_rate_fraction")
    factors = [learning_rate_factor(i, steps=len(rates), final_fraction=final, **given) for i in range(len(rates))]
    assert len(rates) > 2 and rates == pytest.approx([settings["learning_rate"] * factor for factor in factors])
    lines = read_metrics(tmp_path / "trained" / "metrics.jsonl")
    logged = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert logged == rates  # what is shown is what was trained with


@pytest.mark.parametrize("name", ["sft", "reward", "dpo", "kto", "grpo"])
def test_a_training_of_one_step_trains(chain, tmp_path, rates, name):
    stage, settings = TRAININGS[name]
    settings = settings | ({"max_steps": 1} if name == "grpo" else {"epochs": 1 / 16})
    record = tiny.run(stage, tmp_path / "trained", {stage: settings}, read_by(chain, stage, settings))
    begun_with = chain / ("base_model" if stage == "sft" else "sft_model") / "model"
    before = load_model(begun_with).state_dict()
    after = load_model(tmp_path / "trained" / "model", reward=stage == "reward").state_dict()
    assert record["metrics"]["steps"] == len(rates) == 1 and rates[0] > 0
    assert any(not torch.equal(before[part], after[part]) for part in before if part in after)


def test_a_training_whose_every_rate_is_0_is_refused(chain, tmp_path):
    settings = SFT | {"epochs": 1 / 8, "final_learning_rate_fraction": 0.0}
    with pytest.raises(RecipeError, match="has 1 step, whose rate would be 0"):
        tiny.run("sft", tmp_path / "trained", {"sft": settings}, read_by(chain, "sft", settings))


def test_a_schedule_is_checked_like_that_of_pretraining():
    with pytest.raises(RecipeError, match=r"align: warmup_fraction=0.5 \+ decay_fraction=0.75 = 1.25 of the steps"):
        AlignRecipe(schedule="wsd", warmup_fraction=0.5, decay_fraction=0.75)
    with pytest.raises(RecipeError, match=r"sft\.warmup_fraction=2 must be between 0 and 1"):
        SftRecipe(data=(), warmup_fraction=2)
    for field in ("lr_scheduler_type", "lr_scheduler_kwargs"):
        with pytest.raises(RecipeError, match=rf"sft\.trl\.{field}: set sft\.schedule instead"):
            check_passed_through(SftRecipe(data=(), trl={field: "linear"}), "SFTConfig", where="sft")

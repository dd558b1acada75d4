"""Looks at a training on rewards: they change nothing, are the same after a kill, and see a reward that is hacked."""

from __future__ import annotations

import pytest
import torch

from tests.training.posttrain import tiny
from tests.training.posttrain.align.test_align import RL, align, inputs
from training.contract.job import DataError
from training.contract.progress import curve, read_metrics
from training.contract.records import RecipeError, read_record
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.align.stage import ASSETS

ASKED = list(zip(tiny.FRUITS, tiny.COLOURS, strict=True)) * 2
WATCH = {"every": "log", "items": 16, "truth": "rubric"}
# The training pays for at least six words, the rubric for the colour in at most five.
HACKABLE = {
    **RL,
    "max_steps": 6,
    "batch_size": 32,
    "num_generations": 8,
    "learning_rate": 3e-3,
    "beta": 0.0,
    "max_new_tokens": 16,
    "rewards": {"format": 1.0},
    "parts": {"format": {"pattern": r"(\S+\s+){5,}.*"}},
}


def watch_of(tmp_path, number=16, **more):
    rows = [
        {"prompt": f"{tiny.question(fruit)} ({i + 50})", "reward_rubric": {"right": colour, "is_brief": True}}
        for i, (fruit, colour) in enumerate(ASKED[:number])
    ]
    return {**WATCH, "prompts": tiny.write_rows(tmp_path / "watched.jsonl", rows), **more}


def watched(chain, output, settings, watch, **options):
    given = {"align": settings, "watch": watch, "watched_data": {}}
    return tiny.run("align", output, given, inputs(chain, settings["method"]), **options)


def points(folder):
    rows = read_metrics(folder / "metrics.jsonl")
    names = sorted({name for row in rows for name in row if name.startswith("watched_")})
    return {name: curve(rows, name) for name in names}


def test_looks_change_no_weight_and_are_the_same_after_a_kill(chain, tmp_path, killed_at):
    settings = {**RL, "max_steps": 4, "rewards": {"length": 1.0}}
    plain = align(chain, tmp_path / "plain", settings)
    whole = watched(chain, tmp_path / "whole", settings, watch_of(tmp_path))
    with killed_at(3):
        watched(chain, tmp_path / "killed", settings, watch_of(tmp_path), checkpoint_seconds=1e-6)
    again = watched(chain, tmp_path / "killed", settings, watch_of(tmp_path))
    assert plain["digest"] == whole["digest"] == again["digest"]
    assert points(tmp_path / "whole") == points(tmp_path / "killed")
    seen = whole["notes"]["watched"]
    assert seen == again["notes"]["watched"] and "watched" not in plain["notes"]
    assert [look["step"] for look in seen["looks"]] == [0, 1, 2, 3, 4]
    first, *_, last = seen["looks"]
    assert first["watched_kl_from_sft"] == 0 and first["watched_win_rate_against_sft"] == 0.5
    assert last["watched_kl_from_sft"] != 0 and last["watched_entropy"] > 0 and 0 < last["watched_answer_tokens"] <= 8
    assert seen["proxy_up_truth_down"] is None
    assert not any(gate["name"] == "proxy_up_truth_down" for gate in whole["gates"])


def test_looks_change_no_weight_of_a_training_in_bf16(chain, tmp_path, monkeypatch):
    """accelerate wraps its passes, and a look makes its own without."""
    monkeypatch.setattr("training.posttrain.trainer.fit.dtype_here", lambda precision, device: torch.bfloat16)
    settings = {**RL, "precision": "bf16", "rewards": {"length": 1.0}}
    plain = align(chain, tmp_path / "plain", settings)
    assert watched(chain, tmp_path / "watched", settings, watch_of(tmp_path))["digest"] == plain["digest"]


def test_a_training_that_pleases_its_reward_is_stopped_at_the_look_that_shows_it(chain, tmp_path):
    watch = watch_of(tmp_path, proxy_up_truth_down="stop")
    record = watched(chain, tmp_path / "aligned", HACKABLE, watch)
    gate = tiny.gate(record, "proxy_up_truth_down")
    assert (
        not gate["passed"] and gate["evidence"]["proxy"]["interval"][0] > 0 > gate["evidence"]["truth"]["interval"][1]
    )
    looks = record["notes"]["watched"]["looks"]
    assert looks[-1]["step"] == gate["evidence"]["step"] == record["metrics"]["steps"] < 6
    assert looks[-1]["watched_proxy_agreement"] < 0.5 and looks[-1]["watched_win_rate_against_sft"] < 0.5


def test_too_few_prompts_with_a_truth_are_refused(chain, tmp_path):
    with pytest.raises(DataError, match=r"15 prompts can be watched, and at least 16 .*`reward_rubric`"):
        watched(chain, tmp_path / "aligned", RL, watch_of(tmp_path, 15))
    with pytest.raises(DataError, match=r"has 16 different ones, of which 0 have .* right `answer`"):
        watched(chain, tmp_path / "aligned", RL, watch_of(tmp_path, truth="right_answer"))
    with pytest.raises(DataError, match=r"of which 0 have .* \(a `reward_rubric` and a right `answer`\)"):
        watched(chain, tmp_path / "aligned", {**RL, "rewards": {"numeric": 1.0}}, watch_of(tmp_path))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "dpo", "watch": {"every": 5}}, "learns from no reward"),
        ({"method": "grpo", "watch": {"items": 20}}, "items: without effect, because every is null"),
        ({"method": "grpo", "watch": {"every": 0}}, "at least 1"),
        ({"method": "grpo", "watch": {"every": 5, "truth": "rubrik"}}, "rubric"),
        ({"method": "grpo", "watch": {"every": 5}, "trl": {"generation_kwargs": {}}}, "TRL draws by itself"),
    ],
)
def test_a_watch_without_effect_is_refused(settings, said):
    with pytest.raises(RecipeError, match=said):
        read_record(AlignRecipe, settings, where="align")


def test_what_is_watched_is_in_the_fingerprint_only_if_it_may_end_the_training():
    from assets.state.requested_settings import asked_settings
    from tests.examples import load_recipe
    from training.recipe.recipe import varied

    asset = next(one for one in ASSETS if one.name == "aligned_model")

    def asked(**watch):
        align = {"watch": watch} if watch else {}
        return asked_settings(asset.stage, asset.settings(varied(load_recipe("kitchen-rl"), {"align": align}), ""))

    plain = asked()
    assert asked(every="log", prompts="kitchen://alignment", truth="rubric") == plain
    stopped = asked(every="log", prompts="kitchen://alignment", truth="rubric", proxy_up_truth_down="stop")
    assert stopped["align"] == plain["align"] and stopped["stopped_by"]["watch"]["truth"] == "rubric"
    assert stopped["stopped_by"] != asked(every=5, proxy_up_truth_down="stop")["stopped_by"]


@pytest.mark.parametrize("what", ["refuse", "stop"])
def test_no_model_is_said_to_be_trained_on_prompts_that_are_watched(what):
    from evaluation.contamination.trained_on import data_of
    from tests.examples import load_recipe
    from training.recipe.recipe import varied

    plain = load_recipe("kitchen-rl")
    watch = {"every": "log", "prompts": "kitchen://alignment", "truth": "rubric", "proxy_up_truth_down": what}
    assert data_of(varied(plain, {"align": {"watch": watch}})) == data_of(plain)

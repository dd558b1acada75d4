"""Two steps of each kind of post-training in two processes; test_spread.py and test_gathered.py are the long form."""

from __future__ import annotations

import json
from functools import partial

import pytest

from benchmarks import parallel
from tests.training.posttrain import test_spread as spread
from training.contract.artifact import find

pytestmark = pytest.mark.timeout(600)

STEPS = {"sft": 2, "reward": 2, "align": 2}
BRIEF = {"sft": {"epochs": 13 / 32}, "reward": {"epochs": 13 / 40}, "align": {"epochs": 13 / 40}}  # 8 rows and 5
SAMPLED = {"max_steps": 2, "epochs": 1.0}
NAMES = ("sft", "reward", "dpo-adapters", "grpo")


def settings_of(name):
    stage, settings = spread.ALONE[name]
    return stage, {**settings, **BRIEF[stage], **(SAMPLED if name == "grpo" else {})}


@pytest.fixture(scope="module")
def done(chain, tmp_path_factory):
    """A root with the models of all trainings, and what the tasks of several processes told."""
    root = tmp_path_factory.mktemp("two-steps")
    for name in ("base_model", "instruction_data", "sft_model", "preference_data", "reward_model"):
        (root / name).symlink_to(chain / name)

    def of(name, kind, shard=2, **run):
        return 2, partial(spread.tuned, root, f"{name} {kind}", *settings_of(name), shard=shard, **run)

    tasks = {
        "refused": (3, partial(spread.refused, root)),
        "judged apart": (2, partial(spread.judged_apart, root)),
        "died": of("sft", "resumed", dies_at=1, checkpoint_seconds=1e-6),
        "sft": of("sft", "resumed"),
        "reward": of("reward", "copies", shard=1),
        "dpo-adapters": of("dpo-adapters", "spread"),
        "grpo": of("grpo", "spread", answer_weights="sharded"),
        "gathered": of("grpo", "gathered", answer_weights="gathered"),
    }
    (root / "stores").mkdir()
    said = parallel.in_processes(list(tasks.values()), root / "stores", preload=spread.PRELOADED)
    for name in NAMES:
        spread.tuned(root, name, *settings_of(name), 0, 1, shard=1)
    return root, dict(zip(tasks, said, strict=True))


@pytest.mark.parametrize("name", ["sft resumed", "reward copies", "dpo-adapters spread", "grpo spread"])
def test_a_model_is_trained_in_two_processes_like_in_one(done, name):
    spread.compare_with_one(done[0], name, STEPS)


def test_weights_that_stay_gathered_while_answers_are_drawn_change_no_bit(done):
    sharded, gathered = (find(done[0] / f"grpo {kind}") for kind in ("spread", "gathered"))
    assert sharded.record["notes"]["answer_weights"] == "sharded, by the profile"
    assert gathered.record["notes"]["answer_weights"] == "gathered, by the profile"
    assert gathered.digest == sharded.digest


def test_a_resumed_training_took_its_first_step_once(done):
    """The resumed training goes on behind the checkpoint, so that a loss stands in the log once."""
    lines = (done[0] / "sft resumed" / "metrics.jsonl").read_text().splitlines()
    assert [line["step"] for line in map(json.loads, lines) if "loss" in line] == [1, 2]


def test_processes_that_share_a_reward_model_may_score_different_numbers_of_rows(done):
    spread.compare_judges(done[0], done[1]["judged apart"])


def test_tied_embeddings_that_do_not_divide_are_refused_with_the_numbers(done):
    assert "344 rows" in done[1]["refused"]

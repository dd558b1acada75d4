"""The reward model: it learns a plain preference, scores are those of the conversation, its gate can refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.posttrain import tiny
from tests.training.posttrain.conftest import REWARD
from training.contract.job import DataError, RefusedInput
from training.contract.progress import read_metrics
from training.generate.passes.pass_rows import PASS_TOKENS
from training.posttrain.reward.reward import Judge, score, token_scores


def test_it_prefers_what_was_preferred_on_held_out_pairs(chain):
    record = json.loads((chain / "reward_model" / "artifact.json").read_text())
    assert record["metrics"]["held_out_pair_accuracy"] >= 0.9
    assert record["metrics"]["loss_last"] < record["metrics"]["loss_first"]
    assert tiny.gate(record, "held_out_pair_accuracy")["passed"]
    assert {Path(entry["path"]).suffix for entry in record["files"]} == {".safetensors", ".json", ".jinja"}


def test_scores_order_answers_and_do_not_depend_on_their_neighbours(chain):
    asked = {"role": "user", "content": tiny.question("fig")}
    polite = [asked, {"role": "assistant", "content": "The fig is green. Thank you!"}]
    curt = [asked, {"role": "assistant", "content": "green green green"}]
    folder = chain / "reward_model" / "model"
    together = score(folder, [curt, polite])
    assert together[1] > together[0]
    assert together == pytest.approx([score(folder, [curt])[0], score(folder, [polite])[0]], abs=1e-4)


def test_few_tokens_are_read_at_once_however_long_the_rows_are(chain):
    judge, read = Judge(chain / "reward_model" / "model"), []
    judge.model.register_forward_pre_hook(lambda *call: read.append(call[2]["input_ids"].numel()), with_kwargs=True)
    rows = [list(range(10, 10 + length)) for length in (3, 120) for _ in range(96)]
    chosen = token_scores(judge.model, [row * 2 for row in rows], judge.chat)
    assert max(read) <= PASS_TOKENS and len(read) == 3 and sum(read) >= 96 * 240
    alone = [token_scores(judge.model, [row * 2], judge.chat)[0] for row in (rows[0], rows[-1])]
    assert [chosen[0], chosen[-1]] == pytest.approx(alone, abs=1e-4)


def test_a_model_below_the_threshold_is_refused_by_what_comes_next(chain, tmp_path):
    inputs = tiny.made(chain, "sft_model"), tiny.made(chain, "preference_data")
    settings = {"reward": {**REWARD, "epochs": 0.1, "learning_rate": 1e-9, "min_pair_accuracy": 1.01}}
    record = tiny.run("reward", tmp_path / "reward_model", settings, inputs)
    gate = tiny.gate(record, "held_out_pair_accuracy")
    assert not gate["passed"] and gate["evidence"]["way_out"].startswith("give more pairs")
    with pytest.raises(RefusedInput, match="held_out_pair_accuracy"):
        tiny.run("align", tmp_path / "aligned", {"align": {}}, (*inputs, tiny.made(tmp_path, "reward_model")))


def test_pairs_of_which_none_fits_are_an_error(chain, tmp_path):
    inputs = tiny.made(chain, "sft_model"), tiny.made(chain, "preference_data")
    with pytest.raises(DataError, match=r"reward\.max_length=4"):
        tiny.run("reward", tmp_path / "out", {"reward": {**REWARD, "max_length": 4}}, inputs)


def test_it_takes_the_fields_of_trl_and_peft(chain, tmp_path):
    inputs = tiny.made(chain, "sft_model"), tiny.made(chain, "preference_data")
    given = {"peft": {"r": 4, "lora_alpha": 8}, "trl": {"center_rewards_coefficient": 0.01}, "learning_rate": 5e-3}
    record = tiny.run("reward", tmp_path / "reward_model", {"reward": {**REWARD, **given}}, inputs)
    assert record["metrics"]["held_out_pair_accuracy"] >= 0.9
    assert tiny.gate(record, "merged_equals_adapter")["passed"]
    assert "adapter/adapter_model.safetensors" in {entry["path"] for entry in record["files"]}


def test_a_killed_job_goes_on_from_its_last_checkpoint_and_gives_the_same_bytes(chain, tmp_path, killed_at):
    inputs = tiny.made(chain, "sft_model"), tiny.made(chain, "preference_data")
    with killed_at(12):
        tiny.run("reward", tmp_path / "reward_model", {"reward": REWARD}, inputs, checkpoint_seconds=1e-6)
    record = tiny.run("reward", tmp_path / "reward_model", {"reward": REWARD}, inputs)
    whole = json.loads((chain / "reward_model" / "artifact.json").read_text())
    assert record["digest"] == whole["digest"] and record["metrics"]["steps"] == whole["metrics"]["steps"]
    steps = [row["step"] for row in read_metrics(tmp_path / "reward_model" / "metrics.jsonl")]
    assert steps[11] == 12  # it went on, and did not begin anew

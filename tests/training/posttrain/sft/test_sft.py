"""SFT: loss on assistant tokens alone, the same bytes every time and after a kill, adapters merged, no pickle."""

from __future__ import annotations

import json
import math
import re
import signal
from pathlib import Path

import pytest
import torch

from tests.training.posttrain import tiny
from tests.training.posttrain.conftest import SFT
from training.contract.artifact import sha256_of
from training.contract.job import DataError, StopRequested, Work
from training.contract.progress import Progress, read_metrics
from training.contract.records import RecipeError, read_record
from training.generate.turns import Chat, Encoded, template
from training.posttrain.sft import sft
from training.posttrain.sft.settings import SftRecipe
from training.posttrain.trainer.models import load_model, load_tokenizer

SUFFIXES = {".safetensors", ".json", ".jinja"}


def inputs(chain):
    return tiny.made(chain, "base_model"), tiny.made(chain, "instruction_data")


def train(chain, output, changes=None, **options):
    return tiny.run("sft", output, {"sft": {**SFT, **(changes or {})}}, inputs(chain), **options)


def trainer_of(chain, tmp_path, encoded):
    job = tiny.job("sft", tmp_path / "out", {"sft": SFT}, inputs(chain))
    base = chain / "base_model" / "model"
    chat = Chat.of(base, template())
    work = Work(path=tmp_path, scratch=tmp_path / "scratch", progress=Progress(tmp_path, enabled=False))
    recipe = read_record(SftRecipe, SFT, where="sft")
    return sft.trainer_of(job, work, recipe, load_tokenizer(base, chat), encoded, base)[0], chat


def loss_by_hand(model, rows: list[Encoded]) -> float:
    """Token by token, one row at a time, no batch, no padding."""
    total, number = 0.0, 0
    for row in rows:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row.input_ids])).logits[0].log_softmax(-1)
        for position in range(1, len(row.input_ids)):
            if row.trained[position]:
                total -= float(logits[position - 1, row.input_ids[position]])
                number += 1
    return total / number


def test_the_trainer_s_loss_is_that_of_assistant_tokens_alone(chain, tmp_path):
    chat = Chat.of(chain / "base_model" / "model", template())
    rows = chat.encode([row["messages"] for row in tiny.conversations()[:8]])
    trainer, _ = trainer_of(chain, tmp_path, rows)
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        loss = float(trainer.compute_loss(trainer.model, batch))
    model = load_model(chain / "base_model" / "model").eval()
    assert loss == pytest.approx(loss_by_hand(model, rows), abs=1e-5)
    everything = [Encoded(row.input_ids, [True] * len(row.input_ids)) for row in rows]
    assert abs(loss - loss_by_hand(model, everything)) > 1e-3
    assert sft.mean_loss(model, rows, chat) == pytest.approx(loss, abs=1e-5)


def test_the_loss_of_a_sample_is_the_same_in_several_passes(chain, monkeypatch):
    """Its logits are never all in memory, and each trained token counts once, whatever the lengths of the rows are."""
    chat = Chat.of(chain / "base_model" / "model", template())
    model = load_model(chain / "base_model" / "model").eval()
    said = [row["messages"] for row in tiny.conversations()[:8]]
    rows = chat.encode([*said, said[0] * 3])
    expected = loss_by_hand(model, rows)
    assert sft.mean_loss(model, rows, chat) == pytest.approx(expected, abs=1e-5)
    seen = []
    inner = type(model.base_model)
    forward = inner.forward
    monkeypatch.setattr(inner, "forward", lambda *a, **k: seen.append(k["input_ids"].shape) or forward(*a, **k))
    monkeypatch.setattr("training.generate.passes.pass_rows.PASS_LOGITS", 2 * 40 * model.config.vocab_size)
    assert sft.mean_loss(model, rows, chat) == pytest.approx(expected, abs=1e-5)
    assert len(seen) == 3 and all(rows == 1 or rows * tokens <= 80 for rows, tokens in seen)


def test_a_training_that_comes_to_nothing_is_refused_by_its_gate(chain, tmp_path):
    record = train(chain, tmp_path / "nothing", {"learning_rate": 1e30, "epochs": 1})
    assert not tiny.gate(record, "loss_finite_and_falling")["passed"]
    assert record["metrics"]["loss_after"] is None and record["metrics"]["loss_before"] > 0


def test_it_learns_the_answers_and_when_to_stop(chain):
    record = json.loads((chain / "sft_model" / "artifact.json").read_text())
    assert all(gate["passed"] for gate in record["gates"])
    assert record["metrics"]["loss_after"] < 0.5 * record["metrics"]["loss_before"]
    assert record["metrics"]["steps"] == 12 * 32 / 8
    (read,) = record["notes"]["rows_read"]
    assert (read["rows"], read["times"]) == (32, 12 * 32)
    from training.posttrain.chat import Assistant

    assistant = Assistant(chain / "sft_model" / "model")
    prompts = assistant.chat.encode_prompts([[{"role": "user", "content": tiny.question("apple")}]])
    answer = assistant.sampler.answer_tokens(prompts, max_new_tokens=40)[0]
    assert answer[-1] == assistant.chat.end_id
    assert re.fullmatch(r"The \w+ is \w+\.", assistant.chat.decode(answer))


def test_the_model_folder_holds_no_pickle_and_says_how_it_ends(chain):
    record = json.loads((chain / "sft_model" / "artifact.json").read_text())
    names = [Path(entry["path"]) for entry in record["files"]]
    assert {path.suffix for path in names} == SUFFIXES
    assert {path.name for path in (chain / "sft_model" / "model").iterdir()} == {path.name for path in names}
    assert Path("model/chat_template.jinja") in names
    generation = json.loads((chain / "sft_model" / "model" / "generation_config.json").read_text())
    chat = Chat.of(chain / "sft_model" / "model")
    assert generation["eos_token_id"] == [chat.end_id, chat.ids["<|endoftext|>"]]
    assert generation["pad_token_id"] == chat.pad_id
    config = json.loads((chain / "sft_model" / "model" / "config.json").read_text())
    assert config["eos_token_id"] == chat.end_id
    assert str(chain) not in json.dumps(config)
    tokenizer = json.loads((chain / "sft_model" / "model" / "tokenizer_config.json").read_text())
    assert tokenizer["eos_token"] == "<|end|>"
    # What transformers 4 and other software read: a class that they know, the context, and a cache for generation.
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast" and tokenizer["model_max_length"] == 256
    assert config["use_cache"] is True and "transformers_version" not in config
    base, model = (chain / asset / "model" / "tokenizer.json" for asset in ("base_model", "sft_model"))
    assert model.read_bytes() == base.read_bytes()


def test_numbers_stream_while_it_trains(chain):
    rows = read_metrics(chain / "sft_model" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 49))
    assert all(math.isfinite(row["loss"]) and row["learning_rate"] >= 0 for row in rows)


def test_the_same_job_gives_the_same_bytes(chain, tmp_path):
    record = train(chain, tmp_path / "again")
    first = json.loads((chain / "sft_model" / "artifact.json").read_text())
    assert record["digest"] == first["digest"]
    assert train(chain, tmp_path / "seed", {"seed": 1})["digest"] != first["digest"]


def test_micro_batches_give_the_same_model_up_to_rounding(chain, tmp_path):
    train(chain, tmp_path / "micro", micro_batch_tokens=2 * SFT["max_length"])
    models = [load_model(folder / "model") for folder in (chain / "sft_model", tmp_path / "micro")]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-3, rtol=0)


def test_a_stopped_job_goes_on_and_gives_the_same_bytes(chain, tmp_path, monkeypatch):
    from training.posttrain.trainer import fit

    original = fit.Reporter.on_step_end

    def stop_in_the_third_epoch(self, args, state, control, **more):
        if state.global_step == 10:
            signal.raise_signal(signal.SIGTERM)
        return original(self, args, state, control, **more)

    output = tmp_path / "sft_model"
    with monkeypatch.context() as patch:
        patch.setattr(fit.Reporter, "on_step_end", stop_in_the_third_epoch)
        with pytest.raises(StopRequested, match="step 10 of 48"):
            train(chain, output)
    assert not (output / "artifact.json").exists()
    record = train(chain, output)
    steps = [row["step"] for row in read_metrics(output / "metrics.jsonl")]
    assert steps == list(range(1, 49))  # it went on with step 11
    assert sha256_of(output / "model" / "model.safetensors") == sha256_of(
        chain / "sft_model" / "model" / "model.safetensors"
    )
    assert not (output / "scratch").exists()
    assert record["metrics"]["steps"] == 48


def test_a_killed_job_goes_on_from_its_last_checkpoint_and_gives_the_same_bytes(chain, tmp_path, killed_at):
    output = tmp_path / "sft_model"
    with killed_at(20):
        train(chain, output, checkpoint_seconds=1e-6)
    found = sorted(path.name for path in (output / "scratch" / "trainer").glob("checkpoint-*"))
    assert found == ["checkpoint-18", "checkpoint-19"]
    record = train(chain, output)
    assert record["digest"] == json.loads((chain / "sft_model" / "artifact.json").read_text())["digest"]
    assert [row["step"] for row in read_metrics(output / "metrics.jsonl")][19] == 20


def test_a_loss_that_was_not_finite_before_a_kill_still_fails_the_gate(chain, tmp_path, killed_at):
    """The gate is on the losses of all steps, of which those before the checkpoint come from the checkpoint."""
    from training.posttrain.trainer.fit import COMPLETE_MARK, last_checkpoint, seal

    output = tmp_path / "sft_model"
    with killed_at(20):
        train(chain, output, checkpoint_seconds=1e-6)
    checkpoint, _ = last_checkpoint(output / "scratch" / "trainer")
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    state["log_history"][3]["loss"] = math.nan
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    (checkpoint / COMPLETE_MARK).unlink()
    seal(checkpoint)
    record = train(chain, output)
    gate = tiny.gate(record, "loss_finite_and_falling")
    assert not gate["passed"] and gate["evidence"]["steps"] == record["metrics"]["steps"] == 48
    assert gate["evidence"]["loss_after"] < gate["evidence"]["loss_before"]


def test_a_merge_is_checked_on_no_more_rows_than_a_pass_reads(chain, tmp_path, monkeypatch):
    from training.posttrain.trainer import fit

    read, logits_of = [], fit.logits_of

    def noted(model, batch):
        read.append(batch["input_ids"].numel())
        return logits_of(model, batch)

    monkeypatch.setattr(fit, "logits_of", noted)
    monkeypatch.setattr("training.generate.passes.pass_rows.PASS_TOKENS", 100)
    record = train(chain, tmp_path / "lora", {"peft": {"r": 4}, "epochs": 1})
    assert tiny.gate(record, "merged_equals_adapter")["passed"]
    assert len(read) == 2 and all(50 < tokens <= 100 for tokens in read)


def test_adapters_are_merged_and_the_logits_stay(chain, tmp_path):
    record = train(chain, tmp_path / "lora", {"peft": {"r": 4, "lora_alpha": 8}})
    gate = tiny.gate(record, "merged_equals_adapter")
    assert gate["passed"]
    assert 0 <= gate["evidence"]["max_logit_difference"] < 1e-4
    base = load_model(chain / "base_model" / "model").state_dict()
    tuned = load_model(tmp_path / "lora" / "model").state_dict()
    assert set(base) == set(tuned)  # plain weights: nothing of the adapter is left
    changed = {name for name in base if not torch.equal(base[name], tuned[name])}
    assert changed and all("_proj" in name for name in changed)
    # The adapters beside it are peft's: on the base model they give the merged one.
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(load_model(chain / "base_model" / "model"), tmp_path / "lora" / "adapter")
    adapted = adapted.merge_and_unload().state_dict()
    assert max(float((adapted[name] - tuned[name]).abs().max()) for name in tuned) < 1e-5
    assert {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"} <= {
        entry["path"] for entry in record["files"]
    }


def test_merged_weights_that_differ_fail_the_gate(chain, tmp_path, monkeypatch):
    from peft.tuners.lora import LoraModel

    original = LoraModel.merge_and_unload

    def careless(self, *arguments, **more):
        model = original(self, *arguments, **more)
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight.mul_(1.5)
        return model

    monkeypatch.setattr(LoraModel, "merge_and_unload", careless)
    record = train(chain, tmp_path / "lora", {"peft": {"r": 4}, "epochs": 1})
    assert not tiny.gate(record, "merged_equals_adapter")["passed"]


def test_bf16_products_train_as_well(chain, tmp_path):
    record = train(chain, tmp_path / "bf16", {"precision": "bf16", "epochs": 2})
    assert tiny.gate(record, "loss_finite_and_falling")["passed"]
    assert {tensor.dtype for tensor in load_model(tmp_path / "bf16" / "model").state_dict().values()} == {torch.float32}


def test_long_conversations_are_cut_between_turns_or_dropped(chain):
    chat = Chat.of(chain / "base_model" / "model", template())
    turn = tiny.conversations()[0]["messages"]
    size = len(chat.encode([turn])[0].input_ids)
    kept, counts = sft.fitting([turn, turn + turn, turn * 3], chat, max_length=2 * size)
    assert kept == {0: turn, 1: turn + turn, 2: turn + turn}
    kept, counts = sft.fitting([turn, [{"role": "user", "content": "x" * 500}, turn[1]], turn], chat, max_length=size)
    assert kept == {0: turn, 2: turn}  # by their places, from which their sources are known
    assert counts.dropped == {"longer_than_max_length": 1} and counts.balance
    with pytest.raises(DataError, match=r"sft\.max_length=3"):
        sft.fitting([turn], chat, max_length=3)


def test_a_loss_that_does_not_fall_or_is_not_finite_fails_the_gate():
    assert sft.loss_gate([2.0, 1.0], before=2.0, after=1.0).passed
    assert not sft.loss_gate([1.0, 2.0], before=1.0, after=2.0).passed
    assert not sft.loss_gate([1.0, math.nan], before=2.0, after=1.0).passed
    assert not sft.loss_gate([], before=2.0, after=1.0).passed


def test_an_unknown_field_is_refused_before_training(chain, tmp_path):
    with pytest.raises(RecipeError, match=r"sft\.trl\.nonsense"):
        train(chain, tmp_path / "out", {"trl": {"nonsense": 1}})

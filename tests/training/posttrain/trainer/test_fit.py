"""What the trainers share: the order of rows, fields passed through, micro-batches, checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.training.posttrain import tiny
from training.contract.files.writing import read_sealed
from training.contract.records import RecipeError
from training.generate.passes.pass_rows import PASS_LOGITS, PASS_ROWS, PASS_TOKENS, passes
from training.posttrain.passed_through import WORDS, check_passed_through, fields_of
from training.posttrain.reward.settings import RewardRecipe
from training.posttrain.sft.settings import SftRecipe
from training.posttrain.trainer.fit import adapter_config, last_checkpoint, row_order, rows_per_pass, seal, window_means

LENGTHS = random.Random(7).choices(range(5, 121), k=333)


def padding(order, batch_size):
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return sum(max(LENGTHS[i] for i in batch) * len(batch) - sum(LENGTHS[i] for i in batch) for batch in batches)


def test_every_row_comes_once_an_epoch():
    order = row_order(LENGTHS, epochs=2, batch_size=8, seed=1)
    assert set(Counter(order).values()) == {2}
    assert len(order) == 2 * len(LENGTHS)
    half = row_order(LENGTHS, epochs=0.5, batch_size=8, seed=1)
    assert len(half) == len(set(half)) == round(0.5 * len(LENGTHS))


def test_the_order_is_the_seed_s_and_batches_hold_similar_lengths():
    order = row_order(LENGTHS, epochs=1, batch_size=8, seed=1)
    assert order == row_order(LENGTHS, epochs=1, batch_size=8, seed=1)
    assert order != row_order(LENGTHS, epochs=1, batch_size=8, seed=2)
    shuffled = list(range(len(LENGTHS)))
    random.Random(0).shuffle(shuffled)
    assert padding(order, 8) < 0.2 * padding(shuffled, 8)
    firsts = [LENGTHS[order[i]] for i in range(0, 240, 8)]
    assert firsts != sorted(firsts)  # short batches do not all come first


def check_sft(**fields):
    check_passed_through(SftRecipe(data=(), **fields), "SFTConfig", where="sft")


def test_fields_pass_through_or_are_refused_by_name():
    check_sft(trl={"weight_decay": 0.1})
    with pytest.raises(RecipeError, match=r"sft\.trl\.weigth_decay: .*; did you mean"):
        check_sft(trl={"weigth_decay": 0.1})
    with pytest.raises(RecipeError, match=r"sft\.trl\.num_train_epochs: .* sft\.epochs"):
        check_sft(trl={"num_train_epochs": 3})
    for name in ("push_to_hub", "hub_model_id", "report_to", "packing", "save_steps"):
        with pytest.raises(RecipeError, match="not passed through"):
            check_sft(trl={name: True})
    with pytest.raises(RecipeError, match=r"reward\.trl\.warmup_steps: set reward\.warmup_fraction instead"):
        check_passed_through(RewardRecipe(trl={"warmup_steps": 3}), "RewardConfig", where="reward")


@pytest.mark.parametrize("config", WORDS)
def test_the_words_of_a_text_are_those_of_trl(config):
    folder = Path(find_spec("trl").origin).parent / "trainer"
    source = (folder / f"{config.removesuffix('Config').lower()}_trainer.py").read_text("utf-8")
    for field, words in WORDS[config].items():
        assert field in fields_of(config) and all(f'"{word}"' in source for word in words)


def test_adapters_take_the_fields_of_peft(tmp_path):
    small = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8, **small}))
    check_sft(peft={"r": 4, "use_dora": True, "bias": "lora_only", "init_lora_weights": "gaussian"})
    check_sft(peft={"r": 4, "init_lora_weights": False, "target_modules": ["q_proj"], "layers_to_transform": 1})
    for fields, said in (
        ({"rank": 4}, r"sft\.peft\.rank: LoraConfig has no such field;"),
        ({"bias": "some"}, r"sft\.peft\.bias: expected 'none' or 'all' or 'lora_only', got 'some'"),
        ({"r": -1}, r"sft\.peft\.r=-1 must be at least 1; peft: \{\} trains every weight"),
        ({"r": "four"}, r"sft\.peft\.r: expected int, got 'four'"),
        ({"task_type": "CAUSAL_LM"}, r"sft\.peft\.task_type: not passed through; the pipeline decides it"),
        ({"loftq_config": {"loftq_bits": 4}}, r"sft\.peft\.loftq_config: .* QLoRA's quantized weights need a GPU"),
    ):
        with pytest.raises(RecipeError, match=said):
            check_sft(peft=fields)
    with pytest.raises(RecipeError, match=r"sft\.trl\.model_init_kwargs: .* QLoRA"):
        check_sft(trl={"model_init_kwargs": {"quantization_config": {"load_in_4bit": True}}})
    assert adapter_config({}, tmp_path, task="CAUSAL_LM", where="sft") is None
    assert adapter_config({"r": 4}, tmp_path, task="CAUSAL_LM", where="sft").target_modules == "all-linear"
    with pytest.raises(RecipeError, match=r"sft\.peft\.lora_bias: not every layer has a bias"):
        adapter_config({"r": 4, "lora_bias": True, "use_dora": True}, tmp_path, task="CAUSAL_LM", where="sft")


@pytest.mark.parametrize("name", ["SFTConfig", "DPOConfig", "GRPOConfig", "RLOOConfig", "RewardConfig", "LoraConfig"])
def test_the_fields_that_are_read_from_the_library_are_those_it_has(name):
    import peft
    import trl

    cls = getattr(peft if name == "LoraConfig" else trl, name)
    assert set(fields_of(name)) == {field.name for field in dataclasses.fields(cls) if field.init}


@pytest.mark.parametrize(("micro", "expected"), [(None, (32, 1)), (2048, (8, 4)), (2500, (8, 4)), (3, (1, 32))])
def test_the_micro_batch_divides_the_batch(tmp_path, micro, expected):
    job = tiny.job("sft", tmp_path / "x", {}, micro_batch_tokens=micro)
    assert rows_per_pass(job, batch_size=32, row_tokens=256, where="sft") == expected


def test_a_batch_that_the_processes_cannot_share_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(RecipeError, match=r"sft\.batch_size=32 .* 3 processes"):
        rows_per_pass(tiny.job("sft", tmp_path / "x", {}), batch_size=32, row_tokens=256, where="sft")


def test_a_checkpoint_that_a_kill_cut_short_is_removed(tmp_path):
    for step, whole in ((9, True), (10, True), (11, False)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "weights").write_text("0.5")
        if whole:
            seal(tmp_path / f"checkpoint-{step}")
    assert last_checkpoint(tmp_path) == (tmp_path / "checkpoint-10", [])
    assert not (tmp_path / "checkpoint-11").exists()
    assert last_checkpoint(tmp_path / "none") == (None, [])


def test_a_damaged_checkpoint_is_set_aside_and_said(tmp_path):
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "weights").write_text("0.5")
        seal(tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-10" / "weights").write_text("0.4")
    whole, (line,) = last_checkpoint(tmp_path)
    assert whole == tmp_path / "checkpoint-9" and line.startswith("checkpoint-10: weights differs")
    (tmp_path / "checkpoint-9" / "weights").unlink()
    none, lines = last_checkpoint(tmp_path)
    assert none is None and lines[0].startswith("checkpoint-9: weights is missing") and "step 0" in lines[-1]
    assert len(list(tmp_path.glob("damaged-checkpoint-*"))) == 2


def test_windows():
    assert window_means([4.0, 3.0, 1.0]) == (4.0, 1.0)
    assert window_means([2.0] * 10 + [1.0] * 10) == (2.0, 1.0)


@pytest.mark.parametrize("module", ["sft.sft", "reward.reward", "align.align"])
def test_what_trains_models_never_asks_the_network_nor_imports_what_no_stage_needs(module):
    """A job that a person runs again by hand has no variables of the orchestrator."""
    script = (
        f"import sys, training.posttrain.{module}; from huggingface_hub.constants import HF_HUB_OFFLINE as o;"
        "print(o, {'torchao', 'scipy'} & {*sys.modules})"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True set()"


TWO_PROCESSES = """
import datetime, os, sys
from pathlib import Path
from types import SimpleNamespace
import torch
import torch.distributed as dist
from training.posttrain.trainer.fit import Reporter

def say(rank, folder):
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=limit)
    args = SimpleNamespace(device=torch.device("cpu"))
    work = SimpleNamespace(path=Path(folder))
    said = []
    # Whose clock is past the interval, and who has a signal.
    for late, asked in ((0, None), (1, None), (None, 0), (None, 1)):
        reporter = Reporter(work, checkpoint_seconds=1.0 if rank == late else 1e9)
        reporter._saved -= 10.0
        reporter.asked = [15] if rank == asked else []
        control = SimpleNamespace(should_save=False, should_training_stop=False)
        state = SimpleNamespace(is_world_process_zero=rank == 0, global_step=3, max_steps=8)
        reporter.on_step_end(args, state, control)
        said.append((control.should_save, control.should_training_stop, reporter.stopped))
    checkpoint = Path(folder, "checkpoint-3")
    checkpoint.mkdir(exist_ok=True)
    reduce = dist.all_reduce

    def at_the_last_moment(*arguments):  # the second process writes its file just before it meets the first
        assert not (checkpoint / "complete.json").exists()
        (checkpoint / f"rng_state_{rank}.pth").write_bytes(b"state")
        reduce(*arguments)

    dist.all_reduce = at_the_last_moment
    args.output_dir = folder
    Reporter(work, checkpoint_seconds=0.0).on_save(args, state, control)
    Path(folder, str(rank)).write_text(repr(said))

children = []
for rank in (0, 1):
    child = os.fork()
    if not child:
        say(rank, sys.argv[1])
        os._exit(0)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_all_processes_save_and_stop_at_the_same_step_and_a_mark_is_of_the_files_of_all(tmp_path):
    done = subprocess.run([sys.executable, "-c", TWO_PROCESSES, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    by_the_first_clock, by_no_other = (True, False, False), (False, False, False)
    by_any_signal = (True, True, True)
    said = repr([by_the_first_clock, by_no_other, by_any_signal, by_any_signal])
    assert [(tmp_path / rank).read_text() for rank in "01"] == [said, said]
    sealed = read_sealed(tmp_path / "checkpoint-3" / "complete.json")
    assert {entry["path"] for entry in sealed["files"]} == {"rng_state_0.pth", "rng_state_1.pth"}


@pytest.mark.parametrize("vocabulary", [1, 4096, 128_256])
def test_a_pass_holds_few_tokens_and_few_logits_unless_it_is_one_row(vocabulary):
    lengths = random.Random(3).choices([5, 100, 3000, 40_000], k=200) + [5] * 100
    slices = list(passes(lengths, vocabulary=vocabulary))
    assert [i for some in slices for i in range(some.start, some.stop)] == list(range(len(lengths)))
    for some in slices:
        rows = lengths[some]
        tokens = len(rows) * max(rows)
        assert len(rows) == 1 or (tokens <= PASS_TOKENS and tokens * vocabulary <= PASS_LOGITS)
        assert len(rows) <= PASS_ROWS
    assert max(map(len, (lengths[some] for some in slices))) == PASS_ROWS
    assert list(passes([])) == []

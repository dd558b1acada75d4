"""The record of a trained model names the numerics class that it was made in, and audit has one for all threads."""

from __future__ import annotations

import pytest
import torch

from tests.training.posttrain import tiny
from tests.training.posttrain.align.test_align import DPO
from tests.training.posttrain.conftest import REWARD, SFT
from training.contract.artifact import find
from training.contract.identity import numerics


@pytest.fixture(autouse=True)
def torch_stays_as_it_is():
    """Threads and determinism are a process's; other tests compare bytes."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def sft(chain, output, **run):
    inputs = tiny.made(chain, "base_model"), tiny.made(chain, "instruction_data")
    return tiny.run("sft", output, {"sft": {**SFT, "epochs": 1}}, inputs, **run)


def test_the_record_names_threads_device_and_builds_and_data_has_no_class(chain, tmp_path, monkeypatch):
    one = sft(chain, tmp_path / "one")["numerics"]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # read once by oneDNN, long ago in this process
    other = sft(chain, tmp_path / "other", threads=2, micro_batch_tokens=192)["numerics"]
    assert (one["threads"], one["processes"], one["audit"]) == (1, 1, False)
    assert torch.backends.cpu.get_cpu_capability() in one["device"] and one["builds"]["torch"] == torch.__version__
    assert numerics.change(one, other) == (
        "the same fingerprint, another numerics class: micro_batch_tokens 0 → 192, threads 1 → 2,"
        " variables.ONEDNN_MAX_CPU_ISA (not set) → 'AVX2'"
    )
    assert numerics.change(one, one) == "the same fingerprint and numerics class with another result"
    assert numerics.in_words(other).split(", ")[2:5] == ["threads 2", "processes 1", "micro-batches of 192 tokens"]
    assert find(chain / "instruction_data").record["numerics"] is None


def test_a_model_that_was_trained_in_two_classes_names_both(chain, tmp_path, killed_at):
    output = tmp_path / "sft_model"
    for threads in (2, 1):  # the first attempt leaves no checkpoint, so that its steps are done again
        with killed_at(2):
            sft(chain, output, threads=threads, checkpoint_seconds=1e-6 if threads == 1 else 60.0)
    record = sft(chain, output, threads=2)
    assert record["numerics"]["threads"] == [1, 2]
    assert "threads 1 then 2" in numerics.in_words(record["numerics"])


@pytest.fixture(scope="module")
def wide(chain, tmp_path_factory):
    """The toy chain with a model and rows of a size at which the number of threads decides bits (bf16, AVX-512)."""
    root = tmp_path_factory.mktemp("wide")
    tiny.write_model(root / "base_model" / "model", width=64)
    base = tiny.commit(root, "base_model")
    tiny.run("sft", root / "sft_model", {"sft": {**SFT, "epochs": 2}}, (base, tiny.made(chain, "instruction_data")))
    rows = [{"messages": 4 * row["messages"]} for row in tiny.conversations()]
    source = tiny.write_rows(root / "rows.jsonl", rows)
    tiny.run("instructions", root / "instruction_data", {"sft": {"data": [{"uri": source}]}})
    pairs = tiny.made(chain, "preference_data")
    tiny.run(
        "reward", root / "reward_model", {"reward": {**REWARD, "epochs": 1}}, (tiny.made(root, "sft_model"), pairs)
    )
    return root


AUDITED = {
    "sft": (SFT, {"epochs": 2, "max_length": 250}, ("base_model", "instruction_data")),
    "reward": (REWARD, {"epochs": 1, "batch_size": 16}, ("sft_model", "preference_data")),
    "align": (DPO, {"epochs": 1}, ("sft_model", "preference_data")),
}


@pytest.mark.parametrize("stage", AUDITED)
def test_audit_gives_the_same_bytes_and_class_for_every_number_of_threads(chain, wide, tmp_path, stage):
    settings, changes, assets = AUDITED[stage]
    inputs = [tiny.made(chain if asset == "preference_data" else wide, asset) for asset in assets]
    made = []
    for threads in (1, 2):
        torch.set_num_threads(threads)  # as OMP_NUM_THREADS would
        whole = {stage: {**settings, **changes, "precision": "bf16"}}
        made.append(tiny.run(stage, tmp_path / str(threads), whole, tuple(inputs), threads=threads, audit=True))
    one, two = made
    assert one["digest"] == two["digest"]
    assert one["numerics"] == two["numerics"] and one["numerics"]["precision"]["deterministic"]

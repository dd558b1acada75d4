"""The record of a trained model names the numerics class that it was made in."""

from __future__ import annotations

import pytest
import torch

from tests.training.posttrain import tiny
from tests.training.posttrain.conftest import SFT
from training import numerics
from training.artifact import find


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

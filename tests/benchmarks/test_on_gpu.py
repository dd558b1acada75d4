"""The comparison for GPUs, on the two forms that a CPU has: it passes, and each of its checks is seen to fail."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import on_gpu
from training.pretrain.models import attention

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(on_gpu, "shapes", lambda: {"plain heads": on_gpu.PLAIN})
    for name, value in {"STEPS": 4, "ROWS": 2, "LENGTH": 256}.items():
        monkeypatch.setattr(on_gpu, name, value)


def test_what_the_forms_of_a_cpu_differ_by_is_rounding(tmp_path, monkeypatch):
    out = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["on_gpu", "--device", "cpu", "--out", str(out)])
    assert on_gpu.main() == 0
    found = json.loads(out.read_text())["found"]
    assert [row.get("promise", row.get("form")) for row in found] == [*on_gpu.WAYS, "masked", "blocks"]
    assert 0 < found[-1]["gradient_difference"] < 0.05


def test_attention_that_looks_into_other_documents_does_not_pass(monkeypatch):
    real = attention._in_blocks

    def everything(visible, *, dtype, **named):  # in the form alone, not in the reference
        seen = torch.ones_like(visible).tril() if dtype == torch.bfloat16 else visible
        return real(seen, dtype=dtype, **named)

    monkeypatch.setattr(attention, "_in_blocks", everything)
    assert [row["passed"] for row in on_gpu.compared(CPU, [])] == [True, False]


def test_a_form_that_raises_is_a_row_that_did_not_pass(monkeypatch):
    real = on_gpu.compile_model

    def fails(trainer, what):
        if trainer.attention == "blocks":
            raise TypeError("no such kernel")
        real(trainer, what)

    monkeypatch.setattr(on_gpu, "compile_model", fails)
    *_, row = on_gpu.compared(CPU, [])
    assert not row["passed"] and row["error"] == "TypeError: no such kernel"


def test_a_promise_about_steps_is_one_about_bits(monkeypatch):
    def one_weight_apart(trainer, folder):
        weights = on_gpu.one_by_one(trainer, folder)
        weights[0] += 2**-20
        return weights

    monkeypatch.setattr(on_gpu, "WAYS", {"a second run": one_weight_apart, "resumed": on_gpu.resumed})
    monkeypatch.setattr(on_gpu.Trainer, "run_steps", lambda *_, **__: None)
    assert [row["passed"] for row in on_gpu.promised(CPU)] == [False, True]


def test_a_resumed_training_that_begins_anew_does_not_pass(monkeypatch):
    monkeypatch.setattr(on_gpu, "WAYS", {"resumed": on_gpu.resumed})
    monkeypatch.setattr("training.pretrain.state.State.resume", lambda *_: [])
    (row,) = on_gpu.promised(CPU)
    assert not row["passed"] and row["error"].startswith("AssertionError")

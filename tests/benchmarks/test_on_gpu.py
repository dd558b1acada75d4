"""The comparison for GPUs, on the two forms that a CPU has: it passes, and each of its checks is seen to fail."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import on_gpu
from training.pretrain.models import attention

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    plain = replace(on_gpu.PLAIN, width=64, layers=2, heads=2, kv_heads=2, mlp_width=128)
    monkeypatch.setattr(on_gpu, "shapes", lambda: {"plain heads": plain})
    for name, value in {"PLAIN": plain, "STEPS": 4, "ROWS": 2, "LENGTH": 256}.items():
        monkeypatch.setattr(on_gpu, name, value)


def test_what_the_forms_of_a_cpu_differ_by_is_rounding(tmp_path, monkeypatch):
    out = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["on_gpu", "--device", "cpu", "--out", str(out)])
    assert on_gpu.main() == 0
    found = json.loads(out.read_text())["found"]
    assert [row.get("promise", row.get("form")) for row in found] == [*on_gpu.WAYS, "masked", "blocks", "blocks, fp8"]
    blocks, fp8 = (row["gradient_difference"] for row in found[-2:])
    assert 0 < blocks < 0.05 and 2 * blocks < fp8 < 1


def test_attention_that_looks_into_other_documents_does_not_pass(monkeypatch):
    real = attention._in_blocks

    def everything(visible, *, dtype, **named):  # in the form alone, not in the reference
        seen = torch.ones_like(visible).tril() if dtype == torch.bfloat16 else visible
        return real(seen, dtype=dtype, **named)

    monkeypatch.setattr(attention, "_in_blocks", everything)
    assert [row["passed"] for row in on_gpu.compared(CPU, [])][:2] == [True, False]


def test_a_form_that_raises_is_a_row_that_did_not_pass(monkeypatch):
    real = on_gpu.compile_model

    def fails(trainer, what):
        if trainer.attention == "blocks":
            raise TypeError("no such kernel")
        real(trainer, what)

    monkeypatch.setattr(on_gpu, "compile_model", fails)
    _, row, _ = on_gpu.compared(CPU, [])
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


def test_fp8_is_measured_by_its_emulation(monkeypatch):
    real = on_gpu.step_of

    def half_of_it_on_the_device(config, device, form):
        loss, gradients = real(config, device, form)
        is_on_device = form is not None and form is not on_gpu.EMULATED and form.precision == "fp8"
        return loss, gradients / 2 if is_on_device else gradients

    monkeypatch.setattr(on_gpu, "step_of", half_of_it_on_the_device)
    on_device = on_gpu.Form(attention="blocks", precision="fp8", compiled=False)
    monkeypatch.setattr(on_gpu, "forms", lambda *_: [on_device])
    (row,) = on_gpu.compared(CPU, [])
    assert not row["passed"] and row["of_the_measure"] > 2

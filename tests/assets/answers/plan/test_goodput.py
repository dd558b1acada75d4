"""What interruptions and other machines make of a training's time, before it starts."""

from __future__ import annotations

import json
from math import sqrt
from statistics import fmean, stdev

import pytest

from assets.answers.plan.goodput import PUBLISHED, RUNS, expected_seconds, interrupted
from tests.assets.answers.plan.test_planned import LARGE
from tests.commands import printed, said
from tests.training.pretrain.shapes import preset_shape
from training.pretrain.models.account import PEAK_TERAFLOPS
from training.pretrain.models.shape import ModelConfig

WAYS = {
    "rarely": {"every": 600.0, "lost": 600.0, "between": 9_000.0},
    "often": {"every": 3_600.0, "lost": 600.0, "between": 1_800.0},
    "in restarts too": {"every": 60.0, "lost": 900.0, "between": 600.0},
}


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_simulated_trainings_have_the_mean_of_the_closed_form(how):
    count, ends = interrupted(36_000.0, **how)
    error = stdev(ends) / sqrt(RUNS)
    assert fmean(ends) == pytest.approx(expected_seconds(36_000.0, **how), abs=3 * error)
    assert count == pytest.approx(fmean(ends) / how["between"], rel=0.05), "they come at their rate, also in restarts"
    assert min(ends) >= 36_000.0


def test_nothing_is_lost_without_interruptions():
    assert interrupted(100.0, every=10.0, lost=5.0, between=1e12) == (0.0, [100.0] * RUNS)


# https://huggingface.co/blog/smollm3: 36 layers of width 2048, a tied head.
SMOLLM3 = {"width": 2048, "layers": 36, "heads": 16, "kv_heads": 4, "mlp_width": 11_008}
BOOKED = {  # tokens, length of a row, GPU-hours
    "Llama 3 8B": (15e12, 8192, 1.3e6),
    "Llama 3 70B": (15e12, 8192, 6.4e6),
    "SmolLM3 3B": (11.2e12, 4096, 384 * 24 * 24),
}


def shape_of(name: str) -> ModelConfig:
    if name == "SmolLM3 3B":
        return ModelConfig(vocab_size=128_256, max_length=4096, tied_embeddings=True, **SMOLLM3)
    return preset_shape({"Llama 3 8B": "llama-3-8b", "Llama 3 70B": "llama-3-70b"}[name])


@pytest.mark.parametrize("name", PUBLISHED)
def test_shares_of_published_runs_follow_from_their_tokens_and_hours(name):
    tokens, length, hours = BOOKED[name]
    operations = tokens * shape_of(name).training_flops_per_token(length)
    assert operations / (hours * 3600 * PEAK_TERAFLOPS["H100"] * 1e12) == pytest.approx(PUBLISHED[name], abs=0.005)


GPUS = "{nodes: 2, processes: 2, gpus_per_node: 2, gpu: H100, price_per_hour: 20, micro_batch_tokens: 8192}"


def test_ways_to_train_are_shown_side_by_side(monkeypatch, capsys, tmp_path):
    profile, recipe = tmp_path / "p.yaml", tmp_path / "large.yaml"
    profile.write_text(f"name: p\ndefault: {{backend: slurm}}\nstages:\n  base_model: {GPUS}\n")
    recipe.write_text(LARGE % "llama-3.2-1b")
    given = ("plan", str(recipe), "--profile", str(profile), "--root", str(tmp_path / "r"), "--goodput")
    _, answer, _ = said(monkeypatch, capsys, *given, "--interruptions", "200", "--spot", "2000", "--json")
    model = json.loads(answer)["models"][0]
    rows = {(one["what"], one["gpu"], one["gpus"]): one for one in model["goodput"]["rows"]}
    profiles, spot = rows["as the profile has it", "H100", 4], rows["the same on spot machines", "H100", 4]
    assert profiles["undisturbed_seconds"] == pytest.approx(model["time"]["seconds"])
    assert profiles["seconds"] > profiles["undisturbed_seconds"] and profiles["goodput"] > spot["goodput"]
    assert profiles["gpu_hours"] == pytest.approx(4 * profiles["seconds"] / 3600)
    assert profiles["price"] == pytest.approx(2 * 20 * profiles["seconds"] / 3600)
    assert rows["fastest layout", "H100", 4]["undisturbed_seconds"] <= profiles["undisturbed_seconds"]
    assert rows["twice the nodes", "H100", 8]["seconds"] < rows["half the nodes", "H100", 2]["seconds"]
    assert spot["price"] is None and spot["gpu_hours"] > 0
    assert rows["another kind", "B200", 4]["price"] is None, "the profile has the price of its own machines"
    _, output, _ = printed(monkeypatch, capsys, *given, "--interruptions", "1e6")
    assert "as the profile has it, 4 H100: interrupted too often to end" in " ".join(output.split())

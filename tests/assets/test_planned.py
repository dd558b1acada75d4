"""`pedigree plan`: what is known of a run before it starts, and what is not."""

from __future__ import annotations

import json
import re

import pytest

from assets.capacity import check_fit
from assets.cli import main
from assets.plan_lines import lines_of
from assets.recipe_folders import load_recipe
from resources.profile import ProfileError
from tests.assets.fabricate import make_all
from tests.assets.test_cli import said
from training import artifact
from training.pretrain import forecast

RECIPE = load_recipe("kitchen")
CLUSTER = (
    "default: {backend: slurm}\n"
    "stages:\n"
    "  base_model: {nodes: 2, processes: 8, gpus_per_node: 8, gpu: H100, price_per_hour: 20,"
    " micro_batch_tokens: 8192}\n"
)
LARGE = (
    "name: large\nextends: kitchen\npromote: {model_name: large}\ntokenizer: {vocabulary: 128256}\n"
    "model: {preset: %s, max_length: 8192}\n"
    "pretrain: {tokens: 4194304000, sequence_length: 8192, global_batch_tokens: 4194304, optimizer: adamw}\n"
)


@pytest.fixture
def written(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def planned(monkeypatch, capsys, tmp_path, *arguments):
    code, answer, errors = said(monkeypatch, capsys, "plan", *arguments, "--root", str(tmp_path / "r"))
    assert not (tmp_path / "r").exists(), "planning writes nothing"
    return code, answer, errors


UNKNOWN_AT_FIRST = {"sft_model", "reward_model", "aligned_model", "model_scores"}


def test_what_nobody_has_measured_is_named_and_not_counted(monkeypatch, capsys, tmp_path):
    code, answer, _ = planned(monkeypatch, capsys, tmp_path, "kitchen", "--json")
    told = json.loads(answer)
    # The work of these follows from what other assets make.
    assert code == 0 and told["ok"] and set(told["totals"]["not_known"]) == UNKNOWN_AT_FIRST
    assert {one["basis"] for one in told["assets"] if one["seconds"]} == {"rate of another machine"}
    (model,) = told["trainings"]
    assert model["parameters"] == 2_164_928 and model["steps"] == RECIPE.pretrain.steps
    assert model["flops"] == pytest.approx(model["flops_per_token"] * RECIPE.pretrain.step_tokens)
    assert model["memory"]["fits"] and model["memory"]["peak_bytes"] > 4 * 4 * model["parameters"]
    assert [one["asset"] for one in told["tunings"]] == ["sft_model", "reward_model", "aligned_model"]


def test_a_training_on_known_gpus_is_predicted_and_priced(monkeypatch, capsys, tmp_path, written):
    profile = written("p.yaml", f"name: p\n{CLUSTER}")
    recipe = written("large.yaml", LARGE % "llama-3-8b")
    code, answer, _ = planned(monkeypatch, capsys, tmp_path, recipe, "--profile", profile, "--json")
    told = json.loads(answer)
    (model,) = told["trainings"]
    seconds = model["time"]["seconds"]
    assert forecast.MFU == 0.5 and model["time"]["basis"] == "predicted for H100 at 50% MFU" and model["gpu"] == "H100"
    assert 1 <= len(model["layouts"]) <= 5
    base = next(one for one in told["assets"] if one["asset"] == "base_model")
    assert base["basis"] == "predicted" and base["gpu_hours"] == pytest.approx(16 * seconds / 3600, abs=1e-5)
    assert base["price"] == pytest.approx(20 * 2 * seconds / 3600, abs=1e-5)
    # 8.03 billion weights with two numbers each for AdamW do not fit one GPU as a whole.
    assert code == 2 and "base_model: pretrain needs at least 1 x (weights 32.1" in told["problem"]
    layout = model["layouts"][0]
    assert f"{layout['in_words']} fits" in told["problem"] and layout["shard"] > 1


def test_the_layout_that_a_refusal_names_is_accepted(monkeypatch, capsys, tmp_path, written):
    profile = written("p.yaml", f"name: p\n{CLUSTER}")
    recipe = written("large.yaml", LARGE % "llama-3-8b")
    _, answer, _ = planned(monkeypatch, capsys, tmp_path, recipe, "--profile", profile, "--json")
    layout = json.loads(answer)["trainings"][0]["layouts"][0]
    names = ("shard", "tensor", "context", "expert", "pipeline", "micro_batch_tokens", "recompute")
    fields = ", ".join(f"{name}: {layout[name]}" for name in names)
    better = CLUSTER.replace("micro_batch_tokens: 8192", fields)
    check_fit(load_recipe(recipe), written("q.yaml", f"name: q\n{better}"))


def test_a_model_that_fits_no_layout_is_refused_with_its_share(monkeypatch, capsys, tmp_path, written):
    profile = written("p.yaml", f"name: p\n{CLUSTER.replace('8192}', '8192, shard: 16, recompute: full}')}")
    recipe = load_recipe(written("large.yaml", LARGE % "llama-3-70b"))
    with pytest.raises(ProfileError, match=r"weights 17.6.*no layout of 16 processes fits; on \d+ nodes .* does"):
        check_fit(recipe, profile)


def test_it_is_readable_at_80_columns(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["pedigree", "plan", "kitchen", "--root", str(tmp_path / "r")])
    with pytest.raises(SystemExit) as ended:
        main()
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0 and max(map(len, lines)) <= 80
    assert "base_model [kitchen]: 2,164,928 parameters" in lines
    assert any(re.match(r"To make: (\d+) of \1; \d+ min \d\d s one after", line) for line in lines)


def test_the_steps_of_a_post_training_that_gpus_share_are_predicted(monkeypatch, capsys, tmp_path, written):
    gpus = "{processes: 8, gpus_per_node: 8, gpu: H100, shard: 8}"
    sizes = f"  base_model: {{nodes: 2, {gpus[1:]}\n  sft_model: {gpus}\n"
    profile = written("p.yaml", f"name: p\ndefault: {{backend: slurm}}\nstages:\n{sizes}")
    recipe = written("large.yaml", LARGE % "llama-3-8b")
    _, answer, _ = planned(monkeypatch, capsys, tmp_path, recipe, "--profile", profile, "--json")
    told = {one["asset"]: one for one in json.loads(answer)["tunings"]}
    assert told["sft_model"]["steps_bytes"] > told["sft_model"]["least_bytes"] > 16e9
    assert "weights of all layers in bf16" in told["sft_model"]["steps"]
    assert told["reward_model"]["steps"] is None
    assert told["sft_model"]["fits"] and told["sft_model"]["room_bytes"] == 80e9
    text = " ".join(" ".join(lines_of(json.loads(answer))).split())
    assert re.search(r"in its steps at least [\d.]+ GB of 80 GB \(weights 4.02 GB", text)


def test_what_a_post_training_had_stands_beside_what_it_needs(monkeypatch, capsys, tmp_path):
    made = make_all(RECIPE, tmp_path).cells["sft_model", "kitchen"].artifact
    artifact.commit_record(made.path, made.record | {"cost": {"peak_memory_bytes": 123_400_000}})
    _, answer, _ = said(monkeypatch, capsys, "plan", "kitchen", "--root", str(tmp_path), "--json")
    told = {one["asset"]: one["measured_peak_bytes"] for one in json.loads(answer)["tunings"]}
    assert told == {"sft_model": 123_400_000, "reward_model": None, "aligned_model": None}
    assert "and activations; the last training had 123 MB" in " ".join(" ".join(lines_of(json.loads(answer))).split())


def test_what_cannot_work_is_refused_by_the_plan_with_the_nearest_layout(monkeypatch, capsys, tmp_path, written):
    recipe = written("large.yaml", LARGE % "llama-3-8b")
    gpus = "processes: 8, gpus_per_node: 8, gpu: H100"

    def told(**shards):
        base = f"  base_model: {{nodes: 2, {gpus}, shard: 16, micro_batch_tokens: 8192, recompute: full}}\n"
        sizes = base + "".join(f"  {asset}: {{nodes: 2, {gpus}, shard: {n}}}\n" for asset, n in shards.items())
        profile = written("p.yaml", f"name: p\ndefault: {{backend: slurm}}\nstages:\n{sizes}")
        code, answer, _ = planned(monkeypatch, capsys, tmp_path, recipe, "--profile", profile, "--json")
        return code, json.loads(answer)

    code, whole = told(sft_model=16, reward_model=1)
    refused = re.search(r"reward_model: post-training needs at least .* GB; .*; shard=(\d+) fits", whole["problem"])
    assert code == 2 and refused, whole["problem"]
    code, shared = told(sft_model=16, reward_model=refused[1], aligned_model=16, model_scores=16)
    assert "reward_model" not in shared["problem"]
    reward = next(one for one in shared["tunings"] if one["asset"] == "reward_model")
    assert reward["steps"]["weights"] == 4 * reward["parameters"] // int(refused[1])
    scored = next(one for one in shared["scorings"] if one["asset"] == "model_scores")
    assert scored["peak_bytes"] > scored["memory"]["weights"] == 4 * scored["parameters"] // 16
    lines = " ".join(" ".join(lines_of(shared)).split())
    assert re.search(r"model_scores: [\d,]+ parameters, .* each of 16 processes needs .* GB of 80 GB", lines)


def test_an_unknown_gpu_is_one_sentence(monkeypatch, capsys, tmp_path):
    code, _, errors = planned(monkeypatch, capsys, tmp_path, "kitchen", "--gpu", "H1000")
    assert code == 2 and "gpu='H1000': not known; did you mean `H100`? there are A100" in errors

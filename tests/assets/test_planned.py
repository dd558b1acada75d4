"""`pedigree plan`: what is known of a run before it starts, and what is not."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re

import pytest

from assets import plan_tuned
from assets.capacity import check_fit
from assets.cli import main
from assets.commands import look
from assets.plan import plan
from assets.plan_lines import lines_of
from assets.recipe_folders import load_recipe
from assets.status import compare
from resources.profile import ProfileError, load_profile
from tests.assets.fabricate import make_all
from tests.assets.test_amounts import put_rows, put_shards
from tests.assets.test_cli import said
from tests.assets.test_first_run import put
from training import artifact
from training.posttrain.durations import TUNING_MFU
from training.pretrain import forecast
from training.pretrain.devices import device_of

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


UNKNOWN_AT_FIRST = {"sft_model", "reward_model", "aligned_model", "model_scores", "alignment_rewards"}


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
    sizes = f"  base_model: {{nodes: 2, {gpus[1:]}\n  sft_model: {gpus}\n  model_scores: {gpus}\n"
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
    assert [one["answer_weights"] for one in told.values()] == ["", "", ""]  # nothing is drawn
    said = r"weights while answers are drawn: gathered, because .* take [\d.]+ GB, and 64.0 GB are allowed"
    assert re.search(said, text)


def test_a_loss_that_needs_more_than_the_steps_is_what_must_fit(monkeypatch, capsys, tmp_path, written):
    gpus = "{processes: 8, gpus_per_node: 8, gpu: H100, shard: 8, micro_batch_tokens: 512}"
    sizes = f"  base_model: {{nodes: 2, {gpus[1:]}\n  sft_model: {gpus}\n"
    profile = written("p.yaml", f"name: p\ndefault: {{backend: slurm}}\nstages:\n{sizes}")
    adapters = "sft: {max_length: 512, batch_size: 8, peft: {r: 16}, trl: {activation_checkpointing: true}}\n"
    recipe = written("lora.yaml", (LARGE % "llama-3-8b").replace("128256", "8192") + adapters)
    _, answer, _ = planned(monkeypatch, capsys, tmp_path, recipe, "--profile", profile, "--json")
    told = {one["asset"]: one for one in json.loads(answer)["tunings"]}["sft_model"]
    assert told["fits"] and told["room_bytes"] > told["beside_steps_bytes"] > told["steps_bytes"] > told["least_bytes"]
    text = " ".join(" ".join(lines_of(json.loads(answer))).split())
    assert re.search(r"in its steps [\d.]+ GB \(weights", text)
    assert re.search(r"before or after its steps [\d.]+ GB of 80 GB: loss after the steps \(weights", text)
    # Memory for the steps alone is too little.
    between = (told["beside_steps_bytes"] + told["steps_bytes"]) // 2
    monkeypatch.setattr(plan_tuned, "room", lambda *_: (between, "one H100"))
    _, answer, _ = planned(monkeypatch, capsys, tmp_path, recipe, "--profile", profile, "--json")
    assert [one["fits"] for one in json.loads(answer)["tunings"] if one["asset"] == "sft_model"] == [False]
    text = " ".join(" ".join(lines_of(json.loads(answer))).split())
    assert re.search(r"before or after its steps [\d.]+ GB of [\d.]+ GB: DOES NOT FIT: loss after the steps", text)


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
    assert re.search(r"model_scores: [\d,]+ parameters, .* of each of 16 processes: [\d.]+ GB of 80 GB", lines)


def test_an_unknown_gpu_is_one_sentence(monkeypatch, capsys, tmp_path):
    code, _, errors = planned(monkeypatch, capsys, tmp_path, "kitchen", "--gpu", "H1000")
    assert code == 2 and "gpu='H1000': not known; did you mean `H100`? there are A100" in errors


GPUS = "default: {backend: slurm, processes: 8, gpus_per_node: 8, gpu: H100, price_per_hour: 20}\n"
CHAT = "sft_model reward_model aligned_model model_scores alignment_rewards".split()


def planned_on_gpus(root, written, *, recipe=RECIPE, device=None, text=GPUS):
    """Plan a recipe whose examples and exams are made, and nothing else."""
    comparison = compare(recipe, root)
    talk = {"messages": [{"role": "user", "content": "x" * 60}, {"role": "assistant", "content": "y" * 36}]}
    answer = {"prompt": talk["messages"][:1], "chosen": talk["messages"][1:], "rejected": talk["messages"][1:]}
    put_rows(root, "instruction_data", "instructions.jsonl", [talk] * 8, conversations=8000.0)
    put_rows(root, "preference_data", "train.jsonl", [answer] * 8, train_pairs=800.0, held_out_pairs=8.0)
    (root / "preference_data" / ("a" * 32) / "held_out.jsonl").write_text(json.dumps(answer) + "\n")
    put(root, "benchmark_index", "kitchen", metrics={f"items_{one.name}": 100.0 for one in recipe.evaluation.suites})
    for part in ("kitchen-1", "kitchen-2"):
        put_shards(root, f"kitchen@{part}", documents=500.0, tokens=1e5)
    profile = load_profile(written("p.yaml", f"name: p\n{text}"))
    return plan(comparison, profile, name=profile.name, device=device)


def test_the_time_of_each_stage_on_gpus_is_predicted_and_priced_once_its_examples_are_made(tmp_path, written):
    told = planned_on_gpus(tmp_path, written)
    stages = {one["asset"]: one for one in (*told["tunings"], *told["scorings"])}
    assets = {one["asset"]: one for one in told["assets"]}
    assert list(stages) == CHAT
    for name in CHAT:
        seconds = stages[name]["time"]["seconds"]
        assert seconds == pytest.approx(sum(stages[name]["time"]["parts"].values())) and stages[name]["flops"] > 0
        assert assets[name]["basis"] == "predicted" and assets[name]["seconds"] == pytest.approx(seconds, abs=1e-3)
        assert assets[name]["gpu_hours"] == pytest.approx(8 * seconds / 3600, abs=1e-6)
        assert assets[name]["price"] == pytest.approx(20 * seconds / 3600, abs=1e-6)
        assert stages[name]["time"]["basis"].startswith("predicted for H100 at 15% MFU, ")
    assert not set(CHAT) & set(told["totals"]["not_known"])
    sft, reward, aligned = told["tunings"]
    examples = round(8000 * RECIPE.sft.epochs)
    assert (sft["examples"], sft["optimizer_steps"]) == (examples, -(-examples // RECIPE.sft.batch_size))
    assert sft["tokens"] == examples * (60 + 36 + 4)  # without a tokenizer a byte is a token; role and end of each turn
    assert reward["tokens"] == 2 * 800 * (60 + 2 + 1 + 36 + 1) * RECIPE.reward.epochs
    assert "checks" in sft["time"]["parts"] and "passes without gradients" in aligned["time"]["parts"]
    assert reward["disk"] == {"3 checkpoints": 3 * 12 * reward["parameters"], "export": 4 * reward["parameters"]}
    text = lines_of(told)
    assert max(map(len, text)) <= 80
    assert any(
        re.match(r"  time: .*, predicted for H100 at 15% MFU, 16,000 examples of 100 tokens", one) for one in text
    )


def test_answers_that_a_step_samples_are_part_of_its_time(tmp_path, written):
    sampled = dataclasses.replace(
        RECIPE.align, method="grpo", max_steps=7, batch_size=64, num_generations=8, max_new_tokens=16
    )
    aligned = planned_on_gpus(tmp_path, written, recipe=dataclasses.replace(RECIPE, align=sampled))["tunings"][2]
    assert aligned["optimizer_steps"] == 7 and aligned["examples"] == 7 * 64
    assert {"steps", "answers", "rewards", "checks", "passes without gradients"} <= set(aligned["time"]["parts"])


def test_single_answers_are_read_behind_other_prompts_too(tmp_path, written):
    single = dataclasses.replace(RECIPE.align, method="kto")
    told = planned_on_gpus(tmp_path, written, recipe=dataclasses.replace(RECIPE, align=single))
    tokens = 1600 * single.epochs * 100
    aligned = told["tunings"][2]
    assert aligned["examples"] == 1600 * single.epochs and aligned["tokens"] == tokens
    # A step has three forward passes' worth, and one for the divergence; the reference has two. The head goes twice.
    shape = RECIPE.model.shape(vocab_size=RECIPE.tokenizer.vocabulary)
    of_a_token = 6 / 3 * shape.training_flops_per_token(100) + 2 * shape.vocab_size * shape.width
    assert aligned["flops"] == pytest.approx(tokens * of_a_token)


def test_what_keeps_a_time_from_being_known_is_said(monkeypatch, capsys, tmp_path, written):
    profile = written("p.yaml", f"name: p\n{GPUS.replace('gpu: H100, ', '')}")
    _, answer, _ = planned(monkeypatch, capsys, tmp_path, "kitchen", "--profile", profile, "--gpu", "H200", "--json")
    told = json.loads(answer)
    basis = {one["asset"]: one["time"]["basis"] for one in (*told["tunings"], *told["scorings"])}
    assert {basis[name] for name in CHAT[:3]} == {"not known until the examples are made"}
    assert basis["model_scores"].startswith("not known until the index of the exams")
    assert set(CHAT) <= set(told["totals"]["not_known"])
    unknown = planned_on_gpus(tmp_path / "s", written, text=GPUS.replace("gpu: H100, ", ""))
    assert {one["time"]["basis"] for one in unknown["tunings"]} == {"no known kind of GPU (--gpu)"}
    known = planned_on_gpus(tmp_path / "t", written, device=device_of("H200"), text=GPUS.replace("gpu: H100, ", ""))
    assert {one["gpu"] for one in known["tunings"]} == {"H200"} and known["tunings"][0]["time"]["seconds"] > 0


def test_what_a_stage_took_stands_beside_what_is_predicted(monkeypatch, capsys, tmp_path):
    comparison = make_all(RECIPE, tmp_path)
    for name in ("base_model", *CHAT):
        made = comparison.cells[name, "kitchen"].artifact
        artifact.commit_record(made.path, made.record | {"cost": {"wall_seconds": 75.2, "peak_memory_bytes": 2e8}})
    _, answer, _ = said(monkeypatch, capsys, "plan", "kitchen", "--root", str(tmp_path), "--json")
    told = json.loads(answer)
    stages = [*told["trainings"], *told["tunings"], *told["scorings"]]
    assert {one["asset"]: one["time"]["measured_seconds"] for one in stages} == dict.fromkeys(
        ("base_model", *CHAT), 75.2
    )
    text = " ".join(" ".join(lines_of(told)).split())
    assert text.count("the last one took 1 min 15 s") == 5 and "not predicted; the last one had 200 MB" in text


def test_the_command_assumes_the_utilization_of_the_arithmetic():
    """The command line repeats both numbers, because it imports no arithmetic before it needs any."""
    given = inspect.signature(look.plan).parameters
    assert (given["mfu"].default, given["tuning_mfu"].default) == (forecast.MFU, TUNING_MFU)

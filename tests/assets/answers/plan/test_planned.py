"""`pedigree plan`: what is known of a run before it starts, and what is not."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re

import pytest

from assets.answers.plan.capacity import check_fit, tuned
from assets.answers.plan.goodput import RATE, RESTART_MINUTES
from assets.answers.plan.lines import lines_of
from assets.answers.plan.measured import measured_training, measured_tuning
from assets.answers.plan.plan import plan
from assets.commands import planning
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from resources.compute.size import Size
from resources.profile import ProfileError, load_profile
from tests.assets.fabricate import make_all
from tests.assets.terminal.test_first_run import put
from tests.commands import printed, said
from training.contract import artifact
from training.pretrain.capacity.devices import MFU, TUNING_MFU, device_of
from training.pretrain.capacity.needs import TOLERANCE

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
CHAT = "sft_model reward_model aligned_model model_scores alignment_rewards".split()


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
    model = told["models"][0]
    assert model["parameters"] == 771_136 and model["steps"] == RECIPE.pretrain.steps
    assert model["flops"] == pytest.approx(model["flops_per_token"] * RECIPE.pretrain.step_tokens)
    assert model["memory"]["fits"] and model["memory"]["peak_bytes"] > 4 * 4 * model["parameters"]
    assert [one["asset"] for one in told["models"]] == ["base_model", *CHAT]


def test_a_training_on_known_gpus_is_predicted_and_priced_and_its_layout_named(monkeypatch, capsys, tmp_path, written):
    profile = written("p.yaml", f"name: p\n{CLUSTER}")
    recipe = written("large.yaml", LARGE % "llama-3-8b")
    code, answer, _ = planned(monkeypatch, capsys, tmp_path, recipe, "--profile", profile, "--json")
    told = json.loads(answer)
    model = told["models"][0]
    seconds = model["time"]["seconds"]
    assert MFU == 0.5 and model["time"]["basis"] == "predicted for H100 at 50% MFU" and model["gpu"] == "H100"
    assert 1 <= len(model["layouts"]) <= 5
    base = next(one for one in told["assets"] if one["asset"] == "base_model")
    assert base["basis"] == "predicted" and base["gpu_hours"] == pytest.approx(16 * seconds / 3600, abs=1e-5)
    assert base["price"] == pytest.approx(20 * 2 * seconds / 3600, abs=1e-5)
    # 8.03 billion weights with two numbers each for AdamW do not fit one GPU as a whole.
    assert code == 2 and "1 x (weights 32.1" in told["problem"]
    layout = model["layouts"][0]
    assert f"{layout['in_words']} fits" in told["problem"] and layout["shard"] > 1
    # And that layout is accepted.
    names = ("shard", "tensor", "context", "expert", "pipeline", "micro_batch_tokens", "recompute")
    fields = ", ".join(f"{name}: {layout[name]}" for name in names)
    better = CLUSTER.replace("micro_batch_tokens: 8192", fields)
    check_fit(load_recipe(recipe), written("q.yaml", f"name: q\n{better}"))


def test_a_model_that_fits_no_layout_is_refused_with_its_share(monkeypatch, capsys, tmp_path, written):
    profile = written("p.yaml", f"name: p\n{CLUSTER.replace('8192}', '8192, shard: 16, recompute: full}')}")
    recipe = load_recipe(written("large.yaml", LARGE % "llama-3-70b"))
    with pytest.raises(ProfileError, match=r"weights 17.6.* 16 processes .* \d+ nodes .* does"):
        check_fit(recipe, profile)


def test_it_is_readable_at_80_columns(monkeypatch, capsys, tmp_path):
    code, output, _ = printed(monkeypatch, capsys, "plan", "kitchen", "--root", str(tmp_path / "r"))
    lines = output.splitlines()
    assert code == 0 and max(map(len, lines)) <= 80
    assert "base_model [kitchen]: 771,136 parameters" in lines
    assert any(re.match(r"To make: (\d+) of \1; \d+ min \d\d s one after", line) for line in lines)


def test_what_judged_chat_and_safety_ask_of_models_and_judge_is_counted(monkeypatch, capsys, tmp_path, written):
    rows = [{"question_id": n, "category": "math", "turns": ["One?", "Two?"]} for n in range(3)]
    questions = written("questions.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    chat = f"judged_chat: {{questions: {questions}, endpoint: 'http://127.0.0.1:1/v1', endpoint_model: judge}}\n"
    recipe = written("chats.yaml", f"name: chats\nextends: kitchen\nsafety: {{max_answered_harmful: 0.1}}\n{chat}")
    _, answer, _ = planned(monkeypatch, capsys, tmp_path, recipe, "--json")
    told = {one["asset"]: one for one in json.loads(answer)["models"]}
    assert told["safety_answers"]["chat"] == {"answers": 2 * 120, "answer_tokens": 64}
    # Two models rate each of six turns, and both orders of each are compared.
    calls = {"judge_calls": 2 * 6 + 2 * 6, "judge_tokens": 1024}
    assert told["judged_chat"]["chat"] == {"answers": 12, "answer_tokens": 512, **calls}
    assert told["judged_chat"]["memory"]["peak_bytes"] > told["judged_chat"]["parameters"]
    lines = lines_of(json.loads(answer))
    assert "  24 calls of the judge, each answered in at most 1,024 tokens" in lines and max(map(len, lines)) <= 80


def test_what_a_post_training_and_scoring_need_on_gpus_is_shown(monkeypatch, capsys, tmp_path, written):
    gpus = "{processes: 8, gpus_per_node: 8, gpu: H100, shard: 8}"
    sizes = f"  base_model: {{nodes: 2, {gpus[1:]}\n  sft_model: {gpus}\n  model_scores: {gpus}\n"
    profile = written("p.yaml", f"name: p\ndefault: {{backend: slurm}}\nstages:\n{sizes}")
    recipe = written("large.yaml", LARGE % "llama-3-8b")
    _, answer, _ = planned(monkeypatch, capsys, tmp_path, recipe, "--profile", profile, "--json")
    told = {one["asset"]: one for one in json.loads(answer)["models"]}
    sft = told["sft_model"]
    assert "weights of all layers in bf16" in sft["memory"]["moments"]["step"]
    assert sft["memory"]["fits"] and 80e9 == sft["memory"]["room_bytes"] > sft["memory"]["peak_bytes"] > 16e9
    assert told["reward_model"]["memory"]["fits"] is None  # the memory of its node is not known
    text = " ".join(" ".join(lines_of(json.loads(answer))).split())
    assert re.search(r"memory of each of 8 processes: [\d.]+ GB of 80 GB .* step [\d.]+ GB: weights 4.02 GB", text)
    said = r"weights while answers are drawn: gathered, because .* take [\d.]+ GB, and 64.0 GB are allowed"
    assert re.search(said, text) and sft["answer_weights"] == ""


def test_what_a_post_training_had_stands_beside_what_it_needs(monkeypatch, capsys, tmp_path):
    made = make_all(RECIPE, tmp_path).cells["sft_model", "kitchen"].artifact
    artifact.commit_record(made.path, made.record | {"cost": {"peak_memory_bytes": 123_400_000}})
    _, answer, _ = said(monkeypatch, capsys, "plan", "kitchen", "--root", str(tmp_path), "--json")
    told = {one["asset"]: one["memory"]["measured_peak_bytes"] for one in json.loads(answer)["models"]}
    assert told["sft_model"] == 123_400_000 and told["reward_model"] is None
    assert "; the last one had 123 MB" in " ".join(" ".join(lines_of(json.loads(answer))).split())


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
    models = {one["asset"]: one for one in shared["models"]}
    reward, scored = models["reward_model"], models["model_scores"]
    assert reward["memory"]["moments"]["step"]["weights"] == 4 * reward["parameters"] // int(refused[1])
    assert scored["memory"]["moments"]["answers"]["weights"] == 4 * scored["parameters"] // 16


def test_an_unknown_gpu_is_one_sentence(monkeypatch, capsys, tmp_path):
    code, _, errors = planned(monkeypatch, capsys, tmp_path, "kitchen", "--gpu", "H1000")
    assert code == 2 and "gpu='H1000': not known; did you mean `H100`?" in errors


GPUS = "default: {backend: slurm, processes: 8, gpus_per_node: 8, gpu: H100, price_per_hour: 20}\n"


def put_rows(root, asset, file, rows, **metrics):
    """Put a file of rows under a root, as an artifact whose record has these metrics."""
    put(root, asset, "kitchen", metrics=metrics)
    (root / asset / ("a" * 32) / file).write_text("".join(json.dumps(row) + "\n" for row in rows))


def planned_on_gpus(root, written, *, recipe=RECIPE, device=None, text=GPUS):
    """Plan a recipe whose examples are made, and nothing else."""
    comparison = compare(recipe, root)
    talk = {"messages": [{"role": "user", "content": "x" * 60}, {"role": "assistant", "content": "y" * 36}]}
    answer = {"prompt": talk["messages"][:1], "chosen": talk["messages"][1:], "rejected": talk["messages"][1:]}
    put_rows(root, "instruction_data", "instructions.jsonl", [talk] * 800, conversations=800.0)
    put_rows(root, "preference_data", "train.jsonl", [answer] * 80, train_pairs=80.0)
    profile = load_profile(written("p.yaml", f"name: p\n{text}"))
    told = plan(comparison, profile, name=profile.name, device=device)
    return told, {one["asset"]: one for one in told["models"]}


def test_the_time_of_each_tuning_on_gpus_is_predicted_and_priced_once_its_examples_are_made(tmp_path, written):
    told, models = planned_on_gpus(tmp_path, written)
    assets = {one["asset"]: one for one in told["assets"]}
    for name in CHAT[:3]:
        seconds = models[name]["time"]["seconds"]
        assert seconds == pytest.approx(models[name]["flops"] / (8 * 0.15 * 989e12))
        assert assets[name]["basis"] == "predicted" and assets[name]["seconds"] == pytest.approx(seconds, abs=1e-3)
        assert assets[name]["gpu_hours"] == pytest.approx(8 * seconds / 3600, abs=1e-6)
        assert assets[name]["price"] == pytest.approx(20 * seconds / 3600, abs=1e-6)
        assert models[name]["time"]["basis"] == "predicted for H100 at 15% MFU"
    sft, reward = models["sft_model"], models["reward_model"]
    examples = round(800 * RECIPE.sft.epochs)
    assert (sft["examples"], sft["steps"]) == (examples, -(-examples // RECIPE.sft.batch_size))
    size = (tmp_path / "instruction_data" / ("a" * 32) / "instructions.jsonl").stat().st_size
    assert sft["tokens"] == round(RECIPE.sft.epochs * size / 4)  # a token is taken for four bytes
    assert reward["disk"] == {"3 checkpoints": 3 * 12 * reward["parameters"], "export": 4 * reward["parameters"]}
    assert max(map(len, lines_of(told))) <= 80


def test_what_keeps_a_time_from_being_known_is_said(monkeypatch, capsys, tmp_path, written):
    profile = written("p.yaml", f"name: p\n{GPUS.replace('gpu: H100, ', '')}")
    _, answer, _ = planned(monkeypatch, capsys, tmp_path, "kitchen", "--profile", profile, "--gpu", "H200", "--json")
    told = json.loads(answer)
    basis = {one["asset"]: one["time"]["basis"] for one in told["models"]}
    assert {basis[name] for name in CHAT[:3]} == {"not known until the examples are made"}
    assert basis["model_scores"].startswith("not predicted of scores")
    assert set(CHAT) <= set(told["totals"]["not_known"])
    _, unknown = planned_on_gpus(tmp_path / "s", written, text=GPUS.replace("gpu: H100, ", ""))
    assert {unknown[name]["time"]["basis"] for name in CHAT[:3]} == {"no known kind of GPU (--gpu)"}
    _, known = planned_on_gpus(tmp_path / "t", written, device=device_of("H200"), text=GPUS.replace("gpu: H100, ", ""))
    assert known["sft_model"]["gpu"] == "H200" and known["sft_model"]["time"]["seconds"] > 0
    sampled = dataclasses.replace(RECIPE, align=dataclasses.replace(RECIPE.align, method="grpo"))
    _, drawn = planned_on_gpus(tmp_path / "u", written, recipe=sampled)
    assert drawn["aligned_model"]["time"]["basis"].startswith("not predicted")


GPUS_OF_TWO = "processes: 2, gpus_per_node: 2, gpu: H100"


def measured_by_the_command(monkeypatch, capsys, tmp_path, written, recipe, layout):
    profile = written("p.yaml", f"name: p\ndefault: {{backend: slurm, {layout}}}\n")
    code, answer, _ = planned(monkeypatch, capsys, tmp_path, recipe, "--profile", profile, "--measure", "--json")
    return code, json.loads(answer)


def test_a_training_is_measured_and_what_cannot_be_is_told_with_its_reason(monkeypatch, capsys, tmp_path, written):
    with_experts = "name: r\nextends: kitchen\npromote: {model_name: r}\n"
    recipe = written("r.yaml", with_experts + "model: {experts: {count: 4, active: 2, width: 64}}\n")
    code, told = measured_by_the_command(monkeypatch, capsys, tmp_path, written, recipe, f"{GPUS_OF_TWO}, shard: 2")
    base, *others = told["models"]
    stated = base["memory"]["moments"]
    assert base["measured"].keys() == {"start", *stated} and base["not_measured"] == ""
    step = sum(stated["step"].values()) - stated["step"]["libraries"]
    assert base["measured"]["step"] == pytest.approx(step, rel=TOLERANCE)
    assert (code, told["ok"], told["problem"]) == (1, False, "")
    assert {one["asset"] for one in others} == set(CHAT)
    assert {one["not_measured"] for one in others} == {"not possible with model.experts"}
    text = " ".join(" ".join(lines_of(told)).split())
    assert "held without content, as on a GPU: start" in text
    assert "not measured without content: not possible with model.experts" in text
    _, told = measured_by_the_command(monkeypatch, capsys, tmp_path, written, recipe, f"{GPUS_OF_TWO}, expert: 2")
    assert told["models"][0]["not_measured"] == "not possible with expert above 1"


def test_all_that_a_recipe_trains_and_scores_is_measured_beside_the_closed_form(monkeypatch, capsys, tmp_path, written):
    code, told = measured_by_the_command(monkeypatch, capsys, tmp_path, written, "kitchen", f"{GPUS_OF_TWO}, shard: 2")
    assert code == 0 and told["ok"], [one["not_measured"] for one in told["models"]]
    for one in told["models"]:
        if one["asset"] != "alignment_rewards":  # three models at one moment
            assert one["measured"].keys() >= {"start", *one["memory"]["moments"]}, one["asset"]
    assert all(one["measured"] for one in told["models"]) and len(told["models"]) == 1 + len(CHAT)


def test_what_has_no_form_without_content_is_not_measured():
    def of(part, **fields):
        return dataclasses.replace(RECIPE, **{part: dataclasses.replace(getattr(RECIPE, part), **fields)})

    taught = dataclasses.replace(RECIPE.pretrain.distill, teacher="made://base_model/kitchen")
    for changed, why in (
        (of("pretrain", precision="fp8"), "precision: fp8"),
        (of("pretrain", distill=taught), "distill.teacher"),
    ):
        assert measured_training(changed, Size()) == ({}, f"not possible with {why}")
    sampled = of("align", method="grpo")
    for recipe, asset, size, why in (
        (sampled, "aligned_model", Size(), "answers that the model samples"),
        (RECIPE, "sft_model", Size(processes=2), "several processes that each have the whole model"),
    ):
        section = dict(tuned(recipe))[asset]
        assert measured_tuning(recipe, asset, section, size) == ({}, f"not possible with {why}")


def test_what_a_stage_took_stands_beside_what_is_predicted(monkeypatch, capsys, tmp_path):
    comparison = make_all(RECIPE, tmp_path)
    for name in ("base_model", *CHAT):
        made = comparison.cells[name, "kitchen"].artifact
        artifact.commit_record(made.path, made.record | {"cost": {"wall_seconds": 75.2, "peak_memory_bytes": 2e8}})
    _, answer, _ = said(monkeypatch, capsys, "plan", "kitchen", "--root", str(tmp_path), "--json")
    told = json.loads(answer)
    assert {one["asset"]: one["time"]["measured_seconds"] for one in told["models"]} == dict.fromkeys(
        ("base_model", *CHAT), 75.2
    )
    text = " ".join(" ".join(lines_of(told)).split())
    assert text.count("the last one took 1 min 15 s") == 6 and text.count("; the last one had 200 MB") == 6


def test_the_command_assumes_the_utilization_of_the_arithmetic():
    """The command line repeats the numbers, because it imports no arithmetic before it needs any."""
    given = inspect.signature(planning.plan).parameters
    assert (given["mfu"].default, given["tuning_mfu"].default) == (MFU, TUNING_MFU)
    assert (given["interruptions"].default, given["restart_minutes"].default) == (RATE, RESTART_MINUTES)

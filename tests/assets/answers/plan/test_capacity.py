"""What is refused of a recipe and a profile before anything starts, with the arithmetic."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from assets.answers.plan import capacity
from assets.answers.plan.capacity import check_fit
from assets.state.recipe_folders import load_recipe
from resources.compute.size import read_size
from resources.profile import ProfileError
from training.contract.records import RecipeError
from training.posttrain import answer_weights
from training.posttrain.align.settings import AlignRecipe
from training.pretrain.capacity.devices import device_of
from training.pretrain.capacity.needs import held_bytes, scoring_bytes, tuning_bytes
from training.pretrain.capacity.room import machine_memory
from training.pretrain.models import export
from training.pretrain.stages.doremi_settings import DoremiRecipe

RECIPE = load_recipe("kitchen")
LLAMA = {"width": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "mlp_width": 14336}


def with_memory(monkeypatch, gigabytes):
    monkeypatch.setattr(capacity, "machine_memory", lambda: (int(gigabytes * 1e9), "the machine"))


@pytest.fixture
def profile(tmp_path):
    def write(text):
        (tmp_path / "p.yaml").write_text(f"name: p\n{text}")
        return str(tmp_path / "p.yaml")

    return write


def test_the_shipped_recipe_fits_a_small_machine(monkeypatch):
    with_memory(monkeypatch, 2)
    check_fit(RECIPE, "local")
    assert machine_memory()[0] > 1e8


def test_every_model_that_the_trainer_makes_is_looked_at(monkeypatch):
    with_memory(monkeypatch, 2)
    large = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **LLAMA))
    with pytest.raises(ProfileError, match=r"base_model: .* 1 x \(weights 27.* optimizer"):
        check_fit(large, "local")
    doremi = DoremiRecipe(tokens=RECIPE.pretrain.tokens, **LLAMA)
    with pytest.raises(ProfileError, match=r"reference_model: .* 2 GB; lower micro"):
        check_fit(dataclasses.replace(RECIPE, doremi=doremi), "local")
    longer = dataclasses.replace(RECIPE.long_context, tokens=2**22, sequence_length=2**21, global_batch_tokens=2**21)
    with pytest.raises(ProfileError, match="long_context_model: pretrain needs"):
        check_fit(dataclasses.replace(RECIPE, long_context=longer), "local")


def test_the_proxy_has_its_reference_beside_it(monkeypatch):
    doremi = DoremiRecipe(tokens=RECIPE.pretrain.tokens, width=1024, layers=8, heads=8, kv_heads=8, mlp_width=4096)
    recipe = dataclasses.replace(RECIPE, doremi=doremi)
    passed = 0
    for tenths in range(1, 60):  # the smallest machine on which the reference can be trained is too small for the proxy
        with_memory(monkeypatch, tenths / 10)
        try:
            check_fit(recipe, "local")
            passed = tenths
            break
        except ProfileError as error:
            last = str(error)
    assert passed and "mixture_weights: doremi needs" in last and "reference" in last


@pytest.mark.parametrize("asset", ["sft_model", "reward_model", "aligned_model"])
def test_post_training_on_a_known_gpu_needs_room_for_its_model(profile, asset):
    large = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **LLAMA))
    check = dict(capacity.checks(large))[asset]
    gpus = {"backend": "slurm", "processes": 8, "gpus_per_node": 8, "gpu": "H100"}
    with pytest.raises(RecipeError, match=r"post-training .* 80 GB; .*; shard=(\d+) fits") as error:
        check(read_size(gpus, where=""))
    nearest = int(re.findall(r"shard=(\d+) fits", str(error.value))[0])
    check(read_size({**gpus, "shard": nearest}, where=""))
    with pytest.raises(RecipeError, match="needs at least"):
        check(read_size({**gpus, "shard": nearest // 2}, where=""))


WIDER = {"width": 8192, "layers": 80, "heads": 64, "kv_heads": 8, "mlp_width": 28672}  # 70 billion weights


def test_a_reward_model_larger_than_its_place_is_refused_and_the_nearest_layout_is_named():
    model = dataclasses.replace(RECIPE.model, **WIDER, tied_embeddings=False)
    sections = {
        name: dataclasses.replace(getattr(RECIPE, name), batch_size=64, trl={"activation_checkpointing": True})
        for name in ("sft", "reward", "align")
    }
    recipe = dataclasses.replace(RECIPE, model=model, **sections)
    check = dict(capacity.checks(recipe))["reward_model"]
    gpus = {"backend": "slurm", "nodes": 1, "processes": 8, "gpus_per_node": 8, "gpu": "H100"}
    said = r"post-training needs at least 1 x \(weights 34.2 \+ optimizer 68.5 .* one H100 has 80 GB; .*"
    with pytest.raises(RecipeError, match=said) as error:
        check(read_size({**gpus, "shard": 8}, where=""))
    nodes, shard = map(int, re.search(r"on (\d+) nodes shard=(\d+) fits", str(error.value)).groups())
    check(read_size({**gpus, "nodes": nodes, "shard": shard}, where=""))
    with pytest.raises(RecipeError, match="needs at least"):  # half of it does not fit
        check(read_size({**gpus, "nodes": nodes, "shard": shard // 2}, where=""))


def test_the_steps_of_a_spread_post_training_must_fit_its_gpus():
    """They hold the whole head, and the weights of all layers in bf16 unless these are computed twice."""
    large = {**LLAMA, "width": 8192, "layers": 80, "heads": 64, "mlp_width": 28672}
    section = dataclasses.replace(RECIPE.sft, max_length=131_072, batch_size=32)
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **large), sft=section)
    gpus = {"backend": "slurm", "nodes": 4, "processes": 8, "gpus_per_node": 8, "gpu": "H100", "shard": 32}
    size = read_size(gpus, where="")

    def check(trl, **changes):
        sft = dataclasses.replace(section, trl=trl, **changes)
        dict(capacity.checks(dataclasses.replace(recipe, sft=sft)))["sft_model"](size)

    with pytest.raises(RecipeError, match=r"bf16 .* 80 GB; set trl: {act"):
        check({})
    # Rows may be much shorter than `max_length`, so it alone refuses nothing; in fp32 no copies are kept.
    check({"activation_checkpointing": True})
    check({}, precision="fp32")


def test_a_layout_is_refused_from_the_first_byte_that_it_lacks(monkeypatch):
    gpus = {"backend": "slurm", "processes": 8, "gpus_per_node": 8, "gpu": "H100", "micro_batch_tokens": 1024}
    model = dataclasses.replace(RECIPE.model, **LLAMA, max_length=1024)
    batch = {"sequence_length": 1024, "global_batch_tokens": 2**17, "tokens": 2**20}
    recipe = dataclasses.replace(RECIPE, model=model, pretrain=dataclasses.replace(RECIPE.pretrain, **batch))
    size = read_size({**gpus, "shard": 8}, where="")
    needed = {
        "base_model": capacity.certain_bytes(capacity.trainings_of(recipe)[0], size),
        "sft_model": capacity.most(
            list(capacity.tuning_bytes(capacity.tuning_of(recipe, recipe.sft, size).with_rows_of(1)).values())
        ),
    }
    checks = dict(capacity.checks(recipe))
    for asset, parts in needed.items():
        for spared, is_refused in ((0, False), (1, True)):
            gpu = dataclasses.replace(device_of("H100"), memory_bytes=sum(parts.values()) - spared)
            with monkeypatch.context() as patch:
                patch.setattr(capacity, "device_of", lambda _, gpu=gpu: gpu)
                if is_refused:
                    with pytest.raises(RecipeError, match=r"1 x \(weights 3\.\d+ \+ .* H100"):
                        checks[asset](size)
                else:
                    checks[asset](size)


def test_what_a_post_training_needs_grows_with_what_a_pass_reads():
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **LLAMA))
    gpus = {"backend": "slurm", "processes": 8, "gpus_per_node": 8, "gpu": "H100", "shard": 8}
    size = read_size(gpus, where="")

    def tuning(section, **changes):
        section = dataclasses.replace(section, max_length=2048, batch_size=8, **changes)
        return capacity.tuning_of(recipe, section, size)

    def step(section, **changes):
        return tuning_bytes(tuning(section, **changes))["step"]

    sft = step(RECIPE.sft)
    assert step(RECIPE.align)["states of all layers"] == pytest.approx(2 * sft["states of all layers"], rel=1e-3)
    assert sft["weights of all layers in bf16"] > 2 * 32 * 4096 * 4096
    assert step(RECIPE.sft, trl={"activation_checkpointing": True})["weights of all layers in bf16"] == 0
    assert step(RECIPE.sft, precision="fp32")["weights of all layers in bf16"] == 0
    # peft says of Llama 3 8B: trainable params: 41,943,040 for rank 16 on all linear layers.
    adapted = held_bytes(tuning(RECIPE.sft, peft={"r": 16}))
    assert adapted["adapters"] == adapted["gradients"] == 4 * 41_943_040 == adapted["optimizer"] // 2
    by_sgd = held_bytes(tuning(RECIPE.sft, trl={"optim": "sgd"}))
    assert by_sgd["optimizer"] == 0 and by_sgd["gradients"] == by_sgd["weights"] == sft["weights"]
    sampled = dataclasses.replace(RECIPE.align, method="grpo", num_generations=4)
    policy, judge = 8 * sft["weights"], capacity.tuning_of(recipe, RECIPE.reward, size).parameters * 4
    assert step(sampled)["models beside it"] == (policy + judge) // 8
    assert step(sampled, peft={"r": 16})["models beside it"] == judge // 8  # it is the model without its adapters
    assert step(sampled, rewards={"length": 1.0}, beta=0.0)["models beside it"] == 0
    # All answers of a step are drawn at once, whatever a pass of the training reads.
    long = dataclasses.replace(sampled, max_length=8192, max_new_tokens=4096, batch_size=512)
    small = dataclasses.replace(size, micro_batch_tokens=8192)
    drawn = tuning_bytes(capacity.tuning_of(recipe, long, small))["answers"]
    assert drawn["keys and values"] == 64 * 8192 * 32 * 2 * 1024 * 4


def test_weights_stay_gathered_while_answers_are_drawn_where_the_gpu_has_room_or_the_profile_says_so(tmp_path):
    """The job decides as the plan says, by the shape in the model's folder and the memory that the driver tells."""
    twice = {"activation_checkpointing": True}
    sampled = dataclasses.replace(RECIPE.align, method="grpo", batch_size=64, num_generations=4, trl=twice)
    recipe = dataclasses.replace(
        RECIPE, model=dataclasses.replace(RECIPE.model, **LLAMA, tied_embeddings=False), align=sampled
    )
    gpus = {"backend": "slurm", "processes": 8, "gpus_per_node": 8, "gpu": "H100", "shard": 8}
    size, shape = read_size(gpus, where=""), capacity.shape_of(recipe)

    def told(size, recipe=recipe):
        planned = capacity.tuning_of(recipe, sampled, size)
        return capacity.answer_weights(planned, tuning_bytes(planned, gathers=True)["answers"], size)

    needed = tuning_bytes(capacity.tuning_of(recipe, sampled, size), gathers=True)["answers"]
    words = shape.vocab_size * shape.width
    # All but the embedding in bf16.
    assert needed["gathered weights"] == 2 * (shape.parameter_count - words) + 4 * words
    gathers, why = told(size)
    said = r"gathered, because .* take [\d.]+ GB, and 64.0 GB are allowed \(80% of the GPU\)"
    assert gathers and re.fullmatch(said, why)
    (tmp_path / "config.json").write_text(json.dumps(export.hugging_face_config(shape, eos_id=0, pad_id=1)))
    room = {"room": 80 * 10**9}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_weights, "_room", lambda: room["room"])
        assert answer_weights.while_sampling(tmp_path, sampled, size) == (gathers, why)
        for asset, models in (("model_scores", 1), ("alignment_rewards", 3)):
            planned = capacity.scoring_of(recipe, asset, size)
            answers = scoring_bytes(planned, gathers=True)["answers"]
            here = answer_weights.while_answering(
                tmp_path, "auto", shard=8, rows=recipe.evaluation.batch_size, models=models
            )
            assert here == capacity.answer_weights(planned, answers, size)
        room["room"] = sum(needed.values())  # the whole of it is more than its share
        assert answer_weights.while_sampling(tmp_path, sampled, size)[0] is False
        (tmp_path / "config.json").write_text('{"model_type": "unknown"}')
        assert "not predicted" in answer_weights.while_sampling(tmp_path, sampled, size)[1]
    seventy = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, **WIDER, tied_embeddings=False))
    assert told(size, seventy)[0] is False
    forced = dataclasses.replace(size, nodes=4, shard=32, answer_weights="gathered")
    assert told(forced, seventy) == (True, "gathered, by the profile")
    checks = dict(capacity.checks(seventy))
    checks["aligned_model"](dataclasses.replace(forced, answer_weights="auto"))
    with pytest.raises(RecipeError, match=r"gathered weights 1\d\d.*answer_weights=sharded fits"):
        checks["aligned_model"](forced)
    without = dataclasses.replace(size, gpu=None)
    assert told(without) == (False, "sharded, because the memory of a GPU is not known")
    assert told(dataclasses.replace(size, shard=1)) == (False, "")
    for asset in ("aligned_model", "model_scores"):
        with pytest.raises(RecipeError, match="answer_weights=gathered"):
            dict(capacity.checks(recipe))[asset](dataclasses.replace(size, shard=1, answer_weights="gathered"))


def test_a_model_that_cannot_be_scored_in_its_place_is_refused_with_the_nearest_layout():
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **WIDER, tied_embeddings=False))
    checks = dict(capacity.checks(recipe))
    gpus = {"backend": "slurm", "processes": 8, "gpus_per_node": 8, "gpu": "H100"}
    for asset in ("model_scores", "alignment_rewards"):
        with pytest.raises(RecipeError, match=r"scoring .* 1 x \(weights (274|548) .*shard=(\d+) fits") as error:
            checks[asset](read_size(gpus, where=""))
        nearest = int(re.findall(r"shard=(\d+) fits", str(error.value))[0])
        assert 1 < nearest <= 16
        nodes = max(1, nearest // 8)
        checks[asset](read_size({**gpus, "nodes": nodes, "shard": nearest}, where=""))


@pytest.mark.usefixtures("examples")
def test_exams_of_a_harness_from_outside_are_refused_several_processes(monkeypatch, profile):
    with_memory(monkeypatch, 8)
    part = {"harness": "mine", "parts": {"mine": {"from": "second_try:harness"}}}
    suites = tuple(dataclasses.replace(suite, **part) for suite in RECIPE.evaluation.suites)
    recipe = dataclasses.replace(RECIPE, evaluation=dataclasses.replace(RECIPE.evaluation, suites=suites))
    with pytest.raises(ProfileError, match=r"model_scores: evaluation.suites: cloze, .*: .* one process, .* 2;"):
        check_fit(recipe, profile("default: {processes: 2}\n"))
    check_fit(recipe, profile("default: {processes: 2}\nstages: {model_scores: {processes: 1}}\n"))


def test_a_warmup_and_a_decay_that_overlap_are_refused():
    wrong = {"schedule": "wsd", "warmup_fraction": 0.3, "decay_fraction": 0.8}
    with pytest.raises(RecipeError, match=r"0.3 \+ decay_fraction=0.8 = 1.1 .* such as decay_fraction=0.7"):
        dataclasses.replace(RECIPE.pretrain, **wrong)
    dataclasses.replace(RECIPE.pretrain, **wrong | {"decay_fraction": 0.7})
    dataclasses.replace(RECIPE.pretrain, **wrong | {"schedule": "cosine"})  # it has no decay of its own


def test_a_spread_model_needs_its_share_in_each_process(profile):
    tunings = [dict(capacity.checks(RECIPE))[name] for name in ("sft_model", "aligned_model")]
    whole = 4 * 4 * capacity.shape_of(RECIPE).parameter_count / 2**30  # weights, gradients and two numbers a weight
    here = {"backend": "slurm", "memory_gb": 1.1 * whole, "processes": 4}
    for check in tunings:
        check(read_size({**here, "shard": 4}, where=""))
        with pytest.raises(RecipeError, match=r"post-training .* 4 x"):
            check(read_size(here, where=""))
    sampled = AlignRecipe(method="grpo")
    check = dict(capacity.checks(dataclasses.replace(RECIPE, align=sampled)))["aligned_model"]
    check(read_size({**here, "memory_gb": 1.6 * whole, "shard": 4}, where=""))  # reference, reward model
    with pytest.raises(RecipeError, match="models beside it"):
        check(read_size({**here, "shard": 4}, where=""))
    assert not AlignRecipe(method="grpo", trl={"sync_ref_model": True}).can_be_spread
    assert dataclasses.replace(RECIPE.sft, peft={"r": 4}).can_be_spread
    assert not any(
        dataclasses.replace(RECIPE.sft, peft={"r": 4, **own}).can_be_spread
        for own in ({"use_dora": True}, {"init_lora_weights": "pissa"}, {"modules_to_save": ["lm_head"]})
    )
    for asset in ("sft_model", "reward_model", "aligned_model", "model_scores"):
        with pytest.raises(ProfileError, match=rf"{asset}: .* 2 .* shard=4"):
            check_fit(RECIPE, profile(f"stages: {{{asset}: {{processes: 2, shard: 4}}}}\n"))


def test_post_training_is_looked_at_with_the_models_beside_it(monkeypatch, profile):
    sizes = profile("stages: {aligned_model: {backend: slurm, memory_gb: 0.001}}\n")
    with pytest.raises(ProfileError, match=r"aligned_model: .* memory_gb has 0.00107 GB; train ad"):
        check_fit(RECIPE, sizes)
    shape = capacity.shape_of(RECIPE)
    room = 4 * 4 * shape.parameter_count / 2**30  # weights, gradients and two numbers a weight
    sizes = profile(f"stages: {{aligned_model: {{backend: slurm, memory_gb: {room}}}}}\n")
    check_fit(RECIPE, sizes)
    sampled = dataclasses.replace(RECIPE, align=AlignRecipe(method="grpo"))
    with pytest.raises(ProfileError, match="models beside it"):
        check_fit(sampled, sizes)
    check_fit(dataclasses.replace(RECIPE, align=AlignRecipe(method="grpo", peft={"r": 4})), sizes)


def test_a_batch_of_post_training_divides_over_the_processes(profile):
    with pytest.raises(ProfileError, match="sft_model: batch_size=16 "):
        check_fit(RECIPE, profile("stages: {sft_model: {processes: 3}}\n"))


def test_memory_that_is_not_known_here_is_not_guessed(monkeypatch, profile):
    with_memory(monkeypatch, 0.001)
    check_fit(RECIPE, profile("default: {backend: slurm}\n"))
    check_fit(RECIPE, profile("default: {gpus_per_node: 1}\n"))

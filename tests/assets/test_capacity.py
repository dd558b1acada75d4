"""What is refused of a recipe and a profile before anything starts, with the arithmetic."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from assets import capacity
from assets.capacity import check_fit
from assets.recipe_folders import load_recipe
from resources.compute.size import read_size
from resources.profile import ProfileError
from training.posttrain import answer_weights, forecast, planned
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.planned import adapters_of
from training.pretrain.doremi_settings import DoremiRecipe
from training.pretrain.memory import machine_memory
from training.pretrain.models import export
from training.records import RecipeError

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
    with pytest.raises(ProfileError, match=r"base_model: pretrain needs at least 1 x \(weights 28.* optimizer"):
        check_fit(large, "local")
    doremi = DoremiRecipe(tokens=RECIPE.pretrain.tokens, **LLAMA)
    with pytest.raises(ProfileError, match=r"reference_model: pretrain needs .* the machine has 2 GB; lower micro"):
        check_fit(dataclasses.replace(RECIPE, doremi=doremi), "local")
    longer = dataclasses.replace(RECIPE.long_context, tokens=2**22, sequence_length=2**21, global_batch_tokens=2**21)
    with pytest.raises(ProfileError, match="long_context_model: pretrain needs at least"):
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
    with pytest.raises(RecipeError, match=r"post-training needs .* one H100 has 80 GB; .*; shard=(\d+) fits") as error:
        check(read_size(gpus, cores=1, where=""))
    nearest = int(re.findall(r"shard=(\d+) fits", str(error.value))[0])
    check(read_size({**gpus, "shard": nearest}, cores=1, where=""))
    with pytest.raises(RecipeError, match="needs at least"):
        check(read_size({**gpus, "shard": nearest // 2}, cores=1, where=""))


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
        check(read_size({**gpus, "shard": 8}, cores=1, where=""))
    nodes, shard = map(int, re.search(r"on (\d+) nodes shard=(\d+) fits", str(error.value)).groups())
    check(read_size({**gpus, "nodes": nodes, "shard": shard}, cores=1, where=""))
    with pytest.raises(RecipeError, match="needs at least"):  # half of it does not fit
        check(read_size({**gpus, "nodes": nodes, "shard": shard // 2}, cores=1, where=""))


def test_the_steps_of_a_spread_post_training_must_fit_its_gpus():
    """They hold the whole head, and the weights of all layers in bf16 unless these are computed twice."""
    large = {**LLAMA, "width": 8192, "layers": 80, "heads": 64, "mlp_width": 28672}
    section = dataclasses.replace(RECIPE.sft, max_length=131_072, batch_size=32)
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **large), sft=section)
    gpus = {"backend": "slurm", "nodes": 4, "processes": 8, "gpus_per_node": 8, "gpu": "H100", "shard": 32}
    size = read_size(gpus, cores=1, where="")

    def check(trl, **changes):
        sft = dataclasses.replace(section, trl=trl, **changes)
        dict(capacity.checks(dataclasses.replace(recipe, sft=sft)))["sft_model"](size)

    with pytest.raises(RecipeError, match=r"a step needs .*all layers in bf16 .*one H100 has 80 GB; set trl: {act"):
        check({})
    # Rows may be much shorter than `max_length`, so it alone refuses nothing; in fp32 no copies are kept.
    check({"activation_checkpointing": True})
    check({}, precision="fp32")


def test_the_steps_of_a_spread_post_training_grow_with_what_a_pass_reads():
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **LLAMA))
    gpus = {"backend": "slurm", "processes": 8, "gpus_per_node": 8, "gpu": "H100", "shard": 8}
    size = read_size(gpus, cores=1, where="")
    sft = dataclasses.replace(RECIPE.sft, max_length=2048, batch_size=8)
    align = dataclasses.replace(RECIPE.align, max_length=2048, batch_size=8)
    of_rows, of_pairs = (capacity.steps_needed_for(recipe, one, size) for one in (sft, align))
    assert of_pairs["states of all layers"] == 2 * of_rows["states of all layers"]
    assert of_rows["weights of all layers in bf16"] > 2 * 32 * 4096 * 4096
    twice = dataclasses.replace(sft, trl={"activation_checkpointing": True})
    assert "weights of all layers in bf16" not in capacity.steps_needed_for(recipe, twice, size)
    unknown = (
        dataclasses.replace(sft, peft={"r": 4, "lora_bias": True}),
        dataclasses.replace(sft, peft={"r": 4, "target_modules": ["q_proj", "gate"]}),
        dataclasses.replace(sft, peft={"r": 4, "target_modules": ".*_proj"}),
        dataclasses.replace(sft, trl={"optim": "adafactor"}),
        dataclasses.replace(sft, peft={"r": 4, "use_dora": True, "lora_dropout": 0.1}),
        dataclasses.replace(sft, peft={"r": 4, "use_dora": True, "target_modules": ["q_proj"]}),
    )
    assert not any(capacity.steps_needed_for(recipe, one, size) for one in unknown)


def test_products_in_fp32_keep_no_copies_and_take_twice_as_much():
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **LLAMA))
    size = read_size({"backend": "slurm", "processes": 8, "gpus_per_node": 8, "shard": 8}, cores=1, where="")
    sft = dataclasses.replace(RECIPE.sft, max_length=8192, batch_size=64)
    in_bf16 = capacity.steps_needed_for(recipe, sft, size)
    in_fp32 = capacity.steps_needed_for(recipe, dataclasses.replace(sft, precision="fp32"), size)
    assert "weights of all layers in bf16" in in_bf16 and not any("bf16" in name for name in in_fp32)
    # 8 rows: 7 numbers as wide as the MLP and 9 as the model in bf16 or fp32, and 4 as wide as the model in fp32.
    wide, fp32 = 7 * 14336 + 9 * 4096, 4 * 4 * 4096
    assert in_bf16["states of a layer"] == 8 * 8192 * (2 * wide + fp32)
    assert in_fp32["states of a layer"] == 8 * 8192 * (4 * wide + fp32)


def test_a_whole_model_is_predicted_on_one_gpu_and_on_several_that_sum_its_gradients():
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **LLAMA))
    passes = {"backend": "slurm", "micro_batch_tokens": 1}
    one = read_size({**passes, "gpus_per_node": 1}, cores=1, where="")
    parameters = capacity._shape(recipe).parameter_count
    sft = dataclasses.replace(RECIPE.sft, trl={"activation_checkpointing": True})
    steps = capacity.steps_needed_for(recipe, sft, one)
    assert steps["weights"] == steps["gradients"] == 4 * parameters == steps["optimizer"] // 2
    assert "gathered weights" not in steps and steps["weights of all layers in bf16"] > 2 * 0.9 * parameters
    adapted = capacity.steps_needed_for(recipe, dataclasses.replace(sft, peft={"r": 16}), one)
    assert "weights of all layers in bf16" not in adapted  # autocast keeps no copies of frozen weights
    # DoRA has a magnitude for each output, and multiplies each adapter with an identity matrix, kept in bf16.
    magnitudes = dataclasses.replace(sft, peft={"r": 16, "use_dora": True})
    outputs = 32 * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096)
    assert adapters_of(capacity._shape(recipe), magnitudes) == 41_943_040 + outputs
    identities = 2 * (6 * 4096**2 + 14336**2) + 4 * 14336**2
    steps_of_dora = capacity.steps_needed_for(recipe, magnitudes, one)
    assert steps_of_dora["matrices of DoRA"] == identities + 2 * 14336 * 4096
    # DDP's messages are the gradients of a single pass; those of several are summed beside them.
    two = read_size({**passes, "gpus_per_node": 2, "processes": 2}, cores=1, where="")
    apart = capacity.steps_needed_for(recipe, sft, two)
    assert apart == steps | {"messages of gradients": 4 * parameters}
    at_once = capacity.steps_needed_for(recipe, sft, dataclasses.replace(two, micro_batch_tokens=None))
    assert at_once["gradients"] == 4 * parameters and "messages of gradients" not in at_once
    # AdamW that is not fused takes the roots of all second moments at once.
    plain = dataclasses.replace(sft, trl=sft.trl | {"optim": "adamw_torch"})
    updated = capacity.steps_needed_for(recipe, plain, one)
    assert updated["update of all weights"] == 4 * parameters and sum(updated.values()) == 20 * parameters
    shared = read_size({**passes, "gpus_per_node": 2, "processes": 2, "shard": 2}, cores=1, where="")
    assert capacity.steps_needed_for(recipe, plain, shared) == capacity.steps_needed_for(recipe, sft, shared)


def test_what_is_read_before_or_after_the_steps_counts_where_it_needs_more():
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **LLAMA))
    size = read_size({"backend": "slurm", "processes": 8, "gpus_per_node": 8, "shard": 8}, cores=1, where="")
    size = dataclasses.replace(size, micro_batch_tokens=1)
    twice = {"activation_checkpointing": True}
    short = {"max_length": 512, "batch_size": 8, "trl": twice, "peft": {"r": 16}}
    sections = {
        "loss after the steps": dataclasses.replace(RECIPE.sft, **short),
        "scores of pairs": dataclasses.replace(RECIPE.reward, **short),
        "start": dataclasses.replace(RECIPE.align, **short),
    }
    for moment, section in sections.items():
        name, needed = capacity.beside_steps_needed_for(recipe, section, size)
        assert name == moment and sum(needed.values()) > sum(capacity.steps_needed_for(recipe, section, size).values())
    long = dataclasses.replace(RECIPE.sft, **short | {"peft": {}, "max_length": 16384})
    name, needed = capacity.beside_steps_needed_for(recipe, long, size)
    steps = capacity.steps_needed_for(recipe, long, size)
    assert name == "loss after the steps" and sum(needed.values()) < sum(steps.values())
    sampled = dataclasses.replace(RECIPE.align, method="grpo", **short | {"peft": {}}, beta=0.1)
    name, needed = capacity.beside_steps_needed_for(recipe, sampled, size)
    assert name == "export" and needed["initial policy"] == needed["weights"] == needed["reward model"] > 0
    assert capacity.beside_steps_needed_for(recipe, dataclasses.replace(long, trl={"optim": "adafactor"}), size) is None
    alone = dataclasses.replace(size, shard=1, processes=1, gpus_per_node=1)
    assert capacity.beside_steps_needed_for(recipe, sampled, alone) is None  # how a whole model is written


def test_single_answers_are_all_read_in_one_pass():
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **LLAMA))
    size = read_size({"backend": "slurm", "processes": 8, "gpus_per_node": 8, "shard": 8}, cores=1, where="")
    kto = dataclasses.replace(RECIPE.align, method="kto", max_length=2048, batch_size=32)
    steps = capacity.steps_needed_for(recipe, kto, size)
    assert steps["states of all layers"] == 4 * 2048 * 4096 * 4 * 33  # 4 answers in fp32, between 32 layers
    recipe = dataclasses.replace(recipe, tokenizer=dataclasses.replace(RECIPE.tokenizer, vocabulary=128_256))
    short = dataclasses.replace(kto, max_length=64, trl={"activation_checkpointing": True})
    other = dataclasses.replace(short, trl=short.trl | {"loss_type": "apo_zero_unpaired"})
    # FSDP fetches the head once more after a pass without gradients, which decides where the rows are short.
    more, less = (sum(capacity.steps_needed_for(recipe, one, size).values()) for one in (short, other))
    assert more > less


def test_adapters_have_the_published_numbers_and_sgd_keeps_nothing():
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **LLAMA))
    size = read_size({"backend": "slurm", "processes": 8, "gpus_per_node": 8, "shard": 8}, cores=1, where="")
    sft = dataclasses.replace(RECIPE.sft, max_length=2048, batch_size=8, peft={"r": 8})

    def of(**changes):
        section = dataclasses.replace(sft, **changes)
        return adapters_of(capacity._shape(recipe), section), capacity.steps_needed_for(recipe, section, size)

    # peft says of Llama 3 8B: trainable params: 41,943,040 for rank 16 on all linear layers; 3,407,872 for rank 8 on
    # queries and values.
    assert of(peft={"r": 16})[0] == of(peft={"r": 16, "target_modules": "all-linear"})[0] == 41_943_040
    some = {"r": 8, "target_modules": ["q_proj", "v_proj"]}
    number, plain = of(peft=some)
    assert number == 3_407_872 == of(peft={"target_modules": ["q_proj", "v_proj"]})[0]
    assert plain["optimizer"] == 2 * plain["gradients"] == 8 * number
    # The inputs of queries and values, in fp32 and with a byte that says what is dropped.
    dropped = of(peft=some | {"lora_dropout": 0.1})[1]
    assert dropped["states of a layer"] - plain["states of a layer"] == 2048 * 2 * 4096 * 5
    by_sgd = of(peft={}, trl={"optim": "sgd"})[1]
    assert "optimizer" not in by_sgd and by_sgd["gradients"] == by_sgd["weights"]


def test_the_steps_of_every_spread_post_training_say_what_they_hold():
    """Adapters leave the model without gradients; a reward model has no head; sampling has models beside the policy."""
    model = dataclasses.replace(RECIPE.model, **LLAMA, tied_embeddings=False)
    recipe = dataclasses.replace(RECIPE, model=model)
    gpus = {
        "backend": "slurm",
        "processes": 8,
        "gpus_per_node": 8,
        "gpu": "H100",
        "shard": 8,
        "micro_batch_tokens": 512,
    }
    size = read_size(gpus, cores=1, where="")
    shape, twice = capacity._shape(recipe), {"activation_checkpointing": True}
    share, head = 4 * shape.parameter_count // 8, 4 * shape.vocab_size * shape.width

    def steps(section, **changes):
        return capacity.steps_needed_for(recipe, dataclasses.replace(section, trl=twice, **changes), size)

    adapted, reward = steps(RECIPE.sft, peft={"r": 16}), steps(RECIPE.reward)
    inner = 16 * (8 * 4096 + 2 * (4096 + 1024) + 3 * (4096 + 14336) - 4 * 4096) * 32
    assert adapted["weights"] == share and adapted["adapters"] == adapted["gradients"] == 4 * inner
    assert adapted["optimizer"] == 2 * adapted["gradients"] and steps(RECIPE.sft)["gradients"] == share
    assert reward["weights"] == (8 * share - head) // 8 and "head and loss" not in reward
    sampled = dataclasses.replace(RECIPE.align, method="grpo", batch_size=64, num_generations=4)
    whole, alone = steps(sampled), steps(sampled, beta=0.0, verifiable_reward_weight=1.0, rewards={})
    assert whole["initial policy"] == share and whole["reward model"] == reward["weights"]
    assert "initial policy" not in alone
    assert "initial policy" not in steps(sampled, peft={"r": 16})  # it is the model without its adapters
    only_rule = dataclasses.replace(sampled, rewards={"length": 1.0})
    assert "reward model" not in steps(only_rule)
    tuned = {name: beside for name, _, _, beside in capacity.tuned(dataclasses.replace(recipe, align=only_rule))}
    assert tuned["aligned_model"] == shape.parameter_count  # the initial policy
    # All answers of a step are drawn at once, whatever a pass of the training reads.
    long = {"max_length": 8192, "max_new_tokens": 4096}
    drawn = capacity.steps_needed_for(recipe, dataclasses.replace(sampled, trl=twice, **long, batch_size=512), size)
    assert drawn["keys and values"] == 64 * 8192 * 32 * 2 * 1024 * 4


def test_weights_stay_gathered_while_answers_are_drawn_where_the_gpu_has_room_or_the_profile_says_so(tmp_path):
    """The job decides as the plan says, by the shape in the model's folder and the memory that the driver tells."""
    twice = {"activation_checkpointing": True}
    sampled = dataclasses.replace(RECIPE.align, method="grpo", batch_size=64, num_generations=4, trl=twice)
    recipe = dataclasses.replace(
        RECIPE, model=dataclasses.replace(RECIPE.model, **LLAMA, tied_embeddings=False), align=sampled
    )
    gpus = {"backend": "slurm", "processes": 8, "gpus_per_node": 8, "gpu": "H100", "shard": 8}
    size, shape = read_size(gpus, cores=1, where=""), capacity._shape(recipe)
    gathers, why = capacity.answer_weights_of(recipe, sampled, size)
    words = shape.vocab_size * shape.width
    needed = forecast.memory_of_gathered_sampling(planned.planned_sampling(shape, sampled, size, shard=8))
    assert (
        needed["all gathered weights"] == 2 * (shape.parameter_count - words) + 4 * words
    )  # all but the embedding in bf16
    assert gathers and re.fullmatch(
        r"gathered, because .* take [\d.]+ GB, and 64.0 GB are allowed \(80% of the GPU\)", why
    )
    assert sum(needed.values()) <= 0.8 * 80e9
    folder = export.hugging_face_config(shape, eos_id=0, pad_id=1)
    (tmp_path / "config.json").write_text(json.dumps(folder))
    room = {"room": 80 * 10**9}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_weights, "_room", lambda: room["room"])
        assert answer_weights.while_sampling(tmp_path, sampled, size, shard=8) == (gathers, why)
        for asset, models in (("model_scores", 1), ("alignment_rewards", 3)):
            rows = recipe.evaluation.batch_size
            told = answer_weights.while_answering(tmp_path, "auto", shard=8, rows=rows, models=models)
            assert told == capacity.scoring_weights_of(recipe, asset, size)
        room["room"] = sum(needed.values())  # the whole of it is more than its share
        assert answer_weights.while_sampling(tmp_path, sampled, size, shard=8)[0] is False
        (tmp_path / "config.json").write_text('{"model_type": "unknown"}')
        assert "not predicted" in answer_weights.while_sampling(tmp_path, sampled, size, shard=8)[1]
    gathered, sharded = (
        capacity.steps_needed_for(recipe, sampled, dataclasses.replace(size, answer_weights=one))
        for one in ("gathered", "sharded")
    )
    assert capacity.steps_needed_for(recipe, sampled, size) == max(gathered, sharded, key=lambda one: sum(one.values()))
    seventy = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, **WIDER, tied_embeddings=False))
    assert capacity.answer_weights_of(seventy, sampled, size)[0] is False
    forced = dataclasses.replace(size, nodes=4, shard=32, answer_weights="gathered")
    assert capacity.answer_weights_of(seventy, sampled, forced) == (True, "gathered, by the profile")
    checks = dict(capacity.checks(seventy))
    checks["aligned_model"](dataclasses.replace(forced, answer_weights="auto"))
    with pytest.raises(RecipeError, match=r"a step needs .*gathered weights 1\d\d.*answer_weights=sharded fits"):
        checks["aligned_model"](forced)
    without = dataclasses.replace(size, gpu=None)
    assert capacity.answer_weights_of(recipe, sampled, without) == (
        False,
        "sharded, because the memory of a GPU is not known",
    )
    assert capacity.answer_weights_of(recipe, sampled, dataclasses.replace(size, shard=1)) == (False, "")
    for asset in ("aligned_model", "model_scores"):
        with pytest.raises(RecipeError, match="answer_weights=gathered with a whole model in each process"):
            dict(capacity.checks(recipe))[asset](dataclasses.replace(size, shard=1, answer_weights="gathered"))


def test_a_model_that_cannot_be_scored_in_its_place_is_refused_with_the_nearest_layout():
    recipe = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, **WIDER, tied_embeddings=False))
    checks = dict(capacity.checks(recipe))
    gpus = {"backend": "slurm", "processes": 8, "gpus_per_node": 8, "gpu": "H100"}
    for asset in ("model_scores", "alignment_rewards"):
        with pytest.raises(
            RecipeError, match=r"scoring needs at least 1 x \(weights (274|548) .*shard=(\d+) fits"
        ) as error:
            checks[asset](read_size(gpus, cores=1, where=""))
        nearest = int(re.findall(r"shard=(\d+) fits", str(error.value))[0])
        assert 1 < nearest <= 16
        nodes = max(1, nearest // 8)
        checks[asset](read_size({**gpus, "nodes": nodes, "shard": nearest}, cores=1, where=""))
    shared = read_size({**gpus, "shard": 8}, cores=1, where="")
    one, judging = (
        capacity.scoring_needed_for(recipe, asset, shared, is_certain=True)
        for asset in ("model_scores", "alignment_rewards")
    )
    assert judging["weights"] == 2 * one["weights"] and judging["reward model"] < one["weights"]
    assert capacity.scoring_needed_for(recipe, "model_scores", read_size({}, cores=1, where="")) is None


def test_a_warmup_and_a_decay_that_overlap_are_refused():
    wrong = {"schedule": "wsd", "warmup_fraction": 0.3, "decay_fraction": 0.8}
    with pytest.raises(RecipeError, match=r"0.3 \+ decay_fraction=0.8 = 1.1 .* such as decay_fraction=0.7"):
        dataclasses.replace(RECIPE.pretrain, **wrong)
    dataclasses.replace(RECIPE.pretrain, **wrong | {"decay_fraction": 0.7})
    dataclasses.replace(RECIPE.pretrain, **wrong | {"schedule": "cosine"})  # it has no decay of its own


def test_a_spread_model_needs_its_share_in_each_process(profile):
    tunings = [dict(capacity.checks(RECIPE))[name] for name in ("sft_model", "aligned_model")]
    whole = 4 * 4 * capacity._shape(RECIPE).parameter_count / 2**30  # weights, gradients and two numbers a weight
    here = {"backend": "slurm", "memory_gb": 1.1 * whole, "processes": 4}
    for check in tunings:
        check(read_size({**here, "shard": 4}, cores=1, where=""))
        with pytest.raises(RecipeError, match=r"post-training needs at least 4 x"):
            check(read_size(here, cores=1, where=""))
    sampled = AlignRecipe(method="grpo")
    check = dict(capacity.checks(dataclasses.replace(RECIPE, align=sampled)))["aligned_model"]
    check(read_size({**here, "memory_gb": 1.6 * whole, "shard": 4}, cores=1, where=""))  # reference, reward model
    with pytest.raises(RecipeError, match="models beside it"):
        check(read_size({**here, "shard": 4}, cores=1, where=""))
    assert not AlignRecipe(method="grpo", trl={"sync_ref_model": True}).can_be_spread
    assert dataclasses.replace(RECIPE.sft, peft={"r": 4}).can_be_spread
    assert not any(
        dataclasses.replace(RECIPE.sft, peft={"r": 4, **own}).can_be_spread
        for own in ({"use_dora": True}, {"init_lora_weights": "pissa"}, {"modules_to_save": ["lm_head"]})
    )
    for asset in ("sft_model", "reward_model", "aligned_model", "model_scores"):
        with pytest.raises(ProfileError, match=rf"{asset}: processes \* nodes = 2 is not a multiple of shard=4"):
            check_fit(RECIPE, profile(f"stages: {{{asset}: {{processes: 2, shard: 4}}}}\n"))


def test_post_training_is_looked_at_with_the_models_beside_it(monkeypatch, profile):
    sizes = profile("stages: {aligned_model: {backend: slurm, memory_gb: 0.001}}\n")
    with pytest.raises(ProfileError, match=r"aligned_model: post-training needs .* memory_gb has 0.00107 GB; train ad"):
        check_fit(RECIPE, sizes)
    shape = capacity._shape(RECIPE)
    room = 4 * 4 * shape.parameter_count / 2**30  # weights, gradients and two numbers a weight
    sizes = profile(f"stages: {{aligned_model: {{backend: slurm, memory_gb: {room}}}}}\n")
    check_fit(RECIPE, sizes)
    sampled = dataclasses.replace(RECIPE, align=AlignRecipe(method="grpo"))
    with pytest.raises(ProfileError, match="models beside it"):
        check_fit(sampled, sizes)
    check_fit(dataclasses.replace(RECIPE, align=AlignRecipe(method="grpo", peft={"r": 4})), sizes)


def test_a_batch_of_post_training_divides_over_the_processes(profile):
    with pytest.raises(ProfileError, match="sft_model: batch_size=16 is not a multiple of processes"):
        check_fit(RECIPE, profile("stages: {sft_model: {processes: 3}}\n"))


def test_memory_that_is_not_known_here_is_not_guessed(monkeypatch, profile):
    with_memory(monkeypatch, 0.001)
    check_fit(RECIPE, profile("default: {backend: slurm}\n"))
    check_fit(RECIPE, profile("default: {gpus_per_node: 1}\n"))

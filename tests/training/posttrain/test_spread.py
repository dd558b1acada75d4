"""Post-training of a model that is spread over processes: the same model, resumed, and never whole in one of them.

`make test` runs test_two_steps.py in its place.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import warnings
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import parallel
from tests.peak import peak
from tests.training.posttrain import tiny
from tests.training.posttrain.conftest import SFT
from training.contract.records import RecipeError
from training.generate.passes.pass_rows import PASS_TOKENS

pytestmark = pytest.mark.timeout(1200)  # the tasks of the first test take minutes on a loaded machine

# The last batch of each has 5 of 8 rows.
SETTINGS = {**SFT, "epochs": 3.9}
PAIRS = {"batch_size": 8, "learning_rate": 3e-3, "max_length": 96, "precision": "fp32", "epochs": 21 / 40}
DPO = {**PAIRS, "method": "dpo"}
RL = {"batch_size": 8, "num_generations": 4, "max_new_tokens": 8, "max_steps": 3, "learning_rate": 1e-3}
GRPO = {**PAIRS, **RL, "method": "grpo", "epochs": 1.0, "verifiable_reward_weight": 0.3}
RLOO = {**GRPO, "method": "rloo"}
KTO = {**DPO, "method": "kto", "epochs": 21 / 80}  # of both answers of each pair
STEPS = {"sft": 16, "reward": 3, "align": 3}
# Relative difference of losses, and of weights after all steps. GRPO in one process differs by 2.5e-5 from itself with
# smaller passes: a first update divides by its own size, and so does its rounding.
LIMIT = {"sft": 1e-4, "reward": 1e-5, "align": 5e-5}
ROWS = [list(range(10, 10 + length)) for length in (60, 3, 40, 5, 50)]
WIDE = {"width": 384, "layers": 12}
PRELOADED = (
    *("trl.trainer.sft_trainer", "training.posttrain.sft.sft"),
    *("training.posttrain.align.paired", "training.posttrain.align.sampling.sampled"),
)
READS = {
    "sft": ("base_model", "instruction_data"),
    **dict.fromkeys(("reward", "align"), ("sft_model", "preference_data")),
}
ADAPTERS = {"peft": {"r": 4}}
ALONE = {
    "sft": ("sft", SETTINGS),
    "dpo": ("align", DPO),
    "kto": ("align", KTO),
    "grpo": ("align", GRPO),
    "rloo": ("align", RLOO),
    "reward": ("reward", PAIRS),
    "sft-adapters": ("sft", {**SETTINGS, **ADAPTERS}),
    "dpo-adapters": ("align", {**DPO, **ADAPTERS}),
    "grpo-adapters": ("align", {**GRPO, **ADAPTERS}),
    "reward-adapters": ("reward", {**PAIRS, **ADAPTERS}),
}


def as_one_of(rank, size):
    if size > 1:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": 29500}
        os.environ |= {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}


def tuned(root, name, stage, settings, rank, size, *, shard, dies_at=0, model="", **run):
    """Run a stage in this process as one of `size`. All die after the step `dies_at` if there is one."""
    from accelerate.state import AcceleratorState

    from training.posttrain.trainer import fit

    AcceleratorState._reset_state(reset_partial_state=True)  # else it keeps the number of processes of earlier tasks
    as_one_of(rank, size)
    begun_with, *others = (*READS[stage], *(["reward_model"] if "num_generations" in settings else []))
    inputs = (
        dataclasses.replace(tiny.made(root, model or begun_with), asset=begun_with),
        *(tiny.made(root, asset) for asset in others),
    )
    original = fit.Reporter.on_step_end

    def die(self, args, state, control, **more):
        if state.global_step == dies_at:
            raise KeyboardInterrupt
        return original(self, args, state, control, **more)

    fit.Reporter.on_step_end = die
    with warnings.catch_warnings(), contextlib.suppress(KeyboardInterrupt):
        warnings.simplefilter("ignore")
        job = tiny.job(stage, root / name, {stage: settings}, inputs, processes=size, shard=shard, **run)
        tiny.run_job(job, tiny.STAGES)
    fit.Reporter.on_step_end = original


def held(root, name, stage, settings, rank, size, *, shard, model="wide"):
    """The most bytes that this process takes to train a wide model in a step or two, from its files to its export."""
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # larger blocks go back to the system as soon as they are freed
    tuned(root, f"small-{name}", stage, settings, rank, size, shard=shard)  # what is imported on the way
    with peak() as most:
        tuned(root, name, stage, settings, rank, size, shard=shard, model=model)
    return most[0]


def judged_apart(root, rank, size):
    """The scores of different rows in each process, by a reward model that they share; the first has more passes."""
    from training.generate.passes import pass_rows
    from training.posttrain.reward.reward import Judge, token_scores

    as_one_of(rank, size)
    pass_rows.PASS_TOKENS = 64
    judge = Judge(root / "reward_model" / "model", shard=size)
    found = token_scores(judge.model, ROWS if rank == 0 else ROWS[:1], judge.chat)
    told = [None] * size
    torch.distributed.all_gather_object(told, found)
    pass_rows.PASS_TOKENS = PASS_TOKENS
    return told


def refused(root, rank, size):
    from training.generate.model_folder import open_model

    as_one_of(rank, size)
    with pytest.raises(RecipeError) as error:
        open_model(root / "base_model" / "model", dtype=torch.float32, shard=3)
    return str(error.value)


@pytest.fixture(scope="module")
def done(chain, tmp_path_factory):
    """A root with the models that all tasks of several processes made."""
    root = tmp_path_factory.mktemp("spread")
    for name in ("base_model", "instruction_data", "sft_model", "preference_data", "reward_model"):
        (root / name).symlink_to(chain / name)
    tiny.write_model(root / "wide" / "model", **WIDE)
    tiny.commit(root, "wide")

    def of(name, processes, shard, **more):
        return processes, partial(tuned, root, name, *ALONE[name.partition(" ")[0]], shard=shard, **more)

    short, brief = {**SETTINGS, "epochs": 0.5}, {**DPO, "epochs": 8 / 40}
    sampled = {**GRPO, "max_steps": 1, "verifiable_reward_weight": 0.0, "rewards": {"length": 1.0}}
    dies = {"dies_at": 2, "checkpoint_seconds": 1e-6}
    passes = {"micro_batch_tokens": SFT["max_length"]}
    tasks = {
        "sft saved": of("sft resumed", 4, 4, **dies | {"dies_at": 7}),
        "dpo saved": of("dpo resumed", 4, 4, **dies),
        "grpo saved": of("grpo resumed", 4, 4, **dies),
        "dpo-adapters saved": of("dpo-adapters resumed", 4, 4, **dies),
        "sft replicas": of("sft replicas", 4, 2),
        "sft-adapters replicas": of("sft-adapters replicas", 4, 2),
        "refused": (3, partial(refused, root)),
        "judged apart": (2, partial(judged_apart, root)),
        "sft spread": of("sft spread", 2, 2),
        "sft passes": of("sft passes", 2, 2, **passes),
        "sft resumed": of("sft resumed", 2, 2),
        "dpo resumed": of("dpo resumed", 2, 2),
        "dpo copies": of("dpo copies", 2, 1, **passes),
        "dpo-adapters resumed": of("dpo-adapters resumed", 2, 2),
        "grpo resumed": of("grpo resumed", 2, 2),
        "grpo copies": of("grpo copies", 2, 1, **passes),
        "rloo spread": of("rloo spread", 2, 2),
        "grpo-adapters spread": of("grpo-adapters spread", 2, 2, **passes),
        "kto spread": of("kto spread", 2, 2),
        "reward spread": of("reward spread", 2, 2),
        "reward-adapters spread": of("reward-adapters spread", 2, 2),
        "held": (2, partial(held, root, "held", "sft", short, shard=2)),
        "held whole": (2, partial(held, root, "whole", "sft", short, shard=1)),
        "held grpo": (2, partial(held, root, "held grpo", "align", sampled, shard=2, model="held")),
        "held dpo": (2, partial(held, root, "held dpo", "align", brief, shard=2, model="held")),
    }
    (root / "stores").mkdir()
    said = parallel.in_processes(list(tasks.values()), root / "stores", preload=PRELOADED)
    for name, (stage, settings) in ALONE.items():
        tuned(root, name, stage, settings, 0, 1, shard=1)
    return root, dict(zip(tasks, said, strict=True))


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


SEVERAL = [
    *("sft spread", "sft passes", "sft resumed", "sft replicas", "dpo resumed", "dpo copies", "kto spread"),
    *("grpo resumed", "grpo copies", "rloo spread", "grpo-adapters spread"),
    *("reward spread", "sft-adapters replicas", "dpo-adapters resumed", "reward-adapters spread"),
]


@pytest.mark.parametrize("name", SEVERAL)
def test_a_model_is_trained_in_several_processes_like_in_one(done, name):
    root, _ = done
    compare_with_one(root, name, STEPS)


def compare_with_one(root, name, steps):
    """Assert that a training made what the one of the same name in one process made, in so many steps of its stage."""
    alone, other = root / name.partition(" ")[0], root / name
    stage, _ = ALONE[alone.name]
    assert losses(other).keys() == losses(alone).keys() == set(range(1, steps[stage] + 1))
    assert losses(other) == pytest.approx(losses(alone), rel=LIMIT[stage], abs=1e-7)
    for file in ("model/model.safetensors", "adapter/adapter_model.safetensors"):
        if file.startswith("model") or "adapters" in alone.name:
            before, after = (load_file(folder / file) for folder in (alone, other))
            assert list(before) == list(after)
            for weight, tensor in before.items():
                assert (after[weight] - tensor).norm() <= LIMIT[stage] * tensor.norm(), weight
    records = [json.loads((folder / "artifact.json").read_text()) for folder in (alone, other)]
    if stage != "sft":  # whose accuracy TRL takes as the mean of its passes, like GRPO's KL
        alike = [
            {key: value for key, value in record["metrics"].items() if not key.startswith("kl_")} for record in records
        ]
        assert len(alike[0]) > 2 and alike[1] == pytest.approx(alike[0], rel=1e-3, abs=1e-6)
    others = [
        {file["path"]: file["sha256"] for file in record["files"] if "model.safetensors" not in file["path"]}
        for record in records
    ]
    assert others[0] == others[1]


def test_processes_that_share_a_reward_model_may_score_different_numbers_of_rows(done):
    root, said = done
    compare_judges(root, said["judged apart"])


def compare_judges(root, told):
    """Assert that two processes scored their rows like one process with the whole reward model."""
    from training.posttrain.reward.reward import Judge, token_scores

    judge = Judge(root / "reward_model" / "model")
    alone = token_scores(judge.model, ROWS, judge.chat)
    assert told[0] == pytest.approx(alone, abs=1e-4)
    assert told[1] == pytest.approx(alone[:1], abs=1e-4)


def test_no_process_holds_the_whole_of_a_spread_model_in_training_or_export(done):
    root, said = done
    whole = 4 * sum(weight.nbytes for weight in load_file(root / "wide" / "model" / "model.safetensors").values())
    # Weights, gradients and two states of AdamW; DPO's reference needs no weights of its own.
    assert max(said["held"], said["held dpo"]) < 0.8 * whole < whole < said["held whole"]
    assert said["held whole"] < 1.2 * whole  # the messages of gradients are the gradients; copies made it 1.3
    assert said["held grpo"] < 0.8 * whole * 5 / 4  # with the initial policy


def test_tied_embeddings_that_do_not_divide_are_refused_with_the_numbers(done):
    assert "344 rows" in done[1]["refused"]

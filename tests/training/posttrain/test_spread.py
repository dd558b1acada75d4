"""Post-training of a model that is spread over processes: the same model, resumed, and never whole in one of them."""

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
from training.records import RecipeError

# The last batch has 5 of 8 rows.
SETTINGS = {**SFT, "epochs": 3.9}
STEPS = 16
DIED_AT = 7
LIMIT = 1e-4  # relative difference of losses, and of weights after all steps
WIDE = {"width": 384, "layers": 12}
PRELOADED = ("trl.trainer.sft_trainer", "training.posttrain.sft.sft")


def as_one_of(rank, size):
    if size > 1:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": 29500}
        os.environ |= {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}


def tuned(root, name, settings, rank, size, *, shard, dies_at=0, base="base_model", **run):
    """Run SFT in this process as one of `size`; with `dies_at`, all die at this step, after a checkpoint."""
    from accelerate.state import AcceleratorState

    from training.posttrain import fit

    AcceleratorState._reset_state(reset_partial_state=True)  # else it keeps the number of processes of earlier tasks
    as_one_of(rank, size)
    inputs = dataclasses.replace(tiny.made(root, base), asset="base_model"), tiny.made(root, "instruction_data")
    original = fit.Reporter.on_step_end

    def die(self, args, state, control, **more):
        if state.global_step == dies_at:
            raise KeyboardInterrupt
        return original(self, args, state, control, **more)

    fit.Reporter.on_step_end = die
    with warnings.catch_warnings(), contextlib.suppress(KeyboardInterrupt):
        warnings.simplefilter("ignore")
        job = tiny.job("sft", root / name, {"sft": settings}, inputs, processes=size, shard=shard, **run)
        tiny.run_job(job, tiny.STAGES)
    fit.Reporter.on_step_end = original


def held(root, name, rank, size, *, shard):
    """The most bytes that this process takes to fine-tune a wide model in two steps, from its files to its export."""
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # larger blocks go back to the system as soon as they are freed
    tuned(root, f"small-{name}", {**SETTINGS, "epochs": 0.25}, rank, size, shard=shard)  # what is imported on the way
    with peak() as most:
        tuned(root, name, {**SETTINGS, "epochs": 0.5}, rank, size, shard=shard, base="wide")
    return most[0]


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
    for name in ("base_model", "instruction_data"):
        (root / name).symlink_to(chain / name)
    tiny.write_model(root / "wide" / "model", **WIDE)
    tiny.commit(root, "wide")
    sft = partial(tuned, root)
    tasks = {
        "saved": (4, partial(sft, "resumed", SETTINGS, shard=4, dies_at=DIED_AT, checkpoint_seconds=1e-6)),
        "refused": (3, partial(refused, root)),
        "spread": (2, partial(sft, "spread", SETTINGS, shard=2)),
        "passes": (2, partial(sft, "passes", SETTINGS, shard=2, micro_batch_tokens=SFT["max_length"])),
        "resumed": (2, partial(sft, "resumed", SETTINGS, shard=2)),
        "held": (2, partial(held, root, "held", shard=2)),
        "held whole": (2, partial(held, root, "whole", shard=1)),
    }
    (root / "stores").mkdir()
    said = parallel.in_processes(list(tasks.values()), root / "stores", preload=PRELOADED)
    tuned(root, "alone", SETTINGS, 0, 1, shard=1)
    return root, dict(zip(tasks, said, strict=True))


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.mark.parametrize("name", ["spread", "passes", "resumed"])
def test_a_spread_model_is_trained_like_one_in_one_process(done, name):
    root, _ = done
    alone, other = root / "alone", root / name
    assert losses(other).keys() == losses(alone).keys() == set(range(1, STEPS + 1))
    assert losses(other) == pytest.approx(losses(alone), rel=LIMIT)
    before, after = (load_file(folder / "model" / "model.safetensors") for folder in (alone, other))
    assert list(before) == list(after)
    for name, weight in before.items():
        assert (after[name] - weight).norm() <= LIMIT * weight.norm(), name
    files = [json.loads((folder / "artifact.json").read_text())["files"] for folder in (alone, other)]
    others = [
        {file["path"]: file["sha256"] for file in some if "model.safetensors" not in file["path"]} for some in files
    ]
    assert others[0] == others[1]


def test_no_process_holds_the_whole_of_a_spread_model_in_training_or_export(done):
    root, said = done
    whole = 4 * sum(weight.nbytes for weight in load_file(root / "wide" / "model" / "model.safetensors").values())
    assert said["held"] < 0.8 * whole < whole < said["held whole"]  # weights, gradients and two states of AdamW


def test_tied_embeddings_that_do_not_divide_are_refused_with_the_numbers(done):
    assert "shard=3: the model's tied embeddings have 344 rows, which is no multiple" in done[1]["refused"]

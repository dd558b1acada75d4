"""A model in shares whose weights stay gathered while it draws answers: not a bit differs, and far less is sent.

`make test` runs test_two_steps.py in its place.
"""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from benchmarks import parallel
from tests.evaluation.conftest import make_model
from tests.messages import Messages
from tests.training.posttrain import tiny
from tests.training.posttrain.test_spread import ADAPTERS, GRPO, PAIRS, PRELOADED, RLOO, as_one_of, losses, tuned
from training.generate.sampler import Sampler, _greedy, continued
from training.generate.spread import gathered, in_step

pytestmark = pytest.mark.timeout(1200)

STEPS = 2  # the second one draws from trained weights
BRIEF = {**GRPO, "max_steps": STEPS}
SETTINGS = {
    "grpo": BRIEF,
    "grpo in bf16": {**BRIEF, "precision": "bf16"},
    "adapters in bf16": {**BRIEF, **ADAPTERS, "precision": "bf16"},
    "rloo": {**RLOO, "max_steps": STEPS},
    "grpo with replicas": {**BRIEF, "precision": "bf16"},
}
PROCESSES = {"grpo with replicas": 4}  # of which two share a model
GATHERS = "allgather_base"  # torch's name for the message by which FSDP gathers a group of weights
PROMPTS = [[10, 11, 12], [20] * 9, [30] * 4, [40, 41], [7, 8, 9]]


def trained(root, name, kind, rank, size):
    """Train on sampled answers in shares, in bf16 also on a processor that is slow in it; return what was sent."""
    from training.contract.process.precision import DTYPES
    from training.posttrain.trainer import fit

    fit.dtype_here, fit.replaced_here = lambda precision, _: DTYPES[precision], lambda *_: ""
    passes = {"micro_batch_tokens": PAIRS["max_length"]}
    with Messages() as sent:
        tuned(root, f"{name} {kind}", "align", SETTINGS[name], rank, size, shard=2, answer_weights=kind, **passes)
    return sent.found[GATHERS]


def answered(folder, rank, size):
    """Return the answers of a model in shares in both ways, and the logits of passes in bf16, with what was sent."""
    from training.generate.model_folder import open_model

    as_one_of(rank, size)
    answers, logits, sent = {}, {"sharded": [], "gathered": []}, {}
    for gathers in (False, True):
        sampler = Sampler(folder, batch_size=2, shard=size, gathers=gathers)
        settings = {"max_new_tokens": 9, "temperature": 1.0, "seeds": range(len(PROMPTS))}
        with Messages() as found:
            answers[gathers] = sampler.answer_tokens(PROMPTS, **settings)
        sent[gathers] = found.found[GATHERS]
        # A pass of another kind after it finds the shares as they were.
        answers[gathers, "again"] = sampler.answer_tokens(PROMPTS, **settings)
    model = open_model(folder, dtype=torch.float32, shard=size).eval()
    ways = {"sharded": in_step(model, torch.no_grad()), "gathered": gathered(model, torch.no_grad(), bf16=True)}
    for way, during in ways.items():
        with torch.no_grad(), during, torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            hook = model.register_forward_hook(lambda *call, way=way: logits[way].append(call[-1].logits.clone()))
            continued(model, PROMPTS[: rank + 1], 4 + rank, torch.tensor([400]), _greedy, fill=1)  # more in the second
            hook.remove()
    whole = [weight.full_tensor() for weight in model.parameters()]
    kept = [
        torch.equal(one, other) for one, other in zip(whole, open_model(folder, dtype="auto").parameters(), strict=True)
    ]
    alike = [torch.equal(one, other) for one, other in zip(logits["sharded"], logits["gathered"], strict=True)]
    return answers, sent, alike, kept, logits["gathered"][0].dtype


@pytest.fixture(scope="module")
def done(chain, tmp_path_factory):
    """A root with the models of all trainings, and what the tasks of two processes told."""
    root = tmp_path_factory.mktemp("gathered")
    for name in ("sft_model", "preference_data", "reward_model"):
        (root / name).symlink_to(chain / name)
    folder = make_model(root / "whole", template=False)
    tasks = {
        (name, kind): (PROCESSES.get(name, 2), partial(trained, root, name, kind))
        for name in SETTINGS
        for kind in ("sharded", "gathered")
    }
    tasks["grpo", "auto"] = 2, partial(trained, root, "grpo", "auto")
    tasks["answers", ""] = 2, partial(answered, folder)
    (root / "stores").mkdir()
    said = parallel.in_processes(list(tasks.values()), root / "stores", preload=PRELOADED)
    return root, dict(zip(tasks, said, strict=True))


def made(root, name, kind):
    folder = root / f"{name} {kind}"
    record = json.loads((folder / "artifact.json").read_text())
    files = {one["path"]: one["sha256"] for one in record["files"]}
    return record["notes"]["answer_weights"], (files, record["metrics"], losses(folder))


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_that_stay_gathered_while_answers_are_drawn_change_no_bit_of_a_training(done, name):
    root, sent = done
    why, gathered_model = made(root, name, "gathered")
    assert why == "gathered, by the profile"
    assert made(root, name, "sharded") == ("sharded, by the profile", gathered_model)
    assert len(gathered_model[2]) == STEPS
    fewer, gathered_bytes = sent[name, "gathered"]
    gathers, size = sent[name, "sharded"]
    assert fewer < gathers and gathered_bytes < size
    # Of 8 tokens for each step, each gathered all groups of weights.
    assert (gathers - fewer) % STEPS == 0


def test_without_a_gpu_weights_are_gathered_only_if_the_profile_says_so(done):
    root, sent = done
    assert made(root, "grpo", "auto")[0] == "sharded, because the memory of a GPU is not known"
    assert sent["grpo", "auto"] == sent["grpo", "sharded"]


def test_answers_of_a_model_in_shares_are_the_same_and_its_weights_are_sent_once(done, tmp_path):
    root, said = done
    answers, sent, alike, kept, dtype = said["answers", ""]
    alone = Sampler(root / "whole", batch_size=2)
    expected = alone.answer_tokens(PROMPTS, max_new_tokens=9, temperature=1.0, seeds=range(len(PROMPTS)))
    assert all(one == expected for one in answers.values()) and len(answers) == 4
    groups = 4  # the embedding, two layers, and the norm with the head
    assert sent[True][0] == groups and sent[False][0] >= groups * 9
    assert len(alike) == 4 and all(alike) and dtype is torch.bfloat16
    assert all(kept)


def test_a_model_that_each_process_has_whole_says_nothing(chain, tmp_path):
    for name in ("sft_model", "preference_data", "reward_model"):
        (tmp_path / name).symlink_to(chain / name)
    tuned(tmp_path, "alone", "align", {**GRPO, "max_steps": 1}, 0, 1, shard=1, answer_weights="gathered")
    assert "answer_weights" not in json.loads((tmp_path / "alone" / "artifact.json").read_text())["notes"]
    assert tiny.made(tmp_path, "alone")

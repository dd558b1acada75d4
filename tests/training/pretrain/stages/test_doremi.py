"""Weights by DoReMi: the update by hand, the excess token by token, and planted sources whose order is known."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.pretrain import tiny
from training.contract.job import InputArtifact, RefusedInput, StopRequested
from training.contract.records import RecipeError, write_record
from training.order import plan as plan_stage
from training.order.batches import index, sample_ids
from training.order.settings import MixtureRecipe
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.settings import PretrainRecipe
from training.pretrain.stages import doremi
from training.pretrain.stages import pretrain as stage
from training.pretrain.stages.doremi_settings import DoremiRecipe

STEPS = 100
STEP_SIZE = 0.5
PRETRAIN = PretrainRecipe(
    tokens=STEPS * 512, sequence_length=64, global_batch_tokens=512, learning_rate=1e-2, precision="fp32", seed=3
)


def noise(seed: object) -> str:
    """Letters that nobody can predict."""
    chosen = random.Random(str(seed))
    return "".join(chosen.choice("abcdefghijklmnop") for _ in range(60))


def test_the_update_is_the_papers_computed_by_hand():
    # α' = (1/2 · e^0.2, 1/2 · e^0); over their sum; then 0.9 of it and 0.1 / 2
    found = doremi.updated(np.array([0.5, 0.5]), np.array([0.1, 0.0]), step_size=2.0, smoothing=0.1)
    first = 0.9 * math.exp(0.2) / (math.exp(0.2) + 1) + 0.05
    assert found == pytest.approx([first, 1 - first], rel=1e-12)
    assert found == pytest.approx([0.5448506, 0.4551494], abs=1e-7)


def test_smoothing_keeps_every_source_in_and_large_excesses_stay_finite():
    weights = np.full(4, 0.25)
    for _ in range(50):
        weights = doremi.updated(weights, np.array([900.0, 0, 0, 0]), step_size=1.0, smoothing=0.01)
    assert weights == pytest.approx([0.9925, 0.0025, 0.0025, 0.0025])


def test_the_result_is_the_mean_of_the_weights_after_each_step():
    recipe = DoremiRecipe(step_size=1.0, smoothing=0.0)
    weights = doremi.SourceWeights(["a", "b"], recipe)
    seen = []
    for excess in ([1.0, 0.0], [0.0, 0.5]):
        weights.update(np.array(excess))
        seen.append(weights.present)
    # e^1 : 1, then e^1 : e^0.5
    assert seen[1][0] == pytest.approx(math.e / (math.e + math.exp(0.5)))
    assert weights.named(weights.mean) == pytest.approx({"a": (seen[0][0] + seen[1][0]) / 2, "b": 1 - weights.mean[0]})


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Three sources: sentences, the same kind of sentences, and noise."""
    texts = {
        "noise": [noise(number) for number in range(150)],
        "one": [tiny.sentence(("one", number)) for number in range(150)],
        "two": [tiny.sentence(("two", number)) for number in range(150)],
    }
    mixture = MixtureRecipe(weights=dict.fromkeys(texts, 1.0), held_out_fraction=0.1, max_epochs=100)
    made = tiny.TinyChain(tmp_path_factory.mktemp("chain"), texts=texts, mixture=mixture, pretrain=PRETRAIN)
    made.plan_artifact = dataclasses.replace(made.plan_artifact, asset="reference_plan")
    return made


@pytest.fixture(scope="module")
def reference(chain):
    job = chain.job("reference")
    outcome = stage.run(job, tiny.work_in(chain.root / "base_model" / "reference"))
    return tiny.commit(chain.root / "base_model" / "reference", "reference_model", list(outcome.files))


@pytest.fixture(scope="module")
def another_reference(chain, reference) -> InputArtifact:
    """The reference model with one weight changed."""
    made, folder = Path(reference.path), chain.root / "base_model" / "another"
    shutil.copytree(made, folder)
    path = folder / "model" / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] += 1
    save_file(weights, path, metadata={"format": "pt"})
    names = [entry["path"] for entry in json.loads((made / "artifact.json").read_text())["files"]]
    return tiny.commit(folder, "reference_model", names)


def job_of(chain, reference: InputArtifact, recipe: DoremiRecipe, **run):
    job = chain.job("weights", **run)
    return dataclasses.replace(
        job,
        stage="doremi",
        inputs=(*job.inputs, reference),
        settings={**job.settings, "doremi": write_record(recipe)},
    )


def weights_of(chain, reference, recipe: DoremiRecipe, name: str, **run):
    folder = chain.root / "mixture_weights" / name
    outcome = doremi.run(job_of(chain, reference, recipe, **run), tiny.work_in(folder))
    return folder, outcome


@pytest.fixture(scope="module")
def found(chain, reference):
    return weights_of(chain, reference, DoremiRecipe(tokens=1, step_size=STEP_SIZE, seed=7), "w")


def test_noise_gets_less_than_what_can_be_learnt_and_equal_sources_get_the_same(found):
    folder, _ = found
    weights = json.loads((folder / "weights.json").read_text())["weights"]
    assert sum(weights.values()) == pytest.approx(1.0)
    assert weights["noise"] < 0.5 * min(weights["one"], weights["two"])
    assert weights["one"] == pytest.approx(weights["two"], abs=0.15)


def test_the_weights_follow_again_from_the_steps_that_were_written(found):
    folder, outcome = found
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert len(rows) == STEPS == outcome.metrics["steps"]
    weights = np.full(3, 1 / 3)
    total = np.zeros(3)
    for row in rows:
        weights = doremi.updated(weights, np.array(list(row["excess"].values())), step_size=STEP_SIZE, smoothing=1e-3)
        assert weights.tolist() == list(row["weights"].values())
        total += weights
    written = json.loads((folder / "weights.json").read_text())["weights"]
    assert list(written.values()) == pytest.approx((total / STEPS).tolist())


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_proxy_that_ended_early_goes_on_and_ends_in_the_same_bytes(chain, reference, found, monkeypatch, how):
    recipe, learn, learned = DoremiRecipe(tokens=1, step_size=STEP_SIZE, seed=7), doremi.Proxy.learn, []

    def interrupted(proxy, batch, weights):
        learned.append(batch.step)
        if len(learned) == 60 and how == "killed":
            raise KeyboardInterrupt
        if len(learned) == 60:
            os.kill(os.getpid(), signal.SIGTERM)
        return learn(proxy, batch, weights)

    monkeypatch.setattr(doremi.Proxy, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt if how == "killed" else StopRequested):
        weights_of(chain, reference, recipe, how, checkpoint_seconds=1e-9 if how == "killed" else 1e9)
    folder, outcome = weights_of(chain, reference, recipe, how)
    assert 0 < learned[60] <= 60 and learned[60:] == list(range(learned[60], STEPS))
    assert (learned[60] == 60) == (how == "stopped")
    for name in outcome.files:
        assert (folder / name).read_bytes() == (found[0] / name).read_bytes()
    assert outcome.metrics == found[1].metrics


def test_a_checkpoint_beside_another_reference_is_refused(chain, reference, another_reference, monkeypatch):
    def killed(proxy, batch, weights):
        os.kill(os.getpid(), signal.SIGTERM)
        return 0.0

    recipe = DoremiRecipe(tokens=1, step_size=STEP_SIZE, seed=7)
    monkeypatch.setattr(doremi.Proxy, "learn", killed)
    with pytest.raises(StopRequested, match=f"checkpoint of step 1 of {STEPS} saved"):
        weights_of(chain, reference, recipe, "other")
    with pytest.raises(RefusedInput, match="settings than the job's: reference: "):
        weights_of(chain, another_reference, recipe, "other")


def test_the_plan_takes_the_weights(chain, found):
    folder, outcome = found
    weights = tiny.commit(folder, "mixture_weights", list(outcome.files))
    job = tiny.job_of(
        "plan",
        {"mixture": chain.mixture, "pretrain": PRETRAIN.batches},
        (chain.shards, chain.tokenizer, weights),
        chain.root / "training_plan" / "weighted",
    )
    made = plan_stage.run(job, tiny.work_in(chain.root / "training_plan" / "weighted"))
    asked = json.loads((folder / "weights.json").read_text())["weights"]
    assert {name: made.metrics[f"share_{name}"] for name in asked} == pytest.approx(asked, abs=0.005)
    assert made.gates[0].passed


def small_proxy(chain, *, rows_at_once: int = 0):
    """A proxy and a reference with random weights."""
    plan = doremi.alike(chain.plan, seed=7)
    torch.manual_seed(0)
    reference = Decoder(tiny.MODEL.shape(vocab_size=tiny.VOCABULARY))
    initialise(reference, zero_outputs=False, generator=torch.Generator().manual_seed(1))
    recipe = dataclasses.replace(PRETRAIN, zero_init_outputs=False)
    return doremi.Proxy(reference, recipe, plan, chain.open_shards(), rows_at_once=rows_at_once)


def test_excess_is_the_mean_over_a_sources_targets_of_what_is_above_zero(chain):
    proxy = small_proxy(chain)
    batch = proxy.batch(0)
    found = proxy.excess(batch)
    sums, counts = np.zeros(3), np.zeros(3)
    for row, source in enumerate(batch.sources):
        one = slice(row, row + 1)
        tokens, targets, documents = batch.rows(one)
        own, others = (proxy._losses(model, tokens, targets, documents)[0] for model in (proxy.model, proxy.reference))
        for mine, other, target in zip(own.tolist(), others.tolist(), targets[0].tolist(), strict=True):
            if target >= 0:
                sums[source] += max(mine - other, 0.0)
                counts[source] += 1
    assert found == pytest.approx(sums / counts, rel=1e-5)
    assert (found > 0).all()


def test_a_step_goes_down_the_weighted_mean_losses(chain):
    weights = np.array([0.7, 0.2, 0.1])
    gradients = []
    for rows_at_once in (0, 3):
        proxy = small_proxy(chain, rows_at_once=rows_at_once)
        batch = proxy.batch(0)
        expected = 0.0
        for row, source in enumerate(batch.sources):
            losses = proxy._losses(proxy.model, *batch.rows(slice(row, row + 1)))
            expected += weights[source] / batch.counts[source] * losses.sum().item()
        assert proxy.learn(batch, weights) == pytest.approx(expected, rel=1e-5)
        gradients.append(torch.cat([parameter.detach().flatten() for parameter in proxy.model.parameters()]))
    assert torch.allclose(*gradients, atol=1e-5)


def test_a_proxy_without_room_beside_its_reference_is_refused_with_the_sum(chain, reference, monkeypatch):
    monkeypatch.setattr(doremi, "memory_of", lambda device: (300_000, "the machine"))
    with pytest.raises(RecipeError, match=r"doremi .*\(weights .* reference .*\) GB"):
        weights_of(chain, reference, DoremiRecipe(tokens=1), "crowded")


def test_sources_are_read_alike_in_another_order_than_the_references(chain):
    plan = doremi.alike(chain.plan, seed=7)
    counts = np.bincount([source for step in range(plan.record.steps) for source, _ in sample_ids(plan, step)])
    assert counts.max() - counts.min() <= 1
    for step in range(plan.record.steps):
        assert {source for source, _ in sample_ids(plan, step)} == {0, 1, 2}
    assert index(plan, 0) != index(chain.plan, 0)


def test_batches_without_room_for_every_source_are_refused(chain):
    record = dataclasses.replace(chain.plan.record, global_batch_tokens=5 * 64)
    narrow = chain.plan.with_record(record)
    with pytest.raises(RecipeError, match=r"3 sources .* 5 rows"):
        doremi.alike(narrow, seed=0)


def test_a_source_without_training_documents_is_not_read(chain):
    sources = chain.plan.record.sources
    empty = dataclasses.replace(chain.plan.record, sources=(dataclasses.replace(sources[0], tokens=0), *sources[1:]))
    plan = doremi.alike(chain.plan.with_record(empty), seed=0)
    assert [source.samples for source in plan.record.sources] == [0, STEPS * 4, STEPS * 4]
    assert {source for source, _ in sample_ids(plan, 0)} == {1, 2}

"""Spikes, steps that are not finite, and what a run leaves out because of them."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.training.pretrain import tiny
from training.contract.job import RefusedInput
from training.contract.records import RecipeError
from training.order import batches
from training.order.ledger import Ledger, LedgerEntry, read_ledger, write_ledger
from training.order.sidecars import Sidecars
from training.pretrain import checkpoint
from training.pretrain.diagnostics import BATCH_FILE, BUNDLE_FILE
from training.pretrain.parallel.world import World
from training.pretrain.run import RunHooks, train
from training.pretrain.spikes import SpikeRecipe, Watched, deviation
from training.pretrain.stages import pretrain as stage
from training.pretrain.state import Diverged
from training.pretrain.step import Trainer

ALONE = World(rank=0, size=1, device=torch.device("cpu"))
SPIKES = SpikeRecipe(deviations=6.0, window=12, patience=2, rollback_steps=10, skipped_after=0, max_rollbacks=3)
POISONED = range(30, 34)  # steps whose tokens are noise


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    recipe = dataclasses.replace(tiny.PRETRAIN, tokens=48 * 256, learning_rate=3e-3, spikes=SPIKES)
    mixture = tiny.MixtureRecipe(weights={"books": 1.0, "web": 1.0}, max_epochs=10, held_out_fraction=0.1)
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"), pretrain=recipe, mixture=mixture)


class Stopped(Exception):
    """Stands for a kill between two steps."""


class Poisoned(Trainer):
    """A trainer whose rows are noise at some steps; it stops without a word after a number of them."""

    poison: range = POISONED
    steps_left: int = 10**9

    def batch(self, samples, *, step, numbers):
        made = super().batch(samples, step=step, numbers=numbers)
        if step not in self.poison:
            return made
        draws = np.random.Generator(np.random.Philox(key=[step, numbers[0]]))
        noise = draws.integers(2, tiny.VOCABULARY, size=made.tokens.shape)
        return made._replace(tokens=noise, targets=np.roll(noise, 7, axis=1))

    def run_step(self, told):
        if self.steps_left == 0:
            raise Stopped
        self.steps_left -= 1
        return super().run_step(told)


def trainer_of(chain, folder=None, *, kind=Trainer, **changes):
    """A trainer that keeps its checkpoints in `folder`, or keeps none."""
    recipe = dataclasses.replace(chain.pretrain, **changes)
    model = tiny.built(stage.model_shape(tiny.MODEL, Path(chain.tokenizer.path)), recipe)
    trainer = kind(model, recipe, chain.plan, chain.open_shards(), ALONE, micro_batch_tokens=128)
    if folder is not None:
        trainer.state.resume(checkpoint.Store(folder / "checkpoints", ALONE))
    return trainer


def watch_in(chain, folder, **settings):
    folder.mkdir(exist_ok=True)
    sidecars = Sidecars(chain.plan, {chain.shards.fingerprint: chain.shards})
    return RunHooks(
        progress=tiny.progress_in(folder),
        checkpoint_seconds=0.0,
        bundle=folder / "stopped",
        describe=sidecars.describe,
        **settings,
    )


def run(chain, folder, **settings):
    trainer = trainer_of(chain, folder, **settings)
    train(trainer, watch_in(chain, folder))
    return trainer


def assert_same_bits(one, other):
    one, other = (checkpoint.pack(trainer.model, trainer.optimizers) for trainer in (one, other))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


# The detector


def noisy(count, seed=0):
    """Losses that fall and norms that scatter, with a tail."""
    chance = random.Random(seed)
    return [(4 + 3 * 0.99**n + chance.gauss(0, 0.05), chance.lognormvariate(0, 0.2)) for n in range(count)]


def seen(steps, recipe=SPIKES):
    watched = Watched()
    found = [
        watched.see(n, loss=loss, norm=norm, recipe=recipe, last_step=10**6) for n, (loss, norm) in enumerate(steps)
    ]
    return [entry for entry in found if entry is not None]


def test_noise_is_no_spike():
    assert seen(noisy(5000), dataclasses.replace(SPIKES, window=64)) == []


@pytest.mark.parametrize(("loss", "norm"), [(8.0, 1.0), (4.0, 100.0)])
def test_a_spike_of_the_loss_or_of_the_gradient_is_found_at_its_second_step(loss, norm):
    steps = noisy(300)
    steps[200:] = [(loss, norm)] * 100
    (first, *_) = seen(steps)
    assert (first.onset, first.first, first.last) == (200, 190, 201)
    assert max(first.loss_deviation, first.norm_deviation) > 6


def test_one_odd_step_is_no_spike_and_is_not_taken_for_normal():
    steps = noisy(300)
    steps[200] = (9.0, 50.0)
    watched = Watched()
    assert not any(
        watched.see(n, loss=x, norm=y, recipe=SPIKES, last_step=10**6) for n, (x, y) in enumerate(steps[:202])
    )
    assert watched.onset is None and 9.0 not in watched.losses


def test_nothing_is_looked_at_unless_the_recipe_says_so():
    steps = noisy(50) + [(99.0, 1e6)] * 10
    assert seen(steps, SpikeRecipe()) == []


def test_deviations_are_counted_in_the_spread_that_a_normal_law_would_have():
    history = [random.Random(5).gauss(10, 2) for _ in range(1)] + [
        10 + 2 * value for value in np.random.Generator(np.random.Philox(key=3)).standard_normal(20_000)
    ]
    assert deviation(16.0, history) == pytest.approx(3.0, rel=0.03)
    assert deviation(1.02, [1.0] * 20) == pytest.approx(2.0)  # the least spread counts


@pytest.mark.parametrize(
    "wrong",
    [
        {"deviations": -1},
        {"window": 2},
        {"patience": 0},
        {"rollback_steps": 0},
        {"skipped_after": -1},
        {"max_rollbacks": -1},
    ],
)
def test_a_detector_that_cannot_work_is_refused(wrong):
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        SpikeRecipe(**wrong)


# Going back


@pytest.fixture(scope="module")
def poisoned(chain, tmp_path_factory):
    folder = tmp_path_factory.mktemp("poisoned")
    return folder, run(chain, folder, kind=Poisoned)


def test_a_run_that_went_back_never_trained_on_what_its_ledger_holds(chain, poisoned):
    folder, trainer = poisoned
    assert trainer.state.ledger.rollbacks == len(trainer.state.ledger.entries) >= 1
    assert set(POISONED) <= set(trainer.state.ledger.steps) < set(range(20, 36))
    assert read_ledger(folder / "checkpoints") == trainer.state.ledger
    # The same ledger from the start, and not a poisoned row in sight.
    clean = trainer_of(chain)
    clean.state.ledger = trainer.state.ledger
    while clean.state.position.step < 48:
        clean.run_step()
    assert_same_bits(trainer, clean)
    assert trainer.state.position.last_losses == clean.state.position.last_losses


def test_a_run_without_a_detector_trains_on_the_spike(chain, tmp_path):
    trainer = run(chain, tmp_path, kind=Poisoned, spikes=SpikeRecipe())
    assert trainer.state.ledger == Ledger()
    assert [report.step for report in trainer.state.recent if report.loss > 5] == list(POISONED)


@pytest.mark.parametrize("lives", [(22, 3, 9, 4), (31, 1, 1, 1, 12), (33,)])
def test_a_run_that_was_stopped_around_a_rollback_ends_with_the_same_bits(chain, poisoned, tmp_path, lives):
    for steps_left in lives:
        trainer = trainer_of(chain, tmp_path, kind=Poisoned)
        trainer.steps_left = steps_left
        with pytest.raises(Stopped):
            train(trainer, watch_in(chain, tmp_path))
    last = run(chain, tmp_path, kind=Poisoned)
    assert last.state.ledger == poisoned[1].state.ledger
    assert_same_bits(last, poisoned[1])
    assert last.state.position.last_losses == poisoned[1].state.position.last_losses


def test_one_spike_too_many_stops_the_run_and_leaves_a_bundle(chain, tmp_path):
    spikes = dataclasses.replace(SPIKES, max_rollbacks=0)
    with pytest.raises(Diverged, match=r"steps 30 to 31: .* 0 rollbacks.*stopped"):
        run(chain, tmp_path, kind=Poisoned, spikes=spikes)
    assert json.loads((tmp_path / "stopped" / BUNDLE_FILE).read_text())["step"] == 31


def test_a_run_may_go_back_to_its_start(chain, tmp_path):
    spikes = dataclasses.replace(SPIKES, rollback_steps=40)
    trainer = run(chain, tmp_path, kind=Poisoned, spikes=spikes)
    assert trainer.state.ledger.entries[0].first == 0
    assert trainer.state.position.first_loss > 5  # of step 32 or later, by the weights of step 0


def test_what_follows_a_spike_is_left_out_too_up_to_the_end_of_the_run(chain, tmp_path):
    trainer = trainer_of(chain, tmp_path, kind=Poisoned, spikes=dataclasses.replace(SPIKES, skipped_after=15))
    trainer.poison = range(30, 45)
    train(trainer, watch_in(chain, tmp_path))
    assert [(entry.onset, entry.first, entry.last) for entry in trainer.state.ledger.entries] == [(30, 20, 46)]
    assert trainer.state.position.step == 48 and trainer.state.recent[-1].step == 47
    trainer = trainer_of(chain, tmp_path / "end", kind=Poisoned, spikes=dataclasses.replace(SPIKES, skipped_after=15))
    trainer.poison = range(40, 48)
    train(trainer, watch_in(chain, tmp_path / "end"))
    assert [(entry.first, entry.last) for entry in trainer.state.ledger.entries] == [(30, 47)]
    # Whichever checkpoint it went back to, nothing from step 30 on was trained on after the spike was seen.
    state = trainer.state
    assert state.position.step == 48 and state.recent[-1].step in (29, state.ledger.entries[0].seen_at)


# Not finite


def broken_at(trainer, steps, *, times):
    """Make the passes of `steps` give nan, the first `times` times each."""
    healthy, left = trainer._backward, dict.fromkeys(steps, times * len(trainer.passes[0]))

    def backward(batch, *, scale):
        step = trainer.state.position.step
        if left.get(step, 0):
            left[step] -= 1
            scale = float("nan")
        return healthy(batch, scale=scale)

    trainer._backward = backward


def test_a_step_that_is_finite_when_made_once_more_changes_nothing(chain):
    healthy, faulty = trainer_of(chain), trainer_of(chain)
    broken_at(faulty, [3, 5], times=1)
    reports = [[trainer.run_step() for _ in range(8)] for trainer in (healthy, faulty)]
    assert [one.loss for one in reports[0]] == [one.loss for one in reports[1]]
    assert_same_bits(healthy, faulty)
    assert faulty.state.position.rerun_steps == [3, 5] and faulty.state.ledger == Ledger()


def test_a_skipped_step_is_entered_and_the_weights_are_those_of_a_run_without_it(chain):
    faulty, other = trainer_of(chain), trainer_of(chain)
    broken_at(faulty, [3, 5, 6], times=2)
    for _ in range(10):
        faulty.run_step()
    ledger = faulty.state.ledger
    assert ledger.steps == [3, 5, 6] and {one.reason for one in ledger.entries} == {"not_finite"}
    other.state.ledger = faulty.state.ledger
    for _ in range(7):
        other.run_step()
    assert other.state.position.step == faulty.state.position.step == 10
    assert_same_bits(faulty, other)


def test_too_many_steps_that_are_not_finite_leave_a_bundle_that_a_person_can_read(chain, tmp_path):
    trainer = trainer_of(chain, tmp_path, max_skipped_steps=1)
    broken_at(trainer, range(4, 48), times=2)
    with pytest.raises(Diverged, match=r"\[4, 5\] .*max_skipped_steps=1"):
        train(trainer, watch_in(chain, tmp_path))
    bundle = json.loads((tmp_path / "stopped" / BUNDLE_FILE).read_text())
    assert bundle["step"] == 5 and [one["loss"] for one in bundle["recent_steps"]][-2:] == ["nan", "nan"]
    samples = batches.index(chain.plan, 5)
    for row, sample, (source, place) in zip(bundle["rows"], samples, batches.sample_ids(chain.plan, 5), strict=True):
        assert (row["source"], row["sample"]) == (chain.plan.record.sources[source].name, place)
        named = [(one["document"], one["start"], one["tokens"]) for one in row["documents"]]
        assert named == [(segment.document, segment.start, segment.length) for segment in sample]
        assert all(one["id"].startswith(f"s/{row['source']}/") for one in row["documents"])  # from the sidecar
        assert 2 < row["loss"] < 8
    assert {one["gradient_norm"] for one in bundle["weights"]} == {"nan"}
    tokens, targets, _ = chain.open_shards().rows(samples, length=32)
    kept = load_file(tmp_path / "stopped" / BATCH_FILE)
    assert torch.equal(kept["tokens"], torch.from_numpy(tokens))
    assert torch.equal(kept["targets"], torch.from_numpy(targets))
    # The same command ends the same way: the step that was one too many is not passed over.
    with pytest.raises(Diverged, match=r"steps \[4, 5\]"):
        again = trainer_of(chain, tmp_path, max_skipped_steps=1)
        broken_at(again, range(4, 48), times=2)
        train(again, watch_in(chain, tmp_path))


# Reading the device's numbers once in several steps


def read_in(trainer, chain, folder, *, read_steps):
    """Train to the end; return how often the device was waited for."""
    waits, read = [], trainer._read
    trainer._read = lambda begun: waits.append(len(begun)) or read(begun)
    train(trainer, watch_in(chain, folder, read_steps=read_steps))
    return waits


@pytest.mark.parametrize("read_steps", [7, 100])
def test_steps_that_are_read_together_are_the_same_steps(chain, poisoned, tmp_path, read_steps):
    clip = statistics.median(report.gradient_norm for report in poisoned[1].state.recent)  # some are clipped, some not
    one, other = (trainer_of(chain, tmp_path / name, gradient_clip=clip) for name in ("one", "other"))
    assert read_in(one, chain, tmp_path / "one", read_steps=1) == [1] * 48
    waits = read_in(other, chain, tmp_path / "other", read_steps=read_steps)
    assert sum(waits) == 48 and max(waits) == min(read_steps, 12)  # the run is evaluated four times
    assert {report.gradient_norm > clip for report in other.state.recent} == {True, False}
    assert_same_bits(one, other)
    assert [report.loss for report in one.state.recent] == [report.loss for report in other.state.recent]


@pytest.mark.parametrize("read_steps", [3, 12])
def test_a_spike_among_steps_that_are_read_together_has_the_end_of_one_that_is_read_alone(
    chain, poisoned, tmp_path, read_steps
):
    trainer = trainer_of(chain, tmp_path, kind=Poisoned)
    waits = read_in(trainer, chain, tmp_path, read_steps=read_steps)
    assert max(waits) == read_steps
    assert trainer.state.ledger == poisoned[1].state.ledger
    assert_same_bits(trainer, poisoned[1])
    assert trainer.state.position.last_losses == poisoned[1].state.position.last_losses


def test_steps_that_are_not_finite_are_left_out_also_when_they_are_read_together(chain, tmp_path):
    alone, together = (trainer_of(chain, tmp_path / name) for name in ("alone", "together"))
    for trainer in (alone, together):
        broken_at(trainer, [0, 17, 18], times=1000)
    read_in(alone, chain, tmp_path / "alone", read_steps=1)
    waits = read_in(together, chain, tmp_path / "together", read_steps=5)
    assert together.state.ledger == alone.state.ledger and together.state.ledger.steps == [0, 17, 18]
    assert_same_bits(alone, together)
    assert max(waits) == 5 and waits.count(1) > 10


# The ledger


def entry(first, last, reason="spike"):
    return LedgerEntry(first=first, last=last, reason=reason, onset=first, seen_at=last, loss=1.0, gradient_norm=None)


def test_a_lost_ledger_comes_back_from_a_checkpoint(chain, poisoned, tmp_path):
    shutil.copytree(poisoned[0] / "checkpoints", tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "ledger.json"
    path.unlink()
    assert trainer_of(chain, tmp_path, kind=Poisoned).state.ledger == poisoned[1].state.ledger
    path.write_text(path.read_text().replace('"first": ', '"first": 1', 1))  # still a ledger, of another run
    trainer = trainer_of(chain, tmp_path, kind=Poisoned)
    assert trainer.state.ledger == poisoned[1].state.ledger
    (line,) = trainer.state.store.lost
    assert line.startswith("ledger.json") and len(list(path.parent.glob("damaged-ledger.json-*"))) == 1


def test_a_checkpoint_under_another_ledger_is_refused(chain, poisoned, tmp_path):
    shutil.copytree(poisoned[0] / "checkpoints", tmp_path / "checkpoints")
    write_ledger(tmp_path / "checkpoints", Ledger((entry(2, 3),)))
    with pytest.raises(RefusedInput, match="another ledger"):
        trainer_of(chain, tmp_path, kind=Poisoned)


def test_the_artifact_holds_the_ledger_and_the_documents_that_were_left_out(chain, monkeypatch):
    monkeypatch.setattr(stage, "Trainer", Poisoned)
    job = chain.job("spike", checkpoint_seconds=0.0, micro_batch_tokens=128)
    work = tiny.work_in(Path(job.output))
    outcome = stage.run(job, work)
    ledger = read_ledger(work.path)
    assert set(POISONED) <= set(ledger.steps) and outcome.notes["skipped_steps"] == ledger.steps
    assert outcome.metrics["skipped_steps"] == len(ledger.steps)
    assert outcome.metrics["rollbacks"] == ledger.rollbacks >= 1
    assert outcome.metrics["tokens"] == (48 - len(ledger.steps)) * 256
    assert outcome.gates[0].evidence["skipped_steps"] == len(ledger.steps)
    rows = [json.loads(line) for line in (work.path / stage.SKIPPED_FILE).read_text().splitlines()]
    documents = {document for step in ledger.steps for document in batches.documents_at(chain.plan, step)}
    assert len(rows) == len(documents) and all(row["id"].startswith("s/") for row in rows)
    assert {step for row in rows for step in row["steps"]} == set(ledger.steps)
    assert {"ledger.json", stage.SKIPPED_FILE} <= set(outcome.files)

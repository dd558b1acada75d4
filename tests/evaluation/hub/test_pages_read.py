"""What trainings read, counted by epochs, is what their batches hold, counted step by step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.hub import pages_read
from evaluation.hub.pages_read import _check_own_counts, epochs_read, tokens_read, trainings_of
from tests.jobs import commit_by_hand
from tests.training.pretrain import tiny
from training.contract.artifact import find
from training.contract.job import DataError
from training.order.batch_settings import ContinueRecipe
from training.order.batches import Plan, index, interleaved, sample_ids, samples_before
from training.order.later_steps import ledger_before
from training.order.ledger import Ledger, LedgerEntry
from training.order.settings import MixturePhaseRecipe, MixtureRecipe

EPOCHS = MixtureRecipe(weights={"books": 1.0, "web": 5.0}, max_epochs=9)
PLANS: dict[str, dict[str, Any]] = {
    "part of an epoch": {},
    "several epochs": {"mixture": EPOCHS},
    "another mixture later": {
        "mixture": replace(EPOCHS, phases=(MixturePhaseRecipe(start=0.6, weights={"books": 3.0, "web": 1.0}),))
    },
    "continued": {
        "pretrain": replace(
            tiny.PRETRAIN, tokens=20 * 256, schedule="wsd", continues=ContinueRecipe(tokens=(16 * 256,))
        ),
        "mixture": MixtureRecipe(weights={"books": 14.0, "web": 114.0}, max_epochs=9),
    },
    "packed": {"pretrain": replace(tiny.PRETRAIN, packing="best_fit")},
    "packed, epochs": {
        "pretrain": replace(tiny.PRETRAIN, packing="best_fit", tokens=60 * 256),
        "mixture": MixtureRecipe(weights={"books": 2.0, "web": 1.0}, max_epochs=9),
    },
}


@pytest.fixture(scope="module", params=PLANS)
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    made = tiny.TinyChain(tmp_path_factory.mktemp("plan"), **PLANS[request.param]).plan
    return made.with_record(replace(made.record, block_documents=8)) if made.packing is None else made


def skipping(*steps: int) -> Ledger:
    measured: dict[str, Any] = {"reason": "spike", "loss": None, "gradient_norm": None}
    return Ledger(tuple(LedgerEntry(first=one, last=one, onset=one, seen_at=one, **measured) for one in steps))


@pytest.mark.parametrize("steps", [(), (0, 3), (2, 5, 6), (1, *range(4, 99)), tuple(range(99))])
def test_tokens_read_are_those_of_all_batches_that_were_not_skipped(plan, steps):
    wanted = Counter()
    for step in range(plan.record.steps):
        for sample in index(plan, step) if step not in steps else ():
            for segment in sample:
                wanted[segment.shard, segment.document] += segment.length
    whole = plan.documents.segments(np.arange(len(plan.documents)))
    found = tokens_read(plan, skipping(*(step for step in steps if step < plan.record.steps)))
    assert {one[:2]: int(tokens) for one, tokens in zip(whole, found, strict=True) if tokens} == wanted
    assert bool(wanted) == (0 not in steps or len(steps) < plan.record.steps)


@pytest.mark.parametrize("quotas", [(7,), (5, 5), (0, 3, 8), (1, 2, 4, 9), (12, 4, 6)])
def test_samples_before_a_place_are_those_that_were_dealt(quotas):
    dealt = [source for source, _ in interleaved(quotas, first=0, count=sum(quotas))]
    for count in range(len(dealt) + 1):
        assert list(samples_before(quotas, count)) == [dealt[:count].count(one) for one in range(len(quotas))]


def test_steps_after_a_kept_one_are_not_gone_through(plan, monkeypatch):
    later = ledger_before(skipping(1), 3, steps=plan.record.steps)
    taken = []
    monkeypatch.setattr(pages_read, "sample_ids", lambda plan, step: taken.append(step) or sample_ids(plan, step))
    assert tokens_read(plan, later).sum() > 0 and taken == [1]


def test_every_epoch_is_named_once(plan):
    named = [(one.source, epoch) for one in epochs_read(plan, skipping(1)) for epoch in range(one.first, one.last + 1)]
    assert len(named) == len(set(named))
    for number, source in enumerate(plan.record.sources):
        read = sum(phase.samples[number] * phase.sequence_length for phase in plan.phases)
        epochs = -(-read // source.capacity(plan.packing.length if plan.packing else 0))
        assert sorted(epoch for own, epoch in named if own == number) == list(range(epochs))


def test_of_a_kept_step_the_card_counts_what_was_read_before_it(tmp_path: Path) -> None:
    chain = tiny.TinyChain(tmp_path / "chain")
    plan = find(Path(chain.plan_artifact.path))
    named = {name: plan.record[name] for name in ("asset", "partition", "fingerprint", "digest")}
    records, read = [(plan.path, dict(plan.record) | {"inputs": []})], {}
    for asset, steps in (("kept_steps", 3), ("base_model", 12)):
        (tmp_path / asset).mkdir()
        (tmp_path / asset / "weights").write_text(asset)
        settings = {"kept": {"step": steps}} if asset == "kept_steps" else {}
        metrics = {"steps": steps, "tokens": steps * 256, "skipped_steps": 0}
        commit_by_hand(tmp_path / asset, asset, settings=settings, metrics=metrics, inputs=[named])
        records.append((tmp_path / asset, find(tmp_path / asset).record))
    for training in trainings_of(records):
        _check_own_counts(training)
        read[training.asset] = tokens_read(training.plan, training.ledger)
    assert read["base_model"].sum() > 3 * read["kept_steps"].sum() > 0
    assert (read["base_model"] >= read["kept_steps"]).all()
    step = trainings_of(records)[0]
    step.model_from.record["metrics"]["steps"] = 4
    with pytest.raises(DataError, match="kept_steps: counted 4 steps, its plan and ledger give 3"):
        _check_own_counts(step)


def test_of_a_chosen_step_the_card_counts_what_was_read_before_it(tmp_path: Path) -> None:
    chain = tiny.TinyChain(tmp_path / "chain")
    plan = find(Path(chain.plan_artifact.path))
    named = {name: plan.record[name] for name in ("asset", "partition", "fingerprint", "digest")}
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "weights").write_text("base")
    counted = {"steps": 12.0, "tokens": 12.0 * 256, "skipped_steps": 0.0}
    commit_by_hand(tmp_path / "base", "base_model", settings={}, metrics=counted, inputs=[named])
    base = find(tmp_path / "base").record
    chosen = dict(base) | {"asset": "chosen_model", "inputs": [], "notes": {"choice": {"last": base["fingerprint"]}}}
    chosen["metrics"] = {"steps": 3.0, "tokens": 3.0 * 256, "skipped_steps": 0.0}
    made = (plan.path, dict(plan.record) | {"inputs": []}), (tmp_path / "base", base)
    (whole,), (step,) = trainings_of(made), trainings_of([*made, (tmp_path / "chosen", chosen)])
    _check_own_counts(step)
    read = [tokens_read(one.plan, one.ledger) for one in (whole, step)]
    assert read[0].sum() > 3 * read[1].sum() > 0 and (read[0] >= read[1]).all()

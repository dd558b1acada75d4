"""When a training reads a page: what the plan's own batches say, step by step."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from evaluation.steps.page_effects import times_by
from evaluation.steps.readings import numbers_of, readings_of
from tests.training.pretrain import tiny
from training.data.documents import read_documents
from training.order.batches import index, read_plan
from training.order.ledger import Ledger, LedgerEntry


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"))


def entry(first, last):
    return LedgerEntry(first=first, last=last, reason="spike", onset=first, seen_at=last, loss=None, gradient_norm=None)


@pytest.mark.parametrize("ledger", [Ledger(), Ledger((entry(2, 3),))])
def test_the_readings_of_a_page_are_those_of_the_batches(chain, ledger):
    plan = read_plan(chain.plan_artifact.folder)
    ids = {}
    for number, shard in enumerate(plan.record.shards):
        path = chain.shards.file(shard.path.removesuffix(".bin") + ".documents.parquet")
        ids |= {row["id"]: (number, place) for place, row in enumerate(read_documents(path, ["id"]))}
    found = readings_of(plan, numbers_of(plan, [chain.shards], {*ids, "no such page"}), ledger)
    assert found.keys() == ids.keys()
    batches = [index(plan, step, ledger) for step in range(plan.record.steps)]
    for name, place in ids.items():
        steps = [n for n, batch in enumerate(batches) if any(place == one[:2] for row in batch for one in row)]
        assert {one.step for one in found[name]} <= {*steps}
        assert min((one.step for one in found[name]), default=None) == (steps[0] if steps else None)
        assert all((times_by(found[name], kept) > 0) == any(step < kept for step in steps) for kept in range(9))
    assert any(found.values())

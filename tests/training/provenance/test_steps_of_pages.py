"""Which steps see a document is the exact inverse of the batches, in every kind of plan."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from tests.training.pretrain import tiny
from training.order.batch_settings import ContinueRecipe
from training.order.batches import Plan, index, interleaved
from training.order.settings import MixturePhaseRecipe, MixtureRecipe
from training.provenance.steps import Steps, batch_of, place_of

PLANS = {
    "end to end": {},
    "three epochs": {"mixture": MixtureRecipe(weights={"books": 1.0, "web": 5.0}, max_epochs=9)},
    "packed": {"pretrain": replace(tiny.PRETRAIN, packing="best_fit")},
    "packed, epochs": {
        "pretrain": replace(tiny.PRETRAIN, packing="best_fit", tokens=60 * 256),
        "mixture": MixtureRecipe(weights={"books": 2.0, "web": 1.0}, max_epochs=9),
    },
    "continued twice": {
        "pretrain": replace(
            tiny.PRETRAIN, tokens=40 * 256, schedule="wsd", continues=ContinueRecipe(tokens=(13 * 256, 25 * 256))
        ),
        "mixture": MixtureRecipe(weights={"books": 3.0, "web": 5.0}, max_epochs=9),
    },
    "another mixture later": {
        "mixture": MixtureRecipe(
            weights={"books": 1.0, "web": 2.0},
            max_epochs=9,
            phases=(MixturePhaseRecipe(start=0.6, weights={"books": 3.0, "web": 1.0}),),
        )
    },
}


@pytest.fixture(scope="module", params=PLANS)
def plan(request, tmp_path_factory) -> Plan:
    made = tiny.TinyChain(tmp_path_factory.mktemp("plan"), **PLANS[request.param]).plan
    return made.with_record(replace(made.record, block_documents=8)) if made.packing is None else made


def seen_by_batches(plan: Plan) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """Every piece of every document, by going through all steps."""
    found = defaultdict(list)
    for step in range(plan.record.steps):
        for row, sample in enumerate(index(plan, step)):
            at = 0
            for segment in sample:
                found[segment.shard, segment.document].append((step, row, at, segment.length))
                at += segment.length
    return found


def test_the_pieces_of_every_document_are_those_of_all_batches(plan):
    wanted, steps = seen_by_batches(plan), Steps(plan)
    numbers = {
        (shard, document): steps.number(shard, document)
        for shard, one in enumerate(plan.record.shards)
        for document in range(one.documents)
    }
    assert sorted(numbers.values()) == list(range(len(plan.documents)))
    found = steps.seen(list(numbers.values()))
    for place, number in numbers.items():
        pieces = [(one.step, one.row, one.at, one.tokens) for one in found[number]]
        assert pieces == sorted(wanted[place]), place
        assert steps.is_held_out(number) == bool(plan.documents.are_held_out(number, number + 1)[0])
        assert not (steps.is_held_out(number) and pieces)
    assert sum(map(len, wanted.values())) > 50


def test_a_batch_and_its_documents_name_each_other(plan):
    steps = Steps(plan)
    for step in range(0, plan.record.steps, 3):
        for one in batch_of(steps, step):
            found = steps.seen([steps.number(one.shard, one.document)])
            back = [piece._replace(epoch=-1) for some in found.values() for piece in some if piece.step == step]
            assert sorted(one.pieces, key=lambda piece: (piece.row, piece.at)) == back


@pytest.mark.parametrize("quotas", [(1,), (3, 3), (1, 7, 2), (5, 0, 5, 1), (10, 9, 8)])
def test_the_place_of_a_sample_is_the_inverse_of_the_interleaving(quotas):
    class Phase:
        alternating = quotas

    order = interleaved(quotas, first=0, count=sum(quotas))
    for source, quota in enumerate(quotas):
        own = [place for place, (of, _) in enumerate(order) if of == source]
        assert place_of(Phase, source, np.arange(quota)).tolist() == own


def test_the_place_of_a_sample_is_exact_beyond_64_bits():
    class Phase:
        alternating = (1 << 40, 1 << 40)

    last = np.array([(1 << 40) - 1])
    assert [place_of(Phase, source, last).item() for source in (0, 1)] == [(1 << 41) - 2, (1 << 41) - 1]


def test_a_step_that_the_plan_lacks_is_said(plan):
    with pytest.raises(IndexError, match="steps 0 to"):
        batch_of(Steps(plan), plan.record.steps)


def test_nothing_is_seen_of_a_source_without_samples(plan):
    idle = replace(
        plan.record,
        phases=(),
        sources=(replace(plan.record.sources[0], samples=0), *plan.record.sources[1:]),
    )
    first = plan.record.sources[0].first_document
    assert set(map(tuple, Steps(plan.with_record(idle)).seen([first, first + 1]).values())) == {()}
    assert np.all(plan.documents.tokens(first, first + 2) > 0)

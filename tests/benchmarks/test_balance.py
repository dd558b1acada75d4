"""Processes of `context` have equal work in a long document; positions in one run would not give them that."""

from __future__ import annotations

import pytest

from benchmarks import balance
from training.pretrain.degrees import Degrees
from training.pretrain.lanes import both_ends
from training.pretrain.parallel import World


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_long_document_is_equal_work_for_all(parts):
    documents = balance.rows_of(0.0, rows=1, length=2048)
    found = {
        name: [
            balance.most_over_mean(count, division, documents, window=0, parts=parts)
            for count in (balance.pairs, balance.blocks)
        ]
        for name, division in balance.DIVISIONS.items()
    }
    assert found["both ends"] == [1.0, 1.0]
    assert min(found["consecutive"]) > 1.45


@pytest.mark.parametrize(("length", "context", "tensor"), [(32, 4, 1), (36, 3, 2), (15, 5, 1), (48, 2, 4), (12, 1, 3)])
def test_every_position_of_a_row_is_one_processs(length, context, tensor):
    worlds = [
        World(rank=rank, size=context * tensor, device=None, degrees=Degrees(context=context, tensor=tensor))
        for rank in range(context * tensor)
    ]
    shares = [world.positions(length, "context", "tensor") for world in worlds]
    assert sorted(place for share in shares for place in share) == list(range(length))
    assert {len(share) for share in shares} == {length // len(worlds)}
    for place in range(context):  # those of a tensor group, one after the other, are those of its place in `context`
        group = shares[place * tensor :][:tensor]
        assert [one for share in group for one in share] == worlds[place * tensor].positions(length, "context")


def test_early_and_late_positions_are_put_together():
    assert [[*head, *tail] for head, tail in (both_ends(8, 2, place) for place in (0, 1))] == [
        [0, 1, 6, 7],
        [2, 3, 4, 5],
    ]

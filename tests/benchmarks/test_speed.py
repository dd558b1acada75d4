"""The CPU table: turns, ratios, and data that have something to learn."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from benchmarks import speed
from benchmarks.rows import made_plan, made_tokens
from benchmarks.trainers import NotMeasured, Ready, Running, Task, Turn
from training.order.batches import index
from training.order.loss_mask import IGNORED

READY = Ready(settings="as it is", parameters=1, flops_per_token=1e6, first_step_seconds=1.0)


class Counting:
    """A trainer whose steps take a given time; notes when it had its turn."""

    def __init__(self, name: str, seconds: list[float], order: list[str]) -> None:
        self.task = Task(trainer="own", shape=speed.SHAPES["tiny"], rows=2, length=50)
        self.ready, self._name, self._seconds, self._order = READY, name, iter(seconds), order

    def steps(self, count: int) -> Turn:
        self._order.append(self._name)
        seconds = next(self._seconds)
        return Turn(steps=count, wall=2 * seconds, processor=seconds, peak_gigabytes=1.0)


def test_turns_alternate_and_ratios_are_of_pairs():
    order: list[str] = []
    own, peer = Counting("own", [9, 1, 2, 4], order), Counting("peer", [9, 2, 5, 6], order)
    found = speed.compared(own, peer, rounds=3, steps=2)
    assert order == ["own", "peer", "peer", "own", "own", "peer", "peer", "own"]
    assert found["ratio_processor"] == [2.0, 1.5, 2.5]  # 2/1, 5/2, 6/4; the first round is not in it
    assert found["own"]["tokens_per_processor_second"][0] == 100.0 and found["own"]["tokens_per_second"][0] == 50.0


def test_a_peer_that_is_missing_leaves_a_line_that_says_so(tmp_path):
    options = argparse.Namespace(
        shape="tiny",
        rows=1,
        length=8,
        threads=1,
        rounds=1,
        steps=1,
        timeout=5.0,
        optimizer=None,
        compiled="no",
        peers=tmp_path,
    )
    pair = speed.Pair(peer="litgpt", setting="stock", precision="bf16", own_precision="bf16")
    found = speed.measured(pair, options)
    assert "not measured: litgpt is not in the folder" in speed.line(pair.name, found)


def test_what_a_trainer_dies_of_is_the_reason(tmp_path):
    (tmp_path / "nanochat").mkdir()
    task = Task(trainer="nanochat", shape=speed.SHAPES["tiny"], rows=1, length=8)
    with pytest.raises(NotMeasured, match="No module named 'nanochat"):
        Running(task, peers=tmp_path, timeout=120)


def test_names_of_pairs_are_their_own():
    assert len({pair.name for pair in speed.PAIRS}) == len(speed.PAIRS)


def test_half_of_the_made_tokens_follow_from_the_one_before():
    tokens = made_tokens(20_000, vocabulary=512).astype(int)
    follows = (tokens[1:] - tokens[:-1] - 7919) % 512 == 0
    assert 0.49 < follows.mean() < 0.52
    assert np.array_equal(tokens, made_tokens(20_000, vocabulary=512)) and tokens.max() < 512


def test_a_made_row_is_one_document():
    plan, shards = made_plan(vocabulary=64, steps=3, rows=4, length=16)
    for step in range(3):
        _, targets, documents = shards.rows(index(plan, step), length=16)
        assert (documents == 0).all() and (targets == IGNORED).sum(axis=1).tolist() == [1, 1, 1, 1]

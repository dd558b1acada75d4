"""The race to a held-out loss: the goal is the peer's best, ours is the shortest schedule that gets there."""

from __future__ import annotations

import pytest

from benchmarks.convergence import Run
from benchmarks.time_to_loss import Noted, race

STEPS = 120
PEER = {1e-3: 2.2, 3e-3: 2.0, 6e-3: 2.1}


def run(held_out: float, processor: float) -> Run:
    return Run(losses=[3.0], held_out=held_out, processor=processor)


def raced(path, *, own_at_the_end: float, made: list) -> float | None:
    def peer(rate: float) -> Run:
        made.append(rate)
        return run(PEER[rate], 100.0)

    def own(rate: float, steps: int) -> Run:
        made.append((rate, steps))
        return run(own_at_the_end + rate + (STEPS - steps) / STEPS, steps / 2)

    return race(Noted(path), peer, own, peer_rates=list(PEER), own_rates=[0.2, 0.1], steps=STEPS)


def test_the_shortest_schedule_that_reaches_the_peers_best_counts(tmp_path, capsys):
    # 1.25 + 0.1 + (120 - n) / 120 is 2.0 or less from n = 42 on: 60 is the first length at or above it.
    assert raced(None, own_at_the_end=1.25, made=[]) == pytest.approx(100.0 / 30)
    said = capsys.readouterr().out
    assert "goal: 2.0000" in said and "by Muon 0.1" in said and "2.00 x fewer tokens" in said
    assert "edge" not in said


def test_a_goal_that_is_not_reached_is_none(capsys):
    assert raced(None, own_at_the_end=2.5, made=[]) is None
    assert "not reached" in capsys.readouterr().out


def test_runs_that_were_made_are_not_made_again(tmp_path):
    first: list = []
    again: list = []
    assert raced(tmp_path / "runs.json", own_at_the_end=1.25, made=first) == raced(
        tmp_path / "runs.json", own_at_the_end=1.25, made=again
    )
    assert first and not again

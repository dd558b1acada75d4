"""The benchmark of a reward that can be hacked, by one seed of the model of fruits."""

from __future__ import annotations

import sys

from benchmarks import hackable


def test_the_gate_refuses_the_reward_that_is_hacked_and_no_other(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hackable", "--fruits", "--seeds", "1", "--root", str(tmp_path)])
    assert hackable.main() == 0
    assert "refused: hackable 1 of 1, honest 0 of 1" in capsys.readouterr().out
    monkeypatch.setitem(hackable.OF_FRUITS, "honest", hackable.OF_FRUITS["hackable"])
    assert hackable.main() == 1

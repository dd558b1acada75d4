"""The set of kills goes on where it was stopped, and one run with other bits fails all of them."""

from __future__ import annotations

import argparse
import json

import pytest

from benchmarks import kills


def noted(folder, runs):
    root = folder / "1-of-100-seed-0"
    (root / "base_model" / "undisturbed").mkdir(parents=True)
    (root / "base_model" / "undisturbed" / kills.DONE_FILE).write_text(json.dumps({"seconds": 1.0}))
    (root / kills.RUNS_FILE).write_text("".join(json.dumps(run) + "\n" for run in runs))
    return root


@pytest.mark.parametrize("same", [True, False])
def test_what_was_done_is_counted_and_not_done_again(tmp_path, capsys, same):
    runs = [
        {"kills": 3, "same_bits": True, "seconds_to_next_step": [5.0, 6.0], "epochs": 4.0},
        {"kills": 2, "same_bits": same, "seconds_to_next_step": [7.0], "epochs": 4.0},
    ]
    root = noted(tmp_path, runs)
    options = argparse.Namespace(
        kills=5, steps=100, processes=1, threads=1, packing="end_to_end", checkpoint_seconds=0.3, seed=0
    )
    assert kills.name_of(options) == root.name
    assert kills.compare(root, options) == (0 if same else 1)
    said = capsys.readouterr().out
    assert "5 kills of 1 process(es) in 2 runs" in said and "6.00 s [5.00 to 7.00], n = 3" in said
    assert ("NOT all" in said) is not same

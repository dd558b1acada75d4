"""The benchmark of the plan, at toy size: its links are a sound artifact, and its processes say what they took."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import plan


def test_links_are_an_artifact_that_planner_and_training_take(tmp_path, capsys):
    sizes = {"documents": 15_000, "mean_tokens": 1_000, "shard_documents": 5_000, "held_out_fraction": 0.01}
    options = argparse.Namespace(**sizes, code=Path.cwd(), steps=2, processes=2)
    plan.measure(tmp_path, options)
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("15,000 documents, ") and [line.partition(":")[0] for line in told[1:]] == [
        "planner",
        "training, started",
        "training, resumed",
    ]
    assert float(told[1].split()[-3]) < 10  # bytes a document

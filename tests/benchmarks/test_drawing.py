"""The benchmark of answers in shares: it counts what is sent, and notices other models."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(1200)
SMALL = ["--width", "32", "--layers", "2", "--new", "6", "--steps", "3", "--rounds", "1"]


@pytest.mark.parametrize("control", [[], ["--control"]])
def test_gathered_weights_are_sent_less_often_and_other_models_show(control):
    argv = [sys.executable, "-m", "benchmarks.drawing", *SMALL, *control]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    sent = {kind: int(number) for kind, number in re.findall(r"(\w+): (\d+) gathers", done.stdout)}
    assert sent.keys() == {"sharded", "gathered"} and sent["gathered"] < sent["sharded"], done.stderr
    assert done.returncode == len(control)
    assert ("THE MODELS DIFFER" if control else "the same model to the bit") in done.stdout
    assert "processor seconds a step" in done.stdout

"""The GPU script without a GPU: every part goes through at a tiny size, and nobody can take that for a measurement."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from tests.benchmarks.inside import Inside

PROJECT = Path(__file__).parents[2]
# What the GPU nodes of the documentation have is torch, numpy and safetensors; none of these.
NOT_THERE = ("pyarrow", "tokenizers", "transformers", "psutil", "pydantic", "yaml", "datasets", "accelerate", "dagster")
BARE_NODE = f"""
import sys
class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_THERE}:
            raise ModuleNotFoundError(f"No module named {{name!r}}: this node is bare", name=name)
sys.meta_path.insert(0, Bare())
"""


def tiny(tmp_path: Path, **changes) -> gpu.Part:
    options = argparse.Namespace(
        **{"device": "cpu", "tiny": True, "out": tmp_path, "peers": None, "seconds": 480.0} | changes
    )
    return gpu.Part(options, start=Inside)


def test_the_command_runs_on_a_bare_node_and_every_figure_says_that_it_is_none(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BARE_NODE)
    path = os.pathsep.join([str(tmp_path), str(PROJECT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "mfu", "--device", "cpu", "--tiny", "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "mfu.json").read_text())["label"] == gpu.NOT_A_MEASUREMENT
    figures = [line for line in done.stdout.splitlines() if "tokens/s" in line]
    assert figures and all(gpu.NOT_A_MEASUREMENT in line for line in figures)
    assert done.stdout.splitlines()[0] == done.stdout.splitlines()[-1] == gpu.NOT_A_MEASUREMENT


def test_a_peer_that_is_missing_shows_as_the_reason(tmp_path):
    gpu.write_part("litgpt", tiny(tmp_path))
    gpu.write_part("nanochat", tiny(tmp_path, peers=tmp_path))
    rows = {line.split("|")[1].strip(): line for line in gpu.table(tmp_path).splitlines() if line.startswith("| ")}
    assert "stock: not measured: no folder of peers" in rows["tokens a second against litgpt"]
    assert "not measured: nanochat is not in the folder" in rows["tokens a second against nanochat"]
    assert "not measured: the part was not run" in rows["tokens a second against hf"]


def test_fp8_is_set_beside_bf16_or_says_why_not(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    gpu.write_part("fp8", tiny(tmp_path))
    found = json.loads((tmp_path / "fp8.json").read_text())["found"]
    assert found["bf16"]["loss"] > 0 and "torchao is not installed" in found["fp8"]["not_measured"]
    assert gpu.fp8_cell(found).startswith("not measured")


def test_a_checkpoint_and_a_kill_go_through(tmp_path):
    gpu.write_part("checkpoint", tiny(tmp_path))
    gpu.write_part("kill", tiny(tmp_path))
    shown = gpu.table(tmp_path)
    assert "GB of state, n = 1" in shown and "n = 1" in gpu.kill_cell(
        json.loads((tmp_path / "kill.json").read_text())["found"]
    )
    assert not (tmp_path / "killed").exists()


def test_nothing_is_measured_where_nothing_ran(tmp_path):
    rows = [line for line in gpu.table(tmp_path).splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 8 and all("not measured: the part was not run" in row for row in rows)


def test_without_a_gpu_a_part_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    gpu.write_part("mfu", tiny(tmp_path, device="cuda", tiny=False))
    assert "| not measured: no GPU was at hand |" in gpu.table(tmp_path)
    assert gpu.NOT_A_MEASUREMENT not in gpu.table(tmp_path)


def written(folder: Path, part: str, found: dict, *, label: str = "") -> None:
    record = {"label": label, "device": "NVIDIA H200", "torch": "2.11.0", "python": "3.12.3", "found": found}
    (folder / f"{part}.json").write_text(json.dumps(record))


def speed(tokens_per_second: float, *, flops: float = 1e9) -> dict:
    return {
        "settings": "bf16",
        "tokens": "16 x 2048",
        "parameters": 1,
        "tokens_per_second": tokens_per_second,
        "spread": [tokens_per_second, tokens_per_second],
        "teraflops_per_second": tokens_per_second * flops / 1e12,
        "first_step_seconds": 1.0,
    }


def test_the_table_is_ours_over_theirs_and_the_best_try(tmp_path):
    tries = [speed(5e4) | {"mfu": 0.5}, {"not_measured": "OutOfMemoryError"}, speed(6e4) | {"mfu": 0.6}]
    written(tmp_path, "mfu", {"peak_teraflops": 989.0, "tries": tries})
    written(
        tmp_path,
        "litgpt",
        {
            "own": {"stock": speed(6e4), "best": speed(6e4)},
            "peer": {"stock": speed(3e4), "best": speed(4e4, flops=2e9)},
        },
    )
    written(tmp_path, "fp8", {"bf16": speed(5e4) | {"loss": 4.0}, "fp8": speed(6e4) | {"loss": 4.01, "steps": 90}})
    written(
        tmp_path,
        "checkpoint",
        {"state_gigabytes": 15.0, "seconds_added": {"beside": 0.5, "at once": 20.0}, "rounds": 3},
    )
    written(tmp_path, "kill", {"seconds": [12.0, 11.0, 19.0]})
    shown = gpu.table(tmp_path)
    assert "| 60 % of 989 TFLOP/s: 60,000 tokens/s" in shown
    assert "| stock: 2.00 x; best: 1.50 x (0.75 x in operations) |" in shown
    assert "| 1.20 x, loss +0.25 % after 90 steps |" in shown
    assert "| 0.025: 0.50 s of 20.00 s, 15 GB of state, n = 3 |" in shown
    assert "| 12.0 s [11.0 to 19.0], n = 3 |" in shown
    assert gpu.NOT_A_MEASUREMENT not in shown


def test_a_dry_run_among_measurements_is_refused(tmp_path):
    written(tmp_path, "kill", {"seconds": [12.0]})
    written(tmp_path, "mfu", {"not_measured": "…"}, label=gpu.NOT_A_MEASUREMENT)
    with pytest.raises(SystemExit, match="dry runs among measurements"):
        gpu.table(tmp_path)


def test_a_part_that_hangs_is_ended_and_says_so():
    with pytest.raises(gpu.NotMeasured, match=r"longer than 0\.05 s"), gpu.within(0.05):
        gpu.time.sleep(5)


def test_the_size_is_what_the_page_says():
    assert gpu.FULL.shape.parameter_count >= 1e9
    assert {gpu.FULL.length, gpu.FULL.long} == {2048, 4096}


def test_a_trainer_of_ours_is_started_once_for_all_parts_and_ends_with_them(tmp_path, monkeypatch):
    begun, ended = [], []

    class Seen(Inside):
        def __init__(self, task, **named):
            begun.append(task.trainer)
            super().__init__(task, **named)

        def close(self):
            ended.append(self.task.trainer)
            super().close()

    part = tiny(tmp_path)
    part._start = Seen
    gpu.write_part("hf", part)
    gpu.write_part("torchtitan", part)
    assert begun.count("own") == 1 and "own" not in ended
    part.close()
    assert ended.count("own") == 1
    shown = gpu.table(tmp_path)
    assert "| tokens a second against hf | 2 x | 3 x | DRY RUN, NOT A MEASUREMENT: stock: " in shown
    assert "stock: not measured: no folder of peers was given" in shown


def test_memory_is_shown_beside_what_the_plan_predicts(tmp_path):
    one = speed(6e4) | {"mfu": 0.6, "peak_gigabytes": 74.25, "predicted_gigabytes": 76.48}
    written(tmp_path, "mfu", {"peak_teraflops": 989.0, "tries": [one]})
    assert "; peak 74.2 GB (76.5 predicted); bf16" in gpu.table(tmp_path)
    task = gpu.Task(trainer="own", shape=gpu.FULL.shape, rows=16, length=2048, device="cuda")
    halves = gpu.Task(trainer="own", shape=gpu.FULL.shape, rows=16, length=2048, device="cuda", passes=2)
    assert 70e9 < gpu.predicted_bytes(task) < 73e9 and gpu.predicted_bytes(halves) < 55e9

"""The benchmark of starts counts what a job's process takes, and finds a job that fails."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from benchmarks.starts import jobs
from tests.training.data import chain
from training.data.dedup.settings import DedupRecipe
from training.job import write_job


def measure(root):
    """Run the command in a process of its own: it waits for every child, and a process of tests has others."""
    command = [sys.executable, "-m", "benchmarks.starts", str(root), "--rounds", "1"]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_job_is_made_again_and_its_process_counts(tmp_path):
    source = chain.documents(tmp_path, "one", [["a text"]])
    chain.run(tmp_path, "sign", "document_signatures", "tiny@one", {"dedup": DedupRecipe()}, [source])
    done = measure(tmp_path)
    assert done.returncode == 0, done.stderr
    asset, seconds = done.stdout.removesuffix(" s\n").split(": ")
    assert asset == "tiny@one document_signatures"
    assert float(seconds) > 0.05  # importing pyarrow alone takes as much

    (path,) = tmp_path.glob("*/*/job.json")
    (job,) = jobs(tmp_path)
    write_job(replace(job, stage="unknown"), path)
    assert "document_signatures: exit code 2" in measure(tmp_path).stderr

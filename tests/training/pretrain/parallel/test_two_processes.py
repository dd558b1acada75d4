"""A training in two processes that is followed as Dagster follows it, killed and warned; one process goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from assets.materialize.events import heard_by
from assets.materialize.follow import Following
from assets.materialize.watchers import Watching
from resources.compute.base import Task
from resources.compute.local import LocalBackend
from resources.profile import Size
from tests.training.pretrain import tiny
from training.contract.job import write_job
from training.contract.process.exit_codes import REQUEUE
from training.contract.progress import read_metrics
from training.pretrain.stages import pretrain as stage


def rows_of(job):
    return [row for row in read_metrics(Path(job.output) / "metrics.jsonl") if "loss" in row]


class Disturbed:
    """Follows a job of several processes as Dagster does, and strikes its launcher when a life has made some steps."""

    def __init__(self, folder):
        self.folder, self.observed, self.strike, self.began = folder, [], None, 0.0
        self.observe, self.say, self.is_canceling = self.observed.append, lambda _: None, lambda: False

    def hear(self, kind, _, values):
        if kind == "progress" and self.strike and values["time"] > self.began:
            (launcher,) = children(json.loads((self.folder / "process.json").read_text())["pid"])
            self.strike(launcher)
            self.strike = None

    def follow(self, task, strike=None):
        self.strike, self.began = strike, time.time()
        run = SimpleNamespace(log_metrics=lambda _: None, set_tags=lambda _: None)
        with Watching(self.folder, run_id="test") as watching:
            with heard_by(self.hear):
                job = Following(backend=LocalBackend(), task=task, run=run, watch=self, cell=None, watching=watching)
                status = job.attempt()
        assert not self.strike, (self.folder / "log.txt").read_text()
        return status


def children(pid):
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_two_processes_that_are_killed_or_warned_leave_what_one_goes_on_from(tmp_path):
    mixture = tiny.MixtureRecipe(max_epochs=100, held_out_fraction=0.1)
    recipe = dataclasses.replace(tiny.PRETRAIN, precision="fp32", optimizer="adamw", tokens=100 * 256)
    chain = tiny.TinyChain(tmp_path, pretrain=recipe, mixture=mixture)
    alone, together = (
        chain.job(name, micro_batch_tokens=64, processes=count, shard=count, checkpoint_seconds=0.0)
        for name, count in (("one", 1), ("two", 2))
    )
    write_job(together, Path(together.output) / "job.json")
    watch = Disturbed(Path(together.output))
    argv = ("-m", "training", f"{together.output}/job.json")
    size = Size(processes=2, threads=1)
    task = Task(key="two", argv=argv, size=size, folder=together.output, environment={"HF_HUB_OFFLINE": "1"})
    # One process is gone: the launcher ends the other, though that one would wait half an hour for it.
    assert watch.follow(task, lambda launcher: os.kill(children(launcher)[1], signal.SIGKILL)).exit_code == 1
    # A warning: the launcher ends with 1 here too, and the job is one to submit again all the same.
    assert watch.follow(task, lambda launcher: os.kill(launcher, signal.SIGUSR1)).exit_code == REQUEUE
    step = watch.observed[-1]["step"]
    assert 1 < step < 100 and watch.observed[-1]["tokens_per_second"] > 0
    last = dataclasses.replace(together, run=alone.run)
    for job in (alone, last):
        outcome = stage.run(job, tiny.work_in(Path(job.output)))
    assert outcome.notes["resumed_at_step"] >= step
    # Steps that were made again are written again.
    losses = [{row["step"]: row["loss"] for row in rows_of(job)} for job in (alone, last)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    weights = [load_file(Path(job.output, "model", "model.safetensors")) for job in (alone, last)]
    for name, weight in weights[0].items():
        assert torch.allclose(weights[1][name], weight, rtol=1e-2, atol=1e-3), name

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
from tests.training.pretrain.watch.looking import SUITES, items_artifact
from training.contract.job import write_job
from training.contract.process.exit_codes import REQUEUE
from training.contract.progress import read_metrics
from training.contract.records import write_record
from training.pretrain.stages import pretrain as stage
from training.pretrain.watch.settings import WatchRecipe
from training.pretrain.watch.steps_settings import spaced_by_logarithm

MEASURED = ("loss", "watched_bits", "held_out_bits", "training_loss/", "gradient_norm/", "clipped", "largest")


def curves(job):
    """What was measured after each step; steps that were made again are written again."""
    rows = read_metrics(Path(job.output) / "metrics.jsonl")
    return {(name, row["step"]): value for row in rows for name, value in row.items() if name.startswith(MEASURED)}


class Disturbed:
    """Follows a job of several processes as Dagster does, and strikes its launcher when a life has made some steps."""

    def __init__(self, folder):
        self.folder, self.observed, self.strike, self.began = folder, [], None, 0.0
        self.observe, self.say, self.is_canceling = self.observed.append, lambda _: None, lambda: False

    def hear(self, kind, _, values):
        if kind == "progress" and self.strike and values["time"] > self.began and values["step"] > 5:
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
    watched = {"watch": write_record(WatchRecipe(every="log", suites=SUITES, items=9))}
    guards = (items_artifact(tmp_path / "watched_items" / "w"),)
    alone, together = (
        dataclasses.replace(job, settings=job.settings | watched, guards=guards) for job in (alone, together)
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
    one, both = curves(alone), curves(last)
    assert both == pytest.approx(one, rel=1e-3, abs=1e-5)
    assert {at for name, at in both if name == "watched_bits_per_byte_cloze"} == {0, *spaced_by_logarithm(100), 100}
    weights = [load_file(Path(job.output, "model", "model.safetensors")) for job in (alone, last)]
    for name, weight in weights[0].items():
        assert torch.allclose(weights[1][name], weight, rtol=1e-2, atol=1e-3), name

"""The chain on a cluster: the profile changes, the recipe and what comes out do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from assets.state.chain import CHAIN
from resources.compute.slurm import JOB_FILE
from tests.cluster.minislurm import MiniSlurm

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

RECIPES = Path(__file__).parent.parent / "recipes"
COMMAND = [sys.executable, "-c", "from assets.commands.cli import main; main()", "run"]
DATA_ASSETS = tuple(
    name
    for name, declared in CHAIN.items()
    if declared.stage.module.startswith(("training.data.", "training.order."))
    and (declared.scope in ("snapshot", "recipe") or declared.sections == ("snapshots",))
)
LONG_PRETRAINING = {"tokens": 4096 * 160, "min_loss_fall": 0.0}


def long_recipe() -> str:
    """kitchen-small with a pretraining that is long enough to be interrupted."""
    recipe = yaml.safe_load((RECIPES / "kitchen-small.yaml").read_text())
    recipe["name"] = "kitchen-small-long"
    recipe |= {"mixture": {"max_epochs": 10_000.0}, "pretrain": LONG_PRETRAINING}
    return yaml.safe_dump(recipe)


@dataclass
class Place:
    """A root, profiles, and recipes; all tests of this file share one, as people do."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """What the cluster's runs make."""
        return self.folder / "runs"

    def run(self, recipe: str, *, profile: str, until: str) -> dict:
        """What `pedigree run --json` says at its end."""
        return report_of(self.start(recipe, profile=profile, until=until))

    def start(self, recipe: str, *, profile: str, until: str) -> subprocess.Popen[str]:
        """`pedigree run` on its way."""
        there = ["--root", str(self.root), "--profile", str(self.folder / f"{profile}.yaml")]
        return subprocess.Popen(
            [*COMMAND, recipe, *there, "--until", until, "--json"],
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def job_of(self, slurm: MiniSlurm, asset: str) -> dict[str, str]:
        """The job that the newest folder of an asset names, as the controller knows it."""
        notes = sorted(self.root.glob(f"{asset}/*/{JOB_FILE}"), key=lambda note: note.stat().st_mtime)
        if not notes:
            return {"JobState": "none"}
        job = json.loads(notes[-1].read_text())["job"]
        line = slurm.call("scontrol", "-o", "show", "job", job) if job else "JobState=none"
        return dict(part.split("=", 1) for part in line.split() if "=" in part)

    def steps(self, asset: str) -> int:
        """The last step that the asset's newest job reported; 0 before it did."""
        files = sorted(self.root.glob(f"{asset}/*/metrics.jsonl"), key=lambda file: file.stat().st_mtime)
        rows = [json.loads(line) for line in files[-1].read_text().splitlines()[-2:]] if files else []
        return max((row["step"] for row in rows), default=0)


def report_of(process: subprocess.Popen[str]) -> dict:
    """The last line of a run that ends, as JSON."""
    output, errors = process.communicate(timeout=800)
    assert output, errors
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("chain")
    tracking_uri = f"sqlite:///{folder / 'mlflow.db'}"  # one for all runs: making the tables takes seconds
    MiniSlurm(folder).write_profile(
        folder / "cluster.yaml",
        tracking_uri=tracking_uri,
        partitions_at_once=3,
        stages={
            "extracted_documents": {"nodes": 2},  # an array of two tasks, and the job that finishes
            "base_model": {"nodes": 2},
            "tokenizer": {"gpus_per_node": 1},  # the nodes' GPUs are made of paper, which a training would refuse
        },
    )
    (folder / "kitchen-small-long.yaml").write_text(long_recipe())
    MiniSlurm(folder).write_profile(
        folder / "one-node.yaml", tracking_uri=tracking_uri, stages={"base_model": {"checkpoint_seconds": 1.0}}
    )
    return Place(folder, {"PEDIGREE_RECIPES": f"{RECIPES}{os.pathsep}{folder}", "PYTHONUNBUFFERED": "1"})


def digests(report: dict, assets: tuple[str, ...]) -> dict[tuple[str, str], str]:
    """Digest by asset and partition."""
    made = report["assets"]
    return {(asset, part): entry["digest"] for asset in assets for part, entry in made[asset].items()}


def test_the_chain_runs_on_the_cluster_by_changing_the_profile_alone(slurm: MiniSlurm, place: Place, request):
    """Up to the first model; what follows it asks for no node in another way."""
    there = place.run("kitchen-small", profile="cluster", until="base_model")
    assert (there["ok"], there["error"]) == (True, "")

    training = place.job_of(slurm, "base_model")
    assert training["JobState"] == "COMPLETED"
    assert training["NumNodes"] == "2"
    assert place.job_of(slurm, "tokenizer")["TresPerNode"] == "gres:gpu:1"
    jobs = slurm.call("scontrol", "-o", "show", "job").splitlines()
    extracting = [job for job in jobs if "JobName=extracted_documents" in job]
    snapshots = len(there["assets"]["extracted_documents"])
    assert sum("ArrayTaskId=" in job for job in extracting) == 2 * snapshots
    assert sum("ArrayTaskId=" not in job for job in extracting) == snapshots

    here = request.getfixturevalue("first").answer  # asked for last: another process may still be making it
    made = tuple(asset for asset in DATA_ASSETS if asset in there["assets"])
    assert {"crawl_archives", "token_shards", "training_plan"} <= set(made)
    assert digests(there, made) == digests(here, made)


def start_training(slurm: MiniSlurm, place: Place) -> subprocess.Popen[str]:
    """A run that is in the middle of pretraining on one node."""
    process = place.start("kitchen-small-long", profile="one-node", until="base_model")
    before = place.steps("base_model")

    def trains() -> bool:
        assert process.poll() is None, process.communicate()
        return place.job_of(slurm, "base_model")["JobState"] == "RUNNING" and place.steps("base_model") > before

    slurm.wait_until(trains, "pretraining reports steps", seconds=400)
    return process


@contextmanager
def held_still(folder: Path) -> Iterator[None]:
    """The job whose artifact lies here takes no step meanwhile: a test need not train for as long as it looks."""
    named = [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in words_of(entry)]
    processes = [int(entry.parent.name) for entry in named]
    assert processes
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def words_of(command_line: Path) -> bytes:
    """A process's command line; empty when it has ended."""
    with suppress(OSError):
        return command_line.read_bytes()
    return b""


def test_a_job_outlives_a_cancelled_run_while_another_one_watches_it_and_ends_with_the_last(
    slurm: MiniSlurm, place: Place
):
    process = start_training(slurm, place)
    watched = place.root / "base_model"
    with held_still(watched):
        another = place.start("kitchen-small-long", profile="one-node", until="base_model")
        slurm.wait_until(lambda: len(list(watched.glob("*/watchers/*.json"))) == 2, "both watch the job", seconds=240)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 130 and "watched by run" in errors
        assert place.job_of(slurm, "base_model")["JobState"] == "RUNNING"
    another.send_signal(signal.SIGINT)
    _, errors = another.communicate(timeout=60)
    assert another.returncode == 130 and "state at step" in errors
    slurm.wait_until(lambda: place.job_of(slurm, "base_model")["JobState"] == "CANCELLED", "the job is cancelled")
    slurm.wait_until(lambda: slurm.call("squeue", "-h") == "", "the queue is empty")


def test_a_killed_orchestrator_finds_its_job_again_and_a_dead_node_changes_nothing(slurm: MiniSlurm, place: Place):
    orchestrator = start_training(slurm, place)
    job = place.job_of(slurm, "base_model")
    orchestrator.kill()
    orchestrator.communicate()
    assert place.job_of(slurm, "base_model")["JobState"] == "RUNNING"

    again = place.start("kitchen-small-long", profile="one-node", until="base_model")
    slurm.fail(job["NodeList"])
    report = report_of(again)
    assert report["ok"], report["error"]
    assert not report["assets"]["base_model"]["kitchen-small-long"]["reused"]

    ended = [one for one in slurm.jobs(job["JobName"]) if one["JobState"] != "CANCELLED"]
    assert [(one["JobId"], one["JobState"], one["Restarts"]) for one in ended] == [(job["JobId"], "COMPLETED", "1")]
    assert ended[0]["NodeList"] != job["NodeList"]

"""The bridge's own small parts, without a run around them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest

from assets.graph.pipeline import Pipeline
from assets.graph.result import Made, metadata_of
from assets.materialize import patience, reports
from assets.materialize.causes import explain
from assets.materialize.events import heard_by
from assets.materialize.follow import Following, _unless_ended
from assets.materialize.jobs import run_settings
from assets.materialize.patience import Patience
from assets.materialize.reports import Reports
from assets.materialize.watch import Watch
from assets.materialize.watchers import Watching
from resources.compute.base import Handle, Status, Task
from resources.compute.slurm import status_of
from resources.profile import Size
from training.contract import artifact
from training.contract.artifact import Artifact
from training.contract.progress import Progress


class Backend:
    """One whose job goes through the given statuses."""

    name, poll_seconds = "fake", 0.0

    def __init__(self, *statuses: Status) -> None:
        self._statuses = iter(statuses)

    def find(self, key, folder):
        return None

    def submit(self, task):
        return Handle(backend=self.name, id="7", key=task.key, folder=task.folder)

    def poll(self, handle):
        return next(self._statuses)


WAITS = Status(state="pending", reason="Resources")
LIMITED = Status(state="pending", reason="PartitionTimeLimit")
OVER = Status(state="succeeded", exit_code=0)


@pytest.fixture
def followed(tmp_path):
    """What a run says, and what is announced, while it follows a job through the given statuses."""

    def follow(*statuses):
        said, heard = [], []
        hear = lambda kind, cell, values: heard.append((kind, values.get("reason", values.get("for"))))  # noqa: E731
        tell_waiting = lambda cell, cause: heard.append(("told", cause.rpartition(": ")[2]))  # noqa: E731
        watch = SimpleNamespace(say=said.append, is_canceling=lambda: False, tell_waiting=tell_waiting)
        task = Task(key="toys-1", argv=(), size=Size(), folder=str(tmp_path))
        with Watching(tmp_path, run_id="a") as watching, heard_by(hear):
            seams = {"run": None, "watch": watch, "cell": None, "watching": watching}
            Following(backend=Backend(*statuses), task=task, **seams).attempt()
        return [line for line in said if "pending" in line], heard

    return follow


def test_why_a_job_waits_is_said_once_and_again_when_it_changes(followed, monkeypatch):
    monkeypatch.setattr(patience, "WAITING_SECONDS", 0.0)
    said, heard = followed(WAITS, WAITS, LIMITED, LIMITED, OVER)
    assert [line.rpartition(": ")[2] for line in said] == ["Resources", "PartitionTimeLimit"]
    assert [(how, why) for how, why in heard if how != "waits"] == [
        (how, why) for why in ("Resources", "PartitionTimeLimit") for how in ("waiting", "told")
    ]


def test_a_job_that_starts_soon_is_no_news(followed):
    said, heard = followed(WAITS, WAITS, LIMITED, Status(state="running", reason="node1"), OVER)
    # Only the terminal shows it, as long as it lasts.
    queue = "its place in the queue: "
    assert said == [] and heard == [("waits", f"{queue}{why}") for why in ("Resources", "PartitionTimeLimit")] + [
        ("waits", "")
    ]


def test_a_job_that_a_cancelled_run_ended_is_submitted_again_for_the_one_that_came_meanwhile(tmp_path):
    ended = Status(state="cancelled", reason="ended by SIGTERM", exit_code=75)
    handle = Handle(backend="fake", id="7", key="toys-1", folder=str(tmp_path))
    with Watching(tmp_path, run_id="a") as watching:
        assert _unless_ended(ended, handle, watching) == ended  # somebody else ended it, with scancel
        watching.note_end("7")
        seen = _unless_ended(ended, handle, watching)
        assert (seen.state, seen.exit_code) == ("failed", 75)


def test_a_job_that_somebody_ended_from_outside_is_a_sentence_with_its_step(tmp_path):
    (tmp_path / artifact.SCRATCH_FOLDER / "checkpoints" / "step-120").mkdir(parents=True)
    task = Task(key="toys-1", argv=(), size=Size(), folder=str(tmp_path))
    said = explain(Backend(), task, Status(state="cancelled", reason="CANCELLED", exit_code=75))
    assert "(CANCELLED); it saved its state at step 120" in said


def test_somebody_is_reminded_of_a_job_that_goes_on_waiting(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: clock[0])
    waiting, told = Patience(), []
    for clock[0] in range(0, 1300, 10):
        if waiting.is_due(WAITS):
            told.append(clock[0])
    assert told == [40, 650, 1260]


def test_numbers_and_texts_of_a_running_job_reach_the_tracked_run(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 2.5}\n{"step": 1, "sample": "stir the ⟶ soup"}\n{"step": 2, "loss": 2.4}\n'
    )
    rows, tags = [], {}
    run = SimpleNamespace(log_metrics=rows.extend, set_tags=tags.update)
    said = Reports(tmp_path, run, SimpleNamespace(observe=lambda numbers: None), None)
    said.forward(is_last=False)
    assert not said.is_saved
    assert [row["loss"] for row in rows] == [2.5, 2.4] and tags == {"sample/step 1": "stir the ⟶ soup"}


def test_steps_that_a_resumed_job_takes_again_are_tracked_once(tmp_path):
    first, again = Progress(tmp_path), Progress(tmp_path)
    rows = []
    run = SimpleNamespace(log_metrics=rows.extend)
    said = Reports(tmp_path, run, SimpleNamespace(observe=lambda numbers: None), None)
    for step in (0, 1, 2):
        first.log(step=step, loss=3.0 - step)
    said.forward(is_last=False)
    for step in (1, 2, 3):
        again.log(step=step, loss=3.0 - step, clipped_share=0.5)
    said.forward(is_last=True)
    for name, expected in {
        "loss": {0: 3.0, 1: 2.0, 2: 1.0, 3: 0.0},
        "clipped_share": dict.fromkeys((1, 2, 3), 0.5),
    }.items():
        points = [(row["step"], row[name]) for row in rows if name in row]
        assert points == [*expected.items()]
    assert all(row["time"] > 0 for row in rows)
    first.close()
    again.close()


def test_numbers_of_a_training_become_observations_of_its_asset_now_and_then_and_at_the_end(tmp_path, monkeypatch):
    clock = [0.0]
    run = SimpleNamespace(log_metrics=lambda rows: None)
    monkeypatch.setattr(reports.time, "monotonic", lambda: clock[0])
    written = {"loss": 2.5, "gradient_norm": 0.7, "tokens_per_second": 12_345.678, "data_wait_seconds": 1e-4}

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["kitchen"]))
    def base_model(context) -> None:
        training = Reports(tmp_path, run, Watch.of(context, Pipeline(root="nowhere")), None)
        progress = Progress(tmp_path)
        progress.log(step=0, held_out_bits_per_byte=4.0)
        for step in range(1, 9):
            training.forward(is_last=False)
            clock[0] += 25.0
            progress.log(step=step, **written)
        training.forward(is_last=False)
        training.forward(is_last=True)
        training.forward(is_last=True)
        progress.close()

    with dg.DagsterInstance.ephemeral() as instance:
        dg.materialize([base_model], partition_key="kitchen", instance=instance)
        found = instance.fetch_observations(dg.AssetKey("base_model"), limit=100).records[::-1]
    shown = [{k: v.value for k, v in one.asset_observation.metadata.items()} for one in found]
    assert [row["step"] for row in shown] == [1.0, 4.0, 7.0, 8.0]
    assert shown[0] == {"step": 1.0, **written, "tokens_per_second": 12345.7}
    assert {one.asset_observation.partition for one in found} == {"kitchen"}


def test_metadata_has_numbers_first_in_digits_that_people_read(tmp_path):
    record = {
        "asset": "base_model",
        "partition": "kitchen",
        "fingerprint": "f",
        "digest": "d",
        "seconds": 7.2,
        "cost": {"node_hours": 0.002, "price": 0.005, "cpu_seconds": 9.0},
        "inputs": [],
        "files": [{"path": "a.json", "bytes": 3}, {"path": "dropped/a.parquet", "bytes": 4}],
        "counts": {"in": 3, "kept": 2, "dropped": {"short": 1}, "quarantined": {}},
        "metrics": {"loss_end": 3.615560603141785, "tokens": 1234567.0},
    }
    (tmp_path / "artifact.json").touch()
    made = Made(
        cell=None, artifact=Artifact(path=tmp_path, record=record), reused=True, seconds=0.1, mlflow_url="http://m"
    )
    shown = {name: getattr(value, "value", value) for name, value in metadata_of(made).items()}
    assert (shown["price"], shown["bytes"], shown["kept_fraction"]) == (0.005, 7, 0.6667)
    assert (shown["loss_end"], shown["tokens"]) == (3.61556, 1234567.0)
    assert list(shown)[:2] == ["reused_from", "made_at"] and shown["reused_from"] == "kitchen"
    assert shown["made_at"] == (tmp_path / "artifact.json").stat().st_mtime
    assert "reused_from" not in metadata_of(replace(made, reused=False))
    assert list(shown)[-6:] == ["mlflow_run", "folder", "log", "fingerprint", "digest", "record_digest"]
    free = {**record, "cost": {"node_hours": 0.002}}
    assert "price" not in metadata_of(replace(made, artifact=Artifact(path=tmp_path, record=free)))


def test_a_job_knows_the_price_of_its_profile():
    assert run_settings(Size(price_per_hour=2.5)).price_per_hour == 2.5


def test_slurm_says_what_to_do_about_a_job_that_will_not_start():
    status = status_of({"JobState": "PENDING", "Reason": "PartitionTimeLimit"})
    assert status.state == "pending" and "lower `hours` in the profile" in status.reason
    assert status_of({"JobState": "PENDING", "Reason": "None"}).reason == "None"


STUCK = {"PartitionConfig", "BadConstraints", "InvalidQOS", "JobHeldUser", "QOSMaxWallDurationPerJobLimit"}
STUCK |= {"AssocMaxGRESPerJob", "AssocMaxCpuPerNode", "QOSMinGRES", "MaxMemPerLimit", "job_requeued_in_held_state"}
PASSING = {"Resources", "Priority", "QOSMaxJobsPerUserLimit", "AssocGrpGRES", "MaxCpuPerAccount", "AssocMaxJobsLimit"}
PASSING |= {"ReqNodeNotAvail,_UnavailableNodes:node[1-2]"}


@pytest.mark.parametrize("reason", sorted(STUCK | PASSING))
def test_every_reason_has_a_sentence_and_is_said_at_once_where_no_waiting_ends_it(reason):
    status = status_of({"JobState": "PENDING", "Reason": reason})
    assert status.reason.startswith(f"{reason}: ") and len(status.reason) > len(reason) + 15
    assert status.is_stuck == Patience().is_due(status) == (reason in STUCK)

"""Follow a job from its submission to its artifact: attempts, waiting, and what happens if the run is cancelled."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.graph.bill import Bill, settled
from assets.graph.budget import OF_RUN
from assets.materialize.causes import FINAL_EXIT_CODES, StageFailed, as_told, explain, saved
from assets.materialize.events import announce
from assets.materialize.jobs import hand_over, note_versions, task_of
from assets.materialize.patience import Patience, Retries
from assets.materialize.reports import Reports
from assets.materialize.watchers import Watching
from assets.registry.numbers import row_of
from assets.state.liveness import Watcher
from resources.compute.base import HANDLE_FILE, Backend, Handle, NotSubmitted, Status, Task
from resources.tracking.reports import RunStatus, StageRun
from training.contract import artifact
from training.contract.artifact import Artifact
from training.contract.files.stored_root import bring_marks
from training.contract.files.written_lines import SEND_SECONDS, Follower
from training.contract.job import DataError, Job
from training.contract.process.exit_codes import BAD_INPUT, BUSY, REQUEUE
from training.contract.stored_state import saved_step

if TYPE_CHECKING:
    from assets.graph.pipeline import Pipeline
    from assets.materialize.watch import Watch
    from assets.state.cell import Cell

NOT_ASKED = ("champion",)  # known only when the job runs, and another one when it is decided again
BUSY_SECONDS = 2.0
TAKEN = ("preempted", "requeued", "node_fail")  # causes for which an attempt lost its nodes


def run_job(job: Job, cell: Cell, pipeline: Pipeline, watch: Watch, watching: Watching) -> tuple[Artifact, str]:
    """Submit the job, or find it if it is already submitted, and wait for its artifact.

    Returns the artifact and the URL of the job's run in MLflow. Raises StageFailed if the job ends without an artifact.
    """
    profile = pipeline.loaded_profile()
    backend, size = profile.backend_for(cell.asset), profile.size_for(cell.asset)
    task = task_of(job, size, profile.withheld)
    note_versions(job, size)
    run, *others = (_tracked(one, pipeline, watch) for one in (job, *job.on_the_way))
    following = Following(
        backend=backend,
        task=task,
        run=run,
        watch=watch,
        cell=cell,
        watching=watching,
    )
    try:
        made = following.made()
    except StageFailed:
        watch.observe({OF_RUN: following.bill().node_hours()})
        run.finish("FAILED")
        _finish_passed(job, others, "FAILED")
        raise
    except BaseException:
        # If the orchestrator stops or dies, the job keeps running and is found again later.
        if watch.is_canceling():
            following.leave()
        run.finish("KILLED")
        _finish_passed(job, others, "KILLED")
        raise
    _log(run, made)
    run.finish("FINISHED")
    _finish_passed(job, others, "KILLED")
    return made, run.url


def _log(run: StageRun, made: Artifact) -> None:
    run.set_tags({"digest": made.digest, "record_digest": made.record_digest})
    run.log_metrics([row_of(made)])


def _finish_passed(job: Job, runs: Iterable[StageRun], otherwise: RunStatus) -> None:
    """Close the runs of what a job makes on its way: what is made is finished, however the job itself ended."""
    for one, run in zip(job.on_the_way, runs, strict=True):
        if (made := artifact.find(Path(one.output))) is not None:
            _log(run, made)
        run.finish("FINISHED" if made is not None else otherwise)


def _tracked(job: Job, pipeline: Pipeline, watch: Watch) -> StageRun:
    """Open the job's run in MLflow with its tags, log its inputs and settings, and return the run."""
    recipe = json.loads((Path(job.output) / "recipe.json").read_text("utf-8"))
    run = pipeline.tracking().stage_run(
        watch.launch,
        asset=job.asset,
        partition=job.partition,
        fingerprint=job.fingerprint,
        tags={
            "dagster/run_id": watch.run_id,
            "dagster/asset_key": job.asset,
            "dagster/partition": job.partition,
            "recipe": job.recipe,
            "recipe_digest": artifact.digest_of(recipe),
        },
    )
    names = ("asset", "partition", "fingerprint", "digest", "path")
    inputs = [*((item, item.asset) for item in job.inputs), *((item, f"guard: {item.asset}") for item in job.guards)]
    run.log_inputs([{name: getattr(item, name) for name in names} | {"context": what} for item, what in inputs])
    asked = {name: part for name, part in job.settings.items() if name not in NOT_ASKED}
    run.log_params({**asked, "stage_version": job.stage_version, "seed": job.seed})
    return run


@dataclass(frozen=True, kw_only=True, slots=True)
class Following:
    """A task that a Dagster run submits, or finds already submitted, and watches until it succeeds or finally fails."""

    backend: Backend
    task: Task
    run: StageRun
    watch: Watch
    cell: Cell
    watching: Watching

    @property
    def folder(self) -> Path:
        """The folder of the artifact that the job makes."""
        return Path(self.task.folder)

    def bill(self) -> Bill:
        """Return the bill of the artifact, for what this run sees."""
        return Bill(self.folder, backend=self.backend.name, run=self.watching.run_id)

    def made(self) -> Artifact:
        """Return the artifact, after as many attempts at the job as the profile's `retries` allow.

        Raises StageFailed with the reason why the last attempt ended.
        """
        retries = Retries(self.task.size.retries, self.folder)
        while True:
            status = self.attempt()
            made = artifact.find(self.folder)
            if made is not None:
                return settled(made, self.task.size.price_per_hour)
            if status.exit_code == REQUEUE and status.state != "cancelled":
                ended = f"ended ({status.reason})" if status.was_ended else f"{saved(self.folder)} and stopped"
                tell(f"its job {ended}; submitting it again", self.cell, self.watch)
            elif status.exit_code == BUSY:
                self.watch.say(f"{self.task.key} is being made by another run; waiting for it")
                announce("waits", self.cell, {"for": "another run, which is making it"})
                time.sleep(BUSY_SECONDS)
            elif status.state == "cancelled" or status.exit_code in FINAL_EXIT_CODES or not retries.take():
                why = explain(self.backend, self.task, status)
                raise StageFailed(f"{self.cell.asset} [{self.cell.partition}]: {why}", status.exit_code)
            else:
                self.watch.say(
                    f"{self.task.key} ended without its artifact ({status.reason}){retries.why}; trying again, "
                    f"{retries.left} tries left after it"
                )

    def attempt(self) -> Status:
        """Submit one attempt, or find the one that is running, watch it to its end, and return its final status."""
        sent = _Sent(self.task, self.watch) if self.task.node_folder else None
        try:
            handle = self._submitted()
        except NotSubmitted as error:
            code = BAD_INPUT if error.is_refused else None
            raise StageFailed(f"{self.cell.asset} [{self.cell.partition}]: {error}", code) from None
        reports = Reports(self.folder, self.run, self.watch, self.cell)
        patience, told, queue = Patience(), set[str](), ""
        bill = self.bill()
        while True:
            status = self.backend.poll(handle)
            for news in news_of(bill.follow(status)):
                tell(news, self.cell, self.watch)
            if queue != (queue := status.reason if status.state == "pending" else ""):
                announce("waits", self.cell, {"for": f"its place in the queue: {queue}" if queue else ""})
            if sent is not None:
                sent.bring(at_once=status.is_over)
            if self.task.num_tasks > 1:
                reports.count_ranks()
            for left in self.watching.news():
                tell(f"{left} has left; the job goes on", self.cell, self.watch)
            if patience.is_due(status):
                self._say_waiting(status, patience.seconds, told)
            given_up = patience.given_up(status, self.task.size.max_pending_hours)
            if given_up is not None:
                self.watching.leave(lambda: self.backend.cancel(handle))
                return given_up
            reports.forward(is_last=status.is_over)
            if status.is_over:
                ended = as_told(status, self.folder, is_saved=reports.is_saved)
                return _unless_ended(ended, handle, self.watching)
            time.sleep(self.backend.poll_seconds)

    def _submitted(self) -> Handle:
        """Return the handle of the task's job, which still runs or is submitted now."""
        handle = self._running()
        if handle is not None:
            self.watch.say(f"found {self.task.key} on {self.backend.name} as {handle.id}; going on watching it")
            others = self.watching.others
            tell(f"its job is watched by {_names(others)} too", self.cell, self.watch, bool(others))
            return handle
        if self.task.node_folder:
            hand_over(self.task)
        handle = self.backend.submit(self.task)
        artifact.write_json(self.folder / HANDLE_FILE, handle.as_json())
        self.watch.say(
            f"submitted {self.task.key} to {self.backend.name} as {handle.id}; log: {self.folder / 'log.txt'}"
        )
        return handle

    def _running(self) -> Handle | None:
        """Return the handle of the task's job if it still runs.

        With it, a restarted orchestrator never starts the job twice.
        """
        handle = self.backend.find(self.task.key, self.task.folder)
        if handle is None:
            return None
        status = self.backend.poll(handle)
        if status.is_over:  # while nobody followed it; the next submission removes what its backend knows
            self.bill().note(status.allocations)
            return None
        return handle

    def _say_waiting(self, status: Status, seconds: float, told: set[str]) -> None:
        """Log and announce why the job waits.

        Each reason is posted to the webhook only once; `told` holds the reasons already posted.
        """
        self.watch.say(f"{self.task.key} is {status.state} for {seconds:.0f} s: {status.reason}")
        said = {"state": status.state, "reason": status.reason, "is_stuck": status.is_stuck}
        announce("waiting", self.cell, {**said, "seconds": seconds})
        if status.reason not in told:
            told.add(status.reason)
            self.watch.tell_waiting(self.cell, f"pending for {seconds:.0f} s: {status.reason}")

    def leave(self) -> None:
        """Stop watching the job because this run is cancelled; end the job if no other run watches it."""

        def end() -> None:
            handle = self._running()
            if handle is not None:
                self.watching.note_end(handle.id)  # before the cancellation: this process may be killed in between
                self.backend.cancel(handle)

        others = self.watching.leave(end)
        has_step = saved_step(self.folder) is not None
        kept = f"it {saved(self.folder)}" if has_step else "finished ranks are kept"
        tell(
            f"this run was cancelled; the job goes on, watched by {_names(others)}"
            if others
            else f"this run was cancelled and no other one watches the job, which was ended; {kept}",
            self.cell,
            self.watch,
        )


class _Sent:
    """What the nodes of a job sent that do not see its folder: brought at once, and then every SEND_SECONDS.

    A store that does not answer is a line in Dagster's log, and no end of the job.
    """

    def __init__(self, task: Task, watch: Watch) -> None:
        self._folder, self._watch, self._is_fan_out = Path(task.folder), watch, task.num_tasks > 1
        self._follower = Follower(self._folder)
        self.bring(at_once=True)

    def bring(self, *, at_once: bool) -> None:
        """Copy new lines of log and metrics from the root's store into the artifact's folder on this machine.

        Without `at_once` nothing is done until SEND_SECONDS have passed since the last time.
        """
        if not at_once and time.monotonic() - self._at < SEND_SECONDS:
            return
        self._at = time.monotonic()
        try:
            self._follower.bring()
            if self._is_fan_out or at_once:
                bring_marks(self._folder)
        except (OSError, DataError) as error:
            self._watch.say(f"what the job's nodes sent cannot be read: {error}")


def news_of(changes: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """Sentences about the nodes that a job got or lost; of a fan-out's many tasks only about those that lost theirs."""
    news = []
    for before, row in changes:
        nodes = row.get("names", "")
        who = f"attempt {row['attempt']}"
        if row["cause"] in TAKEN and row["cause"] != before.get("cause"):
            after = f" after {row['end'] - row['begin']:.0f} s" if row["begin"] and row["end"] else ""
            news.append(f"{who} was {row['cause']}{after}{f' on {nodes}' if nodes else ''}")
        elif nodes and nodes != before.get("names") and not row["end"] and "_" not in row["attempt"]:
            news.append(f"{who} runs on {nodes}")
    return news


def _unless_ended(status: Status, handle: Handle, watching: Watching) -> Status:
    """Return the job's status, changed if another run ended the job when that run was cancelled.

    The changed status says that the job stopped with its state saved, so that this run submits it again.
    """
    if status.state == "cancelled" and watching.has_ended(handle.id):
        return replace(status, state="failed", exit_code=REQUEUE)
    return status


def tell(text: str, cell: Cell, watch: Watch, is_news: bool = True) -> None:
    """Write `text` to Dagster's log and, if `is_news` is true, to the terminal."""
    if is_news:
        watch.say(text)
        announce("told", cell, {"text": text})


def _names(watchers: list[Watcher]) -> str:
    return ", ".join(map(str, watchers))

"""The one bridge between Dagster and the stages: declare, submit, watch, record.

An asset calls `materialize`; what happens next is: compare, reuse or submit, follow the job's own files, write the
reference, and say in metadata, data version and checks what came out.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg

from assets.budget import stands_in_the_way
from assets.causes import (
    BAD_INPUT_EXIT_CODE,
    BUSY_EXIT_CODE,
    FINAL_EXIT_CODES,
    REFUSED_EXIT_CODE,
    REQUEUE_EXIT_CODE,
    as_told,
    explain,
    saved,
)
from assets.chain import CHAIN
from assets.exact import compare_exactly
from assets.found import aside, write_reference
from assets.notices import tell
from assets.patience import Patience, Retries
from assets.recipe_folders import load_recipe, recipe_folders
from assets.settings import OTHER_CODE, observe_used
from assets.status import START_ANEW, Cell, Comparison, check_begun, compare, held_digests, mend, seed_of
from assets.watchers import Watcher, Watching, tidy
from assets.witnesses import contradiction, told_otherwise
from resources.compute.base import Handle, Status, Task
from resources.profile import Profile, Size, load_profile
from resources.tracking import Tracking, artifact_key
from training import artifact
from training.artifact import Artifact
from training.job import DataError, InputArtifact, Job, RunSettings, write_job
from training.leftovers import remove_state
from training.progress import MESSAGES_FILE, METRICS_FILE, SAVED
from training.recipe import Recipe, recipe_as_data
from training.records import read_record
from training.stage import Asset

log = logging.getLogger(__name__)

HANDLE_FILE = "handle.json"
BUSY_SECONDS = 2.0
# Of the orchestrator's environment; a proxy's address may hold a password, which no job file is to hold.
PASSED_VARIABLES = ("PEDIGREE_DATA", "OMP_WAIT_POLICY", "PEDIGREE_FETCH_ALLOW", "PEDIGREE_FETCH_MAX_GB")
WAY_OUT = "put it back from a backup, or have `pedigree verify RECIPE --mend` set it aside to be made again"
SAMPLE_CHARACTERS = 2000  # of a text in a tag of a tracked run
OBSERVED_SECONDS = 60.0  # between two observations of a training


class StageFailed(RuntimeError):
    """A stage ended without its artifact. `exit_code` is the job's, or None when the backend lost it."""

    def __init__(self, message: str, exit_code: int | None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Pipeline(dg.ConfigurableResource):
    """Where artifacts live and which profile runs them. `cancels_on_interrupt`: Ctrl-C in a terminal ends the jobs
    too."""

    root: str
    profile: str = "local"
    cancels_on_interrupt: bool = False
    resolved_recipe: str = ""
    exact: bool = False  # what other code of the same version made is made again

    @property
    def root_path(self) -> Path:
        """The folder of artifacts and references, absolute: a job may run in another working directory."""
        return Path(self.root).resolve()

    def recipe(self, partition: str) -> Recipe:
        """The recipe of a partition key."""
        name = partition.partition("@")[0]
        if self.resolved_recipe and (data := json.loads(self.resolved_recipe))["name"] == name:
            return read_record(Recipe, data)
        return load_recipe(name, recipe_folders(self.root_path))

    def compared(self, recipe: Recipe) -> Comparison:
        """The recipe against the artifacts, as this run asks for them."""
        if self.exact:
            return compare_exactly(recipe, self.root_path, self.tracking())
        return compare(recipe, self.root_path)

    def loaded_profile(self) -> Profile:
        """The profile record."""
        return load_profile(self.profile)

    def tracking(self) -> Tracking:
        """The MLflow side of this root."""
        return tracking_of(self.root_path, self.loaded_profile())


def silent(kind: str, cell: Cell, values: dict[str, Any]) -> None:
    """Announce nothing, for runs without a terminal; they have Dagster's event log."""


# Who hears `started`, `waiting`, `told`, `progress`, `made` and `reused` in this process: `pedigree run` shows them.
announce: Callable[[str, Cell, dict[str, Any]], None] = silent


def tracking_of(root: Path, profile: Profile) -> Tracking:
    """One tracking client a root and process: opening one costs seconds."""
    key = (root, profile.tracking_uri)
    if key not in _TRACKING:
        _TRACKING[key] = Tracking(profile.tracking_uri, root)
    return _TRACKING[key]


_TRACKING: dict[tuple[Path, str], Tracking] = {}


@dataclass(frozen=True, kw_only=True)
class Made:
    """A cell's artifact, and how it came about in this materialization."""

    cell: Cell
    artifact: Artifact
    reused: bool
    seconds: float
    mlflow_url: str
    other_code: tuple[str, ...] = ()  # of what is reused: the modules that made it and are not as they are now

    @cached_property
    def record(self) -> dict[str, Any]:
        """The artifact's `artifact.json`."""
        return self.artifact.record


def materialize(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """Make what one asset and partition lack, and report it to Dagster."""
    declared = CHAIN[context.asset_key.path[-1]]
    cell, comparison = asked_of(context, pipeline)
    try:
        made = make(cell, comparison, pipeline, Watch.of(context, pipeline))
    except StageFailed as failure:
        raise dg.Failure(
            description=str(failure),
            allow_retries=failure.exit_code in (None, 1),
            metadata={"exit_code": failure.exit_code or 1},
        ) from None
    return result_of(declared, made)


def asked_of(context: dg.AssetExecutionContext, pipeline: Pipeline) -> tuple[Cell, Comparison]:
    """The cell that a materialization is to make, among the recipe's others; Dagster is told what it asks for."""
    comparison = pipeline.compared(pipeline.recipe(context.partition_key))
    cell = comparison.cells[context.asset_key.path[-1], context.partition_key]
    observe_used(context, cell)
    return cell, comparison


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The Dagster run that follows a job: its identity, and how to log, report numbers, and ask whether it was
    cancelled."""

    launch: str
    run_id: str
    say: Callable[[str], None]
    is_canceling: Callable[[], bool]
    observe: Callable[[dict[str, Any]], None]  # numbers of a training at a step, which Dagster plots
    tell_waiting: Callable[[Cell, str], None] = lambda cell, cause: None  # the profile's webhook
    stands_in_the_way: Callable[[Recipe, str], str] = lambda recipe, asset: ""  # of automation's runs: why, if it does
    told_otherwise: Callable[[Cell], str] = lambda cell: ""  # the digest of another record that Dagster was told of
    starts_anew: bool = False  # also a training that stands at some step under other settings

    @staticmethod
    def of(context: dg.AssetExecutionContext, pipeline: Pipeline) -> Watch:
        """From a Dagster run. A backfill's runs share one launch."""
        tags = context.run.tags
        launch = tags.get("pedigree/launch") or tags.get("dagster/backfill") or context.run.run_id

        def is_canceling() -> bool:
            run = context.instance.get_run_by_id(context.run.run_id)
            return pipeline.cancels_on_interrupt or (run is not None and run.status in _CANCELLED)

        def tell_waiting(cell: Cell, cause: str) -> None:
            where = {"asset": cell.asset, "partition": cell.partition, "run_id": context.run.run_id}
            tell(pipeline.loaded_profile().notify, "waiting", cause=cause, **where)

        def budget(recipe: Recipe, asset: str) -> str:
            return stands_in_the_way(context.run, context.instance, recipe, asset, pipeline.loaded_profile())

        def observe(numbers: dict[str, Any]) -> None:
            metadata = {name: _readable(float(value)) for name, value in numbers.items()}
            context.log_event(
                dg.AssetObservation(context.asset_key, partition=context.partition_key, metadata=metadata)
            )

        return Watch(
            launch=launch,
            run_id=context.run.run_id,
            say=context.log.info,
            is_canceling=is_canceling,
            observe=observe,
            tell_waiting=tell_waiting,
            stands_in_the_way=budget,
            told_otherwise=lambda cell: told_otherwise(cell, context.instance),
            starts_anew=tags.get(START_ANEW) == "true",
        )


_CANCELLED = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)


def make(cell: Cell, comparison: Comparison, pipeline: Pipeline, watch: Watch) -> Made:
    """The cell's artifact: reused when it is there, otherwise from a job. StageFailed says what stood in the way."""
    started = time.monotonic()
    refused = comparison.refused_by(cell)
    if refused is not None:
        gate = refused.artifact.failed_gates[0]  # type: ignore[union-attr]
        raise StageFailed(
            f"{refused.asset} [{refused.partition}] was refused by its gate {gate['name']}: "
            f"{artifact.canonical_json(gate['evidence'])}",
            REFUSED_EXIT_CODE,
        )
    cell = unless_rewritten(cell, watch)
    if cell.artifact is not None:
        for line in mend(cell, pipeline.root_path) if cell.state == "damaged" else ():
            _tell(line, cell, watch)
        tidy(cell.artifact.path)
        write_reference(pipeline.root_path, cell.artifact, cell.partition)
        announce("reused", cell, {})
        url = pipeline.tracking().run_url(artifact_key(cell.asset, cell.fingerprint))
        return Made(
            cell=cell,
            artifact=cell.artifact,
            reused=True,
            seconds=time.monotonic() - started,
            mlflow_url=url,
            other_code=cell.other_code,
        )
    if not watch.starts_anew:
        try:
            check_begun(cell, comparison)
        except DataError as error:
            raise StageFailed(str(error), BAD_INPUT_EXIT_CODE) from None
    if reason := watch.stands_in_the_way(comparison.recipe, cell.asset):
        raise StageFailed(f"{cell.asset} [{cell.partition}]: {reason}", BAD_INPUT_EXIT_CODE)
    job = job_of(cell, comparison, pipeline.loaded_profile().size_for(cell.asset))
    _set_aside(cell, Path(job.output), watch)
    write_job(job, Path(job.output) / "job.json")
    artifact.write_json(Path(job.output) / "recipe.json", recipe_as_data(comparison.recipe))
    announce("started", cell, {})
    with Watching(Path(job.output), run_id=watch.run_id, launch=watch.launch) as watching:
        made, url = _run(job, cell, pipeline, watch, watching)
    remove_state(made.path)
    write_reference(pipeline.root_path, made, cell.partition)
    announce("made", cell, made.record)
    return Made(cell=cell, artifact=made, reused=False, seconds=time.monotonic() - started, mlflow_url=url)


def unless_rewritten(cell: Cell, watch: Watch) -> Cell:
    """The cell, where Dagster was told of its record last, or of none: a reuse is told too, and what was told before
    would be lost. StageFailed when it was told of another one.

    One that says it was made in place of that one may be true, where a run was killed before it could tell. It is made
    again, which costs less than to believe it; a training is left to a person.
    """
    if cell.artifact is None or not (told := watch.told_otherwise(cell)):
        return cell
    said = contradiction(cell.artifact, "Dagster", {told})
    if told not in cell.artifact.stands_for or CHAIN[cell.asset].stage.distributed:
        raise StageFailed(f"{cell.asset} [{cell.partition}]: {said}; {WAY_OUT}", REFUSED_EXIT_CODE)
    _tell(f"{said}; it is made again", cell, watch)
    return replace(cell, artifact=None)


def job_of(cell: Cell, comparison: Comparison, size: Size) -> Job:
    """The job that makes a cell. StageFailed names the first input that is not made."""
    stage = CHAIN[cell.asset].stage
    inputs = []
    for key in cell.inputs:
        made = comparison.cells[key].artifact
        if made is None:
            raise StageFailed(f"{key[0]} [{key[1]}] is not made; materialize it first", BAD_INPUT_EXIT_CODE)
        inputs.append(
            InputArtifact(
                asset=key[0],
                partition=key[1],
                fingerprint=made.fingerprint,
                digest=made.digest,
                record_digest=made.record_digest,
                path=str(made.path),
                numerics=made.record.get("numerics"),
            )
        )
    return Job(
        stage=stage.name,
        asset=cell.asset,
        partition=cell.partition,
        recipe=comparison.recipe.name,
        fingerprint=cell.fingerprint,
        stage_version=stage.version,
        settings=cell.settings,
        inputs=tuple(inputs),
        output=str(artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)),
        run=run_settings(size),
        seed=seed_of(cell.settings),
        libraries=stage.library_versions(),
        code_revision=code_revision(),
        replaces=held_digests(comparison, cell),
    )


def run_settings(size: Size) -> RunSettings:
    """The settings of the profile's size that a stage gets with its job."""
    return RunSettings(
        workers=size.workers,
        threads=size.threads,
        processes=size.processes,
        nodes=size.nodes,
        gpus_per_node=size.gpus_per_node,
        micro_batch_tokens=size.micro_batch_tokens,
        checkpoint_seconds=size.checkpoint_seconds,
        shard=size.shard,
        tensor=size.tensor,
        context=size.context,
        expert=size.expert,
        pipeline=size.pipeline,
        pipeline_chunks=size.pipeline_chunks,
        audit=size.audit,
        hang_seconds=size.hang_seconds,
        compile=size.compile,
        recompute=size.recompute,
        memory_gb=size.memory_gb,
        sample_steps=size.sample_steps,
        evaluation_steps=size.evaluation_steps,
        price_per_hour=size.price_per_hour,
    )


def _set_aside(cell: Cell, folder: Path, watch: Watch) -> None:
    """Rename the folder of this fingerprint when it holds a damaged artifact, or one whose inputs were made again with
    another result."""
    if (folder / artifact.ARTIFACT_FILE).exists():
        kept = aside(folder, "damaged" if cell.state == "damaged" else "replaced")
        if cell.state == "damaged":
            _tell(f"is damaged ({cell.reasons[0]}); set aside as {kept.name} and made again", cell, watch)


def code_revision() -> str:
    """The project's git commit, or "" outside a checkout. For the record only; no part of an identity."""
    project = Path(__file__).parent.parent
    if not (project / ".git").exists():
        return ""  # installed; a repository around it would be somebody else's
    try:
        asked = subprocess.run(
            ["git", "-C", str(project), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return asked.stdout.strip()


# Running and following


def _run(job: Job, cell: Cell, pipeline: Pipeline, watch: Watch, watching: Watching) -> tuple[Artifact, str]:
    """Submit the job, or find the one that is already on its way, and follow it to its artifact."""
    profile = pipeline.loaded_profile()
    folder = Path(job.output)
    backend = profile.backend_for(cell.asset)
    run = pipeline.tracking().stage_run(
        watch.launch,
        asset=cell.asset,
        partition=cell.partition,
        fingerprint=cell.fingerprint,
        tags={
            "dagster/run_id": watch.run_id,
            "dagster/asset_key": cell.asset,
            "dagster/partition": cell.partition,
            "recipe": job.recipe,
            "recipe_digest": artifact.digest_of(json.loads((folder / "recipe.json").read_text("utf-8"))),
        },
    )
    run.log_inputs(
        [
            {
                "asset": i.asset,
                "partition": i.partition,
                "fingerprint": i.fingerprint,
                "digest": i.digest,
                "path": i.path,
            }
            for i in job.inputs
        ]
    )
    task = Task(
        key=artifact_key(cell.asset, cell.fingerprint),
        argv=("-m", CHAIN[cell.asset].stage.package, str(folder / "job.json")),
        size=profile.size_for(cell.asset),
        folder=str(folder),
        environment=_environment(),
        num_tasks=_num_tasks(CHAIN[cell.asset], profile.size_for(cell.asset)),
    )
    try:
        made = _attempts(backend, task, run, watch, cell, watching)
    except StageFailed:
        run.finish("FAILED")
        raise
    except BaseException:
        # An orchestrator that is stopped or dies leaves the job running, to be found again.
        if watch.is_canceling():
            _leave(backend, task, folder, watch, cell, watching)
        run.finish("KILLED")
        raise
    run.set_tags({"digest": made.digest, "record_digest": made.record_digest})
    run.finish("FINISHED")
    return made, run.url


def _attempts(backend: Any, task: Task, run: Any, watch: Watch, cell: Cell, watching: Watching) -> Artifact:
    """The artifact, from as many attempts as the profile's `retries` allow. StageFailed says how the last one ended."""
    folder = Path(task.folder)
    retries = Retries(task.size.retries, folder)
    while True:
        status = _follow(backend, task, folder, run, watch, cell, watching)
        made = artifact.find(folder)
        if made is not None:
            return made
        if status.exit_code == REQUEUE_EXIT_CODE and status.state != "cancelled":
            ended = f"ended ({status.reason})" if status.was_ended else f"{saved(folder)} and stopped"
            watch.say(f"{task.key} {ended}; submitting it again")
        elif status.exit_code == BUSY_EXIT_CODE:
            watch.say(f"{task.key} is being made by another run; waiting for it")
            time.sleep(BUSY_SECONDS)
        elif status.state == "cancelled" or status.exit_code in FINAL_EXIT_CODES or not retries.take():
            raise StageFailed(f"{cell.asset} [{cell.partition}]: {explain(backend, task, status)}", status.exit_code)
        else:
            watch.say(
                f"{task.key} ended without its artifact ({status.reason}){retries.why}; trying again, "
                f"{retries.left} tries left after it"
            )


def _follow(backend: Any, task: Task, folder: Path, run: Any, watch: Watch, cell: Cell, watching: Watching) -> Status:
    handle = _running(backend, task, folder)
    if handle is None:
        handle = backend.submit(task)
        artifact.write_json(folder / HANDLE_FILE, handle.as_json())
        watch.say(f"submitted {task.key} to {backend.name} as {handle.id}; log: {folder / 'log.txt'}")
    else:
        watch.say(f"found {task.key} on {backend.name} as {handle.id}; going on watching it")
        _tell(f"its job is watched by {_names(watching.others)} too", cell, watch, bool(watching.others))
    # Metrics from the first line: MLflow counts equal rows once, and those written while nobody watched are not lost.
    metrics, messages = Tail(folder / METRICS_FILE), Tail(folder / MESSAGES_FILE, from_end=True)
    patience, told, is_saved, training = Patience(), set[str](), False, Observed(watch)
    while True:
        status = backend.poll(handle)
        for left in watching.renew():
            _tell(f"{left} has left; the job goes on", cell, watch)
        if patience.is_due(status):
            watch.say(f"{task.key} is {status.state} for {patience.seconds:.0f} s: {status.reason}")
            announce("waiting", cell, {"state": status.state, "reason": status.reason, "seconds": patience.seconds})
            if status.reason not in told:  # once a reason: a message a reminder would be noise
                told.add(status.reason)
                watch.tell_waiting(cell, f"pending for {patience.seconds:.0f} s: {status.reason}")
        given_up = patience.given_up(status, task.size.max_pending_hours)
        if given_up is not None:
            watching.leave(lambda: backend.cancel(handle))
            return given_up
        rows, saved = _forward(metrics, messages, run, watch, cell)
        training.see(rows, is_last=status.is_over)
        is_saved |= saved
        if status.is_over:
            return _unless_ended(as_told(status, folder, is_saved=is_saved), handle, watching)
        time.sleep(backend.poll_seconds)


def _unless_ended(status: Status, handle: Handle, watching: Watching) -> Status:
    """The job's status. A job that a cancelled run ended before this run came to watch it counts as saved, so that this
    run submits it again."""
    if status.state == "cancelled" and watching.has_ended(handle.id):
        return replace(status, state="failed", exit_code=REQUEUE_EXIT_CODE)
    return status


def _leave(backend: Any, task: Task, folder: Path, watch: Watch, cell: Cell, watching: Watching) -> None:
    """Leave a job because this run is cancelled; the last one that leaves ends it."""

    def end() -> None:
        handle = _running(backend, task, folder)
        if handle is not None:
            watching.note_end(handle.id)  # first: a kill may come in between
            backend.cancel(handle)

    others = watching.leave(end)
    kept = f"it {saved(folder)}" if artifact.checkpoint_step(folder) is not None else "finished ranks are kept"
    _tell(
        f"this run was cancelled; the job goes on, watched by {_names(others)}"
        if others
        else f"this run was cancelled and no other one watches the job, which was ended; {kept}",
        cell,
        watch,
    )


def _tell(text: str, cell: Cell, watch: Watch, is_news: bool = True) -> None:
    """Say something in Dagster's log and in the terminal."""
    if is_news:
        watch.say(text)
        announce("told", cell, {"text": text})


def _names(watchers: list[Watcher]) -> str:
    return ", ".join(map(str, watchers))


def _running(backend: Any, task: Task, folder: Path) -> Handle | None:
    """The job with this key that still runs, so that a restarted orchestrator never starts it twice."""
    handle = backend.find(task.key, task.folder)
    if handle is None or backend.poll(handle).is_over:
        return None
    return handle


class Observed:
    """A training's numbers for Dagster: the newest ones every OBSERVED_SECONDS, and the last ones."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self._row = watch, {}
        self._observed_at = time.monotonic() - OBSERVED_SECONDS

    def see(self, rows: list[dict[str, Any]], *, is_last: bool) -> None:
        """Take note of new rows of metrics; those without a loss are no training's."""
        self._row = next((row for row in reversed(rows) if "loss" in row), self._row)
        if self._row and (is_last or time.monotonic() - self._observed_at > OBSERVED_SECONDS):
            self._watch.observe({name: value for name, value in self._row.items() if name != "time"})
            self._row, self._observed_at = {}, time.monotonic()


def _forward(metrics: Tail, messages: Tail, run: Any, watch: Watch, cell: Cell) -> tuple[list[dict[str, Any]], bool]:
    """Pass on what the job has written since the last call. Returns the new rows, and whether the job said that it
    saved its state and stops."""
    new = metrics.new_rows()
    rows = [row for row in new if "sample" not in row]
    if rows:
        run.log_metrics(rows)
        announce("progress", cell, rows[-1])
    samples = {f"sample/step {row['step']}": row["sample"][:SAMPLE_CHARACTERS] for row in new if "sample" in row}
    if samples:
        run.set_tags(samples)
    is_saved = False
    for message in messages.new_rows():
        if message.get("method") == "log":
            watch.say(message["params"]["message"])
        is_saved |= message.get("method") == "report_custom_message" and SAVED in message["params"]["payload"]
    return rows, is_saved


class Tail:
    """New whole lines of a growing JSON-lines file, from its beginning or from its present end."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def new_rows(self) -> list[dict[str, Any]]:
        """The rows written since the last call; a torn last line waits for the next one."""
        if not self._path.exists():
            return []
        with open(self._path, "rb") as stream:
            stream.seek(self._offset)
            data = stream.read()
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [row for line in whole.splitlines() if (row := _row(line)) is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None  # a line torn by a kill; Progress closes it before it writes on


def _environment() -> dict[str, str]:
    """Variables a job needs, by name: nothing else of the orchestrator's environment is promised to it."""
    fixed = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
        # Threads wait some microseconds before they sleep: the loops of a small model follow each other that closely,
        # while threads that go on spinning take the cores from other jobs (docs/benchmark-log.md).
        "GOMP_SPINCOUNT": "1000",
    }
    passed = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    if "OMP_WAIT_POLICY" in passed:
        del fixed["GOMP_SPINCOUNT"]  # it would win
    return {**fixed, **passed}


def _num_tasks(declared: Asset, size: Size) -> int:
    """Tasks of a fan-out: one a node where the stage works in ranks; other stages use their nodes together."""
    return size.nodes if declared.stage.in_ranks else 1


# Reporting


def result_of(declared: Asset, made: Made) -> dg.MaterializeResult:
    """Metadata, data version and checks of one materialization."""
    return dg.MaterializeResult(
        metadata=metadata_of(made),
        data_version=dg.DataVersion(made.artifact.digest),
        check_results=[_check(declared, made, name) for name in declared.stage.gates],
    )


def _check(declared: Asset, made: Made, name: str) -> dg.AssetCheckResult:
    verdict = next((gate for gate in made.record["gates"] if gate["name"] == name), None)
    if verdict is None:
        return dg.AssetCheckResult(check_name=name, passed=True, metadata={"verdict": "not asked for by this recipe"})
    evidence = {key: _metadata_value(value) for key, value in verdict["evidence"].items()}
    return dg.AssetCheckResult(
        check_name=name, passed=verdict["passed"], metadata=evidence, severity=dg.AssetCheckSeverity.ERROR
    )


def metadata_of(made: Made) -> dict[str, Any]:
    """Numbers first (Dagster plots them over time), then links, then identities."""
    record = made.record
    values: dict[str, Any] = _count_metadata(record["counts"]) if record["counts"] else {}
    values |= {"reused": made.reused, "seconds": float(record["seconds"])}
    values |= {name: float(record["cost"][name]) for name in ("node_hours", "price") if name in record.get("cost", {})}
    values["bytes"] = sum(entry["bytes"] for entry in record["files"])
    values |= {name: _readable(value) for name, value in record["metrics"].items() if name not in values}
    values["mlflow_run"] = dg.MetadataValue.url(made.mlflow_url)
    report = made.artifact.path / "report.html"
    if report.exists():
        values["report"] = dg.MetadataValue.path(str(report))
    values["folder"] = dg.MetadataValue.path(str(made.artifact.path))
    values["log"] = dg.MetadataValue.path(str(made.artifact.path / "log.txt"))
    found = made.artifact
    values |= {"code": found.record["code"]["digest"]} if "code" in found.record else {}
    values |= {OTHER_CODE: ", ".join(made.other_code)} if made.other_code else {}
    return values | {
        "fingerprint": found.fingerprint,
        "digest": found.digest,
        "record_digest": found.record_digest,
    }


def _readable(value: float) -> dg.FloatMetadataValue:
    """A metric with six digits, for people and plots; the record has all of them."""
    return dg.MetadataValue.float(value if value.is_integer() else float(f"{value:.6g}"))


def _count_metadata(counts: dict[str, Any]) -> dict[str, Any]:
    dropped, quarantined = sum(counts["dropped"].values()), sum(counts["quarantined"].values())
    rows = [("in", counts["in"]), ("kept", counts["kept"])]
    rows += [
        (f"dropped: {reason}", number) for reason, number in sorted(counts["dropped"].items(), key=lambda kv: -kv[1])
    ]
    rows += [(f"quarantined: {reason}", number) for reason, number in sorted(counts["quarantined"].items())]
    table = "| records | number |\n|---|---|\n" + "\n".join(f"| {name} | {number} |" for name, number in rows)
    return {
        "dagster/row_count": counts["kept"],
        "records_in": counts["in"],
        "dropped": dropped,
        "quarantined": quarantined,
        "kept_fraction": round(counts["kept"] / counts["in"], 4) if counts["in"] else 0.0,
        "funnel": dg.MetadataValue.md(table),
    }


def _metadata_value(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)):
        return value
    return dg.MetadataValue.json(value)

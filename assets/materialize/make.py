"""Make the artifact of a cell (one asset in one partition) with a job, or reuse it if it exists."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from assets.graph.bill import settled_late
from assets.graph.result import Made
from assets.materialize.before_start import Repeats, check_begun, check_continued, check_facts, damage_of_state
from assets.materialize.causes import StageFailed
from assets.materialize.events import announce
from assets.materialize.follow import run_job, tell
from assets.materialize.jobs import BASE_MODEL, job_of
from assets.materialize.watchers import Watching, tidy
from assets.registry.decision import CARD
from assets.registry.kept_digests import check_witnessed, contradiction
from assets.services.cached import make_room
from assets.state.cell import Cell, Comparison
from assets.state.chain import CHAIN, trains
from assets.state.references import aside, write_reference
from assets.state.repairs import mend
from resources.tracking.errors import TrackingError
from resources.tracking.reports import artifact_key
from training.contract import artifact
from training.contract.artifact import Artifact
from training.contract.job import DataError, Job, write_job
from training.contract.process.exit_codes import BAD_INPUT, REFUSED
from training.contract.running.leftovers import remove_state
from training.contract.scopes import WHOLE
from training.recipe.recipe import recipe_as_data

if TYPE_CHECKING:
    from assets.graph.pipeline import Pipeline
    from assets.materialize.watch import Watch

WAY_OUT = "put it back from a backup, or have `pedigree verify RECIPE --mend` set it aside to be made again"


def make(
    cell: Cell,
    comparison: Comparison,
    pipeline: Pipeline,
    watch: Watch,
    *,
    begun: Callable[[], None] = lambda: None,
) -> Made:
    """Reuse the cell's artifact if it exists, otherwise make it with a job. Raises StageFailed if it cannot be made.

    `begun` is called when the job's file names its inputs and this run watches the job; from then on the inputs are
    not removed.
    """
    started = time.monotonic()
    _check_inputs(cell, comparison)
    cell = unless_rewritten(cell, watch)
    if cell.artifact is not None:
        made, reused, url = cell.artifact, True, _reuse(cell, cell.artifact, pipeline, watch)
    else:
        _check_start(cell, comparison, pipeline, watch)
        reused = False
        made, url = _make_anew(cell, comparison, pipeline, watch, begun)
    return Made(
        cell=cell,
        artifact=made,
        reused=reused,
        seconds=time.monotonic() - started,
        mlflow_url=url,
        other_code=cell.other_code if reused else (),
    )


def _check_inputs(cell: Cell, comparison: Comparison) -> None:
    """Raise StageFailed if a gate refused an input or a guard of the cell."""
    refused = comparison.refused_by(cell)
    if refused is not None:
        assert refused.artifact is not None
        gate = refused.artifact.failed_gates[0]
        kept = f"{cell.asset} [{cell.partition}] is not trained: " if refused.key in cell.guards else ""
        raise StageFailed(
            f"{kept}{refused.asset} [{refused.partition}] was refused by its gate {gate['name']}: "
            f"{artifact.canonical_json(gate['evidence'])}",
            REFUSED,
        )


def _check_start(cell: Cell, comparison: Comparison, pipeline: Pipeline, watch: Watch) -> None:
    """Raise StageFailed if the cell may not be made.

    A training would begin anew unasked, or what is made shows that a later asset cannot be made, or a witness knows
    another record of what a card would list, or automation may not make the cell.
    """
    try:
        if not watch.starts_anew:
            check_begun(cell, comparison)
            check_continued(cell, comparison)
            Repeats(comparison).check(cell)
        if trains(CHAIN[cell.asset]):
            check_facts(comparison)
    except DataError as error:
        raise StageFailed(str(error), BAD_INPUT) from None
    if cell.asset == CARD:
        _check_witnessed(cell, comparison, pipeline, watch)
    if reason := watch.stands_in_the_way(comparison.recipe, cell.asset):
        raise StageFailed(f"{cell.asset} [{cell.partition}]: {reason}", BAD_INPUT)


def _check_witnessed(cell: Cell, comparison: Comparison, pipeline: Pipeline, watch: Watch) -> None:
    """Raise StageFailed if Dagster, MLflow or a descendant knows another record of anything that a card would list."""
    from training.provenance.lineage import lineage_of  # it reads tables

    made = [found for key in cell.inputs if (found := comparison.cells[key].artifact) is not None]
    try:
        lineage = lineage_of(comparison.root, *made)
        unasked = check_witnessed(lineage, comparison.root, pipeline.tracking(), all_told=False)
    except DataError as error:
        raise StageFailed(f"{cell.asset} [{cell.partition}]: {error}; {WAY_OUT}", BAD_INPUT) from None
    for sentence in unasked:
        tell(sentence, cell, watch)


def _reuse(cell: Cell, made: Artifact, pipeline: Pipeline, watch: Watch) -> str:
    """Point the partition to an existing artifact, after repairs if needed; return the MLflow URL of its run."""
    for line in mend(cell, pipeline.root_path) if cell.state == "damaged" else ():
        tell(line, cell, watch)
    tidy(made.path)
    profile = pipeline.loaded_profile()
    price = profile.size_for(cell.asset).price_per_hour
    settled_late(made, profile.backend_for(cell.asset), run=watch.run_id, price_per_hour=price)
    write_reference(pipeline.root_path, made, cell.partition)
    announce("reused", cell, {})
    with suppress(TrackingError):
        if not watch.was_made(cell) and not pipeline.tracking().begun({cell.fingerprint}):
            tell(f"{made.path} was found: neither Dagster nor MLflow knows of a run that made it", cell, watch)
    return pipeline.tracking().run_url(artifact_key(cell.asset, cell.fingerprint), cell.partition.split("@")[0])


def _make_anew(
    cell: Cell, comparison: Comparison, pipeline: Pipeline, watch: Watch, begun: Callable[[], None]
) -> tuple[Artifact, str]:
    """Run a job for the cell; return the artifact and the URL of the job's run in MLflow."""
    job = job_of(cell, comparison, pipeline.loaded_profile().size_for(cell.asset))
    if (
        watch.starts_anew
        and cell.asset == BASE_MODEL
        and comparison.continued
        and damage_of_state(comparison.continued)
    ):
        job = replace(job, goes_on_from=None)
    _write_job(job, cell, comparison, watch)
    if cell.asset in WHOLE:
        tell(_again(cell, comparison), cell, watch)
    elif cell.asset == BASE_MODEL and (first := comparison.recipe.pretrain.continued_at) and not job.goes_on_from:
        said = f"no whole state of the training that it continues is kept up to step {first[-1]:,}; it begins at step 0"
        tell(said, cell, watch)
    announce("started", cell, {})
    with Watching(Path(job.output), run_id=watch.run_id) as watching:
        begun()
        made, url = run_job(job, cell, pipeline, watch, watching)
        write_reference(pipeline.root_path, made, cell.partition)  # before this run leaves, so that it is never alone
    remove_state(made.path)
    make_room(pipeline.root_path, pipeline.loaded_profile())
    announce("made", cell, made.record)
    return made, url


def _again(cell: Cell, comparison: Comparison) -> str:
    """Say what it takes to make a kept step whose training's last model is made already."""
    whole, begin, ((unit, end),) = WHOLE[cell.asset], comparison.step_before(cell), cell.settings["kept"].items()
    record = comparison.made(whole, comparison.recipe.name).record
    took = record["metrics"].get("training_seconds", record["seconds"])
    seconds = took * (end - begin) / comparison.length_of(cell)
    return f"{whole} was made without it: trained again from {unit} {begin:,} to {end:,}, about {seconds:,.0f} s"


def _write_job(job: Job, cell: Cell, comparison: Comparison, watch: Watch) -> None:
    _set_aside(cell, Path(job.output), watch)
    for one in (*job.on_the_way, job):
        write_job(one, Path(one.output) / "job.json")
        artifact.write_json(Path(one.output) / "recipe.json", recipe_as_data(comparison.recipe))


def _set_aside(cell: Cell, folder: Path, watch: Watch) -> None:
    """Rename the folder of this fingerprint if it already held an artifact when recipe and artifacts were compared.

    That artifact is damaged, or its inputs were made again with another result, or it is to be made again. An artifact
    that another run made since then stays, and the job finds it.
    """
    if cell.was_there and (folder / artifact.ARTIFACT_FILE).exists():
        kept = aside(folder, "damaged" if cell.state == "damaged" else "replaced")
        if cell.state == "damaged":
            tell(f"is damaged ({cell.reasons[0]}); set aside as {kept.name} and made again", cell, watch)


def unless_rewritten(cell: Cell, watch: Watch) -> Cell:
    """Return the cell unchanged if its artifact's record is the one that Dagster stored at the last materialization.

    Otherwise raise StageFailed, because reusing the artifact would hide Dagster's evidence of a changed record.

    There is one exception. If the record says that it replaced the one in Dagster, a run may have been killed
    before it reported the replacement. Then the cell is returned without its artifact, to be made again; a training
    is left to a person.
    """
    if cell.artifact is None or not (told := watch.told_otherwise(cell)):
        return cell
    said = contradiction(cell.artifact, "Dagster", {told})
    if told not in cell.artifact.claims or trains(CHAIN[cell.asset]):
        raise StageFailed(f"{cell.asset} [{cell.partition}]: {said}; {WAY_OUT}", REFUSED)
    tell(f"{said}; it is made again", cell, watch)
    return replace(cell, artifact=None)

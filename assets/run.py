"""`pedigree run`: materialize the missing cells of a recipe in order.

A cell is an asset in a partition. The work is done through Dagster, in this process.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from assets.chain import CHAIN
from assets.leaked_steps import with_steps
from assets.lineage import DECISION, model_of
from assets.promotion.launch import report_asked, report_result
from assets.promotion.standing import Standing, standing
from assets.repeated import Repeats
from assets.running.events import Listener, heard_by
from assets.running.watchers import tidy
from assets.schedule import InProcesses, InThisProcess, Schedule, refusal_of
from assets.status import START_ANEW, Cell, Comparison, check_begun, compare
from assets.stores import opened_instance, trainings_at_once
from training import artifact
from training.process.lean import uncollected
from training.recipe import Recipe, recipe_as_data

OK, FAILED, BAD_INPUT, REFUSED = 0, 1, 2, 3
COMPARING, ENDING = "comparing recipe and artifacts", "comparing with the registry in MLflow"
Say = Callable[[str], None]


@dataclass(kw_only=True)
class Report:
    """The result of one `pedigree run`, with the fields that docs/command-line.md promises."""

    recipe: str
    exit_code: int = OK
    promoted: bool = False
    error: str = ""
    refusals: list[dict[str, Any]] = field(default_factory=list)
    assets: dict[str, dict[str, Any]] = field(default_factory=dict)
    promotion: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pedigree run --json` prints."""
        return {
            "recipe": self.recipe,
            "ok": self.exit_code == OK,
            "promoted": self.promoted,
            "promotion": self.promotion,
            "refusals": self.refusals,
            "error": self.error,
            "seconds": round(self.seconds, 3),
            "assets": self.assets,
        }


def run_recipe(
    recipe: Recipe,
    root: Path,
    *,
    profile: str,
    until: str | None,
    snapshots: tuple[str, ...],
    announce: Listener,
    starts_anew: bool = False,
    exact: bool = False,
    say: Say = lambda doing: None,
    signal_received: Callable[[], int] = lambda: 0,
) -> Report:
    """Make the missing cells up to the asset `until`; stop at the first refusal or failure.

    `say` is called with what the run does while no asset is made, such as `loading Dagster`. `signal_received` returns
    the number of the signal that interrupted the run, or 0; MLflow shows such a run as killed. Raises before any work
    if the input is bad, or if `starts_anew` is False and a training was begun under other settings, or would be
    repeated because of the code alone. With `exact`, artifacts made by other code are made again, except those that a
    registered model version was made from.
    """
    started = time.monotonic()
    report = Report(recipe=recipe.name)
    say(COMPARING)
    comparison = _exactly(recipe, root, profile, announce) if exact else compare(recipe, root)
    made_here: set[tuple[str, str]] = set()

    def note(kind: str, cell: Cell, values: dict[str, Any]) -> None:
        if kind == "made":
            made_here.add(cell.key)
        announce(kind, cell, values)

    materialize = partial(
        _materialize_all,
        profile=profile,
        until=until,
        snapshots=snapshots,
        announce=note,
        report=report,
        say=say,
        signal_received=signal_received,
    )
    chosen = _chosen(comparison, until, snapshots)
    repeats = Repeats(comparison)
    for cell in () if starts_anew else chosen:
        check_begun(cell, comparison)
        repeats.check(cell)
    for cell in chosen:
        announce("planned", cell, {})
    if chosen:
        materialize(comparison, starts_anew=starts_anew, exact=exact)
    say(ENDING)
    comparison = compare(recipe, root)
    goes_to_the_end = until is None and not snapshots and report.exit_code == OK
    said = ask_registry(comparison, profile)
    if said is not None and said.undecided and goes_to_the_end:
        materialize(comparison, starts_anew=False, again=(DECISION,))
        comparison = compare(recipe, root)
        said = ask_registry(comparison, profile)
    for cell in comparison.cells.values():
        if cell.artifact is not None:
            tidy(cell.artifact.path)  # the job of a killed run may have committed since this run first compared
    _fill(report, comparison, made_here)
    _conclude(report, comparison, said, is_whole=goes_to_the_end)
    report.refusals = [with_steps(one, comparison) for one in report.refusals]
    report.seconds = time.monotonic() - started
    return report


def _exactly(recipe: Recipe, root: Path, profile: str, announce: Listener) -> Comparison:
    from assets.exact import compare_exactly, kept
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    comparison = compare_exactly(recipe, root, Tracking(load_profile(profile).tracker, root))
    kept(comparison, lambda cell, text: announce("told", cell, {"text": text}))
    return comparison


def keep_recipe(recipe: Recipe, root: Path) -> None:
    """Save the resolved recipe under `root/recipes`, so that jobs and the UI find a recipe that was given by path."""
    import yaml

    artifact.write_text(
        root / "recipes" / f"{recipe.name}.yaml",
        yaml.safe_dump(recipe_as_data(recipe), sort_keys=False, allow_unicode=True),
    )


def _chosen(comparison: Comparison, until: str | None, snapshots: tuple[str, ...]) -> list[Cell]:
    """Return the cells that the run still has to make.

    With `snapshots`, these are only cells of these snapshots and their inputs.
    """
    cells = comparison.to_do(until)
    if not snapshots:
        return cells
    for name in snapshots:
        comparison.recipe.snapshot(name)
    wanted = {cell.key for cell in cells if CHAIN[cell.asset].scope == "snapshot" and cell.part in snapshots}
    needed: set[tuple[str, str]] = set()
    waiting = list(wanted)
    while waiting:
        for key in comparison.cells[waiting.pop()].waits_for:
            if key not in needed:
                needed.add(key)
                waiting.append(key)
    return [cell for cell in cells if cell.key in wanted | needed]


def _materialize_all(
    comparison: Comparison,
    *,
    profile: str,
    until: str | None,
    snapshots: tuple[str, ...],
    announce: Listener,
    report: Report,
    say: Say,
    signal_received: Callable[[], int],
    starts_anew: bool,
    exact: bool = False,
    again: tuple[str, ...] = (),
) -> None:
    say("loading Dagster")
    with uncollected("dagster"):  # importing it takes 2 s, which a run with nothing to make is spared
        from assets.alive import sign_of_life
        from assets.job import LAUNCH_TAG, end_killed, sign_of_launch
        from assets.launch import Launch
        from assets.settings import observe

    recipe, root = comparison.recipe, comparison.root
    launch_id = uuid.uuid4().hex
    tags = {LAUNCH_TAG: launch_id, "pedigree/recipe": recipe.name}
    tags |= {START_ANEW: "true"} if starts_anew else {}
    launch = Launch(recipe=recipe_as_data(recipe), root=str(root), profile=profile, exact=exact, tags=tags)
    pipeline = launch.pipeline
    at_once = pipeline.loaded_profile().partitions_at_once
    pipeline.tracking().launch(launch_id, recipe.name, artifact.digest_of(recipe_as_data(recipe)))
    launched = pipeline.tracking().launched(launch_id)
    report_asked(launched, recipe)
    is_done = False
    try:
        say("opening Dagster's database")
        sign = sign_of_life(sign_of_launch(root, launch_id))
        with heard_by(announce), opened_instance(root) as instance, sign:
            end_killed(instance, root)
            say("reporting to Dagster what the recipe asks for")
            # Of a missing cell nothing can be outdated; it is observed when it is made.
            observe(instance, (cell for cell in comparison.cells.values() if cell.state != "missing"))
            schedule = Schedule(
                look=lambda: pipeline.compared(recipe),
                left_in=lambda seen: _chosen(seen, until, snapshots),
                again=again,
                at_once=at_once,
                trainings=trainings_at_once(instance),
            )
            say("starting a run in Dagster")
            apart = at_once > 1
            executions = InProcesses(launch, at_once, announce, instance) if apart else InThisProcess(launch, instance)
            _execute_all(schedule, executions, report, announce)
        report_result(launched, compare(recipe, root))
        is_done = report.exit_code == OK
    finally:
        status = "FINISHED" if is_done else "KILLED" if signal_received() else "FAILED"
        pipeline.tracking().finish_launch(launch_id, status)


def _execute_all(
    schedule: Schedule, executions: InThisProcess | InProcesses, report: Report, announce: Listener
) -> None:
    """Execute the groups of the schedule; after a failure or a refusal, only those that are under way to their end."""
    with executions:
        while True:
            while report.exit_code == OK and executions.has_room:
                group = schedule.next_group(executions.under_way)
                if not group:
                    break
                executions.start(group)
            if not executions.under_way:
                break
            for group, failure in executions.ended():
                if failure is not None:
                    report.error = "\n".join(part for part in (report.error, failure.error) if part)
                    report.exit_code = report.exit_code or failure.exit_code
                    for cell in group:
                        announce("failed", cell, {"others": len(executions.under_way)})
    if schedule.refusal is not None:
        report.refusals.append(schedule.refusal)
        report.exit_code = report.exit_code or REFUSED
    if schedule.stuck is not None and report.exit_code == OK:
        report.exit_code = FAILED
        report.error = f"{schedule.stuck.asset} [{schedule.stuck.partition}] was materialized and is still not made"


def _fill(report: Report, comparison: Comparison, made_here: set[tuple[str, str]]) -> None:
    """Add to the report an entry for every asset and partition that is made."""
    for cell in comparison.cells.values():
        if cell.artifact is not None and cell.is_recorded:
            report.assets.setdefault(cell.asset, {})[cell.partition] = entry_of(cell, reused=cell.key not in made_here)


def ask_registry(comparison: Comparison, profile: str) -> Standing | None:
    """Return the state of the recipe's model in the registry; None if the aligned model does not exist.

    If the registry cannot be reached, the standing has `is_known=False` and the error as its sentence.
    """
    from resources.profile import load_profile
    from resources.tracking.errors import TrackingError
    from resources.tracking.registry import Registry, explained
    from resources.tracking.reports import Tracking

    recipe = comparison.recipe
    if model_of(comparison).artifact is None:
        return None
    tracking = Tracking(load_profile(profile).tracker, comparison.root)
    try:
        with explained(tracking):
            registry = Registry(tracking, recipe.promote.model_name)
            if registry.under_way() is not None:
                with registry.locked():  # taking the lock finishes a move that was interrupted
                    pass
            return standing(comparison, registry)
    except TrackingError as error:
        return Standing(model_name=recipe.promote.model_name, sentence=str(error), is_known=False)


def _conclude(report: Report, comparison: Comparison, said: Standing | None, *, is_whole: bool) -> None:
    """Add the model's standing to the report and, after a run to the end (`is_whole`), why it is not promoted."""
    if said is not None:
        report.promoted = said.promoted
        report.promotion = said.as_json()
    if not is_whole or report.exit_code != OK or report.refusals:
        return
    decision = comparison.cells[DECISION, comparison.recipe.name]
    is_refused = decision.artifact is not None and bool(decision.artifact.failed_gates)
    if is_refused and not (said and (said.by_hand or said.is_damaged or not said.is_known)):
        report.refusals.append(refusal_of(decision))
        report.exit_code = REFUSED
    elif said is not None and said.superseded_by:
        evidence = {"reason": said.sentence, "version": said.version, "champion": said.champion}
        where = {"asset": decision.asset, "partition": decision.partition}
        report.refusals.append({"gate": "champion", "evidence": evidence, **where})
        report.exit_code = REFUSED
    elif said is not None and not said.promoted:
        report.error = f"{said.model_name} is not promoted: {said.sentence}"
        report.exit_code = FAILED


def entry_of(cell: Cell, *, reused: bool) -> dict[str, Any]:
    """The JSON entry of one made cell, in the form that docs/command-line.md promises."""
    assert cell.artifact is not None
    record = cell.artifact.record
    return {
        "fingerprint": cell.artifact.fingerprint,
        "digest": cell.artifact.digest,
        "uri": str(cell.artifact.path),
        "reused": reused,
        "seconds": record["seconds"],
        "counts": record["counts"],
        "metrics": record["metrics"],
        **({"reused_ranks": record["reused_ranks"]} if "reused_ranks" in record else {}),
    }

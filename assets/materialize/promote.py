"""Carrying out a promotion decision: register the model version and move the aliases.

The decision is an artifact (evaluation.decision.gate). Deciding and moving happen under the registry's lock, so a
decision replaces the same champion that it compared with.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.graph.result import Made, result_of
from assets.materialize.causes import StageFailed
from assets.materialize.events import announce
from assets.materialize.make import make, unless_rewritten
from assets.materialize.materialize import asked_of
from assets.materialize.watch import Watch
from assets.registry.champion import champion_asked, is_stale
from assets.registry.decision import lineage_of, model_of
from assets.registry.decision_page import show_decision
from assets.registry.kept_digests import doubts
from assets.registry.launch import report_asked, report_result
from assets.registry.standing import REPAIR, Standing, refused, superseded, unfit
from assets.registry.versions import registered, tags_of
from assets.state.cell import Cell, Comparison
from assets.state.chain import CHAIN
from resources.tracking.errors import TrackingError
from resources.tracking.registry import CHAMPION, ChampionMoved, Move, Registry, Version, explained, now, somebody
from training.contract import artifact
from training.contract.artifact import Damaged
from training.contract.process.exit_codes import FAILED

if TYPE_CHECKING:
    from assets.graph.pipeline import Pipeline

TRIES = 3  # decisions in a row, if the champion changes each time


def materialize_and_promote(context: dg.AssetExecutionContext, pipeline: Pipeline) -> dg.MaterializeResult:
    """Materialize the asset `promoted_model`.

    The decision is made or reused; then the model is registered and promoted as it says.
    """
    watch = Watch.of(context, pipeline)
    cell, comparison = asked_of(context, pipeline)
    try:
        made, said = decide_and_promote(cell, comparison, pipeline, watch)
    except StageFailed as failure:
        raise dg.Failure(
            description=str(failure), allow_retries=False, metadata={"exit_code": failure.exit_code}
        ) from None
    except TrackingError as error:
        raise dg.Failure(description=str(error), metadata={"exit_code": FAILED}) from None
    result = result_of(CHAIN["promoted_model"], made)
    return dg.MaterializeResult(
        metadata={**(result.metadata or {}), **said},
        data_version=result.data_version,
        check_results=result.check_results,
    )


def decide_and_promote(
    cell: Cell, comparison: Comparison, pipeline: Pipeline, watch: Watch
) -> tuple[Made, dict[str, Any]]:
    """Decide against the present champion and promote accordingly; return the decision and the result of `promote`."""
    registry = Registry(pipeline.tracking(), comparison.recipe.promote.model_name)
    announce("waits", cell, {"for": "the model registry (one promotion at a time)"})
    with explained(registry.tracking), registry.locked(watch.say):
        made, said = _decide_until_carried_out(cell, comparison, pipeline, watch, registry)
        if not made.reused or not (made.artifact.path / "report.html").exists():
            show_decision(with_decision(comparison, made), _standing(said, registry), registry)
    announce("waits", cell, {"for": ""})
    if not made.reused:  # otherwise no run was opened for this launch
        launched = registry.tracking.launched(watch.launch)
        report_asked(launched, comparison.recipe)
        report_result(launched, comparison)
    if not said["promoted"]:
        watch.say(f"{registry.name} is not promoted: {said['why_not']}")
    return made, said


def _decide_until_carried_out(
    cell: Cell, comparison: Comparison, pipeline: Pipeline, watch: Watch, registry: Registry
) -> tuple[Made, dict[str, Any]]:
    """Decide and carry out the decision, again if the champion has changed in between, at most TRIES times."""
    left = TRIES
    while True:
        left -= 1
        announce("waits", cell, {"for": "MLflow, which knows the champion"})
        line = registry.line()
        announce("waits", cell, {"for": ""})
        made = decide(cell, comparison, pipeline, watch, line)
        announce("waits", cell, {"for": "MLflow, which registers the decision"})
        try:
            return made, promote(made, comparison, registry, watch.run_id, champion=line[-1] if line else None)
        except ChampionMoved as error:
            if not left:
                raise
            watch.say(f"{error}; deciding again")


def decide(cell: Cell, comparison: Comparison, pipeline: Pipeline, watch: Watch, line: Sequence[Version]) -> Made:
    """Return the recorded decision if the model was compared with the champion of this line; otherwise decide again.

    The champion is a setting in the decision's record, but no part of its fingerprint.
    """
    asked = champion_asked(line, comparison.root)
    model = model_of(comparison).artifact
    for _ in range(TRIES):
        cell = unless_rewritten(cell, watch)
        if cell.artifact is not None and model is not None and is_stale(cell.artifact, asked, model, comparison.root):
            watch.say(f"deciding again: {cell.asset} [{cell.partition}] was compared with another champion")
            cell = replace(cell, artifact=None, was_there=True)
        if cell.artifact is None:
            cell = replace(cell, settings={**cell.settings, "champion": asked})
        made = make(cell, comparison, pipeline, watch)
        if model is None or not is_stale(made.artifact, asked, model, comparison.root):
            return made
        cell = replace(cell, artifact=made.artifact)  # by a job that was submitted for an earlier champion
    raise StageFailed(f"{cell.asset} [{cell.partition}] is decided by somebody else all the time; run again")


def promote(
    made: Made, comparison: Comparison, registry: Registry, run_id: str, *, champion: Version | None
) -> dict[str, Any]:
    """Register the last model and move `champion` if the decision allows it; return metadata for Dagster.

    The metadata are model name, version, `promoted`, and `why_not` if it is not promoted. `champion` is the one that
    the decision compared with; ChampionMoved is raised if it is another one by now. Raises StageFailed before touching
    the registry if anything that the model was made from is missing, refused, damaged or changed.
    """
    comparison = with_decision(comparison, made)
    held = [*lineage_of(comparison), *([comparison.cells[made.cell.key]] if made.reused else [])]
    problems = unfit(comparison) + doubts(comparison.root, held, registry.tracking)
    if problems:
        raise StageFailed(f"{registry.name} is not promoted: {problems[0]}; {REPAIR}")
    registry.check_champion(champion.version if champion else None, made.cell.partition)
    version = registered(comparison, registry, champion, tags_of(comparison, made.artifact) | _run_tags(made, run_id))
    why_not = _why_not(made, registry, version, champion)
    if not why_not and not (champion and champion.version == version.version):
        registry.move(
            Move(
                action="promotion",
                version=version.version,
                before=champion.version if champion else None,
                why=f"every condition of decision {made.artifact.digest[:12]} held",
                who=somebody(),
                when=now(),
                decision=made.artifact.record_digest,
                run=run_id,
            )
        )
    _forget_replaced(made, registry)
    return {
        "model_name": registry.name,
        "model_version": version.version,
        "promoted": not why_not,
        **({"why_not": why_not} if why_not else {}),
    }


def with_decision(comparison: Comparison, made: Made) -> Comparison:
    """Return the comparison with the promotion decision counted as made, with its artifact."""
    decided = replace(made.cell, artifact=made.artifact, state="made", reasons=())
    return replace(comparison, cells={**comparison.cells, decided.key: decided})


def _standing(said: dict[str, Any], registry: Registry) -> Standing:
    champion = registry.holder(CHAMPION)
    return Standing(
        model_name=registry.name,
        version=said["model_version"],
        champion=champion.version if champion else None,
        promoted=said["promoted"],
        sentence=said.get("why_not", ""),
    )


def _forget_replaced(made: Made, registry: Registry) -> None:
    """Remove this recipe's decisions against earlier champions, except the ones that moved the alias `champion`.

    Those explain the history of champions.
    """
    moved = {move.decision for move in registry.history()}
    for folder in made.artifact.path.parent.glob(f"{made.artifact.path.name}.replaced-*"):
        with suppress(Damaged):
            old = artifact.find(folder)
            if old is not None and old.record_digest not in moved:
                shutil.rmtree(folder)


def _why_not(made: Made, registry: Registry, version: Version, champion: Version | None) -> str:
    """Return why this model version does not become champion.

    The result is empty if it is champion already or may become champion.
    """
    if champion is not None and champion.version == version.version:
        return ""
    if made.artifact.failed_gates:
        return refused(made.artifact, version)
    if registry.was_champion(version, champion):
        return superseded(registry.name, version, champion)
    return ""


def _run_tags(made: Made, run_id: str) -> dict[str, str]:
    return {
        "dagster/run_id": run_id,
        "dagster/asset_key": made.cell.asset,
        "dagster/partition": made.cell.partition,
    }

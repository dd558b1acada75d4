"""`pedigree run`: materialize the missing cells of a recipe in order.

A cell is an asset in a partition. The work is done through Dagster, in this process.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.materialize.before_start import Repeats, check_begun, check_continued, check_facts
from assets.materialize.events import Listener, heard_by
from assets.materialize.watchers import tidy
from assets.registry.decision import DECISION, model_of
from assets.registry.launch import report_asked, report_result
from assets.registry.standing import Standing, standing
from assets.run.leaked_steps import with_steps
from assets.run.result import Ended, Goal, Report, report_of
from assets.run.schedule import InProcesses, InThisProcess, Schedule
from assets.services.stores import opened_instance, trainings_at_once, use_storage
from assets.state.cell import START_ANEW, Cell, Comparison
from assets.state.chain import CHAIN, trains
from assets.state.compare import compare
from assets.state.liveness import Launched, killed_launches, living
from resources.profile import load_profile
from resources.tracking.process import OWNER
from resources.tracking.registry import somebody
from resources.tracking.reports import Tracking
from training.contract import artifact
from training.contract.process.exit_codes import FAILED, OK
from training.contract.process.lean import uncollected
from training.contract.secrets import masked
from training.recipe.recipe import Recipe, recipe_as_data

if TYPE_CHECKING:
    from assets.run.launch import Launch

COMPARING, ENDING = "comparing recipe and artifacts", "comparing with the registry in MLflow"
Say = Callable[[str], None]

log = logging.getLogger(__name__)


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
    the number of the signal that interrupted the run, or 0. Raises before any work if the input is bad, or if
    `starts_anew` is False and a training was begun under other settings, or would be repeated because of the code
    alone. With `exact`, artifacts made by other code are made again, except those that a registered model version was
    made from.
    """
    started = time.monotonic()
    run = _Run(recipe=recipe, root=root, profile=profile, goal=Goal(until=until, snapshots=snapshots), say=say)
    report = Report(recipe=recipe.name, exit_code=FAILED, error="an error, which the command printed")
    try:
        made = run.made(announce, starts_anew=starts_anew, exact=exact)
        report = replace(made, seconds=time.monotonic() - started)
    finally:
        report = report.ended_by(signal_received())
        run.close(report)
    return report


@dataclass(kw_only=True)
class _Run:
    """One `pedigree run`: what it is asked for, and what has happened so far.

    `launches` are its launches in Dagster and MLflow: none, if everything was made before, one, or two.
    """

    recipe: Recipe
    root: Path
    profile: str
    goal: Goal
    say: Say
    ended: list[Ended] = field(default_factory=list)
    made_here: set[tuple[str, str]] = field(default_factory=set)
    launches: list[Launch] = field(default_factory=list)
    signs: ExitStack = field(default_factory=ExitStack)  # the sign of life of each launch

    def made(self, announce: Listener, *, starts_anew: bool, exact: bool) -> Report:
        """Make what is left of the goal, and return the result."""
        use_storage(self.root, load_profile(self.profile).run_storage)
        self._end_killed()
        self.say(COMPARING)
        comparison = _exactly(self.recipe, self.root, self.profile, announce) if exact else self._compared()
        chosen = self.goal.left(comparison)
        repeats = Repeats(comparison)
        for cell in () if starts_anew else chosen:
            check_begun(cell, comparison)
            check_continued(cell, comparison)
            repeats.check(cell)
        if any(trains(CHAIN[cell.asset]) for cell in chosen):
            check_facts(comparison)
        for cell in chosen:
            announce("planned", cell, {})
        if chosen:
            self._materialize(comparison, announce, starts_anew=starts_anew, exact=exact)
        self.say(ENDING)
        comparison, said = self._compared_and_asked()
        if said is not None and said.undecided and self._is_done(comparison):
            self._materialize(comparison, announce, starts_anew=False, again=(DECISION,))
            comparison, said = self._compared_and_asked()
        for cell in comparison.cells.values():
            if cell.artifact is not None:
                tidy(cell.artifact.path)  # the job of a killed run may have committed since this run first compared
        for launch in self.launches:
            report_result(launch.reported, comparison)
        report = report_of(comparison, self.goal, ended=self.ended, standing=said, made_here=self.made_here)
        return replace(report, refusals=tuple(with_steps(one, comparison) for one in report.refusals))

    def _end_killed(self) -> None:
        """End the Dagster and MLflow runs of earlier `pedigree run` commands that were killed."""
        if not killed_launches(self.root):  # so that a run with nothing to make is spared the import of Dagster
            return
        with uncollected("dagster"):
            from assets.graph.job import end_killed
        with opened_instance(self.root) as instance:
            end_killed(instance, Tracking(load_profile(self.profile).tracker, self.root), self.root)

    def _compared(self) -> Comparison:
        return compare(self.recipe, self.root)

    def _compared_and_asked(self) -> tuple[Comparison, Standing | None]:
        comparison = self._compared()
        return comparison, ask_registry(comparison, self.profile)

    def _is_done(self, comparison: Comparison) -> bool:
        """Whether the decision on a promotion is asked for, and everything is made, without an error."""
        is_left = bool(self.goal.left(comparison)) or any(one.error for one in self.ended)
        return not is_left and self.goal.decision(comparison) is not None

    def _materialize(
        self,
        comparison: Comparison,
        announce: Listener,
        *,
        starts_anew: bool,
        exact: bool = False,
        again: tuple[str, ...] = (),
    ) -> None:
        self.say("loading Dagster")
        with uncollected("dagster"):  # importing it takes 2 s, which a run with nothing to make is spared
            from assets.graph.requested import observe

        launch = self._begun(starts_anew=starts_anew, exact=exact)
        pipeline = launch.pipeline

        def note(kind: str, cell: Cell, values: dict[str, Any]) -> None:
            if kind == "made":
                self.made_here.add(cell.key)
            announce(kind, cell, values)

        self.say("opening Dagster's database")
        with heard_by(note), opened_instance(self.root) as instance:
            self.say("reporting to Dagster what the recipe asks for")
            # Of a missing cell nothing can be outdated; it is observed when it is made.
            observe(instance, (cell for cell in comparison.cells.values() if cell.state != "missing"))
            at_once = pipeline.loaded_profile().partitions_at_once
            schedule = Schedule(
                look=lambda: pipeline.compared(self.recipe),
                left_in=self.goal.left,
                again=again,
                at_once=at_once,
                trainings=trainings_at_once(instance),
            )
            self.say("starting a run in Dagster")
            apart = at_once > 1
            executions = InProcesses(launch, at_once, note, instance) if apart else InThisProcess(launch, instance)
            self._execute_all(schedule, executions, note)

    def _begun(self, *, starts_anew: bool, exact: bool) -> Launch:
        """Open a launch in MLflow, and return it."""
        from assets.graph.job import LAUNCH_TAG
        from assets.run.launch import Launch

        data, launch_id, who = recipe_as_data(self.recipe), uuid.uuid4().hex, somebody()
        tags = {LAUNCH_TAG: launch_id, "pedigree/recipe": self.recipe.name, "user": who}  # the last is Dagster's own
        tags |= {START_ANEW: "true"} if starts_anew else {}
        launch = Launch(recipe=data, root=str(self.root), profile=self.profile, exact=exact, tags=tags)
        itself = Launched(launch=launch_id, host=socket.gethostname(), pid=os.getpid(), owner=OWNER)
        self.signs.enter_context(living(self.root, itself))
        launch.pipeline.tracking().launch(launch_id, self.recipe.name, artifact.digest_of(data), who=who)
        self.launches.append(launch)
        report_asked(launch.reported, self.recipe)
        return launch

    def _execute_all(self, schedule: Schedule, executions: InThisProcess | InProcesses, announce: Listener) -> None:
        """Execute the groups of the schedule; after an error or a refusal, only those under way, to their end."""
        from assets.graph.notices import tell

        notify = load_profile(self.profile).notify
        with executions:
            while True:
                while not any(one.error for one in self.ended) and executions.has_room:
                    group = schedule.next_group(executions.under_way)
                    if not group:
                        break
                    executions.start(group)
                if not executions.under_way:
                    break
                for group, ended in executions.ended():
                    self.ended.append(ended)
                    for notice in ended.notices:
                        tell(notify, notice)
                    for cell in group if ended.error else ():
                        announce("failed", cell, {"others": len(executions.under_way)})

    def close(self, report: Report) -> None:
        """Tell MLflow and Dagster how the run ended."""
        is_ok = report.exit_code == OK
        with self.signs:
            for launch in self.launches:
                launch.finish("FINISHED" if is_ok else "KILLED" if report.is_cancelled else "FAILED")
            if not self.launches:
                return
            try:
                with opened_instance(self.root) as instance:
                    self.launches[-1].note_end(f"`pedigree run` of {report.recipe} ended: {report.sentence}", instance)
            except Exception as error:  # of a database; the run has ended all the same
                log.warning("Dagster could not be told how the run ended: %s", masked(str(error)))


def _exactly(recipe: Recipe, root: Path, profile: str, announce: Listener) -> Comparison:
    from assets.registry.exact import compare_exactly, kept

    comparison = compare_exactly(recipe, root, Tracking(load_profile(profile).tracker, root))
    kept(comparison, lambda cell, text: announce("told", cell, {"text": text}))
    return comparison


def keep_recipe(recipe: Recipe, root: Path, *, given: Path | None = None) -> None:
    """Save the resolved recipe under `root/recipes`, so that jobs and the UI find a recipe that was given by path.

    Where that very file was given, it stays as its author wrote it: it is found by name already.
    """
    import yaml

    kept = root / "recipes" / f"{recipe.name}.yaml"
    if given is not None and kept.exists() and kept.samefile(given):
        return
    artifact.write_text(kept, yaml.safe_dump(recipe_as_data(recipe), sort_keys=False, allow_unicode=True))


def ask_registry(comparison: Comparison, profile: str) -> Standing | None:
    """Return the state of the recipe's model in the registry; None if the aligned model does not exist.

    If the registry cannot be reached, the standing has `is_known=False` and the error as its sentence.
    """
    from resources.tracking.errors import TrackingError
    from resources.tracking.registry import Registry, explained

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

"""Messages to the profile's webhook about runs that failed, were refused by a gate, or wait.

The sensor `failed_runs` reports failed runs of the UI and of automation. `pedigree run` reports its own failures,
because it runs without the daemon that sensors need. A run reports that its job waits.
"""

from collections.abc import Iterable
from typing import Any

import dagster as dg

from assets.graph.job import launch_of
from resources.notify import Notice, post
from resources.profile import Notify, load_profile
from training.contract.secrets import masked

CAUSE_CHARACTERS = 2000
SENSOR_SECONDS = 30


def tell(notify: Notify, notice: Notice) -> None:
    """Post a notice to the profile's webhook. Does nothing if the profile has none."""
    address = notify.address
    if address is None:
        return
    recipe = notice.partition.partition("@")[0]
    cause = masked(notice.cause).strip()[:CAUSE_CHARACTERS]
    link = f"{notify.ui.rstrip('/')}/runs/{notice.run_id}".rstrip("/")
    text = f"{recipe}: {notice.asset} [{notice.partition}] {_VERBS[notice.kind]}: {cause}\n{link}"
    message = {"text": text, "kind": notice.kind, "recipe": recipe, "asset": notice.asset}
    post(address, {**message, "partition": notice.partition, "cause": cause, "link": link})


_VERBS = {"failed": "failed", "refused": "was refused", "waiting": "is waiting"}


def notices_of(events: Iterable[dg.DagsterEvent], *, partition: str, run_id: str) -> tuple[Notice, ...]:
    """Return a notice of each asset of a run that failed or was refused, unless a person interrupted it.

    `events` are the run's failures of steps, and the evaluations of checks, which say why a gate refused.
    """
    events = tuple(events)
    refusing = [one for one in reversed(events) if _says_no(one)]  # of an asset the first one is told
    refusals = {one.step_key: one.asset_check_evaluation_data.description for one in refusing}
    return tuple(
        Notice(
            kind="refused" if _is_refusal(event) else "failed",
            asset=event.step_key or "",
            partition=partition,
            cause=refusals.get(event.step_key) or cause_of(event),
            run_id=run_id,
        )
        for event in events
        if event.is_step_failure and not _is_interrupted(event)
    )


def cause_of(event: dg.DagsterEvent) -> str:
    """Return why a step of a Dagster run failed: the stage's own sentence, or the innermost error."""
    data = event.step_failure_data
    if data.user_failure_data is not None and data.user_failure_data.description:
        return data.user_failure_data.description
    error: Any = data.error
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message if error is not None else event.message or "failed"


def failed_runs(profile: str) -> dg.SensorDefinition:
    """The sensor that reports failed runs. It is on by default, because it launches nothing."""

    @dg.run_failure_sensor(
        name="failed_runs", minimum_interval_seconds=SENSOR_SECONDS, default_status=dg.DefaultSensorStatus.RUNNING
    )
    def sensor(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        """Posts each failed run to the profile's webhook: recipe, asset, cause and link. Launches nothing."""
        notify, run = load_profile(profile).notify, context.dagster_run
        if notify.address is None:
            return dg.SkipReason("the profile names no webhook (notify.webhook)")
        if launch_of(run.tags) or run.tags.get("dagster/will_retry") == "true":
            return dg.SkipReason("the command that ran it tells by itself, or it is tried again")
        partition = run.tags.get("dagster/partition", "")
        chosen = ", ".join(sorted(key.path[-1] for key in run.asset_selection or ())) or run.job_name
        cause, where = context.failure_event.message or "failed", {"partition": partition, "run_id": run.run_id}
        whole = Notice(kind="failed", asset=chosen, cause=cause, **where)
        verdicts = context.instance.all_logs(run.run_id, dg.DagsterEventType.ASSET_CHECK_EVALUATION)
        events = [*context.get_step_failure_events(), *(one.get_dagster_event() for one in verdicts)]
        for notice in notices_of(events, **where) or (whole,):
            tell(notify, notice)
        return None

    return sensor


def _is_interrupted(event: dg.DagsterEvent) -> bool:
    error = event.step_failure_data.error
    return error is not None and error.cls_name == "DagsterExecutionInterruptedError"


def _says_no(event: dg.DagsterEvent) -> bool:
    """Whether the event is a check that did not pass."""
    return event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION and not (
        event.asset_check_evaluation_data.passed
    )


def _is_refusal(event: dg.DagsterEvent) -> bool:
    """Whether a gate stopped the step: a gate of its own artifact or of an input."""
    data = event.step_failure_data
    if data.error is not None and data.error.cls_name == "DagsterAssetCheckFailedError":
        return True
    metadata = data.user_failure_data.metadata if data.user_failure_data else {}
    return "exit_code" in metadata and metadata["exit_code"].value == 3

"""Messages to the profile's webhook about runs that failed, were refused, or wait.

A failed run of the UI or of automation is reported by the sensor `failed_runs`; `pedigree run` reports its own failure,
for it needs no daemon. A job that waits is reported by the run that waits for it.
"""

from collections.abc import Iterable
from typing import Any

import dagster as dg

from resources.notify import post
from resources.profile import Notify, load_profile
from training.secrets import masked, remember

CAUSE_CHARACTERS = 2000
SENSOR_SECONDS = 30


def tell(notify: Notify, kind: str, *, asset: str, partition: str, cause: str, run_id: str) -> None:
    """Tell the profile's webhook that the run of an asset `failed`, was `refused` or is `waiting`."""
    address = notify.webhook.get_secret_value()
    if not address:
        return
    remember(address)
    recipe = partition.partition("@")[0]
    cause = masked(cause).strip()[:CAUSE_CHARACTERS]
    link = f"{notify.ui.rstrip('/')}/runs/{run_id}"
    text = f"{recipe}: {asset} [{partition}] {_VERBS[kind]}: {cause}\n{link}"
    message = {"text": text, "kind": kind, "recipe": recipe, "asset": asset, "partition": partition}
    post(address, {**message, "cause": cause, "link": link})


_VERBS = {"failed": "failed", "refused": "was refused", "waiting": "is waiting"}


def tell_of_steps(notify: Notify, events: Iterable[dg.DagsterEvent], *, partition: str, run_id: str) -> bool:
    """Tell of each asset of a run that failed or was refused; returns whether there was one. An interrupted one is
    neither: a person did that."""
    failures = [event for event in events if event.is_step_failure and not _is_interrupted(event)]
    for event in failures:
        kind = "refused" if _is_refusal(event) else "failed"
        tell(notify, kind, asset=event.step_key or "", partition=partition, cause=cause_of(event), run_id=run_id)
    return bool(failures)


def cause_of(event: dg.DagsterEvent) -> str:
    """Why a step failed: the stage's own sentence, or the innermost error."""
    data = event.step_failure_data
    if data.user_failure_data is not None and data.user_failure_data.description:
        return data.user_failure_data.description
    error: Any = data.error
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message if error is not None else event.message or "failed"


def failed_runs(profile: str) -> dg.SensorDefinition:
    """The sensor that reports failed runs. It is on from the beginning, for it launches nothing."""

    @dg.run_failure_sensor(
        name="failed_runs", minimum_interval_seconds=SENSOR_SECONDS, default_status=dg.DefaultSensorStatus.RUNNING
    )
    def sensor(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        """Tells the profile's webhook of a failed run: recipe, asset, cause and link. Launches nothing."""
        notify, run = load_profile(profile).notify, context.dagster_run
        if not notify.webhook.get_secret_value():
            return dg.SkipReason("the profile names no webhook (notify.webhook)")
        if run.tags.get("pedigree/launch") or run.tags.get("dagster/will_retry") == "true":
            return dg.SkipReason("the command that ran it tells by itself, or it is tried again")
        partition = run.tags.get("dagster/partition", "")
        if not tell_of_steps(notify, context.get_step_failure_events(), partition=partition, run_id=run.run_id):
            chosen = ", ".join(sorted(key.path[-1] for key in run.asset_selection or ())) or run.job_name
            cause = context.failure_event.message or "failed"
            tell(notify, "failed", asset=chosen, partition=partition, cause=cause, run_id=run.run_id)
        return None

    return sensor


def _is_interrupted(event: dg.DagsterEvent) -> bool:
    error = event.step_failure_data.error
    return error is not None and error.cls_name == "DagsterExecutionInterruptedError"


def _is_refusal(event: dg.DagsterEvent) -> bool:
    """Whether a gate stopped the step, of its own artifact or of an input."""
    data = event.step_failure_data
    if data.error is not None and data.error.cls_name == "DagsterAssetCheckFailedError":
        return True
    metadata = data.user_failure_data.metadata if data.user_failure_data else {}
    return "exit_code" in metadata and metadata["exit_code"].value == 3

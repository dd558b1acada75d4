"""Who is told of a failed or waiting run: real Dagster runs, the real sensor, a real HTTP server."""

from __future__ import annotations

import dagster as dg
import pytest

from assets.definitions import definitions
from assets.graph.notices import notices_of
from assets.graph.pipeline import Pipeline
from assets.materialize.watch import Watch
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from resources import notify


def fail(root, profile, instance, tags):
    """A run of the UI that fails: an asset whose inputs are not made."""
    chosen = next(one for one in definitions(root, profile).assets if one.key.path[-1] == "sft_model")
    return dg.materialize(
        [chosen],
        partition_key="kitchen",
        instance=instance,
        resources={"pipeline": Pipeline(root=str(root), profile=profile)},
        tags=tags,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        raise_on_error=False,
    )


def hear(root, profile, instance, result):
    """What the sensor says of a failed run."""
    sensor = next(one for one in definitions(root, profile).sensors if one.name == "failed_runs")
    context = dg.build_run_status_sensor_context(
        sensor_name="failed_runs",
        dagster_instance=instance,
        dagster_run=result.dagster_run,
        dagster_event=result.get_run_failure_event(),
    )
    answer = sensor(context.for_run_failure())
    notify.finish()
    return answer


def test_the_webhook_hears_of_a_failed_run_with_recipe_asset_cause_and_link(tmp_path, profile, hook):
    with dg.DagsterInstance.ephemeral() as instance:
        result = fail(tmp_path, profile, instance, {})
        assert hear(tmp_path, profile, instance, result) is None
    (message,) = hook.messages
    assert {key: message[key] for key in ("kind", "recipe", "asset", "partition")} == {
        "kind": "failed",
        "recipe": "kitchen",
        "asset": "sft_model",
        "partition": "kitchen",
    }
    assert message["cause"].startswith("base_model [kitchen] is not made")
    assert message["link"] == f"https://ui.example/runs/{result.run_id}" and message["link"] in message["text"]


def test_of_two_gates_that_refuse_the_first_is_told_as_the_command_tells_it():
    gates = ("first", "second")
    verdicts = [dg.AssetCheckResult(check_name=one, passed=False, description=one) for one in gates]

    @dg.asset(check_specs=[dg.AssetCheckSpec(one, asset="filtered", blocking=True) for one in gates])
    def filtered():
        return dg.MaterializeResult(check_results=verdicts)

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([filtered], instance=instance, raise_on_error=False)
    (notice,) = notices_of(result.all_events, partition="kitchen", run_id=result.run_id)
    assert (notice.kind, notice.cause) == ("refused", "first")


@pytest.mark.parametrize("tags", [{"pedigree/launch": "l"}, {"dagster/will_retry": "true"}])
def test_what_tells_by_itself_or_is_tried_again_is_not_told_twice(tmp_path, profile, hook, tags):
    with dg.DagsterInstance.ephemeral() as instance:
        assert isinstance(hear(tmp_path, profile, instance, fail(tmp_path, profile, instance, tags)), dg.SkipReason)
    assert hook.messages == []


def test_a_run_of_a_command_that_was_executed_again_is_told(tmp_path, profile, hook):
    tags = {"pedigree/launch": "l", "dagster/parent_run_id": "of the command"}
    with dg.DagsterInstance.ephemeral() as instance:
        assert hear(tmp_path, profile, instance, fail(tmp_path, profile, instance, tags)) is None
    assert [message["kind"] for message in hook.messages] == ["failed"]


def test_without_a_webhook_the_sensor_says_so(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        said = hear(tmp_path, "local", instance, fail(tmp_path, "local", instance, {}))
    assert "names no webhook" in said.skip_message


def test_a_run_that_waits_tells_the_webhook(tmp_path, profile, hook):
    cell = compare(load_recipe("kitchen"), tmp_path).cells["base_model", "kitchen"]

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["kitchen"]))
    def base_model(context) -> None:
        watch = Watch.of(context, Pipeline(root=str(tmp_path), profile=profile))
        watch.tell_waiting(cell, "pending for 40 s: Resources, as user:pass@ of https://user:pass@db/ has it")

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([base_model], partition_key="kitchen", instance=instance)
    notify.finish()
    (message,) = hook.messages
    assert (message["kind"], message["asset"]) == ("waiting", "base_model") and "40 s" in message["cause"]
    assert "https://user:pass@" not in message["cause"] and result.run_id in message["link"]

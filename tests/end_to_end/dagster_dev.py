"""`pedigree dev` as a person starts it, on ports of its own, and the questions a browser would ask it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.small_kitchen import RECIPES

START_SENSOR = """mutation($selector: SensorSelector!) { startSensor(sensorSelector: $selector) {
  __typename ... on Sensor { sensorState { status } } ... on PythonError { message } } }"""
LAUNCH_BACKFILL = """mutation($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
REPORT = """mutation($params: ReportRunlessAssetEventsParams!) { reportRunlessAssetEvents(eventParams: $params) {
  __typename ... on PythonError { message } } }"""
EXECUTE_AGAIN = """mutation($params: ReexecutionParams!) { launchRunReexecution(reexecutionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
BACKFILLS = """{ partitionBackfillsOrError { ... on PartitionBackfills { results { id status title
  tags { key value } assetSelection { path } } } } }"""
RUNS = """{ runsOrError { ... on Runs { results { runId status assetSelection { path } tags { key value } } } } }"""
SYNCED = """query($key: AssetKeyInput!, $partition: String!) { assetNodeOrError(assetKey: $key) {
  ... on AssetNode { staleStatus(partition: $partition) staleCauses(partition: $partition) { key { path } } } } }"""
OVER = {"COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED"}


class Services:
    """The running services of one root."""

    def __init__(self, port: int, mlflow_port: int, pid: int) -> None:
        self._pid = pid
        self.url = f"http://127.0.0.1:{port}"
        self.mlflow_url = f"http://127.0.0.1:{mlflow_port}"

    def ask(self, query: str, **variables: Any) -> Any:
        """The `data` of a GraphQL answer."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.loads(response.read())
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def kill(self) -> None:
        """Kill `pedigree dev` itself, without a word."""
        os.kill(self._pid, signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill `pedigree dev` and all that it started, runs and jobs too, as a machine does that loses its power."""
        itself = psutil.Process(self._pid)
        for one in (itself, *itself.children(recursive=True)):
            one.kill()

    def start_sensor(self, name: str) -> None:
        """Switch a sensor on."""
        where = {"repositoryLocationName": "assets.definitions", "repositoryName": "__repository__", "sensorName": name}
        assert self.ask(START_SENSOR, selector=where)["startSensor"]["__typename"] == "Sensor"

    def launch_backfill(self, assets: list[str], partitions: list[str]) -> str:
        """Launch what the UI's dialog launches."""
        params = {"assetSelection": [{"path": [name]} for name in assets], "partitionNames": partitions}
        launched = self.ask(LAUNCH_BACKFILL, params=params)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        return launched["backfillId"]

    def execute_again(self, run_id: str, strategy: str) -> str:
        """Execute a run again, as the button of its page does; return the id of the new run."""
        params = {"parentRunId": run_id, "strategy": strategy}
        launched = self.ask(EXECUTE_AGAIN, params=params)["launchRunReexecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]

    def report(self, asset: str, partitions: list[str]) -> None:
        """Report partitions as materialized, as the UI does for what somebody made elsewhere."""
        params = {"eventType": "ASSET_MATERIALIZATION", "assetKey": {"path": [asset]}, "partitionKeys": partitions}
        said = self.ask(REPORT, params=params)["reportRunlessAssetEvents"]
        assert said["__typename"] == "ReportRunlessAssetEventsSuccess", said

    def synced(self, asset: str, partition: str) -> dict[str, Any]:
        """What the asset's page says of one partition: whether an input changed since it was made, and which."""
        return self.ask(SYNCED, key={"path": [asset]}, partition=partition)["assetNodeOrError"]

    def backfills(self) -> list[dict[str, Any]]:
        """Every backfill, newest first."""
        return self.ask(BACKFILLS)["partitionBackfillsOrError"]["results"]

    def runs(self) -> list[dict[str, Any]]:
        """Every run, newest first."""
        return self.ask(RUNS)["runsOrError"]["results"]


@contextmanager
def services(root: Path, *options: str, **environment: str) -> Iterator[Services]:
    """Start `pedigree dev` over `root`, wait until it answers, and end all of it."""
    port, mlflow_port = free_port(), free_port()
    argv = [sys.executable, "-c", "from assets.commands.cli import main; main()", "dev", "--root", str(root), *options]
    with open(root / "dev.log", "wb") as output:
        process = subprocess.Popen(
            [*argv, "--port", str(port), "--mlflow-port", str(mlflow_port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PEDIGREE_RECIPES": str(RECIPES), **environment},
            start_new_session=True,
        )
        try:
            running = Services(port, mlflow_port, process.pid)
            wait_for(lambda: answers(f"{running.url}/server_info"), 240, lambda: (root / "dev.log").read_text()[-3000:])
            yield running
        finally:
            process.send_signal(signal.SIGTERM)
            if process.wait(60) != -signal.SIGKILL:  # by a test
                said = (root / "dev.log").read_text().rstrip()
                assert "superseded" not in said and not re.findall(r".*Warning: .*", said)
                assert process.returncode == 143 and said.endswith("ended by SIGTERM; Dagster and MLflow are ended too")


def answers(url: str) -> bool:
    """Whether the address is served."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status == 200
    except OSError:
        return False


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(
    condition: Callable[[], Any], seconds: float, explain: Callable[[], Any] = lambda: "", *, every: float = 0.5
) -> Any:
    """The first true value of `condition`; AssertionError with `explain()` when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(every)
    raise AssertionError(f"nothing after {seconds:.0f} s: {explain()}")

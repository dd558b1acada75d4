"""MLflow: runs, metrics, inputs and the model registry. The only module that imports mlflow, and only where it must.

What a stage reports goes to a spool first: an append-only file under the root. One writer process replays it to
MLflow, so a
tracking server that is slow, down or not yet created never stops or slows a stage. Every line can be applied twice
with the
result of once (runs are found by their key, MLflow ignores equal metric rows), so a replay after a crash doubles
nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

EXPERIMENT = "pedigree"
SPOOL_FILE, APPLIED_FILE, LOCK_FILE, LOG_FILE = "spool.jsonl", "applied.json", "writer.lock", "writer.log"
KEY_TAG = "pedigree/key"
RETRY_SECONDS = 5.0
BATCH_METRICS = 500  # MLflow takes at most 1,000 metrics in one call
SERVER_PORT = 5000

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class TrackingError(RuntimeError):
    """MLflow did not do what was asked, or could not be reached."""


def default_uri(root: Path) -> str:
    """A sqlite database under the root."""
    return f"sqlite:///{root / 'mlflow.db'}"


class Tracking:
    """The MLflow side of one root."""

    def __init__(self, uri: str, root: Path) -> None:
        self.uri = uri or default_uri(root)
        self.root = root
        self._folder = root / "tracking"
        self._writer: subprocess.Popen[bytes] | None = None

    # What stages report

    def launch(self, launch_id: str, recipe_name: str, recipe_digest: str) -> None:
        """Open the parent run of one launch; again for the same launch changes nothing."""
        self._spool(
            {
                "do": "run",
                "run": f"launch-{launch_id}",
                "name": recipe_name,
                "tags": {"recipe": recipe_name, "recipe_digest": recipe_digest},
            }
        )

    def finish_launch(self, launch_id: str, status: RunStatus) -> None:
        """Close the parent run of a launch."""
        self._spool({"do": "finish", "run": f"launch-{launch_id}", "status": status})

    def stage_run(
        self, launch_id: str, *, asset: str, partition: str, fingerprint: str, tags: dict[str, str]
    ) -> StageRun:
        """The run of one materialization, under its launch."""
        key = f"{asset}-{fingerprint[:16]}-{launch_id[:12]}"
        line = {"do": "run", "run": key, "name": f"{asset} [{partition}]", "parent": f"launch-{launch_id}"}
        self._spool({**line, "tags": {**tags, "asset": asset, "partition": partition, "fingerprint": fingerprint}})
        return StageRun(self, key)

    def _spool(self, line: dict[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        data = json.dumps({"time": time.time(), **line}, ensure_ascii=False).encode() + b"\n"
        descriptor = os.open(self._folder / SPOOL_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, data)  # one call: lines of several processes do not mix
        finally:
            os.close(descriptor)
        self._start_writer()

    def _start_writer(self) -> None:
        if self._writer is not None and self._writer.poll() is None:
            return
        with open(self._folder / LOG_FILE, "ab") as output:
            self._writer = subprocess.Popen(
                [sys.executable, "-m", "resources.tracking", self.uri, str(self.root), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=Path(__file__).parent.parent,
                start_new_session=True,
            )

    def pending(self) -> int:
        """Bytes of the spool that MLflow has not taken yet; 0 when all is there."""
        spool = self._folder / SPOOL_FILE
        return (spool.stat().st_size if spool.exists() else 0) - _read_applied(self._folder)["offset"]

    def flush(self, timeout_seconds: float) -> None:
        """Wait until MLflow has everything. TrackingError when it has not in time."""
        deadline = time.monotonic() + timeout_seconds
        while self.pending() > 0:
            if time.monotonic() > deadline:
                raise TrackingError(
                    f"MLflow at {self.uri} has not taken {self.pending()} bytes of reports in {timeout_seconds:.0f} s; "
                    f"they stay in {self._folder} and are sent when it answers"
                )
            self._start_writer()
            time.sleep(0.1)

    def replay(self) -> None:
        """Send what is pending, in this process."""
        with _writer_lock(self._folder) as owned:
            if owned:
                Writer(self.uri, self.root).apply_pending()

    def run_url(self, key: str) -> str:
        """A link that finds the run by its key in the MLflow UI of `pedigree dev`, also before the run exists."""
        base = self.uri if self.uri.startswith("http") else f"http://127.0.0.1:{SERVER_PORT}"
        query = urllib.parse.quote(f"tags.`{KEY_TAG}` = '{key}'")
        return f"{base}/#/experiments/1?searchFilter={query}"

    # The registry

    def find_version(self, model_name: str, digest: str) -> str | None:
        """The registered version made from the model with this digest; None when there is none."""
        self._require_name(model_name)
        found = self._client().search_model_versions(f"name = '{model_name}'")
        return next((str(version.version) for version in found if version.tags.get("digest") == digest), None)

    def champion(self, model_name: str) -> dict[str, Any] | None:
        """Version and tags that the champion alias points to; None when there is no champion."""
        self._require_name(model_name)
        client = self._client()
        if not client.search_registered_models(f"name = '{model_name}'"):
            return None
        aliases = client.get_registered_model(model_name).aliases
        if "champion" not in aliases:
            return None
        version = client.get_model_version(model_name, aliases["champion"])
        return {"version": str(version.version), "tags": dict(version.tags)}

    def register(self, model_name: str, source_dir: str, *, run_key: str, tags: dict[str, str]) -> str:
        """A new version of `model_name` whose files are those of `source_dir`: referenced where MLflow's database
        is used
        directly, uploaded where a server stands between. Returns the version. Links version and run both ways.
        """
        self._require_name(model_name)
        self.flush(180.0)
        client = self._client()
        run_id = self._run_with_prefix(client, run_key)
        source = source_dir
        if self.uri.startswith("http"):
            client.log_artifacts(run_id, source_dir, "model")
            source = f"{client.get_run(run_id).info.artifact_uri}/model"
        if not client.search_registered_models(f"name = '{model_name}'"):
            client.create_registered_model(model_name)
        version = str(client.create_model_version(model_name, source=source, run_id=run_id, tags=tags).version)
        client.set_tag(run_id, "registered_model", f"{model_name}/{version}")
        return version

    def set_alias(self, model_name: str, alias: str, version: str) -> None:
        """Let an alias point to a version."""
        self._client().set_registered_model_alias(model_name, alias, version)

    def _run_with_prefix(self, client: Any, run_key: str) -> str:
        experiment = client.get_experiment_by_name(EXPERIMENT)
        found = client.search_runs(
            [experiment.experiment_id],
            f"tags.`{KEY_TAG}` LIKE '{run_key}%'",
            max_results=1,
            order_by=["start_time DESC"],
        )
        if not found:
            raise TrackingError(f"MLflow at {self.uri} has no run whose key begins with {run_key}")
        return found[0].info.run_id

    def _client(self) -> Any:
        return make_client(self.uri, self.root)

    @staticmethod
    def _require_name(name: str) -> None:
        if not name or "'" in name or "/" in name or ":" in name:
            raise TrackingError(f"model name {name!r}: must not be empty or hold ' / or :")


class StageRun:
    """One materialization's run. Every call returns at once."""

    def __init__(self, tracking: Tracking, key: str) -> None:
        self._tracking = tracking
        self.key = key

    @property
    def url(self) -> str:
        """Where the MLflow UI shows it."""
        return self._tracking.run_url(self.key)

    def log_metrics(self, rows: Iterable[dict[str, Any]]) -> None:
        """Rows of `step`, `time` (seconds since 1970) and named numbers."""
        self._tracking._spool({"do": "metrics", "run": self.key, "rows": list(rows)})

    def log_inputs(self, datasets: list[dict[str, str]]) -> None:
        """Upstream artifacts as inputs: `asset, partition, fingerprint, digest, path`."""
        if datasets:
            self._tracking._spool({"do": "inputs", "run": self.key, "datasets": datasets})

    def log_params(self, params: dict[str, Any]) -> None:
        """Settings, as text."""
        self._tracking._spool(
            {"do": "params", "run": self.key, "params": {name: str(value)[:500] for name, value in params.items()}}
        )

    def set_tags(self, tags: dict[str, str]) -> None:
        """Tags on the run."""
        self._tracking._spool({"do": "tags", "run": self.key, "tags": tags})

    def log_artifact(self, path: str) -> None:
        """A file, copied to MLflow's artifact store."""
        self._tracking._spool({"do": "artifact", "run": self.key, "path": path})

    def finish(self, status: RunStatus) -> None:
        """Close the run with the status that is true."""
        self._tracking._spool({"do": "finish", "run": self.key, "status": status})


# The writer


class Writer:
    """Replays the spool to MLflow."""

    def __init__(self, uri: str, root: Path) -> None:
        self._folder = root / "tracking"
        self._client = make_client(uri, root)
        self._experiment = self._experiment_id(root)

    def apply_pending(self) -> bool:
        """Send every whole line after the last one applied; returns whether there was one."""
        state = _read_applied(self._folder)
        spool = self._folder / SPOOL_FILE
        if not spool.exists():
            return False
        with open(spool, "rb") as stream:
            stream.seek(state["offset"])
            lines = [line for line in stream.read().splitlines(keepends=True) if line.endswith(b"\n")]
        for line in lines:
            self._apply(json.loads(line), state["runs"])
            state["offset"] += len(line)
            _write_applied(self._folder, state)
        return bool(lines)

    def _apply(self, line: dict[str, Any], runs: dict[str, str]) -> None:
        if line["do"] == "run":
            runs[line["run"]] = self._run_id(line, runs)
            return
        run_id = runs[line["run"]]
        if line["do"] == "metrics":
            self._log_metrics(run_id, line["rows"])
        elif line["do"] == "inputs":
            self._log_inputs(run_id, line["datasets"])
        elif line["do"] == "params":
            for name, value in line["params"].items():
                self._client.log_param(run_id, name, value)
        elif line["do"] == "tags":
            for name, value in line["tags"].items():
                self._client.set_tag(run_id, name, value)
        elif line["do"] == "artifact":
            if Path(line["path"]).exists():
                self._client.log_artifact(run_id, line["path"])
        elif line["do"] == "finish":
            self._client.set_terminated(run_id, line["status"], int(line["time"] * 1000))

    def _run_id(self, line: dict[str, Any], runs: dict[str, str]) -> str:
        found = self._client.search_runs([self._experiment], f"tags.`{KEY_TAG}` = '{line['run']}'", max_results=1)
        if found:
            self._client.update_run(found[0].info.run_id, "RUNNING")
            return found[0].info.run_id
        tags = {**line["tags"], KEY_TAG: line["run"]}
        if line.get("parent") in runs:
            tags["mlflow.parentRunId"] = runs[line["parent"]]
        run = self._client.create_run(
            self._experiment, start_time=int(line["time"] * 1000), tags=tags, run_name=line["name"]
        )
        return run.info.run_id

    def _log_metrics(self, run_id: str, rows: list[dict[str, Any]]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, float(value), int(row["time"] * 1000), int(row["step"]))
            for row in rows
            for name, value in row.items()
            if name not in ("time", "step") and isinstance(value, (int, float)) and not isinstance(value, bool)
        ]
        for start in range(0, len(metrics), BATCH_METRICS):
            self._client.log_batch(run_id, metrics=metrics[start : start + BATCH_METRICS])

    def _log_inputs(self, run_id: str, datasets: list[dict[str, str]]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                dataset=Dataset(
                    name=f"{item['asset']} {item['partition']}",
                    digest=item["digest"][:36],  # MLflow keeps 36 characters
                    source_type="local",
                    source=json.dumps(
                        {"uri": item["path"], "fingerprint": item["fingerprint"], "digest": item["digest"]}
                    ),
                ),
                tags=[InputTag(key="mlflow.data.context", value=item["asset"])],
            )
            for item in datasets
        ]
        self._client.log_inputs(run_id, inputs)

    def _experiment_id(self, root: Path) -> str:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        if found is not None:
            return found.experiment_id
        return self._client.create_experiment(EXPERIMENT, artifact_location=(root / "mlflow-artifacts").as_uri())


def make_client(uri: str, root: Path) -> Any:
    """An MLflow client. Importing MLflow costs seconds, so this is called only where something is sent or asked."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    root.mkdir(parents=True, exist_ok=True)
    key = (uri, os.getpid())
    if key not in _CLIENTS:
        from mlflow import MlflowClient

        _CLIENTS[key] = MlflowClient(tracking_uri=uri, registry_uri=uri)
    return _CLIENTS[key]


_CLIENTS: dict[tuple[str, int], Any] = {}


def _read_applied(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / APPLIED_FILE).read_text("utf-8"))
    except FileNotFoundError:
        return {"offset": 0, "runs": {}}


def _write_applied(folder: Path, state: dict[str, Any]) -> None:
    temporary = folder / f".{APPLIED_FILE}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(state), "utf-8")
    os.replace(temporary, folder / APPLIED_FILE)


@contextmanager
def _writer_lock(folder: Path) -> Iterator[bool]:
    """Whether this process is the one writer of the folder. The kernel releases it when the process ends, however
    it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK_FILE, "w", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def follow(uri: str, root: Path, parent: int) -> None:
    """Send the spool as it grows until the parent is gone and nothing is left, or MLflow stays away after that."""
    os.nice(10)  # a stage's work goes first
    with _writer_lock(root / "tracking") as owned:
        if not owned:
            return
        writer: Writer | None = None
        while True:
            alive = _is_alive(parent)
            try:
                writer = writer or Writer(uri, root)
                sent = writer.apply_pending()
            except Exception as error:  # whatever MLflow raises: the report waits in the spool
                print(f"{time.strftime('%F %T')} MLflow at {uri} is not taking reports: {error}", flush=True)
                writer, sent = None, False
                if not alive:
                    return
                time.sleep(RETRY_SECONDS)
                continue
            if not sent:
                if not alive:
                    return
                time.sleep(0.3)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def server_command(uri: str, root: Path, port: int) -> tuple[list[str], dict[str, str]]:
    """The MLflow server on loopback over the same store, and its environment."""
    argv = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    argv += [
        "--backend-store-uri",
        uri or default_uri(root),
        "--default-artifact-root",
        (root / "mlflow-artifacts").as_uri(),
    ]
    argv += ["--allowed-hosts", f"127.0.0.1:{port},localhost:{port}"]
    return argv, {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }


if __name__ == "__main__":
    follow(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

"""MLflow: runs, metrics, inputs and the model registry. The only module that imports mlflow, and only where it must.

What a stage reports goes to a spool first: an append-only file under the root. One writer process replays it to
MLflow, so a tracking server that is slow, down or not yet created never stops or slows a stage. The spool is the truth
and MLflow a view of it: every line can be applied twice with the result of once (runs are found by their key, MLflow
keeps equal metric rows and inputs once), so a replay after a crash doubles nothing, and another store gets everything.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import select
import subprocess
import sys
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from training.secrets import masked, masked_errors, masked_output, remember_address, without_secrets

EXPERIMENT = "pedigree"
SPOOL_FILE, APPLIED_FILE, REJECTED_FILE = "spool.jsonl", "applied.json", "rejected.jsonl"
LOCK_FILE, LOG_FILE = "writer.lock", "writer.log"
KEY_TAG, PARENT_TAG, KIND_TAG = "pedigree/key", "mlflow.parentRunId", "mlflow.experimentKind"
RETRY_SECONDS = 5.0
LINGER_SECONDS = 60.0  # how long a writer whose parent is gone goes on asking an MLflow that does not answer
READ_BYTES = 1 << 20  # of the spool at once; the cursor is written once for that much
BATCH_METRICS = 500  # MLflow takes at most 1,000 metrics and 1 MB in one call
PARAM_CHARACTERS = 500
FLUSH_SECONDS = 180.0  # the first use of a store makes its tables
SERVER_PORT = 5000

# Answers that say the same tomorrow: the line is set aside, and the others go on.
FINAL_ERRORS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS")

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]
_WORST_FIRST = ("FAILED", "KILLED", "FINISHED")


class TrackingError(RuntimeError):
    """MLflow did not do what was asked, or could not be reached."""


def default_uri(root: Path) -> str:
    """A sqlite database under the root."""
    return f"sqlite:///{root / 'mlflow.db'}"


def shown(uri: str) -> str:
    """A URI without user, password and what is behind `?`, for logs and links."""
    return without_secrets(uri)


def sqlite_file(uri: str) -> str | None:
    """The file of a sqlite store; None for any other."""
    path = uri.removeprefix("sqlite:///")
    return None if path == uri else path.partition("?")[0]


# What MLflow, requests and database drivers say, as a person would. The first that is found counts.
REASONS = {
    r"database is locked": "another process holds its database locked; end that process, or try again when it is done",
    r"unable to open database file|readonly database": "its database cannot be opened; see the rights of its folder",
    r"\b40[13]\b|unauthori[sz]ed|authentication failed|access denied": "it refuses this user and password",
    r"timed out|timeout": "it does not answer in time",
    r"refused|max retries|connection|resolve|unreachable|could not connect|can't connect": "it does not answer",
    r"No module named '(\w+)'": "the driver of its database is not installed",
}


def reason_of(error: Exception) -> str:
    """Why MLflow did not do what was asked, with nothing secret in it."""
    said = " ".join(masked(f"{error}").split())
    known = next((reason for words, reason in REASONS.items() if re.search(words, said, re.IGNORECASE)), "")
    return f"{known} ({said[:300]})" if known else said[:300]


class Asked:
    """An MLflow client whose errors are sentences, with nothing secret in them or behind them."""

    def __init__(self, uri: str, make: Callable[[], Any]) -> None:
        self._uri, self._make = uri, make

    def __getattr__(self, name: str) -> Any:
        def asked(*arguments: Any, **options: Any) -> Any:
            try:
                return getattr(self._make(), name)(*arguments, **options)
            except Exception as error:  # whatever MLflow and its database drivers raise
                raise TrackingError(f"MLflow at {shown(self._uri)} could not be asked: {reason_of(error)}") from None

        return asked


class Tracking:
    """The MLflow side of one root. With `in_background=False` reports wait in the spool until `replay`."""

    def __init__(self, uri: str, root: Path, *, in_background: bool = True) -> None:
        self.uri = uri or default_uri(root)
        remember_address(self.uri)
        self.root = root
        self._folder = root / "tracking"
        self._in_background = in_background

    # What stages report

    def launch(self, launch_id: str, recipe_name: str, recipe_digest: str) -> None:
        """Open the parent run of one launch, which `finish_launch` will close; again for the same changes nothing."""
        tags = {"recipe": recipe_name, "recipe_digest": recipe_digest}
        self._spool({"do": "run", "run": _launch_key(launch_id), "name": recipe_name, "tags": tags})

    def finish_launch(self, launch_id: str, status: RunStatus) -> None:
        """Close the parent run of a launch."""
        self._spool({"do": "finish", "run": _launch_key(launch_id), "status": status})

    def stage_run(
        self, launch_id: str, *, asset: str, partition: str, fingerprint: str, tags: dict[str, str]
    ) -> StageRun:
        """The run of one materialization, under its launch.

        A launch that nobody opened (one from the Dagster UI, or a backfill) begins with its first stage and ends with
        its last; its parent run takes the tag `recipe_digest` from the stage's tags.
        """
        key = f"{artifact_key(asset, fingerprint)}-{launch_id[:12]}"
        own = {"asset": asset, "partition": partition, "fingerprint": fingerprint, "recipe": partition.split("@")[0]}
        line = {"do": "run", "run": key, "name": f"{asset} [{partition}]", "parent": _launch_key(launch_id)}
        self._spool({**line, "tags": {**tags, **own}})
        return StageRun(self, key)

    def _spool(self, line: dict[str, Any]) -> None:
        append_line(self._folder, {**line, "owner": OWNER})
        if self._in_background:
            self._start_writer()

    def _start_writer(self) -> None:
        """Start the writer process unless it runs. It ends by itself: when this process does, its input ends."""
        started = _WRITERS.get((self.uri, self.root))
        if started is not None:
            process, since = started
            if process.poll() is None or time.monotonic() - since < RETRY_SECONDS:
                return
            _close_pipe(process)
        with open(self._folder / LOG_FILE, "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "resources.tracking", str(self.root), OWNER],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=Path(__file__).parent.parent,
                start_new_session=True,
            )
        _WRITERS[self.uri, self.root] = (process, time.monotonic())
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            # Not on the command line, which every user of the machine can read: a URI may hold a password.
            process.stdin.write(f"{self.uri}\n".encode())
            process.stdin.flush()

    def pending(self) -> int:
        """Bytes of the spool that MLflow has not taken yet; 0 when all is there."""
        return _spool_bytes(self._folder) - _read_applied(self._folder, self.uri)["offset"]

    def flush(self, timeout_seconds: float) -> None:
        """Wait until MLflow has everything. TrackingError when it has not in time."""
        deadline = time.monotonic() + timeout_seconds
        while self.pending() > 0:
            if time.monotonic() > deadline:
                raise TrackingError(
                    f"MLflow at {shown(self.uri)} has not taken {self.pending()} bytes of reports in "
                    f"{timeout_seconds:.0f} s; they stay in {self._folder} and are sent when it answers"
                )
            if self._in_background:
                self._start_writer()
            time.sleep(0.1)

    def replay(self) -> bool:
        """Send what is pending, in this process. False when another process is at it."""
        with _writer_lock(self._folder) as owned:
            if owned:
                writer = Writer(self.uri, self.root)
                while writer.apply_pending():
                    pass
            return owned

    def run_url(self, key: str) -> str:
        """A link to the last run whose key begins with `key`, in the MLflow UI; to a search for it before it exists.

        A key without its launch (asset and fingerprint) is that of every run which made the artifact.
        """
        base = shown(self.uri).rstrip("/") if self.uri.startswith("http") else f"http://127.0.0.1:{SERVER_PORT}"
        applied = _read_applied(self._folder, self.uri)
        runs = f"{base}/#/experiments/{applied['experiment'] or '1'}/runs"
        known = [run for name, run in applied["runs"].items() if name.startswith(key)]
        if known:
            return f"{runs}/{known[-1]}"
        query = urllib.parse.quote(f"tags.`{KEY_TAG}` LIKE '{key}%'")
        return f"{runs}?workflowType=machine_learning&searchFilter={query}"

    # What it was told

    @property
    def store(self) -> Path | None:
        """Path of MLflow's sqlite file; None when the tracking address is a server or another database."""
        path = sqlite_file(self.uri)
        return None if path is None else Path(path)

    def told_of(self, fingerprint: str) -> list[dict[str, str]]:
        """The tags of every run that made an artifact with this fingerprint and said so; the newest first."""
        client = self._client()
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            return []
        order = ["start_time DESC"]
        found = client.search_runs([experiment.experiment_id], f"tags.fingerprint = '{fingerprint}'", order_by=order)
        return [dict(run.data.tags) for run in found if "digest" in run.data.tags]

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
        """A new version of `model_name` whose files are those of `source_dir`. Links version and run both ways.

        The files are referenced where they lie when MLflow's database is used directly, and uploaded when a server
        stands between, which refuses paths of its clients. Returns the version.
        """
        self._require_name(model_name)
        self.flush(FLUSH_SECONDS)
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
        if experiment is None:
            raise TrackingError(f"MLflow at {shown(self.uri)} has no experiment {EXPERIMENT}: nothing was reported yet")
        found = client.search_runs(
            [experiment.experiment_id],
            f"tags.`{KEY_TAG}` LIKE '{run_key}%'",
            max_results=1,
            order_by=["start_time DESC"],
        )
        if not found:
            raise TrackingError(f"MLflow at {shown(self.uri)} has no run whose key begins with {run_key}")
        return found[0].info.run_id

    def _client(self) -> Any:
        return Asked(self.uri, lambda: make_client(self.uri, self.root))

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
        """The address of the run in the MLflow UI."""
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
            {
                "do": "params",
                "run": self.key,
                "params": {name: str(value)[:PARAM_CHARACTERS] for name, value in params.items()},
            }
        )

    def set_tags(self, tags: dict[str, str]) -> None:
        """Tags on the run."""
        self._tracking._spool({"do": "tags", "run": self.key, "tags": tags})

    def log_artifact(self, path: str) -> None:
        """A file, copied to MLflow's artifact store."""
        self._tracking._spool({"do": "artifact", "run": self.key, "path": path})

    def finish(self, status: RunStatus) -> None:
        """Close the run with its status."""
        self._tracking._spool({"do": "finish", "run": self.key, "status": status})


# The spool


# Names this process in the spool, so that runs it left open are closed when it is gone.
OWNER = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"

# One writer process a store and root. Its input is a pipe from here: the kernel closes it when this process ends.
_WRITERS: dict[tuple[str, Path], tuple[subprocess.Popen[bytes], float]] = {}


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()


def artifact_key(asset: str, fingerprint: str) -> str:
    """What the keys of all runs that made, or tried to make, one artifact begin with."""
    return f"{asset}-{fingerprint[:16]}"


def _launch_key(launch_id: str) -> str:
    return f"launch-{launch_id}"


def append_line(folder: Path, line: dict[str, Any]) -> None:
    """Add one line to the spool. The newline before it closes a line that a killed process left torn."""
    folder.mkdir(parents=True, exist_ok=True)
    data = b"\n" + json.dumps({"time": time.time(), **line}, ensure_ascii=False).encode() + b"\n"
    descriptor = os.open(folder / SPOOL_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        written = os.write(descriptor, data)  # one call: lines of several processes do not mix
    finally:
        os.close(descriptor)
    if written < len(data):
        raise TrackingError(f"{folder / SPOOL_FILE}: {written} of {len(data)} bytes written; is the disk full?")


def _read_spool(folder: Path, offset: int) -> tuple[list[bytes], int]:
    """Whole lines after `offset`, and the offset after them."""
    try:
        with open(folder / SPOOL_FILE, "rb") as stream:
            stream.seek(offset)
            data = stream.read(READ_BYTES)
            if b"\n" not in data.strip(b"\n"):
                data += stream.readline()  # one line may be longer than that
    except FileNotFoundError:
        return [], offset
    whole, newline, _ = data.rpartition(b"\n")
    return [line for line in whole.splitlines() if line], offset + len(whole) + len(newline)


def _read_applied(folder: Path, uri: str) -> dict[str, Any]:
    """How far the spool was sent to this store; from the start for another one, or for a spool that was cut."""
    try:
        known = json.loads((folder / APPLIED_FILE).read_text("utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return _nothing_applied(uri)
    is_same = known["store"] == _identity(uri) and _spool_bytes(folder) >= known["offset"]
    return known if is_same else _nothing_applied(uri)


def _nothing_applied(uri: str) -> dict[str, Any]:
    """The writer's state before any line was sent. `runs`: id by key. `open`: owner and parent run by key. `launches`:
    status by stage, for launches that nobody opened."""
    fresh: dict[str, Any] = {"runs": {}, "open": {}, "launches": {}}
    return {"store": _identity(uri), "experiment": "", "made": "", "offset": 0, **fresh}


def _identity(uri: str) -> str:
    return hashlib.sha256(uri.encode()).hexdigest()[:16]


def _spool_bytes(folder: Path) -> int:
    spool = folder / SPOOL_FILE
    return spool.stat().st_size if spool.exists() else 0


def _write_json(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value), "utf-8")
    os.replace(temporary, path)


# The writer


class Writer:
    """Replays the spool to MLflow. Only the process that holds the writer's lock may have one."""

    def __init__(self, uri: str, root: Path) -> None:
        self._folder = root / "tracking"
        self._client = make_client(uri, root)
        self._state = _read_applied(self._folder, uri)
        experiment = self._experiment(uri, root)
        made = f"{experiment.experiment_id}@{experiment.creation_time}"
        if self._state["made"] not in ("", made):
            # The store was thrown away and made anew under the same name: it gets everything again.
            self._state = _nothing_applied(uri)
        self._state |= {"experiment": experiment.experiment_id, "made": made}
        self._runs: dict[str, str] = self._state["runs"]
        self._may_repeat = True  # a writer before this one may have sent lines and died before it noted them

    def apply_pending(self) -> bool:
        """Send whole lines after the last one applied, up to 1 MB; returns whether there was one."""
        lines, end = _read_spool(self._folder, self._state["offset"])
        if end == self._state["offset"]:
            return False
        waiting: dict[str, list[dict[str, Any]]] = {}
        for raw in lines:
            line = self._parsed(raw)
            if line is None:
                continue
            if line["do"] == "metrics":
                waiting.setdefault(line["run"], []).append(line)
                continue
            for run in [line["run"]] if "run" in line else list(waiting):
                self._send_metrics(run, waiting.pop(run, []))
            self._apply(line)
        for run, rows in waiting.items():
            self._send_metrics(run, rows)
        self._state["offset"] = end
        _write_json(self._folder / APPLIED_FILE, self._state)
        self._may_repeat = False
        return True

    def _parsed(self, raw: bytes) -> dict[str, Any] | None:
        """The line; None, and a note why, for one that was torn or whose run is not known."""
        try:
            line = json.loads(raw)
        except ValueError:
            self._reject(raw.decode("utf-8", "replace"), "torn by a process that was killed while it wrote")
            return None
        if line["do"] not in ("run", "gone") and line["run"] not in self._runs:
            self._reject(line, "the run was never opened")
            return None
        return line

    def _reject(self, line: Any, reason: str) -> None:
        reason = masked(reason)
        print(f"{time.strftime('%F %T')} set aside in {REJECTED_FILE}: {reason}", flush=True)
        with open(self._folder / REJECTED_FILE, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"reason": reason, "line": line}, ensure_ascii=False) + "\n")

    def _apply(self, line: dict[str, Any]) -> None:
        actions = {
            "run": self._open,
            "finish": self._finish,
            "gone": self._close_all,
            "inputs": self._log_inputs,
            "params": self._log_params,
            "tags": self._log_tags,
            "artifact": self._log_artifact,
        }
        with self._set_aside(line):
            actions[line["do"]](line)

    @contextmanager
    def _set_aside(self, line: Any) -> Iterator[None]:
        """Set the line aside when MLflow will never take it; other errors go on: MLflow may be back later."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            if error.error_code not in FINAL_ERRORS:
                raise
            self._reject(line, f"{error.error_code}: {error.message}")

    # One method for each kind of line

    def _open(self, line: dict[str, Any]) -> None:
        key, parent = line["run"], line.get("parent")
        tags = dict(line["tags"])
        if parent is None:
            self._state["launches"].pop(key, None)  # somebody will close it
        else:
            tags[PARENT_TAG] = self._parent(parent, line)
        self._runs[key] = self._opened(key, line, tags)
        self._state["open"][key] = {"owner": line["owner"], "parent": parent}

    def _parent(self, key: str, child: dict[str, Any]) -> str:
        """The id of a launch's run. One that nobody opened is opened, and is open while a stage of it is."""
        if key not in self._runs:
            tags = {name: child["tags"][name] for name in ("recipe", "recipe_digest") if name in child["tags"]}
            self._runs[key] = self._opened(key, {**child, "name": child["tags"]["recipe"]}, tags)
            self._state["launches"][key] = {}
        elif key in self._state["launches"]:
            self._client.update_run(self._runs[key], "RUNNING")
        return self._runs[key]

    def _opened(self, key: str, line: dict[str, Any], tags: dict[str, str]) -> str:
        """The id of the run with this key, which is running now; made when it is not there."""
        known = self._runs.get(key) or self._find_run(key)
        if known is not None:
            self._client.update_run(known, "RUNNING")
            return known
        start = int(line["time"] * 1000)
        run = self._client.create_run(
            self._state["experiment"], start_time=start, tags={**tags, KEY_TAG: key}, run_name=line["name"]
        )
        return run.info.run_id

    def _find_run(self, key: str) -> str | None:
        if not self._may_repeat:
            return None
        found = self._client.search_runs([self._state["experiment"]], f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
        return found[0].info.run_id if found else None

    def _finish(self, line: dict[str, Any]) -> None:
        self._close(line["run"], line["status"], line["time"])

    def _close_all(self, line: dict[str, Any]) -> None:
        """End the runs that a dead process left open as `KILLED`, stages before their launch."""
        for key in [key for key, run in self._state["open"].items() if run["owner"] == line["owner"]][::-1]:
            self._close(key, "KILLED", line["time"])

    def _close(self, key: str, status: str, seconds: float) -> None:
        self._client.set_terminated(self._runs[key], status, int(seconds * 1000))
        parent = self._state["open"].pop(key, {}).get("parent")
        if parent not in self._state["launches"]:
            return
        ended = self._state["launches"][parent]
        ended[key] = status
        if not any(run["parent"] == parent for run in self._state["open"].values()):
            worst = min(ended.values(), key=_WORST_FIRST.index)
            self._client.set_terminated(self._runs[parent], worst, int(seconds * 1000))

    def _log_inputs(self, line: dict[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                dataset=Dataset(
                    name=f"{item['asset']} {item['partition']}",
                    digest=item["digest"][:36],  # MLflow keeps 36 characters; the source has all of it
                    source_type="local",
                    source=json.dumps(
                        {"uri": item["path"], "fingerprint": item["fingerprint"], "digest": item["digest"]}
                    ),
                ),
                tags=[InputTag(key="mlflow.data.context", value=item["asset"])],
            )
            for item in line["datasets"]
        ]
        self._client.log_inputs(self._runs[line["run"]], inputs)

    def _log_params(self, line: dict[str, Any]) -> None:
        from mlflow.entities import Param

        self._log_pairs(line["run"], "params", [Param(name, value) for name, value in line["params"].items()])

    def _log_tags(self, line: dict[str, Any]) -> None:
        from mlflow.entities import RunTag

        self._log_pairs(line["run"], "tags", [RunTag(name, str(value)) for name, value in line["tags"].items()])

    def _log_pairs(self, run: str, what: str, pairs: list[Any]) -> None:
        for start in range(0, len(pairs), 100):  # MLflow takes 100 of them in one call
            self._client.log_batch(self._runs[run], **{what: pairs[start : start + 100]})

    def _log_artifact(self, line: dict[str, Any]) -> None:
        if Path(line["path"]).exists():
            self._client.log_artifact(self._runs[line["run"]], line["path"])
        else:
            self._reject(line, "the file is gone")

    def _send_metrics(self, run: str, lines: list[dict[str, Any]]) -> None:
        metrics = [metric for line in lines for metric in _metrics_of(line["rows"])]
        for start in range(0, len(metrics), BATCH_METRICS):
            batch = metrics[start : start + BATCH_METRICS]
            with self._set_aside({"run": run, "metrics": [dict(metric) for metric in batch]}):
                self._client.log_batch(self._runs[run], metrics=batch)

    def _experiment(self, uri: str, root: Path) -> Any:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        if found is None:
            # A server knows where it keeps files; a database that is used directly has them beside it.
            place = None if uri.startswith("http") else (root / "mlflow-artifacts").as_uri()
            found = self._client.get_experiment(self._client.create_experiment(EXPERIMENT, artifact_location=place))
        if KIND_TAG not in found.tags:
            # Otherwise MLflow's UI shows the experiment as one about prompts and traces, without its runs.
            self._client.set_experiment_tag(found.experiment_id, KIND_TAG, "custom_model_development")
        return found


def _metrics_of(rows: list[dict[str, Any]]) -> list[Any]:
    """Every number of the rows. Characters that MLflow's names may not have become underscores."""
    from mlflow.entities import Metric

    return [
        Metric(re.sub(r"[^\w.\- :/]", "_", name), float(value), int(row["time"] * 1000), int(row["step"]))
        for row in rows
        for name, value in row.items()
        if name not in ("time", "step") and isinstance(value, (int, float)) and not isinstance(value, bool)
    ]


def make_client(uri: str, root: Path) -> Any:
    """An MLflow client. Importing MLflow costs seconds, so this is called only where something is sent or asked."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # The spool does the waiting; a client that does it too would hold up whoever asks.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    root.mkdir(parents=True, exist_ok=True)
    key = (uri, os.getpid())
    if key not in _CLIENTS:
        from mlflow import MlflowClient

        with _making_tables(uri) as is_file:
            client = _CLIENTS[key] = MlflowClient(tracking_uri=uri, registry_uri=uri)
            if is_file:  # the first question to each half makes its tables
                client.search_experiments(max_results=1)
                client.search_registered_models(max_results=1)
    return _CLIENTS[key]


@contextmanager
def _making_tables(uri: str) -> Iterator[bool]:
    """Whether the store is a sqlite file; then one process at a time is here, of whatever root.

    Two that make its tables at once leave a file that neither can use.
    """
    path = sqlite_file(uri)
    if path is None:
        yield False
        return
    with open(f"{path}.lock", "w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield True


_CLIENTS: dict[tuple[str, int], Any] = {}


@contextmanager
def _writer_lock(folder: Path) -> Iterator[bool]:
    """Whether this process is the one writer of the folder. The kernel lets go when the process ends, however."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK_FILE, "w", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def follow(uri: str, root: Path, owner: str, parent_lives: Callable[[], bool]) -> None:
    """Send the spool as it grows until the parent is gone and nothing is left, or MLflow stays away after that."""
    folder = root / "tracking"
    closed = False
    while True:
        with _writer_lock(folder) as owned:
            if owned:
                _send_while(uri, root, parent_lives)
        # The parent is gone, or another writer is at work and will see what both parents report.
        if parent_lives():
            time.sleep(0.3)
            continue
        applied = _read_applied(folder, uri)
        if closed or (not applied["open"] and applied["offset"] == _spool_bytes(folder)):
            return
        append_line(folder, {"do": "gone", "owner": owner})
        closed = True


def _send_while(uri: str, root: Path, parent_lives: Callable[[], bool]) -> None:
    writer: Writer | None = None
    silent_since: float | None = None
    while True:
        alive = parent_lives()  # asked before the spool is read: what the parent wrote last is read then
        try:
            writer = writer or Writer(uri, root)
            sent = writer.apply_pending()
            silent_since = None
        except Exception as error:  # whatever MLflow raises: the report waits in the spool
            said = f"MLflow at {shown(uri)} is not taking reports: {reason_of(error)}"
            print(f"{time.strftime('%F %T')} {said}", flush=True)
            writer = None
            silent_since = silent_since or time.monotonic()
            if not alive and time.monotonic() - silent_since > LINGER_SECONDS:
                return
            time.sleep(RETRY_SECONDS)
            continue
        if not sent:
            if not alive:
                return
            time.sleep(0.3)


def _input_is_open() -> bool:
    """Whether whoever holds the other end of standard input still lives."""
    readable, _, _ = select.select([0], [], [], 0)
    return not readable or os.read(0, 1) != b""


def main(root: Path, owner: str) -> None:
    """The writer process: the first line of its input is the URI, and the end of its input is its parent's."""
    os.nice(10)  # a stage's work goes first
    uri = sys.stdin.buffer.raw.readline().decode().strip()  # type: ignore[attr-defined]
    remember_address(uri)
    with masked_output(), masked_errors():
        follow(uri, root, owner, _input_is_open)


def server_command(uri: str, root: Path, port: int) -> tuple[list[str], dict[str, str]]:
    """The MLflow server on loopback over the same store, and its environment, which may hold a password."""
    argv = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    argv += ["--allowed-hosts", f"127.0.0.1:{port},localhost:{port}"]
    argv += ["--serve-artifacts", "--artifacts-destination", (root / "mlflow-artifacts").as_uri()]
    return argv, {
        "MLFLOW_BACKEND_STORE_URI": uri or default_uri(root),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

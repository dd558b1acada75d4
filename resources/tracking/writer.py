"""Replays the spool to MLflow, line by line. Applying a line again changes nothing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resources.tracking.spool import nothing_applied, read_applied, read_spool, spool_bytes, write_applied
from resources.tracking.store import (
    ENDED_TAG,
    KEY_TAG,
    KIND_TAG,
    NOTE_TAG,
    PARENT_TAG,
    experiment_of,
    files_of,
    is_server,
    make_client,
)
from training.contract.files.checksums import at_once
from training.contract.secrets import masked

REJECTED_FILE = "rejected.jsonl"
BATCH_METRICS = 500  # MLflow takes at most 1,000 metrics and 1 MB in one call

# Errors that a retry cannot fix: the line is set aside, and the writer continues with the next line.
FINAL_ERRORS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS")

_WORST_FIRST = ("FAILED", "KILLED", "FINISHED")


class Writer:
    """Replays the spool to MLflow. Only the process that holds the writer's lock may create an instance."""

    def __init__(self, uri: str, root: Path) -> None:
        self._folder = root / "tracking"
        self._client = make_client(uri, root)
        self._state = read_applied(self._folder, uri)
        # A server decides where it keeps files. Without a server they are kept under the root.
        self._place = None if is_server(uri) else files_of(root)
        if any(self._created(recipe) != made for recipe, made in self._state["made"].items()):
            # The store was deleted and created again under the same name, so it gets all reports again.
            self._state = nothing_applied(self._folder, uri)
        self._runs: dict[str, str] = self._state["runs"]
        # What was reported before may be there: a writer died before it saved its state, or the store was left for
        # another one and is used again.
        self._may_be_there = spool_bytes(self._folder)

    def apply_pending(self) -> bool:
        """Send the complete lines after the last one applied, up to 1 MiB; return whether there were any."""
        lines, end = read_spool(self._folder, self._state["offset"])
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
        write_applied(self._folder, self._state)
        return True

    def _parsed(self, raw: bytes) -> dict[str, Any] | None:
        """Return the content of a line of the spool; None if it is incomplete or belongs to an unknown run.

        Such a line is set aside in another file, with the reason.
        """
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
        with open(self._folder / REJECTED_FILE, "a", encoding="utf-8", opener=at_once) as stream:
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
            "text": self._log_text,
        }
        with self._set_aside(line):
            actions[line["do"]](line)

    @contextmanager
    def _set_aside(self, line: Any) -> Iterator[None]:
        """Move a line of the spool to another file if MLflow will never accept it.

        Other errors pass, because MLflow may recover later.
        """
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
            self._state["launches"].pop(key, None)  # it is opened explicitly, so it will be closed explicitly
        else:
            tags[PARENT_TAG] = self._parent(parent, line)
        self._runs[key] = self._opened(key, line, tags)
        self._state["open"][key] = {"owner": line["owner"], "parent": parent}

    def _parent(self, key: str, child: dict[str, Any]) -> str:
        """The id in MLflow of the run of a stage's launch, its parent.

        If the launch was not opened explicitly, its run is open while one of its stages is.
        """
        if key not in self._runs:
            tags = {name: child["tags"][name] for name in ("recipe", "recipe_digest") if name in child["tags"]}
            self._runs[key] = self._opened(key, {**child, "name": child["tags"]["recipe"]}, tags)
            self._state["launches"][key] = {}
        elif key in self._state["launches"]:
            self._client.update_run(self._runs[key], "RUNNING")
        return self._runs[key]

    def _opened(self, key: str, line: dict[str, Any], tags: dict[str, str]) -> str:
        """The id of the run with this key, set to running; the run is created if it does not exist."""
        experiment = self._experiment(tags["recipe"])
        known = self._runs.get(key) or self._find_run(key, experiment)
        if known is not None:
            self._client.update_run(known, "RUNNING")
            return known
        start = int(line["time"] * 1000)
        run = self._client.create_run(experiment, start_time=start, tags={**tags, KEY_TAG: key}, run_name=line["name"])
        self._state["places"][key] = experiment
        return run.info.run_id

    def _find_run(self, key: str, experiment: str) -> str | None:
        if self._state["offset"] >= self._may_be_there:
            return None
        self._state["places"][key] = experiment
        found = self._client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
        return found[0].info.run_id if found else None

    def _finish(self, line: dict[str, Any]) -> None:
        self._close(line["run"], line["status"], line["time"])

    def _close_all(self, line: dict[str, Any]) -> None:
        """Close the runs that an ended process left open, with status `KILLED`; stages before their launch."""
        for key in [key for key, run in self._state["open"].items() if run["owner"] == line["owner"]][::-1]:
            self._client.set_tag(self._runs[key], ENDED_TAG, "its process was killed, or ended without a word")
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
                    digest=item["digest"][:36],  # MLflow keeps 36 characters; `source` has the whole digest
                    source_type="local",
                    source=json.dumps(
                        {"uri": item["path"], "fingerprint": item["fingerprint"], "digest": item["digest"]}
                    ),
                ),
                tags=[InputTag(key="mlflow.data.context", value=item.get("context", item["asset"]))],
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
        for start in range(0, len(pairs), 100):  # MLflow accepts 100 tags or parameters per call
            self._client.log_batch(self._runs[run], **{what: pairs[start : start + 100]})

    def _log_artifact(self, line: dict[str, Any]) -> None:
        file = self._folder.parent / line["path"]
        if file.exists():
            self._client.log_artifact(self._runs[line["run"]], str(file))
        else:
            self._reject(line, "the file is gone")

    def _log_text(self, line: dict[str, Any]) -> None:
        self._client.log_text(self._runs[line["run"]], line["text"], line["name"])

    def _send_metrics(self, run: str, lines: list[dict[str, Any]]) -> None:
        metrics = [metric for line in lines for metric in _metrics_of(line["rows"])]
        for start in range(0, len(metrics), BATCH_METRICS):
            batch = metrics[start : start + BATCH_METRICS]
            with self._set_aside({"run": run, "metrics": [dict(metric) for metric in batch]}):
                self._client.log_batch(self._runs[run], metrics=batch)

    def _experiment(self, recipe: str) -> str:
        """The id of the experiment of a recipe, which is created if it does not exist."""
        if recipe in self._state["experiments"]:
            return self._state["experiments"][recipe]
        name = experiment_of(recipe)
        found = self._client.get_experiment_by_name(name)
        if found is None:
            said = f"Runs of the recipe {recipe}: one for each launch, and under it one for each materialization."
            # Without the kind, MLflow's pages show an experiment about prompts and traces, without its runs.
            tags = {KIND_TAG: "custom_model_development", NOTE_TAG: said}
            made = self._client.create_experiment(name, artifact_location=self._place, tags=tags)
            found = self._client.get_experiment(made)
        self._state["experiments"][recipe] = found.experiment_id
        self._state["made"][recipe] = f"{found.experiment_id}@{found.creation_time}"
        return found.experiment_id

    def _created(self, recipe: str) -> str:
        found = self._client.get_experiment_by_name(experiment_of(recipe))
        return "" if found is None else f"{found.experiment_id}@{found.creation_time}"


def _metrics_of(rows: list[dict[str, Any]]) -> list[Any]:
    """The MLflow metrics of the rows: every number except `time` and `step`.

    Characters that MLflow does not allow in names become underscores.
    """
    from mlflow.entities import Metric

    return [
        Metric(re.sub(r"[^\w.\- :/]", "_", name), float(value), int(row["time"] * 1000), int(row["step"]))
        for row in rows
        for name, value in row.items()
        if name not in ("time", "step") and isinstance(value, (int, float)) and not isinstance(value, bool)
    ]

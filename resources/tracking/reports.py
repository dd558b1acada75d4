"""Report to MLflow, and query earlier reports. Every report returns at once."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from resources.tracking.errors import CheckedClient, TrackingError
from resources.tracking.process import OWNER, start_writer, writer_lock
from resources.tracking.spool import append_line, read_applied, spool_bytes
from resources.tracking.store import KEY_TAG, default_uri, experiments, make_client, page_address, shown, sqlite_file
from resources.tracking.writer import Writer
from training.contract.secrets import masked, remember_address

PARAM_CHARACTERS, PARAM_NAME_CHARACTERS = 500, 250  # MLflow's limits
TABLES_TAG = "mlflow.loggedArtifacts"
FLUSH_SECONDS = 180.0  # long, because the first use of a store creates its tables

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class Tracking:
    """Reports to and queries of the MLflow store of one root.

    Without a `uri`, the store is a sqlite database under the root. With `in_background=False`, reports wait in the
    spool until `replay` is called, or until the writer of another process sends them. `owner` is the process whose
    writer closes the runs that this one left open.
    """

    def __init__(self, uri: str | None, root: Path, *, in_background: bool = True, owner: str = OWNER) -> None:
        self.uri = uri or default_uri(root)
        remember_address(self.uri)
        self.root = root
        self._folder = root / "tracking"
        self._in_background, self._owner = in_background, owner

    # What stages report

    def launch(self, launch_id: str, recipe_name: str, recipe_digest: str, *, who: str = "") -> None:
        """Open the parent run of a launch, until `finish_launch` closes it. Opening it again changes nothing."""
        tags = {"recipe": recipe_name, "recipe_digest": recipe_digest} | ({"mlflow.user": who} if who else {})
        self._spool({"do": "run", "run": _launch_key(launch_id), "name": recipe_name, "tags": tags})

    def finish_launch(self, launch_id: str, status: RunStatus) -> None:
        """Close the parent run of a launch."""
        self._spool({"do": "finish", "run": _launch_key(launch_id), "status": status})

    def end_runs_of(self, owner: str) -> None:
        """Close the runs that a process which was killed left open; nothing if its own writer did so."""
        self._spool({"do": "gone", "owner": owner})

    def stage_run(
        self, launch_id: str, *, asset: str, partition: str, fingerprint: str, tags: dict[str, str]
    ) -> StageRun:
        """Open the run of one materialization, as a child of its launch's run.

        A launch from the Dagster UI or of a backfill was not opened by `launch`. Its parent run begins with its first
        stage, ends with its last, and gets the tag `recipe_digest` from the stage's tags.
        """
        key = f"{artifact_key(asset, fingerprint)}-{launch_id[:12]}"
        own = {"asset": asset, "partition": partition, "fingerprint": fingerprint, "recipe": partition.split("@")[0]}
        line = {"do": "run", "run": key, "name": f"{asset} [{partition}]", "parent": _launch_key(launch_id)}
        self._spool({**line, "tags": {**tags, **own}})
        return StageRun(self, key, own["recipe"])

    def launched(self, launch_id: str) -> StageRun:
        """The MLflow run of a launch, to report to; `launch` or a stage of the launch must have opened it."""
        return StageRun(self, _launch_key(launch_id))

    def _spool(self, line: dict[str, Any]) -> None:
        append_line(self._folder, {"owner": self._owner, **line})
        if self._in_background:
            start_writer(self.uri, self.root)

    def pending(self) -> int:
        """The number of bytes in the spool that have not yet been sent to MLflow."""
        return spool_bytes(self._folder) - read_applied(self._folder, self.uri)["offset"]

    def flush(self, timeout_seconds: float) -> None:
        """Wait until everything is sent to MLflow. Raises TrackingError after `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        while self.pending() > 0:
            if time.monotonic() > deadline:
                raise TrackingError(
                    f"MLflow at {shown(self.uri)} has not taken {self.pending()} bytes of reports in "
                    f"{timeout_seconds:.0f} s; they stay in {self._folder} and are sent when it answers"
                )
            if self._in_background:
                start_writer(self.uri, self.root)
            time.sleep(0.1)

    def replay(self) -> bool:
        """Send all pending reports in this process. Returns False if another process is already sending them."""
        with writer_lock(self._folder) as owned:
            if owned:
                writer = Writer(self.uri, self.root)
                while writer.apply_pending():
                    pass
            return owned

    def run_url(self, key: str, recipe: str = "") -> str:
        """A link in the MLflow UI to the last run whose key begins with `key`, or to a search if there is none yet.

        The key of a run is asset, fingerprint and launch. Without the launch, it matches every run that made the
        artifact. A search is in the experiment of `recipe`.
        """
        base = f"{page_address(self.uri, self.root)}/#/experiments"
        applied = read_applied(self._folder, self.uri)
        known = [name for name in applied["runs"] if name.startswith(key) and name in applied["places"]]
        if known:
            return f"{base}/{applied['places'][known[-1]]}/runs/{applied['runs'][known[-1]]}"
        place = applied["experiments"].get(recipe) or next(iter(applied["experiments"].values()), "1")
        query = urllib.parse.quote(f"tags.`{KEY_TAG}` LIKE '{key}%'")
        return f"{base}/{place}/runs?workflowType=machine_learning&searchFilter={query}"

    # Queries

    @property
    def store(self) -> Path | None:
        """Path of MLflow's sqlite file; None when the tracking address is a server or another database."""
        path = sqlite_file(self.uri)
        return None if path is None else Path(path)

    def told_of(self, fingerprints: Iterable[str]) -> dict[str, list[dict[str, str]]]:
        """Return the tags of every MLflow run that reported the digest of an artifact, by the artifact's fingerprint.

        Each of these runs made the artifact, and the newest comes first.
        """
        found = self._tags_of(fingerprints)
        return {name: [tags for tags in runs if "digest" in tags] for name, runs in found.items()}

    def begun(self, fingerprints: Iterable[str]) -> set[str]:
        """Return those of the fingerprints whose artifact an MLflow run made, or began to make."""
        return {name for name, runs in self._tags_of(fingerprints).items() if runs}

    def _tags_of(self, fingerprints: Iterable[str]) -> dict[str, list[dict[str, str]]]:
        client = self.client()
        places = experiments(client)
        return {fingerprint: _tags_of(client, places, fingerprint) for fingerprint in fingerprints}

    def client(self) -> Any:
        """An MLflow client that raises its errors as TrackingError, with a sentence."""
        return CheckedClient(self.uri, lambda: make_client(self.uri, self.root))


def _tags_of(client: Any, places: list[str], fingerprint: str) -> list[dict[str, str]]:
    if not places:
        return []
    found = client.search_runs(places, f"tags.fingerprint = '{fingerprint}'", order_by=["start_time DESC"])
    return [dict(run.data.tags) for run in found]


class StageRun:
    """The MLflow run of one materialization. Every call returns at once."""

    def __init__(self, tracking: Tracking, key: str, recipe: str = "") -> None:
        self._tracking = tracking
        self.key, self._recipe = key, recipe

    @property
    def url(self) -> str:
        """The URL of the run in the MLflow UI."""
        return self._tracking.run_url(self.key, self._recipe)

    def log_metrics(self, rows: Iterable[dict[str, Any]]) -> None:
        """Log rows of metrics; each has `step`, `time` (seconds since 1970) and named numbers."""
        self._tracking._spool({"do": "metrics", "run": self.key, "rows": list(rows)})

    def log_inputs(self, datasets: list[dict[str, str]]) -> None:
        """Log input artifacts, each with the fields `asset, partition, fingerprint, digest, path, context`."""
        if datasets:
            self._tracking._spool({"do": "inputs", "run": self.key, "datasets": datasets})

    def log_params(self, settings: Mapping[str, Any]) -> None:
        """Log settings as parameters: nested names joined by a dot, values without secrets, cut to PARAM_CHARACTERS."""
        params = {name: cut(masked(value), PARAM_CHARACTERS) for name, value in flat(settings).items()}
        self._tracking._spool({"do": "params", "run": self.key, "params": params})

    def log_text(self, name: str, text: str) -> None:
        """Store a text as the file `name` of the MLflow run."""
        self._tracking._spool({"do": "text", "run": self.key, "name": name, "text": masked(text)})

    def log_tables(self, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Store tables as files of the MLflow run, which its page shows and `mlflow.load_table` reads.

        A table is a list of rows with the same columns. `mlflow.log_table` would append the rows once more if a report
        is sent twice.
        """
        if not tables:
            return
        for name, rows in tables.items():
            table = {"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}
            self.log_text(name, json.dumps(table, ensure_ascii=False))
        self.set_tags({TABLES_TAG: json.dumps([{"path": name, "type": "table"} for name in tables])})

    def set_tags(self, tags: dict[str, str]) -> None:
        """Set tags on the run."""
        self._tracking._spool({"do": "tags", "run": self.key, "tags": tags})

    def log_artifact(self, file: Path) -> None:
        """Copy a file to MLflow's artifact store; the path is relative to the root, so a copied root sends its own."""
        path = os.path.relpath(file.resolve(), self._tracking.root.resolve())
        self._tracking._spool({"do": "artifact", "run": self.key, "path": path})

    def finish(self, status: RunStatus) -> None:
        """Close the run with its status."""
        self._tracking._spool({"do": "finish", "run": self.key, "status": status})


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Nested settings as one level, by names that MLflow accepts; `pretrain.steps` for `{"pretrain": {"steps": …}}`.

    A list of records that have a `name` is named by it (`evaluation.suites.arc.uri`); any other list is one value.
    """
    found: dict[str, str] = {}
    for key, value in settings.items():
        name = re.sub(r"[^\w.\- /]", "_", f"{before}{key}")[:PARAM_NAME_CHARACTERS]
        if isinstance(value, (list, tuple)) and value and all(isinstance(one, dict) and "name" in one for one in value):
            value = {one["name"]: {inner: one[inner] for inner in one.keys() - {"name"}} for one in value}
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{name}.")
        else:
            found[name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return found


def cut(text: str, characters: int) -> str:
    """Return the text, shortened to so many characters if it is longer; a shortened text ends in an ellipsis."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def artifact_key(asset: str, fingerprint: str) -> str:
    """The common prefix of the keys of all runs that made, or tried to make, one artifact."""
    return f"{asset}-{fingerprint[:16]}"


def _launch_key(launch_id: str) -> str:
    return f"launch-{launch_id}"

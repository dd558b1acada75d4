"""One registered model: its versions, its aliases, and how the alias `champion` moves.

MLflow sets one alias at a time, so a move is recorded before it is made: a tag of the registered model holds the
versions, the person and the reason. If a process dies during a move, the tag remains, and the next process finishes the
move. Every finished move is kept as a tag in MLflow too, so everybody who uses this store sees the same history.

A lock beside the store lets only one process at a time decide on a promotion. The store of a server cannot be locked;
there the champion is checked just before and just after a move, and the time between is not covered (docs/tracking.md).
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from resources.tracking.errors import TrackingError, reason_of
from resources.tracking.loadable import (
    MLMODEL,
    Score,
    downloaded,
    local_folder,
    log_model,
    log_scores,
    own_digest,
    replaced_references,
    write_loadable,
)
from resources.tracking.reports import FLUSH_SECONDS, Tracking
from resources.tracking.store import EXPERIMENT, KEY_TAG, experiments, read_store, shown, sqlite_file

CHAMPION, PREVIOUS, CANDIDATE = "champion", "previous", "candidate"
UNDER_WAY, DONE = "pedigree.move", "promotion."
MODEL_ID_TAG, MLMODEL_TAG = "logged_model", "mlmodel_digest"
VERSIONS_TAG = "mlflow.modelVersions"  # by which MLflow's pages lead from a LoggedModel to its versions
DECISION_TAGS = ("digest.", "record_digest.", "eval.", "exam.")  # prefixes of tags that not every decision has
WAITING_SECONDS = 2.0
Action = Literal["promotion", "override", "rollback"]


class ChampionMoved(TrackingError):
    """The champion is no longer the version that the decision compared with, so the decision must be made again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A registered version of the model: its number as text, its tags, and the location of its files."""

    version: str
    tags: Mapping[str, str]
    source: str

    @property
    def digest(self) -> str:
        """Return the digest of the version's last model; "" if the version has no such tag."""
        return self.tags.get("digest", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One move of the alias `champion` to `version`. `before` is the former champion, or None if there was none."""

    action: Action
    version: str
    before: str | None
    why: str
    who: str
    when: str
    decision: str = ""  # the record digest of the decision; "" if there was none
    run: str = ""  # the id of the Dagster run; "" for a move by hand

    @property
    def key(self) -> str:
        """The name of the tag that keeps this move; the names sort by time."""
        return f"{DONE}{self.when.replace(':', '')}-{self.version}"

    def as_json(self) -> dict[str, Any]:
        """Return the move as plain data, from which `Move(**data)` makes an equal move."""
        return asdict(self)


def line_in_file(store: Path, name: str) -> list[Version]:
    """The line of model `name` as `Registry.line` has it, read from a sqlite store without MLflow.

    The import of MLflow takes seconds. Raises sqlite3.Error if the file is not MLflow's or is locked.
    """
    with read_store(store) as database:
        asked = "SELECT version FROM registered_model_aliases WHERE name = ? AND alias = ?"
        found = database.execute(asked, (name, CHAMPION)).fetchone()
        if found is None:
            return []
        tags = dict(database.execute("SELECT key, value FROM registered_model_tags WHERE name = ?", (name,)))
        own = "SELECT key, value FROM model_version_tags WHERE name = ? AND version = ?"
        return [
            Version(version=number, tags=dict(database.execute(own, (name, int(number)))), source="")
            for number in line_of(_moves(tags), str(found[0]))
        ]


def _moves(tags: Mapping[str, str]) -> list[Move]:
    """Return every finished move of `champion` that the tags of a registered model keep, oldest first."""
    return [Move(**json.loads(tags[key])) for key in sorted(tags) if key.startswith(DONE)]


def line_of(moves: Sequence[Move], champion: str) -> list[str]:
    """Return the versions that became champion by one another's leave, oldest first; the last is `champion`.

    A person who promotes a version by hand begins a new line. A rollback takes the version out that it leaves. A
    champion that no recorded move made is alone in its line.
    """
    line: list[str] = []
    for move in moves:
        kept = [] if move.action == "override" else line
        left = move.before if move.action == "rollback" else None
        line = [*(one for one in kept if one not in (left, move.version)), move.version]
    return line if line[-1:] == [champion] else [champion]


def somebody() -> str:
    """Return the user and the machine of this process, as `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container the user id may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def now() -> str:
    """Return the present time in the form of tags (UTC, ISO 8601, microseconds)."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Registry:
    """The registered model `name` in MLflow's model registry."""

    def __init__(self, tracking: Tracking, name: str) -> None:
        if not name or "'" in name or "/" in name or ":" in name:
            raise TrackingError(f"model name {name!r}: must not be empty or hold ' / or :")
        self.tracking, self.name = tracking, name

    # Reading

    @property
    def _client(self) -> Any:
        return self.tracking.client()

    def _model(self) -> Any | None:
        return next(iter(self._client.search_registered_models(f"name = '{self.name}'")), None)

    def holder(self, alias: str) -> Version | None:
        """The version that an alias points to; None if the alias is not set."""
        model = self._model()
        if model is None or alias not in model.aliases:
            return None
        return self.version(str(model.aliases[alias]))

    def version(self, number: str) -> Version:
        """The version with this number."""
        found = self._client.get_model_version(self.name, number)
        return Version(version=str(found.version), tags=dict(found.tags), source=str(found.source))

    def version_of(self, digest: str) -> Version | None:
        """The version whose model has this digest; None if there is none."""
        found = self._client.search_model_versions(f"name = '{self.name}'")
        number = next((str(version.version) for version in found if version.tags.get("digest") == digest), None)
        return None if number is None else self.version(number)

    def history(self) -> list[Move]:
        """Every recorded move of `champion`, oldest first."""
        model = self._model()
        return [] if model is None else _moves(model.tags)

    def line(self) -> list[Version]:
        """The champion, last, and the former champions that a new one must be as good as; empty without a champion.

        A version that somebody has deleted from MLflow has no tags.
        """
        champion = self.holder(CHAMPION)
        if champion is None:
            return []
        there = {str(one.version) for one in self._client.search_model_versions(f"name = '{self.name}'")}
        return [
            self.version(number) if number in there else Version(version=number, tags={}, source="")
            for number in line_of(self.history(), champion.version)
        ]

    def under_way(self) -> Move | None:
        """The move of `champion` that was begun and not finished; None if there is none."""
        model = self._model()
        said = None if model is None else model.tags.get(UNDER_WAY)
        return Move(**json.loads(said)) if said else None

    def was_champion(self, version: Version, champion: Version | None) -> bool:
        """Whether this version is a former champion.

        Moves were not recorded at first; versions from that time count as former champions if they are older than the
        present one.
        """
        if champion is not None and champion.version == version.version:
            return False
        if {"champion.since", "champion.until"} & version.tags.keys():
            return True
        is_early = "decision_record" not in version.tags
        return champion is not None and is_early and int(version.version) < int(champion.version)

    # Writing

    def register(self, export: Path, *, run_key: str, tags: dict[str, str]) -> str:
        """Register a new version with the model in `export`; return its number. Version and run link to each other.

        The version's files are those of a LoggedModel, which MLflow loads (`loadable`). Where MLflow keeps files in a
        folder of this machine they are links to those of `export`; to anything else they are uploaded.
        """
        self.tracking.flush(FLUSH_SECONDS)
        client = self._client
        run = self._run_with_prefix(run_key)
        run_id = run.info.run_id
        kept = {name: tags[name] for name in ("recipe", "digest", "record_digest") if name in tags}
        made = log_model(client, export, experiment=run.info.experiment_id, run_id=run_id, name=self.name, tags=kept)
        if not client.search_registered_models(f"name = '{self.name}'"):
            client.create_registered_model(self.name)
        version = client.create_model_version(
            self.name,
            source=made.location,
            run_id=run_id,
            tags={**tags, MODEL_ID_TAG: made.model_id, MLMODEL_TAG: made.digest},
            model_id=made.model_id,
        )
        number = str(version.version)
        client.set_tag(run_id, "registered_model", f"{self.name}/{number}")
        versions = json.dumps([{"name": self.name, "version": int(number)}])
        client.set_logged_model_tags(made.model_id, {VERSIONS_TAG: versions})
        return number

    def explain(self, version: str, model: str, text: str) -> None:
        """Set the description of the registered model and of one version, as MLflow's pages show them."""
        self._client.update_registered_model(self.name, model)
        self._client.update_model_version(self.name, version, text)

    def score(self, version: str, scores: Sequence[Score]) -> None:
        """Log scores of a version's model."""
        found = self._client.get_model_version(self.name, version)
        if scores:
            log_scores(self._client, found.run_id, found.tags[MODEL_ID_TAG], scores)

    def unloadable(self, version: Version, export: Path) -> list[str]:
        """Return sentences about files of a version that MLflow would load although they are not the registered ones.

        `export` is the model in its artifact, whose own files `pedigree verify` reads. Files on a server are not read.
        """
        folder, told = local_folder(version.source), version.tags.get(MLMODEL_TAG)
        if folder is None or told is None:
            return []
        lines = [f"{folder / name}: is not the model's own file" for name in replaced_references(folder, export)]
        if own_digest(folder) != told:
            lines.append(f"{folder}: {MLMODEL} or a file beside it was changed since it was registered")
        return lines

    def rewrite(self, version: Version, export: Path) -> None:
        """Write the files of a version again that `unloadable` names."""
        found, folder = self._client.get_model_version(self.name, version.version), local_folder(version.source)
        assert folder is not None
        digest = write_loadable(folder, export, run_id=found.run_id, model_id=version.tags[MODEL_ID_TAG])
        self._client.set_model_version_tag(self.name, version.version, MLMODEL_TAG, digest)

    def folder_of(self, version: Version) -> Path:
        """The folder of a version's files on this machine; from a server or an object store they are downloaded."""
        return local_folder(version.source) or downloaded(version.source, self.tracking.uri)

    def _run_with_prefix(self, run_key: str) -> Any:
        client, where = self._client, f"MLflow at {shown(self.tracking.uri)}"
        places = experiments(client)
        if not places:
            raise TrackingError(f"{where} has no experiment {EXPERIMENT}: nothing was reported yet")
        found = client.search_runs(
            places,
            f"tags.`{KEY_TAG}` LIKE '{run_key}%'",
            max_results=1,
            order_by=["start_time DESC"],
        )
        if not found:
            raise TrackingError(f"{where} has no run whose key begins with {run_key}")
        return found[0]

    def set_alias(self, alias: str, version: str) -> None:
        """Point an alias to a version, unless it already does."""
        holder = self.holder(alias)
        if holder is None or holder.version != version:
            self._client.set_registered_model_alias(self.name, alias, version)

    def describe(self, version: str, tags: Mapping[str, str]) -> None:
        """Replace a version's tags from its last decision by `tags`; all other tags are kept."""
        present = self.version(version).tags
        for name, value in tags.items():
            if present.get(name) != value:
                self._client.set_model_version_tag(self.name, version, name, value)
        for name in present.keys() - tags.keys():
            if name.startswith(DECISION_TAGS):
                self._client.delete_model_version_tag(self.name, version, name)

    def tag(self, version: str, name: str, value: str) -> None:
        """Set one tag of a version; all other tags are kept."""
        self._client.set_model_version_tag(self.name, version, name, value)

    def remember(self, version: Version, champion: Version | None) -> None:
        """Tag an old version as former champion, if until now only its lack of tags shows it."""
        if self.was_champion(version, champion) and "champion.until" not in version.tags:
            self._client.set_model_version_tag(self.name, version.version, "champion.until", "unknown")

    def check_champion(self, version: str | None, who: str) -> None:
        """Raise ChampionMoved if the champion is not this version, with which `who` was compared."""
        holder = self.holder(CHAMPION)
        if (holder.version if holder else None) != version:
            raise ChampionMoved(
                f"{self.name}: version {holder.version if holder else 'none'} is champion now, and {who} was compared"
                f" with {version or 'none'}"
            )

    def move(self, move: Move) -> None:
        """Make `move.version` the champion and the former champion `previous`.

        If the process dies in between, `repair` finishes the move. Raises ChampionMoved if the champion is not
        `move.before`, or if another process changed it at the same time.
        """
        self.check_champion(move.before, f"version {move.version}")
        self._client.set_registered_model_tag(self.name, UNDER_WAY, json.dumps(move.as_json(), sort_keys=True))
        self._finish(move)
        holder = self.holder(CHAMPION)
        if holder is None or holder.version != move.version:
            raise ChampionMoved(
                f"{self.name}: version {holder.version if holder else 'none'} became champion at the same moment as"
                f" version {move.version}; look at both and run again"
            )

    def repair(self) -> Move | None:
        """Finish and return the move that a killed process began; None if there is none.

        If another version has become champion since, the unfinished move is dropped, and None is returned.
        """
        move = self.under_way()
        if move is None:
            return None
        holder = self.holder(CHAMPION)
        if (holder.version if holder else None) in (move.before, move.version):
            self._finish(move)
            return move
        self._client.delete_registered_model_tag(self.name, UNDER_WAY)
        return None

    def _finish(self, move: Move) -> None:
        """Move the alias `champion`, in steps that can each be repeated.

        First `previous` is set, then `champion`, and last the tag of the unfinished move is removed.
        """
        if move.before is not None:
            self.set_alias(PREVIOUS, move.before)
        self.set_alias(CHAMPION, move.version)
        self._mark(move)
        self._client.set_registered_model_tag(self.name, move.key, json.dumps(move.as_json(), sort_keys=True))
        self._client.delete_registered_model_tag(self.name, UNDER_WAY)

    def _mark(self, move: Move) -> None:
        """Tag the new champion with time, person and reason of the move.

        The former champion is tagged with the time of its end.
        """
        said = {"how": move.action, "since": move.when, "by": move.who, "why": move.why}
        for name, value in said.items():
            self._client.set_model_version_tag(self.name, move.version, f"champion.{name}", value)
        for name in {"champion.until", "champion.replaced_by"} & self.version(move.version).tags.keys():
            self._client.delete_model_version_tag(self.name, move.version, name)
        if move.before is not None:
            for name, value in {"until": move.when, "replaced_by": move.version}.items():
                self._client.set_model_version_tag(self.name, move.before, f"champion.{name}", value)

    # One at a time

    @contextmanager
    def locked(self, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """Lock the registry, so that no other process decides or moves an alias meanwhile.

        The lock covers all users of a store in a sqlite file, but only this root for any other store. An unfinished
        move is finished first. `say` gets a sentence if this has to wait.
        """
        path = self._lock_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+", encoding="utf-8") as stream:
            _wait_for(stream, say)
            stream.truncate(0)
            stream.write(f"{somebody()}, process {os.getpid()}")
            stream.flush()
            if (finished := self.repair()) is not None:
                say(f"finished the move of {self.name} to version {finished.version} that {finished.who} began")
            yield

    def _lock_file(self) -> Path:
        place = sqlite_file(self.tracking.uri)
        return (
            self.tracking.root / "tracking" / "registry.lock"
            if place is None
            else Path(f"{os.path.realpath(place)}.registry.lock")
        )


def _wait_for(stream: Any, say: Callable[[str], None]) -> None:
    """Wait for the lock and take it. The kernel releases it when this process ends, however it ends."""
    began, said = time.monotonic(), False
    while True:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not said and time.monotonic() - began > WAITING_SECONDS:
                stream.seek(0)
                say(f"waiting for another promotion to end ({stream.read() or stream.name})")
                said = True
            time.sleep(0.05)


def registered_digests(tracking: Tracking) -> set[str]:
    """Return the digests of all artifacts from which any registered model version was made or decided."""
    client, found, token = tracking.client(), set[str](), None
    while True:
        page = client.search_model_versions(max_results=1000, page_token=token)
        for version in page:
            names = [name for name in version.tags if name in ("digest", "decision") or name.startswith("digest.")]
            found |= {version.tags[name] for name in names}
        token = page.token
        if not token:
            return found


@contextmanager
def explained(tracking: Tracking) -> Iterator[None]:
    """Turn errors of MLflow, its database and its connection into TrackingError with one sentence.

    Other errors pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("mlflow.", "sqlalchemy.", "sqlite3", "requests.", "urllib3.")):
            raise
        raise TrackingError(f"MLflow at {shown(tracking.uri)} could not be asked: {reason_of(error)}") from None

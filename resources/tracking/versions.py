"""Every registered version of every model, read from a sqlite store without MLflow, whose import takes seconds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from resources.tracking.errors import TrackingError, reason_of
from resources.tracking.reports import Tracking
from resources.tracking.spool import read_applied
from resources.tracking.store import read_store, shown, sqlite_file

DELETED = "Deleted_Internal"  # the stage that MLflow gives to deleted versions


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """A registered version: the model's name, the version's number, its tags, and the aliases that point to it."""

    name: str
    version: str
    tags: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name, number and aliases, as a person writes them."""
        named = f" ({', '.join(self.aliases)})" if self.aliases else ""
        return f"{self.name}/{self.version}{named}"


def registered_versions(tracking: Tracking) -> list[Registered]:
    """Return all versions that the store has, by name and number. Raise TrackingError if it does not answer."""
    file = sqlite_file(tracking.uri)
    try:
        found = of_client(tracking) if file is None else of_file(Path(file))
    except sqlite3.Error as error:
        raise TrackingError(f"MLflow at {shown(tracking.uri)}: {reason_of(error)}") from None
    return sorted(found, key=lambda one: (one.name, int(one.version)))


def of_file(path: Path) -> list[Registered]:
    """Return all registered model versions in a sqlite file; an empty list if there is no such file."""
    if not path.exists():
        return []
    with read_store(path) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "model_versions" not in tables:
            return []
        tags: dict[tuple[str, str], dict[str, str]] = {}
        for name, version, key, value in database.execute("SELECT name, version, key, value FROM model_version_tags"):
            tags.setdefault((name, str(version)), {})[key] = value
        aliases: dict[tuple[str, str], list[str]] = {}
        for name, version, alias in database.execute("SELECT name, version, alias FROM registered_model_aliases"):
            aliases.setdefault((name, str(version)), []).append(alias)
        asked = "SELECT name, version FROM model_versions WHERE current_stage IS NOT ?"
        return [
            Registered(
                name=name,
                version=str(version),
                tags=tags.get((name, str(version)), {}),
                aliases=tuple(sorted(aliases.get((name, str(version)), ()))),
            )
            for name, version in database.execute(asked, (DELETED,)).fetchall()
        ]


def of_client(tracking: Tracking) -> list[Registered]:
    """Return all registered model versions that an MLflow server lists."""
    client = tracking.client()
    found = []
    for model in _pages(client.search_registered_models):
        aliases: dict[str, list[str]] = {}
        for alias, version in model.aliases.items():
            aliases.setdefault(str(version), []).append(alias)
        for one in _pages(partial(client.search_model_versions, f"name = '{model.name}'")):
            number = str(one.version)
            own = tuple(sorted(aliases.get(number, ())))
            found.append(Registered(name=model.name, version=number, tags=dict(one.tags), aliases=own))
    return found


def _pages(search: Callable[..., Any]) -> Iterator[Any]:
    """Yield the entities of all pages of one of the client's searches; without a token it returns only the first."""
    token = None
    while True:
        page = search(page_token=token)
        yield from page
        token = getattr(page, "token", None)
        if not token:
            return


def needed_versions(tracking: Tracking) -> list[Registered]:
    """Return all versions that may need what is under the root: those of the profile's store and of the root's own.

    Raise TrackingError if a store does not answer, or if it is a file that should be there and is not.
    """
    own = Tracking(None, tracking.root)
    stores = [tracking] if tracking.uri == own.uri else [tracking, own]
    for store in stores:
        if _is_lost(store, is_named=store.uri != own.uri):
            raise TrackingError(f"MLflow at {shown(store.uri)}: the database is gone, or lacks the tables of models")
    return [version for store in stores for version in registered_versions(store)]


def _is_lost(tracking: Tracking, *, is_named: bool) -> bool:
    """Whether a sqlite store lacks the tables of models although a profile names it or reports were sent to it."""
    if tracking.store is None or not (is_named or read_applied(tracking.root / "tracking", tracking.uri)["runs"]):
        return False
    if not tracking.store.exists():
        return True
    with read_store(tracking.store) as database:
        try:
            asked = "SELECT count(*) FROM sqlite_master WHERE name = 'model_versions'"
            return not database.execute(asked).fetchone()[0]
        except sqlite3.Error as error:
            raise TrackingError(f"MLflow at {shown(tracking.uri)}: {reason_of(error)}") from None

"""The store in which MLflow keeps runs and models: its address, a client for it, and the server that shows it."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from resources.databases import make_whole
from resources.tracking.deadline import DEFAULT_SECONDS, SECONDS_VARIABLE, BoundedClient
from training.contract.files.checksums import at_once
from training.contract.files.writing import write_text
from training.contract.process.lean import uncollected, without
from training.contract.secrets import without_secrets

log = logging.getLogger(__name__)

EXPERIMENT = "pedigree"  # prefix of the names of experiments
KEY_TAG, PARENT_TAG, KIND_TAG = "pedigree/key", "mlflow.parentRunId", "mlflow.experimentKind"
NOTE_TAG, ENDED_TAG = "mlflow.note.content", "pedigree/ended"
SERVER_PORT = 5000
PAGE_FILE = "page"
FIRST_ROWS = {"experiments": 1}  # the default experiment, with which MLflow begins a store
DATABASE, FILES_FOLDER = "mlflow.db", "mlflow-artifacts"
ADDRESSES = {  # columns with absolute addresses of files, by table
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "logged_models": ("artifact_location",),
    "model_versions": ("source", "storage_location"),
}


def default_uri(root: Path) -> str:
    """The URI of the sqlite database under the root."""
    return f"sqlite:///{root / DATABASE}"


def files_of(root: Path) -> str:
    """The address of the folder in which MLflow keeps files if its store is a database."""
    return (root / FILES_FOLDER).as_uri()


def follow_root(root: Path) -> None:
    """Let the database under a root that was moved, copied or restored name the files that lie under the root now.

    MLflow keeps absolute addresses. Those of another root that uses this database stay: its place is there and has
    no database of its own, or its models are not under this root.
    """
    file = root / DATABASE
    if not file.exists():
        return
    with closing(sqlite3.connect(file)) as database, database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if not tables.issuperset(ADDRESSES):  # whose making was killed
            return
        places = "SELECT DISTINCT artifact_location FROM experiments WHERE artifact_location LIKE ?"
        for (former,) in database.execute(places, (f"file:%/{FILES_FOLDER}",)).fetchall():
            place = Path(unquote(former.removeprefix("file://"))).parent
            is_copied = not place.exists() or (place / DATABASE).exists()
            if former != files_of(root) and is_copied and _has_models(database, former, root):
                _replace(database, former, files_of(root))


def _has_models(database: sqlite3.Connection, former: str, root: Path) -> bool:
    """Whether all models whose files lay in a former folder are under the root."""
    told = database.execute("SELECT artifact_location FROM logged_models")
    below = (address.removeprefix(f"{former}/") for (address,) in told if address.startswith(f"{former}/"))
    return all((root / FILES_FOLDER / unquote(one)).is_dir() for one in below)


def _replace(database: sqlite3.Connection, former: str, place: str) -> None:
    """Replace the beginning of all addresses in a folder."""
    size = len(former) + 1
    for table, columns in ADDRESSES.items():
        for name in columns:
            update = f"UPDATE {table} SET {name} = ? || substr({name}, ?) WHERE substr({name} || '/', 1, ?) = ?"
            database.execute(update, (place, size, size, f"{former}/"))


def shown(uri: str) -> str:
    """The URI of a store without user, password and query (`?…`), so that it can be shown in logs and links."""
    return without_secrets(uri)


def is_server(uri: str) -> bool:
    """Whether an address of MLflow is that of a server, which keeps its files itself."""
    return uri.startswith("http")


def sqlite_file(uri: str) -> str | None:
    """The path of a sqlite store's file; None for any other store."""
    path = uri.removeprefix("sqlite:///")
    return None if path == uri else path.partition("?")[0]


@contextmanager
def read_store(file: Path) -> Iterator[sqlite3.Connection]:
    """Context manager: open a sqlite store for queries. Raise sqlite3.Error if there is none or it cannot be read.

    A killed writer leaves a journal, with which the next connection undoes the unfinished transaction. A connection
    of `mode=ro` may not do so and fails. `mode=rw` can, also reads a file without write permission, and makes no
    new file.
    """
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)
    try:
        connection.execute("PRAGMA query_only = ON")
        yield connection
    finally:
        connection.close()


def experiment_of(recipe: str) -> str:
    """The name of the experiment with the runs of a recipe."""
    return f"{EXPERIMENT}/{recipe}"


def experiments(client: Any) -> list[str]:
    """The ids of all experiments with runs of recipes."""
    found = client.search_experiments(filter_string=f"name LIKE '{EXPERIMENT}%'", max_results=1000)
    return [one.experiment_id for one in found if one.name.partition("/")[0] == EXPERIMENT]


def page_address(uri: str, root: Path) -> str:
    """Return the address of MLflow's pages.

    It is the tracking server, or the server that `pedigree dev` last started for this root.
    """
    if is_server(uri):
        return shown(uri).rstrip("/")
    address = ""
    with suppress(FileNotFoundError), open(root / "tracking" / PAGE_FILE, encoding="utf-8", opener=at_once) as stream:
        address = stream.read().strip()
    return address or f"http://127.0.0.1:{SERVER_PORT}"


def write_page_address(root: Path, port: int) -> None:
    """Record the port of the MLflow server on loopback, for links to its pages."""
    write_text(root / "tracking" / PAGE_FILE, f"http://127.0.0.1:{port}")


def make_client(uri: str, root: Path) -> Any:
    """An MLflow client; one per URI and process.

    Importing MLflow takes seconds, so call this only to send or query something.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # The spool handles waiting and retries; retries in the client would only delay its caller.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault(SECONDS_VARIABLE, DEFAULT_SECONDS)
    root.mkdir(parents=True, exist_ok=True)
    key = (uri, os.getpid())
    if key not in _CLIENTS:
        # Its store is imported by the first query. Nothing here sends data frames; without pandas, importing MLflow
        # takes a fifth less.
        with uncollected("mlflow"), without("pandas"), _making_tables(uri) as is_file:
            from mlflow import MlflowClient

            if uri == default_uri(root):
                follow_root(root)
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            if is_file:  # the first query of runs and the first query of models look at the tables
                client.search_experiments(max_results=1)
                client.search_registered_models(max_results=1)
            _CLIENTS[key] = client if is_file else BoundedClient(client)
    return _CLIENTS[key]


@contextmanager
def _making_tables(uri: str) -> Iterator[bool]:
    """Lock a sqlite store, and make it if it is missing or half-made; yields False, without a lock, for any other.

    Two processes that create the tables at once leave a file that neither can use, and so does a process that is killed
    meanwhile.
    """
    path = sqlite_file(uri)
    if path is None:
        yield False
        return
    with open(f"{path}.lock", "w", encoding="utf-8", opener=at_once) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        file, folder = Path(path), Path(f"{path}.new")
        for aside in make_whole([file], folder, lambda: _make_tables(folder / file.name), first_rows=FIRST_ROWS):
            log.warning("MLflow's store was half-made and empty: it is made again; the old file is %s", aside)
        yield True


def _make_tables(file: Path) -> None:
    """Create MLflow's tables in a new file, as its command `mlflow db upgrade` does."""
    from mlflow.store.db import utils

    engine = utils.create_sqlalchemy_engine_with_retry(f"sqlite:///{file}")
    utils._initialize_tables(engine)
    engine.dispose()


_CLIENTS: dict[tuple[str, int], Any] = {}


# MLflow imports a module that Starlette will remove. A person who starts the server can do nothing about it.
OF_MLFLOW = "ignore:starlette.middleware.wsgi is deprecated:UserWarning"


def server_command(uri: str | None, root: Path, port: int) -> tuple[list[str], dict[str, str]]:
    """The command of an MLflow server on loopback for this store, and its environment, which may hold a password."""
    argv = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    argv += ["--allowed-hosts", f"127.0.0.1:{port},localhost:{port}"]
    argv += ["--serve-artifacts", "--artifacts-destination", files_of(root)]
    return argv, {
        "MLFLOW_BACKEND_STORE_URI": uri or default_uri(root),
        "PYTHONWARNINGS": ",".join(filter(None, (OF_MLFLOW, os.environ.get("PYTHONWARNINGS")))),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }

"""`pedigree dev`: the Dagster UI and daemon and the MLflow server over one root's stores, all on loopback.

One parent process owns the services: when it ends, in whatever way, they end too. It also watches the recipe folders
and the references. If a recipe changes, or is run for the first time, it reloads the code location, because partitions
are derived from the recipes that people have asked for.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import IO

from assets.services.root import make_writable
from assets.services.signals import by_signal, exit_code_of, signals_collected
from assets.services.stores import dagster_home, make_stores, use_storage
from assets.state.recipe_folders import VARIABLE, recipe_folders
from assets.state.references import recipes_run
from resources.profile import load_profile
from resources.tracking.store import default_uri, is_server, page_address, server_command, write_page_address
from training.contract.process.exit_codes import FAILED
from training.data.sources import DATA_VARIABLE, is_remote
from training.recipe.recipes import RecipeFiles

LOOPBACK = "127.0.0.1"
RELOAD_AGAIN_SECONDS = 5.0  # after a reload that the web server did not answer
GUARD = Path(__file__).with_name("end_with_parent.py")
EXPERIMENTS = "/#/experiments?workflowType=machine_learning"  # MLflow's own first page is about prompts and traces
RELOAD = """mutation { reloadWorkspace { __typename ... on PythonError { message } } }"""


def serve(root: Path, profile: str, port: int, mlflow_port: int) -> int:
    """Run the services until interrupted; return the exit code. If a port is in use, fail before anything starts.

    If the profile names an MLflow server, that one is used and none is started.
    """
    uri = load_profile(profile).tracker or default_uri(root)
    ports = [(port, "--port")] if is_server(uri) else [(port, "--port"), (mlflow_port, "--mlflow-port")]
    for wanted, option in ports:
        if not is_free(wanted):
            print(
                f"error: port {wanted} on {LOOPBACK} is in use; end what uses it, or give another with {option}",
                file=sys.stderr,
            )
            return FAILED
    make_writable(root)
    use_storage(root, load_profile(profile).run_storage)
    write_page_address(root, mlflow_port)
    make_stores(root, uri)
    ending = threading.Event()
    commands = _commands(root, profile, port, mlflow_port)
    processes = [_start(argv, env, cwd=dagster_home(root), ending=ending) for argv, env in commands]
    guard = start_guard(processes)
    print(f"Dagster: http://{LOOPBACK}:{port}   (Ctrl-C ends what was started under {root})", flush=True)
    print(f"MLflow:  {page_address(uri, root)}{EXPERIMENTS}", flush=True)
    code = _watch(processes, root, port, ending)
    guard.communicate(b"ended\n")
    return code


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _commands(root: Path, profile: str, port: int, mlflow_port: int) -> list[tuple[list[str], dict[str, str]]]:
    environment = {
        "DAGSTER_HOME": str(dagster_home(root)),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "PEDIGREE_ROOT": str(root),
        "PEDIGREE_PROFILE": profile,
        **named_folders(),
    }
    dagster = [
        sys.executable,
        "-m",
        "assets.services.webserver",
        "dev",
        "--module-name",
        "assets.definitions",
        "--host",
        LOOPBACK,
        "--port",
        str(port),
    ]
    uri = load_profile(profile).tracker
    if uri and is_server(uri):
        return [(dagster, environment)]
    mlflow, mlflow_environment = server_command(uri, root, mlflow_port)
    return [(dagster, environment), (mlflow, {**environment, **mlflow_environment})]


def named_folders() -> dict[str, str]:
    """Return the variables that name folders with whole paths, since the services run in another folder."""
    folders = {VARIABLE: os.pathsep.join(str(folder.absolute()) for folder in recipe_folders().own)}
    data = os.environ.get(DATA_VARIABLE, "")
    return folders | ({DATA_VARIABLE: os.path.abspath(data)} if data and not is_remote(data) else {})


def _start(
    argv: list[str], environment: dict[str, str], *, cwd: Path, ending: threading.Event
) -> subprocess.Popen[bytes]:
    """Start a service.

    Its output passes through this process and is masked, because database drivers may print a password. After `ending`
    is set nothing more is shown: a service that is ended while it loads prints tracebacks of its imports.
    """
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        cwd=cwd,
        start_new_session=True,
    )
    name = f"output of {process.pid}"
    threading.Thread(target=_pass_on, args=(process.stdout, ending), name=name, daemon=True).start()
    return process


def start_guard(processes: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start the process that ends the services if this process is killed. The end of its input tells it."""
    groups = [str(process.pid) for process in processes]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(GUARD), *groups], stdin=subprocess.PIPE, start_new_session=True
    )


def _pass_on(output: IO[bytes] | None, ending: threading.Event) -> None:
    for line in output or ():
        if not ending.is_set():
            print(line.decode("utf-8", "replace"), end="", flush=True)


def _watch(processes: list[subprocess.Popen[bytes]], root: Path, port: int, ending: threading.Event) -> int:
    """Wait until a signal comes or one of the services ends; then end all services and return the exit code."""
    reloading = Reloading(root, port)
    with signals_collected() as stopped_by:
        while not stopped_by:
            time.sleep(0.5)
            if ended := [process for process in processes if process.poll() is not None]:
                command = ended[0].args
                assert isinstance(command, list)
                said = f"error: {' '.join(map(str, command[:4]))} ended with exit code {ended[0].returncode}"
                print(said, file=sys.stderr)
                break
            reloading.look()
        if stopped_by:
            ending.set()
        end_services(processes)
    if not stopped_by:
        return FAILED
    print(f"{by_signal(stopped_by[0])}; Dagster and MLflow are ended too", file=sys.stderr, flush=True)
    return exit_code_of(stopped_by[0])


class Reloading:
    """Asks the web server to reload the code location when a recipe changed, and repeats this until it answers."""

    def __init__(self, root: Path, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._port, self._clock = root, port, clock
        self._seen = recipes_state(root)
        self._due_at = math.inf

    def look(self, *, timeout_seconds: float = 60.0) -> None:
        """Check whether recipes changed, and ask the web server to reload the code location if it is time to."""
        if (now := recipes_state(self._root)) != self._seen:
            self._seen, self._due_at = now, self._clock()
        if self._clock() >= self._due_at:
            has_answered = reload_definitions(self._port, timeout_seconds=timeout_seconds)
            self._due_at = math.inf if has_answered else self._clock() + RELOAD_AGAIN_SECONDS


def recipes_state(root: Path) -> tuple[frozenset[str], tuple[tuple[str, int], ...]]:
    """Names of the recipes run, and paths and modification times (ns) of all recipe files.

    It is cheap enough to read twice a second: the references are listed only when one was added or removed.
    """
    folders = tuple((path, path.stat().st_mtime_ns) for path in sorted((root / "refs").glob("*")))
    files = RecipeFiles(recipe_folders(root)).paths()
    return _recipes_run(root, folders), tuple(sorted((str(file), file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=1)
def _recipes_run(root: Path, folders: tuple[tuple[Path, int], ...]) -> frozenset[str]:
    return recipes_run(root)


def reload_definitions(port: int, *, timeout_seconds: float) -> bool:
    """Ask the web server to reload the code location; the daemon then reloads it too. Return whether it answered."""
    request = urllib.request.Request(
        f"http://{LOOPBACK}:{port}/graphql",
        data=json.dumps({"query": RELOAD}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        # Without the environment's proxies, which cannot reach this machine's loopback ports.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=timeout_seconds) as response:
            print(f"recipes changed; definitions loaded again ({response.status})", flush=True)
            return True
    except OSError as error:
        again = f"it is asked again in {RELOAD_AGAIN_SECONDS:.0f} s"
        print(f"recipes changed, but the web server did not answer ({error}); {again}", file=sys.stderr, flush=True)
        return False


def end_services(processes: list[subprocess.Popen[bytes]]) -> None:
    """End every process group; a process that does not end within 10 s is killed."""
    for sign, seconds in ((signal.SIGINT, 10.0), (signal.SIGKILL, 5.0)):
        for process in processes:
            try:
                os.killpg(process.pid, sign)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(process.poll() is None for process in processes):
            time.sleep(0.1)

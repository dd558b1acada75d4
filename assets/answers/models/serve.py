"""`pedigree serve`: one model behind an address with OpenAI's interface, on loopback, until interrupted."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from typing import Any

from assets.answers.models.outside import check_left_to_right, is_version, model_folder
from assets.answers.models.receipts import Receipts, opened
from assets.services.dev import LOOPBACK, end_services, is_free, start_guard
from assets.services.signals import by_signal, exit_code_of, signals_collected
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from assets.state.references import whole_model
from resources.tracking.reports import Tracking
from training.contract.job import DataError
from training.contract.process.exit_codes import BAD_INPUT, FAILED
from training.contract.records import RecipeError
from training.contract.scopes import last_model
from training.generate.checked_folder import check_folder

MODULE = "training.generate.serve"
NEEDED = ("openai", "fastapi", "uvicorn")
PROJECT = Path(__file__).parents[3]
LOOK_SECONDS = 0.2


def model_of(model: str, root: Path, tracking: Tracking) -> tuple[Path, str]:
    """The folder of a model, and the name under which it is served.

    `model` is a folder, a version of the registry (`NAME@ALIAS`), or a recipe, whose last model is meant. Raise
    DataError if it is none of these, or if the model is not made.
    """
    if is_version(model):
        return model_folder(model, tracking), model.removeprefix("models:/").partition("@")[0].partition("/")[0]
    if Path(model).is_dir():
        return model_folder(model, tracking), Path(model).resolve().name
    try:
        comparison = compare(load_recipe(model, recipe_folders(root)), root)
    except RecipeError as error:
        raise DataError(f"{model}: neither a folder nor NAME@ALIAS, and as a recipe: {error}") from None
    name = comparison.recipe.name
    made = comparison.made(last_model(comparison.recipe), name, named=model)
    return whole_model(made.file("model")), name


def receipts_of(model: str, root: Path, tracking: Tracking) -> tuple[Path, Receipts]:
    """The folder of a model under the root, and what receipts of its answers are made from.

    Raise DataError for a folder, of which nobody knows what it learned from, and as `receipts.opened` does.
    """
    if Path(model).is_dir():
        raise DataError(f"{model}: is a folder, so nothing is known of its training data; name a recipe or NAME@ALIAS")
    receipts = opened(model, root, tracking)
    receipts.receipt("What the first search loads is loaded before the first answer.")
    made = receipts.tracer.lineage.last.made
    assert made is not None
    return whole_model(made.file("model")), receipts


def serve(folder: Path, name: str, port: int, receipts: Receipts | None = None) -> int:
    """Serve the model in a folder under a name until a signal comes; return the exit code.

    With `receipts`, answers have one on request. Raise DataError if the port is in use, if the packages of the extra
    `serve` are not installed, or if the folder holds pickled weights or no whole model.
    """
    if missing := [package for package in NEEDED if find_spec(package) is None]:
        raise DataError(f"serve: {', '.join(missing)} is not installed; `pip install 'pedigree[serve]'` installs it")
    if not is_free(port):
        raise DataError(f"port {port} on {LOOPBACK} is in use; end what uses it, or give another with --port")
    check_folder(folder)
    check_left_to_right(folder)
    with signals_collected() as stopped_by, tempfile.TemporaryDirectory() as scratch:
        Path(scratch, name).symlink_to(folder.resolve())  # so that requests name the model by this name, not by a path
        told, tells = os.pipe()
        own, given = socket.socketpair()
        server = subprocess.Popen(
            [sys.executable, "-m", MODULE, name, str(port), str(tells), *([str(given.fileno())] if receipts else [])],
            cwd=scratch,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
            pass_fds=(tells, given.fileno()),
        )
        os.close(tells)
        given.close()
        guard = start_guard([server])
        try:
            with open(told, "rb", buffering=0) as ready, own:
                return _watch(server, ready, name, port, stopped_by, AskedReceipts(own, receipts) if receipts else None)
        finally:
            end_services([server])
            guard.communicate(b"ended\n")


class AskedReceipts:
    """Answers what the server asks: the receipt of an answer, or the text of a page that a receipt names."""

    def __init__(self, own: socket.socket, receipts: Receipts) -> None:
        self.own, self.receipts = own, receipts
        self.stream = own.makefile("rwb")

    def wait(self, seconds: float) -> None:
        """Answer a question if one comes within some seconds."""
        if select.select([self.own], [], [], seconds)[0] and (line := self.stream.readline()):
            with suppress(BrokenPipeError):  # the server ended, which is said
                self.stream.write(json.dumps(self._answer(json.loads(line))).encode() + b"\n")
                self.stream.flush()

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            self.receipts = self.receipts.current()
            if "answer" in question:
                return self.receipts.receipt(question["answer"])
            return self.receipts.page(question["shard"], question["document"])
        except DataError as error:
            return {"error": str(error)}


def _watch(
    server: subprocess.Popen[bytes],
    ready: FileIO,
    name: str,
    port: int,
    stopped_by: list[int],
    asked: AskedReceipts | None = None,
) -> int:
    """Print when the server listens, end it when a signal comes, and return the exit code.

    The server writes a byte into `ready` when it listens. A connection to the port would not prove this, because
    another process may have taken the port since it was checked.
    """
    while not stopped_by and server.poll() is None and not select.select([ready], [], [], LOOK_SECONDS)[0]:
        pass
    if not stopped_by and ready.read(1):  # empty if the server ended
        print(f"model {name}: http://{LOOPBACK}:{port}/v1   (Ctrl-C ends it)", flush=True)
    while not stopped_by and server.poll() is None:
        asked.wait(LOOK_SECONDS) if asked is not None else time.sleep(LOOK_SECONDS)
    if not stopped_by and server.returncode == BAD_INPUT:
        return BAD_INPUT  # it has said why
    if not stopped_by:
        print(f"error: the server of {name} ended with exit code {server.returncode}", file=sys.stderr)
        return FAILED
    end_services([server])
    print(f"{by_signal(stopped_by[0])}; {name} is no longer served", file=sys.stderr, flush=True)
    return exit_code_of(stopped_by[0])

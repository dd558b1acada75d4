"""`pedigree serve`: one model behind an address with OpenAI's interface, on loopback, until interrupted."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.services.dev import LOOPBACK, end_services, is_free, start_guard
from assets.services.signals import by_signal, exit_code_of, signals_collected
from assets.terminal.standard_error import say
from training.contract.job import DataError
from training.contract.process.exit_codes import BAD_INPUT, FAILED

if TYPE_CHECKING:
    from assets.answers.models.offers import Followed, Offer
    from assets.answers.models.receipts import Receipts

MODULE = "training.generate.serving.serve"
NEEDED = ("openai", "fastapi", "uvicorn", "prometheus_client")
PROJECT = Path(__file__).parents[3]
LOOK_SECONDS = 0.2


def serve(first: Offer, port: int, followed: Followed | None = None) -> int:
    """Serve a model until a signal comes; return the exit code. With `followed`, other versions take its place.

    Raise DataError if the port is in use, or if the packages of the extra `serve` are not installed.
    """
    if missing := [package for package in NEEDED if find_spec(package) is None]:
        raise DataError(f"serve: {', '.join(missing)} is not installed; `pip install 'pedigree[serve]'` installs it")
    if not is_free(port):
        raise DataError(f"port {port} on {LOOPBACK} is in use; end what uses it, or give another with --port")
    with signals_collected() as stopped_by:
        told, tells = os.pipe()
        own, given = socket.socketpair()
        server = subprocess.Popen(
            [sys.executable, "-m", MODULE, first.name, str(port), str(tells), str(given.fileno())],
            cwd=PROJECT,  # else a module in the present folder could stand in for one of the server's
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
            pass_fds=(tells, given.fileno()),
        )
        os.close(tells)
        given.close()
        guard = start_guard([server])
        try:
            with open(told, "rb", buffering=0) as ready, own:
                return _watch(server, ready, first.name, port, stopped_by, Questions(own, first, followed))
        finally:
            end_services([server])
            guard.communicate(b"ended\n")


class Questions:
    """Answers what the server asks: which model to serve, the receipt of an answer, the text of a page.

    A request in flight when another model takes the place gets its receipt from the model that answered it.
    """

    def __init__(self, own: socket.socket, first: Offer, followed: Followed | None) -> None:
        self.own, self.followed, self.given = own, followed, 1
        self.offers = {self.given: first}  # the newest and the one before it, by their numbers
        self.serving = 0
        self.stream = own.makefile("rwb")

    def wait(self, seconds: float) -> None:
        """Answer a question if one comes within some seconds."""
        if select.select([self.own], [], [], seconds)[0] and (line := self.stream.readline()):
            with suppress(BrokenPipeError):  # the server ended, which is said
                self.stream.write(json.dumps(self._answer(json.loads(line))).encode() + b"\n")
                self.stream.flush()

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            if "serving" in question:
                return self._model(question["serving"], question["problem"])
            if "answer" in question:
                return self._receipts(question["by"]).receipt(question["answer"])
            return self._receipts(self.serving).page(question["shard"], question["document"])
        except DataError as error:
            return {"error": str(error)}

    def _model(self, serving: int, problem: str) -> dict[str, Any]:
        if serving == 0:
            return self._told()
        if self.followed is None:
            return {}
        if problem:
            say([f"{self.offers[self.given].says} is not served: {problem}"])
        elif self.serving not in (0, serving):
            print(f"{self.offers[serving].says} answers now, for {self.followed.model} names it", flush=True)
        self.serving = serving
        offer, sentence = self.followed.next()
        if sentence:
            say([sentence])
        if offer is None:
            return {}
        self.given += 1
        self.offers = {serving: self.offers[serving], self.given: offer}
        return self._told()

    def _told(self) -> dict[str, Any]:
        offer = self.offers[self.given]
        return {
            "number": self.given,
            "folder": str(offer.folder.resolve()),
            "says": offer.says,
            "receipts": offer.receipts is not None,
            "follows": self.followed is not None,
        }

    def _receipts(self, number: int) -> Receipts:
        offer = self.offers.get(number, self.offers[self.given])
        assert offer.receipts is not None
        current = offer.receipts.current()
        self.offers[number] = replace(offer, receipts=current)
        return current


def _watch(
    server: subprocess.Popen[bytes],
    ready: FileIO,
    name: str,
    port: int,
    stopped_by: list[int],
    asked: Questions,
) -> int:
    """Print when the server listens, end it when a signal comes, and return the exit code.

    The server writes a byte into `ready` when it listens. A connection to the port would not prove this, because
    another process may have taken the port since it was checked.
    """
    is_ready = False
    while not stopped_by and server.poll() is None:
        asked.wait(LOOK_SECONDS)
        if not is_ready and select.select([ready], [], [], 0)[0] and ready.read(1):  # empty if the server ended
            is_ready = True
            print(f"model {name}: http://{LOOPBACK}:{port}/v1   (Ctrl-C ends it)", flush=True)
    if not stopped_by and server.returncode == BAD_INPUT:
        return BAD_INPUT  # it has said why
    if not stopped_by:
        print(f"error: the server of {name} ended with exit code {server.returncode}", file=sys.stderr)
        return FAILED
    end_services([server])
    print(f"{by_signal(stopped_by[0])}; {name} is no longer served", file=sys.stderr, flush=True)
    return exit_code_of(stopped_by[0])

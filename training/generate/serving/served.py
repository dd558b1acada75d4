"""The model that answers, and the next one: another takes its place between two requests, so that none is lost.

Which model that is says the process that started the server, over a socket. A question and its answer are one line of
JSON each; an answer with `error` has a sentence.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from training.contract.job import DataError
from training.generate.serving.served_requests import Template

FOLLOW_SECONDS = 1.0
FAILED = (DataError, OSError, RuntimeError, ValueError)  # what opening a folder may end in; memory that is not there

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Served:
    """An open model."""

    number: int  # of the models that this server has opened
    says: str  # names the model in its answers; "": nothing is known of it
    model: Any
    tokenizer: Any
    template: Template


class ServedPlace:
    """Holds the newest model, and for each request the one that was the newest when it came."""

    def __init__(self, first: Served) -> None:
        self.newest = first
        self._own: ContextVar[Served] = ContextVar("served")

    def begin(self) -> Served:
        """Return the newest model, which answers the request that begins here, whatever takes its place meanwhile."""
        served = self.newest
        self._own.set(served)
        return served

    @property
    def own(self) -> Served:
        """The model of this request."""
        return self._own.get(self.newest)


def asking(descriptor: int) -> Ask:
    """Return a function that asks the other side of a socket one question at a time.

    It raises DataError if the answer is an error, or if the other side has ended.
    """
    with socket.socket(fileno=descriptor) as own:
        stream, lock = own.makefile("rwb"), Lock()

    def ask(question: Mapping[str, Any]) -> dict[str, Any]:
        with lock:
            stream.write(json.dumps(question).encode() + b"\n")
            stream.flush()
            line = stream.readline()
        told = json.loads(line) if line.endswith(b"\n") else {"error": "the process that started this server has ended"}
        if "error" in told:
            raise DataError(told["error"])
        return told

    return ask


def follow(place: ServedPlace, open_: Callable[[Mapping[str, Any]], Served], ask: Ask) -> None:
    """Let the next model take the place whenever there is one; what cannot be opened is told, and never answers."""

    def look() -> None:
        problem = ""
        while True:
            time.sleep(FOLLOW_SECONDS)
            try:
                told = ask({"serving": place.newest.number, "problem": problem})
            except (DataError, OSError):
                return  # nobody is there who could name another model
            problem = ""
            if "folder" in told:
                try:
                    place.newest = open_(told)
                except FAILED as error:
                    problem = f"{Path(told['folder'])}: {error}"

    Thread(target=look, daemon=True).start()

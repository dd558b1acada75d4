"""The part of the engine `ray` that runs in a worker: check that the node has the job's versions, and run ranks.

A worker serves one job and runs many of its ranks. Its parent is the node's raylet.
"""

from __future__ import annotations

import importlib
import os
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from training.contract.engines.engine import Maker
from training.contract.engines.version_differences import differing
from training.contract.engines.workers import sendable
from training.contract.process.lifetime import SignsOfLife, die_with_parent
from training.contract.records import RecipeError
from training.contract.secrets import masked, masked_output

SIGN_SECONDS = 10.0  # between two looks at whether this worker uses the processor

_makers: dict[str, Maker] = {}  # by token: the job of this worker, after the check of the versions


def answer(order: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Run a rank and return one of `result`, `error` (with `told`), and `refused` (a sentence).

    The file `signs/RANK` names this node while the rank runs; its time of change is the last sign of life.
    """
    with masked_output():
        sign = Path(order["signs"], str(order["rank"]))
        sign.write_text(f"{node} {os.getpid()}", "utf-8")
        try:
            if order["token"] not in _makers:
                refused = _begin(order, node)
                if refused:
                    return {"refused": refused}
            with _touched(sign):
                return {"result": _makers[order["token"]].rank(order["rank"])}
        except Exception as error:
            told = masked(f"on node {node}:\n{traceback.format_exc()}")
            return {"error": sendable(error), "told": told}
        finally:
            sign.unlink(missing_ok=True)


def _begin(order: Mapping[str, Any], node: str) -> str:
    """Prepare this worker for the job.

    The result is a sentence if the node has other versions than the job, else "".
    """
    die_with_parent()
    for name in order["unset"]:  # Ray sets them for each worker
        os.environ.pop(name, None)
    try:
        module, _, name = order["made_by"].partition(":")
        maker: Maker = getattr(importlib.import_module(module), name)(order["job"])
    except (ImportError, AttributeError, RecipeError) as error:
        return f"node {node} lacks this version of pedigree: {error}; install it there"
    if other := differing(maker.versions(), order["versions"]):
        return f"node {node} has other versions than this job: {other}; install the same ones there"
    maker.begin()
    _makers[order["token"]] = maker
    return ""


@contextmanager
def _touched(path: Path) -> Iterator[None]:
    """Context manager that touches a file as long as this worker and its children use the processor."""
    ended = threading.Event()

    def touch() -> None:
        goes_on = SignsOfLife(lambda: 0, 2 * SIGN_SECONDS)
        while not ended.wait(SIGN_SECONDS):
            if goes_on():
                with suppress(OSError):
                    os.utime(path)

    thread = threading.Thread(target=touch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

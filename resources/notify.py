"""Post JSON messages to a webhook in the background: no work waits for the answer or fails without one.

The address may be a secret. It is never logged and never sent to another host: a redirect counts as a failure.
"""

from __future__ import annotations

import atexit
import http.client
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

TRIES = 3
CALL_SECONDS, PAUSE_SECONDS = 3.0, 0.5
END_SECONDS = 12.0  # how long an ending process waits for unfinished posts
MOST_UNDER_WAY = 16  # unfinished posts, if the address hangs; further messages are dropped, and that is logged


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """A message for the webhook: an asset `failed`, was `refused` or is `waiting` (`kind`), and why.

    `run_id` is that of Dagster's run; empty if there was none.
    """

    kind: str
    asset: str
    partition: str
    cause: str
    run_id: str = ""


def post(address: str, message: dict[str, Any]) -> None:
    """Post `message` in a new thread and return at once. Only the first failure in a process is logged."""
    _UNDER_WAY[:] = [thread for thread in _UNDER_WAY if thread.is_alive()]
    if len(_UNDER_WAY) >= MOST_UNDER_WAY:
        return _say_once(f"{MOST_UNDER_WAY} messages are under way")
    thread = threading.Thread(target=_post, args=(address, json.dumps(message).encode()), daemon=True)
    _UNDER_WAY.append(thread)
    thread.start()


@atexit.register
def finish() -> None:
    """Wait until posts to the webhook are finished, at most END_SECONDS."""
    deadline = time.monotonic() + END_SECONDS
    for thread in _UNDER_WAY:
        thread.join(max(0.0, deadline - time.monotonic()))


_UNDER_WAY: list[threading.Thread] = []
_SAID = threading.Event()


def _post(address: str, body: bytes) -> None:
    problem = ""
    for attempt in range(TRIES):
        time.sleep(PAUSE_SECONDS * attempt)
        problem, may_work_later = _try(address, body)
        if not problem:
            return
        if not may_work_later:
            break
    _say_once(problem)


def _try(address: str, body: bytes) -> tuple[str, bool]:
    """Post the message once.

    Returns the problem without the address ("" on success), and whether another try may succeed.
    """
    try:
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method="POST")
        with _OPENER.open(request, timeout=CALL_SECONDS):
            return "", False
    except urllib.error.HTTPError as error:
        error.close()
        return f"it answered {error.code}", error.code == 429 or error.code >= 500
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = getattr(error, "reason", error)  # an error's own text may hold the address
        return f"{type(cause).__name__}", isinstance(error, OSError)


def _say_once(problem: str) -> None:
    if not _SAID.is_set():
        _SAID.set()
        log.warning("the webhook of the profile could not be told (%s); further failures are not said", problem)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, so that a message goes only to the profile's address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)

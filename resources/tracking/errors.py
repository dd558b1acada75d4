"""Turn errors of MLflow, its database drivers and its server into sentences that contain no secrets."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from resources.tracking.store import shown
from training.contract.secrets import masked


class TrackingError(RuntimeError):
    """A call of MLflow failed, or MLflow could not be reached."""


# Patterns in the errors of MLflow, requests and database drivers, and plain explanations. The first match counts.
REASONS = {
    r"database is locked": "another process holds its database locked; end that process, or try again when it is done",
    r"unable to open database file|readonly database": "its database cannot be opened; see the rights of its folder",
    r"\b40[13]\b|unauthori[sz]ed|authentication failed|access denied": "it refuses this user and password",
    r"timed out|timeout": "it does not answer in time",
    r"refused|max retries|connection|resolve|unreachable|could not connect|can't connect": "it does not answer",
    r"No module named '(\w+)'": "the driver of its database is not installed",
}


def reason_of(error: Exception) -> str:
    """Return a sentence about an error of MLflow, without secrets, with at most 300 characters of the error itself."""
    said = " ".join(masked(f"{error}").split())
    known = next((reason for words, reason in REASONS.items() if re.search(words, said, re.IGNORECASE)), "")
    return f"{known} ({said[:300]})" if known else said[:300]


class CheckedClient:
    """An MLflow client that raises every error as TrackingError.

    The error is a sentence that contains no secret, and does not have the original exception as its cause.
    """

    def __init__(self, uri: str, make: Callable[[], Any]) -> None:
        self._uri, self._make = uri, make

    def __getattr__(self, name: str) -> Any:
        def asked(*arguments: Any, **options: Any) -> Any:
            try:
                return getattr(self._make(), name)(*arguments, **options)
            except Exception as error:  # whatever MLflow and its database drivers raise
                raise TrackingError(f"MLflow at {shown(self._uri)} could not be asked: {reason_of(error)}") from None

        return asked

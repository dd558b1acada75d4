"""One thing that was looked at, what was found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "problem", "not looked at"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found. A problem ends a run or makes its result wrong; a warning makes it slow or larger."""

    what: str
    state: State
    found: str
    advice: str = ""  # what to do, for everything that is not ok

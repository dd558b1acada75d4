"""Look at everything, and say it in lines or as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import Any

from assets.answers.doctor.finding import Finding, State
from assets.answers.doctor.machine import look_at_machine
from assets.answers.doctor.schedulers import look_at_schedulers
from assets.answers.doctor.storage import look_at_storage
from assets.answers.doctor.stores import look_at_stores
from assets.state.chain import CHAIN
from resources.compute.size import Size
from resources.profile import Profile

WIDTH = 80
NAME_WIDTH, STATE_WIDTH = 12, 14
SUMS: dict[State, str] = {"ok": "ok", "warning": "to know", "problem": "to mend", "not looked at": "not looked at"}
ELSEWHERE = "run a small recipe with this profile"


def look(profile: Profile, root: Path) -> Iterator[Finding]:
    """Yield what is found on this machine and at a root, as a run with this profile would meet it."""
    sizes = [profile.size_for(asset) for asset in CHAIN]
    yield from chain(look_at_machine(sizes), look_at_storage(root), look_at_stores(root, profile.tracker))
    yield from look_at_schedulers(profile, root)
    yield from _elsewhere(sizes)
    if profile.notify.address:
        yield Finding("webhook", "not looked at", "a message to it would be read by people", "see the first run's")


def _elsewhere(sizes: Iterable[Size]) -> Iterator[Finding]:
    """Yield what runs elsewhere, which cannot be seen from here."""
    for backend in sorted({size.backend for size in sizes} - {"local"}):
        yield Finding(backend, "not looked at", "its nodes, and the root as they see it", ELSEWHERE)
    for address in sorted({size.ray_address for size in sizes if size.ray_address}):
        yield Finding("ray", "not looked at", f"the cluster at {address}", ELSEWHERE)


def as_json(findings: list[Finding]) -> dict[str, Any]:
    """Return the object that `pedigree doctor --json` prints."""
    looks = [{"what": one.what, "state": one.state, "found": one.found, "advice": one.advice} for one in findings]
    return {"ok": not problems_of(findings), "findings": looks}


def problems_of(findings: Iterable[Finding]) -> list[Finding]:
    """Return those that end a run or make its result wrong."""
    return [one for one in findings if one.state == "problem"]


def lines_of(findings: list[Finding]) -> Iterator[str]:
    """Yield the lines to print, at most 80 columns wide: each finding, what to do about it, and the sum."""
    for one in findings:
        head = f"{one.what:{NAME_WIDTH}} {one.state:{STATE_WIDTH}} "
        found = wrap(one.found, WIDTH - len(head)) or [""]
        yield from (f"{head if not number else ' ' * len(head)}{line}" for number, line in enumerate(found))
        yield from (" " * len(head) + line for line in wrap(one.advice and f"→ {one.advice}", WIDTH - len(head)))
    counts = Counter(one.state for one in findings)
    yield ", ".join(f"{counts[state]} {name}" for state, name in SUMS.items() if counts[state])

"""Say in words which versions of two machines differ. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping

NAMED = 3  # versions that a refusal lists


def differing(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return the versions of a node (`there`) that differ from those of the job (`here`), in words; "" if none does."""
    other = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    lines = [f"{one} {_short(there.get(one))} there, {_short(here.get(one))} here" for one in other[:NAMED]]
    return "; ".join(lines) + (f", and {len(other) - NAMED} more" if len(other) > NAMED else "")


def _short(version: str | None) -> str:
    return "absent" if version is None else version[:12]

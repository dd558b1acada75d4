"""By which code an artifact was made: what its record says of that, and how it differs from the code as it is now.

The same version may be written beside other code, before a test was run or in a checkout of one's own. So a job keeps
the digest of each part of its stage's code (training/closure.py), and the record has them. They decide nothing: what is
made stays made. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.artifact import checkpoint_step, digest_of, write_json
from training.closure import Code, place_of
from training.job import Work

FOLDER = "code"  # in a job's scratch
NAMED = 5  # modules in a line of `status`

Digests = dict[str, Any]  # of each part: a digest, or the list of several


def own_code(*modules: str) -> Digests:
    """The digest of each part of the code that a process of these modules runs, as it was when first asked for."""
    return {part: digest for one in modules for part, digest in _own_code(one, place_of(one.partition(".")[0])).items()}


@lru_cache(maxsize=4)
def _own_code(module: str, _: Path) -> Digests:
    return Code.around(module).digests(module)


# While a job works: which code did what of it. Several attempts may, and ranks of an earlier one are kept.


def note(work: Work, *modules: str) -> str:
    """Keep the code of this process in the job's scratch; returns its digest, for the marks of ranks."""
    code = own_code(*modules)
    path = work.scratch / FOLDER / f"{digest_of(code)[:16]}.json"
    if not path.exists():
        write_json(path, code)
    return path.stem


def begin(work: Work, *modules: str) -> str:
    """Keep the code of this attempt and the step of the training at which it begins; returns its digest."""
    folder = work.scratch / FOLDER / "attempts"
    digest = note(work, *modules)
    said = {"step": checkpoint_step(work.path) or 0, "code": digest}
    write_json(folder / f"{len(list(folder.glob('*.json'))):05d}.json", said)
    return digest


def recorded(work: Work, *modules: str, ranks: Iterable[str]) -> dict[str, Any]:
    """What the record says: the digest of each part of the code, or the list of several, and one digest over all.

    `ranks` are the digests in the marks of a stage's ranks. An attempt counts unless a later one began at its step or
    before it, and so did all of its work again.
    """
    attempts = [json.loads(path.read_text("utf-8")) for path in sorted((work.scratch / FOLDER / "attempts").glob("*"))]
    lasting = {
        one["code"]
        for place, one in enumerate(attempts, start=1)
        if all(later["step"] > one["step"] for later in attempts[place:])
    }
    unknown = {""} if attempts and attempts[0]["step"] else set()  # by an edition that noted none
    others = {*lasting, *unknown, *ranks} - {note(work, *modules)}
    merged = _merged([own_code(*modules), *(_noted(work, digest) for digest in sorted(others))])
    return {"digest": digest_of(merged), "modules": merged}


def _noted(work: Work, digest: str) -> Digests:
    with suppress(OSError, ValueError):
        return json.loads((work.scratch / FOLDER / f"{digest}.json").read_text("utf-8"))
    return {}


def _merged(codes: list[Digests]) -> Digests:
    several = {
        name: sorted({code.get(name, "") for code in codes}) for name in dict.fromkeys(n for c in codes for n in c)
    }
    return {name: digests[0] if len(digests) == 1 else digests for name, digests in several.items()}


# Afterwards


def other_parts(record: Mapping[str, Any], now: Mapping[str, str]) -> tuple[str, ...]:
    """The parts of the code that made an artifact and have changed since; empty when its record names none, as in an
    earlier edition."""
    before = record.get("code", {}).get("modules")
    if before is None:
        return ()
    return tuple(sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)))


def in_words(record: Mapping[str, Any], parts: tuple[str, ...], *, most: int = NAMED) -> str:
    """A line about the parts that differ, with the names of so many; empty when there are none."""
    if not parts:
        return ""
    several = any(isinstance(digest, list) for digest in record["code"]["modules"].values())
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return f"made by {'more than one' if several else 'other'} code: {', '.join(parts[:most])}{more}"

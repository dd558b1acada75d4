"""Record the code that makes an artifact, and compare it with the code as it is now.

Two checkouts can have different code under the same stage version, for example before the tests were run. So the record
holds the digest of each module of the stage's import closure (training/contract/identity/closure.py). A difference is
shown to people and makes nothing outdated. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from training.contract.artifact import checkpoint_step, digest_of, write_json
from training.contract.identity.closure import Code, place_of
from training.contract.job import Work

FOLDER = "code"  # subfolder of a job's scratch
NAMED = 5  # modules that a line of `pedigree status` lists

Digests = dict[str, Any]  # by module or packaged file: its digest, or a list if several attempts differed


def own_code(*modules: str) -> Digests:
    """Return the digest of each module and packaged file in the closures of `modules`.

    The digests are computed once in a process.
    """
    return {part: digest for one in modules for part, digest in _own_code(one, place_of(one.partition(".")[0])).items()}


@cache
def _own_code(module: str, _: Path) -> Digests:
    return Code.around(module).digests(module)


# During a job: which code did which part of the work. A job may have several attempts, and keeps their finished ranks.


def note(work: Work, *modules: str) -> str:
    """Write the digests of this process's code into the job's scratch folder; return one digest over all of them."""
    code = own_code(*modules)
    path = work.scratch / FOLDER / f"{digest_of(code)[:16]}.json"
    if not path.exists():
        write_json(path, code)
    return path.stem


def begin(work: Work, *modules: str) -> str:
    """Record this attempt's code and the training step at which it begins; return the code's digest.

    The record is in the scratch folder.
    """
    folder = work.scratch / FOLDER / "attempts"
    digest = note(work, *modules)
    said = {"step": checkpoint_step(work.path) or 0, "code": digest}
    write_json(folder / f"{len(list(folder.glob('*.json'))):05d}.json", said)
    return digest


def recorded(work: Work, *modules: str, ranks: Iterable[str]) -> dict[str, Any]:
    """Return the field `code` of an artifact's record: a digest for each module, and one digest over all of them.

    If attempts or ranks ran different code, a module has the list of its digests. `ranks` are the code digests in the
    ranks' completion marks. An attempt is left out if a later one began at the same step or earlier and so repeated all
    its work.
    """
    attempts = [json.loads(path.read_text("utf-8")) for path in sorted((work.scratch / FOLDER / "attempts").glob("*"))]
    lasting = {
        one["code"]
        for place, one in enumerate(attempts, start=1)
        if all(later["step"] > one["step"] for later in attempts[place:])
    }
    others = {*lasting, *ranks} - {note(work, *modules)}
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
    """Return the modules and packaged files whose digests differ between an artifact's record and `now`."""
    then = record["code"]["modules"]
    return tuple(sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name)))


def in_words(record: Mapping[str, Any], parts: tuple[str, ...], *, most: int = NAMED) -> str:
    """Return one line that lists up to `most` of the changed `parts`, or "" if there are none."""
    if not parts:
        return ""
    several = any(isinstance(digest, list) for digest in record["code"]["modules"].values())
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return f"made by {'more than one' if several else 'other'} code: {', '.join(parts[:most])}{more}"

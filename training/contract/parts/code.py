"""Identify a part from outside the checkout by the digest of the code that its module imports from its package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.contract.artifact import digest_of
from training.contract.errors import DataError
from training.contract.identity.closure import Code
from training.contract.parts.outside import OutsidePart
from training.contract.records import RecipeError

PARTS = "parts"  # the setting of a job that names the parts from outside that the stage uses


def identified(parts: Mapping[str, OutsidePart]) -> dict[str, dict[str, str]]:
    """Return, by name, each part's place and the digest of its code, for the settings of a job."""
    return {name: {"from": part.place, "code": code_digest(part)} for name, part in sorted(parts.items())}


def code_digest(part: OutsidePart) -> str:
    """Return the digest of the modules and files of the part's own package that its module can use.

    Comments, docstrings and layout do not count. Raise RecipeError for a module without Python source.
    """
    package = part.module.partition(".")[0]
    try:
        found = Code.around(part.module).digests(part.module)
    except (KeyError, ModuleNotFoundError):
        raise RecipeError(f"{part.place!r}: {part.module} has no Python source, so nothing identifies it") from None
    return digest_of({name: one for name, one in found.items() if name.replace("/", ".").split(".")[0] == package})


def check_parts(settings: Mapping[str, Any]) -> None:
    """Raise DataError if a part's code is not the one with which the job was written.

    It differs on a node with another version of the part, and after an edit between the job and its start.
    """
    for name, asked in settings.get(PARTS, {}).items():
        if (here := code_digest(OutsidePart(asked["from"]))) != asked["code"]:
            raise DataError(
                f"{name} ({asked['from']}): the code here has the digest {here}, the job asks for {asked['code']};"
                " install the same version on every node, and run again"
            )

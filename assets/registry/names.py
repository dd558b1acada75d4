"""Names of registered models as a person writes them, and the answer to a name that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterable

from resources.tracking.versions import Registered
from training.contract.records import no_such

VERSION = re.compile(r"(?:models:/)?(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")


def not_registered(asked: str, name: str, versions: Iterable[Registered]) -> str:
    """Return a sentence about a model or version that is not registered: the most similar name, and what there is."""
    versions = list(versions)
    if own := [one.title for one in versions if one.name == name]:
        return f"{asked}: no such version is registered; there is {', '.join(own)}"
    names = sorted({one.name for one in versions})
    return no_such(f"{asked}: no model of this name is registered", name, names)

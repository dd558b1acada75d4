"""The addresses `made://asset/partition/path` of a recipe, by which it reads what another recipe made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets.state.references import read_reference
from assets.state.requested_settings import replaced
from training.contract import artifact
from training.contract.artifact import MADE, Damaged
from training.contract.records import read_record, write_record
from training.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeAddress:
    """The path that a name `made://…` in a recipe stands for, and an identity of its content.

    The identity does not depend on the path.
    """

    uri: str
    path: str
    content: str  # made://DIGEST/PATH: the artifact's digest, and the path inside the artifact


def made_places(recipe: Recipe, root: Path) -> tuple[MadeAddress, ...]:
    """Return the path and identity behind every `made://asset/partition/path` in `recipe`.

    Names whose artifact does not exist under `root` are left out.
    """
    return tuple(place for uri in sorted(_made_names(write_record(recipe))) if (place := _place(uri, root)))


def _made_names(value: Any) -> set[str]:
    if isinstance(value, (dict, list)):
        items = value.values() if isinstance(value, dict) else value
        return set().union(*map(_made_names, items))
    return {value} if isinstance(value, str) and value.startswith(MADE) else set()


def _place(uri: str, root: Path) -> MadeAddress | None:
    asset, partition, inside = (*uri.removeprefix(MADE).split("/", 2), "", "")[:3]
    try:
        made = read_reference(root, asset, partition)
    except Damaged:
        return None
    if made is None:
        return None
    path = artifact.folder_of(root, asset, made.fingerprint) / inside
    return MadeAddress(uri=uri, path=str(path), content=f"{MADE}{made.digest}/{inside}")


def with_made(recipe: Recipe, places: Sequence[MadeAddress]) -> Recipe:
    """The recipe with its `made://` names replaced by paths.

    In this way one recipe reads artifacts that another recipe made. Fingerprints use the content's digest, not the
    path, so they change when the other recipe makes the artifact again. A name whose artifact does not exist yet is
    left as it is; the stage that opens it raises the error.
    """
    if not places:
        return recipe
    return read_record(Recipe, replaced(write_record(recipe), {place.uri: place.path for place in places}))

"""Settings that assets read from a recipe: its sections, and the checksums of the files that they name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from training.contract.parts.code import PARTS, identified
from training.contract.parts.outside import OutsidePart
from training.contract.records import RecipeError, uris_in
from training.contract.stage import Settings
from training.data.generated import is_generated, source_of, versions

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe


def sections(*names: str) -> Settings:
    """Return a function that gives a stage its settings from a recipe.

    The settings are these sections of the recipe, the sections of the generated sources that they use, and the
    checksums of the files that they name.
    """

    def settings(recipe: Recipe, part: str) -> dict[str, Any]:
        del part
        return with_data(recipe, {name: getattr(recipe, name) for name in names})

    return settings


def with_data(recipe: Recipe, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the settings `asked`, extended by everything that their URIs name.

    The result also has the sections of the generated sources that a URI names; under `data` the sha256 of each file
    by URI; and under `parts` what identifies each part from outside. `data` and `parts` are absent if nothing is
    named.
    """
    from training.data.sources import checksum_of  # imports parquet, which takes a second that declarations should save

    uris = sorted(set(uris_in(asked)))
    files = {uri: checksum_of(uri) for uri in uris if not is_generated(uri)}
    result = asked | generated(recipe, {source.name for uri in uris if (source := source_of(uri))})
    if files:
        result["data"] = files
    return with_parts(result)


def with_parts(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the settings `asked` with what identifies each part from outside that their sections name.

    Raise RecipeError if two sections give one name to different parts.
    """
    parts: dict[str, OutsidePart] = {}
    for section in asked.values():
        for name, part in outside_parts(section).items():
            if parts.setdefault(name, part) != part:
                raise RecipeError(f"parts: {name!r} is {parts[name].place} and {part.place}; give them two names")
    return {**asked, PARTS: identified(parts)} if parts else asked


def outside_parts(section: Any) -> dict[str, OutsidePart]:
    """Return the parts from outside that a section of a recipe names, by name."""
    return section.outside_parts() if hasattr(section, "outside_parts") else {}


def generated(recipe: Recipe, sources: Iterable[str]) -> dict[str, Any]:
    """Return the recipe's sections for these generated sources, by name.

    The version of each source is added under `sources` if it is above 1. A new version of a source thus changes the
    fingerprints of the stages that read it, and of no others.
    """
    newer = versions(sources)
    return {name: getattr(recipe, name) for name in sorted(sources)} | ({"sources": newer} if newer else {})

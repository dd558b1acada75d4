"""What assets read of a recipe: its sections, with what the files that they name hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from training.data.generated import is_generated, source_of, versions
from training.records import uris_in
from training.stage import Settings

if TYPE_CHECKING:
    from training.recipe import Recipe


def sections(*names: str) -> Settings:
    """A function that gives a stage these sections of the recipe, the sections of the sources that they read, and the
    checksums of the files that they name."""

    def settings(recipe: Recipe, part: str) -> dict[str, Any]:
        del part
        return with_data(recipe, {name: getattr(recipe, name) for name in names})

    return settings


def with_data(recipe: Recipe, asked: dict[str, Any]) -> dict[str, Any]:
    """`asked` with the sections of the generated sources whose URIs occur in it, and `data` (URI: sha256) when files
    are named."""
    from training.data.sources import checksum_of  # it reads parquet: a second, which declarations need not wait for

    uris = sorted(set(uris_in(asked)))
    files = {uri: checksum_of(uri) for uri in uris if not is_generated(uri)}
    result = asked | generated(recipe, {source.name for uri in uris if (source := source_of(uri))})
    if files:
        result["data"] = files
    return result


def generated(recipe: Recipe, sources: Iterable[str]) -> dict[str, Any]:
    """The sections of generated sources, and under `sources` the version of each that is not at its first.

    So a source that writes something else marks what reads it, and nothing of a recipe that does not.
    """
    newer = versions(sources)
    return {name: getattr(recipe, name) for name in sorted(sources)} | ({"sources": newer} if newer else {})

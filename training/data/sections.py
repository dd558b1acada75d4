"""Settings that assets read from a recipe: its sections, and the checksums of the files that they name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from training.data.generated import is_generated, source_of, versions
from training.records import uris_in
from training.stage import Settings

if TYPE_CHECKING:
    from training.recipe import Recipe


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
    """Return `asked` plus the sections of the generated sources that it names, and `data` (URI → sha256) of its files.

    `data` is absent if no files are named.
    """
    from training.data.sources import checksum_of  # imports parquet, which takes a second that declarations should save

    uris = sorted(set(uris_in(asked)))
    files = {uri: checksum_of(uri) for uri in uris if not is_generated(uri)}
    result = asked | generated(recipe, {source.name for uri in uris if (source := source_of(uri))})
    if files:
        result["data"] = files
    return result


def generated(recipe: Recipe, sources: Iterable[str]) -> dict[str, Any]:
    """Return the sections of the generated sources, and under `sources` the version of each that is past its first.

    A source with a new version thus changes the fingerprints of what reads it, and of nothing else.
    """
    newer = versions(sources)
    return {name: getattr(recipe, name) for name in sorted(sources)} | ({"sources": newer} if newer else {})

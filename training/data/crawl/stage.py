"""Stage `crawl`: the archive files of a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.data.sections import generated
from training.generated_sources import SOURCES
from training.stage import Asset, Stage

if TYPE_CHECKING:
    from training.recipe import Recipe

CRAWL = Stage(
    name="crawl",
    version="1",
    module="training.data.crawl.crawl",
    libraries=("warcio",),  # with which a source writes its archives
    kinds=("warc",),
    gates=("counts_balance",),
    locations=(("snapshot", "paths"), ("snapshot", "base_url")),
)


def _settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """A raw snapshot is its files' names, sizes and checksums, never their path."""
    from training.data.crawl.crawl import source_files

    chosen = recipe.snapshot(snapshot)
    settings: dict[str, Any] = {"snapshot": chosen}
    if chosen.source in SOURCES:
        return settings | generated(recipe, [chosen.source])
    return settings | {"files": source_files(chosen)}


ASSETS = (
    Asset(
        name="crawl_archives",
        stage=CRAWL,
        description="WARC files (or already extracted text) of one snapshot, with sizes and checksums.",
        group="corpus",
        scope="snapshot",
        settings=_settings,
    ),
)

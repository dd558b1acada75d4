"""Stage `crawl`: collects the archive files of a snapshot."""

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
    libraries=("warcio",),  # generated sources write their archives with it
    kinds=("warc",),
    gates=("counts_balance",),
    locations=(("snapshot", "paths"), ("snapshot", "base_url")),
)


def _settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """Return the snapshot's settings with its files' names, sizes and checksums, but not their paths."""
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

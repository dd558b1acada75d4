"""Stage `crawl`: collects the archive files of a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.contract.identity.generated_sources import SOURCES
from training.contract.stage import Asset, Stage
from training.data.sections import generated

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

CRAWL = Stage(
    name="crawl",
    version="11",
    module="training.data.crawl.crawl",
    libraries=("warcio", "idna"),  # generated sources write their archives with warcio
    kinds=("warc",),
    gates=("counts_balance",),
    locations=(
        ("snapshot", "paths"),
        ("snapshot", "tokenizer"),
        ("snapshot", "base_url"),
        ("snapshot", "select", "index"),
    ),
)


def _settings(recipe: Recipe, snapshot: str) -> dict[str, Any]:
    """Return the snapshot's settings with its files' names, sizes and checksums, but not their paths.

    The URI of an archive that is only referenced is part of its identity, because the artifact holds it.
    """
    chosen = recipe.snapshot(snapshot)
    settings: dict[str, Any] = {"snapshot": chosen.without_settings()}
    if chosen.source in SOURCES:
        return settings | generated(recipe, [chosen.source])
    from training.data.crawl.crawl import index_files, source_files  # with pyarrow, which takes 0.2 s

    settings["files"] = source_files(chosen)
    if chosen.is_referenced and chosen.source == "commoncrawl":
        settings["referenced_from"] = chosen.base_url
    return settings | ({"index": index_files(chosen)} if chosen.select else {})


ASSETS = (
    Asset(
        name="crawl_archives",
        stage=CRAWL,
        description="WARC files (or extracted text, or token shards) of one snapshot, with sizes and checksums.",
        group="corpus",
        scope="snapshot",
        settings=_settings,
    ),
)

"""The recipe section `snapshots`: which crawl snapshots, or collections of extracted text, are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.names import check_name
from training.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotRecipe:
    """One crawl snapshot, or one collection of already extracted text. Each snapshot is one partition.

    `source` is the kind of data: `kitchen` (generated), `warc` (`paths` are folders, globs or fsspec URLs), `parquet`
    or `jsonl` (already extracted text, a document in each row), `text` (a document in each file), `commoncrawl` (the
    crawl with the id `crawl`, and `num_files` WARC files of its listing from number `first_file` on).
    """

    name: str
    source: Literal["kitchen", "warc", "parquet", "jsonl", "text", "commoncrawl"]
    label: str = "web"  # the source by which the mixture weighs the documents
    paths: tuple[str, ...] = ()
    text_field: str = "text"
    url_field: str = "url"
    crawl: str = ""
    first_file: int = 0
    num_files: int = 1
    base_url: str = "https://data.commoncrawl.org/"

    def __post_init__(self) -> None:
        check_name(self.name, "snapshots.name")
        if self.source in ("warc", "parquet", "jsonl", "text") and not self.paths:
            raise RecipeError(
                f"snapshots.{self.name}.paths: empty; source {self.source!r} needs at least one path, glob or URL"
            )
        if self.source == "commoncrawl" and not self.crawl:
            raise RecipeError(f"snapshots.{self.name}.crawl: empty; name a crawl such as CC-MAIN-2024-22")

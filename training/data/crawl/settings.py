"""The recipe section `snapshots`: which crawl snapshots, or collections of extracted text, are read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from training.contract.job import DataError
from training.contract.parts.outside import FROM, PartsOf
from training.contract.records import RecipeError
from training.contract.user_input.names import check_name
from training.data.address_lists import address_list
from training.data.crawl.reader import SOURCES, ReaderRecipe

WRITTEN_BY_A_MODEL = "made://synthetic_text/"


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionRecipe:
    """A choice of records according to index files: only these records of the archives are requested and read.

    `index` names CDX files (a JSON object in each line, as Common Crawl publishes them) or the parquet files of its
    columnar index. A record is selected if it fulfils every filter that is not empty.
    """

    index: tuple[str, ...]  # paths, globs or URLs
    hosts: tuple[str, ...] = ()  # example.org selects its subdomains too
    languages: tuple[str, ...] = ()  # as the index writes them, such as eng; one of a page's languages is enough
    mime_types: tuple[str, ...] = ()  # as detected by the crawler, such as text/html
    max_gap_bytes: int = 1_000_000  # records with a smaller gap between them are requested together

    def __post_init__(self) -> None:
        if not self.index:
            raise RecipeError("snapshots.select.index: empty; name at least one CDX or parquet file")
        if self.max_gap_bytes < 0:
            raise RecipeError(f"snapshots.select.max_gap_bytes={self.max_gap_bytes}; must not be negative")
        for name in ("languages", "mime_types"):
            if bad := next((word for word in getattr(self, name) if word != word.lower() or not word.strip()), None):
                raise RecipeError(f"snapshots.select.{name}: {bad!r}; index files have lower-case names")
        try:
            _ = address_list(self.hosts, "domain")  # checks itself
        except DataError as error:
            raise RecipeError(f"snapshots.select.hosts: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotRecipe:
    """One crawl snapshot, or one collection of already extracted text. Each snapshot is one partition.

    `source` is the kind of data: `kitchen` (generated), `warc` (`paths` are folders, globs or fsspec URLs), `parquet`
    or `jsonl` (already extracted text, a document in each row), `files` (a document in each file, such as texts, code
    and books; training/data/crawl/folder.py), `shards` (token files that are decoded with `tokenizer`;
    training/data/crawl/token_files.py), `commoncrawl` (the crawl with the id `crawl`, and `num_files` WARC files of its
    listing from number `first_file` on), or a reader from outside.

    `archives` says whether the files are copied into the artifact, or only referenced and read where they are by the
    rank that extracts them (training/data/crawl/references.py). With references, `select` can choose single records.
    """

    name: str
    source: str  # one of SOURCES, or a reader from outside
    label: str = "web"  # the source by which the mixture weighs the documents
    paths: tuple[str, ...] = ()
    text_field: str = "text"
    url_field: str = "url"
    prompt_field: str | None = None  # what a model was asked for the text; searched for exam items, not trained on
    tokenizer: str | None = None  # of source `shards`: the tokenizer.json, or its folder, that made them
    crawl: str | None = None  # None: no crawl, for every source but `commoncrawl`
    first_file: int = 0
    num_files: int = 1
    base_url: str = "https://data.commoncrawl.org/"
    archives: Literal["copied", "referenced"] = "copied"
    select: SelectionRecipe | None = None  # None: every record
    # Of a reader from outside: `from`, and its settings.
    parts: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_name(self.name, "snapshots.name")
        PartsOf(f"snapshots.{self.name}", self.parts).check_used([self.source], SOURCES)
        _ = self.reader  # checks itself
        if self.source not in ("kitchen", "commoncrawl") and not self.paths:
            raise RecipeError(
                f"snapshots.{self.name}.paths: empty; source {self.source!r} needs at least one path, glob or URL"
            )
        if (self.source == "shards") != bool(self.tokenizer):
            said = "empty; source 'shards' is read with" if not self.tokenizer else "without effect; only 'shards' has"
            raise RecipeError(f"snapshots.{self.name}.tokenizer: {said} the tokenizer that made the tokens")
        if self.prompt_field and self.source not in ("parquet", "jsonl"):
            raise RecipeError(
                f"snapshots.{self.name}.prompt_field={self.prompt_field!r}: only rows of source 'parquet' or 'jsonl'"
                " have fields"
            )
        if not self.prompt_field and any(path.startswith(WRITTEN_BY_A_MODEL) for path in self.paths):
            raise RecipeError(
                f"snapshots.{self.name}.prompt_field: not set; a model wrote {self.paths[0]}, and the search for exam"
                " items needs the prompts that it answered; set prompt_field: prompt"
            )
        if self.source == "commoncrawl" and not self.crawl:
            raise RecipeError(f"snapshots.{self.name}.crawl: not set; name a crawl such as CC-MAIN-2024-22")
        if self.archives == "referenced" and self.source == "shards":
            raise RecipeError(
                f"snapshots.{self.name}.archives: token shards are copied into the root; leave out archives: referenced"
            )
        if self.archives == "referenced" and self.source == "kitchen":
            raise RecipeError(
                f"snapshots.{self.name}.archives: source 'kitchen' writes its archives into the root; there is nothing"
                " to refer to"
            )
        if self.select and (self.archives != "referenced" or self.source not in ("warc", "commoncrawl")):
            raise RecipeError(
                f"snapshots.{self.name}.select: single records can be read only of WARC files that stay where they are;"
                " it needs source 'warc' or 'commoncrawl', and archives: referenced"
            )

    @property
    def is_referenced(self) -> bool:
        """Whether the archives are read in place instead of being copied."""
        return self.archives == "referenced"

    @property
    def reader(self) -> ReaderRecipe | None:
        """The reader from outside; None if Pedigree reads the files."""
        if self.source in SOURCES:
            return None
        return ReaderRecipe(source=self.source, parts=self.parts, where=f"snapshots.{self.name}")

    def without_settings(self) -> SnapshotRecipe:
        """Return the snapshot without the settings of its reader, which decide no file of it."""
        return replace(self, parts={name: {FROM: given[FROM]} for name, given in self.parts.items() if FROM in given})

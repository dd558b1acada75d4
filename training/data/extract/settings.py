"""The recipe section `extract`: how text is extracted, and which pages are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from training.contract.parts.outside import OutsidePart, PartsOf
from training.contract.records import RecipeError, Uri
from training.data.extract.extractor import KIND, Extractor, outside_extractor
from training.data.words.languages import check_languages

EXTRACTORS = ("blocks_or_trafilatura", "trafilatura", "blocks", "resiliparse")

BLOCK_EXTRACTORS = ("blocks", "blocks_or_trafilatura")
"""Extractors that tell the kind of a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractRecipe:
    """Settings of text extraction from HTML pages.

    Limits are sizes, never seconds, because the load of the machine must not decide which pages are kept.

    `blocked` and `takedown` name lists of domains, URLs and document ids (training/data/extract/terms.py has the
    format).
    """

    extractor: str = "blocks_or_trafilatura"  # one of EXTRACTORS, or a part from outside
    max_html_bytes: int = 4_000_000
    max_nodes: int = 200_000
    max_depth: int = 1000
    min_characters: int = 50
    languages: tuple[str, ...] = ()  # pages certainly in another language are dropped before extraction; empty: none
    min_foreign_score: float = 0.8  # probability of the other language that counts as certain
    blocked: tuple[Uri, ...] = ()
    takedown: tuple[Uri, ...] = ()
    refused_robots: tuple[str, ...] = ()  # directives such as noai, noindex; a crawler's own as name:noindex
    refused_usage: tuple[str, ...] = ()  # uses such as train-ai=n, of Content-Usage and Content-Signal
    site_files: tuple[Uri, ...] = ()  # archives with robots.txt, ai.txt, trust.txt and tdmrep.json of the pages' sites
    refuse_truncated: bool = False  # pages that the archive marks as cut off (WARC-Truncated)
    refuse_reserved: bool = False  # pages that reserve text and data mining (TDMRep)
    licences: tuple[str, ...] = ()  # keep only pages whose licence statement contains one of these; empty: keep all
    check_digests: bool = False  # quarantine records whose bytes do not match their WARC digests
    min_file_bytes: int | None = (
        None  # neighbouring archives are one file, until they have so many bytes; None: one each
    )
    max_file_bytes: int | None = None  # records of one archive in a file, by their content; None: all
    # Of an extractor from outside: `from`, and its settings.
    parts: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        self._parts.check_used([self.extractor], EXTRACTORS)
        _ = self.outside  # checks itself
        if not 0 <= self.min_foreign_score <= 1:
            raise RecipeError(f"extract.min_foreign_score={self.min_foreign_score}; a probability from 0 to 1")
        for name in ("min_file_bytes", "max_file_bytes"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise RecipeError(f"extract.{name}={size}; a number of bytes from 1 on")
        check_languages("extract.languages", self.languages)
        for name in ("refused_robots", "refused_usage", "licences"):
            if bad := next((word for word in getattr(self, name) if word != word.lower()), None):
                raise RecipeError(f"extract.{name}: {bad!r} must be in lower case; it is compared with lower-case text")

    @property
    def _parts(self) -> PartsOf:
        return PartsOf("extract", self.parts)

    @property
    def outside(self) -> tuple[Extractor, Any] | None:
        """The extractor from outside with its settings; None if Pedigree's extracts."""
        return None if self.extractor in EXTRACTORS else outside_extractor(self.extractor, self._parts, EXTRACTORS)

    def outside_parts(self) -> dict[str, OutsidePart]:
        """Return the extractor by name if it is not Pedigree's."""
        if self.extractor in EXTRACTORS:
            return {}
        return {self.extractor: self._parts.find(KIND, self.extractor, EXTRACTORS, "extractor")}

"""The recipe section `dedup`: how duplicates are found, and which repeated lines and substrings are cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from training.contract.parts.outside import OutsidePart, PartsOf
from training.contract.records import RecipeError, check_above_zero
from training.data.dedup.survivor import KIND, Policy, outside_survivor

# The columns that Pedigree's own survivor policies compare; `first` compares none.
COLUMNS = {
    "first": (),
    "newest": ("date",),
    "longest": ("text",),
    "best_score": ("quality_score",),
    "own_language": ("language_score",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DedupRecipe:
    """Settings of exact and near-duplicate removal.

    Source: MinHash LSH. The defaults of 5-word n-grams and 14 buckets of 8 hashes are FineWeb's (arXiv 2406.17557).
    Unlike there, every candidate pair is verified.
    """

    enabled: bool = True
    ngram_words: int = 5
    buckets: int = 14
    hashes_per_bucket: int = 8
    min_similarity: float = 0.7  # Jaccard of the n-gram sets, in [0, 1]
    min_kept_fraction: float = 0.0  # gate, per source and language
    # Which of the duplicates in one snapshot stays; a document of an earlier snapshot always does:
    survivor: str = "first"  # or newest, longest, best_score, own_language, or a part from outside
    urls: bool = False  # also remove a document whose URL's key (training/data/urls.py) an earlier one has
    # Cuts in the documents that stay, counted in groups of this many documents (Llama 3's line rule: 6 in 30 million):
    group_documents: int = 30_000_000
    line_unit: Literal["line", "paragraph"] = "line"
    max_line_copies: int | None = None  # a line that occurs more often is cut everywhere; None: cut no lines
    min_substring_bytes: int | None = None  # repeated runs of at least this length are cut; None: cut no runs
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)  # of a survivor from outside: `from`, settings

    @property
    def policy(self) -> Policy:
        """The policy that chooses survivors. Raise RecipeError if it is neither Pedigree's nor one from outside."""
        if self.survivor in COLUMNS:
            return Policy(name=self.survivor, columns=COLUMNS[self.survivor])
        return outside_survivor(self.survivor, self._parts, tuple(COLUMNS))

    @property
    def _parts(self) -> PartsOf:
        return PartsOf("dedup", self.parts)

    def outside_parts(self) -> dict[str, OutsidePart]:
        """Return the survivor policy by name if it is not Pedigree's."""
        if self.survivor in COLUMNS:
            return {}
        return {self.survivor: self._parts.find(KIND, self.survivor, COLUMNS, "survivor")}

    def __post_init__(self) -> None:
        self._parts.check_used([self.survivor], COLUMNS)
        _ = self.policy  # checks itself
        check_above_zero(self, "dedup", "group_documents", "max_line_copies", "min_substring_bytes")
        if self.buckets < 1 or self.hashes_per_bucket < 1 or self.ngram_words < 1:
            raise RecipeError(
                f"dedup: ngram_words={self.ngram_words}, buckets={self.buckets}, "
                f"hashes_per_bucket={self.hashes_per_bucket};"
                " each must be at least 1"
            )

"""The recipe section `quality`: models that score text, and the texts on which they are trained and measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.contract.records import RecipeError, Uri
from training.contract.user_input.names import check_name
from training.data.words.languages import check_languages


@dataclass(frozen=True, kw_only=True, slots=True)
class ToxicityRecipe:
    """A linear classifier on hashed word n-grams that separates toxic from other texts, trained on a set of each."""

    positive: tuple[Uri, ...] = ()  # toxic texts; empty: no model
    negative: tuple[Uri, ...] = ()  # other texts, as similar to the toxic ones as possible in everything else
    positive_field: str = "text"
    negative_field: str = "text"
    buckets: int = 65_536
    min_auc: float = 0.8  # gate on held-out texts

    def __post_init__(self) -> None:
        if bool(self.positive) != bool(self.negative) or self.buckets < 2:
            raise RecipeError(
                f"quality.toxicity: {len(self.positive)} positive and {len(self.negative)} negative sets, which come"
                f" together or not at all; buckets={self.buckets} (at least 2)"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledRecipe:
    """Texts that people labelled as good or bad. The classifier is measured on them, but never trained on them."""

    name: str
    positive: tuple[Uri, ...] = ()  # good texts
    negative: tuple[Uri, ...] = ()  # bad texts
    text_field: str = "text"
    label_field: str | None = None  # in files with both kinds, a row's label; None: one kind in a file
    positive_label: str = "1"
    negative_label: str = "0"
    min_auc: float = 0.6  # gate

    def __post_init__(self) -> None:
        check_name(self.name, "quality.labelled.name")
        if not self.positive or not self.negative:
            raise RecipeError(
                f"quality.labelled.{self.name}: {len(self.positive)} positive and {len(self.negative)} negative sets;"
                " both are needed (with label_field they may name the same file)"
            )
        if self.label_field and self.positive_label == self.negative_label:
            raise RecipeError(f"quality.labelled.{self.name}: both labels are {self.positive_label!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NgramFileRecipe:
    """An n-gram model to use unchanged: an ARPA file, plain, .gz or .zst."""

    uri: Uri
    language: str | None = None  # one of `ngram_languages`; None if that is empty


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityRecipe:
    """Models that judge text, trained on the texts that the recipe names.

    There is an n-gram model of the reference texts (perplexity), and a linear classifier on hashed word n-grams that
    separates the reference from `negative`, or from a sample of `snapshots`.
    """

    reference: tuple[Uri, ...] = ()  # texts that are known to be good
    reference_field: str = "text"
    negative: tuple[Uri, ...] = ()  # the classifier's negatives; empty: the sample of `snapshots`
    negative_field: str = "text"
    snapshots: tuple[str, ...] = ()  # source of the sample that sets the bucket limits and serves as negatives
    negatives: int = 2000  # pages in the sample
    labelled: tuple[LabelledRecipe, ...] = ()  # additional held-out sets, each with a gate
    ngram_order: int = 3
    ngram_languages: tuple[str, ...] = ()  # each gets its own model and buckets; empty: one model for all
    ngram_files: tuple[NgramFileRecipe, ...] = ()  # models to use instead of estimating them
    classifier_buckets: int = 65_536
    classifier_model: Uri | None = None  # a fastText model to use; None: train a classifier
    classifier_label: str = "__label__hq"  # the fastText model's label for good text
    held_out_fraction: float = 0.1
    min_auc: float = 0.6  # gate on held-out documents
    toxicity: ToxicityRecipe = field(default_factory=ToxicityRecipe)

    def __post_init__(self) -> None:
        if not 1 <= self.ngram_order <= 6 or self.negatives < 1 or self.classifier_buckets < 2:
            raise RecipeError(
                f"quality: ngram_order={self.ngram_order} (1 to 6), negatives={self.negatives} (at least 1),"
                f" classifier_buckets={self.classifier_buckets} (at least 2)"
            )
        for name in ("classifier_model", "negative", "labelled", "ngram_files"):
            if getattr(self, name) and not self.reference:
                raise RecipeError(f"quality.{name}: without effect; name texts in quality.reference")
        check_languages("quality.ngram_languages", self.ngram_languages)
        given = [one.language for one in self.ngram_files]
        if len(set(given)) != len(given) or not set(given) <= set(self.ngram_languages or (None,)):
            raise RecipeError(
                f"quality.ngram_files: languages {given}; each once, and one of ngram_languages"
                f" ({', '.join(self.ngram_languages) or 'none are named, so only null is possible'})"
            )
        names = [labelled.name for labelled in self.labelled]
        if len(set(names)) != len(names):
            raise RecipeError(f"quality.labelled: {', '.join(names)}; each name at most once")
        if not 0 < self.held_out_fraction < 1:
            raise RecipeError(f"quality.held_out_fraction={self.held_out_fraction}; it must lie between 0 and 1")

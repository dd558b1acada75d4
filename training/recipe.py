"""The recipe: everything that is meant to change the result, as frozen records that check themselves.

A recipe is a YAML file (training/recipes.py reads it). Where and how fast is the profile's (resources/profile.py); no
setting is in both. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from training.data.kitchen.settings import KitchenWorld
from training.pretrain.shape import ExpertLayers, ModelConfig, RotaryScaling
from training.records import RecipeError, varied, write_record

MIN_RUNGS = 6  # of a scaling ladder
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")


def check_name(name: str, what: str) -> None:
    """RecipeError unless `name` is 1 to 64 of a-z 0-9 . _ - : it becomes a partition key and a folder name."""
    if not 1 <= len(name) <= 64 or not set(name) <= NAME_CHARACTERS or name.startswith("."):
        raise RecipeError(
            f"{what}: {name!r} must be 1 to 64 characters of a-z, 0-9, '.', '_', '-', not starting with '.'"
        )


def check_model_name(name: str, what: str) -> None:
    """RecipeError unless the registry takes the name and it needs no quotes in the registry's questions."""
    if not 1 <= len(name) <= 128 or not name[0].isalnum() or not all(c.isalnum() or c in "._-" for c in name):
        raise RecipeError(
            f"{what}: {name[:140]!r} must be 1 to 128 letters, digits, '.', '_' and '-', and begin with one of the"
            " first two"
        )


# Corpus


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotRecipe:
    """One crawl snapshot, or one collection of already extracted text. It is a partition; its files are not.

    `source` says what is read: `kitchen` (generated), `warc` (folder, glob or fsspec URLs), `parquet` or `jsonl`
    (already
    extracted text), `commoncrawl` (`crawl` id and the WARC files numbered `first_file` … of its listing).
    """

    name: str
    source: Literal["kitchen", "warc", "parquet", "jsonl", "commoncrawl"]
    label: str = "web"  # the mixture weighs documents by it
    paths: tuple[str, ...] = ()
    text_field: str = "text"
    url_field: str = "url"
    crawl: str = ""
    first_file: int = 0
    num_files: int = 1
    base_url: str = "https://data.commoncrawl.org/"

    def __post_init__(self) -> None:
        check_name(self.name, "snapshots.name")
        if self.source in ("warc", "parquet", "jsonl") and not self.paths:
            raise RecipeError(
                f"snapshots.{self.name}.paths: empty; source {self.source!r} needs at least one path, glob or URL"
            )
        if self.source == "commoncrawl" and not self.crawl:
            raise RecipeError(f"snapshots.{self.name}.crawl: empty; name a crawl such as CC-MAIN-2024-22")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractRecipe:
    """HTML to text. Limits are sizes, never seconds: the kept set must not depend on how busy the machine is.

    `blocked` and `takedown` name lists of domains, addresses and document ids (training/data/terms.py has the format).
    """

    extractor: Literal["resiliparse", "trafilatura", "union", "blocks", "blocks_or_trafilatura"] = "resiliparse"
    max_html_bytes: int = 4_000_000
    max_nodes: int = 200_000
    max_depth: int = 1000
    min_characters: int = 50
    languages: tuple[str, ...] = ()  # pages surely in another one are dropped before extraction; empty: none
    min_foreign_score: float = 0.8  # how sure
    blocked: tuple[str, ...] = ()
    takedown: tuple[str, ...] = ()
    refused_robots: tuple[str, ...] = ()  # directives such as noai, noindex; a crawler's own as name:noindex
    refuse_reserved: bool = False  # pages that reserve text and data mining (TDMRep)
    licences: tuple[str, ...] = ()  # if any are named, only pages whose licence statement has one of these in it
    check_digests: bool = False  # records whose bytes are not those of their WARC digests go into quarantine

    def __post_init__(self) -> None:
        if not 0 <= self.min_foreign_score <= 1:
            raise RecipeError(f"extract.min_foreign_score={self.min_foreign_score}; a probability from 0 to 1")
        for name in ("languages", "refused_robots", "licences"):
            if bad := next((word for word in getattr(self, name) if word != word.lower()), None):
                raise RecipeError(f"extract.{name}: {bad!r} must be in lower case; it is compared with lower-case text")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToxicityRecipe:
    """A classifier that tells toxic texts from others: linear, of hashed word n-grams, trained on two named sets."""

    positive: tuple[str, ...] = ()  # URIs of toxic texts; empty: no model
    negative: tuple[str, ...] = ()  # of others, as like them as can be had in everything else
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
    """Texts that people called good or not. The classifier is measured on them and never trained on them."""

    name: str
    positive: tuple[str, ...] = ()  # URIs of good texts
    negative: tuple[str, ...] = ()  # of others
    text_field: str = "text"
    label_field: str = ""  # of rows in files that hold both kinds: only those with a side's label are that side's
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
    """An n-gram model that is taken as it is: an ARPA file, plain or .gz or .zst."""

    uri: str
    language: str = ""  # one of `ngram_languages`, or "" where there are none


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityRecipe:
    """Models that judge text, trained by the pipeline on what the recipe names for them.

    An n-gram model of the reference texts (perplexity) and a linear classifier of hashed word n-grams (reference
    against `negative`, or a sample of `snapshots`).
    """

    reference: tuple[str, ...] = ()  # URIs of texts that are known to be good
    reference_field: str = "text"
    negative: tuple[str, ...] = ()  # URIs of the classifier's negatives; empty: the sample of `snapshots`
    negative_field: str = "text"
    snapshots: tuple[str, ...] = ()  # the sample that the buckets part in three, and the negatives, are of these
    negatives: int = 2000  # pages in the sample
    labelled: tuple[LabelledRecipe, ...] = ()  # held-out sets of their own, each with a gate
    ngram_order: int = 3
    ngram_languages: tuple[str, ...] = ()  # each with a model and buckets of its own; empty: one model for all
    ngram_files: tuple[NgramFileRecipe, ...] = ()  # models to take instead of estimating them
    classifier_buckets: int = 65_536
    classifier_model: str = ""  # URI of a fastText model to use instead of training one; "": train it
    classifier_label: str = "__label__hq"  # of that model, for good text
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
        given = [one.language for one in self.ngram_files]
        if len(set(given)) != len(given) or not set(given) <= set(self.ngram_languages or ("",)):
            raise RecipeError(
                f"quality.ngram_files: languages {given}; each once, and one of ngram_languages"
                f" ({', '.join(self.ngram_languages) or 'none are named, so only an empty one is possible'})"
            )
        names = [labelled.name for labelled in self.labelled]
        if len(set(names)) != len(names):
            raise RecipeError(f"quality.labelled: {', '.join(names)}; each name at most once")
        if not 0 < self.held_out_fraction < 1:
            raise RecipeError(f"quality.held_out_fraction={self.held_out_fraction}; it must lie between 0 and 1")


FilterRule = Literal[
    "url",
    "language",
    "gopher_repetition",
    "gopher_quality",
    "c4",
    "refinedweb",
    "fineweb",
    "classifier",
    "perplexity",
    "toxicity",
    "toxicity_classifier",
    "personal_data",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterRecipe:
    """Which documents go on. Rules run in the order of `rules`; the first that says no gives the reason.

    Sources: Gopher (arXiv 2112.11446), C4 (arXiv 1910.10683), FineWeb (arXiv 2406.17557), RefinedWeb
    (arXiv 2306.01116), CCNet (arXiv 1911.00359).
    """

    rules: tuple[FilterRule, ...] = ()
    languages: tuple[str, ...] = ("en",)
    min_language_score: float = 0.65
    blocked_domains: tuple[str, ...] = ()
    blocked_urls: tuple[str, ...] = ()
    gopher_max_duplicate_lines: float = 0.3  # fractions of lines, paragraphs, characters; Gopher, table A1
    gopher_max_duplicate_paragraphs: float = 0.3
    gopher_max_duplicate_line_characters: float = 0.2
    gopher_max_duplicate_paragraph_characters: float = 0.2
    gopher_max_top_ngrams: tuple[float, ...] = (0.2, 0.18, 0.16)  # characters in the commonest 2-, 3-, 4-gram
    gopher_max_duplicate_ngrams: tuple[float, ...] = (0.15, 0.14, 0.13, 0.12, 0.11, 0.1)  # in repeated 5- to 10-grams
    gopher_min_words: int = 50
    gopher_max_words: int = 100_000
    gopher_min_mean_word_length: float = 3.0
    gopher_max_mean_word_length: float = 10.0
    gopher_max_symbol_ratio: float = 0.1
    gopher_max_bullet_fraction: float = 0.9
    gopher_max_ellipsis_fraction: float = 0.3
    gopher_min_alphabetic_fraction: float = 0.8
    gopher_min_stop_words: int = 2
    c4_min_sentences: int = 5  # as datatrove and FineWeb; the code that made C4 has 3
    c4_min_words_per_line: int = -1  # -1: no line is dropped for being short; FineWeb has 3, the code that made C4 5
    c4_lines_end_with_punctuation: bool = False  # C4 drops all other lines; FineWeb does not
    c4_drop_javascript_lines: bool = True
    c4_drop_policy_lines: bool = True  # "terms of use", "uses cookies" …
    c4_drop_curly_brackets: bool = True  # the whole page: false where code is wanted
    c4_drop_lorem_ipsum: bool = True  # the whole page; references of template languages name it too
    c4_drop_citations: bool = True  # "[1]", "[edit]", out of their line; in code r[1] is no citation
    c4_max_word_length: int = 1000  # characters; a line with a longer word goes; 0: no limit
    c4_bad_words: str = ""  # URI of a list; a page with one of its words goes; "": no list
    c4_strip_lines: bool = True  # false keeps the indentation of code
    refinedweb_max_uppercase: float = 0.5  # of a line's characters; more, and the line goes
    refinedweb_short_line_words: int = 10  # `sign in`, `read more` and the like are cut out of lines up to this long
    refinedweb_max_removed_words: float = 0.05  # of the page's words; more, and the page goes
    fineweb_min_line_punctuation: float = 0.12
    fineweb_max_short_lines: float = 0.67
    fineweb_short_line_length: int = 30  # characters up to which a line is short
    fineweb_max_duplicate_characters: float = 0.01
    fineweb_max_newline_ratio: float = 0.3
    min_quality_score: float = 0.2
    max_perplexity: float = 0.0  # 0: buckets are recorded, nothing is dropped
    max_toxic_word_fraction: float = 0.02
    max_toxicity_score: float = 0.5  # of the classifier that `quality.toxicity` trains
    personal_data: tuple[str, ...] = ("email", "phone", "ip", "card", "iban", "api_key")
    min_kept_fraction: float = 0.0  # gate: survival below this stops the chain, also of a language or a source
    max_kept_fraction: float = 1.0

    def __post_init__(self) -> None:
        if len(set(self.rules)) != len(self.rules):
            raise RecipeError(f"filter.rules: {', '.join(self.rules)}; each rule at most once")
        if (self.blocked_domains or self.blocked_urls) and "url" not in self.rules:
            raise RecipeError("filter.blocked_domains, filter.blocked_urls: without effect; add 'url' to filter.rules")
        if self.c4_bad_words and "c4" not in self.rules:
            raise RecipeError("filter.c4_bad_words: without effect; add 'c4' to filter.rules")
        known = ("email", "phone", "ip", "card", "iban", "api_key", "national_id")
        for kind in self.personal_data:
            if kind not in known:
                raise RecipeError(f"filter.personal_data: {kind!r} is not one of {', '.join(known)}")
        if not 0 <= self.min_kept_fraction <= self.max_kept_fraction <= 1:
            raise RecipeError(
                f"filter: min_kept_fraction={self.min_kept_fraction}, max_kept_fraction={self.max_kept_fraction};"
                " fractions from 0 to 1, the first not above the second"
            )
        if len(self.gopher_max_top_ngrams) > 3 or len(self.gopher_max_duplicate_ngrams) > 6:
            raise RecipeError(
                "filter: gopher_max_top_ngrams has at most 3 values (2- to 4-grams), gopher_max_duplicate_ngrams at "
                "most 6 (5- to 10-grams)"
            )

    def measured(self) -> FilterRecipe:
        """What decides the scores: the rules, and the settings that change a text or end a page. Every limit, and what
        a page is judged by without measuring it, stands at its default.
        """
        return FilterRecipe(
            rules=tuple(rule for rule in self.rules if rule != "url"),
            languages=self.languages,
            c4_min_words_per_line=self.c4_min_words_per_line,
            c4_lines_end_with_punctuation=self.c4_lines_end_with_punctuation,
            c4_drop_javascript_lines=self.c4_drop_javascript_lines,
            c4_drop_policy_lines=self.c4_drop_policy_lines,
            c4_drop_curly_brackets=self.c4_drop_curly_brackets,
            c4_drop_lorem_ipsum=self.c4_drop_lorem_ipsum,
            c4_drop_citations=self.c4_drop_citations,
            c4_max_word_length=self.c4_max_word_length,
            c4_bad_words=self.c4_bad_words,
            fineweb_short_line_length=self.fineweb_short_line_length,
            c4_strip_lines=self.c4_strip_lines,
            refinedweb_max_uppercase=self.refinedweb_max_uppercase,
            refinedweb_short_line_words=self.refinedweb_short_line_words,
            personal_data=self.personal_data,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DedupRecipe:
    """Exact and near-duplicate removal; a document goes if and only if a verified near-duplicate with a smaller id
    exists.

    Source: MinHash LSH; 5-word n-grams, 14 buckets of 8 hashes are FineWeb's (arXiv 2406.17557). Every candidate
    pair is verified.
    """

    enabled: bool = True
    ngram_words: int = 5
    buckets: int = 14
    hashes_per_bucket: int = 8
    min_similarity: float = 0.7  # Jaccard of the n-gram sets, in [0, 1]
    min_kept_fraction: float = 0.0  # gate, per source and language
    urls: bool = False  # also remove a document whose normalized URL an earlier one has
    # Then, in the documents that stay, among so many of a snapshot at a time (Llama 3's line rule: 6 in 30 million):
    group_documents: int = 30_000_000
    line_unit: Literal["line", "paragraph"] = "line"
    max_line_copies: int = 0  # a line that occurs more often is cut everywhere; 0: lines are not counted
    min_substring_bytes: int = 0  # a run of so many bytes that occurred before is cut; 0: not looked for

    def __post_init__(self) -> None:
        if self.group_documents < 1 or min(self.max_line_copies, self.min_substring_bytes) < 0:
            raise RecipeError(
                f"dedup: group_documents={self.group_documents} must be at least 1, max_line_copies="
                f"{self.max_line_copies} and min_substring_bytes={self.min_substring_bytes} at least 0"
            )
        if self.buckets < 1 or self.hashes_per_bucket < 1 or self.ngram_words < 1:
            raise RecipeError(
                f"dedup: ngram_words={self.ngram_words}, buckets={self.buckets}, "
                f"hashes_per_bucket={self.hashes_per_bucket};"
                " each must be at least 1"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkRecipe:
    """A set of exam items. `kind` says how an item is read and scored.

    multiple_choice: `question`, `choices`, `gold` (index); generate and chat: `question`, `answer` (exact match after
    normalization); the `*_field` names say which columns of the file hold them. `passage_field` may be empty.
    """

    name: str
    uri: str
    kind: Literal["multiple_choice", "generate", "chat"]
    question_field: str = "question"
    choices_field: str = "choices"
    gold_field: str = "gold"
    answer_field: str = "answer"
    passage_field: str = ""
    id_field: str = "id"
    limit: int = 0  # 0: every item
    ngram_words: int = 8  # for contamination: word n-grams shared with an item mark a document
    max_new_tokens: int = 16

    def __post_init__(self) -> None:
        check_name(self.name, "benchmark name")


@dataclass(frozen=True, kw_only=True, slots=True)
class DecontaminateRecipe:
    """What to do with documents that overlap the benchmarks: remove them, flag them, or nothing (off)."""

    action: Literal["remove", "flag", "off"] = "remove"
    benchmarks: tuple[BenchmarkRecipe, ...] = ()
    max_document_frequency: int = 20  # an n-gram in more documents than this is a common phrase, not a leak


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerRecipe:
    """A byte-level vocabulary with its special tokens, fixed here; the chat template belongs to post-training.

    `model` says how a word is cut: bpe by merges in order, wordpiece by the longest piece from the left, unigram into
    the most probable pieces.
    """

    snapshots: tuple[str, ...]
    vocabulary: int
    model: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    reference: str = ""  # URI of a tokenizer.json whose fertility is reported beside; none when empty
    study: tuple[int, ...] = ()  # other sizes, trained and measured for the report alone
    sample_bytes: int = 50_000_000
    min_frequency: int = 2
    # the first ends a document, the second pads; post-training uses the others
    special_tokens: tuple[str, ...] = ("<|endoftext|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
    min_bytes_per_token: float = 2.0  # gate on fertility

    def __post_init__(self) -> None:
        if len(self.special_tokens) < 2 or len(set(self.special_tokens)) < len(self.special_tokens):
            raise RecipeError(
                f"tokenizer.special_tokens={list(self.special_tokens)}: at least two different ones are needed; the "
                "first"
                " ends a document, the second pads"
            )
        smallest = 256 + len(self.special_tokens)
        for name, size in (("vocabulary", self.vocabulary), *(("study", size) for size in self.study)):
            if size < smallest:
                raise RecipeError(f"tokenizer.{name}={size}; 256 bytes and the special tokens need at least {smallest}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardsRecipe:
    """How documents become token files.

    `buckets` parts each label of the mixture in three or four sources, `web/head`, `web/middle`, `web/tail` and
    `web/unscored`: by the bucket that the rule `perplexity` wrote, or by the classifier's score and `quality_limits`
    (head from the first on, tail below the second).
    """

    max_shard_tokens: int = 100_000_000
    buckets: Literal["none", "perplexity", "quality"] = "none"
    quality_limits: tuple[float, ...] = (0.8, 0.5)

    def __post_init__(self) -> None:
        if len(self.quality_limits) != 2 or self.quality_limits[0] < self.quality_limits[1]:
            raise RecipeError(f"shards.quality_limits={list(self.quality_limits)}; two scores, the higher one first")


@dataclass(frozen=True, kw_only=True, slots=True)
class MixturePhaseRecipe:
    """Other weights from a share of the training tokens on: an annealing on the best sources, or a curriculum."""

    start: float  # share of the tokens before it, between 0 and 1
    weights: dict[str, float]

    def __post_init__(self) -> None:
        if not 0 < self.start < 1:
            raise RecipeError(f"mixture.phases: start={self.start}; it must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureRecipe:
    """Which share of the training tokens each source gives. Weights are normalized; empty means by size.

    `weights` hold up to the first of `phases`, each of which names the weight of every source anew.
    """

    weights: dict[str, float] = field(default_factory=dict)
    phases: tuple[MixturePhaseRecipe, ...] = ()
    max_epochs: float = 4.0  # of any source; more is refused
    source_epochs: dict[str, float] = field(default_factory=dict)  # of these sources, in place of max_epochs
    held_out_fraction: float = 0.01  # of documents, chosen by their id

    def __post_init__(self) -> None:
        starts = [phase.start for phase in self.phases]
        if starts != sorted(set(starts)):
            raise RecipeError(f"mixture.phases: start={starts}; each must be later than the one before it")


# Models


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRecipe:
    """The decoder's shape. The vocabulary is the tokenizer's.

    In a recipe file `preset` may name a known shape (`training/pretrain/presets.py`); its fields are put in place while
    the file is read, under those that the file gives itself.
    """

    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp_width: int
    max_length: int
    head_width: int = 0  # 0: width / heads
    rope_theta: float = 10_000.0
    rope_scaling: RotaryScaling = field(default_factory=RotaryScaling)
    norm_epsilon: float = 1e-5
    qk_norm: bool = False
    tied_embeddings: bool = True
    activation: Literal["swiglu", "relu2"] = "swiglu"
    window: int = 0  # positions that a windowed layer looks back, itself included; 0: no windows
    window_pattern: tuple[Literal["full", "window"], ...] = ("full",)  # repeated over the layers
    logit_softcap: float = 0.0
    experts: ExpertLayers = field(default_factory=ExpertLayers)

    def __post_init__(self) -> None:
        self.shape(vocab_size=1)

    def shape(self, *, vocab_size: int) -> ModelConfig:
        """The decoder's shape over a vocabulary. RecipeError when it does not fit together."""
        return ModelConfig(
            vocab_size=vocab_size,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            mlp_width=self.mlp_width,
            max_length=self.max_length,
            head_width=self.head_width,
            rope_theta=self.rope_theta,
            rope_scaling=self.rope_scaling,
            qk_norm=self.qk_norm,
            tied=self.tied_embeddings,
            norm_eps=self.norm_epsilon,
            activation=self.activation,
            window=self.window,
            window_pattern=self.window_pattern,
            logit_softcap=self.logit_softcap,
            experts=self.experts,
        )


FILL_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
MASK_TOKEN = "<|mask|>"


def sentinel_token(number: int) -> str:
    """The token that stands for span `number` (from 0) of a corrupted text."""
    return f"<|sentinel_{number}|>"


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveRecipe:
    """What is predicted from what; `training/pretrain/objectives.py` says how, with the papers.

    The tokens that a kind needs must be among `tokenizer.special_tokens`.
    """

    kind: Literal["causal", "fill_in_the_middle", "masked", "prefix", "span_corruption"] = "causal"
    fill_rate: float = 0.5  # fill_in_the_middle: share of documents that are rearranged
    suffix_first_rate: float = 0.5  # … and of these, share that begin with the suffix
    noise_fraction: float = 0.15  # masked, span_corruption: share of tokens
    mean_span: float = 3.0  # span_corruption: tokens
    across_documents: bool = False  # causal: the documents of a row are one text, and see each other

    def __post_init__(self) -> None:
        if self.across_documents and self.kind != "causal":
            raise RecipeError(f"pretrain.objective.across_documents: {self.kind} rewrites each document by itself")
        for name in ("fill_rate", "suffix_first_rate", "noise_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise RecipeError(f"pretrain.objective.{name}={getattr(self, name)}; it must lie between 0 and 1")
        if self.mean_span < 1:
            raise RecipeError(f"pretrain.objective.mean_span={self.mean_span}; it must be at least 1")

    @property
    def is_causal(self) -> bool:
        """Whether every position sees only what comes before it."""
        return self.kind in ("causal", "fill_in_the_middle")

    @property
    def continues_text(self) -> bool:
        """Whether the model learns to say how a text goes on."""
        return self.kind in ("causal", "fill_in_the_middle", "prefix")

    def special_tokens(self) -> tuple[str, ...]:
        """The tokens without which the objective cannot be written."""
        if self.kind == "fill_in_the_middle":
            return FILL_TOKENS
        if self.kind == "masked":
            return (MASK_TOKEN,)
        return (sentinel_token(0), sentinel_token(1)) if self.kind == "span_corruption" else ()

    def inexpressible(self) -> tuple[str, ...]:
        """Why no class of transformers runs the model as it was trained; empty if one does."""
        return () if self.is_causal else (f"pretrain.objective {self.kind}: the classes see only what comes before",)


@dataclass(frozen=True, kw_only=True, slots=True)
class AverageRecipe:
    """Whether the base model is a mean of the weights that training went through, instead of the last ones.

    `ema` follows them at every step; `uniform` is the plain mean over the end of the run, as if checkpoints had been
    averaged (arXiv 2306.03241). Training itself goes on from the last weights.
    """

    kind: Literal["none", "ema", "uniform"] = "none"
    decay: float = 0.999  # ema: what a step leaves of the mean
    fraction: float = 0.1  # uniform: share of the steps, at the end
    every: int = 1  # uniform: steps between two that count

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1 or not 0 < self.fraction <= 1 or self.every < 1:
            raise RecipeError(
                f"pretrain.average: decay={self.decay} (from 0, below 1), fraction={self.fraction} (above 0, to 1),"
                f" every={self.every} (at least 1)"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeRecipe:
    """When a run goes back, and how far: PaLM's way (arXiv 2204.02311, section 5.1), without a person.

    A step is wrong when its loss, or the logarithm of its gradient norm, lies more than `deviations` robust standard
    deviations above the last `window` steps. `patience` wrong steps in a row are a spike: the run goes back to where it
    was `rollback_steps` before the first of them, and trains on no batch from there to `skipped_after` behind the last.
    """

    deviations: float = 0.0  # 0: nobody looks
    window: int = 128  # steps
    patience: int = 2  # steps in a row
    rollback_steps: int = 100
    skipped_after: int = 100  # steps; with those before, PaLM's 200 batches at the least
    max_rollbacks: int = 3  # one more spike stops the run

    def __post_init__(self) -> None:
        if min(self.deviations, self.skipped_after, self.max_rollbacks) < 0:
            raise RecipeError(
                f"pretrain.spikes: deviations={self.deviations}, skipped_after={self.skipped_after},"
                f" max_rollbacks={self.max_rollbacks}; none may be negative"
            )
        if self.window < 8 or self.patience < 1 or self.rollback_steps < 1:
            raise RecipeError(
                f"pretrain.spikes: window={self.window} (at least 8), patience={self.patience} and"
                f" rollback_steps={self.rollback_steps} (at least 1)"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class DistillRecipe:
    """A teacher whose probabilities the model learns beside the text (arXiv 1503.02531); none without `teacher`.

    The loss is (1 - weight) times that of the next token plus weight · temperature² times the Kullback-Leibler
    divergence of the model's softened probabilities from the teacher's.
    """

    teacher: str = ""  # made://base_model/RECIPE, or the folder of an artifact or model; with the same tokenizer
    temperature: float = 1.0
    weight: float = 0.5

    def __post_init__(self) -> None:
        if self.temperature <= 0 or not 0 < self.weight <= 1:
            raise RecipeError(
                f"pretrain.distill: temperature={self.temperature} must be above 0, weight={self.weight} above 0, to 1"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPhase:
    """A stretch of training in rows of one length and batches of one size."""

    tokens: int
    sequence_length: int
    global_batch_tokens: int

    def __post_init__(self) -> None:
        if self.global_batch_tokens % self.sequence_length:
            raise RecipeError(
                f"global_batch_tokens={self.global_batch_tokens} is not a multiple of "
                f"sequence_length={self.sequence_length}"
            )
        if self.tokens < self.global_batch_tokens:
            raise RecipeError(f"tokens={self.tokens} is less than one batch of {self.global_batch_tokens}")

    @property
    def steps(self) -> int:
        """Whole batches within its tokens."""
        return self.tokens // self.global_batch_tokens

    @property
    def rows(self) -> int:
        """Rows in a batch."""
        return self.global_batch_tokens // self.sequence_length


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainRecipe:
    """How the base model is trained."""

    tokens: int  # the whole budget
    sequence_length: int
    global_batch_tokens: int
    batch_warmup: tuple[BatchPhase, ...] = ()  # before the rest, in shorter rows or smaller batches; of the budget
    packing: Literal["end_to_end", "best_fit"] = "end_to_end"  # best_fit cuts no document that fits a row
    objective: ObjectiveRecipe = field(default_factory=ObjectiveRecipe)
    distill: DistillRecipe = field(default_factory=DistillRecipe)
    optimizer: Literal["adamw", "muon", "adafactor", "lion", "sgd"] = "adamw"
    learning_rate: float = 3e-3  # under Muon that of embeddings, norms, routers and head, which are AdamW's
    muon_learning_rate: float = 0.02
    beta1: float = 0.9  # AdamW, Lion
    beta2: float = 0.95  # AdamW, Lion (whose paper takes 0.99)
    momentum: float = 0.9  # SGD
    weight_decay: float = 0.1  # of matrices; norm gains never decay
    decay_embeddings: bool = True
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"
    warmup_fraction: float = 0.02
    decay_fraction: float = 0.2  # wsd: the share of steps over which the rate falls
    final_learning_rate_fraction: float = 0.1
    gradient_clip: float = 1.0
    average: AverageRecipe = field(default_factory=AverageRecipe)
    z_loss: float = 0.0  # weight of log²Z, which keeps logits from drifting; PaLM took 1e-4 (arXiv 2204.02311)
    precision: Literal["bf16", "fp32", "fp8"] = "bf16"  # fp8: the layers' products, on GPUs that gain by it
    zero_init_outputs: bool = True
    max_skipped_steps: int = 3  # steps in a row with a gradient that is not finite, also when made once more
    spikes: SpikeRecipe = field(default_factory=SpikeRecipe)
    min_loss_fall: float = 0.1  # gate, nats per token from start to end
    seed: int = 0

    def __post_init__(self) -> None:
        if self.global_batch_tokens % self.sequence_length:
            raise RecipeError(
                f"pretrain.global_batch_tokens={self.global_batch_tokens} is not a multiple of "
                f"sequence_length={self.sequence_length}"
            )
        if self.distill.teacher and (self.z_loss or not self.objective.is_causal):
            raise RecipeError(
                f"pretrain.distill: not with objective {self.objective.kind} and z_loss={self.z_loss}; a teacher says"
                " the next token, and its probabilities keep the logits where they are"
            )
        warmup = self.tokens - self._tokens_left
        if self._tokens_left < self.global_batch_tokens:
            after = f" after {warmup} tokens of batch_warmup" if warmup else ""
            raise RecipeError(
                f"pretrain.tokens={self.tokens} leaves less than one batch of {self.global_batch_tokens}{after}"
            )
        longest = max((phase.sequence_length for phase in self.batch_warmup), default=0)
        if longest > self.sequence_length:
            raise RecipeError(
                f"pretrain.batch_warmup: sequence_length={longest} is longer than the one it leads to,"
                f" {self.sequence_length}"
            )
        lengths = sorted({phase.sequence_length for phase in self.phases})
        if self.packing == "best_fit" and len(lengths) > 1:
            raise RecipeError(
                f"pretrain.packing: best_fit packs rows of one length, batch_warmup has {lengths}; give its phases"
                f" sequence_length={self.sequence_length}, or pack end_to_end"
            )

    @property
    def _tokens_left(self) -> int:
        """Of the budget, after the warmup."""
        return self.tokens - sum(phase.steps * phase.global_batch_tokens for phase in self.batch_warmup)

    @property
    def phases(self) -> tuple[BatchPhase, ...]:
        """The warmup's stretches and the rest."""
        rest = BatchPhase(
            tokens=self._tokens_left,
            sequence_length=self.sequence_length,
            global_batch_tokens=self.global_batch_tokens,
        )
        return (*self.batch_warmup, rest)

    @property
    def steps(self) -> int:
        """Optimizer steps: whole batches within the budget."""
        return sum(phase.steps for phase in self.phases)

    @property
    def step_tokens(self) -> int:
        """Tokens in all steps: the budget less what makes no whole batch."""
        return sum(phase.steps * phase.global_batch_tokens for phase in self.phases)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSourceRecipe:
    """Rows for post-training: a URI and how its columns become messages or preference pairs (`format`)."""

    uri: str
    format: Literal[
        "messages", "prompt_answer", "question_answer", "instances", "dialogue_tree", "chosen_rejected", "hh"
    ] = "messages"
    prompt_field: str = "prompt"
    answer_field: str = "answer"
    limit: int = 0
    generator: str = ""  # who wrote the answers, where the rows do not say


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraRecipe:
    """Low-rank adapters (arXiv 2106.09685), merged into the weights after training. rank 0 trains every weight."""

    rank: int = 0
    alpha: int = 16
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SftRecipe:
    """Supervised fine-tuning with loss on assistant tokens only. `trl` passes further SFTConfig fields through."""

    data: tuple[TextSourceRecipe, ...]
    chat_template: str = "pedigree"
    system_prompt: str = ""
    epochs: float = 2.0
    learning_rate: float = 5e-4
    batch_size: int = 32  # conversations
    max_length: int = 256
    warmup_fraction: float = 0.05
    precision: Literal["bf16", "fp32"] = "bf16"  # of the products; weights and optimizer are fp32
    lora: LoraRecipe = field(default_factory=LoraRecipe)
    trl: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferencesRecipe:
    """Prompts with a chosen and a rejected answer."""

    data: tuple[TextSourceRecipe, ...]
    held_out_fraction: float = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardRecipe:
    """A reward model trained on the preferences (Bradley-Terry)."""

    epochs: float = 1.0
    learning_rate: float = 2e-4
    batch_size: int = 32
    max_length: int = 256
    precision: Literal["bf16", "fp32"] = "bf16"
    min_pair_accuracy: float = 0.6  # gate on held-out pairs
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignRecipe:
    """Alignment: `dpo` on the preferences, or `grpo` / `rloo` against the reward model and verifiable rewards."""

    method: Literal["dpo", "grpo", "rloo"] = "dpo"
    learning_rate: float = 5e-5
    beta: float = 0.1
    epochs: float = 1.0
    batch_size: int = 32
    max_length: int = 256
    prompts: str = ""  # URI of prompts for RL; empty: the preference prompts
    max_steps: int = 0  # RL: optimizer steps; 0: by epochs
    num_generations: int = 8
    max_new_tokens: int = 32
    verifiable_reward_weight: float = 0.0  # share of the reward that checks the answer itself
    precision: Literal["bf16", "fp32"] = "bf16"
    lora: LoraRecipe = field(default_factory=LoraRecipe)
    trl: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method == "dpo":
            for name, unset in (("prompts", ""), ("max_steps", 0), ("verifiable_reward_weight", 0.0)):
                if getattr(self, name) != unset:
                    raise RecipeError(
                        f"align.{name}={getattr(self, name)!r} has no effect with method dpo;"
                        " remove it, or use grpo or rloo"
                    )
        elif self.batch_size % self.num_generations:
            raise RecipeError(
                f"align.batch_size={self.batch_size} answers a step,"
                f" not a multiple of num_generations={self.num_generations}"
            )
        if not 0 <= self.verifiable_reward_weight <= 1:
            raise RecipeError(f"align.verifiable_reward_weight={self.verifiable_reward_weight} must be between 0 and 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class LongContextRecipe:
    """Training that goes on from the base model in longer rows; none when `tokens` is 0.

    What is not here is as in `pretrain`. Afterwards sentences hidden in held-out text are asked for (needles), and
    held-out bits per byte at the base model's length are compared with what they were before.
    """

    tokens: int = 0  # the whole budget; 0: the base model is not trained on
    sequence_length: int = 0
    global_batch_tokens: int = 0
    rope_theta: float = 0.0  # 0: as `model`
    rope_scaling: RotaryScaling = field(default_factory=RotaryScaling)  # none: as `model`
    across_documents: bool = False  # the documents of a row are one text, and see each other
    learning_rate: float = 0.0  # 0: as `pretrain`
    muon_learning_rate: float = 0.0
    min_loss_fall: float = -0.1  # gate, nats per token: what was learned before may stay where it was
    max_short_rise: float = 0.02  # gate: share by which bits per byte at the base model's length may rise
    needles: int = 8  # hidden sentences at each depth
    needle_depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)  # 0: at the beginning
    needle_choices: int = 5  # values to choose from, the hidden one included
    min_needle_score: float = 0.5  # gate: share of needles found at the new length
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens and min(self.sequence_length, self.global_batch_tokens) < 1:
            raise RecipeError(
                f"long_context: tokens={self.tokens} needs sequence_length={self.sequence_length} and"
                f" global_batch_tokens={self.global_batch_tokens} of at least 1"
            )
        if min(self.needles, self.needle_choices - 1, len(self.needle_depths)) < 1:
            raise RecipeError(
                f"long_context: needles={self.needles} (at least 1), needle_choices={self.needle_choices} (at least 2),"
                f" needle_depths={list(self.needle_depths)} (at least one)"
            )
        if not all(0 <= depth <= 1 for depth in self.needle_depths):
            raise RecipeError(f"long_context.needle_depths={list(self.needle_depths)}; from 0 (beginning) to 1 (end)")


# Text that a model writes


GeneratorAsset = Literal["base_model", "long_context_model", "sft_model", "aligned_model"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SynthesisRecipe:
    """Text that a model of this recipe writes, for other recipes to train on; none without `prompts`."""

    prompts: str = ""  # URI of rows with a text in `prompt_field`; empty: nothing is written
    prompt_field: str = "prompt"
    prompt_words: int = 0  # only so many words of it; 0: all
    template: str = "{prompt}"  # what is asked; {prompt} stands for the row's text
    limit: int = 0  # prompts; 0: all
    generator: GeneratorAsset = "base_model"
    texts_per_prompt: int = 1
    temperature: float = 0.8  # 0: the likeliest token
    top_p: float = 1.0  # below 1: only from the likeliest tokens that together have that probability
    max_new_tokens: int = 128
    batch_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if "{prompt}" not in self.template:
            raise RecipeError(f"synthesis.template={self.template!r}; it must hold {{prompt}}")
        if min(self.prompt_words, self.limit, self.temperature) < 0 or not 0 < self.top_p <= 1:
            raise RecipeError(
                f"synthesis: prompt_words={self.prompt_words}, limit={self.limit} and temperature={self.temperature}"
                f" may not be negative; top_p={self.top_p} must be above 0, to 1"
            )
        if min(self.texts_per_prompt, self.max_new_tokens, self.batch_size) < 1:
            raise RecipeError(
                f"synthesis: texts_per_prompt={self.texts_per_prompt}, max_new_tokens={self.max_new_tokens} and"
                f" batch_size={self.batch_size} must be at least 1"
            )


# Judgement


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRecipe:
    """Which exams are sat, and how."""

    suites: tuple[BenchmarkRecipe, ...]
    batch_size: int = 32
    max_contaminated_fraction: float = 0.0  # of a benchmark's items found in training data; above it the gate refuses
    alignment_prompts: str = ""  # URI of held-out prompts whose sampled answers get the true reward
    alignment_temperature: float = 0.7
    alignment_max_new_tokens: int = 64
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PromoteRecipe:
    """Under which conditions the champion alias moves."""

    model_name: str
    min_scores: dict[str, float] = field(default_factory=dict)  # suite: score of the aligned model, 0 to 1
    max_score_drop: float = 0.05  # against the present champion, on any suite
    require_clean: bool = True

    def __post_init__(self) -> None:
        check_model_name(self.model_name, "promote.model_name")


@dataclass(frozen=True, kw_only=True, slots=True)
class AutomationRecipe:
    """What the sensor and the schedule may rebuild of this recipe without a person. In no fingerprint, not inherited.

    `corpus`: the assets of that group. `all`: every asset, and the promotion only with `promote`.
    """

    rebuild: Literal["none", "corpus", "all"] = "none"
    promote: bool = False
    node_hours_per_day: float = 0.0  # the budget: what automation's runs may take in any 24 hours

    def __post_init__(self) -> None:
        if self.promote and self.rebuild != "all":
            raise RecipeError(f"automation.promote: true needs rebuild: all, got rebuild: {self.rebuild}")
        if not 0 <= self.node_hours_per_day < float("inf"):
            raise RecipeError(f"automation.node_hours_per_day={self.node_hours_per_day}; it must be 0 or more")
        if self.rebuild == "none" and self.node_hours_per_day:
            raise RecipeError("automation.node_hours_per_day: rebuild: none takes no node-hours; leave the budget at 0")
        if self.rebuild != "none" and not self.node_hours_per_day:
            raise RecipeError(f"automation.rebuild: {self.rebuild} needs a budget; set automation.node_hours_per_day")


@dataclass(frozen=True, kw_only=True, slots=True)
class RungRecipe:
    """One small model of a scaling ladder: where it differs from the recipe's own."""

    name: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp_width: int
    tokens: int
    global_batch_tokens: int = 0  # 0: as `pretrain`
    learning_rate: float = 0.0  # 0: as `pretrain`
    muon_learning_rate: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderRecipe:
    """Small models on the recipe's data, from which the loss of larger ones is foretold (arXiv 2203.15556)."""

    rungs: tuple[RungRecipe, ...] = ()
    bootstrap: int = 200  # resamplings of the rungs behind each interval
    seed: int = 0

    def __post_init__(self) -> None:
        names = [rung.name for rung in self.rungs]
        for name in names:
            check_name(name, "ladder.rungs: name")
        if len(set(names)) != len(names):
            raise RecipeError(f"ladder.rungs: names must be different, got {', '.join(names)}")
        if 0 < len(names) < MIN_RUNGS:
            raise RecipeError(f"ladder.rungs: {len(names)} of them; a fit of five numbers needs at least {MIN_RUNGS}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DoremiRecipe:
    """Weights of the sources found by two small models, in place of `mixture.weights` (DoReMi, arXiv 2305.10429).

    The reference is trained on `mixture.weights`; the proxy, as large and as long, shows where there is most to gain.
    """

    tokens: int = 0  # of either model; 0: the recipe's weights are taken as they are
    width: int = 0  # 0, here and in the next seven: as `model` or `pretrain`
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    mlp_width: int = 0
    global_batch_tokens: int = 0
    learning_rate: float = 0.0
    muon_learning_rate: float = 0.0
    step_size: float = 1.0  # of the weights, the paper's η
    smoothing: float = 1e-3  # towards equal weights, the paper's c
    seed: int = 1  # of the proxy's weights and of its order of documents

    def __post_init__(self) -> None:
        if self.step_size <= 0 or not 0 <= self.smoothing < 1:
            raise RecipeError(
                f"doremi: step_size={self.step_size} must be above 0, smoothing={self.smoothing} from 0 and below 1"
            )


# Sections that say what else is made of a recipe's own model; a recipe derived from another has none of them.
OF_ONE_MODEL = {"ladder": LadderRecipe(), "long_context": LongContextRecipe(), "synthesis": SynthesisRecipe()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A whole run, from crawl to promotion."""

    name: str
    description: str = ""
    kitchen: KitchenWorld = field(default_factory=KitchenWorld)
    snapshots: tuple[SnapshotRecipe, ...]
    extract: ExtractRecipe = field(default_factory=ExtractRecipe)
    quality: QualityRecipe = field(default_factory=QualityRecipe)
    filter: FilterRecipe = field(default_factory=FilterRecipe)
    dedup: DedupRecipe = field(default_factory=DedupRecipe)
    decontaminate: DecontaminateRecipe = field(default_factory=DecontaminateRecipe)
    tokenizer: TokenizerRecipe
    shards: ShardsRecipe = field(default_factory=ShardsRecipe)
    mixture: MixtureRecipe = field(default_factory=MixtureRecipe)
    model: ModelRecipe
    pretrain: PretrainRecipe
    sft: SftRecipe
    preferences: PreferencesRecipe
    reward: RewardRecipe = field(default_factory=RewardRecipe)
    align: AlignRecipe = field(default_factory=AlignRecipe)
    evaluation: EvaluationRecipe
    promote: PromoteRecipe
    ladder: LadderRecipe = field(default_factory=LadderRecipe)
    doremi: DoremiRecipe = field(default_factory=DoremiRecipe)
    synthesis: SynthesisRecipe = field(default_factory=SynthesisRecipe)
    long_context: LongContextRecipe = field(default_factory=LongContextRecipe)
    automation: AutomationRecipe = field(default_factory=AutomationRecipe)

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        names = [snapshot.name for snapshot in self.snapshots]
        if not names or len(set(names)) != len(names):
            raise RecipeError(f"snapshots: names must be present and different, got {names}")
        for where, wanted in (
            ("tokenizer.snapshots", self.tokenizer.snapshots),
            ("quality.snapshots", self.quality.snapshots),
        ):
            for name in wanted:
                if name not in names:
                    raise RecipeError(f"{where}: {name!r} is not a snapshot of this recipe; it has {', '.join(names)}")
        if self.pretrain.sequence_length > self.model.max_length:
            raise RecipeError(
                f"pretrain.sequence_length={self.pretrain.sequence_length} is longer than "
                f"model.max_length={self.model.max_length}"
            )
        missing = set(self.pretrain.objective.special_tokens()) - set(self.tokenizer.special_tokens)
        if missing:
            raise RecipeError(
                f"tokenizer.special_tokens: pretrain.objective {self.pretrain.objective.kind} needs"
                f" {', '.join(sorted(missing))}"
            )
        self._check_buckets()
        self._check_later_stages()
        self._check_long_context()
        for rung in self.ladder.rungs:
            self.on_rung(rung.name)  # checks itself
        if self.doremi.tokens:
            self._check_doremi()

    def _check_doremi(self) -> None:
        if self.pretrain.objective.kind != "causal":
            raise RecipeError(f"doremi: compares next tokens; pretrain.objective is {self.pretrain.objective.kind}")
        self.as_reference()  # checks itself

    def _check_buckets(self) -> None:
        rule = {"none": "", "perplexity": "perplexity", "quality": "classifier"}[self.shards.buckets]
        if rule and rule not in self.filter.rules:
            raise RecipeError(
                f"shards.buckets: {self.shards.buckets} needs {rule!r} in filter.rules, which scores pages"
            )

    def _check_later_stages(self) -> None:
        """Post-training and evaluation load the model by a class of transformers, so there must be one that is it."""
        shape, objective = self.model.shape(vocab_size=self.tokenizer.vocabulary), self.pretrain.objective
        reasons = (*shape.inexpressible(), *objective.inexpressible())
        if reasons:
            raise RecipeError(
                "model: post-training and evaluation load it as transformers' Llama, Qwen3 or Qwen3-MoE, none of which"
                f" has: {'; '.join(reasons)}"
            )

    def _check_long_context(self) -> None:
        if self.synthesis.generator == "long_context_model" and not self.long_context.tokens:
            raise RecipeError("synthesis.generator: there is no long_context_model; set long_context.tokens")
        if not self.long_context.tokens:
            return
        if self.long_context.sequence_length <= self.pretrain.sequence_length:
            raise RecipeError(
                f"long_context.sequence_length={self.long_context.sequence_length}; it must be longer than"
                f" pretrain.sequence_length={self.pretrain.sequence_length}"
            )
        if not self.pretrain.objective.is_causal:
            raise RecipeError(f"long_context: pretrain.objective {self.pretrain.objective.kind} hears no questions")
        self.in_long_context()  # checks itself

    def in_long_context(self) -> Recipe:
        """This recipe with the model and budget of its long-context stage."""
        given, model, phases = self.long_context, self.model, self.mixture.phases
        scaling = model.rope_scaling if given.rope_scaling.kind == "none" else given.rope_scaling
        rates = ("learning_rate", "muon_learning_rate")
        changes: dict[str, Any] = {
            "model": {
                "max_length": max(model.max_length, given.sequence_length),
                "rope_theta": given.rope_theta or model.rope_theta,
                "rope_scaling": scaling,
            },
            "mixture": {"weights": phases[-1].weights, "phases": ()} if phases else {},
            "pretrain": {
                "tokens": given.tokens,
                "sequence_length": given.sequence_length,
                "global_batch_tokens": given.global_batch_tokens,
                "batch_warmup": (),
                "objective": {"across_documents": given.across_documents},
                "distill": DistillRecipe(),
                "min_loss_fall": given.min_loss_fall,
                "seed": given.seed,
                **{rate: getattr(given, rate) for rate in rates if getattr(given, rate)},
            },
        }
        return varied(self, {**changes, **OF_ONE_MODEL, "doremi": DoremiRecipe()})

    def snapshot(self, name: str) -> SnapshotRecipe:
        """The snapshot called `name`; RecipeError names those there are."""
        for snapshot in self.snapshots:
            if snapshot.name == name:
                return snapshot
        raise RecipeError(f"{self.name} has no snapshot {name!r}; it has {', '.join(s.name for s in self.snapshots)}")

    def on_rung(self, name: str) -> Recipe:
        """This recipe with the model and budget of one rung of its ladder. KeyError when there is none of that name."""
        return varied(self, self._smaller({one.name: one for one in self.ladder.rungs}[name]))

    def as_reference(self) -> Recipe:
        """This recipe with the model and budget of DoReMi's reference, on the mixture that it begins with."""
        plain = varied(
            self,
            {
                "model": {"experts": ExpertLayers()},
                "mixture": {"phases": ()},
                "pretrain": {"batch_warmup": (), "distill": DistillRecipe()},
                "doremi": DoremiRecipe(),
            },
        )
        return varied(plain, plain._smaller(self.doremi))

    def _smaller(self, one: RungRecipe | DoremiRecipe) -> dict[str, Any]:
        """The changes that make this a recipe of a smaller model: another shape and budget.

        A smaller model warms its batch up over the same share of its budget; a phase of less than a batch is left out.
        It is trained in bf16 where this recipe's is in fp8, which is no faster for small models.
        """
        shape = ("width", "layers", "heads", "kv_heads", "mlp_width")
        rates = ("global_batch_tokens", "learning_rate", "muon_learning_rate")
        shaped, given = ({name: getattr(one, name) for name in names if getattr(one, name)} for names in (shape, rates))
        shares = [(phase, phase.tokens * one.tokens // self.pretrain.tokens) for phase in self.pretrain.batch_warmup]
        warmup = tuple(replace(phase, tokens=n) for phase, n in shares if n >= phase.global_batch_tokens)
        precision = "bf16" if self.pretrain.precision == "fp8" else self.pretrain.precision
        pretrain = {"tokens": one.tokens, "batch_warmup": warmup, "precision": precision, **given}
        return {"model": shaped, "pretrain": pretrain, **OF_ONE_MODEL}


# The join of recipe and profile


def micro_batches_in(
    *, global_batch_tokens: int, sequence_length: int, micro_batch_tokens: int, data_parallel: int
) -> int:
    """Micro-batches that make up a global batch; 0 `micro_batch_tokens` means one for each `data_parallel` process.

    The global batch and the length are the recipe's and fix the result; the other two are the profile's and fix only
    how it is spread over the machine. Processes may take unequal numbers of them. Raises RecipeError when they do not
    make up the batch, because rounding would train a different model than the recipe names, or when a process would
    have none.
    """
    if data_parallel < 1:
        raise RecipeError(f"{data_parallel} processes take rows; it must be at least 1")
    if not micro_batch_tokens and global_batch_tokens % data_parallel:
        raise RecipeError(
            f"global_batch_tokens={global_batch_tokens} is not a multiple of data_parallel={data_parallel}, and"
            " micro_batch_tokens=0 wants one micro-batch a process; name its tokens"
        )
    wanted = micro_batch_tokens or global_batch_tokens // data_parallel
    if wanted % sequence_length or not wanted:
        raise RecipeError(f"micro_batch_tokens={wanted} is not a multiple of sequence_length={sequence_length}")
    count, remainder = divmod(global_batch_tokens, wanted)
    if remainder or count == 0:
        raise RecipeError(f"global_batch_tokens={global_batch_tokens} is not a multiple of micro_batch_tokens={wanted}")
    if count < data_parallel:
        raise RecipeError(
            f"global_batch_tokens={global_batch_tokens} / micro_batch_tokens={wanted} = {count} micro-batches for"
            f" {data_parallel} processes that take rows; lower micro_batch_tokens to"
            f" {global_batch_tokens // data_parallel} or less"
        )
    return count


def recipe_as_data(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe as plain data, every field present; `read_record(Recipe, …)` reads it back."""
    return write_record(recipe)

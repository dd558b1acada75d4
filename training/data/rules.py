"""The rules that decide which pages go on, each made from the recipe once a process and asked page by page.

Gopher, C4 and FineWeb are datatrove's own blocks, called in this process, so that the decisions are the reference's. A
rule returns why the page goes ("" when it stays) and may write on the page: language, scores, an edited text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urlsplit

from training.data import language, personal_data, toxicity
from training.data.quality import QualityModels
from training.recipe import FilterRecipe
from training.records import RecipeError


@dataclass(slots=True)
class Page:
    """One document on its way through the rules. `text` and `columns` are what the document will be written with."""

    text: str
    url: str
    columns: dict[str, Any]
    redactions: dict[str, int] = field(default_factory=dict)

    @property
    def language(self) -> str:
        """Language code, "" when unknown."""
        return self.columns.get("language") or ""


Rule = Callable[[Page], str]

KEPT = ""

COLUMNS_OF_RULE = {
    "classifier": ("quality_score",),
    "perplexity": ("perplexity", "perplexity_bucket"),
    "toxicity": ("toxicity",),
    "personal_data": ("redactions",),
}
"""Columns that a rule adds to a document beside those that every document has."""


def make_rules(recipe: FilterRecipe, models: QualityModels | None) -> tuple[tuple[str, Rule], ...]:
    """(name, rule) in the recipe's order. RecipeError for a rule that needs the models when there are none."""
    makers: dict[str, Callable[[], Rule]] = {
        "url": lambda: url_rule(recipe),
        "language": lambda: language_rule(recipe),
        "gopher_repetition": lambda: _block_rule(recipe, _gopher_repetition, _REPETITION_REASONS),
        "gopher_quality": lambda: _block_rule(recipe, _gopher_quality, _QUALITY_REASONS),
        "c4": lambda: _block_rule(recipe, _c4, {}),
        "fineweb": lambda: _block_rule(recipe, _fineweb, _FINEWEB_REASONS),
        "classifier": lambda: classifier_rule(recipe, _present(models, "classifier")),
        "perplexity": lambda: perplexity_rule(recipe, _present(models, "perplexity")),
        "toxicity": lambda: toxicity_rule(recipe),
        "personal_data": lambda: personal_data_rule(recipe),
    }
    return tuple((name, makers[name]()) for name in recipe.rules)


def _present(models: QualityModels | None, rule: str) -> QualityModels:
    if models is None:
        raise RecipeError(
            f"filter.rules: {rule!r} needs the quality models, but quality.reference is empty; name reference texts"
            f" there (and quality.snapshots), or leave {rule!r} out"
        )
    return models


# Address


def url_rule(recipe: FilterRecipe) -> Rule:
    """Drops pages of blocked domains and their subdomains, and blocked addresses: equal, or below one ending in /."""
    domains = frozenset(domain.lower().removeprefix("www.").strip(".") for domain in recipe.blocked_domains)
    addresses = frozenset(map(_plain_url, recipe.blocked_urls))
    folders = tuple(sorted(address for address in addresses if address.endswith("/")))

    def rule(page: Page) -> str:
        host = (urlsplit(page.url).hostname or "") if _has_host(page.url) else ""
        labels = host.lower().strip(".").split(".")
        if any(".".join(labels[i:]) in domains for i in range(len(labels))):
            return "blocked_domain"
        plain = _plain_url(page.url)
        return "blocked_url" if plain in addresses or (folders and plain.startswith(folders)) else KEPT

    return rule


def _has_host(url: str) -> bool:
    try:
        return urlsplit(url).hostname is not None
    except ValueError:  # "http://[broken": an address that cannot be read is in no list
        return False


def _plain_url(url: str) -> str:
    """An address without scheme, `www.` and fragment: what stays the same between two ways to write it."""
    rest = url.partition("#")[0].partition("://")[2] or url.partition("#")[0]
    return rest.removeprefix("www.")


# Language


def language_rule(recipe: FilterRecipe) -> Rule:
    """Writes language and score; drops pages of other languages and those whose language is not certain enough.

    With no language named every language stays, but must be certain.
    """
    wanted = frozenset(recipe.languages)

    def rule(page: Page) -> str:
        code, score = language.identify(page.text)
        page.columns["language"], page.columns["language_score"] = code, score
        if wanted and code not in wanted:
            return "other_language"
        return KEPT if score >= recipe.min_language_score else "uncertain"

    return rule


# datatrove's blocks

_REPETITION_REASONS = {
    "dup_para_frac": "duplicate_paragraphs",
    "dup_para_char_frac": "duplicate_paragraph_characters",
    "dup_line_frac": "duplicate_lines",
    "dup_line_char_frac": "duplicate_line_characters",
} | {f"duplicated_{n}_n_grams": f"duplicate_{n}_grams" for n in range(5, 11)}

_QUALITY_REASONS = {
    "gopher_short_doc": "too_few_words",
    "gopher_long_doc": "too_many_words",
    "gopher_below_avg_threshold": "words_too_short",
    "gopher_above_avg_threshold": "words_too_long",
    "gopher_too_many_hashes": "too_many_hashes",
    "gopher_too_many_ellipsis": "too_many_ellipses",
    "gopher_too_many_bullets": "too_many_bullets",
    "gopher_too_many_end_ellipsis": "too_many_lines_end_in_ellipsis",
    "gopher_below_alpha_threshold": "too_few_alphabetic_words",
    "gopher_enough_stop_words": "too_few_stop_words",
}

_FINEWEB_REASONS = {
    "line_punct_ratio": "too_few_lines_end_in_punctuation",
    "short_line_ratio": "too_many_short_lines",
    "char_dup_ratio": "duplicate_line_characters",
    "list_ratio": "too_many_line_breaks",
}


def _block_rule(recipe: FilterRecipe, make: Callable[[FilterRecipe, str], Any], reasons: dict[str, str]) -> Rule:
    """A rule that asks datatrove's block for the page's language; it may edit the text, as C4 does."""
    blocks: dict[str, Any] = {}
    fallback = recipe.languages[0] if recipe.languages else "en"

    def rule(page: Page) -> str:
        from datatrove.data import Document

        if not page.text.strip():
            return "empty"
        code = page.language if page.language in recipe.languages or not recipe.languages else fallback
        if code not in blocks:
            check_words_can_be_told(code)
            blocks[code] = make(recipe, code)
        document = Document(text=page.text, id="")
        answer = blocks[code].filter(document)
        kept, reason = answer if isinstance(answer, tuple) else (answer, "")
        if kept:
            page.text = document.text
            return KEPT
        return reasons.get(reason, reason)

    return rule


@cache
def check_words_can_be_told(code: str) -> None:
    """RecipeError when datatrove has no word tokenizer for a language, or one whose library is not installed."""
    from datatrove.utils.word_tokenizers import load_word_tokenizer

    try:
        load_word_tokenizer(code).word_tokenize("a b")
    except (ValueError, ImportError) as error:
        raise RecipeError(
            f"filter.languages: {code!r} cannot be split into words here, which gopher, c4 and fineweb need"
            f" ({' '.join(str(error).split())}); leave the language or those rules out"
        ) from None


@lru_cache(maxsize=1)
def stop_words() -> dict[str, tuple[str, ...]]:
    """Per language the words of the stop-word test."""
    entries = (line.partition(":") for line in toxicity.read_list(toxicity.LISTS / "stop_words.txt"))
    return {code.strip(): tuple(words.split()) for code, _, words in entries}


def _gopher_repetition(recipe: FilterRecipe, code: str) -> Any:
    from datatrove.pipeline.filters import GopherRepetitionFilter

    return GopherRepetitionFilter(
        dup_line_frac=recipe.gopher_max_duplicate_lines,
        dup_para_frac=recipe.gopher_max_duplicate_paragraphs,
        dup_line_char_frac=recipe.gopher_max_duplicate_line_characters,
        dup_para_char_frac=recipe.gopher_max_duplicate_paragraph_characters,
        top_n_grams=tuple(enumerate(recipe.gopher_max_top_ngrams, 2)),
        dup_n_grams=tuple(enumerate(recipe.gopher_max_duplicate_ngrams, 5)),
        language=code,
    )


def _gopher_quality(recipe: FilterRecipe, code: str) -> Any:
    from datatrove.pipeline.filters import GopherQualityFilter

    words = stop_words().get(code)
    return GopherQualityFilter(
        min_doc_words=recipe.gopher_min_words,
        max_doc_words=recipe.gopher_max_words,
        min_avg_word_length=recipe.gopher_min_mean_word_length,
        max_avg_word_length=recipe.gopher_max_mean_word_length,
        max_symbol_word_ratio=recipe.gopher_max_symbol_ratio,
        max_bullet_lines_ratio=recipe.gopher_max_bullet_fraction,
        max_ellipsis_lines_ratio=recipe.gopher_max_ellipsis_fraction,
        max_non_alpha_words_ratio=recipe.gopher_min_alphabetic_fraction,
        # the test is skipped for a language whose stop words are not listed: English ones would drop every page
        min_stop_words=recipe.gopher_min_stop_words if words else None,
        stop_words=list(words or ()),
        language=code,
    )


def _c4(recipe: FilterRecipe, code: str) -> Any:
    from datatrove.pipeline.filters import C4QualityFilter

    return C4QualityFilter(
        filter_no_terminal_punct=recipe.c4_lines_end_with_punctuation,
        min_num_sentences=recipe.c4_min_sentences,
        min_words_per_line=recipe.c4_min_words_per_line,
        filter_javascript=recipe.c4_drop_javascript_lines,
        filter_curly_bracket=recipe.c4_drop_curly_brackets,
        filter_policy=recipe.c4_drop_policy_lines,
        language=code,
    )


def _fineweb(recipe: FilterRecipe, code: str) -> Any:
    from datatrove.pipeline.filters import FineWebQualityFilter

    return FineWebQualityFilter(
        line_punct_thr=recipe.fineweb_min_line_punctuation,
        short_line_thr=recipe.fineweb_max_short_lines,
        char_duplicates_ratio=recipe.fineweb_max_duplicate_characters,
        new_line_ratio=recipe.fineweb_max_newline_ratio,
        language=code,
    )


# Models of this pipeline


def classifier_rule(recipe: FilterRecipe, models: QualityModels) -> Rule:
    """Writes the quality score; drops pages below the recipe's."""

    def rule(page: Page) -> str:
        score = page.columns["quality_score"] = models.classifier.score(page.text)
        return KEPT if score >= recipe.min_quality_score else "low_score"

    return rule


def perplexity_rule(recipe: FilterRecipe, models: QualityModels) -> Rule:
    """Writes perplexity and bucket; drops pages above the recipe's limit when it has one."""

    def rule(page: Page) -> str:
        value = models.ngram.perplexity(page.text)
        page.columns["perplexity"], page.columns["perplexity_bucket"] = value, models.bucket(value)
        return "too_high" if 0 < recipe.max_perplexity < value else KEPT

    return rule


def toxicity_rule(recipe: FilterRecipe) -> Rule:
    """Writes the share of toxic words; drops pages above the recipe's, and those whose address says what they are."""

    def rule(page: Page) -> str:
        share = page.columns["toxicity"] = toxicity.toxic_fraction(page.text, page.language)
        if toxicity.is_toxic_url(page.url):
            return "url"
        return "toxic_words" if share > recipe.max_toxic_word_fraction else KEPT

    return rule


def personal_data_rule(recipe: FilterRecipe) -> Rule:
    """Replaces personal data by placeholders; drops nothing."""

    def rule(page: Page) -> str:
        page.text, page.redactions = personal_data.redact(page.text, recipe.personal_data)
        return KEPT

    return rule

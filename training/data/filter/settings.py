"""The section `filter`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.records import RecipeError, Uri, formerly

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
    # a line with fewer words is dropped; None: none is; FineWeb has 3, the code that made C4 5
    c4_min_words_per_line: int | None = formerly(-1)
    c4_lines_end_with_punctuation: bool = False  # C4 drops all other lines; FineWeb does not
    c4_drop_javascript_lines: bool = True
    c4_drop_policy_lines: bool = True  # "terms of use", "uses cookies" …
    c4_drop_curly_brackets: bool = True  # the whole page: false where code is wanted
    c4_drop_lorem_ipsum: bool = True  # the whole page; references of template languages name it too
    c4_drop_citations: bool = True  # "[1]", "[edit]", out of their line; in code r[1] is no citation
    c4_max_word_length: int = 1000  # characters; a line with a longer word goes; 0: no limit
    c4_bad_words: Uri = ""  # a list; a page with one of its words goes; "": no list
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
    max_perplexity: float | None = formerly(0.0)  # None: buckets are recorded, nothing is dropped
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

"""datatrove's own heuristic filter blocks with a recipe's thresholds, to compare this project's rules with."""

from __future__ import annotations

from functools import cache
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)

from training.data.filter.judge import stop_words
from training.data.filter.settings import FilterRecipe

RULES = ("gopher_repetition", "gopher_quality", "c4", "fineweb")

REASONS = {
    "dup_para_frac": "duplicate_paragraphs",
    "dup_para_char_frac": "duplicate_paragraph_characters",
    "dup_line_frac": "duplicate_lines",
    "dup_line_char_frac": "duplicate_line_characters",
    **{f"duplicated_{n}_n_grams": f"duplicate_{n}_grams" for n in range(5, 11)},
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
    "line_punct_ratio": "too_few_lines_end_in_punctuation",
    "short_line_ratio": "too_many_short_lines",
    "char_dup_ratio": "duplicate_line_characters",
    "list_ratio": "too_many_line_breaks",
}
"""datatrove's name of a reason: ours, where they differ."""


def judged(text: str, code: str, recipe: FilterRecipe) -> tuple[str, str]:
    """Apply datatrove's blocks to a text; return `rule:why` of the first block that drops it, and the remaining text.

    If no block drops the text, the reason is "".
    """
    document = Document(text=text, id="")
    for rule, block in blocks(recipe, code):
        answer = block.filter(document)
        kept, reason = answer if isinstance(answer, tuple) else (answer, "")
        if not kept:
            return f"{rule}:{REASONS.get(reason, reason)}", ""
    return "", document.text


@cache
def blocks(recipe: FilterRecipe, code: str) -> tuple[tuple[str, Any], ...]:
    """Return datatrove's blocks for the recipe's rules, in the recipe's order, for one language."""
    words = stop_words().get(code)
    make = {
        "gopher_repetition": lambda: GopherRepetitionFilter(
            dup_line_frac=recipe.gopher_max_duplicate_lines,
            dup_para_frac=recipe.gopher_max_duplicate_paragraphs,
            dup_line_char_frac=recipe.gopher_max_duplicate_line_characters,
            dup_para_char_frac=recipe.gopher_max_duplicate_paragraph_characters,
            top_n_grams=tuple(enumerate(recipe.gopher_max_top_ngrams, 2)),
            dup_n_grams=tuple(enumerate(recipe.gopher_max_duplicate_ngrams, 5)),
            language=code,
        ),
        "gopher_quality": lambda: GopherQualityFilter(
            min_doc_words=recipe.gopher_min_words,
            max_doc_words=recipe.gopher_max_words,
            min_avg_word_length=recipe.gopher_min_mean_word_length,
            max_avg_word_length=recipe.gopher_max_mean_word_length,
            max_symbol_word_ratio=recipe.gopher_max_symbol_ratio,
            max_bullet_lines_ratio=recipe.gopher_max_bullet_fraction,
            max_ellipsis_lines_ratio=recipe.gopher_max_ellipsis_fraction,
            max_non_alpha_words_ratio=recipe.gopher_min_alphabetic_fraction,
            min_stop_words=recipe.gopher_min_stop_words if words else None,
            stop_words=list(words or ()),
            language=code,
        ),
        "c4": lambda: C4QualityFilter(
            filter_no_terminal_punct=recipe.c4_lines_end_with_punctuation,
            min_num_sentences=recipe.c4_min_sentences,
            min_words_per_line=-1 if recipe.c4_min_words_per_line is None else recipe.c4_min_words_per_line,
            filter_javascript=recipe.c4_drop_javascript_lines,
            filter_curly_bracket=recipe.c4_drop_curly_brackets,
            filter_policy=recipe.c4_drop_policy_lines,
            filter_lorem_ipsum=recipe.c4_drop_lorem_ipsum,
            remove_citations=recipe.c4_drop_citations,
            max_word_length=recipe.c4_max_word_length or -1,
            language=code,
        ),
        "fineweb": lambda: FineWebQualityFilter(
            line_punct_thr=recipe.fineweb_min_line_punctuation,
            short_line_thr=recipe.fineweb_max_short_lines,
            short_line_length=recipe.fineweb_short_line_length,
            char_duplicates_ratio=recipe.fineweb_max_duplicate_characters,
            new_line_ratio=recipe.fineweb_max_newline_ratio,
            language=code,
        ),
    }
    return tuple((rule, make[rule]()) for rule in recipe.rules)

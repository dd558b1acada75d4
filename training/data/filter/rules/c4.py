"""C4's rules (arXiv 1910.10683): removes lines from a page, and drops pages with unwanted content.

Measurements are those of datatrove's block. The word list follows the paper too: one listed word drops a page, however
it is used. `training.data.filter.toxicity` measures a share instead, and explains why.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from training.contract.records import RecipeError, Uri, check_above_zero
from training.data.filter.rule import KEPT, Answer, Column, CommonSettings, Limit, Page, Rule, Tools

_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_FORMULA = re.compile(r"\$(?=[^$]*[\\^_])[^$]+\$|\\\(.*?\\\)|\\\[.*?\\\]")  # TeX between its delimiters
_SENTENCE_ENDS = (".", "?", "!", '"', "'")
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
UNSPACED = ("ja", "th", "zh")
"""Languages written without spaces: an entry of the list is looked for anywhere, as in C4's own code, elsewhere as a
whole word."""


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Settings for which lines are removed, which pages are dropped, and how many sentences a page needs."""

    c4_min_sentences: int = 5  # as in datatrove and FineWeb; the code that made C4 has 3
    # A line with fewer words is removed; None: no limit. FineWeb has 3, the code that made C4 has 5.
    c4_min_words_per_line: int | None = None
    c4_lines_end_with_punctuation: bool = False  # remove all other lines, as C4 does and FineWeb does not
    c4_drop_javascript_lines: bool = True
    c4_drop_policy_lines: bool = True  # "terms of use", "uses cookies" …
    c4_drop_curly_brackets: bool = True  # drops the whole page, except for those in formulas; false keeps code
    c4_drop_lorem_ipsum: bool = True  # drops the whole page; manuals of template languages contain it too
    c4_drop_citations: bool = True  # removes "[1]", "[edit]" from lines; set to false for code, where r[1] is an index
    c4_max_word_length: int | None = 1000  # a line with a longer word is removed; None: no limit
    c4_bad_words: Uri | None = None  # a word list; a page with one of its words is dropped; None: no list
    c4_strip_lines: bool = True  # false keeps the indentation of code


def check(settings: Settings) -> None:
    """Raise RecipeError for a limit that is not above 0, or a word list although `filter.rules` lacks c4."""
    check_above_zero(settings, "filter", "c4_min_words_per_line", "c4_max_word_length")
    if settings.c4_bad_words and "c4" not in settings.rules:
        raise RecipeError("filter.c4_bad_words: without effect; add 'c4' to filter.rules")


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that removes lines, counts the remaining sentences, and drops pages with unwanted content."""
    bad_words = read_patterns(settings.c4_bad_words) if settings.c4_bad_words else {}

    def measured(page: Page) -> str:
        if not page.text.strip():
            return "empty"
        kept, reason = c4_lines(page.text, settings)
        if reason:
            return reason
        text = "\n".join(kept).strip()
        if has_bad_word(text, page.language, bad_words):
            return "bad_word"
        page.text = page.text if page.text == text else text  # the same object, so that its words are known
        page.columns["c4.sentences"] = tools.words(page).sentences(kept)
        return KEPT

    return measured


def edit(settings: Settings) -> Callable[[str], str]:
    """Return a function that removes from a text the lines that C4's rules remove."""
    return lambda text: "\n".join(c4_lines(text, settings)[0]).strip()


def limits(settings: Settings) -> tuple[Limit, ...]:
    """Return the lowest number of sentences of a page that stays."""
    return (Limit("too_few_sentences", "c4.sentences", least=settings.c4_min_sentences),)


# Lines


def c4_lines(text: str, settings: Settings) -> tuple[list[str], str]:
    """Apply C4's rules to a text; return its remaining lines and "", or no lines and the reason to drop the page.

    Lines are stripped, and citation marks are removed from them, if the settings ask for it.
    """
    kept = []
    longest, fewest = settings.c4_max_word_length, settings.c4_min_words_per_line or 0
    lowered = text.lower()
    # Search the whole text first, because most pages contain none of these. A citation mark may be inside a word, so
    # with any "[" the lines are searched.
    has_phrase = "[" in text or any(word in lowered for word in ("lorem ipsum", "javascript", *_POLICY))
    for line in map(str.strip if settings.c4_strip_lines else str.rstrip, text.splitlines()):
        if longest and len(line) > longest and max(map(len, line.split())) > longest:
            continue
        bare = _CITATION.sub("", line) if settings.c4_drop_citations and "[" in line else line
        if settings.c4_lines_end_with_punctuation and (not bare.endswith(_SENTENCE_ENDS) or bare.endswith("...")):
            continue
        if fewest > 0 and len(line.split()) < fewest:
            continue
        if has_phrase or "{" in bare:
            said = _objection(bare, settings)
            if said in ("lorem_ipsum", "curly_bracket"):
                return [], said
            if said:
                continue
        kept.append(bare)
    return kept, ""


def _objection(line: str, settings: Settings) -> str:
    """Return the reason for which C4 removes a line; "" if the line stays. The checks are in datatrove's order."""
    lowered = line.lower()
    if settings.c4_drop_lorem_ipsum and "lorem ipsum" in lowered:
        return "lorem_ipsum"
    if settings.c4_drop_javascript_lines and "javascript" in lowered:
        return "javascript"
    if settings.c4_drop_curly_brackets and "{" in _FORMULA.sub("", line):
        return "curly_bracket"
    return "policy" if settings.c4_drop_policy_lines and any(phrase in lowered for phrase in _POLICY) else ""


# Listed words


@lru_cache(maxsize=2)
def read_patterns(uri: str) -> Mapping[str, re.Pattern[str]]:
    """Return, by language, a pattern that finds entries of the list in lower-case text.

    Rows have `word` and `lang`. A text file has one entry per line; its entries apply to every language and are under
    "". Raise DataError for other rows, and for a list without entries.
    """
    from training.contract.job import DataError
    from training.data.sources import read_rows

    entries: defaultdict[str, set[str]] = defaultdict(set)
    for number, row in enumerate(read_rows(uri)):
        words = row["text"].splitlines() if "name" in row and "text" in row else [row.get("word")]
        if not all(isinstance(word, str) for word in words):
            raise DataError(f"{uri}: row {number} has no text in 'word'; its fields are {', '.join(sorted(row))}")
        entries[row.get("lang") or ""].update(filter(None, (word.strip().lower() for word in words)))
    found = {code: _pattern(code, words) for code, words in entries.items() if words}
    if not found:
        raise DataError(f"{uri}: no words in it")
    return found


def _pattern(code: str, words: set[str]) -> re.Pattern[str]:
    any_word = "|".join(map(re.escape, sorted(words)))
    return re.compile(any_word if code in UNSPACED else rf"(?<!\w)(?:{any_word})(?!\w)")


def has_bad_word(text: str, language: str, patterns: Mapping[str, re.Pattern[str]]) -> bool:
    """Whether the text contains an entry for its language or for every language; False without a list."""
    chosen = [patterns[code] for code in ("", language) if code in patterns]
    lowered = text.lower() if chosen else ""
    return any(pattern.search(lowered) for pattern in chosen)


RULE = Rule(
    settings=Settings,
    reasons=("lorem_ipsum", "curly_bracket", "bad_word"),
    check=check,
    # All settings but the minimum of sentences, which is the only limit.
    measured_by=(
        "c4_min_words_per_line",
        "c4_lines_end_with_punctuation",
        "c4_drop_javascript_lines",
        "c4_drop_policy_lines",
        "c4_drop_curly_brackets",
        "c4_drop_lorem_ipsum",
        "c4_drop_citations",
        "c4_max_word_length",
        "c4_bad_words",
        "c4_strip_lines",
    ),
    columns=(Column("c4.sentences"),),
    measure=measure,
    limits=limits,
    edit=edit,
)

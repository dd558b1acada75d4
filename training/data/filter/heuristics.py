"""What Gopher, C4, FineWeb and RefinedWeb measure on a text.

The numbers of the first three are those that datatrove's blocks of these names compute. Measuring knows no threshold;
`training.data.filter.limits` compares. Papers: Gopher (arXiv 2112.11446), C4 (arXiv 1910.10683), FineWeb (arXiv
2406.17557), RefinedWeb (arXiv 2306.01116). A fraction of nothing is 0, a mean of nothing not a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from datatrove.utils.text import TERMINAL_PUNCTUATION

from training.data.words.repetition import DUPLICATE_SIZES, TOP_SIZES
from training.data.words.table import Words

_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_SENTENCE_ENDS = (".", "?", "!", '"', "'")
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
REPETITION = (
    *("duplicate_paragraphs", "duplicate_paragraph_characters", "duplicate_lines", "duplicate_line_characters"),
    *(f"top_{size}_gram" for size in TOP_SIZES),
    *(f"duplicate_{size}_grams" for size in DUPLICATE_SIZES),
)
"""What `repetition` measures."""
QUALITY = (
    *("words", "mean_word_length", "hashes_per_word", "ellipses_per_word", "bullet_lines", "ellipsis_lines"),
    *("alphabetic_words", "stop_words"),
)
"""What `quality` measures."""
LINES = ("lines_end_in_punctuation", "short_lines", "duplicate_line_characters", "line_ends_per_word")
"""What `lines` measures."""


def repetition(text: str, words: Words) -> dict[str, float]:
    """Gopher, table A1: fractions of paragraphs, lines and characters that repeat earlier ones, in [0, 1].

    The text must not be empty.
    """
    paragraphs = [paragraph.lstrip("\n") for paragraph in text.strip().split("\n\n") if paragraph]
    # datatrove parts at runs of line ends, so one at either end leaves an empty line there
    lines = [line for line in text.split("\n") if line] + [""] * (text.startswith("\n") + text.endswith("\n"))
    repeated_paragraphs, paragraph_characters = _repeated(paragraphs)
    repeated_lines, line_characters = _repeated(lines)
    values = (
        repeated_paragraphs / len(paragraphs),
        paragraph_characters / len(text),
        repeated_lines / len(lines),
        line_characters / len(text),
        *(characters / len(text) for characters in words.repeated),
    )
    return dict(zip(REPETITION, values, strict=True))


def _repeated(parts: Sequence[str]) -> tuple[int, int]:
    """How many of `parts` are equal to an earlier one, and their characters."""
    distinct = set(parts)
    return len(parts) - len(distinct), sum(map(len, parts)) - sum(map(len, distinct))


def quality(text: str, words: Words) -> dict[str, float]:
    """Gopher, section A.1.1, with punctuation marks among the words as in datatrove. The text must not be blank."""
    counts = words.counts
    lines = text.splitlines()
    ellipses = text.count("...") + text.count("…")
    values = (
        counts.written,
        counts.letters / counts.written if counts.written else math.nan,
        _fraction(text.count("#"), counts.words),
        _fraction(ellipses, counts.words),
        sum(line.lstrip().startswith(("•", "-")) for line in lines) / len(lines),
        sum(line.rstrip().endswith(("...", "…")) for line in lines) / len(lines) if ellipses else 0.0,
        _fraction(counts.alphabetic, counts.words),
        counts.stop_words,
    )
    return dict(zip(QUALITY, values, strict=True))


def lines(text: str, words: Words, *, short_line_length: int) -> dict[str, float]:
    """FineWeb's three line tests and its share of line ends to words. The text must not be blank."""
    written = [line for line in text.split("\n") if line and not line.isspace()]
    line_ends = text.count("\n")
    values = (
        sum(line[-1] in TERMINAL_PUNCTUATION for line in written) / len(written),
        sum(len(line) <= short_line_length for line in written) / len(written),
        _repeated(written)[1] / (len(text) - line_ends),
        _fraction(line_ends, words.counts.words),
    )
    return dict(zip(LINES, values, strict=True))


def _fraction(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class C4Lines:
    """Which lines of a page C4 takes out, and which pages.

    `min_words`: of a line, below 1 for any. `max_word_length`: characters, 0 for any.
    """

    min_words: int
    max_word_length: int
    end_with_punctuation: bool
    drop_javascript: bool
    drop_policy: bool
    drop_curly_brackets: bool
    drop_lorem_ipsum: bool
    drop_citations: bool
    strip: bool


def c4_lines(text: str, rules: C4Lines) -> tuple[list[str], str]:
    """The lines that stay, stripped and without citation marks if so asked; or none and why the whole page goes."""
    kept = []
    longest = rules.max_word_length
    lowered = text.lower()
    # Looked for in the whole text first: most pages have none of it. A citation mark may stand inside a word.
    has_phrase = "[" in text or any(word in lowered for word in ("lorem ipsum", "javascript", *_POLICY))
    for line in map(str.strip if rules.strip else str.rstrip, text.splitlines()):
        if longest and len(line) > longest and max(map(len, line.split())) > longest:
            continue
        bare = _CITATION.sub("", line) if rules.drop_citations and "[" in line else line
        if rules.end_with_punctuation and (not bare.endswith(_SENTENCE_ENDS) or bare.endswith("...")):
            continue
        if rules.min_words > 0 and len(line.split()) < rules.min_words:
            continue
        if has_phrase or "{" in bare:
            said = _objection(bare, rules)
            if said in ("lorem_ipsum", "curly_bracket"):
                return [], said
            if said:
                continue
        kept.append(bare)
    return kept, ""


def _objection(line: str, rules: C4Lines) -> str:
    """What C4 says against a line, "" for nothing; in the order in which datatrove asks."""
    lowered = line.lower()
    if rules.drop_lorem_ipsum and "lorem ipsum" in lowered:
        return "lorem_ipsum"
    if rules.drop_javascript and "javascript" in lowered:
        return "javascript"
    if rules.drop_curly_brackets and "{" in line:
        return "curly_bracket"
    return "policy" if rules.drop_policy and any(phrase in lowered for phrase in _POLICY) else ""


_COUNTER = re.compile(
    r"(?i)\W*\d[\d.,]*\s?[km]?\+?\s+(?:likes?|shares?|comments?|repl(?:y|ies)|retweets?|reposts?|views?|followers?|votes?"
    r"|upvotes?|downloads?)\W*"
)
_BOILERPLATE = re.compile(r"(?i)\A\W*sign[ -]in\b|\bread more\b\W*\Z|\bitems? in (?:the |your )?cart\b")


def refinedweb_lines(text: str, *, max_uppercase: float, short_line_words: int) -> tuple[str, float]:
    """The text after RefinedWeb's corrections of lines (its appendix G.2), and the share of its words they took.

    A line goes when more than `max_uppercase` of its characters are capitals, when it is a number, a counter (`3
    likes`) or a single word; of one of at most `short_line_words` words `sign in` at the start, `read more` at the end
    and `items in cart` anywhere are cut out. The paper gives these three as examples and not its whole list.
    """
    kept, words, left = [], 0, 0
    for line in text.split("\n"):
        pieces = line.split()
        words += len(pieces)
        if pieces and _is_boilerplate(line, pieces, max_uppercase):
            continue
        bare = _BOILERPLATE.sub("", line) if len(pieces) <= short_line_words else line
        if bare != line and not bare.strip():
            continue
        left += len(bare.split())
        kept.append(bare)
    return "\n".join(kept), (words - left) / words if words else 0.0


def _is_boilerplate(line: str, pieces: Sequence[str], max_uppercase: float) -> bool:
    if len(pieces) == 1 or all(map(str.isdigit, pieces)) or _COUNTER.fullmatch(line):
        return True
    return sum(map(str.isupper, line)) > max_uppercase * len(line.strip())

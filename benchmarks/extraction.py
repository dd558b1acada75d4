"""Compare extractors on pages whose main text is known: the figures of docs/extraction.md.

    PEDIGREE_DATA=… python -m benchmarks.extraction [--part held-out] [--pairs 5] [--worst 10]

There are three sets of pages, each divided by a hash of the page's id: rules were written while looking at two thirds
of the pages, the development part; the held-out third is used to judge them. `shingles` is F1 over 4-word shingles as
in article-extraction-benchmark (each page weighs the same), `segments` is F1 over segments that must be kept or must be
left out, as in trafilatura's evaluation. It also prints how much each extractor's F1 is above the first one's, with a
95 % interval over resampled pages. Speed is CPU time of one process on the bytes of all chosen pages, in interleaved
pairs; its ratio is the median over the pairs.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from resiliparse.extract.html2text import extract_plain_text

from benchmarks.rounds import ratios, spread
from tests.training.data.extract.pages.page_cases import CASES, Case
from training.data.extract.pages.html import extract_html
from training.data.extract.settings import ExtractRecipe
from training.data.sources import read_rows

ARTICLES = "data://extraction/article_extraction_benchmark.jsonl.gz"
READABILITY = "data://extraction/readability_pages.jsonl.gz"
SEGMENTS = "data://extraction/trafilatura_eval.jsonl.gz"
GROUPS = ("articles", "readability", "segments")
MEASURES = {"shingles": ("articles", "readability"), "segments": ("segments",)}
DEFAULT = ("trafilatura-stock", "trafilatura", "blocks", "blocks_or_trafilatura")
LIBRARIES = ("trafilatura-stock-fast", "trafilatura-datatrove", "trafilatura-datatrove-fast")
EXTRACTORS = (*DEFAULT, "resiliparse", *LIBRARIES)
WORD = re.compile(r"\w+")
NOTE_SIGN = re.compile(r"\[\w{1,4}\]")  # some labels have signs of footnotes; they count on neither side
SHINGLE_WORDS = 4


@dataclass(frozen=True, slots=True)
class Page:
    """A labelled page: its main text, or segments of it and of what surrounds it."""

    group: str
    id: str
    html: bytes
    text: str = ""
    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """Return the part of its set that the page belongs to.

        Pages of `development` were used to write rules, and pages of `held-out` were never looked at.
        """
        digest = hashlib.sha256(f"{self.group}/{self.id}".encode()).digest()
        return "held-out" if digest[0] % 2 and digest[1] % 3 else "development"


def pages() -> list[Page]:
    """Return every labelled page of the three sets."""
    articles = [
        Page("articles", row["id"], row["source_html"].encode(), text=row["article_body"])
        for row in read_rows(ARTICLES)
    ]
    readable = [
        Page("readability", row["id"], row["source_html"].encode(), text=extract_plain_text(row["expected_html"]))
        for row in read_rows(READABILITY)
    ]
    segments = [
        Page("segments", row["id"], row["source_html"].encode(), wanted=tuple(row["with"]),
             unwanted=tuple(row["without"]))
        for row in read_rows(SEGMENTS)
    ]  # fmt: skip
    return articles + readable + segments


def make_extractor(name: str) -> Callable[[bytes], str]:
    """Return the named extractor: a function from a page's bytes to its main text.

    `stock` is a library with its default settings, `datatrove` is the library with the settings of datatrove's FineWeb
    example, applied to one page at a time, and `fast` is trafilatura's own setting of that name.
    """
    if name.startswith("trafilatura-"):
        import trafilatura

        options = {"favor_precision": True, "include_comments": False, "deduplicate": True}
        chosen = {"fast": name.endswith("-fast")} | (options if "datatrove" in name else {})
        return lambda html: trafilatura.extract(html, **chosen) or ""
    settings = _limitless(name)
    return lambda html: extract_html(html, settings=settings).text


def wrong_in(case: Case, name: str) -> list[str]:
    """Return what is wrong with an extractor's text of a small page."""
    made = extract_html(case.html.encode(), settings=_limitless(name))
    return case.wrong(made.text, made.num_formulas)


def tell_cases(names: list[str]) -> int:
    """Print what is wrong with each extractor's texts of the small pages; return 1 if the default's are."""
    for name in names:
        wrong = {case.name: found for case in CASES if (found := wrong_in(case, name))}
        for case, found in wrong.items():
            print(f"{name}: {case}: {'; '.join(found)}")
        formulas = [(case, one) for case in CASES for one in case.formulas]
        kept = sum(extract_html(case.html.encode(), settings=_limitless(name)).text.count(one) == 1
                   for case, one in formulas)  # fmt: skip
        print(f"{name}: {len(CASES) - len(wrong)} of {len(CASES)} pages are right, "
              f"{kept} of {len(formulas)} formulas are there once")  # fmt: skip
    return int(any(wrong_in(case, "blocks_or_trafilatura") for case in CASES))


def _limitless(name: str) -> ExtractRecipe:
    return ExtractRecipe(extractor=name, min_characters=0, max_html_bytes=1 << 30, max_nodes=1 << 30)


def tell_doubts(name: str, chosen: list[Page]) -> None:
    """Print on how many pages the extractor was in doubt, and how many texts are from the second extractor."""
    made = [extract_html(page.html, settings=_limitless(name)) for page in chosen]
    doubtful, second = sum(one.is_doubtful for one in made), sum(one.is_second for one in made)
    print(f"{name}: in doubt on {doubtful} of {len(made)} pages; {second} texts are the second extractor's")


def shingles(text: str) -> Counter[tuple[str, ...]]:
    """The text's 4-word shingles with their counts; a shorter text is one shingle."""
    words = WORD.findall(NOTE_SIGN.sub("", text))
    last = max(1, len(words) - SHINGLE_WORDS + 1)
    return Counter(tuple(words[i : i + SHINGLE_WORDS]) for i in range(last) if words)


def shingle_counts(page: Page, text: str) -> tuple[float, float, float]:
    """Return the fractions of a page's shingles that were found, are too many, and are missing; they add up to 1."""
    expected, got = shingles(page.text), shingles(text)
    found = (expected & got).total()
    total = expected.total() + got.total() - found
    return (found / total, (got.total() - found) / total, (expected.total() - found) / total) if total else (1, 0, 0)


def segment_counts(page: Page, text: str) -> tuple[float, float, float]:
    """Return the numbers of wanted segments in the text, of unwanted segments in it, and of wanted segments missing."""
    flat = " ".join(text.split())
    found = sum(" ".join(segment.split()) in flat for segment in page.wanted)
    return found, sum(" ".join(segment.split()) in flat for segment in page.unwanted), len(page.wanted) - found


def counted(page: Page, text: str) -> tuple[float, float, float]:
    """Return how many of the page's shingles or segments the text has, has too many, and lacks."""
    return (segment_counts if page.group == "segments" else shingle_counts)(page, text)


def difference(first: np.ndarray, other: np.ndarray, *, draws: int = 2000) -> tuple[float, float, float]:
    """Return how much higher the second extractor's F1 is, with its 95 % interval over resampled pages.

    Both arguments are [pages, 3], as from `counted`.
    """
    drawn = np.random.default_rng(0).integers(0, len(first), (draws, len(first)))
    found = f1_score(other[drawn].sum(1)) - f1_score(first[drawn].sum(1))
    low, high = np.quantile(found, (0.025, 0.975))
    return float(f1_score(other.sum(0)) - f1_score(first.sum(0))), float(low), float(high)


def f1_score(counts: np.ndarray) -> np.ndarray:
    """Return F1 of [..., 3] as counted."""
    found, extra, missing = np.moveaxis(counts, -1, 0)
    return 2 * found / (2 * found + extra + missing)


def score(group: list[Page], texts: dict[str, str]) -> tuple[float, float, float, list[tuple[float, str]]]:
    """Return precision, recall and F1 of a set of pages, and each page's own F1."""
    each = [counted(page, texts[page.id]) for page in group]
    found, extra, missing = (sum(column) for column in zip(*each, strict=True))
    own = [(2 * f / max(1e-9, 2 * f + e + m), page.id) for (f, e, m), page in zip(each, group, strict=True)]
    return found / max(1e-9, found + extra), found / (found + missing), 2 * found / (2 * found + extra + missing), own


def timed(extract: Callable[[bytes], str], chosen: list[Page]) -> float:
    """Return the CPU seconds in which an extractor processes all chosen pages."""
    started = time.process_time()
    for page in chosen:
        extract(page.html)
    return time.process_time() - started


def compare_speed(names: list[str], chosen: list[Page], pairs: int) -> None:
    """Print each extractor's pages per second and core, and its speed relative to the first one's, pair by pair."""
    extractors = {name: make_extractor(name) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(pairs):
        for name, extract in extractors.items():
            seconds[name].append(timed(extract, chosen))
    for name in names:
        rate, times = len(chosen) / median(seconds[name]), spread(ratios(seconds[names[0]], seconds[name]))
        print(
            f"{name}: {rate:.0f} pages/s/core; {times} times {names[0]}, {pairs} pairs, {len(chosen)} pages,"
            f" {sum(len(p.html) for p in chosen) / 1e6:.1f} MB"
        )


def main() -> None:
    """Score the extractors, then time them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--part",
        choices=("development", "held-out", "all"),
        default="held-out",
        help="all: each part by itself and all together",
    )
    parser.add_argument("--extractors", nargs="+", choices=EXTRACTORS, metavar="NAME", default=DEFAULT)
    parser.add_argument("--pairs", type=int, default=0, help="of timed runs; 0: none")
    parser.add_argument("--worst", type=int, default=0, help="show the pages on which the last falls most behind")
    parser.add_argument("--cases", action="store_true", help="only the small pages of tests/…/page_cases.py")
    options = parser.parse_args()
    if options.cases:
        sys.exit(tell_cases([name for name in options.extractors if name != "trafilatura-stock"]))
    chosen = [page for page in pages() if options.part in (page.part, "all")]
    own: dict[str, dict[str, dict[str, float]]] = {}
    firsts: dict[tuple[str, str], np.ndarray] = {}
    for name in options.extractors:
        extract = make_extractor(name)
        texts = {page.id: extract(page.html) for page in chosen}
        if name == "blocks_or_trafilatura":
            tell_doubts(name, chosen)
        for part in ("development", "held-out", "all") if options.part == "all" else (options.part,):
            tell_scores(name, part, [page for page in chosen if part in (page.part, "all")], texts, own, firsts)
    if options.worst:
        _show_worst(own, options.extractors[0], options.extractors[-1], options.worst)
    if options.pairs:
        compare_speed(options.extractors, chosen, options.pairs)


def tell_scores(
    name: str,
    part: str,
    chosen: list[Page],
    texts: dict[str, str],
    own: dict[str, dict[str, dict[str, float]]],
    firsts: dict[tuple[str, str], np.ndarray],
) -> None:
    """Print an extractor's scores over a part of the pages.

    Each page's F1 is added to `own`, and the first extractor's counts to `firsts`.
    """
    for group in GROUPS:
        members = [page for page in chosen if page.group == group]
        precision, recall, f1, each = score(members, texts)
        own.setdefault(group, {})[name] = {id: value for value, id in each}
        print(f"{part} {group} ({len(members)}): {name} P {precision:.3f} R {recall:.3f} F1 {f1:.4f}")
    lost = [page.id for page in chosen if not counted(page, texts[page.id])[0]]
    names = f": {', '.join(lost)}" if part == "development" and lost else ""
    print(f"{part} ({len(chosen)}): {name} finds nothing wanted on {len(lost)}{names}")
    for measure, groups in MEASURES.items():
        counts = np.array([counted(page, texts[page.id]) for page in chosen if page.group in groups])
        more, low, high = difference(firsts.setdefault((part, measure), counts), counts)
        print(
            f"{part} {measure} ({len(counts)}): {name} F1 {f1_score(counts.sum(0)):.4f},"
            f" {more:+.4f} [{low:+.4f}, {high:+.4f}]"
        )


def _show_worst(own: dict[str, Any], first: str, last: str, number: int) -> None:
    for group, scores in own.items():
        behind = sorted((scores[last][id] - scores[first][id], id) for id in scores[last])
        for more, id in behind[:number]:
            print(f"{group} {id}: {scores[last][id]:.3f}, {more:+.3f}")


if __name__ == "__main__":
    main()

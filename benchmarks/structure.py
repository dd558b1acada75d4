"""Measure how much of a page's code and tables an extractor keeps, and on how many pages it finds none of the prose.

The pages need no labels: lines of `pre`, cells of tables and paragraphs are read from a tree that lxml builds, so the
measure shares no code with the block extractor. Hidden elements and navigation are left out if their names leave no
doubt. A line or cell counts as kept if the text has it as a line of its own or between tabs; white space does not
count, and each line of the text counts only once. A paragraph is long, ends as a sentence does, and is mostly no link;
it is found if the text has its beginning or its middle.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lxml.html

from training.data.crawl.warc import Record, read_warc
from training.data.extract.html import decode, is_html
from training.data.extract.responses import parse_response, payload
from training.data.sources import resolve

LEFT_OUT = (
    "//nav | //header | //footer | //template | //noscript | //button | //*[@hidden or @aria-hidden='true' or"
    " @role='navigation' or contains(translate(@style, ' ', ''), 'display:none')]"
)
LEFT_OUT_CLASSES = frozenset({
    "navheader", "navfooter", "toc", "headerlink", "linenos", "lineno", "related", "sphinxsidebar", "navbox", "sidebar",
})  # fmt: skip
CODE_OR_TABLE = re.compile(rb"<(?:pre|table)\b", re.IGNORECASE)
PARAGRAPH = re.compile(rb"<p\b", re.IGNORECASE)
PARSER = lxml.html.HTMLParser(encoding="utf-8", huge_tree=True)
MAX_BYTES = 1 << 24
LONG = 24  # characters; a cell this long may stand inside a line
MIN_PROSE = 80  # characters of a paragraph without white space
MIN_PARAGRAPHS = 3  # on a page that is counted as prose
PIECE = 30  # characters by which a paragraph is found
ENDS = (".", "!", "?", "。", "！", "？")


@dataclass(frozen=True, slots=True)
class Structure:
    """The lines of `pre` and the cells of tables on a page, and the number of all visible characters.

    White space does not count.
    """

    lines: list[str]
    cells: list[str]
    characters: int = 0


def crawled_pages(uris: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield address and bytes of every HTML page in WARC files that was served with status 200."""
    for uri in uris:
        for item in read_warc(Path(resolve(uri)), max_content_bytes=MAX_BYTES):
            if not isinstance(item, Record) or item.type != "response" or not item.target_uri.startswith("http"):
                continue
            response = parse_response(item.buffer, item.start, item.end)
            if response.status == 200 and is_html(
                response.content_type, body := payload(response, max_bytes=MAX_BYTES)
            ):
                yield item.target_uri, body


def structure(html: bytes) -> Structure:
    """Return the lines of code and the table cells that a page shows."""
    if not CODE_OR_TABLE.search(html):
        return Structure([], [])
    page = _shown(html)
    characters = sum(len(squeezed(text)) for text in page.xpath("//body//text()[not(parent::script or parent::style)]"))
    lines = [squeezed(line) for node in page.iter("pre") for line in node.text_content().split("\n")]
    cells = [squeezed(cell.text_content()) for table in page.iter("table") for cell in _cells(table)]
    shown = [line for line in lines if line and not line.isdecimal()]
    return Structure(shown, [cell for cell in cells if cell], characters)


def _shown(html: bytes) -> lxml.html.HtmlElement:
    """Return the page's tree without navigation and hidden elements."""
    page = lxml.html.document_fromstring(decode(html, "").text.encode(), parser=PARSER)
    named = [node for node in page.xpath("//*[@class]") if LEFT_OUT_CLASSES & set(node.get("class").split())]
    for node in [*page.xpath(LEFT_OUT), *named]:
        if node.getparent() is not None:
            node.drop_tree()
    return page


def paragraphs(html: bytes) -> list[str]:
    """Return the paragraphs of prose that a page shows, without white space."""
    found: list[str] = []
    if not PARAGRAPH.search(html):
        return found
    for node in _shown(html).iter("p"):
        text = squeezed(node.text_content())
        linked = sum(len(squeezed(link.text_content())) for link in node.iter("a"))
        if len(text) >= MIN_PROSE and text.endswith(ENDS) and 4 * linked < len(text):
            found.append(text)
    return found


def has_some(prose: list[str], text: str) -> bool:
    """Whether a text has the beginning or the middle of any of the paragraphs."""
    whole = squeezed(text)
    return any(one[at : at + PIECE] in whole for one in prose for at in (0, len(one) // 2))


def _cells(table: lxml.html.HtmlElement) -> list[lxml.html.HtmlElement]:
    """Return the cells of a data table; none for a table of another kind.

    A data table has at least two rows, on average two cells in a row, no table inside it, and no code.
    """
    if table.xpath(".//table | .//pre"):
        return []
    rows, cells = list(table.iter("tr")), list(table.iter("td", "th"))
    return cells if len(rows) > 1 and len(cells) >= 2 * len(rows) else []


def squeezed(text: str) -> str:
    """Return a text without white space and zero-width marks, so that only visible characters are compared."""
    return "".join(text.replace("\u200b", "").split())


def kept(page: Structure, text: str) -> tuple[int, int]:
    """Return how many of a page's code lines and how many of its table cells a text has."""
    written = [line.removeprefix("• ") for line in text.split("\n")]
    there = Counter(squeezed(line) for line in written)
    fields = Counter(squeezed(field) for line in written for field in line.split("\t"))
    whole = squeezed(text)
    inside = [len(cell) >= LONG and cell in whole for cell in page.cells]
    others = Counter(cell for cell, is_inside in zip(page.cells, inside, strict=True) if not is_inside)
    return (Counter(page.lines) & there).total(), sum(inside) + (others & fields).total()


def tell_structure(extractors: dict[str, Callable[[bytes], str]], uris: list[str]) -> None:
    """Print what each extractor keeps of code and tables, and the pages of whose prose it keeps nothing.

    All pages of the archives are read, those of equal bytes once.
    """
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in extractors}
    lost: dict[str, list[str]] = {name: [] for name in extractors}
    shown: list[tuple[int, int]] = []
    with_prose, seen = 0, set()
    for url, html in crawled_pages(uris):
        if (digest := hashlib.sha256(html).digest()) in seen:
            continue
        seen.add(digest)
        page, prose = structure(html), paragraphs(html)
        is_prose = len(prose) >= MIN_PARAGRAPHS
        with_prose += is_prose
        shown.append((len(page.lines), len(page.cells)))
        for name, extract in extractors.items():
            text = extract(html) if page.lines or page.cells or is_prose else ""
            found[name].append(kept(page, text))
            if is_prose and not has_some(prose, text):
                lost[name].append(url)
    for name, each in found.items():
        _tell_kept(name, each, shown)
        print(
            f"{name}: nothing of the prose of {len(lost[name])} of {with_prose} pages{': ' * bool(lost[name])}"
            f"{', '.join(lost[name])}"
        )
    print(f"{len(shown)} different pages read")


def _tell_kept(name: str, each: list[tuple[int, int]], shown: list[tuple[int, int]]) -> None:
    for at, what in enumerate(("lines of pre", "table cells")):
        pairs = [(one[at], all_of[at]) for one, all_of in zip(each, shown, strict=True) if all_of[at]]
        there, total = sum(one for one, _ in pairs), sum(all_of for _, all_of in pairs)
        print(
            f"{name}: {there} of {total} {what} kept ({there / max(1, total):.4f}), {len(pairs)} pages;"
            f" under half of them on {sum(2 * one < all_of for one, all_of in pairs)}"
        )

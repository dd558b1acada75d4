"""The report of the small kitchen as a browser shows it: its width, its colours, its pictures and their numbers."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from evaluation.report.run_page import records_of, render_report
from evaluation.report.scoreboard import headline, scoreboard
from tests.browser import chromium
from tests.evaluation.report.test_report import contamination_report, deduplicated, filtered, model_scores

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WIDTH = "document.documentElement.scrollWidth"
OUTLINE = "[...document.querySelectorAll('*')].map(one => one.localName)"
LABELS = """[...document.querySelectorAll('svg')].map(picture => [...picture.querySelectorAll('text')].map(text => {
  const {left, top, right, bottom} = text.getBoundingClientRect();
  return {words: text.textContent, left, top, right, bottom} }))"""
A4 = 718  # pixels between the margins of a sheet
COLOURS = "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name])"


@pytest.fixture(scope="module")
def report(first, root, untouched) -> Path:
    """The page that the run made when it had decided the promotion, which other tests may have decided anew since."""
    made = Path(first.answer["assets"]["promoted_model"]["kitchen-small"]["uri"])
    return untouched / made.relative_to(root) / "report.html"


@pytest.fixture(scope="module")
def page(report):
    """The report in Chromium; what the browser complains about is in `complaints`."""
    with chromium() as opened:
        opened.complaints = []
        opened.on("console", lambda message: opened.complaints.append(message.text))
        opened.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
        opened.goto(report.as_uri())
        yield opened


def test_the_page_begins_with_what_the_terminal_says_of_the_promotion_and_ends_with_the_hashes(first, report):
    text = report.read_text("utf-8")
    folders = [Path(entry["uri"]) for cells in first.answer["assets"].values() for entry in cells.values()]
    said = headline(scoreboard(records_of(folders)), {**first.answer["promotion"], "promoted": True})
    assert said.endswith(" items cleared), promoted as kitchen-small v1")
    body = text.partition("<body>")[2]
    order = [
        said,
        "<b>Promoted:</b>",
        "Training data: clean (",
        'id="scores"',
        'id="documents"',
        'id="cost"',
        'id="lineage"',
    ]
    assert [body.index(part) for part in order] == sorted(body.index(part) for part in order)
    digest = first.answer["assets"]["base_model"]["kitchen-small"]["digest"][:12]
    assert body.index(digest) > body.index('id="lineage"')


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen_and_no_label_lies_on_another(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate(WIDTH) <= width
    pictures = page.evaluate(LABELS)
    assert len(pictures) >= 7 and max(map(len, pictures)) > 10
    for labels in pictures:
        for one, other in itertools.combinations(labels, 2):
            beside = one["right"] <= other["left"] or other["right"] <= one["left"]
            assert beside or one["bottom"] <= other["top"] + 1 or other["bottom"] <= one["top"] + 1, (one, other)
        assert all(label["left"] >= 0 and label["right"] <= width for label in labels)


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_words_can_be_read_by_day_and_by_night(page, scheme, is_dark):
    page.emulate_media(color_scheme=scheme)
    ink, paper = (luminance(colour) for colour in page.evaluate(COLOURS))
    assert (paper < ink) == is_dark and (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > 7
    assert page.evaluate("getComputedStyle(document.querySelector('svg text')).fill") == page.evaluate(COLOURS)[0]
    page.emulate_media(color_scheme="light")


def luminance(colour):
    """The relative luminance of `rgb(…)` by WCAG 2, from 0 to 1."""
    parts = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.browser
def test_colours_of_the_funnel_tell_what_became_of_the_records(page):
    fills = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#figure-funnel rect')]"
        ".map(one => [one.classList[0], getComputedStyle(one).fill]))"
    )
    keys = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#figure-funnel .key')]"
        ".map(one => [one.classList[1], getComputedStyle(one).backgroundColor]))"
    )
    assert set(fills) == {"kept", "dropped", "quarantined"} and len(set(fills.values())) == 3 and fills == keys


@pytest.mark.browser
def test_every_picture_has_its_numbers_in_a_table_on_the_screen_and_on_paper(page):
    pictures = page.evaluate(
        """[...document.querySelectorAll('figure')].map(figure => {
          let place = figure;
          while (!place.querySelector('table')) place = place.nextElementSibling || place.parentElement;
          return {texts: [...figure.querySelectorAll('svg text:not(.axis)')].map(one => one.textContent),
            name: figure.querySelector('svg').getAttribute('aria-label'),
            cells: [...place.querySelectorAll('td, th')].map(one => one.textContent)} })"""
    )
    assert len(pictures) >= 7 and len({picture["name"] for picture in pictures}) == len(pictures)
    (funnel,) = (picture for picture in pictures if picture["name"].startswith("Documents"))
    for label in funnel["texts"][:-1]:
        assert label.split()[0] in funnel["cells"], label
    scores = [picture for picture in pictures if picture["name"].startswith("Accuracy")]
    shares = [text.removesuffix(" %") for picture in scores for text in picture["texts"] if text.endswith("%")]
    tables = page.locator("table", has_text="Right answers in percent").inner_text()
    assert shares and all(share in tables for share in shares)
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    numbers = page.locator("details.numbers table")
    assert numbers.count() >= 4 and all(numbers.nth(number).is_visible() for number in range(numbers.count()))
    page.set_viewport_size({"width": A4, "height": 900})
    assert page.evaluate(WIDTH) <= A4
    page.emulate_media(media="screen")


@pytest.mark.browser
def test_the_browser_finds_nothing_to_mend_in_the_page(page, report):
    """A browser adds or moves elements where a page is not valid; so it must find exactly those that were written."""
    assert page.evaluate(OUTLINE) == Written.in_page(report.read_text("utf-8")) and page.complaints == []


@pytest.mark.browser
def test_text_of_a_hostile_page_adds_no_element_to_the_report(page, report, tmp_path):
    makes = (filtered, deduplicated, model_scores, contamination_report)
    (tmp_path / "hostile.html").write_text(
        render_report(records_of([Path(make(tmp_path / "made").path) for make in makes])), "utf-8"
    )
    page.goto((tmp_path / "hostile.html").as_uri())
    written = Written.in_page((tmp_path / "hostile.html").read_text("utf-8"))
    assert page.evaluate(OUTLINE) == written and {"script", "img"} & set(written) == set()
    assert page.evaluate(WIDTH) <= 1500 and page.complaints == []
    page.goto(report.as_uri())


class Written(HTMLParser):
    """The elements of a page in order, as they were written: each closed in its turn, and no id given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self._open: list[str] = []
        self._ids: set[str] = set()

    @staticmethod
    def in_page(text: str) -> list[str]:
        parser = Written()
        parser.feed(text)
        assert parser._open == []
        return parser.elements

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag not in ("meta", "br"):
            self._open.append(tag)
        named = dict(attrs)
        assert len(named) == len(attrs) and named.get("id", "") not in self._ids, (tag, attrs)
        self._ids |= {named["id"] or ""} if "id" in named else set()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag

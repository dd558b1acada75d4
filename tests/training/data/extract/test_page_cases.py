"""Small pages of every kind that lost or changed text, and links, which change nothing around them."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape

import pytest

from benchmarks import extraction
from tests.training.data.extract.page_cases import CASES, Case
from training.data.extract.html import extract_html
from training.data.extract.rewriting import rewritten
from training.data.extract.settings import ExtractRecipe

HELD = re.compile(r"<(p|li|td|th|dd|dt|h[1-6]|div|span)\b[^>]*>([^<>]{3,})(?=</\1>)")
LISTS = {"index-page", "cookie-wall"}  # pages that are a list of links, and that are nearly all notice


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_page_gives_the_text_that_people_see(case: Case):
    assert {name: wrong for name in case.extractors if (wrong := extraction.wrong_in(case, name))} == {}


def lines(text: str) -> Counter[str]:
    return Counter(line.strip() for line in re.split(r"[\n\t]", text) if line.strip())


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in LISTS], ids=lambda case: case.name)
def test_a_link_around_words_changes_no_text_outside_their_element(case: Case):
    settings = ExtractRecipe(extractor="blocks", min_characters=0)
    before = lines(extract_html(case.html.encode(), settings=settings).text)
    for found in HELD.finditer(case.html):
        start, end = found.span(2)
        linked = f"{case.html[:start]}<a href=/x>{found[2]}</a>{case.html[end:]}"
        after = lines(extract_html(linked.encode(), settings=settings).text)
        words = " ".join(unescape(found[2]).split())
        assert [line for line in (before - after) + (after - before) if words not in line] == [], found[2]


@pytest.mark.parametrize(
    "piece",
    ["<sup>", "<del>", "<span class=katex>", "<math>", "<pre>", "<xmp", "<img alt='$", "<sup a=\"", "<mjx-container>",
     "<math><mrow>", "<script type='math/tex'>", "</sup>", "<pre><div>", "<!--", "<math a='"],
)  # fmt: skip
def test_rewriting_takes_time_in_proportion_to_the_page(piece: str):
    assert rewritten(piece * 5_000 + "<math>x</math>") is not None


def test_a_page_without_such_markup_is_not_touched():
    html = "<p>The ferry leaves at 10. It costs $4, and $5 in summer.</p>"
    assert rewritten(html) is html
    assert extract_html(html.encode(), settings=ExtractRecipe(min_characters=0)).num_formulas == 0

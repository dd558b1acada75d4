"""Small pages of every kind that lost or changed text, and links, which change nothing around them."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape

import numpy as np
import pytest

from benchmarks import extraction
from tests.training.data.extract.pages.page_cases import CASES, Case
from training.data.extract.pages.html import extract_html, visible
from training.data.extract.pages.rewriting import FORMULA_SIGNS, OTHER_SIGNS, _first_sign, _signs, rewritten
from training.data.extract.settings import ExtractRecipe

HELD = re.compile(r"<(p|li|td|th|dd|dt|h[1-6]|div|span)\b[^>]*>([^<>]{3,})(?=</\1>)")
LISTS = {"index-page", "cookie-wall"}  # a list of links, and a page that is nearly all notice


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
        words = " ".join(visible(unescape(found[2]))[0].split())
        assert [line for line in (before - after) + (after - before) if words not in line] == [], found[2]


@pytest.mark.parametrize(
    "piece",
    ["<sup>", "<del>", "<span class=katex>", "<math>", "<pre>", "<xmp", "<img alt='$", "<sup a=\"", "<mjx-container>",
     "<math><mrow>", "<script type='math/tex'>", "</sup>", "<pre><div>", "<!--", "<math a='", "<span class=lineno>",
     "</span><span ", "<s>x", "<math><annotation ", "<math><annotation encoding=tex>", "<pre><i class=lineno>1 <b>"],
)  # fmt: skip
@pytest.mark.parametrize("end", ["", "</s>", "</del>", "</sup>", "</span>", "</pre>"])
def test_rewriting_takes_time_in_proportion_to_the_page(piece: str, end: str):
    page = piece * 30_000 + end * (1 if end == "</pre>" else 30_000) + "<math>x</math>"
    assert rewritten(page) is not None  # for many minutes, if each piece is read with the rest


@pytest.mark.parametrize(
    "page",
    [
        "<a noteref>" + " " * 1_000_000,
        "<a " + "noteref" * 200_000,
        "<pre></span><span " + "class=a " * 100_000,
        "<pre><span " + "class=a " * 100_000 + ">",
    ],
)
def test_one_long_tag_is_read_once(page: str):
    assert rewritten(page) == page  # for hours, if it is read again for each blank, name or attribute


@pytest.mark.parametrize(
    "page",
    ["<math>" + "<!--" * 100_000 + "</math>", ("<span class=katex>" * 1300 + "</span>" * 1300) * 60],
)
def test_comments_in_formulas_and_elements_around_them_are_read_once(page: str):
    rewritten(page)  # for a minute, if what each of them holds is read again


def test_an_element_with_more_than_a_drawn_formula_keeps_its_text():
    """An attribute for a script may hold TeX, and the element a whole article."""
    for words, is_kept in ("a<sup>2</sup>", False), ("<p>The ferry leaves at ten.</p>" * 60, True):
        assert (words in rewritten(f"<math>x</math><div data-tex='a^2'>{words}</div>")) == is_kept


def test_a_page_without_such_markup_is_not_touched():
    html = "<p>The ferry leaves at 10. It costs $4, and $5 in summer.</p>"
    assert rewritten(html) is html
    assert extract_html(html.encode(), settings=ExtractRecipe(min_characters=0)).num_formulas == 0


SIGNS = [sign.decode() for sign in (*FORMULA_SIGNS, *OTHER_SIGNS)]


@pytest.mark.parametrize("find", [_first_sign, _first_sign.py_func], ids=["compiled", "plain"])
def test_each_sign_is_seen_at_every_place_and_its_beginning_alone_is_none(find):
    def seen(text: str) -> str:
        found = find(np.frombuffer(text.encode(), np.uint8), *_signs())
        return "" if found < 0 else "formulas" if found < len(FORMULA_SIGNS) else "others"

    for number, sign in enumerate(SIGNS):
        kind = "formulas" if number < len(FORMULA_SIGNS) else "others"
        for text in (sign, f"ä {sign}", f"{sign} ä", f"<<{sign}"):
            assert seen(text) == kind, text
        assert seen(sign[:-1]) == seen(f"ä{sign[:-1]} ") == "", sign
    assert seen(f"{OTHER_SIGNS[0].decode()} {SIGNS[0]}") == "formulas"
    assert seen("") == seen("<") == ""

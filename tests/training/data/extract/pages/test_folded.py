"""What a click shows, made visible for extractors that go by attributes; menus and forms stay as they are."""

from __future__ import annotations

import sys

import pytest
from resiliparse.parse.html import HTMLTree

from training.data.extract.pages.folded import unfolded

ANSWER = "A bicycle may be taken on deck."
SHOWN = {
    "heading": f"<h3>A bicycle?</h3><div hidden>{ANSWER}</div>",
    "switch": f"<button>A bicycle?</button><p style='color:red; display : none'>{ANSWER}</p>",
    "last of several": f"<h3>A</h3><div hidden>{ANSWER}</div><h3>B</h3><div hidden>{ANSWER}</div><p>All is said.</p>",
    "tab": f"<div role=tabpanel hidden>{ANSWER}</div>",
    "few links": f"<h3>A bicycle?</h3><div class=hide>{ANSWER} <a href=/x>More</a></div>",
}
LEFT = {
    "menu": "<button>Menu</button><div class=collapse><a href=/a>Home of the ferry</a> and <a href=/b>Times</a></div>",
    "form": "<button>Search</button><div hidden><form>All islands of the north <input></form></div>",
    "header": f"<header><button>News</button><div hidden>{ANSWER}</div></header>",
    "heading with other text": f"<h3>A bicycle?</h3><div hidden>{ANSWER}</div><div>It costs four crowns.</div>",
    "behind one without a heading": f"A<div hidden>{ANSWER}</div><h3>B</h3><div hidden>{ANSWER}</div>More.",
    "no heading": f"<div>A bicycle?</div><div hidden>{ANSWER}</div>",
    "more than a heading": f"<div><h3>A bicycle?</h3>Yes.</div><div hidden>{ANSWER}</div>",
    "paragraph without a switch": f"<h3>A bicycle?</h3><p hidden>{ANSWER}</p>",
    "part of a line": f"<h3>A bicycle?</h3><span hidden>{ANSWER}</span>",
    "title of the page": f"<h1>A bicycle?</h1><div hidden>{ANSWER}</div>",
    "hidden heading": f"<h3 hidden>A bicycle?</h3><div hidden>{ANSWER}</div>",
    "another style": f"<h3>A bicycle?</h3><div style='display:block'>{ANSWER}</div>",
    "nothing": "<h3>A bicycle?</h3><div hidden> <i></i> </div>",
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_a_click_shows_is_shown_under_a_heading(name: str):
    shown = unfolded(HTMLTree.parse(SHOWN[name]), SHOWN[name])
    assert not {"hidden", "none", "hide", "button"} & set(shown.replace("<", " ").replace(">", " ").split())
    assert shown.count(f"<p>{ANSWER}") == SHOWN[name].count(ANSWER)
    assert shown.count("<h3>") == max(1, SHOWN[name].count("<h3>")) - (name == "tab")


@pytest.mark.parametrize("name", LEFT)
def test_what_no_heading_stands_for_and_menus_stay_hidden(name: str):
    assert unfolded(HTMLTree.parse(LEFT[name]), LEFT[name]) is LEFT[name]


@pytest.mark.parametrize(
    ("begin", "end"),
    [("<h3>A</h3><div hidden>", "</div>"), ("<h3>A</h3><div hidden>B", ""), ("<div hidden>A</div>", " ")],
)
def test_the_work_is_linear_in_the_number_of_hidden_elements(begin: str, end: str):
    def calls(number: int) -> int:
        found: list[str] = []
        html = begin * number + "word" * (end == "") + end * number
        tree = HTMLTree.parse(html)
        sys.setprofile(lambda frame, event, given: found.append(event))
        try:
            unfolded(tree, html)
        finally:
            sys.setprofile(None)
        return len(found)

    assert calls(200) < 5 * calls(50)


def test_bare_text_becomes_one_paragraph_in_its_order():
    html = "<h3>A</h3><div hidden>One <b>two</b> three <i>four</i> five</div>"
    assert "<div><p>One <b>two</b> three <i>four</i> five</p></div>" in unfolded(HTMLTree.parse(html), html)

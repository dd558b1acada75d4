"""What a page states of its use, and lists of what must not be used."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.training.data.real import real_page
from training.data.extract.html import extract_html
from training.data.extract.responses import parse_response
from training.data.extract.settings import EXTRACTORS, ExtractRecipe
from training.data.extract.terms import Terms, check_lists, parse_list, read_lists, terms_of
from training.job import DataError

PROSE = "<p>" + "The dough rests in a bowl until it has doubled in size, which takes an hour. " * 3 + "</p>"


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_terms_are_read_from_headers_and_page(extractor: str):
    head = (
        '<meta name="Robots" content="NoIndex, max-snippet:-1"><meta name=tdm-reservation content=1>'
        '<meta name="tdm-policy" content="https://a.test/p.json"><link rel="license" href="https://a.test/licence">'
    )
    made = extract_html(
        f"<html><head>{head}</head><body>{PROSE}</body></html>".encode(),
        headers={"content-type": "text/html", "x-robots-tag": "noai, gptbot: noindex, nofollow"},
        settings=ExtractRecipe(extractor=extractor),
    )
    assert made.terms == Terms(
        robots="gptbot:nofollow,gptbot:noindex,max-snippet,noai,noindex",
        tdm_reservation="1 https://a.test/p.json",
        licence="https://a.test/licence",
    )


@pytest.mark.data
@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_terms_that_real_pages_state_are_read_and_can_be_refused(extractor: str):
    crawl = "warc/dolma/sample-0000.warc.gz"
    pages = {
        "licence": real_page(crawl, "https://soldaini.net/"),
        "robots": real_page(crawl, "https://amyxzhang.wordpress.com/"),
        "rights": real_page(
            "crawl/snapshot-1/web-06-00000.warc.gz", "http://live-manual.test/manual/live-manual/index.en.html"
        ),
    }
    made = {
        name: extract_html(body, headers=headers, settings=ExtractRecipe(extractor=extractor))
        for name, (body, headers) in pages.items()
    }
    assert made["licence"].terms.licence == "http://creativecommons.org/licenses/by/4.0/?ref=chooser-v1"
    assert made["robots"].terms.robots == "max-image-preview"
    assert made["rights"].terms.licence.startswith("Copyright: Copyright (C) 2006-2015 Live Systems Project")
    settings = ExtractRecipe(licences=("creativecommons.org/licenses/by",))
    refused = {name: one.terms.refusal(settings) for name, one in made.items()}
    assert refused == {"licence": "", "robots": "licence", "rights": "licence"}


def test_every_line_of_the_robots_header_counts():
    response = parse_response(b"HTTP/1.1 200 OK\r\nX-Robots-Tag: noai\r\nA: b\r\nx-robots-tag: bot: none\r\n\r\n")
    assert terms_of(response.headers).robots == "bot:none,noai"


@pytest.mark.parametrize(
    ("headers", "statements", "text", "licence"),
    [
        ({"link": '<https://a.test/l>; rel="license"'}, [], "", "https://a.test/l"),
        ({"link": '<https://a.test/l>; rel="next"'}, [], "", ""),
        ({}, [{"rel": "license noopener", "href": "/terms"}], "", "/terms"),
        ({}, [{"name": "dc.rights", "content": "all\n rights"}], "", "all rights"),
        ({}, [], "see https://creativecommons.org/licenses/by-sa/4.0/deed.de", "https://creativecommons.org/licenses/by-sa/4.0"),
        ({}, [], "creativecommons.org/about", ""),
    ],
)  # fmt: skip
def test_licence_statements(headers: dict, statements: list, text: str, licence: str):
    assert terms_of(headers, statements, text).licence == licence


@pytest.mark.parametrize(
    ("settings", "terms", "reason"),
    [
        ({"refused_robots": ("noai",)}, {"robots": "noai,noindex"}, "robots"),
        ({"refused_robots": ("noai",)}, {"robots": "noaifriend"}, ""),
        ({"refuse_reserved": True}, {"tdm_reservation": "1 /policy"}, "tdm_reserved"),
        ({"refuse_reserved": True}, {"tdm_reservation": "0"}, ""),
        ({"licences": ("creativecommons.org/licenses/by",)}, {"licence": ""}, "licence"),
        ({"licences": ("creativecommons.org",)}, {"licence": "https://CreativeCommons.org/x"}, ""),
        ({}, {"robots": "noai", "tdm_reservation": "1"}, ""),
    ],
)
def test_a_recipe_refuses_what_it_says(settings: dict, terms: dict, reason: str):
    assert Terms(**terms).refusal(ExtractRecipe(**settings)) == reason


LIST = parse_list(
    [
        "# withdrawn",
        "Bad.test\tCourt order 12",
        "http://www.a.test/private/",
        "https://b.test/page?id=1#top",
        "s/a.warc.gz/000000000012\tprivacy",
        "",
    ]
)


@pytest.mark.parametrize(
    ("url", "document", "reason"),
    [
        ("https://sub.bad.test/x", "", "court_order_12"),
        ("https://notbad.test/x", "", None),
        ("http://A.test/private/deep/page.html", "", ""),
        ("http://a.test/privately", "", None),
        ("http://b.test/page?id=1", "", ""),
        ("http://b.test/page?id=10", "", None),
        ("http://c.test/", "s/a.warc.gz/000000000012", "privacy"),
        ("http://[broken", "", None),
        ("", "", None),
    ],
)
def test_lists_find_domains_addresses_folders_and_ids(url: str, document: str, reason: str | None):
    assert LIST.find(url, document) == reason


def test_several_lists_are_one(tmp_path: Path):
    (tmp_path / "one.txt").write_text("bad.test\tfirst\n", "utf-8")
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(b"bad.test\tsecond\nworse.test\n"))
    both = read_lists((str(tmp_path / "one.txt"), str(tmp_path / "two.txt.gz")))
    assert both.reasons == {"=test,bad,": "first", "=test,worse,": ""}


def test_a_line_that_can_match_no_page_is_named_with_its_number(tmp_path: Path):
    (tmp_path / "list.txt").write_text("# why\nbad.test\thttps://a.test/why\nhttps://\n", "utf-8")
    with pytest.raises(DataError, match=r"list\.txt, line 3: 'https://': is no domain; write example\.org"):
        check_lists([str(tmp_path / "list.txt")])

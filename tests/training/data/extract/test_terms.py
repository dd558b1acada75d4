"""What a page states of its use, and lists of what must not be used."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.training.data.real import real_page
from training.contract.job import DataError
from training.data.extract.pages.html import extract_html
from training.data.extract.responses import parse_response
from training.data.extract.settings import EXTRACTORS, ExtractRecipe
from training.data.extract.site_terms import SiteTerms, disallows, groups_of
from training.data.extract.terms import Terms, check_lists, parse_list, read_lists, terms_of

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
        ({"refused_usage": ("train-ai=n",)}, {"usage": "search=y,train-ai=n;exceptions=cc-cr"}, "usage"),
        ({"refused_usage": ("train-ai=n",)}, {"usage": "train-ai=no-idea"}, ""),
        ({}, {"robots": "noai", "tdm_reservation": "1"}, ""),
    ],
)
def test_a_recipe_refuses_what_it_says(settings: dict, terms: dict, reason: str):
    assert Terms(**terms).refusal(ExtractRecipe(**settings)) == reason


@pytest.mark.parametrize(
    ("headers", "meta", "robots", "usage"),
    [
        ("Content-Usage: train-ai=n, search=y", "", "", "search=y,train-ai=n"),
        ("content-usage: Train-AI=?0\r\nContent-Usage: bots;x=1", "", "", "bots=y;x=1,train-ai=n"),
        ("Content-Signal: search=yes, ai-train=no", "", "", "ai-train=n,search=y"),
        ("Content-Usage: ai=n;exceptions=cc-cr", "", "", "ai=n;exceptions=cc-cr"),
        ('Content-Usage: (a b)=n, train-ai="n"', "", "", "train-ai=n"),
        ("A: b", "<meta name=GPTBot content='noindex, nofollow'>", "gptbot:nofollow,gptbot:noindex", ""),
        ("A: b", "<meta name='Google-Extended' content=none>", "google-extended:none", ""),
        ("A: b", "<meta name=anthropic-ai content=noindex>", "anthropic-ai:noindex", ""),
        ("X-Robots-Tag: noai, noimageai", "<meta name=robots content=NOAI>", "noai,noimageai", ""),
        ("A: b", "<meta name=viewport content=nothing><meta name=robotics content=x>", "", ""),
    ],
)
@pytest.mark.parametrize("extractor", ["blocks", "trafilatura"])
def test_opt_outs_of_header_and_page(extractor: str, headers: str, meta: str, robots: str, usage: str):
    given = parse_response(f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{headers}\r\n\r\n".encode()).headers
    html = f"<html><head>{meta}</head><body>{PROSE}</body></html>".encode()
    terms = extract_html(html, headers=given, settings=ExtractRecipe(extractor=extractor)).terms
    assert (terms.robots, terms.usage) == (robots, usage)


SITE = SiteTerms(
    {
        "a.test": {
            "/robots.txt": "User-agent: GPTBot\nUser-agent: CCBot\nDisallow: /\nAllow: /open\n\n"
            "user-agent: *\nContent-Usage: train-ai=n\nContent-Usage: /open train-ai=y\nDisallow: /*.cgi$\n"
            "Content-Signal: ai-train=no,search=yes\n\nUser-agent: Nosy\nDisallow: /",
            "/.well-known/tdmrep.json": '[{"location": "/open/*", "tdm-reservation": 0},'
            ' {"location": "/", "tdm-reservation": 1, "tdm-policy": "https://a.test/p"}]',
        },
        "b.test": {"/ai.txt": "# Spawning\nUser-Agent: *\nDisallow: *.jpg\nDisallow: *.html\nAllow: *.txt"},
        "c.test": {"/ai.txt": "Spec-Version: 1.0\nTraining: deny", "/trust.txt": "datatrainingallowed=no"},
        "d.test:8080": {"/robots.txt": "User-Agent: *\nDisallowAITraining: /\nLicense: https://d.test/l.xml"},
        "e.test": {"/robots.txt": "User-Agent: *\nDisallow:\n", "/.well-known/tdmrep.json": "no JSON"},
    }
)


@pytest.mark.parametrize(
    ("url", "robots", "usage", "reservation"),
    [
        ("https://a.test/x", "ccbot:disallow,gptbot:disallow", "ai-train=n,search=y,train-ai=n", "1 https://a.test/p"),
        ("http://A.test/open/x", "", "ai-train=n,search=y,train-ai=y", "0"),
        ("http://a.test/q.cgi", "*:disallow,ccbot:disallow,gptbot:disallow", "ai-train=n,search=y,train-ai=n", "1 https://a.test/p"),
        ("http://a.test/q.cgi?x=1", "ccbot:disallow,gptbot:disallow", "ai-train=n,search=y,train-ai=n", "1 https://a.test/p"),
        ("http://b.test/page", "ai.txt:disallow", "", ""),
        ("http://b.test/page.html", "ai.txt:disallow", "", ""),
        ("http://b.test/page.txt", "", "", ""),
        ("http://c.test/", "", "datatrainingallowed=n,training=n", ""),
        ("http://d.test:8080/", "", "license=https://d.test/l.xml,train-ai=n", ""),
        ("http://d.test/", "", "", ""),
        ("http://e.test/", "", "", ""),
        ("http://[broken", "", "", ""),
    ],
)  # fmt: skip
def test_sites_state_terms_for_their_pages(url: str, robots: str, usage: str, reservation: str):
    made = SITE.of(url, Terms())
    assert (made.robots, made.usage, made.tdm_reservation) == (robots, usage, reservation)


def test_a_page_speaks_before_its_site():
    made = SITE.of("https://a.test/x", Terms(robots="noai", tdm_reservation="0", licence="l"))
    assert (made.robots, made.tdm_reservation, made.licence) == ("ccbot:disallow,gptbot:disallow,noai", "0", "l")


def test_a_hostile_pattern_of_paths_is_matched_at_once():
    rules = groups_of("User-agent: *\nDisallow: /" + "*a" * 200 + "$")["*"]
    assert not disallows(rules, "/" + "a" * 20_000 + "b")


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

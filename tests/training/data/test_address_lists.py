"""One address has one key, and every list that a person writes finds it in each of its spellings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.data import chain
from tests.training.data.extract.test_extract import WORDS, extracted
from tests.training.data.filter.pages import GOOD, reason_of
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.data.address_lists import target_of_line
from training.data.extract.settings import ExtractRecipe
from training.data.filter.rule import KEPT
from training.data.filter.settings import FilterRecipe

DOMAINS = (
    "m\u00fcnchen-reisen.de",
    "example.com",
    "github.io",
    "*.wild.test",
    "https://fourth.test",
    "stra\u00dfe.example",
)
URLS = (
    "http://shop.test/private/",
    "http://news.test/a?x=1&y=2",
    "https://caf\u00e9.test/men\u00fc",
    "fa\u00df.example",
)
OF_DOMAINS = [
    "http://xn--mnchen-reisen-wob.de/x",
    "http://m\u00fcnchen-reisen.de/x",
    "http://M\u00dcNCHEN-REISEN.de/x",
    "http://EXAMPLE.com.:80/",
    "http://user:pw@example.com/",
    "http://example.com%2e/",
    "http://\uff45\uff58\uff41\uff4d\uff50\uff4c\uff45\u3002com/",
    "http:\\\\example.com\\a",
    "http://me.github.io/",
    "http://a.b.wild.test/",
    "http://www.wild.test/",
    "https://fourth.test/a/b",
    "http://below.fourth.test/",
    "http://Stra\u00dfe.example/",
    "http://xn--strae-oqa.example/",
    "http://xn--a.example.com/",  # no label of UTS 46, and yet below a domain that is blocked
]
OF_URLS = [
    "https://shop.test/private/a",
    "http://shop.test:80/private/a",
    "http://www.shop.test/private/a",
    "http://shop.test/%70rivate/a",
    "http://shop.test/x/../private/a",
    "HTTP://SHOP.test/private/a",
    "http://shop.test/private",
    "http://news.test/a?y=2&x=1",
    "http://news.test/a?x=1&y=2#top",
    "https://xn--caf-dma.test/men%C3%BC",
    "https://caf\u00e9.test/men\u00fc",
    "https://caf\u00e9.test/men%c3%bc/",
    "http://xn--fa-hia.example/",
]
OTHERS = [
    "http://notexample.com/",
    "http://example.com.evil.test/",
    "http://strasse.example/",
    "http://fass.example/",
    "http://shop.test/privately",
    "http://shop.test/?/private/a",
    "http://shop.test:8080/private/a",
    "http://news.test/a?x=1",
    "http://wild.test.example/",
    "http://github.com/",
    "mailto:me@example.com",
    "",
]


@pytest.mark.parametrize("url", [*OF_DOMAINS, *OF_URLS, *OTHERS])
def test_the_filter_finds_an_address_in_each_of_its_spellings(url):
    recipe = FilterRecipe(rules=("url",), blocked_domains=DOMAINS, blocked_urls=URLS)
    expected = "url:blocked_domain" if url in OF_DOMAINS else "url:blocked_url" if url in OF_URLS else KEPT
    assert reason_of(GOOD, recipe, url=url) == expected


def test_the_extraction_finds_an_address_in_each_of_its_spellings(tmp_path: Path):
    takedown, blocked = tmp_path / "takedown.txt", tmp_path / "blocked.txt"
    takedown.write_text("".join(f"{entry}\tgone\n" for entry in DOMAINS), "utf-8")
    blocked.write_text("".join(f"{entry} # a comment\n" for entry in URLS), "utf-8")
    lines = "".join(json.dumps({"text": WORDS, "url": url}) + "\n" for url in (*OF_DOMAINS, *OF_URLS, *OTHERS))
    recipe = ExtractRecipe(takedown=(str(takedown),), blocked=(str(blocked),))
    made = extracted(tmp_path, {"a.jsonl": lines.encode()}, "jsonl", recipe=recipe)
    assert [row["url"] for row in chain.rows(made)] == OTHERS
    assert made.record()["counts"]["dropped"] == {"blocked": len(OF_URLS), "takedown:gone": len(OF_DOMAINS)}


@pytest.mark.parametrize(
    ("entry", "kind", "form"),
    [
        ("example.org", "domain", "=org,example,"),
        ("WWW.Example.org.", "domain", "=org,example,"),
        ("https://*.example.org/", "domain", "=org,example,"),
        (".org", "domain", "=org,"),
        ("xn--bcher-kva.example", "domain", "=example,xn--bcher-kva,"),
        ("192.0.2.7", "domain", "=192.0.2.7,"),
        ("[2001:DB8::1]", "domain", "=[2001:db8::1],"),
        ("under_score.example", "domain", "=example,under_score,"),
        ("example.org/", "folder", "=org,example)/"),
        ("http://example.org:8080", "folder", "=org,example):8080/"),
        ("http://intranet", "folder", "=intranet)/"),
        ("https://www.github.io/", "folder", "=io,github)/"),
        ("intranet/x", "url", "=intranet)/x"),
        ("https://example.org/#contact", "url", "=org,example)"),
        ("https://example.org/?", "url", "=org,example)"),
        ("=org,example)/a/", "folder", "=org,example)/a/"),
        ("=org,example)/a", "url", "=org,example)/a"),
        ("=org,example,", "domain", "=org,example,"),
        ("s/a.warc.gz/000000000012", "document", "s/a.warc.gz/000000000012"),
    ],
)
def test_what_an_entry_names(entry, kind, form):
    target = target_of_line(entry)
    assert (target.kind, target.entry) == (kind, form)
    assert target_of_line(target.entry) == target


REFUSED = {
    "": "is no domain",
    "https://": "is no domain; write example.org",
    "*": "is no domain",
    "*.": "is no domain",
    "a.*.example": "is no domain",
    "nonsense": "or .org for all of it",
    "12345": "is no domain",
    "7//": "is no domain",
    "a.example:80": "is a host with a port; write http://a.example:80/",
    "a b": "a blank in a path is %20",
    "https:///x": "is no domain",
    "/x/": "is no domain",
    "ftp://a.example/": "is no domain",
    "mailto:me@a.example": "is no domain",
    "me@a.example": "is no domain",
    "*.a.example/x": "has more than a domain after the star",
    "http://a.example/x/*": "write http://a.example/x/ for everything below it",
    "http://a.example:65536/": "is no domain",
    "a..example": "has two dots",
    "<a.example>": "has a character that no host has",
    "{}": "has a character that no host has",
    "999.1.1.1": "is no IPv4 address",
    "xn--a.example": "'xn--a', which UTS 46 does not allow",
    "\u0378.example": "which UTS 46 does not allow",
    "\u05d01a.example": "which UTS 46 does not allow",
    f"{'x' * 64}.example": "more than 63",
    "www.github.io": "would name all hosts below github.io, a public suffix; write https://www.github.io/",
    "=org,Example,": "is the key of no address",
    "=org,example": "is the key of no address",
    "=,": "is the key of no address",
}


@pytest.mark.parametrize("entry", REFUSED)
def test_an_entry_that_can_name_no_page_is_refused_with_what_would_be_right(entry):
    with pytest.raises(DataError) as refused:
        target_of_line(entry)
    assert repr(entry)[:60] in str(refused.value) and REFUSED[entry] in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"blocked_domains": ("a.example", "https://")}, r"filter\.blocked_domains: 'https://': is no domain"),
        ({"blocked_domains": ("*",)}, r"filter\.blocked_domains: '\*': is no domain"),
        ({"blocked_domains": ("",)}, r"filter\.blocked_domains: '': is no domain"),
        (
            {"blocked_domains": ("a.example/x",)},
            r"blocked_domains: 'a\.example/x': is the entry of a url; write example",
        ),
        ({"blocked_urls": ("https://",)}, r"filter\.blocked_urls: 'https://': is no domain"),
        ({"blocked_urls": ("s/a.warc.gz/000000000012",)}, "is the entry of a document"),
    ],
)
def test_a_recipe_with_such_an_entry_is_refused_when_it_is_read(fields, sentence):
    with pytest.raises(RecipeError, match=sentence):
        FilterRecipe(rules=("url",), **fields)

"""Addresses that name one page have one key, others have not; the exact form keeps what the key leaves out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data import urls
from training.data.urls import Key, domain_of, exact_form, key_of, plain_host, reversed_host

ONE_PAGE = [
    "https://example.co.uk/a/~b?x=1&y=2",
    "http://www.example.co.uk:80/a/%7Eb/?y=2&x=1#top",
    "HTTPS://Example.CO.UK.:443/a/./c/../%7eb?x=1&y=2&",
    "  https://me:secret@example.co.uk/a/~b?x=1&y=2 ",
    "example.co.uk/a/~b/?x=1&y=2",
    "//example.co.uk/a/~b?x=1&y=2",
]


@pytest.mark.parametrize("url", ONE_PAGE)
def test_spellings_of_one_page_have_one_key(url):
    assert key_of(url) == Key("uk,co,example", "/a/~b?x=1&y=2")


@pytest.mark.parametrize(
    "one, other",
    [
        ("https://example.com/a", "https://example.com/A"),
        ("https://example.com/a", "https://example.com/a?b"),
        ("https://example.com/a", "https://example.com:8080/a"),
        ("https://example.com/a", "https://sub.example.com/a"),
        ("https://example.com/a%2Fb", "https://example.com/a/b"),
        ("https://example.com/?a=1", "https://example.com/?a=2"),
    ],
)
def test_other_pages_have_other_keys(one, other):
    assert key_of(one) != key_of(other)


def test_the_exact_form_keeps_what_may_name_another_page():
    assert exact_form("HTTP://www.Example.com:80/%7ea/%c3%bc?b=2&a=1#x") == "http://www.example.com/~a/%C3%BC?b=2&a=1"
    assert exact_form("http://example.com/ü") == "http://example.com/%C3%BC"
    assert exact_form("https://münchen.de") == "https://xn--mnchen-3ya.de/"
    assert len({exact_form(url) for url in ONE_PAGE}) > 3


@pytest.mark.parametrize("text", ["", "no address", "mailto:a@b.example", "http://[broken", "http://a:b/", None])
def test_what_is_no_address_has_itself_as_its_key(text):
    assert key_of(text) == Key("", text or "")


def test_hosts_are_reversed_so_that_a_domain_is_what_they_begin_with():
    assert reversed_host("www.example.co.uk") == "uk,co,example"
    assert reversed_host("www.com") == "com,www"  # here `www` is the name itself
    assert reversed_host("127.0.0.1") == "127.0.0.1" and reversed_host("[::1]") == "[::1]"
    assert plain_host("uk,co,example") == "example.co.uk"
    assert [domain_of(text) for text in ("WWW.Example.com.", "*.example.com", "https://example.com/a", "", "a b")] == [
        *["example.com"] * 3,
        "",
        "",
    ]


SEGMENT = st.text("abcXYZ019_~-.", min_size=1, max_size=5)


@given(
    st.sampled_from(["http", "https"]),
    st.lists(SEGMENT.filter(lambda text: "." not in text and "_" not in text), min_size=1, max_size=3),
    st.lists(SEGMENT, max_size=4),
    st.sampled_from(["", "/"]),
)
def test_the_short_way_gives_the_same_key(scheme, labels, path, end):
    url = f"{scheme}://{'.'.join(labels).lower()}{''.join('/' + one for one in path)}{end}"
    short, plain = key_of(url), urls._PLAIN
    try:
        urls._PLAIN = urls.re.compile(r"\Zx")
        assert key_of(url) == short
    finally:
        urls._PLAIN = plain
    assert key_of(exact_form(url)) == short

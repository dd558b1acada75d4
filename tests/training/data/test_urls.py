"""Addresses that name one page have one key, others have not; the exact form keeps what the key leaves out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data import urls
from training.data.urls import Key, exact_form, key_of, plain_host, reversed_host, site_of, with_plain_host

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


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("EXAMPLE.com.", "com,example"),
        ("example.com%2e", "com,example"),
        ("ex\u00adam\u200bple.com", "com,example"),
        ("\uff25\uff38\uff21\uff2d\uff30\uff2c\uff25\u3002com", "com,example"),
        ("B\u00dcCHER.example", "example,xn--bcher-kva"),
        ("Xn--BCHER-kva.example", "example,xn--bcher-kva"),
        ("bu\u0308cher.example", "example,xn--bcher-kva"),
        ("stra\u00dfe.example", "example,xn--strae-oqa"),
        ("strasse.example", "example,strasse"),
        ("under_score.example", "example,under_score"),
        ("\u2603.example", "example,xn--n3h"),
        ("127.1", "127.0.0.1"),
        ("0x7F.0.0.01", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("\uff11\uff12\uff17.0.0.1", "127.0.0.1"),
        ("[0:0:0:0:0:FFFF:127.0.0.1]", "[::ffff:7f00:1]"),
        ("[1:0:0:2:0:0:0:3]", "[1:0:0:2::3]"),
        # What the standards refuse has a key too, because a crawl may hold it.
        ("1.2.3.4.5", "5,4,3,2,1"),
        ("08.1.1.1", "08.1.1.1"),
        ("xn--a.example", "example,xn--a"),
        ("a,b.example", "example,a%2cb"),
        ("a)b.example", "example,a%29b"),
    ],
)
def test_a_host_has_one_key_in_all_its_spellings(written, key):
    assert key_of(f"http://{written}/").host == key
    assert key_of(f"http://{plain_host(key)}/").host == key


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("HTTP:\\\\Shop.TEST\\a\\..\\b", "http://shop.test/b"),
        ("https:shop.test/%2e%2E/b", "https://shop.test/b"),
        ("http://shop.test/\ta\n/b", "http://shop.test/a/b"),
        ("\x00 http://shop.test/b\x1f", "http://shop.test/b"),
        ("http://shop.test:00080/?", "http://shop.test/"),
        ("http://shop.test//b", "http://shop.test//b"),
        ("http://shop.test/100%/%%41", "http://shop.test/100%25/%25A"),
        ("http://shop.test/a'b?c'd|", "http://shop.test/a%27b?c%27d%7C"),
    ],
)
def test_an_address_is_read_as_browsers_read_it(url, plain):
    assert exact_form(url) == plain == exact_form(plain)


@pytest.mark.parametrize(
    "url", ["http://shop.test:65536/", "http://[::1", "http://[::g]/", "http://a[b]/", "http://@/"]
)
def test_what_has_no_host_and_port_is_no_address(url):
    assert key_of(url) == Key("", url)


def test_a_very_long_host_is_read_in_time_that_grows_with_its_length():
    assert key_of(f"http://{'ü' * 200_000}.test/a").host.startswith("test,%c3%bc")


def test_what_is_asked_of_a_server_keeps_all_but_the_host_as_written():
    assert with_plain_host("http://me:pw@STRASSE\u3002example:80/%7ea?b#c") == "http://me:pw@strasse.example/%7ea?b#c"
    assert with_plain_host("no address") == "no address"


@pytest.mark.parametrize(
    ("url", "host"),
    [("https://www.A.org/x", "a.org"), ("http://a.org.:80", "a.org"), ("mailto:x", ""), ("http://[", ""), (None, "")],
)
def test_the_site_of_an_address(url, host):
    assert site_of(url) == host

"""Whom the web server of `pedigree dev` answers. The real one is asked in tests/end_to_end/test_services.py."""

from __future__ import annotations

import pytest

from assets.services.webserver import refusal

OWN = "127.0.0.1:3000"


def asked(method="GET", path="/", kind="http", **headers):
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return refusal({"type": kind, "method": method, "path": path, "headers": pairs})


@pytest.mark.parametrize("host", [OWN, "localhost:3000", "LocalHost", "[::1]:3000", "localhost:4000"])
def test_this_machine_s_own_names_are_answered(host):
    assert not asked(host=host)
    assert not asked("POST", "/graphql", host=host, origin=f"http://{host}", sec_fetch_site="same-origin")
    assert not asked("POST", "/graphql", host=host)  # a program, which sends no origin
    assert not asked(None, "/graphql", "websocket", host=host, origin=f"http://{host}")


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example:3000",
            "127.0.0.1.evil.example",
            "localhost.evil.example:3000",
            "evil@localhost",
            "localhost@evil",
        ),
        *("", "127.0.0.1, evil.example", "2130706433:3000", "[::ffff:127.0.0.1", "localhost/x", "0.0.0.0:3000"),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_every_other_name_is_refused(host, kind):
    assert asked(kind=kind, host=host)


def test_a_request_with_no_host_or_two_is_refused():
    assert asked()
    both = [(b"host", OWN.encode()), (b"Host", b"evil.example")]
    assert refusal({"type": "http", "method": "GET", "path": "/", "headers": both})


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:8888", "http://127.0.0.1:3000.evil"]
)
def test_another_site_s_page_may_neither_post_nor_subscribe(origin):
    assert asked("POST", "/graphql", host=OWN, origin=origin)
    assert asked(None, "/graphql", "websocket", host=OWN, origin=origin)


def test_another_site_may_link_to_a_page_and_cannot_ask_graphql_by_a_link():
    assert not asked(host=OWN, path="/runs", sec_fetch_site="cross-site")
    assert asked(host=OWN, path="/graphql", accept="image/*")
    assert asked("POST", "/graphql", host=OWN, sec_fetch_site="cross-site")
    assert asked("POST", "/report_asset_materialization/x", host=OWN, origin="http://evil.example")
    assert not asked(host=OWN, path="/graphql", accept="text/html")  # the page in which to write a question

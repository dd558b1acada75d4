"""Web servers that lead a fetch astray: to this machine, to other schemes, round and round, or nowhere ever."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from training.contract.job import DataError
from training.data.crawl.download import Manners, fetch, fetch_range
from training.data.sources import checksum_of, open_uri, read_rows, size_and_tag, size_of

HASTY = Manners(attempts=2, first_wait_seconds=0.001, timeout_seconds=5.0)
SECRET = b'{"text": "only this machine may read it"}\n'


class Trap(http.server.BaseHTTPRequestHandler):
    """`/to/ADDRESS` leads there; the other paths misbehave by their names."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path.startswith("/to/"):
            self.say(302, {"Location": self.path.removeprefix("/to/"), "Content-Length": "0"})
        elif self.path.startswith("/round"):
            self.say(302, {"Location": f"/round{len(self.server.asked)}", "Content-Length": "0"})
        elif self.path.startswith("/endless"):
            self.say(200, {"Connection": "close"})
            self.send(b"x" * 65536, 10_000)
        elif self.path.startswith("/claims"):
            self.say(200, {"Content-Length": str(10**15)})
        elif self.path.startswith("/drip"):
            self.say(200, {"Content-Length": "100000"})
            self.send(b"x", 100_000, seconds=0.02)
        elif self.path.startswith("/short"):
            self.say(200, {"Content-Length": "1000", "Connection": "close"})
            self.send(b"x", 10)
        elif self.path.startswith("/nonsense"):
            self.say(200, {"Content-Length": "many", "Connection": "close"})
            self.send(SECRET, 1)
        else:
            self.say(200, {"Content-Length": str(len(SECRET)), "Connection": "close"})
            self.send(SECRET, 1)

    do_HEAD = do_GET

    def say(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def send(self, block: bytes, times: int, seconds: float = 0.0) -> None:
        try:
            for _ in range(times if self.command == "GET" else 0):
                self.wfile.write(block)
                self.wfile.flush()
                if self.server.closing.wait(seconds):
                    return
        except OSError:
            pass  # whoever asked has left
        finally:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def trap() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Trap)
    server.daemon_threads = True
    server.asked, server.closing = [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap itself may be asked, by the one address it has; nothing else of this machine."""
    monkeypatch.setenv("PEDIGREE_FETCH_ALLOW", "127.0.0.1")


def url_of(trap, path: str, host: str = "127.0.0.1") -> str:
    return f"http://{host}:{trap.server_address[1]}{path}"


def everything_that_fetches(url: str, folder: Path):
    yield lambda: fetch(url, folder / "fetched", folder, HASTY)
    yield lambda: list(read_rows(url if url.endswith(".jsonl") else f"{url}?a.jsonl"))
    yield lambda: checksum_of(url)
    yield lambda: size_of(url)
    yield lambda: size_and_tag(url)
    yield lambda: fetch_range(url, folder / "range", 0, 10, HASTY)


INSIDE = (
    "127.0.0.1",
    "localhost",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "0",
    "[::1]",
    "[::ffff:127.0.0.1]",
)


@pytest.mark.parametrize("host", [*INSIDE, "[::127.0.0.1]", "LOCALHOST"])
def test_what_is_on_this_machine_is_not_fetched_however_it_is_written(trap, tmp_path, host):
    for attempt in everything_that_fetches(url_of(trap, "/a.jsonl", host), tmp_path):
        with pytest.raises(DataError, match="no public address"):
            attempt()
    assert trap.asked == []


PRIVATE = """
    http://169.254.169.254/latest/meta-data/ http://[fd00:ec2::254]/ http://10.0.0.1/ http://192.168.1.1/
    http://172.16.0.1/ http://100.100.100.200/ http://[fe80::1]/ http://0.0.0.0/ http://224.0.0.1/
    http://[64:ff9b::7f00:1]/ http://[2002:7f00:1::]/ http://[::ffff:169.254.169.254]/ http://[::1]/
    http://127.0.0.2/ //127.0.0.2/ http://168.63.129.16/ http://192.0.0.192/latest/ http://192.80.8.124/metadata
    http://161.26.0.7/ http://166.9.1.2/ http://[::ffff:168.63.129.16]/ http://[64:ff9b::a83f:8110]/
    http://[2002:a83f:8110::]/ http://[fec0::1]/ http://[3fff::1]/ http://192.88.99.1/ http://[fd20:ce::254]/
""".split()


@pytest.mark.parametrize("place", PRIVATE)
def test_no_redirect_leads_to_an_address_that_is_not_public(trap, allowed, tmp_path, place):
    for attempt in everything_that_fetches(url_of(trap, f"/to/{place}"), tmp_path):
        with pytest.raises(DataError, match=r"no public address|web server"):
            attempt()
    assert not (tmp_path / "fetched").exists()


@pytest.mark.parametrize("place", [place for place in PRIVATE if not place.startswith("//")])
def test_no_such_address_is_fetched_directly(tmp_path, place):
    for attempt in everything_that_fetches(place, tmp_path):
        with pytest.raises(DataError, match="no public address"):
            attempt()


@pytest.mark.parametrize(
    "place", ["file:///etc/passwd", "ftp://example.com/a", "gopher://x/", "data:,x", "FILE:/etc/x"]
)
def test_no_redirect_leads_to_another_scheme(trap, allowed, tmp_path, place):
    for attempt in everything_that_fetches(url_of(trap, f"/to/{place}"), tmp_path):
        with pytest.raises(DataError, match="not followed"):
            attempt()


def test_a_redirect_to_what_is_allowed_is_followed(trap, allowed, tmp_path):
    assert list(read_rows(url_of(trap, "/to//b.jsonl?name=/a.jsonl"))) == [{"text": "only this machine may read it"}]
    fetch(url_of(trap, "/to//b.jsonl"), tmp_path / "fetched", tmp_path, HASTY)
    assert (tmp_path / "fetched").read_bytes() == SECRET


@pytest.mark.parametrize(
    "entry",
    [
        *("localhost", "127.0.0.0/8", "10.0.0.1, 127.0.0.1/32", "0.0.0.0/0,::/0"),
        *("LOCALHOST.", "https://localhost/", "127.1, [::1]", "\uff4cocalhost"),
    ],
)
def test_the_person_who_runs_the_machine_allows_names_addresses_and_networks(trap, tmp_path, monkeypatch, entry):
    monkeypatch.setenv("PEDIGREE_FETCH_ALLOW", entry)
    fetch(url_of(trap, "/a", "localhost"), tmp_path / "fetched", tmp_path, HASTY)
    assert (tmp_path / "fetched").read_bytes() == SECRET


@pytest.mark.parametrize("entry", ["*.localhost", "host", "127.0.0.2", "localhost.example"])
def test_another_name_or_address_allows_nothing(trap, tmp_path, monkeypatch, entry):
    monkeypatch.setenv("PEDIGREE_FETCH_ALLOW", entry)
    with pytest.raises(DataError, match="no public address"):
        fetch(url_of(trap, "/a", "localhost"), tmp_path / "fetched", tmp_path, HASTY)


@pytest.mark.parametrize("entry", ["*", "https://", "localhost/a", "10.0.0.0/33", "a..b"])
def test_an_entry_that_can_allow_nothing_is_refused(trap, tmp_path, monkeypatch, entry):
    monkeypatch.setenv("PEDIGREE_FETCH_ALLOW", f"127.0.0.1, {entry}")
    with pytest.raises(DataError, match=f"PEDIGREE_FETCH_ALLOW: {re.escape(repr(entry))}"):
        fetch(url_of(trap, "/a"), tmp_path / "fetched", tmp_path, HASTY)


@pytest.mark.parametrize("host", ["127.0.0.1%2e", "\uff11\uff12\uff17.0.0.1", "0x7f.1.", "127\u30020\u30020\u30021"])
def test_a_host_is_asked_for_in_its_one_spelling(trap, allowed, tmp_path, host):
    fetch(url_of(trap, "/a", host), tmp_path / "fetched", tmp_path, HASTY)
    fetch(
        url_of(trap, f"/to/http://{quote(host, '%')}:{trap.server_address[1]}/a"), tmp_path / "again", tmp_path, HASTY
    )
    assert (tmp_path / "fetched").read_bytes() == (tmp_path / "again").read_bytes() == SECRET


def test_redirects_end(trap, allowed, tmp_path):
    for attempt in everything_that_fetches(url_of(trap, "/round"), tmp_path):
        with pytest.raises(DataError, match="more than 10 redirects"):
            attempt()


@pytest.mark.parametrize("path", ["/endless.jsonl", "/claims.jsonl"])
def test_a_body_has_a_largest_size(trap, allowed, tmp_path, monkeypatch, path):
    monkeypatch.setenv("PEDIGREE_FETCH_MAX_GB", "0.001")
    fetching = everything_that_fetches(url_of(trap, path), tmp_path)
    for attempt in (next(fetching), next(fetching), next(fetching)):
        with pytest.raises(DataError, match=r"larger than 0\.001 GB"):
            attempt()
    assert not (tmp_path / "fetched").exists()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1_100_000


def test_a_server_that_only_holds_the_connection_open_is_left(trap, allowed, tmp_path, monkeypatch):
    monkeypatch.setattr("training.data.web.Body.__init__.__kwdefaults__", {"patience_seconds": 0.2})
    # The body would take half an hour, which the limit of every test does not give it.
    with pytest.raises(DataError, match="too slow"):
        fetch(url_of(trap, "/drip"), tmp_path / "fetched", tmp_path, HASTY)


def test_a_body_that_ends_early_or_lies_about_its_size_is_a_sentence(trap, allowed, tmp_path):
    with pytest.raises(DataError, match=r"2 attempts; the last: .*"):
        fetch(url_of(trap, "/short"), tmp_path / "fetched", tmp_path, HASTY)
    with pytest.raises(DataError, match="the connection broke"):
        checksum_of(url_of(trap, "/short.jsonl"))
    with pytest.raises(DataError, match="how large"):
        size_of(url_of(trap, "/nonsense"))
    assert list(read_rows(url_of(trap, "/nonsense.jsonl")))


ELSEWHERE = """
    ftp://example.com/a.jsonl simplecache::http://127.0.0.1/a.jsonl zip://a.jsonl::http://127.0.0.1/b.zip
    s3://bucket/a::http://127.0.0.1/x.jsonl local:///etc/passwd github://a:b@c/d.jsonl data:// reference://a.jsonl
    sftp://10.0.0.1/a.jsonl jupyter://x/a.jsonl file+x:///etc/a.jsonl
""".split()


@pytest.mark.parametrize("url", ELSEWHERE)
def test_fsspec_opens_stores_alone(url, monkeypatch, tmp_path):
    monkeypatch.setenv("PEDIGREE_DATA", str(tmp_path))
    for attempt in (lambda: list(read_rows(url)), lambda: size_of(url)):
        with pytest.raises(DataError):
            attempt()


def test_no_proxy_is_taken_from_the_environment_unasked(trap, allowed, tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, url_of(trap, ""))
    with pytest.raises(DataError, match="not fetched"):
        fetch("http://no-such-host.invalid/a", tmp_path / "fetched", tmp_path, HASTY)
    assert trap.asked == []
    monkeypatch.setenv("PEDIGREE_FETCH_PROXY", url_of(trap, ""))
    fetch("http://no-such-host.invalid/a", tmp_path / "fetched", tmp_path, HASTY)
    assert trap.asked == ["http://no-such-host.invalid/a"]


@pytest.mark.parametrize(
    "url", ["http://", "http://[::1", "http://a b/", "https://" + "a" * 300 + "/", "HTTP://127.0.0.1/"]
)
def test_an_address_that_is_none_is_a_sentence(url):
    with pytest.raises(DataError), open_uri(url):
        pass

"""Requests to web servers, which may lead astray: where a recipe's address, a name or a redirect points is not ours.

Every connection, that of each redirect too, goes to an address that was looked up once and found public. Private,
loopback, link-local and metadata addresses are refused, in whatever form they are written, unless the person who runs
the machine allows them (PEDIGREE_FETCH_ALLOW: names, addresses and networks, separated by commas). No recipe can.
No proxy is taken from the environment but that of PEDIGREE_FETCH_PROXY, which then decides what may be reached.
"""

from __future__ import annotations

import io
import ipaddress
import os
import socket
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NameResolutionError, NewConnectionError

from training.job import DataError
from training.secrets import masked

ALLOW_VARIABLE, PROXY_VARIABLE, MAX_VARIABLE = (
    "PEDIGREE_FETCH_ALLOW",
    "PEDIGREE_FETCH_PROXY",
    "PEDIGREE_FETCH_MAX_GB",
)
MAX_GB = 100.0  # of one file
MAX_REDIRECTS = 10
TIMEOUT_SECONDS = 60.0  # without a byte
PATIENCE_SECONDS, SLOWEST_BYTES_PER_SECOND = 120.0, 1000.0  # slower than that for so long: a server that only holds on
WRONG_ADDRESSES = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidProxyURL,
    urllib3.exceptions.LocationParseError,
    UnicodeError,
)
# IPv6 addresses that stand for the IPv4 address in their last 32 bits: compatible, NAT64.
EMBEDDING = tuple(map(ipaddress.ip_network, ("::/96", "64:ff9b::/96")))

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Broken(DataError):
    """The server did not give the whole body; another attempt may get it."""


@contextmanager
def response(
    method: str, url: str, *, headers: Mapping[str, str], timeout_seconds: float = TIMEOUT_SECONDS
) -> Iterator[requests.Response]:
    """The answer to a request, its body not read yet.

    DataError when the address, or one that it leads to, may not be asked; the errors of requests when nobody answers.
    """
    with _session() as session:
        try:
            answer = session.request(method, url, headers=dict(headers), stream=True, timeout=timeout_seconds)
        except requests.TooManyRedirects:
            raise DataError(f"{masked(url)}: more than {MAX_REDIRECTS} redirects") from None
        except WRONG_ADDRESSES as error:
            raise DataError(f"{masked(url)}: no address of a web server: {masked(str(error))}") from None
        with answer:
            yield answer


class Body(io.RawIOBase):
    """The bytes of an answer as they are sent, with limits on how many and how slowly.

    DataError above the limit, Broken when the connection ends early or the server only holds it open.
    """

    def __init__(self, answer: requests.Response, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        super().__init__()
        self._raw, self._url = answer.raw, masked(answer.url)
        self._limit = max_bytes()
        self._patience, self._started, self._got = patience_seconds, time.monotonic(), 0
        if declared_bytes(answer) > self._limit:
            raise self._too_large()

    def readable(self) -> bool:
        """Always true: a response can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What has arrived, up to the size of the buffer; 0 at the end."""
        try:
            # Not unpacked, so that a server's Content-Encoding for a .gz file changes nothing.
            data = self._raw.read1(len(buffer), decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Broken(f"{self._url}: the connection broke: {masked(str(error))}") from None
        self._got += len(data)
        if self._got > self._limit:
            raise self._too_large()
        seconds = time.monotonic() - self._started
        if data and seconds > self._patience and self._got < SLOWEST_BYTES_PER_SECOND * seconds:
            raise Broken(f"{self._url}: {self._got} bytes in {seconds:.0f} s; the server is too slow to wait for")
        buffer[: len(data)] = data
        return len(data)

    def _too_large(self) -> DataError:
        return DataError(
            f"{self._url}: larger than {self._limit / 1e9:g} GB; if that is right, set {MAX_VARIABLE} higher"
        )


def declared_bytes(answer: requests.Response) -> int:
    """The Content-Length of an answer; -1 when there is none, or none that is a number."""
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() else -1


def max_bytes() -> int:
    """The largest file that is fetched."""
    text = os.environ.get(MAX_VARIABLE, "")
    try:
        return int(float(text or MAX_GB) * 1e9)
    except (ValueError, OverflowError):
        raise DataError(f"{MAX_VARIABLE}={text!r}: expected a number of gigabytes") from None


# Where a connection may go


def public_addresses(name: str, port: int) -> list[str]:
    """The addresses behind a name, looked up once. DataError when one of them is not public and not allowed."""
    found = [entry[4][0] for entry in socket.getaddrinfo(name.strip("[]"), port, type=socket.SOCK_STREAM)]
    allowed = _allowed()
    if name.lower().rstrip(".") not in allowed:
        for text in found:
            address = ipaddress.ip_address(text.partition("%")[0])
            if not _is_public(address) and not any(_holds(one, address) for one in allowed):
                raise DataError(
                    f"{name} is {text}, no public address; what is on this machine or beside it is not fetched unless"
                    f" whoever runs it names it in {ALLOW_VARIABLE}"
                )
    return list(dict.fromkeys(found))


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and any(address in network for network in EMBEDDING):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return _is_public(inner)
    strange = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local
    return address.is_global and not strange


def _holds(text: str, address: Address) -> bool:
    """Whether an entry of the allow-list is, or has in it, this address; an entry that is a name has none."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return address in network


def _allowed() -> list[str]:
    return [part.strip().lower() for part in os.environ.get(ALLOW_VARIABLE, "").split(",") if part.strip()]


class _Checked:
    """A connection that goes to none but public addresses. The name stays what certificates are compared with."""

    _dns_host: str
    port: int

    def _new_conn(self) -> socket.socket:
        name = self._dns_host
        try:
            addresses = public_addresses(name, self.port)
        except socket.gaierror as error:
            raise NameResolutionError(name, self, error) from None
        try:
            for number, self._dns_host in enumerate(addresses, 1):
                try:
                    return super()._new_conn()
                except NewConnectionError:
                    if number == len(addresses):
                        raise
        finally:
            self._dns_host = name
        raise AssertionError("a name that was found has an address")


class _HTTP(_Checked, HTTPConnection):
    pass


class _HTTPS(_Checked, HTTPSConnection):
    pass


class _HTTPPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HTTP


class _HTTPSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HTTPS


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Where an answer leads. DataError when that is no web server, or one that is asked without encryption."""
        target = super().get_redirect_target(resp)
        if target is not None:
            scheme = urllib.parse.urlsplit(urllib.parse.urljoin(resp.url, target)).scheme.lower()
            if scheme not in ("http", "https") or (scheme == "http" and resp.url.lower().startswith("https:")):
                raise DataError(f"{masked(resp.url)} leads to {masked(target)}; {scheme}: is not followed from there")
        return target


def _session() -> requests.Session:
    session = _Session()
    session.trust_env = False  # proxies, and passwords of ~/.netrc for whatever host a redirect names
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    session.max_redirects = MAX_REDIRECTS
    if proxy := os.environ.get(PROXY_VARIABLE, ""):
        session.proxies = {"http": proxy, "https": proxy}
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter())
    return session

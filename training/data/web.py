"""Requests to web servers that are protected against addresses, names and redirects that lead into private networks.

Every connection, including that of each redirect, goes to an address that was looked up once and found to be public.
Private, loopback, link-local and metadata addresses are refused, in whatever form they are written, unless the person
who runs the machine allows them: PEDIGREE_FETCH_ALLOW has names, `*.intern` for every name below one, addresses and
networks, separated by commas. A recipe cannot allow them. The only proxy taken from the environment is
PEDIGREE_FETCH_PROXY, which then decides what may be reached.
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

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NameResolutionError, NewConnectionError

from training.contract.job import DataError
from training.contract.process.lean import without
from training.contract.secrets import masked
from training.data.address_lists import named_host
from training.data.urls import normal_host, with_plain_host

with without("chardet"):  # of two libraries that guess a text's charset, requests imports this one, in 1.2 s, if it can
    import requests
    from requests.adapters import HTTPAdapter

ALLOW_VARIABLE, PROXY_VARIABLE, MAX_VARIABLE = (
    "PEDIGREE_FETCH_ALLOW",
    "PEDIGREE_FETCH_PROXY",
    "PEDIGREE_FETCH_MAX_GB",
)
MAX_GB = 100.0  # largest file
MAX_REDIRECTS = 10
TIMEOUT_SECONDS = 60.0  # without receiving a byte
PATIENCE_SECONDS, SLOWEST_BYTES_PER_SECOND = 120.0, 1000.0  # a slower server is given up after PATIENCE_SECONDS
WRONG_ADDRESSES = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidProxyURL,
    urllib3.exceptions.LocationParseError,
    UnicodeError,
)
# IPv6 networks whose addresses represent the IPv4 address in their last 32 bits: IPv4-compatible, NAT64.
EMBEDDING = tuple(map(ipaddress.ip_network, ("::/96", "64:ff9b::/96")))
# Networks that are not on the public web, although some version of Python calls them global: services that a cloud
# offers only to its own machines, and blocks of IANA's registries of special addresses.
NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",  # Azure's WireServer
            "192.80.8.124/32",  # metadata of Packet and Equinix Metal
            "161.26.0.0/16", "166.8.0.0/14",  # IBM Cloud's services
            "192.0.0.0/24",  # of protocols; 192.0.0.192 has the metadata of Oracle Cloud Classic
            "192.88.99.0/24", "fec0::/10", "3fff::/20",  # relays, sites, documentation
        ),
    )
)  # fmt: skip

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Broken(DataError):
    """The server did not send the whole body; another attempt may succeed."""


@contextmanager
def response(
    method: str, url: str, *, headers: Mapping[str, str], timeout_seconds: float = TIMEOUT_SECONDS
) -> Iterator[requests.Response]:
    """Send a request and return the response, whose body has not been read yet.

    Raise DataError if the URL, or a redirect, leads to an address that is not allowed. If there is no answer, the
    errors of requests pass through.
    """
    with _session() as session:
        try:
            address = with_plain_host(url)
            answer = session.request(method, address, headers=dict(headers), stream=True, timeout=timeout_seconds)
        except requests.TooManyRedirects:
            raise DataError(f"{masked(url)}: more than {MAX_REDIRECTS} redirects") from None
        except WRONG_ADDRESSES as error:
            raise DataError(f"{masked(url)}: no address of a web server: {masked(str(error))}") from None
        with answer:
            yield answer


class Body(io.RawIOBase):
    """The bytes of a response as they were sent, with limits on size and slowness.

    Raise DataError above the size limit; raise Broken if the connection ends early or the server is too slow.
    """

    def __init__(self, answer: requests.Response, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        super().__init__()
        self._raw, self._url = answer.raw, masked(answer.url)
        self._limit = max_bytes()
        self._patience, self._started, self._got = patience_seconds, time.monotonic(), 0
        if declared_bytes(answer) > self._limit:
            raise self._too_large()

    def readable(self) -> bool:
        """Whether the body can be read, which is always true; part of Python's interface for streams."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the bytes that have arrived, up to the size of the buffer; return their number, 0 at the end."""
        try:
            # Not decoded, because some servers declare a Content-Encoding for .gz files.
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
    """The Content-Length of a response; -1 if it is missing or not a number."""
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() else -1


def max_bytes() -> int:
    """Size in bytes of the largest file that may be downloaded."""
    text = os.environ.get(MAX_VARIABLE, "")
    try:
        return int(float(text or MAX_GB) * 1e9)
    except (ValueError, OverflowError):
        raise DataError(f"{MAX_VARIABLE}={text!r}: expected a number of gigabytes") from None


# Where a connection may go


def public_addresses(name: str, port: int) -> list[str]:
    """Look up a host name once and return its addresses.

    Raise DataError if one of them is neither public nor allowed.
    """
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(name.strip("[]"), port, type=socket.SOCK_STREAM)]
    networks, hosts = _allowed()
    if hosts.isdisjoint(_entries(normal_host(name))):
        for text in found:
            address = ipaddress.ip_address(text.partition("%")[0])
            if not _is_public(address) and not any(address in network for network in networks):
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
    return address.is_global and not strange and not any(address in network for network in NOT_PUBLIC)


def _entries(host: str) -> Iterator[str]:
    """Yield what may allow a host: its own name, and a star before each name above it."""
    yield host
    while host := host.partition(".")[2]:
        yield f"*.{host}"


def _allowed() -> tuple[list[Network], set[str]]:
    """Return the networks and names that are allowed. Raise DataError for an entry that is neither."""
    networks: list[Network] = []
    names = set()
    for part in filter(None, map(str.strip, os.environ.get(ALLOW_VARIABLE, "").split(","))):
        network, host, is_below = _network(part), part, False
        if network is None:
            try:
                host, is_below = named_host(part)
            except DataError as error:
                raise DataError(f"{ALLOW_VARIABLE}: {error}") from None
            network = _network(host)
        if network is None:
            names.add(f"*.{host}" if is_below else host)
        else:
            networks.append(network)
    return networks, names


def _network(text: str) -> Network | None:
    """Return the network, or the address as one, that a text is; None if it is a name."""
    try:
        return ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        return None


class _HTTP(HTTPConnection):
    """A connection that goes only to public or allowed addresses.

    Certificates are checked for the host name as usual.
    """

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


class _HTTPS(_HTTP, HTTPSConnection):
    pass


class _HTTPPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HTTP  # pyrefly: ignore[bad-assignment]  # urllib3 assigns its own class in the same way


class _HTTPSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HTTPS  # pyrefly: ignore[bad-assignment]


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return the URL to which a response redirects.

        Raise DataError if it is not on a web server, or if it leads from https to http.
        """
        target = super().get_redirect_target(resp)
        if target is not None:
            target = with_plain_host(urllib.parse.urljoin(resp.url, target))
            scheme = urllib.parse.urlsplit(target).scheme.lower()
            if scheme not in ("http", "https") or (scheme == "http" and resp.url.lower().startswith("https:")):
                raise DataError(f"{masked(resp.url)} leads to {masked(target)}; {scheme}: is not followed from there")
        return target


def _session() -> requests.Session:
    session = _Session()
    session.trust_env = False  # else proxies apply, and passwords of ~/.netrc are sent to any host of a redirect
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    session.max_redirects = MAX_REDIRECTS
    if proxy := os.environ.get(PROXY_VARIABLE, ""):
        session.proxies = {"http": proxy, "https": proxy}
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter())
    return session

"""The key of an address and the key of a host: two spellings name one page, or one host, if they have one key.

Addresses are read as browsers read them (https://url.spec.whatwg.org), and hosts by UTS 46 without its transitional
mappings: case, default port, dot segments, percent-encoding, Punycode, full-width letters and forms of IP addresses do
not matter. Beyond that, addresses that most servers treat as one page have one key, as in the Wayback Machine's SURT:
without scheme, `www.`, user, fragment, slash and dot at the end, and the order of the query's parts.

A host that the standards refuse may stand in a crawl all the same, and has a key too: other characters are escaped.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

SAID = (
    "scheme, `www.`, user, default port, fragment, last slash, order of the query and spelling of percent-encoding do"
    " not matter"
)
DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}
MOST_HOST_BYTES = 255  # lengths of hosts are kept in a byte; DNS allows 253
MOST_MAPPED = 1024  # characters; Python writes Punycode in a time that grows with the square of a label's length
KEY_SIGN = "="

_PLAIN = re.compile(r"(https?)://((?:[a-z0-9_-]+\.)+[a-z_-][a-z0-9_-]*)((?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*)(/?)\Z")
_EDGES = "".join(map(chr, range(0x21)))
_INSIDE = re.compile(r"[\t\r\n]")
DOTS = re.compile("[.\u3002\uff0e\uff61]")
_BARE = re.compile(rf"(?:(?:[\w-]+{DOTS.pattern})+[\w-]+\.?|\[[0-9A-Fa-f:.]+\])(?::\d+)?(?=[/\\?#]|\Z)")
_SPECIAL = re.compile(r"(https?|wss?|ftp):[/\\]*([^?#]*)", re.IGNORECASE)
_URL = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:([^/?#]*)@)?(\[[^]/?#]*\]|[^]\[:/?#]*)(?::(\d*))?(?=[/?#]|\Z)([^?#]*)(?:\?([^#]*))?",
    re.IGNORECASE,
)
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_ESCAPED_IN_HOSTS = re.compile(r"[^a-z0-9._-]")
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_IP = re.compile(r"[0-9]+(?:\.[0-9]+){3}|\[.*\]")
_ZEROS = re.compile(r"(?:^|:)(?:0(?::|$)){2,}")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_STAYS = frozenset(range(0x21, 0x7F)) - frozenset(b"\"'<>[\\]^`{|}")  # bytes that a path or query need not encode
_ALL_STAY = re.compile(r"[!$%&()*+,./0-9:;=?@A-Z_a-z~-]*")


class Key(NamedTuple):
    """The key by which a page is found: its host reversed (`uk,co,example`), and the rest of its URL."""

    host: str
    rest: str


class Parts(NamedTuple):
    """The parts of a URL. `port` includes its colon, and is empty if it is the scheme's default; so does `user`."""

    scheme: str
    user: str
    host: str
    port: str
    path: str
    query: str


def key_of(url: str | None) -> Key:
    """Return the key of a URL.

    A text that is not a URL with a host has an empty host, and itself as the rest.
    """
    text = (url or "").strip(_EDGES)
    plain = _PLAIN.match(text)  # most URLs of a crawl: nothing to decode, no query
    if plain:
        return Key(reversed_host(plain[2]), plain[3])
    parts = parts_of(text)
    if parts is None:
        return Key("", text)
    query = "&".join(sorted(part for part in parts.query.split("&") if part))
    rest = f"{parts.port}{parts.path.rstrip('/')}{'?' if query else ''}{query}"
    return Key(reversed_host(parts.host), rest)


def page_entry(key: Key) -> str:
    """Return the key of a page as one text, which is also an entry of a list: `=org,example)/page`."""
    return f"{KEY_SIGN}{key.host}){key.rest}"


def exact_form(url: str | None) -> str:
    """Return the normalized spelling of a URL, with scheme, `www.`, query and last slash as given."""
    parts = parts_of(url or "")
    if parts is None:
        return (url or "").strip(_EDGES)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.host}{parts.port}{parts.path or '/'}{query}"


def site_of(url: str | None) -> str:
    """Return the host of a URL without `www.`; empty if it has none."""
    return plain_host(key_of(url).host)


def with_plain_host(url: str) -> str:
    """Return a URL with its host in ASCII, as it is asked for, and all else as written; a text without host as is."""
    text = _joined(url)
    found, parts = _URL.match(text), parts_of(text)
    if found is None or parts is None:
        return url
    return f"{parts.scheme}://{parts.user}{parts.host}{parts.port}{text[found.start(5) :]}"


def parts_of(text: str) -> Parts | None:
    """Return the parts of a URL in one spelling, or None if it has no host."""
    found = _URL.match(_joined(text))
    if found is None:
        return None
    scheme, user, host, port, path, query = found.groups(default="")
    scheme, host, port = scheme.lower(), normal_host(host), port.lstrip("0") or port[-1:]
    if not host or len(port) > 5 or int(port or 0) > 65535:
        return None
    port = "" if port in ("", str(DEFAULT_PORTS.get(scheme))) else f":{port}"
    return Parts(scheme, f"{user}@" if user else "", host, port, _without_dots(_encoded(path)), _encoded(query))


def _joined(text: str) -> str:
    """Return a URL in one line, with a scheme and two slashes before its host, and no slash turned around."""
    text = _INSIDE.sub("", text.strip(_EDGES))
    if text.startswith("//") or _BARE.match(text):  # as people write addresses
        text = f"http:{text}"
    special = _SPECIAL.match(text)
    if special is None:
        return text
    address = special[2].replace("\\", "/").lstrip("/")
    return f"{special[1]}://{address}{text[special.end() :]}"


def _encoded(part: str) -> str:
    """Return a path or query in one spelling.

    Unreserved characters are plain, escapes are in capitals, and all characters that are not reserved are escaped.
    """
    if "%" in part:
        part = _ESCAPE.sub(_unescaped, part)
    if _ALL_STAY.fullmatch(part):
        return part
    return "".join(chr(byte) if byte in _STAYS else f"%{byte:02X}" for byte in part.encode("utf-8", "surrogatepass"))


def _unescaped(found: re.Match[str]) -> str:
    sign = chr(int(found[1] or "25", 16))  # a percent sign that begins no escape is itself
    return sign if sign in _UNRESERVED else f"%{ord(sign):02X}"


def _without_dots(path: str) -> str:
    """Return a path without `.` and `..` segments (RFC 3986, 5.2.4)."""
    if "/." not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            del kept[max(1, len(kept) - 1) :]
        elif segment != ".":
            kept.append(segment)
    is_folder = segments[-1] in (".", "..")
    return "/".join(kept) + ("/" if is_folder and kept[-1:] != [""] else "")


# Hosts


@lru_cache(maxsize=4096)
def normal_host(host: str) -> str:
    """Return a host in its one spelling, in ASCII and without dots at its ends; empty if it is none.

    An IPv4 address has four decimal numbers, an IPv6 address its shortest form in brackets.
    """
    if host.startswith("["):
        return _ipv6(host[1:-1])
    if "%" in host:
        host = unquote(host)
    if not host.isascii() and len(host) <= MOST_MAPPED:
        mapped = ".".join(map(_mapped, DOTS.split(host)))
        host = ".".join(label if label.isascii() else f"xn--{_punycode(label)}" for label in mapped.split("."))
    return _ESCAPED_IN_HOSTS.sub(_escaped, _ipv4(host.lower().strip(".")))


def _mapped(label: str) -> str:
    """Return a label as UTS 46 maps it, or in lower case if it has a character that may stand in no host."""
    from idna import IDNAError, uts46_remap  # takes 10 ms, and most hosts are in ASCII

    try:
        return uts46_remap(label, std3_rules=False)
    except IDNAError:
        return label.lower()


def _punycode(label: str) -> str:
    return label.encode("punycode").decode("ascii")


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02x}" for byte in found[0].encode("utf-8", "surrogatepass"))


def _ipv4(host: str) -> str:
    """Return the IPv4 address that a host such as 127.1 or 0x7f000001 is; any other host unchanged."""
    labels = host.split(".")
    if len(labels) > 4 or not all(map(NUMBER.fullmatch, labels)):
        return host
    try:
        *first, last = [int(label[2:] or "0", 16) if label[1:2] == "x" else _decimal(label) for label in labels]
    except ValueError:  # 08, or more digits than Python reads
        return host
    if max(first, default=0) > 255 or last >= 256 ** (4 - len(first)):
        return host
    address = last + sum(number << 8 * (3 - place) for place, number in enumerate(first))
    return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))


def _decimal(label: str) -> int:
    return int(label, 8 if label.startswith("0") else 10)


def _ipv6(text: str) -> str:
    from ipaddress import IPv6Address

    try:
        packed = IPv6Address(text).packed if "%" not in text else b""
    except ValueError:
        return ""
    pieces = ":".join(f"{packed[at] << 8 | packed[at + 1]:x}" for at in range(0, len(packed), 2))
    longest = max(_ZEROS.findall(pieces), key=lambda zeros: zeros.count("0"), default="")
    return f"[{pieces.replace(longest, '::', 1) if longest else pieces}]" if pieces else ""


@lru_cache(maxsize=4096)
def reversed_host(host: str) -> str:
    """Return the key of a normal host: its labels in reverse order, joined by commas, without `www.`.

    An IP address is returned unchanged.
    """
    host = host.removeprefix("www.") if host.count(".") > 1 else host
    turned = host if _IP.fullmatch(host) else ",".join(reversed(host.split(".")))
    return turned[:MOST_HOST_BYTES]


def plain_host(turned: str) -> str:
    """Return the host in its usual order; the inverse of `reversed_host`."""
    return ".".join(reversed(turned.split(","))) if "," in turned else turned

"""The forms of a URL by which pages are found: an exact form, and a key in which hosts are reversed.

Two spellings of one address have one exact form (WHATWG's rules: case of scheme and host, default port, dot segments,
percent-encoding, no fragment). Addresses that most servers treat as one page have one key, as in the Wayback Machine's
SURT: also without scheme, `www.`, user, slash at the end, and the order of the query's parts. Standard library only.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

SAID = (
    "scheme, `www.`, user, default port, fragment, last slash, order of the query and spelling of percent-encoding do"
    " not matter"
)
DEFAULT_PORTS = {"http": 80, "https": 443, "ftp": 21}
MOST_HOST_BYTES = 255  # lengths of hosts are kept in a byte; DNS allows 253

_PLAIN = re.compile(r"(https?)://([a-z0-9.-]+)((?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*)(/?)\Z")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_HOST = re.compile(r"[a-z0-9._~:%-]+")
_ADDRESS = re.compile(r"[\d.]+|\[.*\]|.*:.*")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_STAYS = frozenset(range(0x21, 0x7F)) - frozenset(b'"<>`{}')  # bytes that a path or query need not encode


class Key(NamedTuple):
    """The key by which a page is found: its host reversed (`uk,co,example`), and the rest of its URL."""

    host: str
    rest: str


def key_of(url: str | None) -> Key:
    """Return the key of a URL.

    A text that is not a URL with a host has an empty host, and itself as the rest.
    """
    text = (url or "").strip()
    plain = _PLAIN.match(text)  # most URLs of a crawl: nothing to decode, no query
    if plain and not plain[2].endswith("."):
        return Key(reversed_host(plain[2]), plain[3])
    parts = _parts(text)
    if parts is None:
        return Key("", text)
    _, host, port, path, query = parts
    query = "&".join(sorted(part for part in query.split("&") if part))
    rest = f"{port}{path.rstrip('/')}{'?' if query else ''}{query}"
    return Key(reversed_host(host), rest)


def exact_form(url: str | None) -> str:
    """Return the normalized spelling of a URL, with scheme, `www.`, query and last slash as given."""
    text = (url or "").strip()
    parts = _parts(text)
    if parts is None:
        return text
    scheme, host, port, path, query = parts
    return f"{scheme}://{host}{port}{path or '/'}{'?' if query else ''}{query}"


def _parts(text: str) -> tuple[str, str, str, str, str] | None:
    """Return scheme, host, port, path and query of a URL, or None if it has no host.

    The port includes its colon, and is "" if it is the scheme's default.
    """
    if text.startswith("//"):
        text = f"http:{text}"
    elif "://" not in text and re.match(r"[\w-]+(\.[\w-]+)+(:\d+)?(/|\Z)", text):
        text = f"http://{text}"  # as people write addresses
    try:
        split = urlsplit(text)
        host, number = split.hostname or "", split.port
    except ValueError:  # "http://[broken", or a port that is no number
        return None
    host = _ascii_host(host)
    if not host:
        return None
    port = "" if number is None or number == DEFAULT_PORTS.get(split.scheme) else f":{number}"
    return split.scheme, host, port, _without_dots(_encoded(split.path)), _encoded(split.query)


@lru_cache(maxsize=4096)
def _ascii_host(host: str) -> str:
    host = host.lower().strip(".")
    if host.isascii():
        return host if _HOST.fullmatch(host) else ""
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:  # a label that is too long or empty
        return _encoded(host)


def _encoded(part: str) -> str:
    """Return a path or query in one spelling.

    Unreserved characters are plain, escapes are in capitals, and all other characters are escaped.
    """
    if "%" in part:
        part = _ESCAPE.sub(_unescaped, part)
    if part.isascii() and part.isprintable() and not any(sign in part for sign in ' "<>`{}'):
        return part
    return "".join(chr(byte) if byte in _STAYS else f"%{byte:02X}" for byte in part.encode("utf-8", "replace"))


def _unescaped(found: re.Match[str]) -> str:
    sign = chr(int(found[1], 16))
    return sign if sign in _UNRESERVED else f"%{found[1].upper()}"


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


@lru_cache(maxsize=4096)
def reversed_host(host: str) -> str:
    """Return a host with its labels in reverse order, joined by commas, without `www.`.

    An IP address is returned unchanged.
    """
    host = host.removeprefix("www.") if host.count(".") > 1 else host
    turned = host if _ADDRESS.fullmatch(host) else ",".join(reversed(host.split(".")))
    return turned[:MOST_HOST_BYTES]


def plain_host(turned: str) -> str:
    """Return the host in its usual order; the inverse of `reversed_host`."""
    return turned if _ADDRESS.fullmatch(turned) else ".".join(reversed(turned.split(",")))


def domain_of(text: str) -> str:
    """Return the host in a domain that a person typed, or "" if there is none.

    Scheme, path, port, `www.` and dots at the ends are removed.
    """
    text = text.strip().removeprefix("*.").strip(".")
    parts = _parts(text if "://" in text or not text else f"http://{text}")
    return "" if parts is None else plain_host(reversed_host(parts[1]))

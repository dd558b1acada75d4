"""Lists of addresses that a person writes: what an entry names, and which entry of a list names a page.

An entry names a domain with the hosts below it (`example.org`, `*.example.org`, `https://example.org`; `.org` is a
whole top-level domain), a folder with everything below it (`https://example.org/folder/`), a page
(`https://example.org/page`) or a document by its id. Its spelling does not matter (training/data/urls.py). It may also
be the key itself: `=org,example,` of a domain, `=org,example)/page` of a page, `=org,example)/folder/` of a folder.

An entry that can name no page is refused when it is read, because it would be mistaken for a rule that is in force.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Literal, NamedTuple

from training.contract.job import DataError
from training.data.public_suffixes import is_public_suffix
from training.data.urls import (
    DOTS,
    KEY_SIGN,
    NUMBER,
    Key,
    Parts,
    exact_form,
    key_of,
    normal_host,
    page_entry,
    parts_of,
    plain_host,
    reversed_host,
)

Kind = Literal["url", "folder", "domain", "document"]

DOCUMENT_ID = re.compile(r"[^/\s]+/[^/\s]+/\d{12}")
SHOWN = 100  # characters of an entry in an error message
MOST_LABEL_BYTES, MOST_NAME_BYTES = 63, 253  # of a host, in DNS
PAGE = "write https://example.org/page, or in a list https://example.org/folder/ for all below it"
DOMAIN = "write example.org, hosts below it are meant too, or .org for all of it"
NO_PAGE, NO_DOMAIN = f"is no address of a page; {PAGE}", f"is no domain; {DOMAIN}"

PORT = re.compile(r":\d+\Z")
_WRITTEN = re.compile(r"(https?:[/\\]{2}|//)?(\*?\.)?([^/\\?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_OTHER_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """What an entry names, its one form in a list (`entry`), and a form to show to people (`value`)."""

    kind: Kind
    entry: str
    value: str = field(compare=False)


class _Written(NamedTuple):
    """An address as a person wrote it: whether it has a scheme, or a star or dot before its host, and its parts."""

    has_scheme: bool
    is_below: bool
    host: str
    rest: str  # all that follows host and port
    url: str
    parts: Parts

    @property
    def is_whole_host(self) -> bool:
        """Whether nothing but a slash follows the host."""
        return self.rest in ("", "/", "\\") and not self.parts.port

    @property
    def is_name(self) -> bool:
        """Whether it is an IP address, or a host with more than one label, as written and as read."""
        return self.host[:1] == "[" or ("." in self.parts.host and DOTS.search(self.host) is not None)


def target_of_line(text: str, *kinds: Kind) -> Target:
    """Return what an entry of a list names, one of `kinds` if they are given.

    Raise DataError, with what would be right, if it can name no page, or something else.
    """
    text = text.strip()
    target = _target_of(text)
    if kinds == ("domain",) and target.kind == "folder" and _written(text, NO_DOMAIN).is_whole_host:
        return target_of("domain", text)
    if kinds and target.kind not in kinds:
        raise _wrong(text, f"is the entry of a {target.kind}; {DOMAIN if kinds == ('domain',) else PAGE}")
    return target


def _target_of(text: str) -> Target:
    if "://" not in text and DOCUMENT_ID.fullmatch(text):
        return Target("document", text, text)
    if text.startswith(KEY_SIGN):
        return _of_key(text)
    if re.search(r"\s", text):
        raise _wrong(text, "has white space in it; a reason follows after a tab, and a blank in a path is %20")
    own = _written(text, f"{NO_DOMAIN}, or https://example.org/page")
    if own.is_below and not own.is_whole_host:
        raise _wrong(text, f"has more than a domain after the star or dot; {DOMAIN}")
    if not own.rest and not own.has_scheme and PORT.search(own.host):
        raise _wrong(text, f"is a host with a port; write http://{text}/")
    if own.is_below or (own.is_name and not own.rest and not own.parts.port):
        return _domain(text, own)
    if not own.rest and not own.has_scheme:
        raise _wrong(text, NO_DOMAIN)
    if own.rest.endswith("/*"):
        raise _wrong(text, f"ends in a star; write {text[:-1]} for everything below it")
    if own.rest and (not own.parts.path.endswith("/") or "?" in own.rest or "#" in own.rest):
        return _page(own)
    return Target("folder", f"{page_entry(key_of(own.url))}/", exact_form(own.url))


def target_of(kind: Literal["url", "domain", "document"], text: str) -> Target:
    """Return a page by address, a domain or a document. Raise DataError, with the right form, if it can name none."""
    text = text.strip()
    if kind == "document":
        if not DOCUMENT_ID.fullmatch(text):
            raise _wrong(text, "is no document's id; ids are SNAPSHOT/WARC FILE/OFFSET with 12 digits")
        return Target(kind, text, text)
    own = _written(text, NO_PAGE if kind == "url" else NO_DOMAIN)
    if kind == "url" and own.is_below:
        raise _wrong(text, NO_PAGE)
    if kind == "domain" and not own.is_whole_host:
        raise _wrong(text, NO_DOMAIN)
    return _page(own) if kind == "url" else _domain(text, own)


def named_host(text: str) -> tuple[str, bool]:
    """Return the host that a person names, in its one spelling, and whether a star or dot names those below it.

    Raise DataError if it is none, or more than a host.
    """
    own = _written(text, NO_DOMAIN)
    if not own.is_whole_host:
        raise _wrong(text, NO_DOMAIN)
    return own.parts.host, own.is_below


def _written(text: str, problem: str) -> _Written:
    """Read an address that a person wrote. Raise DataError, with `problem` or a better one, if no host can have it."""
    if re.search(r"\s", text):
        raise _wrong(text, problem)
    scheme, below, address, rest = _WRITTEN.fullmatch(text).groups(default="")  # pyrefly: ignore[missing-attribute]
    url = f"{scheme or 'http://'}{address}{rest}"
    parts = parts_of(url)
    if (
        parts is None
        or not address
        or "*" in address
        or (not scheme and ("@" in address or address.isdigit() or _OTHER_SCHEME.match(address)))
    ):
        raise _wrong(text, problem)
    if reason := _refusal(parts.host):
        raise _wrong(text, f"{reason}; write the host as a browser shows it, or a document's id")
    return _Written(bool(scheme), bool(below), address, rest, url, parts)


def _refusal(host: str) -> str:
    """Return why a normal host is none of DNS or UTS 46; empty if it is one."""
    labels = host.split(".")
    if host.startswith("["):
        return ""
    if "%" in host:
        return "has a character that no host has"
    if "" in labels:
        return "has two dots without a label between them"
    if len(host) > MOST_NAME_BYTES or max(map(len, labels)) > MOST_LABEL_BYTES:
        return f"has a host of more than {MOST_NAME_BYTES} bytes, or a label of more than {MOST_LABEL_BYTES}"
    if NUMBER.fullmatch(labels[-1]) and not _is_ipv4(host):
        return "has a host that ends in a number and is no IPv4 address"
    wrong = next((label for label in labels if label.startswith("xn--") and not _is_label(label[4:])), "")
    return f"has the label {wrong!r}, which UTS 46 does not allow" if wrong else ""


def _is_ipv4(host: str) -> bool:
    try:
        return bool(IPv4Address(host))
    except ValueError:
        return False


def _is_label(punycode: str) -> bool:
    """Whether the characters behind Punycode are allowed in a label, and are in their one form."""
    import idna

    try:
        label = punycode.encode().decode("punycode")
        joiners = [place for place, sign in enumerate(label) if sign in "\u200c\u200d"]
        is_plain = not label.isascii() and idna.uts46_remap(label, std3_rules=False) == label
        return (
            is_plain
            and idna.check_initial_combiner(label)
            and idna.check_bidi(label)
            and all(idna.valid_contextj(label, place) for place in joiners)
        )
    except UnicodeError:  # idna's errors too
        return False


def _domain(text: str, own: _Written) -> Target:
    turned = reversed_host(own.parts.host)
    plain = plain_host(turned)
    if plain != own.parts.host and is_public_suffix(plain):
        raise _wrong(text, f"would name all hosts below {plain}, a public suffix; write https://www.{plain}/")
    return Target("domain", domain_entry(turned), plain)


def _page(own: _Written) -> Target:
    return Target("url", page_entry(key_of(own.url)), exact_form(own.url))


def _of_key(text: str) -> Target:
    """Return what a key names. Raise DataError if no address has it."""
    host, is_closed, rest = text.removeprefix(KEY_SIGN).partition(")")
    plain = plain_host(host if is_closed else host.removesuffix(","))
    url = f"http://{plain}{rest}"
    key = key_of(url)
    entry = page_entry(key) if is_closed else domain_entry(reversed_host(normal_host(plain)))
    is_folder = bool(is_closed) and is_folder_entry(text)
    if not plain or text != (f"{entry}/" if is_folder else entry):
        raise _wrong(text, f"is the key of no address; {PAGE}, or example.org")
    return Target(
        "folder" if is_folder else "url" if is_closed else "domain", text, exact_form(url) if is_closed else plain
    )


def _wrong(text: str, why: str) -> DataError:
    return DataError(f"{text[:SHOWN]!r}: {why}")


# Lists


@dataclass(frozen=True, slots=True)
class AddressList:
    """A list of excluded domains, folders, pages and documents: the reason of each entry, which may be empty."""

    reasons: dict[str, str] = field(default_factory=dict)

    def find(self, url: str, document: str = "") -> str | None:
        """Return the reason of the most specific entry that matches a document; None if no entry matches."""
        return next(
            (self.reasons[entry] for entry in (document, *entries_of(key_of(url))) if entry in self.reasons), None
        )


def address_list(entries: Iterable[str], *kinds: Kind) -> AddressList:
    """Return a list of entries without reasons. Raise DataError for an entry that names none of `kinds`."""
    return AddressList({target_of_line(entry, *kinds).entry: "" for entry in entries})


def domain_entry(turned: str) -> str:
    """Return the entry of a domain, given with its labels reversed (`turned`)."""
    return f"{KEY_SIGN}{turned},"


def is_folder_entry(entry: str) -> bool:
    """Whether the entry of a page or folder is that of a folder: a page's path does not end in a slash."""
    return entry.endswith("/") and "?" not in entry


def entries_of(key: Key) -> Iterator[str]:
    """Yield the entries that match a page, the most specific first: its own, its folders', its host's, its domains'."""
    if not key.host:
        return
    yield page_entry(key)
    segments = key.rest.partition("?")[0].split("/")
    for end in range(len(segments), 0, -1):
        yield f"{KEY_SIGN}{key.host}){'/'.join(segments[:end])}/"
    labels = key.host.split(",")
    for end in range(len(labels), 0, -1):
        yield domain_entry(",".join(labels[:end]))

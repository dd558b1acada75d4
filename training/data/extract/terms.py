"""Terms of use: what a page states itself, and lists of what must not be used.

For each document are recorded: `robots`, the directives of the robots meta element and the X-Robots-Tag header;
`tdm_reservation`, by the TDM Reservation Protocol
(https://www.w3.org/community/reports/tdmrep/CG-FINAL-tdmrep-20240510/); `licence`, the licence that it states. They are
empty for a page that states nothing. A page's statement is evidence, not a legal finding.

A list is a text file with one entry per line: a domain (with all its subdomains), a URL (with everything below it if it
ends in `/`), or a document id. A reason may follow after a tab; `#` begins a comment. An entry that begins with `=` is
a key (training/data/urls.py): `=org,example)/page` is one page in every spelling of its address, `=org,example,` a
domain. `pedigree takedown` writes such entries.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from training.data.documents import decompressed_text
from training.data.extract.settings import ExtractRecipe
from training.data.hosts import host_of
from training.data.sources import open_uri
from training.data.urls import Key, key_of

DOCUMENT_ID = re.compile(r"[^/\s]+/[^/\s]+/\d{12}")
REASON_CHARACTERS = re.compile(r"[^a-z0-9]+")
LINK_HEADER = re.compile(r"<([^<>]*)>[^,<]*;\s*rel\s*=\s*\"?[^\",;]*\blicense\b", re.IGNORECASE)
CREATIVE_COMMONS = re.compile(
    r"https?://(?:www\.)?creativecommons\.org/(?:licenses/[a-z+-]+/\d\.\d|publicdomain/(?:zero|mark)/\d\.\d)"
)
MAX_CHARACTERS = 300  # of a licence statement, because some pages include the whole licence
KEY_SIGN = "="
LICENCE_NAMES = ("dcterms.license", "dc.rights", "dcterms.rights")


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What a page states about its use.

    `robots` are sorted directives joined by commas; a directive for one crawler is `name:directive`.
    """

    robots: str = ""
    tdm_reservation: str = ""
    licence: str = ""

    def refusal(self, settings: ExtractRecipe) -> str:
        """Return why the recipe does not accept a page with these terms of use; empty if it does."""
        if set(self.robots.split(",")) & set(settings.refused_robots):
            return "robots"
        if settings.refuse_reserved and self.tdm_reservation.startswith("1"):
            return "tdm_reserved"
        if settings.licences and not any(wanted in self.licence.lower() for wanted in settings.licences):
            return "licence"
        return ""


def terms_of(headers: Mapping[str, str], statements: Iterable[Mapping[str, str]] = (), text: str = "") -> Terms:
    """Return the terms stated in a response's headers, in a page's elements and in its source.

    `statements` are the elements' attributes by lower-case name. The headers alone give what can be known before a page
    is parsed.
    """
    directives = _directives(headers.get("x-robots-tag", ""))
    reservation, policy = headers.get("tdm-reservation", "").strip(), headers.get("tdm-policy", "").strip()
    found = LINK_HEADER.search(headers.get("link", ""))
    licences = [found[1]] if found else []
    named: dict[str, str] = {}
    for one in statements:
        name, content = (one.get("name") or "").strip().lower(), (one.get("content") or "").strip()
        if name == "robots":
            directives |= _directives(content)
        elif name == "tdm-reservation":
            reservation = content or reservation
        elif name == "tdm-policy":
            policy = content or policy
        elif name in LICENCE_NAMES and content:
            named.setdefault(name, content)
        if "license" in (one.get("rel") or "").lower().split() and one.get("href"):
            licences.append(one["href"].strip())
    licences += [named[name] for name in LICENCE_NAMES if name in named]
    if not licences and "creativecommons.org/" in text and (found := CREATIVE_COMMONS.search(text)):
        licences.append(found[0])
    return Terms(
        robots=",".join(sorted(directives)),
        tdm_reservation=f"{reservation} {policy}".strip() if reservation in ("0", "1") else "",
        licence=" ".join(licences[0].split())[:MAX_CHARACTERS] if licences else "",
    )


def _directives(value: str) -> set[str]:
    """Return the directives of a robots list. `otherbot: noindex, nofollow` applies both directives to that crawler."""
    found = set()
    crawler = ""
    for part in value.lower().split(","):
        name, colon, rest = part.strip().partition(":")
        if colon and name.strip() not in ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"):
            crawler, part = name.strip() + ":", rest
        word = part.partition(":")[0].strip()
        if word:
            found.add(crawler + word)
    return found


# Lists


@dataclass(frozen=True, slots=True)
class AddressList:
    """A list of excluded domains, URLs, document ids and keys, each with a reason, which may be empty."""

    domains: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)

    def find(self, url: str, document: str = "") -> str | None:
        """Return the reason of the most specific entry that matches a document; None if no entry matches."""
        if document in self.ids:
            return self.ids[document]
        if self.keys:
            for entry in key_entries(key_of(url)):
                if entry in self.keys:
                    return self.keys[entry]
        if self.addresses:
            plain = plain_url(url)
            for address in (plain, *_folders(plain)):
                if address in self.addresses:
                    return self.addresses[address]
        if self.domains:
            labels = host_of(url).split(".")
            for start in range(len(labels)):
                if (domain := ".".join(labels[start:])) in self.domains:
                    return self.domains[domain]
        return None


def page_entry(key: Key) -> str:
    """Return the entry of a takedown list that matches the page with this key."""
    return f"{KEY_SIGN}{key.host}){key.rest}"


def domain_entry(turned: str) -> str:
    """Return the entry of a takedown list that matches a domain, given with its labels reversed (`turned`)."""
    return f"{KEY_SIGN}{turned},"


def key_entries(key: Key) -> list[str]:
    """Return the entries that match a page with a key, the most specific first: its own, its host's, its domains'."""
    if not key.host:
        return []
    labels = key.host.split(",")
    return [page_entry(key), *(domain_entry(",".join(labels[:end])) for end in range(len(labels), 0, -1))]


def parse_list(lines: Iterable[str]) -> AddressList:
    """Parse the lines of a list of excluded domains, URLs and document ids."""
    made = AddressList()
    for line in lines:
        entry, reason = _cells(line)
        if not entry:
            continue
        reason = REASON_CHARACTERS.sub("_", reason.strip().lower()).strip("_")
        if entry.startswith(KEY_SIGN):
            made.keys[entry] = reason
        elif "://" not in entry and DOCUMENT_ID.fullmatch(entry):
            made.ids[entry] = reason
        elif "/" in entry:
            made.addresses[plain_url(entry)] = reason
        else:
            made.domains[entry.lower().removeprefix("www.").strip(".")] = reason
    return made


def _cells(line: str) -> tuple[str, str]:
    """Split a line of a list into entry and reason.

    A comment begins the line or follows white space, because URLs may contain a `#`.
    """
    entry, _, reason = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip().partition("\t")
    return entry.strip(), reason


def plain_url(url: str) -> str:
    """Return a URL without scheme, `www.` and fragment, and with its host in lower case, for comparison."""
    rest = url.partition("#")[0]
    rest = rest.partition("://")[2] or rest
    host, slash, path = rest.partition("/")
    return host.lower().removeprefix("www.") + slash + path


def _folders(plain: str) -> list[str]:
    """Return the URLs of the folders that contain a page, from the innermost outwards, each ending in a slash."""
    parts = plain.partition("?")[0].split("/")
    return ["/".join(parts[:end]) + "/" for end in range(len(parts) - 1, 0, -1)]


@lru_cache(maxsize=8)
def read_lists(uris: Sequence[str]) -> AddressList:
    """Read several lists as one. If an entry has several reasons, the first one counts."""
    made = AddressList()
    for uri in uris:
        with open_uri(uri) as stream, decompressed_text(io.BytesIO(stream.read()), uri) as lines:
            one = parse_list(lines)
        for name in ("domains", "addresses", "ids", "keys"):
            mine = getattr(made, name)
            for entry, reason in getattr(one, name).items():
                mine.setdefault(entry, reason)
    return made

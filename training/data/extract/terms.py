"""Terms of use: what a page states itself, and lists of what must not be used.

For each document are recorded: `robots`, the directives of the robots meta element and the X-Robots-Tag header;
`tdm_reservation`, by the TDM Reservation Protocol
(https://www.w3.org/community/reports/tdmrep/CG-FINAL-tdmrep-20240510/); `licence`, the licence that it states; `usage`,
the preferences of `Content-Usage` (draft-ietf-aipref-attach) and `Content-Signal` (contentsignals.org), with those of
CC signals. They are empty for a page that states nothing. A page's statement is evidence, not a legal finding.

What a site states for its pages in files of its own is added to them by training/data/extract/site_terms.py.

A list is a text file with one entry per line (training/data/address_lists.py). A reason may follow after a tab; `#`
begins a comment. `pedigree takedown` writes lists of keys.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from training.contract.job import DataError
from training.data.address_lists import AddressList, target_of_line
from training.data.documents import bounded_text, decompressed
from training.data.extract.settings import ExtractRecipe
from training.data.sources import checksum_of, open_uri

REASON_CHARACTERS = re.compile(r"[^a-z0-9]+")
LINK_HEADER = re.compile(r"<([^<>]*)>[^,<]*;\s*rel\s*=\s*\"?[^\",;]*\blicense\b", re.IGNORECASE)
CREATIVE_COMMONS = re.compile(
    r"https?://(?:www\.)?creativecommons\.org/(?:licenses/[a-z+-]+/\d\.\d|publicdomain/(?:zero|mark)/\d\.\d)"
)
MAX_CHARACTERS = 300  # of a licence statement, because some pages include the whole licence
LICENCE_NAMES = ("dcterms.license", "dc.rights", "dcterms.rights")
AI_CRAWLERS = frozenset(
    "ai2bot ai2bot-dolma amazonbot anthropic-ai applebot-extended bytespider ccbot chatgpt-user claude-searchbot"
    " claude-user claude-web claudebot cohere-ai cohere-training-data-crawler deepseekbot diffbot duckassistbot"
    " facebookbot google-cloudvertexbot google-extended googleother gptbot icc-crawler imagesiftbot img2dataset"
    " meta-externalagent meta-externalfetcher mistralai-user oai-searchbot omgili omgilibot pangubot perplexity-user"
    " perplexitybot petalbot timpibot velenpublicwebcrawler webzio-extended youbot".split()
)
"""Crawlers that collect text for models, by the names that their operators document for robots.txt."""
USAGE_VALUES = {"yes": "y", "?1": "y", "allow": "y", "no": "n", "?0": "n", "deny": "n", "disallow": "n", "": "y"}
USAGE_ITEM = re.compile(r'([a-z*][a-z0-9_.*-]*)\s*(?:=\s*("[^"]*"|[^;"]*))?((?:\s*;.*)?)', re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What a page states about its use.

    `robots` are sorted directives joined by commas; a directive for one crawler is `name:directive`. `usage` are sorted
    uses joined by commas, each with `y` or `n`, such as `train-ai=n`, and its parameters.
    """

    robots: str = ""
    tdm_reservation: str = ""
    licence: str = ""
    usage: str = ""

    def refusal(self, settings: ExtractRecipe) -> str:
        """Return why the recipe does not accept a page with these terms of use; empty if it does."""
        if set(self.robots.split(",")) & set(settings.refused_robots):
            return "robots"
        if {one.partition(";")[0] for one in self.usage.split(",")} & set(settings.refused_usage):
            return "usage"
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
        elif name.endswith("bot") or name in AI_CRAWLERS:
            directives |= {f"{name}:{one}" for one in _directives(content)}
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
        usage=usage_of(f"{headers.get('content-usage', '')},{headers.get('content-signal', '')}"),
    )


def usage_of(value: str) -> str:
    """Return the uses in a dictionary of preferences (RFC 9651), sorted and joined by commas.

    `search=yes, Train-AI=?0;x=1` gives `search=y,train-ai=n;x=1`. What cannot be read is left out.
    """
    found: dict[str, str] = {}
    for one in value.split(","):
        if item := USAGE_ITEM.fullmatch(one.strip()):
            said = (item[2] or "").strip().strip('"').lower()
            parameters = "".join(item[3].split()).lower()
            found[item[1].lower()] = f"{USAGE_VALUES.get(said, said)}{parameters}"
    return ",".join(sorted(f"{use}={said}" for use, said in found.items()))


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


def parse_list(lines: Iterable[str], where: str = "list") -> AddressList:
    """Parse the lines of a list of domains, addresses and document ids. If an entry comes again, the first one counts.

    Raise DataError, with `where` and the line's number, for a line that can match no page.
    """
    made = AddressList()
    for number, line in enumerate(lines, 1):
        entry, reason = cells_of(line)
        if entry:
            try:
                target = target_of_line(entry)
            except DataError as error:
                raise DataError(f"{where}, line {number}: {error}") from None
            made.reasons.setdefault(target.entry, REASON_CHARACTERS.sub("_", reason.lower()).strip("_"))
    return made


def cells_of(line: str) -> tuple[str, str]:
    """Split a line of a list into entry and reason; the entry of a line without one is empty.

    A comment begins the line or follows white space, because URLs may contain a `#`.
    """
    entry, _, reason = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip().partition("\t")
    return entry.strip(), reason.strip()


def check_lists(uris: Iterable[str]) -> None:
    """Raise DataError for the first line of a list that can match no page, and for a list that cannot be read."""
    for uri in uris:
        _read(uri, checksum_of(uri))


@lru_cache(maxsize=8)
def read_lists(uris: Sequence[str]) -> AddressList:
    """Read several lists as one. If an entry has several reasons, the first one counts."""
    made = AddressList()
    for uri in reversed(uris):
        made.reasons.update(_read(uri, checksum_of(uri)).reasons)
    return made


@lru_cache(maxsize=64)
def _read(uri: str, _checksum: str) -> AddressList:
    try:
        with open_uri(uri) as stream, decompressed(io.BytesIO(stream.read()), uri) as raw:
            return parse_list(list(bounded_text(raw, uri)), uri)
    except (UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{uri}: is no list that can be read ({error})") from None

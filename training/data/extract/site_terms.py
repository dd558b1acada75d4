"""Terms that a site states for its pages in files of its own: robots.txt, ai.txt, trust.txt and tdmrep.json.

Pages do not hold these files, so the recipe names archives that do, such as Common Crawl's archives of robots.txt. Of
the records in them only these files are read, whatever else the archives hold; of two copies of a file the later one
counts (WARC-Date, then order).

Formats: RFC 9309 (robots.txt); draft-ietf-aipref-attach (`Content-Usage`), Cloudflare's `Content-Signal`,
draft-canel-robots-ai-control (`DisallowAITraining`) and RSL (`License`) in robots.txt; Spawning's ai.txt and
draft-car-ai-txt-wellknown; JournalList's trust.txt; the TDM Reservation Protocol's tdmrep.json.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from training.contract.job import DataError
from training.data.crawl.warc import Record, read_warc
from training.data.extract.responses import PayloadError, parse_response, payload
from training.data.extract.terms import AI_CRAWLERS, Terms, usage_of
from training.data.sources import checksum_of, open_uri

ROBOTS, TDM, TRUST = "/robots.txt", "/.well-known/tdmrep.json", "/trust.txt"
AI = ("/ai.txt", "/.well-known/ai.txt")
FILES = frozenset({ROBOTS, TDM, TRUST, "/.well-known/trust.txt", *AI})
MAX_FILE_BYTES = 512 << 10  # RFC 9309 asks for 500 KiB at least
USAGE_FIELDS = ("content-usage", "content-signal")


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteRule:
    """A line of robots.txt or ai.txt: whether a pattern of paths is allowed, or which usage it states."""

    pattern: str
    says: str  # "allow", "disallow", or a usage

    @property
    def matcher(self) -> re.Pattern[str]:
        """The pattern as a regular expression: `*` is any text, `$` at the end the path's end (RFC 9309, 2.2.3)."""
        return _matcher(self.pattern)


@lru_cache(maxsize=4096)
def _matcher(pattern: str) -> re.Pattern[str]:
    body, end = (pattern[:-1], r"\Z") if pattern.endswith("$") else (pattern, "")
    pieces = [re.escape(unquote(piece)) for piece in re.split(r"\*+", body)]
    # Each piece is taken where it first occurs, so that many stars cost no more than one; only the last may move.
    lazy = [f"(?>.*?{piece})" for piece in pieces[1:-1]]
    last = [f".*{pieces[-1]}" if end else f".*?{pieces[-1]}"] if len(pieces) > 1 else []
    return re.compile("".join((pieces[0], *lazy, *last, end)), re.DOTALL)


def groups_of(text: str) -> dict[str, list[SiteRule]]:
    """Return the rules of a robots.txt or ai.txt by lower-case crawler; those before any group are `*`'s."""
    groups: dict[str, list[SiteRule]] = {}
    names: list[str] = ["*"]
    is_open = False  # whether lines that name crawlers are being read
    for line in text.replace("\r", "\n").split("\n"):
        field, colon, value = line.partition("#")[0].partition(":")
        field, value = field.strip().lower(), value.strip()
        if not colon:
            continue
        if field == "user-agent":
            names = [*names, value.lower()] if is_open else [value.lower()]
            is_open = True
            continue
        rule = _rule(field, value)
        if rule is not None:
            is_open = False
            for name in names:
                groups.setdefault(name, []).append(rule)
    return groups


def _rule(field: str, value: str) -> SiteRule | None:
    if field in ("allow", "disallow"):
        return SiteRule(pattern=value, says=field) if value else None
    if field in ("allowaitraining", "disallowaitraining"):
        said = "train-ai=y" if field == "allowaitraining" else "train-ai=n"
        return SiteRule(pattern=value or "/", says=said) if value or field == "allowaitraining" else None
    if field in USAGE_FIELDS:
        path, _, rest = value.partition(" ")
        has_path = path.startswith(("/", "*"))
        return SiteRule(pattern=path if has_path else "/", says=usage_of(rest if has_path else value))
    if field == "license" and value:
        return SiteRule(pattern="/", says=f"license={value}")
    return None


def disallows(rules: Sequence[SiteRule], path: str) -> bool:
    """Whether rules forbid a path: of those that match it the longest pattern decides, and `allow` if two are equal."""
    found = [
        (len(rule.pattern), rule.says == "allow")
        for rule in rules
        if rule.says in ("allow", "disallow") and rule.matcher.match(path)
    ]
    return bool(found) and not max(found)[1]


def usages(rules: Sequence[SiteRule], path: str) -> set[str]:
    """Return the usages that rules state for a path; of several lines for one use the longest pattern decides."""
    best: dict[str, tuple[int, str]] = {}
    for rule in rules:
        if rule.says not in ("allow", "disallow") and rule.matcher.match(path):
            for one in filter(None, rule.says.split(",")):
                use = one.partition("=")[0]
                if len(rule.pattern) >= best.get(use, (0, ""))[0]:
                    best[use] = len(rule.pattern), one
    return {one for _, one in best.values()}


@dataclass(frozen=True, slots=True)
class SiteTerms:
    """What the sites of some archives state, by host; each host has the text of its files by path."""

    files: Mapping[str, Mapping[str, str]]

    def of(self, url: str, page: Terms) -> Terms:
        """Return what a page states, with what its site states for its address.

        A page's own reservation of text and data mining comes before the site's, as the protocol says.
        """
        parts = _parts(url)
        files = self.files.get(parts[0]) if parts else None
        if not parts or not files:
            return page
        path = unquote(parts[1])
        robots = set(filter(None, page.robots.split(",")))
        usage = set(filter(None, page.usage.split(",")))
        for name, text in files.items():
            if name == TDM:
                page = page if page.tdm_reservation else replace(page, tdm_reservation=_reservation(text, path))
            elif name in AI:
                robots |= {"ai.txt:disallow"} if disallows(_groups(text).get("*", ()), _with_ending(path)) else set()
                usage |= _policies(text, "training", ":")
            elif name == ROBOTS:
                groups = _groups(text)
                robots |= {
                    f"{crawler}:disallow" for crawler in groups
                    if (crawler in AI_CRAWLERS or crawler == "*") and disallows(groups[crawler], path)
                }  # fmt: skip
                usage |= usages(groups.get("*", ()), path)
            else:
                usage |= _policies(text, "datatrainingallowed", "=")
        return replace(page, robots=",".join(sorted(robots)), usage=",".join(sorted(usage)))


@lru_cache(maxsize=256)
def _groups(text: str) -> dict[str, list[SiteRule]]:
    return groups_of(text)


def _with_ending(path: str) -> str:
    """Return a path as ai.txt names it, by its kind of file: a page without an ending is HTML."""
    return path if "." in path.rpartition("/")[2] else path + ".html"


def _policies(text: str, name: str, sign: str) -> set[str]:
    """Return the usage in a line `name: value` of a file, such as `training=n` of `Training: deny`."""
    for line in text.splitlines():
        field, found, value = line.partition("#")[0].partition(sign)
        if found and field.strip().lower() == name and value.strip():
            return set(usage_of(f"{name}={value.strip().lower()}").split(","))
    return set()


def _reservation(text: str, path: str) -> str:
    """Return the reservation of the first entry of a tdmrep.json whose location is the path's, as a page states it."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    for one in entries if isinstance(entries, list) else ():
        if isinstance(one, dict) and _matcher(str(one.get("location") or "/")).match(path):
            reservation = str(one.get("tdm-reservation", ""))
            policy = one.get("tdm-policy")
            known = reservation in ("0", "1")
            return f"{reservation} {policy if isinstance(policy, str) else ''}".strip() if known else ""
    return ""


def _parts(url: str) -> tuple[str, str] | None:
    """Return the host with its port and the path with its query of an address; None if it has no host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host:
        return None
    named = host if port in (None, 80, 443) else f"{host}:{port}"
    return named, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


@lru_cache(maxsize=4)
def read_site_terms(uris: tuple[str, ...]) -> SiteTerms:
    """Return the newest robots.txt, ai.txt and similar files (FILES) of each site, read from archives of such files.

    Raise DataError for an archive that holds none of them.
    """
    newest: dict[str, dict[str, tuple[str, str]]] = {}
    for uri in uris:
        found = _read(uri, checksum_of(uri))
        if not found:
            raise DataError(f"{uri}: holds no {', '.join(sorted(FILES))}; extract.site_files names archives of them")
        for host, name, date, text in found:
            if date >= newest.setdefault(host, {}).get(name, ("", ""))[0]:
                newest[host][name] = date, text
    return SiteTerms({host: {name: text for name, (_, text) in files.items()} for host, files in newest.items()})


@lru_cache(maxsize=16)
def _read(uri: str, _checksum: str) -> tuple[tuple[str, str, str, str], ...]:
    """Return host, path, date and text of the sites' files in an archive."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "archive")
        with open_uri(uri) as source, open(path, "wb") as stream:
            while block := source.read(io.DEFAULT_BUFFER_SIZE):
                stream.write(block)
        records = read_warc(path, max_content_bytes=2 * MAX_FILE_BYTES)
        return tuple(one for item in records if isinstance(item, Record) for one in _file(item))


def _file(record: Record) -> Iterator[tuple[str, str, str, str]]:
    parts = _parts(record.target_uri) if record.type in ("response", "resource") else None
    if not parts or parts[1] not in FILES:
        return
    try:
        if record.type == "response":
            response = parse_response(record.buffer, record.start, record.end)
            body = payload(response, max_bytes=MAX_FILE_BYTES) if response.status == 200 else b""
        else:
            body = record.content
    except PayloadError:
        return
    text = body[:MAX_FILE_BYTES].decode("utf-8-sig", "replace")
    if text.strip() and not text.lstrip().startswith("<"):  # many sites answer every address with a page
        yield parts[0], parts[1], record.headers.get("warc-date", ""), text

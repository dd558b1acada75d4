"""Bad input by the thousand: archives with something broken in them, and pages that no browser should be shown.

Every case is a pure function of its number. `tests/training/data/test_fuzz.py` runs the first few of each kind,
`python -m benchmarks.fuzz` as many as it is told.
"""

from __future__ import annotations

import gzip
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

from training.data.responses import PayloadError, Response, payload
from training.data.sandbox import Failure, Page, Sandbox
from training.data.warc import Damage, Record, read_warc
from training.recipe import ExtractRecipe

WORDS = "dough rests warm oven flour water until doubled slowly then baked golden crust evening".split()
RECORDS_PER_FILE = 12


# Archives


@dataclass(frozen=True, slots=True)
class Archive:
    """A broken archive, and the block of each record whose bytes were left alone."""

    data: bytes
    intact: frozenset[bytes]
    kind: str
    num_touched: int


def archive(number: int) -> Archive:
    """Broken archive `number`."""
    rng = random.Random(number)
    codec = ("gzip", "plain", "zstd")[number % 3]
    blocks = [_block(rng, place) for place in range(RECORDS_PER_FILE)]
    members = [_compressed(_record(block), codec) for block in blocks]
    kind, break_ = MUTATIONS[number // 3 % len(MUTATIONS)]
    touched = break_(members, rng)
    intact = frozenset(block for place, block in enumerate(blocks) if place not in touched)
    return Archive(data=b"".join(members), intact=intact, kind=f"{codec}, {kind}", num_touched=len(touched))


def _block(rng: random.Random, place: int) -> bytes:
    words = " ".join(rng.choices(WORDS, k=rng.randrange(5, 400)))
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>record {place} {rng.random()} {words}".encode()


def _record(block: bytes) -> bytes:
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.test/\r\nContent-Length: {len(block)}\r\n\r\n"
    return head.encode() + block + b"\r\n\r\n"


def _compressed(record: bytes, codec: str) -> bytes:
    if codec == "gzip":
        return gzip.compress(record, mtime=0)
    return zstandard.compress(record) if codec == "zstd" else record


# A mutation changes members in place and says which it touched.


def _flip_bits(members: list[bytes], rng: random.Random) -> set[int]:
    place = rng.randrange(len(members))
    data = bytearray(members[place])
    for _ in range(rng.randrange(1, 9)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    members[place] = bytes(data)
    return {place}


def _cut(members: list[bytes], rng: random.Random) -> set[int]:
    place = rng.randrange(len(members))
    data = members[place]
    start = rng.randrange(len(data))
    members[place] = data[:start] + data[start + rng.randrange(1, len(data)) :]
    return {place}


def _insert(members: list[bytes], rng: random.Random) -> set[int]:
    place = rng.randrange(len(members))
    at = rng.randrange(1, len(members[place]))
    members[place] = members[place][:at] + rng.randbytes(rng.randrange(1, 300)) + members[place][at:]
    return {place}


def _put_between(members: list[bytes], rng: random.Random) -> set[int]:
    members[rng.randrange(len(members))] += rng.randbytes(rng.randrange(1, 5000))
    return set()


def _end_early(members: list[bytes], rng: random.Random) -> set[int]:
    place = rng.randrange(1, len(members))
    # Of the block too, not of the line ends behind it alone.
    members[place] = members[place][: rng.randrange(1, len(members[place]) - 4)]
    del members[place + 1 :]
    return set(range(place, RECORDS_PER_FILE))


def _zero(members: list[bytes], rng: random.Random) -> set[int]:
    place = rng.randrange(len(members))
    start = rng.randrange(len(members[place]))
    size = min(rng.randrange(1, 600), len(members[place]) - start)
    members[place] = members[place][:start] + bytes(size) + members[place][start + size :]
    return {place}


def _lose_many(members: list[bytes], rng: random.Random) -> set[int]:
    touched: set[int] = set()
    for break_ in rng.choices((_flip_bits, _cut, _insert, _zero), k=3):
        touched |= break_(members, rng)
    return touched


MUTATIONS: tuple[tuple[str, Callable[[list[bytes], random.Random], set[int]]], ...] = (
    ("bits flipped", _flip_bits),
    ("bytes cut out", _cut),
    ("bytes put in", _insert),
    ("noise between records", _put_between),
    ("broken off", _end_early),
    ("zeros", _zero),
    ("three breaks", _lose_many),
)


@dataclass(slots=True)
class ArchiveReport:
    """What reading broken archives gave. Lost: records that were left alone and not read."""

    files: int = 0
    intact: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    silent: Counter[str] = field(default_factory=Counter)
    damages: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0


def read_archives(numbers: Iterable[int], folder: Path) -> ArchiveReport:
    """Read broken archives. An exception is one that the reader let out."""
    report = ArchiveReport()
    path = folder / "broken.warc"
    for number in numbers:
        made = archive(number)
        path.write_bytes(made.data)
        started = time.process_time()
        items = list(read_warc(path, max_content_bytes=1 << 20))
        report.slowest_seconds = max(report.slowest_seconds, time.process_time() - started)
        read = {item.content for item in items if isinstance(item, Record)}
        damages = [item.reason for item in items if isinstance(item, Damage)]
        report.files += 1
        report.intact += len(made.intact)
        report.damages.update(damages)
        if lost := len(made.intact - read):
            report.lost[made.kind] += lost
        if len(read) < RECORDS_PER_FILE and not damages and not _ends_between(made):
            report.silent[made.kind] += 1
    return report


def _ends_between(made: Archive) -> bool:
    """Whether only whole records are missing, or only bytes between two: a break that leaves no trace in the file."""
    return made.kind.endswith("broken off") and made.data.endswith(b"\r\n\r\n")


# Pages


def page(number: int) -> tuple[dict[str, str], bytes]:
    """Headers and body, as sent, of hostile page `number`."""
    rng = random.Random(number)
    body = PAGES[number % len(PAGES)](rng)
    charset = rng.choice(("", "; charset=utf-8", "; charset=utf-16", "; charset=shift_jis", "; charset=nonsense"))
    headers = {"content-type": f"text/html{charset}"}
    coding = rng.random()
    if coding < 0.05:
        return headers | {"content-encoding": "gzip"}, gzip.compress(body)
    if coding < 0.07:
        return headers | {"content-encoding": "gzip"}, gzip.compress(body)[: rng.randrange(4, 60)]
    if coding < 0.09:
        return headers | {"content-encoding": "deflate"}, zlib.compress(bytes(rng.randrange(1, 30) << 20))
    if coding < 0.11:
        return headers | {"transfer-encoding": "chunked"}, b"%x\r\n" % rng.randrange(1 << 30) + body
    return headers, body


def _size(rng: random.Random) -> int:
    """Mostly small, sometimes as large as the limits let pass."""
    return int(10 ** rng.uniform(0, 4.7))


def _prose(rng: random.Random) -> bytes:
    return b"<p>" + " ".join(rng.choices(WORDS, k=80)).encode() + b".</p>"


def _nested(rng: random.Random) -> bytes:
    names = rng.choices(
        [b"div", b"b", b"table><tr><td", b"ul><li", b"svg><g", b"font color=x", b"a href=/", b"quote", b"x-y"],
        k=rng.randrange(1, 4),
    )  # fmt: skip
    return b"".join(b"<" + name + b">" for name in names) * _size(rng) + _prose(rng)


def _closing(rng: random.Random) -> bytes:
    return _prose(rng) + rng.choice([b"</div>", b"</p>", b"</table>", b"</a></b>", b"</"]) * _size(rng) + _prose(rng)


def _attributes(rng: random.Random) -> bytes:
    names = b"".join(b" a%d='%s'" % (i, b"x" * rng.randrange(3)) for i in range(_size(rng)))
    return b"<div" + names + b">" + _prose(rng) + b"<div class='" + b"ad-nav " * _size(rng) + b"'>" + _prose(rng)


def _unclosed(rng: random.Random) -> bytes:
    end = rng.choice(
        [b"<!--", b"<script>", b"<style>", b"<textarea>", b"<title>", b"<a href='", b"<![CDATA[", b"<", b"</"]
    )
    return _prose(rng) * rng.randrange(4) + end + b"x<>-" * _size(rng)


def _noise(rng: random.Random) -> bytes:
    return b"<html><p>" + rng.randbytes(_size(rng))


def _tag_noise(rng: random.Random) -> bytes:
    signs = [
        b"<",
        b">",
        b"/",
        b"=",
        b"'",
        b'"',
        b"!--",
        b"-->",
        b"p",
        b"div",
        b"table",
        b"&",
        b"\0",
        b"\xff",
        b" ",
        b"td",
    ]
    return b"<p>" + b"".join(rng.choices(signs, k=_size(rng)))


def _entities(rng: random.Random) -> bytes:
    kinds = [b"&#xD800;", b"&#0;", b"&#x110000;", b"&nbsp;", b"&amp", b"&#99999999999;", b"&bogus;", b"&#xFFFE;"]
    return _prose(rng) + b"<p>" + b"".join(rng.choices(kinds, k=_size(rng)))


def _table(rng: random.Random) -> bytes:
    span = rng.choice([b"9007199254740991", b"-1", b"65536", b"x"])
    return b"<table><tr>" + b"<td colspan=" + span + b" rowspan=" + span + b">x" * _size(rng) + _prose(rng)


def _surrogates(rng: random.Random) -> bytes:
    return _prose(rng) + b"<p>" + b"\xed\xa0\x80\xed\xb0\x80\xc0\xaf\x00\xf8\x88\x80\x80\x80" * _size(rng)


def _utf16(rng: random.Random) -> bytes:
    return rng.choice([b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf"]) + _prose(rng) * 3 + b"\x00\xd8" * (_size(rng) // 8)


def _mixed(rng: random.Random) -> bytes:
    parts = [PAGES[rng.randrange(len(PAGES) - 1)](rng) for _ in range(2)]
    return b"".join(parts)[:400_000] + _prose(rng)


PAGES: tuple[Callable[[random.Random], bytes], ...] = (
    _nested, _closing, _attributes, _unclosed, _noise, _tag_noise, _entities, _table, _surrogates, _utf16, _mixed,
)  # fmt: skip


@dataclass(slots=True)
class PageReport:
    """What extracting hostile pages gave: how many of each fate, and what no text may have."""

    fates: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    unclean: list[int] = field(default_factory=list)
    deaths: int = 0
    slowest_batch_seconds: float = 0.0


def extract_pages(numbers: range, settings: ExtractRecipe, *, batch: int = 32) -> PageReport:
    """Undo the codings of hostile pages and extract them in the sandbox."""
    report = PageReport()
    sandbox = Sandbox(settings)
    try:
        for start in range(numbers.start, numbers.stop, batch):
            chosen, pages = [], []
            for number in range(start, min(start + batch, numbers.stop)):
                if (made := _undone(number, settings, report)) is not None:
                    chosen.append(number)
                    pages.append(made)
            started = time.monotonic()
            sandbox.submit(pages)
            for number, found in zip(chosen, sandbox.collect(), strict=True):
                if isinstance(found, Failure):
                    report.failures.append(f"{number}: {found.detail}")
                else:
                    report.fates[found.reason or "kept"] += 1
                    if not _is_clean(found.text + found.title):
                        report.unclean.append(number)
            report.slowest_batch_seconds = max(report.slowest_batch_seconds, time.monotonic() - started)
    finally:
        sandbox.close()
    report.deaths = sandbox.num_deaths
    return report


def _undone(number: int, settings: ExtractRecipe, report: PageReport) -> Page | None:
    headers, body = page(number)
    try:
        plain = payload(Response(status=200, headers=headers, body=body), max_bytes=settings.max_html_bytes)
    except PayloadError as error:
        report.fates[error.reason] += 1
        return None
    return Page(body=plain, headers=headers)


def _is_clean(text: str) -> bool:
    """Neither NUL nor lone surrogate nor carriage return."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text and "\r" not in text


SETTINGS = tuple(ExtractRecipe(extractor=name, min_characters=0) for name in ("resiliparse", "blocks"))
"""The extractors that see hostile pages first."""

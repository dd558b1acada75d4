"""Bad input by the thousand: archives with something broken in them, and pages that no browser should be shown.

Every case is a pure function of its number. `tests/training/data/test_fuzz.py` runs the first few of each kind,
`python -m benchmarks.fuzz` as many as it is told.
"""

from __future__ import annotations

import gzip
import os
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha1
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import zstandard
from fastwarc.stream_io import Lz4Writer

from training.data.crawl.warc import Damage, Record, read_warc
from training.data.extract.digests import contradicts
from training.data.extract.extract import DOCUMENT_TYPES, _judged
from training.data.extract.isolation import Failure, Isolation, RawPage
from training.data.extract.record_outcomes import ArchiveFile, Quarantined
from training.data.extract.responses import PayloadError, Response, payload
from training.data.extract.settings import EXTRACTORS, ExtractRecipe

WORDS = "dough rests warm oven flour water until doubled slowly then baked golden crust evening".split()
RECORDS_PER_FILE = 12
CHECKED = ExtractRecipe(check_digests=True)
PEAK_BYTES = 1 << 30  # of memory in use, for the one that reads and for the extractor each


# Archives


@dataclass(frozen=True, slots=True)
class Archive:
    """A broken archive, the blocks of its records before it was broken, and the places of those left alone."""

    data: bytes
    blocks: tuple[bytes, ...]
    intact: frozenset[int]
    kind: str
    ids: tuple[str, ...] = ()  # of records, where their blocks alone do not tell them apart


def archive(number: int) -> Archive:
    """Broken archive `number`. Its records state their digests, in two fields, so that one break spares one of them."""
    rng = random.Random(number)
    form = FORMS[number % len(FORMS)]
    blocks = [_block(rng, place) for place in range(RECORDS_PER_FILE)]
    kind, break_ = MUTATIONS[number // len(FORMS) % len(MUTATIONS)]
    data, intact = _broken([_record(block) for block in blocks], form, break_, rng)
    return Archive(data=data, blocks=tuple(blocks), intact=frozenset(intact), kind=f"{form}, {kind}")


def real_archive(path: Path, number: int) -> Archive:
    """Broken archive `number` made of some neighbouring records of a sound file in which each is a member."""
    rng = random.Random(f"{path.name} {number}")
    data = path.read_bytes()
    items = [item for item in read_warc(path, max_content_bytes=1 << 30) if isinstance(item, Record)]
    first = rng.randrange(max(1, len(items) - RECORDS_PER_FILE))
    chosen = items[first : first + RECORDS_PER_FILE]
    ends = [item.offset for item in items[first + 1 : first + len(chosen)]]
    ends.append(items[first + len(chosen)].offset if first + len(chosen) < len(items) else len(data))
    members = [data[item.offset : end] for item, end in zip(chosen, ends, strict=True)]
    kind, break_ = MUTATIONS[number % len(MUTATIONS)]
    touched = break_(members, rng)
    intact = frozenset(range(len(chosen))) - touched
    return Archive(
        data=b"".join(members),
        blocks=tuple(item.content for item in chosen),
        intact=intact,
        kind=f"{path.name}, {kind}",
        ids=tuple(item.headers.get("warc-record-id", "") for item in chosen),
    )


def _block(rng: random.Random, place: int) -> bytes:
    words = " ".join(rng.choices(WORDS, k=rng.randrange(5, 400)))
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>record {place} {rng.random()} {words}".encode()


def _record(block: bytes) -> bytes:
    body = block.partition(b"\r\n\r\n")[2]
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Block-Digest: sha1:{sha1(block).hexdigest()}\r\n"
        f"WARC-Target-URI: http://a.test/\r\nWARC-Payload-Digest: sha1:{sha1(body).hexdigest()}\r\n"
        f"Content-Length: {len(block)}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def lz4_frame(data: bytes) -> bytes:
    """An LZ4 frame."""
    sink = BytesIO()
    writer = Lz4Writer(sink)
    writer.write(data)
    writer.close()
    return sink.getvalue()


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda record: gzip.compress(record, mtime=0),
    "plain": bytes,
    "zstd": zstandard.compress,
    "lz4": lz4_frame,
}
FORMS = (*COMPRESSED, "gzip of broken records", "broken gzip as a whole")

Mutation = Callable[[list[bytes], random.Random], set[int]]


def _broken(records: list[bytes], form: str, break_: Mutation, rng: random.Random) -> tuple[bytes, set[int]]:
    """The file, and the places of records whose bytes can all be had."""
    if form == "broken gzip as a whole":
        whole = gzip.compress(b"".join(records), mtime=0)
        size = -(-len(whole) // len(records))
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        break_(pieces, rng)
        data = b"".join(pieces)
        same = next((at for at, (one, other) in enumerate(zip(whole, data, strict=False)) if one != other), len(data))
        held = len(zlib.decompressobj(31).decompress(whole[: min(same, len(whole))]))
        ends = accumulate(len(record) for record in records)
        return data, {place for place, end in enumerate(ends) if end <= held}
    if form == "gzip of broken records":
        touched = break_(records, rng)
        data = gzip.compress(b"".join(records), mtime=0)
    else:
        records[:] = map(COMPRESSED[form], records)
        touched = break_(records, rng)
        data = b"".join(records)
    return data, set(range(RECORDS_PER_FILE)) - touched


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
    members[place] = data[:start] + data[start + rng.randrange(1, max(2, len(data))) :]
    return {place}


def _insert(members: list[bytes], rng: random.Random) -> set[int]:
    place = rng.randrange(len(members))
    at = rng.randrange(1, max(2, len(members[place])))
    members[place] = members[place][:at] + rng.randbytes(rng.randrange(1, 300)) + members[place][at:]
    return {place}


def _put_between(members: list[bytes], rng: random.Random) -> set[int]:
    members[rng.randrange(len(members))] += rng.randbytes(rng.randrange(1, 5000))
    return set()


def _end_early(members: list[bytes], rng: random.Random) -> set[int]:
    place, number = rng.randrange(1, len(members)), len(members)
    # Of the block too, not of the line ends behind it alone.
    members[place] = members[place][: rng.randrange(1, len(members[place]) - 4)]
    del members[place + 1 :]
    return set(range(place, number))


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


MUTATIONS: tuple[tuple[str, Mutation], ...] = (
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
    """What reading broken archives gave, by kind.

    Lost: records that were left alone and not read. Silent: broken records that are not read right and lie in no
    stretch that is quarantined. Wrong: what was taken for a sound page and is none of the records, though it states a
    digest; unprovable: the same, but its digests were broken too, or it is no page.
    """

    files: int = 0
    intact: int = 0
    touched: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    silent: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    unprovable: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0

    @property
    def faults(self) -> int:
        """How much there is that must not be."""
        return self.lost.total() + self.silent.total() + self.wrong.total()


def read_archives(archives: Iterable[Archive], folder: Path) -> ArchiveReport:
    """Read broken archives as the stage does, digests checked. An exception is one that the reader let out."""
    report = ArchiveReport()
    path = folder / "broken.warc"
    file = ArchiveFile(path=path, name=path.name, snapshot="s", label="web", text_field="text", url_field="url")
    for made in archives:
        path.write_bytes(made.data)
        started = time.process_time()
        items = [
            (item, _judged(item, file, CHECKED)) for item in read_warc(path, max_content_bytes=CHECKED.max_html_bytes)
        ]
        report.slowest_seconds = max(report.slowest_seconds, time.process_time() - started)
        report.files += 1
        report.intact += len(made.intact)
        report.touched += len(made.blocks) - len(made.intact)
        _compare(made, items, report)
    return report


def _place_of(item: Record, made: Archive, first: int) -> int:
    """Which of the records from `first` on it is; -1 when it is none."""
    places = [place for place in range(first, len(made.blocks)) if made.blocks[place] == item.content]
    id = item.headers.get("warc-record-id", "")
    return min(places, key=lambda place: bool(made.ids) and made.ids[place] != id, default=-1)


def _compare(made: Archive, items: list[tuple[Record | Damage, Any]], report: ArchiveReport) -> None:
    """Find each record again, in order; between those that were read right stands what was quarantined."""
    right: set[int] = set()
    told: set[int] = set()  # places of which it is said that something is wrong there
    last, is_told = -1, False
    for item, fate in items:
        if isinstance(item, Damage) or isinstance(fate, Quarantined):
            report.quarantined[fate.reason] += 1
            is_told = True
        elif (place := _place_of(item, made, last + 1)) >= 0:
            right.add(place)
            told |= set(range(last + 1, place)) if is_told else set()
            last, is_told = place, False
        elif item.content not in made.blocks:  # else it is one of them once more, as broken compression repeats bytes
            stated = (item.headers.get(name, "") for name in ("warc-block-digest", "warc-payload-digest"))
            is_provable = any(contradicts(digest, ()) for digest in stated) and item.type in DOCUMENT_TYPES
            (report.wrong if is_provable else report.unprovable)[made.kind] += 1
            is_told = is_told or not is_provable
    if is_told:
        told |= set(range(last + 1, len(made.blocks)))
    if lost := len(made.intact - right):
        report.lost[made.kind] += lost
    if silent := len(set(range(len(made.blocks))) - right - told - made.intact):
        report.silent[made.kind] += silent


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
    """What extracting hostile pages gave: how many of each fate, and what no text may have.

    Seconds are the extractor's processor seconds, `peak_bytes` the most memory it had in use.
    """

    fates: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    unclean: list[int] = field(default_factory=list)
    deaths: int = 0
    seconds: float = 0.0
    slowest_batch_seconds: float = 0.0
    peak_bytes: int = 0

    @property
    def faults(self) -> int:
        """How much there is that must not be."""
        return len(self.failures) + len(self.unclean) + self.deaths + (self.peak_bytes > PEAK_BYTES)


def extract_pages(numbers: range, settings: ExtractRecipe, *, batch: int = 32) -> PageReport:
    """Undo the codings of hostile pages and extract them in the isolation."""
    report = PageReport()
    isolation = Isolation(settings)
    try:
        for start in range(numbers.start, numbers.stop, batch):
            chosen, pages = [], []
            for number in range(start, min(start + batch, numbers.stop)):
                if (made := _undone(number, settings, report)) is not None:
                    chosen.append(number)
                    pages.append(made)
            isolation.submit(pages)
            for number, found in zip(chosen, isolation.collect(), strict=True):
                if isinstance(found, Failure):
                    report.failures.append(f"{number}: {found.detail}")
                else:
                    report.fates[found.reason or "kept"] += 1
                    if not _is_clean(found.text + found.title):
                        report.unclean.append(number)
            before = report.seconds
            report.seconds, peak = _used(isolation)
            report.peak_bytes = max(report.peak_bytes, peak)
            report.slowest_batch_seconds = max(report.slowest_batch_seconds, report.seconds - before)
    finally:
        isolation.close()
    report.deaths = isolation.num_deaths
    return report


def _used(isolation: Isolation) -> tuple[float, int]:
    """Processor seconds of the extractor so far, and the most memory that it had in use."""
    folder = Path("/proc", str(isolation._child.pid))
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(lines["VmHWM"].split()[0]) << 10


def _undone(number: int, settings: ExtractRecipe, report: PageReport) -> RawPage | None:
    headers, body = page(number)
    try:
        plain = payload(Response(status=200, headers=headers, body=body), max_bytes=settings.max_html_bytes)
    except PayloadError as error:
        report.fates[error.reason] += 1
        return None
    return RawPage(body=plain, headers=headers)


def _is_clean(text: str) -> bool:
    """Neither NUL nor lone surrogate nor carriage return."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text and "\r" not in text


SETTINGS = {name: ExtractRecipe(extractor=name, min_characters=0) for name in EXTRACTORS}
"""Every extractor there is, with everything that it finds kept."""

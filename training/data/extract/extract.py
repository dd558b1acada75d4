"""Stage `extract`: turns the records of archive files into text documents, one rank per archive file.

If the recipe asks for files of a good size, a rank extracts several small archives into one file, or writes the records
of a large one to several files (training/data/extract/sizes.py).

The input records are the WARC records of type response, resource and conversion, and every damaged part of a file; in a
file of extracted text, each row is a record, and a file of a folder is one record. In a token shard each document is a
record; its text is decoded, and the gate `tokens_return` asks whether the tokenizer is the right one. Requests,
metadata, revisits and the like are not documents; the metric `other_records` counts them. A record of a non-standard
type is quarantined, because it may be a damaged page. Status, type and size are judged by the headers, before anything
is parsed.

Reasons for dropping: takedown (with the list's reason after a colon), blocked, redirect, http_status, not_html,
too_large, truncated, empty, too_many_nodes, too_deep, language, robots, usage, tdm_reserved, licence, no_main_text,
too_short. Reasons for quarantine: those of `training.data.crawl.warc.Damage`, and unknown_type, bad_http, wrong_digest
(if the recipe checks digests, or a token shard states them), bad_transfer_encoding, bad_content_encoding, bomb,
missing_text, missing_prompt (if the recipe names a field of prompts), bad_row, special_token, unknown_token, not_utf8,
extractor_failed (it crashed or exceeded a limit of its isolation).
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

import pyarrow as pa
import zstandard

from training.contract.files.checksums import digest_of
from training.contract.job import Counts, DataError, Gate, InputArtifact, Job, Outcome, Share, Work
from training.contract.parts.outside import PartFailed
from training.contract.running.record_counter import Counted
from training.data.crawl.crawl import LIST_FILE, READER, SHARDS, problem_of
from training.data.crawl.folder import FILES, format_of
from training.data.crawl.reader import ReaderRecipe
from training.data.crawl.references import at_hand
from training.data.crawl.token_files import Spelling, TokenDocument, open_token_file, read_spelling
from training.data.crawl.warc import DOCUMENT_TYPES, Damage, Record, read_warc
from training.data.documents import (
    MAX_LINE_BYTES,
    TOO_LONG,
    DocumentWriter,
    LineWriter,
    bounded_lines,
    decompressed,
)
from training.data.extract.collection import Collection, joined
from training.data.extract.digests import contradicts
from training.data.extract.formats import BOOK_BYTES, BOOKS
from training.data.extract.isolation import (
    BATCH_BYTES,
    BATCH_PAGES,
    Failure,
    Isolation,
    RawPage,
    close_isolation,
    isolation_for,
)
from training.data.extract.pages.html import Extracted, clean, day_of, is_html, is_page
from training.data.extract.record_outcomes import (
    ADDED,
    TERMS,
    TRUNCATED,
    ArchiveFile,
    Fate,
    Kept,
    Other,
    Quarantined,
    columns_of,
    withdrawn,
)
from training.data.extract.responses import PayloadError, Response, parse_response, payload, without_chunks
from training.data.extract.reused import adjusted, check_lists, listing_of, still_holds
from training.data.extract.settings import EXTRACTORS, ExtractRecipe
from training.data.extract.site_terms import read_site_terms
from training.data.extract.sizes import pieces, together
from training.data.parquet_pages import RowTooLarge, UntrustedParquet
from training.data.sources import KeyTwice, json_of_row

__all__ = ["adjusted", "still_holds"]  # called by the runner, as parts of this stage

OTHER_TYPES = frozenset({"warcinfo", "request", "metadata", "revisit", "continuation"})  # the standard's other types
EXTRACTOR_FAILED = "extractor_failed"  # the reason for a page on which the extractor crashed, or raised
METRICS = (
    "other_records",
    "text_characters",
    "replaced_characters",
    "doubtful_pages",
    "second_extractor_pages",
    "truncated_pages",
    "charset_disagreements",
    "formulas",
)
MAX_WAITING_RECORDS = 4096  # most records, pages or not, in a batch
TRIED_FIRST, TRIED_EVERY = 50, 50  # documents of a token shard whose texts are encoded again
MIN_SAME_FRACTION = 0.95  # of these, in the gate `tokens_return`; the ends of documents that were cut differ
IDENTIFIED_TYPE = "warc-identified-payload-type"  # what the crawler found the payload to be, whatever the server said
MAX_HTTP_HEADER_BYTES = 1 << 20  # room for the headers of a page of the largest allowed size, so that it is not cut


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenArchive:
    """An archive file that is open: its records, and the function that tells what becomes of them."""

    file: ArchiveFile
    items: Iterator[Any]
    judge: Callable[..., Iterator[Fate]]


def num_ranks(job: Job) -> int:
    """Number of ranks: one per archive file, or fewer if small ones are extracted together."""
    return len(_ranks(job, listing_of(job)))


def _ranks(job: Job, listing: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], ...]]:
    """Return the archives of each rank."""
    return together(listing["files"], job.settings_as(ExtractRecipe, "extract").min_file_bytes)


def rank_shares(job: Job) -> list[Share]:
    """Return what each rank reads: its archive files, and the listing's entries for them and for the snapshot."""
    item, listing = job.input_of("crawl_archives"), listing_of(job)
    shared = {name: value for name, value in listing.items() if name != "files"}
    return [
        Share(
            files=tuple((item, name) for entry in entries for name in _files_of(entry)),
            facts={**shared, "archives": [_known(entry) | _identity(entry, item) for entry in entries]},
            listings=((item, LIST_FILE),),
        )
        for entries in _ranks(job, listing)
    ]


def _known(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the documents of an archive have from the listing: its name, and what is said of a folder's file."""
    return {name: entry[name] for name in ("name", "said") if name in entry}


def _files_of(entry: Mapping[str, Any]) -> list[str]:
    """Return the names of an archive's files in the crawl artifact: its own, its selection, and the files beside it."""
    return [*(entry[name] for name in ("path", "selected") if entry.get(name)), *entry.get("beside", ())]


def _identity(entry: Mapping[str, Any], item: InputArtifact) -> dict[str, Any]:
    """Return what identifies the content of a referenced archive; an empty mapping for an archive that was copied.

    This is the checksum, or else the ETag. If neither is known, it includes the digest of the listing, because the
    content is then fixed by the first reading under this listing.
    """
    if "uri" not in entry:
        return {}
    if entry["sha256"]:
        return {"sha256": entry["sha256"]}
    known = {name: entry[name] for name in ("uri", "bytes", "etag")}
    return known if entry["etag"] else known | {"listing": item.digest}


def rank_settings(job: Job) -> dict[str, Any]:
    """Return the settings that decide a rank's files, so that a rank with equal settings can be reused.

    The lists of blocked domains and takedowns are left out; `still_holds` checks whether they exclude the same records.
    """
    extract = {name: value for name, value in job.settings["extract"].items() if name not in ("blocked", "takedown")}
    data = {uri: job.settings["data"][uri] for uri in extract.get("site_files", ())}
    rest = {name: value for name, value in job.settings.items() if name != "data"} | {"extract": extract}
    return rest | ({"data": data} if data else {})


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Extract the archive files of a rank."""
    settings = job.settings_as(ExtractRecipe, "extract")
    listing = listing_of(job)
    entries = _ranks(job, listing)[rank]
    check_lists(job, settings)
    read: list[Mapping[str, Any]] = []
    collection = Collection()
    sources = _sources(job, work, rank, entries, read, collection)
    if len(entries) > 1 or settings.max_file_bytes is None:
        written = [_write(sources, settings, listing, work, f"{rank:05d}")]
    else:
        written = [
            _write(iter([replace(source, items=items)]), settings, listing, work, _name(rank, number))
            for source in sources
            for number, items in enumerate(pieces(source.items, settings.max_file_bytes))
        ]
    metrics: Counter[str] = Counter(dict.fromkeys(METRICS, 0))
    for one in written:
        metrics.update(one["metrics"])
    result = {
        "files": [name for one in written for name in one["files"]],
        "counts": Counts.total([one["counts"] for one in written]).as_json(),
        "metrics": metrics,
        "files_in": len(read),
        "collection": collection.as_json(),
    }
    fetched = [one for one in read if one]
    return result | ({"archive": _read_in_all(fetched)} if fetched else {})


def _name(rank: int, number: int) -> str:
    """Return the name of a rank's file; names are in the order of ranks and numbers."""
    return f"{rank:05d}_{number:04d}" if number else f"{rank:05d}"


def _sources(
    job: Job,
    work: Work,
    rank: int,
    entries: Sequence[Mapping[str, Any]],
    read: list[Mapping[str, Any]],
    collection: Collection,
) -> Iterator[OpenArchive]:
    """Yield the archives, each open until the next one is asked for.

    What a WARC file says of its collection is added to `collection`. For each archive that was gone through, what was
    read of it is added to `read`: size, checksum and requests if it is referenced, nothing if it was copied. A
    referenced archive without a readable record is one quarantined record.
    """
    settings, listing = job.settings_as(ExtractRecipe, "extract"), listing_of(job)
    archives, form = job.input_of("crawl_archives"), listing["form"]
    reader = job.settings_as(ReaderRecipe, "reader") if "reader" in job.settings else None
    find, judge = _FORMS[form]
    for entry in entries:
        if "uri" not in entry:
            beside = [archives.file(name) for name in entry.get("beside", ())]
            path, tokenizer = archives.file(entry["path"]), beside[-1] if beside else None
            file = _archive_file(path, listing, entry, tokenizer=tokenizer, reader=reader)
            yield OpenArchive(file=file, items=_noted(find(file, settings), form, collection), judge=judge)
            read.append({})
            continue
        with at_hand(entry, archives, work, rank) as given:
            file = _archive_file(given.path, listing, entry, reader=reader)
            problem = problem_of(given.path, form, text_field=file.text_field, snapshot=file.snapshot)
            if problem is not None and given.selection is None:
                whole = Quarantined(offset=0, reason=problem.reason, detail=problem.detail)
                yield OpenArchive(file=file, items=iter([whole]), judge=lambda items, *_: iter(items))
            else:
                items = _noted(given.placed(find(file, settings)), form, collection)
                yield OpenArchive(file=file, items=items, judge=judge)
        read.append(given.read)


def _noted(items: Iterator[Any], form: str, collection: Collection) -> Iterator[Any]:
    """Return the items of an archive; records of a WARC file are noted in `collection` as they are read."""
    return collection.of(items) if form == "warc" else items


def _archive_file(path: Path, listing: Mapping[str, Any], entry: Mapping[str, Any], **given: Any) -> ArchiveFile:
    shared = {name: listing[name] for name in ("snapshot", "label", "text_field", "url_field")}
    shared |= {"prompt_field": listing.get("prompt_field"), "said": entry.get("said", {})}
    return ArchiveFile(path=path, name=entry["name"], **shared, **given)


def _read_in_all(read: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the size of the archives, the requests for them, and one checksum of all their contents."""
    if len(read) == 1:
        return dict(read[0])
    return {
        "bytes": sum(one["bytes"] for one in read),
        "requests": sum(one["requests"] for one in read),
        "sha256": digest_of([one["sha256"] for one in read]),
    }


def documents_of(path: Path, form: str, settings: ExtractRecipe) -> Iterator[dict[str, Any]]:
    """Yield the documents, as rows, that extraction keeps of one file; used without a job, as by tests and benchmarks.

    Raise DataError if the file cannot be read.
    """
    file = ArchiveFile(path=path, name=path.name, snapshot="", label="", text_field="text", url_field="url")
    read, judge = _FORMS[form]
    yield from (fate.row for fate in judge(read(file, settings), file, settings) if _is_kept(fate))


def _is_kept(fate: Fate) -> TypeGuard[Kept]:
    return isinstance(fate, Kept) and not fate.reason


def _write(
    sources: Iterator[OpenArchive], settings: ExtractRecipe, listing: Mapping[str, Any], work: Work, name: str
) -> dict[str, Any]:
    """Write every record to the documents, the dropped ones or the quarantine; return files, counts and metrics.

    `records_in` is the number of items read minus the records that are not documents.
    """
    files = [f"documents/{name}.parquet", f"dropped/{name}.parquet", f"quarantine/{name}.jsonl"]
    quarantined: Counter[str] = Counter()
    metrics: Counter[str] = Counter()
    num_items = 0
    with ExitStack() as stack:
        kept = stack.enter_context(DocumentWriter(work.path / files[0], extra=columns_of(listing)))
        dropped = stack.enter_context(DocumentWriter(work.path / files[1], extra=(*ADDED, "reason")))
        quarantine = stack.enter_context(LineWriter(work.path / files[2]))
        for source in sources:
            items = Counted(source.items)
            for fate in source.judge(items, source.file, settings):
                if isinstance(fate, Quarantined):
                    quarantine.write(_as_line(fate, source.file))
                    quarantined[fate.reason] += 1
                elif isinstance(fate, Kept) and fate.reason:
                    dropped.write(fate.row | {"reason": fate.reason})
                elif isinstance(fate, Kept):
                    kept.write(fate.row)
                _measure(fate, metrics)
            num_items += items.number
    counts = Counts(
        records_in=num_items - metrics["other_records"],
        kept=kept.num_documents,
        dropped=dict(sorted(dropped.reasons.items())),
        quarantined=dict(sorted(quarantined.items())),
    )
    return {"files": files, "counts": counts.as_json(), "metrics": metrics}


def _as_line(fate: Quarantined, file: ArchiveFile) -> dict[str, Any]:
    return {
        "warc_file": file.name,
        "warc_offset": fate.offset,
        "reason": fate.reason,
        "detail": clean(fate.detail),
        "url": fate.url,
    }


def _measure(fate: Fate, metrics: Counter[str]) -> None:
    metrics["other_records"] += isinstance(fate, Other)
    if isinstance(fate, Kept):
        metrics["truncated_pages"] += bool(fate.row[TRUNCATED])
        metrics["charset_disagreements"] += fate.has_two_charsets
        if fate.gives_tokens_back is not None:
            metrics["documents_encoded_again"] += 1
            metrics["documents_with_other_tokens"] += not fate.gives_tokens_back
        metrics["doubtful_pages"] += fate.is_doubtful
        metrics["second_extractor_pages"] += fate.is_second
        if not fate.reason:
            metrics["text_characters"] += len(fate.row["text"])
            metrics["replaced_characters"] += fate.num_replaced
            metrics["formulas"] += fate.row.get("formulas") or 0


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Combine the counts and metrics of all ranks into the stage's outcome."""
    close_isolation()  # its time counts when it has ended
    counts = replace(
        Counts.total([rank["counts"] for rank in ranks]), files_in=sum(rank.get("files_in", 1) for rank in ranks)
    )
    read = [rank["archive"] for rank in ranks if "archive" in rank]
    if read and counts.records_in == sum(counts.quarantined.get(reason, 0) for reason in ("empty", "unreadable")):
        raise DataError(
            f"{job.partition}: no readable archive ({_listed(counts.quarantined)}); what is wrong with each of them is"
            f" in {work.path}/quarantine"
        )
    are_rows = (
        listing_of(job)["form"] != "warc"
    )  # damage in an archive is not the user's mistake; a wrong field name is
    if are_rows and counts.records_in and counts.records_in == sum(counts.quarantined.values()):
        raise DataError(
            f"{job.partition}: none of {counts.records_in} records can be used ({_listed(counts.quarantined)}); is this"
            f" the data that the snapshot should name? What is wrong with each of them is in {work.path}/quarantine"
        )
    metrics: Counter[str] = Counter(dict.fromkeys(METRICS, 0))
    for rank in ranks:
        metrics.update(rank["metrics"])
    doubtful, second = metrics["doubtful_pages"], metrics["second_extractor_pages"]
    work.progress.message(
        f"{counts.kept} documents of {counts.records_in} records;"
        f" dropped {counts.dropped}, quarantined {counts.quarantined}"
        + (f"; {second} of {doubtful} doubtful pages by the second extractor" if doubtful else "")
    )
    return Outcome(
        files=tuple(name for rank in ranks for name in rank["files"]),
        counts=counts,
        metrics={
            **metrics,
            "replaced_characters_fraction": metrics["replaced_characters"] / max(1, metrics["text_characters"]),
        },
        gates=(_tokens_gate(metrics),) if listing_of(job)["form"] == SHARDS else (),
        notes={**(_reading(read) if read else {}), **joined(rank["collection"] for rank in ranks)},
    )


def _tokens_gate(metrics: Mapping[str, int]) -> Gate:
    """Return the gate `tokens_return`: decoded texts are encoded to the same tokens, so the tokenizer is the right one.

    A wrong tokenizer gives other words, nearly none of which it would write in the same way.
    """
    tried, other = metrics["documents_encoded_again"], metrics["documents_with_other_tokens"]
    fraction = 1 - other / max(tried, 1)
    evidence = {"documents": tried, "same_fraction": round(fraction, 4), "min_same_fraction": MIN_SAME_FRACTION}
    return Gate(name="tokens_return", passed=fraction >= MIN_SAME_FRACTION, evidence=evidence)


def _reading(read: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many bytes and requests reading the referenced archives took, and one digest of all their contents."""
    totals = {name: sum(one[name] for one in read) for name in ("bytes", "requests")}
    return {"archives": {**totals, "sha256": digest_of([one["sha256"] for one in read])}}


def _listed(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in reasons.items())


# WARC


def warc_items(file: ArchiveFile, settings: ExtractRecipe) -> Iterator[Record | Damage]:
    """Yield the records and the damaged parts of a WARC file."""
    return read_warc(file.path, max_content_bytes=settings.max_html_bytes + MAX_HTTP_HEADER_BYTES)


def warc_fates(items: Iterable[Record | Damage], file: ArchiveFile, settings: ExtractRecipe) -> Iterator[Fate]:
    """Yield what becomes of each record of a WARC file in file order: kept, dropped, quarantined, or no document."""
    yield from _with_pages((_judged(item, file, settings) for item in items), settings)


def _with_pages(judged: Iterable[Fate | _Page], settings: ExtractRecipe, *, is_alone: bool = False) -> Iterator[Fate]:
    """Yield the fates in order; pages among them are extracted, and replaced by what becomes of them.

    `is_alone` says that the archive is one page, on which an extractor may fail without being at fault.
    """
    isolation = isolation_for(settings)
    waiting: list[Fate | _Page] = []  # the batch whose pages the isolation is extracting
    batch: list[Fate | _Page] = []
    failed: list[str] = []
    num_pages = 0
    for one in judged:
        batch.append(one)
        pages = [one.page for one in batch if isinstance(one, _Page)]
        is_full = len(pages) == BATCH_PAGES or sum(len(page.body) for page in pages) >= BATCH_BYTES
        if is_full or len(batch) >= MAX_WAITING_RECORDS:
            yield from _finished(waiting, isolation, settings, failed)
            isolation.submit(pages)
            num_pages += len(pages)
            waiting, batch = batch, []
    yield from _finished(waiting, isolation, settings, failed)
    pages = [one.page for one in batch if isinstance(one, _Page)]
    isolation.submit(pages)
    yield from _finished(batch, isolation, settings, failed)
    if not is_alone:
        _check_extractor(failed, num_pages + len(pages), settings)


def _check_extractor(failed: Sequence[str], number: int, settings: ExtractRecipe) -> None:
    """Raise PartFailed if an extractor from outside failed on every page of an archive.

    A page on which it fails is quarantined, as with Pedigree's extractors; but a mistake in it would quarantine all.
    """
    if failed and len(failed) == number and settings.extractor not in EXTRACTORS:
        raise PartFailed(f"extractor {settings.extractor} failed on each of {number} pages; the first: {failed[0]}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Page:
    """A page that has yet to be extracted, with the columns of its document that are known from the record."""

    page: RawPage
    row: dict[str, Any]


def _judged(item: Record | Damage, file: ArchiveFile, settings: ExtractRecipe) -> Fate | _Page:
    """Return a record's fate if its headers and payload decide it; otherwise the page in it that must be extracted."""
    if isinstance(item, Damage):
        return _unread(item.offset, clean(item.url), item.reason, item.detail, file, settings)
    if item.type in OTHER_TYPES:
        return Other(type=item.type)
    if item.type not in DOCUMENT_TYPES:
        return _unread(item.offset, _url(item), "unknown_type", repr(item.type[:80]), file, settings)
    try:
        return _document(item, file, settings)
    except PayloadError as error:
        return Quarantined(offset=item.offset, reason=error.reason, detail=str(error), url=_url(item))


def _unread(
    offset: int, url: str, reason: str, detail: str, file: ArchiveFile, settings: ExtractRecipe
) -> Kept | Quarantined:
    """Return the fate of a part of an archive that no page can be read from; a list may exclude its address."""
    row = file.row(offset, url=url)
    if excluded := withdrawn(row, settings):
        return Kept(row=row, reason=excluded)
    return Quarantined(offset=offset, reason=reason, detail=detail, url=url)


def _finished(
    judged: list[Fate | _Page], isolation: Isolation, settings: ExtractRecipe, failed: list[str]
) -> Iterator[Fate]:
    """Yield the fates of records in order; pages are replaced by the fates that follow from their extraction.

    The causes of failures are added to `failed`.
    """
    answers = iter(isolation.collect())
    for one in judged:
        if not isinstance(one, _Page):
            yield one
            continue
        found = next(answers)
        if isinstance(found, Failure):
            failed.append(found.detail)
            yield Quarantined(
                offset=one.row["warc_offset"], reason=EXTRACTOR_FAILED, detail=found.detail, url=one.row["url"]
            )
        else:
            if settings.site_files:
                terms = read_site_terms(settings.site_files).of(one.row["url"], found.terms)
                found = replace(found, terms=terms, reason=terms.refusal(settings) or found.reason)
            yield Kept(
                row=_described(one.row, found, one.page.headers),
                reason=found.reason,
                num_replaced=found.num_replaced,
                is_doubtful=found.is_doubtful,
                is_second=found.is_second,
                has_two_charsets=found.has_two_charsets,
            )


def _document(record: Record, file: ArchiveFile, settings: ExtractRecipe) -> Kept | _Page:
    row = file.row(record.offset, url=_url(record), date=day_of(record.headers.get("warc-date", "")))
    if reason := withdrawn(row, settings):
        return Kept(row=row | {"date": ""}, reason=reason)  # of a withdrawn page only its place and address stay
    row[TRUNCATED] = " ".join(clean(record.headers.get("warc-truncated", "")).lower().split())
    response = _response(record)
    if settings.check_digests and not record.is_cut:  # before the headers are believed
        _check_digests(record, response)
    if reason := _refusal(record, response) or ("truncated" if row[TRUNCATED] and settings.refuse_truncated else ""):
        return Kept(row=row, reason=reason)
    if record.type == "conversion":
        return _text_document(row, response.body)
    body = payload(response, max_bytes=settings.max_html_bytes)
    if not body.strip():
        return Kept(row=row, reason="empty")
    if not (is_html(response.content_type, body) and is_page(body, record.headers.get(IDENTIFIED_TYPE, ""))):
        return Kept(row=row, reason="not_html")
    return _Page(page=RawPage(body=body, headers=response.headers), row=row)


def _response(record: Record) -> Response:
    """Return the HTTP response in a WARC record.

    Content that was not fetched over HTTP counts as a response with status 200.
    """
    if record.type == "response" and not record.target_uri.startswith(("ftp:", "dns:")):
        return parse_response(record.buffer, record.start, record.end)
    headers = {"content-type": record.headers.get("content-type", "")}
    return Response(status=200, headers=headers, body=record.content)


def _check_digests(record: Record, response: Response) -> None:
    """Raise PayloadError if the record's bytes do not match the digests that it states."""
    block, body = record.headers.get("warc-block-digest", ""), record.headers.get("warc-payload-digest", "")
    if contradicts(block, [record.content]):
        raise PayloadError("wrong_digest", f"the block's is not {block}")
    if contradicts(body, chain([response.body], without_chunks(response))):
        raise PayloadError("wrong_digest", f"the payload's is not {body}")


def _refusal(record: Record, response: Response) -> str:
    """Return why a record is not a page, judged by its headers alone; empty if it may be one."""
    if 300 <= response.status < 400:
        return "redirect"
    if response.status != 200:
        return "http_status"
    if record.type == "conversion":
        is_wanted = response.content_type in ("text/plain", "")
    else:
        is_wanted = not response.content_type or is_html(response.content_type, b"")
    if not is_wanted:
        return "not_html"
    return "too_large" if record.is_cut else ""


def _text_document(row: dict[str, Any], body: bytes) -> Kept:
    """Return the document of a record of extracted text (WET), which is UTF-8."""
    decoded = body.decode("utf-8", errors="replace")
    text = clean(decoded)
    num_replaced = decoded.count("\ufffd") - body.count("\ufffd".encode())
    return Kept(row=row | {"text": text}, reason="" if text else "empty", num_replaced=num_replaced)


def _described(row: dict[str, Any], page: Extracted, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the row with the page's text, title, date, language, kind and terms.

    The date is the page's own, else that of the header Last-Modified, else that of the crawl. The language is the
    page's own, else the server's.
    """
    date = page.date or day_of(headers.get("last-modified", "")) or row["date"]
    language = page.language or headers.get("content-language", "")[:2].lower()
    terms = {name: getattr(page.terms, name) for name in TERMS}
    title = page.title or row["title"]
    found = {"text": page.text, "title": title, "date": date, "language": language, "kind": page.kind}
    return row | found | terms | {"formulas": page.num_formulas, "code": page.code or None}


def _url(record: Record) -> str:
    return clean(record.target_uri)


# Already extracted text; the offset is the number of the row


Numbered = tuple[int, bytes | dict[str, Any]]  # a row and its number


def jsonl_items(file: ArchiveFile, settings: ExtractRecipe) -> Iterator[Numbered | Quarantined]:
    """Yield every non-blank line of a JSON lines file with its number; damaged compression ends the file."""
    number = -1
    try:
        with open(file.path, "rb") as stream, decompressed(stream, file.name) as lines:
            for number, line in enumerate(bounded_lines(lines)):
                if line is None:
                    yield Quarantined(offset=number, reason="too_large", detail=f"line {number + 1} {TOO_LONG}")
                elif line.strip():
                    yield number, line
    except (EOFError, OSError, zstandard.ZstdError) as error:
        yield Quarantined(offset=number + 1, reason="damaged_compression", detail=str(error))


def parquet_items(file: ArchiveFile, settings: ExtractRecipe) -> Iterator[Numbered | Quarantined]:
    """Yield every row of a parquet file with its number; an unreadable row group is one quarantined record."""
    with open(file.path, "rb") as stream:
        parquet = UntrustedParquet(stream, str(file.path))
        columns = [name for name in _columns(file) if name in parquet.names]
        number = 0
        for group, num_rows in enumerate(parquet.group_rows):
            end = number + num_rows
            try:
                for row in parquet.rows(group, columns):
                    yield number, row
                    number += 1
            except RowTooLarge as error:
                yield Quarantined(offset=number, reason="too_large", detail=f"{end - number} rows: {error}")
            except (pa.ArrowException, OSError) as error:
                yield Quarantined(offset=number, reason="damaged_compression", detail=f"{end - number} rows: {error}")
            number = end


def row_fates(items: Iterable[Numbered | Quarantined], file: ArchiveFile, settings: ExtractRecipe) -> Iterator[Fate]:
    """Yield what becomes of each row of a file of extracted text, in order."""
    for item in items:
        if isinstance(item, Quarantined):
            yield item
        else:
            number, row = item
            yield (
                _line_fate(row, number, file, settings)
                if isinstance(row, bytes)
                else _row_fate(row, number, file, settings)
            )


def _line_fate(line: bytes, number: int, file: ArchiveFile, settings: ExtractRecipe) -> Fate:
    try:
        row = json_of_row(line)
    except KeyTwice as error:
        return Quarantined(offset=number, reason="bad_row", detail=str(error))
    except (ValueError, RecursionError) as error:
        return Quarantined(offset=number, reason="bad_row", detail=f"not JSON: {error}")
    if not isinstance(row, dict):
        return Quarantined(offset=number, reason="bad_row", detail=f"expected an object, got {type(row).__name__}")
    return _row_fate(row, number, file, settings)


def _columns(file: ArchiveFile) -> tuple[str, ...]:
    return (file.text_field, file.url_field, *filter(None, [file.prompt_field]), "title", "date", "language")


def _row_fate(row: dict[str, Any], number: int, file: ArchiveFile, settings: ExtractRecipe) -> Fate:
    text = row.get(file.text_field)
    url = clean(str(row.get(file.url_field) or ""))
    if not isinstance(text, str):
        detail = f"{file.text_field!r} is {'missing' if text is None else type(text).__name__}"
        return Quarantined(offset=number, reason="missing_text", detail=detail, url=url)
    if len(text) > MAX_LINE_BYTES:
        return Quarantined(offset=number, reason="too_large", detail=f"row {number + 1} {TOO_LONG}", url=url)
    said = {name: clean(str(row.get(name) or "")) for name in ("title", "date", "language")}
    text = clean(text)
    made = file.row(number, text=text, url=url, **said)
    if reason := withdrawn(made, settings):
        return Kept(row=file.row(number, url=url), reason=reason)
    if not text:
        return Kept(row=made, reason="empty")
    if not file.prompt_field:
        return Kept(row=made)
    prompt = row.get(file.prompt_field)
    if isinstance(prompt, str):
        return Kept(row=made | {"prompt": clean(prompt)})
    detail = f"{file.prompt_field!r} is {'missing' if prompt is None else type(prompt).__name__}"
    return Quarantined(offset=number, reason="missing_prompt", detail=detail, url=url)


# Files of a folder, each of which is one document


def file_items(file: ArchiveFile, settings: ExtractRecipe) -> Iterator[bytes | Quarantined]:
    """Yield the content of a file; one larger than its format may be is quarantined."""
    most = BOOK_BYTES if format_of(file.name) in BOOKS else settings.max_html_bytes
    try:
        with open(file.path, "rb") as stream, decompressed(stream, file.name) as plain:
            body = plain.read(most + 1)
    except (EOFError, OSError, zlib.error) as error:
        yield Quarantined(offset=0, reason="damaged_compression", detail=str(error))
        return
    yield Quarantined(offset=0, reason="too_large", detail=f"more than {most} bytes") if len(body) > most else body


def file_fates(items: Iterable[bytes | Quarantined], file: ArchiveFile, settings: ExtractRecipe) -> Iterator[Fate]:
    """Yield what becomes of a file: it is read by its format where a page is extracted, in a process with limits."""
    yield from _with_pages((_file_fate(item, file, settings) for item in items), settings, is_alone=True)


def _file_fate(item: bytes | Quarantined, file: ArchiveFile, settings: ExtractRecipe) -> Fate | _Page:
    row = file.row(0, **{name: clean(value) for name, value in file.said.items()})
    if reason := withdrawn(row, settings):
        return Kept(row=file.row(0, url=row["url"]), reason=reason)
    if isinstance(item, Quarantined):
        return replace(item, url=row["url"])
    if not item.strip():
        return Kept(row=row, reason="empty")
    headers = {"link": f'<{row["licence"]}>; rel="license"'} if row["licence"] else {}
    return _Page(page=RawPage(body=item, headers=headers, format=format_of(file.name)), row=row)


# Files of a reader from outside; the offset is the number of the record


def reader_items(file: ArchiveFile, settings: ExtractRecipe) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield every record that the reader finds in a file, with its number."""
    del settings
    assert file.reader is not None, "a file of this form has a reader"
    yield from enumerate(file.reader.rows(file.path))


def reader_fates(
    items: Iterable[tuple[int, Mapping[str, Any]]], file: ArchiveFile, settings: ExtractRecipe
) -> Iterator[Fate]:
    """Yield what becomes of each record of a reader: its HTML is extracted, and its text is taken as it is."""
    yield from _with_pages((_read_fate(row, number, file, settings) for number, row in items), settings)


def _read_fate(row: Mapping[str, Any], number: int, file: ArchiveFile, settings: ExtractRecipe) -> Fate | _Page:
    assert file.reader is not None, "a file of this form has a reader"
    url = clean(str(row.get(file.url_field) or ""))
    if why := row.get("damaged"):
        return Quarantined(offset=number, reason=f"{file.reader.source}:{why}", detail="", url=url)
    if row.get("html") is None:
        return _row_fate(dict(row), number, file, settings)
    said = {name: clean(str(row.get(name) or "")) for name in ("title", "date", "language")}
    made = file.row(number, url=url, **said)
    if reason := withdrawn(made, settings):
        return Kept(row=file.row(number, url=url), reason=reason)
    html, kind = row["html"], str(row.get("content_type") or "text/html")
    if isinstance(html, str):
        html, kind = html.encode("utf-8", "replace"), "text/html; charset=utf-8"
    if not isinstance(html, bytes):
        return Quarantined(offset=number, reason="bad_row", detail=f"html is {type(html).__name__}", url=url)
    if len(html) > settings.max_html_bytes:
        return Kept(row=made, reason="too_large")
    if not html.strip():
        return Kept(row=made, reason="empty")
    if not is_page(html):
        return Kept(row=made, reason="not_html")
    headers = {"content-type": kind, "content-language": said["language"]}
    return _Page(page=RawPage(body=html, headers=headers), row=made)


# Token shards; the offset is the number of the document


def shard_items(file: ArchiveFile, settings: ExtractRecipe) -> Iterator[tuple[int, TokenDocument]]:
    """Yield every document of a token file with its number."""
    yield from enumerate(open_token_file(file.path).documents())


def shard_fates(
    items: Iterable[tuple[int, TokenDocument]], file: ArchiveFile, settings: ExtractRecipe
) -> Iterator[Fate]:
    """Yield what becomes of each document of a token file, in order.

    Special tokens around a document are left out. Of the first TRIED_FIRST documents and every TRIED_EVERY-th, the text
    is encoded again.
    """
    from tokenizers import Tokenizer

    assert file.tokenizer is not None, "the stage crawl lists it"
    spelling, library = read_spelling(file.tokenizer), Tokenizer.from_file(str(file.tokenizer))
    library.no_padding()
    library.no_truncation()
    for number, document in items:
        ids = _without_ends(document.ids, spelling.special)
        text, problem = _decoded(ids, document, spelling)
        if problem:
            yield Quarantined(offset=number, reason=problem, detail=f"{len(ids)} tokens", url=document.url)
            continue
        fate = _row_fate({file.text_field: text, file.url_field: document.url}, number, file, settings)
        if isinstance(fate, Kept) and not fate.reason and (number < TRIED_FIRST or number % TRIED_EVERY == 0):
            again = library.encode(text, add_special_tokens=False).ids
            fate = replace(fate, gives_tokens_back=again == ids)
        yield fate


def _without_ends(ids: list[int], special: frozenset[int]) -> list[int]:
    start, end = 0, len(ids)
    while start < end and ids[start] in special:
        start += 1
    while end > start and ids[end - 1] in special:
        end -= 1
    return ids[start:end]


def _decoded(ids: list[int], document: TokenDocument, spelling: Spelling) -> tuple[str, str]:
    """Return the text of token ids, and the reason why it cannot be used, or ""."""
    if not spelling.special.isdisjoint(ids):
        return "", "special_token"
    try:
        spelled = b"".join([spelling.bytes_of[id_] for id_ in ids])
        text = spelled.decode("utf-8")
    except KeyError:
        return "", "unknown_token"
    except UnicodeDecodeError:
        return "", "not_utf8"
    if document.sha256 and hashlib.sha256(spelled).hexdigest() != document.sha256:
        return "", "wrong_digest"
    return text, ""


_FORMS: dict[str, tuple[Callable[..., Iterator[Any]], Callable[..., Iterator[Fate]]]] = {
    "warc": (warc_items, warc_fates),
    "jsonl": (jsonl_items, row_fates),
    "parquet": (parquet_items, row_fates),
    FILES: (file_items, file_fates),
    SHARDS: (shard_items, shard_fates),
    READER: (reader_items, reader_fates),
}

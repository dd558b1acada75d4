"""Polite downloads over HTTP: identified, few at a time, resumed after interruptions, with the waits a server asks for.

Common Crawl asks for this (https://commoncrawl.org/blog/oct-nov-2023-performance-issues): few connections, and backing
off on 403, 429 and 503.
"""

from __future__ import annotations

import email.utils
import logging
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from training.contract.job import DataError
from training.contract.secrets import masked
from training.data.sources import strong
from training.data.web import Body, Broken, declared_bytes, requests
from training.data.web import response as ask

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
TRY_AGAIN = frozenset({403, 408, 429, 500, 502, 503, 504})
PROGRESS_BYTES = 1 << 20  # an attempt that brought so many bytes begins the count of attempts anew


@dataclass(frozen=True, kw_only=True, slots=True)
class Manners:
    """Settings of polite downloads: connections, attempts and waits.

    Waits double with each attempt and have random jitter.
    """

    connections: int = 4
    attempts: int = 8
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 120.0
    longest_asked_wait_seconds: float = 3600.0  # limit on a wait requested by Retry-After
    timeout_seconds: float = 60.0

    @property
    def user_agent(self) -> str:
        """The User-Agent header, which names the project, its version and its purpose."""
        return f"pedigree/{version('pedigree')} (language model corpus builder; python-requests/{requests.__version__})"

    def wait_seconds(self, attempt: int, asked_for: float | None) -> float:
        """Seconds to wait after failed attempt number `attempt` (from 0).

        `asked_for` is the wait in seconds that the server asked for, and is obeyed up to a limit. If it is None, the
        wait doubles with each attempt.
        """
        if asked_for is not None:
            return min(asked_for, self.longest_asked_wait_seconds)
        limit = min(self.longest_wait_seconds, self.first_wait_seconds * 2**attempt)
        return limit * random.uniform(0.5, 1.0)  # so that many clients do not retry at the same moment


class _Again(Exception):
    """A request failed, but may succeed if it is repeated, after `wait_seconds` if the server gave a time."""

    def __init__(self, what: str, wait_seconds: float | None = None) -> None:
        super().__init__(what)
        self.wait_seconds = wait_seconds


def fetch_all(urls: Sequence[str], paths: Sequence[Path], scratch: Path, manners: Manners) -> None:
    """Download each URL to the path with the same index; skip existing files. Raise the first failure."""
    with ThreadPoolExecutor(manners.connections) as pool:
        futures = [pool.submit(fetch, url, path, scratch, manners) for url, path in zip(urls, paths, strict=True)]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class Changed(DataError):
    """A file is not the one that was listed, or it changed between two requests."""


def fetch(url: str, path: Path, scratch: Path, manners: Manners, *, tag: str = "", is_lasting: bool = True) -> int:
    """Download one file to `path`, which appears only when the file is complete; return the number of requests.

    The bytes received so far stay in `scratch` and are not requested again, not even by a later run. With the ETag
    `tag`, raise Changed if the server has another. Raise DataError if the server does not have the file or does not
    deliver it within `manners.attempts` attempts in a row that bring nearly nothing.

    If `is_lasting` is false, the caller reads the file at once and removes it. It is then not forced to the disk
    (fsync). Without a strong ETag it is requested again from the start, because the remaining bytes might belong to a
    changed file.
    """
    if path.exists():
        return 0
    partial = scratch / f"{path.name}.part"
    calls = insistently(
        url, lambda: _fetch_rest(url, partial, manners, tag, is_lasting), lambda: _size(partial), manners
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(partial, path)
    _validator(partial).unlink(missing_ok=True)
    return calls


def insistently(place: str, attempt: Callable[[], object], size: Callable[[], int], manners: Manners) -> int:
    """Call `attempt`, which downloads to a file, until it succeeds; wait between the calls; return the number of calls.

    `size` returns the number of bytes downloaded so far. Raise DataError after `manners.attempts` successive calls that
    each added fewer than PROGRESS_BYTES bytes.
    """
    failures = calls = 0
    most = size()
    while True:
        calls += 1
        try:
            attempt()
            return calls
        except (_Again, Broken, requests.RequestException) as error:
            problem = masked(str(error))
            failures = 1 if size() >= most + PROGRESS_BYTES else failures + 1
            most = max(most, size())
            if failures >= manners.attempts:
                break
            seconds = manners.wait_seconds(failures - 1, getattr(error, "wait_seconds", None))
            shown = masked(place)
            log.warning("%s: %s; attempt %d of %d in %.1f s", shown, problem, failures + 1, manners.attempts, seconds)
            time.sleep(seconds)
    raise DataError(f"{masked(place)}: not fetched in {manners.attempts} attempts; the last: {problem}")


def fetch_range(url: str, path: Path, start: int, end: int, manners: Manners, *, tag: str = "") -> int:
    """Append the bytes from `start` to `end` of a file to `path`; return the number of requests.

    Raise DataError if the remote file ends before `end`, or if the server does not support ranges. Raise Changed if the
    file's ETag is not `tag`.
    """
    before = _size(path)

    def rest() -> None:
        if _size(path) - before > end - start:
            os.truncate(path, before)
        first = start + _size(path) - before
        headers = _headers(manners) | {"Range": f"bytes={first}-{end - 1}"} | ({"If-Range": tag} if tag else {})
        with ask("GET", url, headers=headers, timeout_seconds=manners.timeout_seconds) as response:
            if response.status_code == 416:
                raise _beyond(url, start, end)
            _check_status(response, url)
            _check_tag(response, url, tag)
            if response.status_code == 200:
                declared = declared_bytes(response)
                if first == 0 and declared == end:  # the range is the whole file
                    _write(response, path, "ab", expected=end)
                    return
                if first == 0 and 0 <= declared < end:
                    raise _beyond(url, start, end)
                raise DataError(f"{masked(url)}: the server sends no ranges, so single records cannot be selected")
            found = _content_range(response)
            if found is None or found[0] != first:
                raise _Again("the server sent another part than was asked for")
            if found[1] != end:
                raise _beyond(url, start, end)
            _write(response, path, "ab", expected=end - first)

    return insistently(url, rest, lambda: _size(path), manners)


def _beyond(url: str, start: int, end: int) -> DataError:
    return DataError(
        f"{masked(url)}: the file ends before byte {end}, to which snapshots.select.index names records from"
        f" {start} on; the index does not fit this archive"
    )


def _fetch_rest(url: str, partial: Path, manners: Manners, tag: str, is_lasting: bool) -> None:
    """Request the bytes that a partial download lacks, append them to `partial`, and check its size."""
    have = _size(partial)
    known = _validator(partial).read_text("utf-8") if _validator(partial).exists() else ""
    if have and ((tag and known != tag) or (not is_lasting and not known)):  # perhaps bytes of another version
        partial.unlink()
        have = 0
    headers = _headers(manners)
    if have:
        headers["Range"] = f"bytes={have}-"
        if known:
            headers["If-Range"] = known
    with ask("GET", url, headers=headers, timeout_seconds=manners.timeout_seconds) as response:
        if response.status_code == 416:
            _check_complete(response, partial, have)
            return
        _check_status(response, url)
        _check_tag(response, url, tag)
        found = _content_range(response) if response.status_code == 206 else None
        appending = found is not None and found[0] == have
        if response.status_code == 206 and not appending:
            partial.unlink()
            raise _Again("the server sent another part than was asked for")
        if said := strong(response.headers.get("ETag", "")):
            _validator(partial).parent.mkdir(parents=True, exist_ok=True)
            _validator(partial).write_text(said, "utf-8")
        _write(response, partial, "ab" if appending else "wb", expected=declared_bytes(response), is_lasting=is_lasting)
        if found is not None and (there := _size(partial)) != found[2]:
            if there > found[2]:
                partial.unlink()
            raise _Again(f"the file has {found[2]} bytes, and {there} were sent")


def _headers(manners: Manners) -> dict[str, str]:
    return {"User-Agent": manners.user_agent, "Accept-Encoding": "identity"}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _write(response: requests.Response, partial: Path, mode: str, *, expected: int, is_lasting: bool = False) -> None:
    """Write the body of a response to a file. Raise _Again if it does not have `expected` bytes (negative: unknown)."""
    body, got = Body(response), 0
    partial.parent.mkdir(parents=True, exist_ok=True)
    with open(partial, mode) as stream:
        try:
            while block := body.read(BLOCK_BYTES):
                got += stream.write(block)
        finally:
            stream.flush()
            if is_lasting:
                os.fsync(stream.fileno())
    if expected >= 0 and got != expected:
        raise _Again(f"the connection ended after {got} of {expected} bytes")


def _check_status(response: requests.Response, url: str) -> None:
    status = response.status_code
    if status in TRY_AGAIN or (status >= 400 and "Retry-After" in response.headers):
        raise _Again(f"HTTP {status}", _retry_after(response))
    if status not in (200, 206):
        raise DataError(f"{masked(url)}: HTTP {status} {response.reason}; check the address")


def _check_tag(response: requests.Response, url: str, tag: str) -> None:
    said = response.headers.get("ETag", "")
    if tag and said != tag:
        raise Changed(f"{masked(url)}: the file changed after it was listed: ETag {said or 'none'}, listed {tag}")


def _check_complete(response: requests.Response, partial: Path, have: int) -> None:
    """Handle status 416: either the file is already complete, or the bytes in `partial` belong to another file."""
    total = re.fullmatch(r"bytes \*/(\d+)", response.headers.get("Content-Range", ""))
    if not total or int(total[1]) != have:
        partial.unlink()
        raise _Again("what was fetched before is not a part of the file")


def _content_range(response: requests.Response) -> tuple[int, int, int] | None:
    """Return the first byte, the byte after the last one, and the file's size from a response's header Content-Range.

    None if the header is missing or unreadable.
    """
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", "").strip())
    return (int(found[1]), int(found[2]) + 1, int(found[3])) if found else None


def _retry_after(response: requests.Response) -> float | None:
    """Seconds that the server asks to wait (RFC 9110, 10.2.3: a number or a date); None without a valid Retry-After."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _validator(partial: Path) -> Path:
    """Path of the file that stores the strong ETag of a partial download, by which a changed remote file is noticed."""
    return partial.with_name(partial.name + ".etag")

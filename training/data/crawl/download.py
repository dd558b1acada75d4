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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import requests

from training.data.web import Body, Broken, declared_bytes
from training.data.web import response as ask
from training.job import DataError
from training.secrets import masked

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
TRY_AGAIN = frozenset({403, 408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, kw_only=True, slots=True)
class Manners:
    """How politely a server is treated. Waits are in seconds and double with each attempt, with jitter."""

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
        """Seconds to wait after failed attempt `attempt` (from 0).

        The server's wish (`asked_for`) counts first; without one the wait grows with each attempt.
        """
        if asked_for is not None:
            return min(asked_for, self.longest_asked_wait_seconds)
        limit = min(self.longest_wait_seconds, self.first_wait_seconds * 2**attempt)
        return limit * random.uniform(0.5, 1.0)  # so that many clients do not retry at the same moment


class _Again(Exception):
    """An error that is worth another attempt, after `wait_seconds` if the server gave a time."""

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


def fetch(url: str, path: Path, scratch: Path, manners: Manners) -> None:
    """Download one file to `path`, which appears only when the file is complete.

    The bytes received so far stay in `scratch` and are not requested again, not even by a later run. Raise DataError if
    the server does not have the file or does not deliver it within `manners.attempts` attempts.
    """
    if path.exists():
        return
    partial = scratch / f"{path.name}.part"
    problem = ""
    for attempt in range(manners.attempts):
        try:
            _fetch_rest(url, partial, manners)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial, path)
            _validator(partial).unlink(missing_ok=True)
            return
        except (_Again, Broken, requests.RequestException) as error:
            problem = masked(str(error))
            if attempt + 1 < manners.attempts:
                seconds = manners.wait_seconds(attempt, getattr(error, "wait_seconds", None))
                shown = masked(url)
                log.warning(
                    "%s: %s; attempt %d of %d in %.1f s", shown, problem, attempt + 2, manners.attempts, seconds
                )
                time.sleep(seconds)
    raise DataError(f"{masked(url)}: not fetched in {manners.attempts} attempts; the last: {problem}")


def _fetch_rest(url: str, partial: Path, manners: Manners) -> None:
    """Append the missing bytes to `partial`, and check its size."""
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": manners.user_agent, "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if _validator(partial).exists():
            headers["If-Range"] = _validator(partial).read_text("utf-8")
    with ask("GET", url, headers=headers, timeout_seconds=manners.timeout_seconds) as response:
        if response.status_code == 416:
            _check_complete(response, partial, have)
            return
        _check_status(response, url)
        appending = response.status_code == 206 and _range_start(response) == have
        if response.status_code == 206 and not appending:
            partial.unlink()
            raise _Again("the server sent another part than was asked for")
        if tag := response.headers.get("ETag"):
            _validator(partial).write_text(tag, "utf-8")
        _write(response, partial, "ab" if appending else "wb")
        expected = declared_bytes(response)
        got = partial.stat().st_size - (have if appending else 0)
        if expected >= 0 and got != expected:
            raise _Again(f"the connection ended after {got} of {expected} bytes")


def _write(response: requests.Response, partial: Path, mode: str) -> None:
    body = Body(response)
    partial.parent.mkdir(parents=True, exist_ok=True)
    with open(partial, mode) as stream:
        try:
            while block := body.read(BLOCK_BYTES):
                stream.write(block)
        finally:
            stream.flush()
            os.fsync(stream.fileno())


def _check_status(response: requests.Response, url: str) -> None:
    status = response.status_code
    if status in TRY_AGAIN:
        raise _Again(f"HTTP {status}", _retry_after(response))
    if status not in (200, 206):
        raise DataError(f"{masked(url)}: HTTP {status} {response.reason}; check the address")


def _check_complete(response: requests.Response, partial: Path, have: int) -> None:
    """Handle status 416: either the file is already complete, or the bytes in `partial` belong to another file."""
    total = re.fullmatch(r"bytes \*/(\d+)", response.headers.get("Content-Range", ""))
    if not total or int(total[1]) != have:
        partial.unlink()
        raise _Again("what was fetched before is not a part of the file")


def _range_start(response: requests.Response) -> int:
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else -1


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
    """Path of the file with a partial file's ETag, so that a file that changed on the server is downloaded anew."""
    return partial.with_name(partial.name + ".etag")

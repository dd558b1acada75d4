"""Pages extracted in a process of their own, with limits, so that no page can end the one that reads the archive.

Parsers are native code and pages are hostile: trees that take all memory, time that grows with the square of a size,
crashes. The child gets a batch of pages and answers page by page; when it dies, the page that it was at is tried alone
in a new child, and is at fault if that dies too. So a page's fate depends on the page, never on its neighbours. What is
said goes as JSON and raw bytes: nothing that a subverted child could send is run.

This contains faults, not attackers. The child runs as the same user, with the same files, network and environment; what
took it over through a parser could do whatever this process may. Against that the whole job belongs in a container or a
machine that may read the crawl and write its artifact, and nothing else (docs/security.md).

The limits are the last resort behind those of bytes, nodes and depth: memory, and CPU time, which other work on the
machine does not use up as it would a clock's.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from training.data.extract.html import Extracted, extract_html
from training.data.extract.settings import ExtractRecipe
from training.data.extract.terms import Terms
from training.processes import die_with_parent
from training.records import write_record

MEMORY_BYTES = 6 << 30  # of addresses, most of which are never touched: libraries map much
CPU_SECONDS = 60  # for one page; the slowest of the fuzzer's take 2
PIPE_BYTES = 1 << 20
READY = b"ready\n"
BATCH_PAGES, BATCH_BYTES = 64, 8_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page to extract: its body, and the response's headers by lower-case name."""

    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A page on which the extractor failed, and how."""

    detail: str


class Isolation:
    """A child process that extracts batches of pages, started when it is first needed.

    `submit` and then `collect`: between the two the child works while the caller reads on.
    """

    def __init__(
        self, settings: ExtractRecipe, *, memory_bytes: int = MEMORY_BYTES, cpu_seconds: int = CPU_SECONDS
    ) -> None:
        self._limits = {"memory_bytes": memory_bytes, "cpu_seconds": cpu_seconds}
        self.settings = settings
        self._child: subprocess.Popen[bytes] | None = None
        self._batch: Sequence[Page] = ()
        self.num_deaths = 0

    def submit(self, pages: Sequence[Page]) -> None:
        """Give the child a batch. The one before must have been collected."""
        self._batch = pages
        self._send(pages)

    def collect(self) -> list[Extracted | Failure]:
        """What became of each page of the batch, in order."""
        pages, done = self._batch, self._receive(len(self._batch))
        while len(done) < len(pages):
            culprit = pages[len(done)]
            self._send([culprit])
            alone = self._receive(1)
            done += alone or [Failure(detail=self._ending())]
            rest = pages[len(done) :]
            if rest:
                self._send(rest)
                done += self._receive(len(rest))
        self._batch = ()
        return done

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
            self._child.stdout.close()
            self._child.wait()
            self._child = None

    def _send(self, pages: Sequence[Page]) -> None:
        if self._child is None:
            self._child = _start(self.settings, self._limits)
        sizes = [{"headers": dict(page.headers), "bytes": len(page.body)} for page in pages]
        with contextlib.suppress(BrokenPipeError):  # it died; `_receive` says so
            self._child.stdin.write(json.dumps(sizes).encode() + b"\n")
            for page in pages:
                self._child.stdin.write(page.body)
            self._child.stdin.flush()

    def _receive(self, number: int) -> list[Extracted | Failure]:
        """The answers to `number` pages, or fewer when the child dies."""
        answers = []
        while len(answers) < number:
            line = self._child.stdout.readline()
            if not line.endswith(b"\n"):
                self.num_deaths += 1
                self._died()
                break
            answers.append(_answer(json.loads(line)))
        return answers

    def _died(self) -> None:
        code = self._child.poll() if self._child.poll() is not None else self._child.wait()
        self._last_ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.close()

    def _ending(self) -> str:
        return f"the extractor ended with {self._last_ending}"


_kept: list[Isolation] = []


def isolation_for(settings: ExtractRecipe) -> Isolation:
    """The isolation of this process, kept from one file to the next that has the same settings."""
    if not _kept or _kept[0].settings != settings:
        close_isolation()
        _kept.append(Isolation(settings))
    return _kept[0]


@atexit.register
def close_isolation() -> None:
    """End the child that `isolation_for` keeps, if there is one."""
    while _kept:
        _kept.pop().close()


def _start(settings: ExtractRecipe, limits: Mapping[str, int]) -> subprocess.Popen[bytes]:
    """A new child. It ends when its input does, so also when this process is killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", "training.data.extract.isolation"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    for stream in (child.stdin, child.stdout):
        _widen(stream)
    start = {"settings": write_record(settings), **limits}
    child.stdin.write(json.dumps(start).encode() + b"\n")
    child.stdin.flush()
    if child.stdout.readline() != READY:
        child.stdin.close()
        child.stdout.close()
        raise RuntimeError(f"the extractor's process ended at its start with exit code {child.wait()}")
    return child


def _widen(stream: IO[bytes]) -> None:
    """A larger pipe, where the system has such, lets the two processes wait less for each other."""
    try:
        import fcntl

        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        pass


def _answer(said: dict[str, Any]) -> Extracted | Failure:
    if "failure" in said:
        return Failure(detail=said["failure"])
    return Extracted(**said | {"terms": Terms(**said["terms"])})


# The child


def main() -> None:
    """Answer batches from standard input until it ends."""
    from training.records import read_record

    die_with_parent()  # the end of its input would end it too, but only when the page it is at is done
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    start = json.loads(source.readline())
    settings = read_record(ExtractRecipe, start["settings"], where="extract")
    resource.setrlimit(resource.RLIMIT_AS, (start["memory_bytes"], start["memory_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers.write(READY)
    answers.flush()
    while line := source.readline():
        batch = json.loads(line)
        bodies = [source.read(one["bytes"]) for one in batch]
        for one, body in zip(batch, bodies, strict=True):
            _allow(start["cpu_seconds"])
            answers.write(_extract(body, one["headers"], settings) + b"\n")
            answers.flush()


def _extract(body: bytes, headers: dict[str, str], settings: ExtractRecipe) -> bytes:
    try:
        page = extract_html(body, headers=headers, settings=settings)
        said: dict[str, Any] = {name: getattr(page, name) for name in Extracted.__slots__}
        said["terms"] = {name: getattr(page.terms, name) for name in Terms.__slots__}
    except Exception as error:  # of any library; the page is quarantined with what it says
        said = {"failure": f"{type(error).__name__}: {error}"[:500]}
    return json.dumps(said).encode()


def _allow(cpu_seconds: int) -> None:
    """Let this process use so much more CPU time; the kernel ends it when it uses more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    main()

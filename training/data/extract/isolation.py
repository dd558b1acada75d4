"""Extract pages in a child process with limits, so that no page can crash the process that reads the archive.

Parsers are native code, and hostile pages cause trees that take all memory, time that grows with the square of a size,
and crashes. The child receives a batch of pages and answers page by page. If it dies, the page that it was working on
is tried alone in a new child; if this dies too, the page is at fault. So a page's fate depends only on the page, never
on its neighbours. Messages are JSON and raw bytes, so nothing that a compromised child sends is executed.

This contains faults, not attackers. The child runs as the same user, with the same files, network and environment;
whoever takes it over through a parser could do everything that this process may. Against that, run the whole job in a
container or on a machine that may read the crawl and write its artifact, and nothing else (docs/security.md).

The limits are a last resort after the limits on bytes, nodes and depth. They are on memory and on CPU time, which,
unlike elapsed time, does not depend on other work on the machine.
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
from dataclasses import dataclass, replace
from typing import IO, Any

from training.contract.parts.contained import Bounds, PartFailed, bounds, contained, running
from training.contract.process.lifetime import die_with_parent
from training.contract.records import write_record
from training.data.extract.formats import BOOKS, extract_file
from training.data.extract.pages.html import Extracted
from training.data.extract.settings import EXTRACTORS, ExtractRecipe
from training.data.extract.terms import Terms

MEMORY_BYTES = 6 << 30  # of address space, most of which is never used: libraries map a lot
CPU_SECONDS = 60  # for one page; the slowest page of the fuzzer takes 2
BOOK_TIMES = 5  # as much for a book
PIPE_BYTES = 1 << 20
READY = b"ready\n"
BATCH_PAGES, BATCH_BYTES = 64, 8_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class RawPage:
    """A page to extract: its body, the response's headers by lower-case name, and its format if it is a file's."""

    body: bytes
    headers: Mapping[str, str]
    format: str = "html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The result for a page on which the extractor failed, with the cause."""

    detail: str


class Isolation:
    """A child process that extracts batches of pages; it is started when first needed.

    Call `submit`, then `collect`. In between, the child works while the caller continues to read.
    """

    def __init__(
        self, settings: ExtractRecipe, *, memory_bytes: int = MEMORY_BYTES, cpu_seconds: int = CPU_SECONDS
    ) -> None:
        self._limits = {"memory_bytes": memory_bytes, "cpu_seconds": cpu_seconds}
        self.settings, self.bounds = settings, _bounds_of(settings)
        self._child: subprocess.Popen[bytes] | None = None
        self._batch: Sequence[RawPage] = ()
        self.num_deaths = 0

    def submit(self, pages: Sequence[RawPage]) -> None:
        """Send a batch of pages to the child process. The previous batch must have been collected."""
        self._batch = pages
        self._send(pages)

    def collect(self) -> list[Extracted | Failure]:
        """Return the result of each page of the batch, in order."""
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
        """End the child process that extracts pages, if it is running."""
        if self._child is not None:
            questions, answers = _pipes(self._child)
            with contextlib.suppress(BrokenPipeError):
                questions.close()
            answers.close()
            self._child.wait()
            self._child = None

    def _send(self, pages: Sequence[RawPage]) -> None:
        if self._child is None:
            self._child = _start(self.settings, self._limits, self.bounds)
        sizes = [{"headers": dict(page.headers), "format": page.format, "bytes": len(page.body)} for page in pages]
        questions, _ = _pipes(self._child)
        with contextlib.suppress(BrokenPipeError):  # the child died; `_receive` notices it
            questions.write(json.dumps(sizes).encode() + b"\n")
            for page in pages:
                questions.write(page.body)
            questions.flush()

    def _receive(self, number: int) -> list[Extracted | Failure]:
        """Return the answers for `number` pages, or fewer if the child dies."""
        answers: list[Extracted | Failure] = []
        while len(answers) < number:
            assert self._child is not None, "`_send` starts the child"
            line = self._line(_pipes(self._child)[1])
            if not line.endswith(b"\n"):
                self.num_deaths += 1
                self._died(self._child)
                break
            answers.append(_answer(json.loads(line)))
        return answers

    def _line(self, answers: IO[bytes]) -> bytes:
        """Return the child's next line; empty if it died. An extractor from outside may take a limited time for it."""
        if self.bounds is None:
            return answers.readline()
        try:
            with running(f"extractor {self.settings.extractor}"):
                return answers.readline()
        except PartFailed:
            assert self._child is not None, "somebody is waited for"
            self._child.kill()  # it would end only after this page
            raise

    def _died(self, child: subprocess.Popen[bytes]) -> None:
        code = child.wait()
        self._last_ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.close()

    def _ending(self) -> str:
        return f"the extractor ended with {self._last_ending}"


def _bounds_of(settings: ExtractRecipe) -> Bounds | None:
    return None if settings.extractor in EXTRACTORS else bounds()


_kept: list[Isolation] = []


def isolation_for(settings: ExtractRecipe) -> Isolation:
    """Return this process's isolation, which is reused for the next file with the same settings."""
    if not _kept or (_kept[0].settings, _kept[0].bounds) != (settings, _bounds_of(settings)):
        close_isolation()
        _kept.append(Isolation(settings))
    return _kept[0]


@atexit.register
def close_isolation() -> None:
    """End the child of this process's isolation, if there is one."""
    while _kept:
        _kept.pop().close()


def _start(settings: ExtractRecipe, limits: Mapping[str, int], held: Bounds | None) -> subprocess.Popen[bytes]:
    """Start a child. It exits at the end of its input, and thus also if this process is killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", "training.data.extract.isolation"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    questions, answers = _pipes(child)
    for stream in (questions, answers):
        _widen(stream)
    # The time of a page is limited here: the child could not tell why it ended.
    start = {"settings": write_record(settings), "bounds": held and write_record(replace(held, seconds=0.0)), **limits}
    questions.write(json.dumps(start).encode() + b"\n")
    questions.flush()
    if answers.readline() != READY:
        questions.close()
        answers.close()
        raise RuntimeError(f"the extractor's process ended at its start with exit code {child.wait()}")
    return child


def _pipes(child: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """Return the pipe that writes to the child process, and the pipe that reads from it."""
    assert child.stdin is not None and child.stdout is not None, "`_start` opens both"
    return child.stdin, child.stdout


def _widen(stream: IO[bytes]) -> None:
    """Enlarge the buffer of a pipe, if the system supports it, so that parent and child wait less for each other."""
    try:
        import fcntl

        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        pass


def _answer(said: dict[str, Any]) -> Extracted | Failure:
    if "failure" in said:
        return Failure(detail=said["failure"])
    return Extracted(**said | {"terms": Terms(**said["terms"]), "code": tuple(said["code"])})


# The child


def main() -> None:
    """Run as the child process: extract the batches of pages that arrive on standard input, until it ends."""
    from training.contract.records import read_record

    die_with_parent()  # the end of its input would end it too, but only after the current page
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing a library prints is taken for an answer
    start = json.loads(source.readline())
    settings = read_record(ExtractRecipe, start["settings"], where="extract")
    resource.setrlimit(resource.RLIMIT_AS, (start["memory_bytes"], start["memory_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers.write(READY)
    answers.flush()
    held = start["bounds"] and read_record(Bounds, start["bounds"], where="bounds")
    with contained(held):
        while line := source.readline():
            batch = json.loads(line)
            bodies = [source.read(one["bytes"]) for one in batch]
            for one, body in zip(batch, bodies, strict=True):
                _allow(start["cpu_seconds"] * (BOOK_TIMES if one["format"] in BOOKS else 1))
                answers.write(_extract(body, one, settings) + b"\n")
                answers.flush()


def _extract(body: bytes, given: Mapping[str, Any], settings: ExtractRecipe) -> bytes:
    try:
        page = extract_file(body, given["format"], headers=given["headers"], settings=settings)
        said: dict[str, Any] = {name: getattr(page, name) for name in Extracted.__slots__}
        said["terms"] = {name: getattr(page.terms, name) for name in Terms.__slots__}
    except Exception as error:  # a library may raise anything; the page is quarantined with the message
        said = {"failure": f"{type(error).__name__}: {error}"[:500]}
    return json.dumps(said).encode()


def _allow(cpu_seconds: int) -> None:
    """Limit this process to `cpu_seconds` more seconds of CPU time; the kernel kills it if it uses more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    main()

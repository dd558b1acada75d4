"""Compare the seconds to extract archives that stay on a web server with those for the same archives on the local disk.

    PEDIGREE_DATA=… python -m benchmarks.archives [--archives 40] [--latency 0.05] [--pairs 5] [--workers 2]

Archives of at least 1 MB are cut from real WARC files at record boundaries. Both sides use `archives: referenced`. They
are extracted in turns, each time in a new process with `--workers` workers. The web server, in a process of its own,
waits `--latency` seconds before each answer; `--megabytes-per-second` also limits each connection. The documents must
have the same digest on both sides, and each archive must be sent once; otherwise the exit code is 1.
"""

from __future__ import annotations

import argparse
import http.server
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.training.data import chain
from tests.training.data.crawl.web_server import Server
from training import artifact
from training.data.crawl.crawl import source_files
from training.data.crawl.settings import SnapshotRecipe
from training.data.crawl.warc import Record, read_warc
from training.data.extract.settings import ExtractRecipe
from training.data.sources import expand
from training.job import InputArtifact, Job, write_job
from training.records import write_record
from training.run_settings import RunSettings

SOURCES = ("data://crawl/snapshot-1/web-*-00000.warc.gz", "data://crawl/snapshot-2/web-*-00000.warc.gz")
LEAST_BYTES = 1_000_000
WRITES_PER_SECOND = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pairs of extractions and print them with the ratios; return the exit code.

    It is 1 if the two sides made different documents, or if an archive was sent more than once.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archives", type=int, default=40)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--megabytes-per-second", type=float, default=0.0, help="of each connection; 0: no limit")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    os.environ["PEDIGREE_FETCH_ALLOW"] = "127.0.0.1"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "in")
        folder.mkdir()
        sizes = [write(folder, number, content) for number, content in enumerate(cut(options.archives))]
        print(f"{len(sizes)} archives of {sum(sizes) / len(sizes) / 1e6:.2f} MB, {sum(sizes):,} bytes")
        with serving(folder, options) as (url, sent):
            places = {"local": str(folder), "http": [f"{url}{path.name}" for path in sorted(folder.iterdir())]}
            listed = {name: listing(Path(temporary, name), place) for name, place in places.items()}
            rounds = [
                {name: timed(Path(temporary, f"{name}-{pair}"), item, options.workers) for name, item in listed.items()}
                for pair in range(options.pairs)
            ]
            fetched = sent()
    return report(rounds, fetched / (options.pairs * sum(sizes)), len(sizes))


def report(rounds: list[dict[str, Any]], sent_share: float, archives: int) -> int:
    """Print seconds and ratios of all pairs, and return the exit code.

    It is 1 if the documents differ or an archive was sent more than once, else 0.
    """
    for one in rounds:
        print("  ".join(f"{name} {run['seconds']:.2f} s" for name, run in one.items()))
    ratios = [one["http"]["seconds"] / one["local"]["seconds"] for one in rounds]
    print(f"seconds: http ÷ local {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    lost = statistics.median(1000 * (one["http"]["seconds"] - one["local"]["seconds"]) / archives for one in rounds)
    print(f"{lost:.1f} ms more for each archive; bytes sent ÷ sizes of the archives {sent_share:.4f}")
    is_same = len({run["digest"] for one in rounds for run in one.values()}) == 1
    print("the documents are the same" if is_same else "THE DOCUMENTS DIFFER")
    return 0 if is_same and sent_share <= 1.05 else 1


def cut(archives: int) -> Iterator[bytes]:
    """Yield `archives` archives of at least LEAST_BYTES bytes, cut at record boundaries.

    They are cut from the real ones, which are reused.
    """
    number = 0
    while True:
        for file in expand(SOURCES):
            content = Path(file).read_bytes()
            starts = [item.offset for item in read_warc(Path(file), max_content_bytes=0) if isinstance(item, Record)]
            begin = 0
            for start in [*starts, len(content)]:
                if start - begin >= LEAST_BYTES:
                    yield content[begin:start]
                    begin, number = start, number + 1
                    if number == archives:
                        return


def write(folder: Path, number: int, content: bytes) -> int:
    """Write one archive and return its size."""
    return (folder / f"{number:05d}.warc.gz").write_bytes(content)


class SlowServer(Server):
    """A web server with ETags that waits before each answer.

    It limits the bytes per second of each connection (0: no limit).
    """

    def __init__(self, files: dict[str, bytes], *, latency_seconds: float, bytes_per_second: float) -> None:
        self._latency_seconds, self._bytes_per_second = latency_seconds, bytes_per_second
        super().__init__(files, has_tags=True)

    def answer(self, handler: http.server.BaseHTTPRequestHandler, *, body: bool) -> None:
        time.sleep(self._latency_seconds)
        super().answer(handler, body=body)

    def write(self, handler: http.server.BaseHTTPRequestHandler, sent: bytes) -> None:
        step = int(self._bytes_per_second / WRITES_PER_SECOND) or len(sent) or 1
        for at in range(0, len(sent), step):
            super().write(handler, sent[at : at + step])
            if self._bytes_per_second:
                time.sleep(1 / WRITES_PER_SECOND)


@contextmanager
def serving(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], int]]]:
    """Context manager that serves the archives from a process of its own.

    It gives the server's address, and a function that returns the number of bytes sent so far.
    """
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    given = (other, folder, options.latency, options.megabytes_per_second)
    process = context.Process(target=_serve, args=given, daemon=True)
    process.start()

    def sent() -> int:
        pipe.send("sent")
        return pipe.recv()

    try:
        yield pipe.recv(), sent
    finally:
        pipe.send("end")
        process.join()


def _serve(pipe: Any, folder: Path, latency: float, megabytes_per_second: float) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    server = SlowServer(files, latency_seconds=latency, bytes_per_second=megabytes_per_second * 1e6)
    pipe.send(server.url)
    while pipe.recv() == "sent":
        pipe.send(server.sent.total())
    server.close()


def listing(root: Path, place: str | list[str]) -> InputArtifact:
    """Run the stage `crawl` over the archives at a path or URL; return the artifact with their listing."""
    paths = (place,) if isinstance(place, str) else tuple(place)
    snapshot = SnapshotRecipe(name="s", source="warc", paths=paths, archives="referenced")
    settings = {"snapshot": snapshot, "files": source_files(snapshot)}
    return chain.run(root, "crawl", "crawl_archives", "tiny@s", settings)


def timed(root: Path, archives: InputArtifact, workers: int) -> dict[str, Any]:
    """Extract the archives in a new process; return the seconds and the digest of the documents."""
    job = Job(
        stage="extract",
        asset="extracted_documents",
        partition="tiny@s",
        recipe="tiny",
        fingerprint="f",
        stage_version="1",
        settings={"extract": write_record(ExtractRecipe())},
        inputs=(archives,),
        output=str(root / "extracted_documents" / "f"),
        run=RunSettings(workers=workers),
    )
    write_job(job, Path(job.output) / "job.json")
    started = time.monotonic()
    ran = subprocess.run([sys.executable, "-m", "training", f"{job.output}/job.json"], capture_output=True, text=True)
    seconds = time.monotonic() - started
    if ran.returncode:
        sys.exit(ran.stderr)
    made = artifact.find(Path(job.output))
    assert made is not None
    return {"seconds": seconds, "digest": made.digest}


if __name__ == "__main__":
    sys.exit(main())

"""Read broken archives and hostile pages by the thousand, for docs/extraction.md, and hostile model folders.

    PEDIGREE_DATA=… python -m benchmarks.fuzz archives [--number 10000] [--real 1000] [--first 0]
    python -m benchmarks.fuzz pages [--number 20000] [--extractors blocks …] [--first 0]
    python -m benchmarks.fuzz folders

`archives` damages generated archives in six forms and then real ones, and reads them with digests checked; `pages`
gives hostile pages to each extractor in its isolated process. It prints which records were lost, quarantined or wrongly
taken for intact, which processes died, the slowest cases, and the peaks of memory. The exit code is 1 if an intact
record was lost, damage was not reported, a wrong or unclean text was kept, a process died, or one took more memory than
`tests.fuzz.PEAK_BYTES`.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests import fuzz, model_folders
from training.adopt.folder import shape_of
from training.data.sources import resolve
from training.job import DataError
from training.pretrain.models.export import read_model
from training.records import RecipeError

REAL = (
    "data://warc/dolma/sample-0000.warc.gz",
    "data://warc/aut/example.warc.gz",
    "data://warc/resiliparse/warcfile.warc.gz",
    "data://warc/resiliparse/warcfile.warc.lz4",
    "data://warc/warcio/example.warc",
    "data://crawl/snapshot-1/web-06-00000.warc.gz",
)


def main() -> None:
    """Run one of the two parts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("archives", "pages", "folders"))
    parser.add_argument("--number", type=int, default=0, help="10,000 archives, or 20,000 pages for each extractor")
    parser.add_argument("--real", type=int, default=1000, help="archives made of pieces of real files")
    parser.add_argument("--first", type=int, default=0, help="number of the first case; every number is another one")
    parser.add_argument("--extractors", nargs="+", choices=fuzz.EXTRACTORS, default=fuzz.EXTRACTORS)
    options = parser.parse_args()
    if options.what == "folders":
        raise SystemExit(1 if open_folders() else 0)
    if options.what == "archives":
        numbers = range(options.first, options.first + (options.number or 10_000))
        faults = read("made", map(fuzz.archive, numbers)) + read("real", real_archives(options.real))
    else:
        numbers = range(options.first, options.first + (options.number or 20_000))
        faults = sum(extract(name, numbers) for name in options.extractors)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"peak memory of the reader: {peak >> 20} MiB of {fuzz.PEAK_BYTES >> 20}")
    raise SystemExit(1 if faults or peak > fuzz.PEAK_BYTES else 0)


def real_archives(number: int) -> Iterator[fuzz.Archive]:
    """Return this number of damaged copies of real archives, taken from each file in turn."""
    paths = [Path(resolve(uri)) for uri in REAL] if number else []
    return (fuzz.real_archive(paths[n % len(paths)], n // len(paths)) for n in range(number))


def read(name: str, archives: Iterable[fuzz.Archive]) -> int:
    """Read damaged archives and print the results; return the number of faults."""
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        report = fuzz.read_archives(archives, Path(folder))
    print(
        f"{name} archives: {report.files} in {time.process_time() - started:.0f} s CPU; of {report.intact} records left"
        f" alone lost {report.lost.total()} {dict(report.lost)}; of {report.touched} others silent"
        f" {report.silent.total()} {dict(report.silent)}; taken for good and wrong {report.wrong.total()}"
        f" {dict(report.wrong)}, without a digest that could tell {report.unprovable.total()}"
        f" {dict(report.unprovable)}; quarantined {dict(report.quarantined.most_common())}; slowest"
        f" {report.slowest_seconds:.2f} s CPU",
        flush=True,
    )
    return report.faults


def extract(name: str, numbers: range) -> int:
    """Extract hostile pages with one extractor and print the totals; return the number of faults."""
    report = fuzz.extract_pages(numbers, fuzz.SETTINGS[name])
    print(
        f"pages, {name}: {report.fates.total() + len(report.failures)} in {report.seconds:.0f} s CPU;"
        f" fates {dict(report.fates.most_common())}, failures {report.failures}; unclean {report.unclean};"
        f" extractor deaths {report.deaths}; slowest batch of 32 {report.slowest_batch_seconds:.1f} s CPU;"
        f" peak memory {report.peak_bytes >> 20} MiB",
        flush=True,
    )
    return report.faults


def open_folders() -> int:
    """Adopt every hostile model folder and print what is said of it; return how many had no sentence of their own."""
    faults = 0
    with tempfile.TemporaryDirectory() as place:
        good = model_folders.sound(Path(place, "sound"))
        for case in model_folders.CASES:
            folder, started = model_folders.changed(case, good, Path(place, "changed")), time.monotonic()
            try:
                shape_of(str(folder))
                read_model(folder)
                said = "accepted"
            except (RecipeError, DataError) as error:
                said = str(error).replace(str(folder), "…")
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            faults += not said.startswith(("adopt.model: ", "…: "))
            print(f"{time.monotonic() - started:5.1f} s  {case}: {said}", flush=True)
            shutil.rmtree(folder)
    print(f"{len(model_folders.CASES)} folders, {faults} without a sentence of their own")
    return faults


if __name__ == "__main__":
    main()

"""Read broken archives and hostile pages by the thousand, for docs/extraction.md, and hostile model folders.

    PEDIGREE_DATA=… python -m benchmarks.fuzz archives [--number 10000] [--real 1000] [--first 0]
    python -m benchmarks.fuzz pages [--number 20000] [--extractors blocks …] [--first 0]
    python -m benchmarks.fuzz folders [--ways serve chat …]

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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from tests import fuzz, model_folders
from tests.assets.fabricate import make_all, make_one
from tests.bad_inputs import SENTENCE, answer, command
from training.contract.scopes import last_model
from training.data.sources import resolve
from training.recipe.recipe import Recipe

REAL = (
    "data://warc/dolma/sample-0000.warc.gz",
    "data://warc/aut/example.warc.gz",
    "data://warc/resiliparse/warcfile.warc.gz",
    "data://warc/resiliparse/warcfile.warc.lz4",
    "data://warc/warcio/example.warc",
    "data://crawl/snapshot-1/web-06-00000.warc.gz",
)
RECIPES = {
    "adopt.model": "extends: kitchen\nname: mine\nadopt: {model: '{folder}'}\n",
    "adopt.tokenizer": "extends: kitchen\nname: mine\nadopt: {tokenizer: '{folder}'}\n",
    "teacher": "extends: kitchen\nname: mine\npretrain: {distill: {teacher: '{folder}'}}\n",
}
WAYS = {
    **dict.fromkeys(RECIPES, "plan {place}/mine.yaml --root {place}/mine"),
    "evaluate": "evaluate {folder} --suites kitchen --root {place}/root",
    "serve": "serve {folder} --port 18431 --root {place}/root",
    "chat": "chat kitchen --prompt hello --root {place}/root",
}


def main() -> None:
    """Run one of the two parts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("archives", "pages", "folders"))
    parser.add_argument("--number", type=int, default=0, help="10,000 archives, or 20,000 pages for each extractor")
    parser.add_argument("--real", type=int, default=1000, help="archives made of pieces of real files")
    parser.add_argument("--first", type=int, default=0, help="number of the first case; every number is another one")
    parser.add_argument("--extractors", nargs="+", choices=fuzz.EXTRACTORS, default=fuzz.EXTRACTORS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="what opens a model's folder")
    options = parser.parse_args()
    if options.what == "folders":
        raise SystemExit(1 if open_folders(options.ways) else 0)
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


def open_folders(ways: Sequence[str]) -> int:
    """Give every hostile model folder to each command that opens one; return how many had no sentence of their own."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        good, root = model_folders.sound(Path(place, "sound")), Path(place, "root")
        recipe = load_recipe("kitchen")
        make_all(recipe, root)
        for case in model_folders.CASES:
            folder = model_folders.changed(case, good, Path(place, "changed"))
            for way in ways:
                if case in model_folders.MAY.get(way, ()):
                    continue
                if way == "chat":
                    forge(recipe, root, folder)
                started, text = time.monotonic(), RECIPES.get(way, "").replace("{folder}", str(folder))
                asked = WAYS[way].replace("{place}", place).replace("{folder}", str(folder)).split()
                kind, said = answer(partial(command, Path(place, "mine.yaml"), text, asked), Path(place, "said"))
                counts[kind] += 1
                told = said.replace(str(folder), "…").replace(place, "")[:200]
                print(f"{time.monotonic() - started:5.1f} s  {way}, {case}: {kind}: {told}", flush=True)
            shutil.rmtree(folder)
    print(f"{len(model_folders.CASES)} folders by {', '.join(ways)}: {dict(counts)}")
    return counts.total() - counts[SENTENCE]


def forge(recipe: Recipe, root: Path, folder: Path) -> None:
    """Put a model's folder into the root as the last model of a recipe, with a record whose digests are right."""
    comparison = compare(recipe, root)

    def copied(artifact: Path) -> list[str]:
        shutil.rmtree(artifact / "model", ignore_errors=True)
        shutil.copytree(folder, artifact / "model")
        return [f"model/{path.name}" for path in sorted(folder.iterdir())]

    make_one(comparison, comparison.cells[last_model(recipe), recipe.name], more=copied)


if __name__ == "__main__":
    main()

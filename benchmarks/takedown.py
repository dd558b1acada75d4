"""Kill a takedown at random moments, give it again, and compare the end with that of an undisturbed takedown.

    python -m benchmarks.takedown --root ROOT --recipe RECIPE (--domain D | --url U) [--whole 50] [--erasing 0]

Everything happens on copies of the root. One takedown is left alone; its artifacts are what every other one must end
with. The others are killed at up to eight random moments each, by SIGKILL to the command and all its processes, and
given again. --whole of the kills come in whole takedowns: the withdrawal, the rebuild of the corpus, the erasing and
the scan. --erasing further ones come in what follows the rebuild. After each kill every committed artifact must be
sound, the tombstones readable, and what counts as made after the tombstone must be what the undisturbed takedown made.
After the last command no artifact may differ, the report must say that all is proved, and the words that only the
withdrawn pages had, noted before all, must stand in no file. Printed is where the kills fell; while the corpus is
rebuilt, the asset that was being made. The exit code is 1 if anything differs. Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from assets.answers.gc.needed import Folders
from assets.answers.takedown.erasing import Eraser, gone_of, only_there, scan
from assets.answers.takedown.report import finish
from assets.answers.takedown.takedown import held_indexes, to_rebuild
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from assets.state.tombstones import FILE, read_tombstones
from resources.tracking.reports import Tracking
from training.contract.artifact import damaged_files
from training.data.checksum_cache import known_under
from training.data.words.ngrams import Hashes
from training.provenance.lineage import artifacts_under

WHY = "asked by its owner"
MOST_KILLS = 8  # of one takedown, at random moments of its time when undisturbed; then it may end


def main() -> int:
    """Kill takedowns until the number is reached; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--recipe", default="kitchen")
    named = parser.add_mutually_exclusive_group(required=True)
    named.add_argument("--domain")
    named.add_argument("--url")
    parser.add_argument("--whole", type=int, default=50, help="kills in whole takedowns")
    parser.add_argument("--erasing", type=int, default=0, help="further kills, after the rebuild")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the copies go; a folder of its own by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        return killed_often(Path(folder), options)


def killed_often(folder: Path, options: argparse.Namespace) -> int:
    """Compare takedowns that are killed with one that is not; return the exit code."""
    begun = time.monotonic()
    rebuilt = copied(options.root, folder / "rebuilt")
    subprocess.run(takedown(options, rebuilt, "--no-rebuild"), check=True, capture_output=True)
    wanted = words_of(rebuilt)
    for asset in to_rebuild(rebuilt, options.recipe):
        subprocess.run(command("run", options.recipe, "--until", asset, "--root", str(rebuilt)), check=True)
    seconds = {"whole": time.monotonic() - begun}
    place = copied(rebuilt, folder / "undisturbed")
    begun = time.monotonic()
    os.waitpid(finishing(place), 0)
    seconds["erasing"] = time.monotonic() - begun
    seconds["whole"] += seconds["erasing"]
    end = End(digests(place, options.recipe), len(erased_lists(place)))
    print(f"undisturbed: {json.dumps({name: round(one, 1) for name, one in seconds.items()})} s", flush=True)
    return kill_until(folder, options, end, wanted, seconds)


def kill_until(
    folder: Path, options: argparse.Namespace, end: End, wanted: Hashes, seconds: Mapping[str, float]
) -> int:
    """Kill as many takedowns as asked for, each in a copy of a root, and return 1 if a result differs, else 0."""
    chance, problems, phases = random.Random(options.seed), list[str](), Counter[str]()
    number, length = 0, dict(seconds)
    for name, wished in (("whole", options.whole), ("erasing", options.erasing)):
        kills = 0
        while kills < wished:
            place = copied(options.root if name == "whole" else folder / "rebuilt", folder / f"{number:03d}")
            times = sorted(chance.uniform(0, length[name]) for _ in range(min(MOST_KILLS, wished - kills)))
            for before, at in pairwise([0.0, *times]):
                begun = time.monotonic()
                started = beginning(takedown(options, place)) if name == "whole" else finishing(place)
                phase = kill(started, place, at - before, end)
                if not phase:  # it had ended before
                    length[name] = length[name] if before else min(length[name], time.monotonic() - begun)
                    break
                kills, phases[phase] = kills + 1, phases[phase] + 1
                problems += unsound(place) + half_done(place, options.recipe, end)
            if name == "whole":
                subprocess.run(takedown(options, place), check=True, capture_output=True)
            else:
                os.waitpid(finishing(place), 0)
            problems += [f"{name} {number}: {one}" for one in wrong(place, options.recipe, end, wanted)]
            print(f"{name}: {kills} kills, {len(problems)} problems; {dict(phases)}", flush=True)
            shutil.rmtree(place)
            number += 1
    print(f"{phases.total()} kills in {number} takedowns; {len(wanted):,} runs of words")
    for phase, times_killed in phases.most_common():
        print(f"  {times_killed:3} {phase}")
    print("\n".join(problems) or "no difference")
    return 1 if problems else 0


@dataclass(frozen=True, slots=True)
class End:
    """What an undisturbed takedown ends with: the digest of each cell, and the number of its lists of erased files."""

    cells: dict[str, str]
    erased_lists: int


def command(*arguments: str) -> list[str]:
    """Return the command line with these arguments."""
    return [sys.executable, "-c", "from assets.commands.cli import main; main()", *arguments]


def copied(root: Path, target: Path) -> Path:
    """Copy a root; only links to committed files, which are always replaced and never changed in place."""

    def copy(source: str, to: str) -> None:
        is_made = any((one / "artifact.json").exists() for one in list(Path(source).parents)[:3])
        (os.link if is_made else shutil.copyfile)(source, to)

    shutil.copytree(root, target, copy_function=copy)
    return target


def takedown(options: argparse.Namespace, place: Path, *more: str) -> list[str]:
    """Return the command of the takedown."""
    pages = ("--domain", options.domain) if options.domain else ("--url", options.url)
    named = (*pages, "--reason", WHY, "--yes", "--json", "--root", str(place))
    return command("takedown", *named, *more)


def beginning(argv: list[str]) -> int:
    """Start a command; return its process id."""
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid


def finishing(place: Path) -> int:
    """Start what follows the rebuild, which erases, proves and reports, in a fork of this process; return its id."""
    if child := os.fork():
        return child
    status = 1
    try:
        finish(place, tracking=Tracking("", place, in_background=False), say=lambda line: None)
        status = 0
    finally:
        os._exit(status)


def kill(started: int, place: Path, seconds: float, last: End) -> str:
    """Kill a process and all that it started after some seconds; return how far it had come, "" if it had ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(started, os.WNOHANG)[0]:
            return ""
        time.sleep(0.01)
    phase = how_far(place, last)
    for process in descendants(started):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    os.waitpid(started, 0)
    return phase


def descendants(pid: int) -> list[int]:
    """Return a process and everything that it started, the youngest last."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            fields = path.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def how_far(place: Path, end: End) -> str:
    """Return what a takedown was doing, by what it has left under a root."""
    if not (place / FILE).exists():
        return "before the tombstone"
    if list(place.glob("takedowns/*.grams.npy")):
        return "erasing" if len(erased_lists(place)) < end.erased_lists else "reading every file"
    if list(place.glob("takedowns/*.report.json")):
        return "after the report"
    made = {path.parent for path in place.glob("*/*/artifact.json")}
    begun = [path.parent for path in place.glob("*/*/job.json") if path.parent not in made]
    if begun:
        return f"rebuilding, {max(begun, key=lambda path: (path / 'job.json').stat().st_mtime).parent.name}"
    since = (place / FILE).stat().st_mtime
    times = {path: (path / "artifact.json").stat().st_mtime for path in made}
    last = max(times, key=lambda path: times[path])
    return f"after {last.parent.name}, before the next asset" if times[last] > since else "after the tombstone"


def erased_lists(place: Path) -> list[Path]:
    """Return the lists of erased files under a root."""
    return list(place.glob("*/*/erased.json"))


def half_done(place: Path, recipe: str, end: End) -> list[str]:
    """Return the cells that count as made after the tombstone, but are not what the undisturbed takedown made."""
    if not (place / FILE).exists():
        return []
    now = digests(place, recipe)
    return [
        f"{key}: {one} counts as made, not {end.cells.get(key)}"
        for key, one in now.items()
        if one.startswith("made") and one != end.cells.get(key)
    ]


def unsound(place: Path) -> list[str]:
    """Return what a kill has left half done: unreadable tombstones, or files that are no state of an artifact."""
    read_tombstones(place)
    return [line for made in artifacts_under(place) for line in damaged_files(made)]


def digests(place: Path, recipe: str) -> dict[str, str]:
    """Return state and digest of every cell of a recipe."""
    cells = compare(load_recipe(recipe, recipe_folders(place)), place).cells.values()
    return {f"{one.asset} {one.partition}": f"{one.state} {one.artifact and one.artifact.digest}" for one in cells}


def words_of(place: Path) -> Hashes:
    """Return the runs of words that only the withdrawn pages have, before anything is erased."""
    with known_under(place):
        gone = gone_of(Folders(place).all(), read_tombstones(place), held_indexes(place), cluster=True)
        return only_there(Eraser(place, gone, lambda line: None), place)[0]


def wrong(place: Path, recipe: str, end: End, wanted: Hashes) -> list[str]:
    """Return how a root differs from the end of an undisturbed takedown."""
    now = digests(place, recipe)
    lines = [
        f"{key}: {now.get(key)}, not {end.cells.get(key)}"
        for key in now.keys() | end.cells.keys()
        if now.get(key) != end.cells.get(key)
    ]
    reports: list[dict[str, Any]] = [json.loads(path.read_text()) for path in place.glob("takedowns/*.report.json")]
    if [one["proof"]["is_proved"] for one in reports] != [True]:
        lines.append("is not proved")
    lines += [f"{one['path']}, {one['place']}: words are left" for one in scan(place, wanted).hits]
    left = [str(path) for path in place.rglob("*.tmp")]
    return lines + unsound(place) + ([f"{left[0]}: is left"] if left else [])


if __name__ == "__main__":
    sys.exit(main())

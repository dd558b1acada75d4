"""Measure how partitions slow down loading Dagster's code location: `python -m benchmarks.location`.

It loads the definitions with only the shipped recipes, and with 500 and 5,000 more partitions of an asset: from recipes
with 100 snapshots each, and from variants of the kitchen with two snapshots each. Each load is a process of its own, in
turns. Printed is processor time, which other work on the machine changes little: that of `import dagster`, and what
this project adds to it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SNAPSHOTS = 100  # of a recipe; FineWeb has about as many
LOAD = """
import time
begun = time.process_time()
import dagster, dagster._core.execution.backfill
imported = time.process_time()
from assets.definitions import defs
defs.get_repository_def()
print(imported - begun, time.process_time() - imported)
"""
TYPICAL = """\
extends: kitchen
name: {name}
snapshots:
{snapshots}
quality: {{snapshots: [crawl-0]}}
tokenizer: {{snapshots: [crawl-0]}}
"""
VARIANT = "extends: kitchen\nname: {name}\nsft: {{seed: {number}}}\n"


def main() -> int:
    """Load each kind of folder in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, nargs="+", default=[500, 5000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        roots = {"the shipped recipes alone": Path(temporary, "none")}
        for number in options.partitions:
            roots[f"{number:,} partitions more, {SNAPSHOTS} snapshots a recipe"] = with_snapshots(
                Path(temporary, f"snapshots-{number}"), number
            )
            roots[f"{number:,} partitions more, variants of 2 snapshots"] = with_variants(
                Path(temporary, f"variants-{number}"), number
            )
        seconds = {name: [] for name in roots}
        for _ in range(options.rounds):
            for name, root in roots.items():
                seconds[name].append(loaded(root))
    print("\n".join(lines_of(seconds)))
    return 0


def with_snapshots(root: Path, partitions: int) -> Path:
    """Write recipes of `SNAPSHOTS` snapshots each under `root`, with `partitions` partitions of an asset in all."""
    names = "\n".join(f"  - {{name: crawl-{number}, source: kitchen, label: web}}" for number in range(SNAPSHOTS))
    texts = [
        TYPICAL.format(name=f"typical-{number}", snapshots=names) for number in range(max(1, partitions // SNAPSHOTS))
    ]
    return _written(root, texts)


def with_variants(root: Path, partitions: int) -> Path:
    """Write variants of the kitchen, with two snapshots each, under `root`, with `partitions` partitions in all."""
    return _written(
        root, [VARIANT.format(name=f"variant-{number}", number=number) for number in range(partitions // 2)]
    )


def _written(root: Path, texts: list[str]) -> Path:
    (root / "recipes").mkdir(parents=True)
    for number, text in enumerate(texts):
        (root / "recipes" / f"{number}.yaml").write_text(text)
    return root


def loaded(root: Path) -> tuple[float, float]:
    """Load the definitions of a root in a new process; return the seconds.

    The seconds are those for `import dagster`, and those for everything after it.
    """
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        env={**os.environ, "PEDIGREE_ROOT": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    dagster, added = map(float, done.stdout.split())
    return dagster, added


def lines_of(seconds: dict[str, list[tuple[float, float]]]) -> list[str]:
    """The table of medians; the first row is what the others are compared with."""
    medians = {name: statistics.median(added for _, added in found) for name, found in seconds.items()}
    first = next(iter(medians.values()))
    dagster = statistics.median(one for found in seconds.values() for one, _ in found)
    return [
        f"`import dagster`: {dagster:.2f} processor seconds",
        "| recipes | added, processor seconds | [range] | of it for the partitions |",
        "|---|---|---|---|",
        *(
            f"| {name} | {medians[name]:.2f} | [{min(one[1] for one in found):.2f}-{max(one[1] for one in found):.2f}]"
            f" | {medians[name] - first:.2f} |"
            for name, found in seconds.items()
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())

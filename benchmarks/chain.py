"""`make bench`: the time that each stage of a recipe takes, and the time spent outside the stages' own work.

It runs a recipe in a fresh root, runs it again when everything is made, and loads Dagster's code location, each in a
process of its own. It prints a Markdown page and checks nothing. Machines are shared: quote ratios and medians, and run
it more than once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PEDIGREE = [sys.executable, "-c", "from assets.cli import main; main()"]


def main() -> int:
    """Run the recipe, measure, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="kitchen")
    parser.add_argument("--root", default="", help="an empty folder; default: a temporary one, removed afterwards")
    parser.add_argument("--repeats", type=int, default=5, help="of the second run and of loading the code location")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(options.root or temporary)
        first, first_seconds = run(options.recipe, root)
        again = [run(options.recipe, root)[1] for _ in range(options.repeats)]
        loads = [load_code_location(root) for _ in range(options.repeats)]
        print(page(options.recipe, first, first_seconds, again, loads))
    return 0 if first["ok"] else 1


def run(recipe: str, root: Path) -> tuple[dict[str, Any], float]:
    """Run `pedigree run` for the recipe; return its JSON answer and the wall seconds.

    The seconds include the start of the process.
    """
    started = time.monotonic()
    done = subprocess.run(
        [*PEDIGREE, "run", recipe, "--root", str(root), "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    return json.loads(done.stdout.strip().splitlines()[-1]), time.monotonic() - started


def load_code_location(root: Path) -> float:
    """Return the wall seconds in which a new interpreter imports `assets.definitions`."""
    environment = {**os.environ, "PEDIGREE_ROOT": str(root)}
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import assets.definitions"], env=environment, check=True)
    return time.monotonic() - started


def page(recipe: str, first: dict[str, Any], seconds: float, again: list[float], loads: list[float]) -> str:
    """Return the measurements as a Markdown page."""
    rows = [(asset, key, entry) for asset, cells in first["assets"].items() for key, entry in cells.items()]
    inside = sum(entry["seconds"] for _, _, entry in rows)
    lines = [
        f"## `{recipe}`, {os.cpu_count()} cores",
        "",
        "| asset | partition | seconds | peak MB |",
        "|---|---|---|---|",
    ]
    for asset, key, entry in rows:
        cost = json.loads(Path(entry["uri"], "artifact.json").read_text("utf-8"))["cost"]
        lines.append(f"| {asset} | {key} | {entry['seconds']:.1f} | {cost['peak_memory_bytes'] / 1e6:.0f} |")
    lines += ["", "| what | seconds |", "|---|---|"]
    lines.append(f"| whole run | {seconds:.1f} |")
    lines.append(f"| inside stages | {inside:.1f} |")
    lines.append(f"| outside stages' own work | {seconds - inside:.1f} ({(seconds - inside) / seconds:.0%}) |")
    lines.append(f"| second run, everything reused (goal: under 15) | {spread(again)} |")
    lines.append(f"| loading the code location (goal: under 2) | {spread(loads)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Return the values as text: their median, their range and their number."""
    return f"{statistics.median(values):.2f} [{min(values):.2f}-{max(values):.2f}], n = {len(values)}"


if __name__ == "__main__":
    sys.exit(main())

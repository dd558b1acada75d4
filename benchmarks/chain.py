"""`make bench`: the time that each stage of a recipe takes, and what the orchestration around the stages costs.

It runs a recipe in a fresh root, runs it again when everything is made, and loads Dagster's code location, each in a
process of its own. It prints a Markdown page and checks nothing. Machines are shared: quote ratios and medians, run it
more than once, and compare orchestration by processor seconds.
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

from benchmarks.processes import COMMAND, JOBS, WRITER, Costs, run_watched
from benchmarks.rounds import spread

PEDIGREE = [sys.executable, "-c", "from assets.commands.cli import main; main()"]


def main() -> int:
    """Run the recipe, measure, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="kitchen")
    parser.add_argument("--root", default="", help="an empty folder; default: a temporary one, removed afterwards")
    parser.add_argument("--repeats", type=int, default=5, help="of the second run and of loading the code location")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(options.root or temporary)
        first, costs = run(options.recipe, root)
        again = [run(options.recipe, root)[1] for _ in range(options.repeats)]
        loads = [load_code_location(root) for _ in range(options.repeats)]
        print(page(options.recipe, first, costs, again, loads))
    return 0 if first["ok"] else 1


def run(recipe: str, root: Path) -> tuple[dict[str, Any], Costs]:
    """Run `pedigree run` for the recipe; return its JSON answer and what the command and its processes cost."""
    costs = run_watched([*PEDIGREE, "run", recipe, "--root", str(root), "--json"])
    return json.loads(costs.output.strip().splitlines()[-1]), costs


def load_code_location(root: Path) -> float:
    """Return the wall seconds in which a new interpreter imports `assets.definitions`."""
    environment = {**os.environ, "PEDIGREE_ROOT": str(root)}
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import assets.definitions"], env=environment, check=True)
    return time.monotonic() - started


def page(recipe: str, first: dict[str, Any], costs: Costs, again: list[Costs], loads: list[float]) -> str:
    """Return the measurements as a Markdown page."""
    rows = [(asset, key, entry) for asset, cells in first["assets"].items() for key, entry in cells.items()]
    lines = [
        f"## `{recipe}`, {os.cpu_count()} cores, n = {len(again)}",
        "",
        "| asset | partition | seconds | peak MB |",
        "|---|---|---|---|",
    ]
    for asset, key, entry in rows:
        cost = json.loads(Path(entry["uri"], "artifact.json").read_text("utf-8"))["cost"]
        lines.append(f"| {asset} | {key} | {entry['seconds']:.1f} | {cost['peak_memory_bytes'] / 1e6:.0f} |")
    lines += ["", "| what | seconds |", "|---|---|"]
    lines.append(f"| whole run | {costs.seconds:.1f} |")
    without = costs.seconds_without_job
    lines.append(f"| of it, no job ran (goal: 2 %) | {without:.1f} ({without / costs.seconds:.1%}) |")
    lines.append(f"| the same, an asset and partition (goal: 0.25) | {without / len(rows):.2f} |")
    lines.append(f"| second run, everything reused (goal: under 5) | {spread([one.seconds for one in again], 2)} |")
    lines.append(f"| loading the code location (goal: under 2) | {spread(loads, 2)} |")
    own, idle = costs.processor[COMMAND], statistics.median(one.processor[COMMAND] for one in again)
    lines += ["", "| what | processor seconds |", "|---|---|"]
    lines.append(f"| jobs | {costs.processor[JOBS]:.1f} |")
    lines.append(f"| `pedigree run` | {own:.1f} |")
    lines.append(f"| `pedigree run`, an asset and partition more | {(own - idle) / len(rows):.2f} |")
    lines.append(f"| the writer to MLflow | {costs.processor[WRITER]:.1f} |")
    lines.append(f"| second run | {spread([one.processor[COMMAND] for one in again], 2)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

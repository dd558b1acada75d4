"""Measure the rates of `assets/terminal/rates.yaml`: `python -m benchmarks.rates SMALL LARGE --root runs --root other`.

Both recipes were run under a root, LARGE with more pages and a larger model. The rate of an asset is the line through
its processor seconds in both. Trainings and scores use all cores, so that their seconds are divided by the number of
cores. Processor seconds hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import yaml

from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from assets.terminal.first_run import RATES_FILE, FirstRun
from resources.profile import load_profile

HEADER = """\
# Seconds that an asset takes on one machine: `start`, and `each` for every `unit` of its work (terminal/first_run.py).
# Made by `python -m benchmarks.rates {recipes}` on {cores} cores.
"""
UNIT_OF = {
    "base_model": "flop",
    "sft_model": "weights_times_examples",
    "reward_model": "weights_times_examples",
    "aligned_model": "weights_times_examples",
    "model_scores": "weights_times_items",
    "alignment_rewards": "weights_times_answers",
}
LEAST_SECONDS = 0.5  # of an asset: a process starts and reads its job


def main() -> int:
    """Write the rates, or print them with `--dry-run`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+", help="recipes with different work; more for assets that others lack")
    parser.add_argument("--root", type=Path, action="append", help="one for all recipes, or one for each")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    roots = options.root or [Path("runs")]
    runs = [dict(measured(name, roots[min(i, len(roots) - 1)].resolve())) for i, name in enumerate(options.recipes)]
    assets = dict.fromkeys(asset for run in runs for asset in run)
    found = {asset: line([run[asset] for run in runs if asset in run], asset) for asset in assets}
    text = HEADER.format(recipes=" ".join(options.recipes), cores=os.cpu_count())
    text += yaml.safe_dump(found, sort_keys=False, default_flow_style=None, width=120)
    print(text) if options.dry_run else RATES_FILE.write_text(text, "utf-8")
    return 0


def measured(name: str, root: Path) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield each asset of a recipe that is made, with (work, seconds), the means over its partitions."""
    recipe = load_recipe(name, recipe_folders(root))
    first_run = FirstRun(recipe, root, load_profile("local").size_for)
    rows: dict[str, list[tuple[float, float]]] = {}
    for cell in compare(recipe, root).cells.values():
        if cell.artifact is None:
            continue
        work, cost = first_run.work(unit_of(cell.asset), cell), cell.artifact.record["cost"]
        if work is None:  # of exams that the index of the corpus does not hold, nobody counts the items
            continue
        cores = (os.cpu_count() or 1) if CHAIN[cell.asset].stage.by_a_model else 1
        rows.setdefault(cell.asset, []).append((work, cost["cpu_seconds"] / cores))
    for asset, pairs in rows.items():
        yield asset, (mean(work for work, _ in pairs), mean(seconds for _, seconds in pairs))


def unit_of(asset: str) -> str:
    """Return the unit in which an asset's work is counted; empty for a model's small companions."""
    if asset in UNIT_OF:
        return UNIT_OF[asset]
    return "pages" if CHAIN[asset].group in ("corpus", "training_data") else ""


def line(points: list[tuple[float, float]], asset: str) -> dict[str, float | str]:
    """Return the rate that fits the points of (work, seconds) with the least and the most work."""
    (small, first), *_, (large, last) = sorted(points * 2)
    each = max(0.0, (last - first) / (large - small)) if large > small else 0.0
    start = max(LEAST_SECONDS, last - each * large)
    unit = unit_of(asset)
    return {"start": round(start, 2), **({"each": float(f"{each:.3g}"), "unit": unit} if unit else {})}


if __name__ == "__main__":
    sys.exit(main())

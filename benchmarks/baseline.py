"""Check that a change of code changes no result.

Compared are digests of three recipes' artifacts, and the bits of twenty training steps.

    python -m benchmarks.baseline record FILE [--parts kitchen-small,steps] [--root FOLDER]
    python -m benchmarks.baseline compare FILE [--parts kitchen-small,steps] [--root FOLDER]

`record` runs the code of this checkout and writes the digests of its results. `compare` runs it again and prints every
digest that differs from the recorded one; the exit code is 1 when an asset before `model_scores`, or a step, differs.
Differences in scores, model card, report and decision are printed but are no failure. The parts are `kitchen-small`
(tests/recipes) to its end, `kitchen` to its training plan, `webdocs` to its token shards (needs PEDIGREE_DATA), and
`steps`: twenty steps of pretraining on the small kitchen's shards, in one process and in two. A run reuses the
artifacts under `--root`; give this option only if the same code made them. Every process has two threads, because the
number of threads changes the bits of a training.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from assets.recipe_folders import load_recipe
from benchmarks.chain import PEDIGREE
from training.job import Job, read_job, write_job

CHECKOUT = Path(__file__).resolve().parent.parent
UNTIL = {"kitchen-small": "", "kitchen": "training_plan", "webdocs": "token_shards"}
PARTS = (*UNTIL, "steps")
MAY_CHANGE = ("model_scores", "alignment_rewards", "contamination_report", "model_card", "promoted_model")
STEPS = 20
PROCESSES = (1, 2)

Part = dict[str, dict[str, str]]  # what, then which of them: an artifact's digest by partition, or the bits of a step


def main() -> int:
    """Record the digests of this checkout, or compare them with the recorded ones; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--root", type=Path, help="a folder to keep; default: a temporary one, removed afterwards")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as temporary:
        root = (options.root or Path(temporary) / "runs").resolve()
        made = {part: steps(root, Path(temporary)) if part == "steps" else digests(part, root) for part in parts}
    if options.what == "record":
        options.file.write_text(json.dumps({"commit": commit(), "parts": made}, indent=1) + "\n", "utf-8")
        return 0
    recorded = json.loads(options.file.read_text("utf-8"))
    print(f"recorded at {recorded['commit']}, compared with {commit()}")
    found = [line for part in parts for line in differences(part, recorded["parts"].get(part, {}), made[part])]
    print("\n".join(line for line, _ in found) or f"equal: {', '.join(parts)}")
    return 1 if any(matters for _, matters in found) else 0


def commit() -> str:
    """Return the git commit of the checkout, marked as dirty if files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def differences(part: str, before: Part, now: Part) -> list[tuple[str, bool]]:
    """Return a line for each digest that differs from the recorded one, and whether the difference is a failure."""
    return [
        (f"{part}: {what} [{which}]: {old or 'not recorded'} -> {new or 'not made'}", what not in MAY_CHANGE)
        for what in {**before, **now}
        for which in {**before.get(what, {}), **now.get(what, {})}
        for old, new in [(before.get(what, {}).get(which, ""), now.get(what, {}).get(which, ""))]
        if old != new
    ]


# What is made


def digests(recipe: str, root: Path) -> Part:
    """Run a recipe and return the digest of each of its artifacts, by asset and partition."""
    return {asset: {key: one["digest"] for key, one in cells.items()} for asset, cells in run(recipe, root).items()}


def run(recipe: str, root: Path, *, until: str = "") -> dict[str, dict[str, Any]]:
    """Run a recipe; return what `pedigree run --json` reports on each artifact, by asset and partition."""
    until = until or UNTIL[recipe]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as profile:
        profile.write("{name: baseline, default: {threads: 2}}\n")
        profile.flush()
        options = ["--profile", profile.name, "--root", str(root), "--json", *(["--until", until] if until else [])]
        done = run_here([*PEDIGREE, "run", recipe, *options])
    if done.returncode:
        sys.exit(f"{recipe}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])["assets"]


def run_here(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with the code of this checkout, even if another version of the project is installed."""
    recipes = CHECKOUT / "tests" / "recipes"
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PEDIGREE_RECIPES": str(recipes)}
    return subprocess.run(argv, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)


def steps(root: Path, scratch: Path) -> Part:
    """Train twenty steps; return the exact loss of each and the digest of the final weights, by number of processes."""
    import yaml

    recipe = yaml.safe_load((CHECKOUT / "tests" / "recipes" / "kitchen-small.yaml").read_text("utf-8"))
    recipe["name"] = "kitchen-small-steps"
    batch = load_recipe(str(CHECKOUT / "tests" / "recipes" / "kitchen-small.yaml")).pretrain.global_batch_tokens
    recipe["pretrain"] = {"tokens": STEPS * batch, "min_loss_fall": 0.0}
    file = scratch / "kitchen-small-steps.yaml"
    file.write_text(yaml.safe_dump(recipe), "utf-8")
    made = run(str(file), root, until="base_model")
    (model,) = made["base_model"].values()
    job = read_job(Path(model["uri"], "job.json"))
    return {name_of(processes): trained(job, processes, scratch) for processes in PROCESSES}


def name_of(processes: int) -> str:
    """Return the number of processes as a label, such as `2 processes`."""
    return f"{processes} process{'es' if processes > 1 else ''}"


def trained(job: Job, processes: int, scratch: Path) -> dict[str, str]:
    """Run the training job in a new folder with this number of processes; return losses and the weights' digest."""
    folder = scratch / f"on-{processes}" / job.fingerprint
    folder.mkdir(parents=True)
    file = folder / "job.json"
    write_job(replace(job, output=str(folder), run=replace(job.run, processes=processes)), file)
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    done = run_here([sys.executable, "-m", *(torchrun if processes > 1 else []), "training", str(file)])
    if done.returncode:
        sys.exit(f"{name_of(processes)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    rows = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    losses = {f"loss of step {row['step']}": float(row["loss"]).hex() for row in rows if "loss" in row}
    return losses | {"weights": hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()}


if __name__ == "__main__":
    sys.exit(main())

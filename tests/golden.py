"""Golden digests: what the code makes of three recipes, so that a change of code that changes a result is seen.

    python -m tests.golden record [--parts kitchen-small,steps] [--root FOLDER]
    python -m tests.golden compare [--parts kitchen-small,steps] [--root FOLDER]

`record` runs the code of this checkout and writes the digests of its results to `golden.json`. `compare` runs it again
and prints every digest that differs from the recorded one; the exit code is 1 when an asset before `model_scores`, or
a step, differs. Differences in scores, model card, report and decision are printed but are no failure. What a training
made is compared in the numerics class in which it was recorded; in another class a line says so. The parts are
`kitchen-small` (tests/recipes) to its end, `kitchen` to its training plan, `webdocs` to its token shards (needs
PEDIGREE_DATA), and `steps`: twenty steps of pretraining on the small kitchen's shards, in one process and in two.
`record` trains them twice, and records nothing if the bits of the two runs differ. A run reuses the artifacts under
`--root`; give this option only if the same code made them. The end-to-end tests compare the small kitchen that they
make anyway.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assets.state.recipe_folders import load_recipe
from training.contract.artifact import digest_of
from training.contract.job import Job, read_job, write_job

CHECKOUT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).with_name("golden.json")
PEDIGREE = [sys.executable, "-c", "from assets.commands.cli import main; main()"]
UNTIL = {"kitchen-small": "", "kitchen": "training_plan", "webdocs": "token_shards"}
PARTS = (*UNTIL, "steps")
TRAINED = ("base_model", "sft_model", "reward_model", "aligned_model")
MAY_CHANGE = ("model_scores", "alignment_rewards", "contamination_report", "model_card", "promoted_model")
STEPS = 20
PROCESSES = (1, 2)

Part = dict[str, dict[str, Any]]
"""What, then which of them: an artifact's digest by partition, or the bits of a step; and the classes of numerics.

`numerics` holds a digest of the numerics class of each trained model, or of each number of processes.
"""


def main() -> int:
    """Record the digests of this checkout, or compare them with the recorded ones; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--root", type=Path, help="a folder to keep; default: a temporary one, removed afterwards")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    if options.what == "record":
        RECORD.write_text(json.dumps(read_record() | make(parts, options.root, runs=2), indent=1) + "\n", "utf-8")
        return 0
    found = compare(parts, options.root)
    print("\n".join(line for line, _ in found) or f"equal: {', '.join(parts)}")
    return 1 if any(matters for _, matters in found) else 0


def make(parts: Sequence[str], root: Path | None = None, *, runs: int = 1) -> dict[str, Part]:
    """Run the code of this checkout and return the digests of its results by part; train the steps `runs` times."""
    with tempfile.TemporaryDirectory() as temporary:
        place, scratch = (root or Path(temporary) / "runs").resolve(), Path(temporary)
        return {part: steps(place, scratch, runs=runs) if part == "steps" else digests(part, place) for part in parts}


def compare(parts: Sequence[str], root: Path | None = None) -> list[tuple[str, bool]]:
    """Run the code of this checkout; return a line for each digest that differs, and whether this is a failure."""
    recorded, made = read_record(), make(parts, root)
    return [line for part in parts for line in differences(part, recorded.get(part, {}), made[part])]


def read_record() -> dict[str, Part]:
    """Return the recorded digests by part."""
    return json.loads(RECORD.read_text("utf-8"))


def differences(part: str, before: Part, now: Part) -> list[tuple[str, bool]]:
    """Return a line for each digest that differs from the recorded one, and whether the difference is a failure.

    What was trained in another numerics class than the recorded one has one line, which is no failure.
    """
    found = []
    classes, here = before.get("numerics", {}), now.get("numerics", {})
    for what in {**before, **now}.keys() - {"numerics"}:
        if what in (*classes, *here) and what in now and classes.get(what) != here.get(what):
            found.append((f"{part}: {what}: not compared, recorded in another numerics class", False))
            continue
        was, is_now = before.get(what, {}), now.get(what, {})
        found += [
            (f"{part}: {what} [{which}]: {old or 'not recorded'} -> {new or 'not made'}", what not in MAY_CHANGE)
            for which in {**was, **is_now}
            for old, new in [(was.get(which, ""), is_now.get(which, ""))]
            if old != new
        ]
    return sorted(found)


# What is made


def digests(recipe: str, root: Path) -> Part:
    """Run a recipe and return the digest of each of its artifacts, by asset and partition."""
    return of_answer(run(recipe, root))


def of_answer(assets: dict[str, dict[str, Any]]) -> Part:
    """Return the digests of what `pedigree run --json` reports, and the numerics classes of the trained models."""
    found: Part = {asset: {key: one["digest"] for key, one in made.items()} for asset, made in assets.items()}
    models = {asset: next(iter(assets[asset].values())) for asset in TRAINED if asset in assets}
    return found | {"numerics": {asset: numerics_of(Path(one["uri"])) for asset, one in models.items()}}


def numerics_of(folder: Path) -> str:
    """Return a digest of the numerics class in the record of an artifact."""
    return digest_of(json.loads((folder / "artifact.json").read_text("utf-8"))["numerics"])


def run(recipe: str, root: Path, *, until: str = "") -> dict[str, dict[str, Any]]:
    """Run a recipe; return what `pedigree run --json` reports of each artifact, by asset and partition."""
    until = until or UNTIL[recipe]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as profile:
        profile.write("{name: golden, default: {threads: 2}}\n")
        profile.flush()
        options = ["--profile", profile.name, "--root", str(root), "--json", *(["--until", until] if until else [])]
        done = run_here([*PEDIGREE, "run", recipe, *options])
    if done.returncode:
        sys.exit(f"{recipe}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])["assets"]


def run_here(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with the code of this checkout, even if another version of the project is installed."""
    recipes = CHECKOUT / "tests" / "recipes"
    paths = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "PEDIGREE_RECIPES": str(recipes)}
    return subprocess.run(argv, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)


def steps(root: Path, scratch: Path, *, runs: int = 1) -> Part:
    """Train twenty steps; return the exact loss of each and the digest of the final weights, by number of processes.

    Exit if one of several runs gives other bits than the first.
    """
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
    bits = {
        name_of(processes): alike([trained(job, processes, scratch / f"run-{run}") for run in range(runs)])
        for processes in PROCESSES
    }
    return bits | {"numerics": {name: losses.pop("numerics") for name, losses in bits.items()}}


def name_of(processes: int) -> str:
    """Return the number of processes as a label, such as `2 processes`."""
    return f"{processes} process{'es' if processes > 1 else ''}"


def alike(runs: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the bits of the first of several runs; exit if another run of the same job has others."""
    first, *others = runs
    for other in others:
        if changed := [name for name in first if first[name] != other.get(name)]:
            sys.exit(f"steps: two runs of this code gave other bits, from {changed[0]} on: nothing is recorded")
    return first


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
    weights = hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()
    return losses | {"weights": weights, "numerics": numerics_of(folder)}


if __name__ == "__main__":
    sys.exit(main())

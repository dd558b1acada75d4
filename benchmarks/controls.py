"""`make controls`: compare the scores of the embedded recipe (the kitchen) with controls that cannot know the answers.

For each seed there are four results: the kitchen as it is; its base model with the answers to the tested items left out
of every page; an n-gram model and a longest-overlap baseline over the training pages. It prints a Markdown table with a
row for each seed. Two chains of one thread each share two cores better than one chain of two threads
(docs/log/benchmarks.md).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from benchmarks.chain import PEDIGREE
from evaluation.controls import NgramControl, OverlapModel, accuracy
from evaluation.intervals import in_percent

MODELS = ("base", "sft", "aligned")
# The demo's own seed, 20, is not among them.
SEEDS = "0,1,2,3,4,5,6,7,8,9"
PROFILE = {"name": "one-thread", "default": {"backend": "local", "workers": 1, "threads": 1}}


def main() -> int:
    """Run all seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default=SEEDS)
    parser.add_argument("--chains", type=int, default=2, help="run at once")
    parser.add_argument("--root", default="", help="keep artifacts here; default: a temporary folder")
    options = parser.parse_args()
    print(
        "| seed | cloze base | questions base | questions SFT | questions aligned | true reward SFT, aligned, "
        "gain | withheld: cloze base | n-gram | overlap |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(options.root or temporary).resolve()
        root.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(options.chains) as pool:
            for line in pool.map(lambda seed: row(int(seed), root), options.seeds.split(",")):
                print(line, flush=True)
    return 0


def row(seed: int, root: Path) -> str:
    """Return one seed's scores, in percent, as a row of the table."""
    told = run(seed, root, until="alignment_rewards", withheld=False)
    untold = run(seed, root, until="base_model", withheld=True)
    scores = json.loads(Path(told["model_scores"][0], "scores.json").read_text("utf-8"))
    alignment = json.loads(Path(told["alignment_rewards"][0], "alignment.json").read_text("utf-8"))
    ngram, overlap = baselines(seed, told)
    rewards = ", ".join(interval(alignment, who) for who in ("sft", "aligned", "gain"))
    cells = [percent(scores["base"]["cloze"]), *(percent(scores[model]["questions"]) for model in MODELS), rewards]
    cells += [percent(cloze(untold["base_model"][0], seed)), f"{100 * ngram:.1f}", f"{100 * overlap:.1f}"]
    return f"| {seed} | {' | '.join(cells)} |"


def percent(score: dict[str, Any]) -> str:
    """Return a score in percent with its 95 % interval, as text."""
    return in_percent(score["score"], score["n"])


def interval(alignment: dict[str, Any], who: str) -> str:
    """Return the mean true reward of a model with its 95 % interval.

    For `gain`, the interval is that of pairs of answers to the same prompt.
    """
    return f"{alignment[who]['true_reward']:.2f} ± {alignment[who]['true_reward_interval']:.2f}"


def run(seed: int, root: Path, *, until: str, withheld: bool) -> dict[str, list[str]]:
    """Run a kitchen with this seed up to the asset `until`; return the folders of its artifacts.

    They are given by asset, one per partition. Each kitchen has a root of its own: two kitchens share little work, and
    so two chains never wait for each other.
    """
    name = f"control-{seed}{'-withheld' if withheld else ''}"
    changes = {
        "extends": "kitchen",
        "name": name,
        "kitchen": {"seed": seed, "withheld_exam_answers": withheld},
        "pretrain": {"seed": seed},
    }
    recipe, profile = root / f"{name}.yaml", root / "one-thread.yaml"
    recipe.write_text(yaml.safe_dump(changes), "utf-8")
    profile.write_text(yaml.safe_dump(PROFILE), "utf-8")
    argv = [*PEDIGREE, "run", str(recipe), "--profile", str(profile), "--root", str(root / name)]
    done = subprocess.run([*argv, "--until", until, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    if until not in answer.get("assets", {}):
        raise SystemExit(f"{name} did not get to its scores: {answer.get('error') or answer.get('refusals')}")
    return {asset: [cell["uri"] for cell in cells.values()] for asset, cells in answer["assets"].items()}


def cloze(base_model: str, seed: int) -> dict[str, Any]:
    """Score the base model on the cloze items; the run stopped at the base model, so its scores do not exist."""
    from assets.recipe_folders import load_recipe
    from evaluation.exams import read_exam
    from evaluation.harness import run_suites
    from evaluation.local_model import LocalModel

    recipe = load_recipe("kitchen").evaluation
    suite = next(one for one in recipe.suites if one.name == "cloze")
    exam = read_exam(suite, {"kitchen": {"seed": seed}}).items
    model = LocalModel(Path(base_model, "model"), batch_size=recipe.batch_size)
    (result,) = run_suites(model, [(suite, exam)], has_template=False)
    return result.as_json()


def baselines(seed: int, made: dict[str, list[str]]) -> tuple[float, float]:
    """Return the accuracy of an n-gram model and of the longest overlap on the cloze items.

    Both use every snapshot's clean pages.
    """
    from assets.recipe_folders import load_recipe
    from evaluation.exams import read_exam
    from training.data.documents import read_documents

    files = [
        path
        for folder in made["decontaminated_documents"]
        for path in sorted(Path(folder, "documents").glob("*.parquet"))
    ]
    texts = [row["text"] for path in files for row in read_documents(path, columns=["text"])]
    suite = next(one for one in load_recipe("kitchen").evaluation.suites if one.name == "cloze")
    items = read_exam(suite, {"kitchen": {"seed": seed}}).items
    return accuracy(NgramControl(texts), items), accuracy(OverlapModel(texts), items)


if __name__ == "__main__":
    sys.exit(main())

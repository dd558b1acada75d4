"""`make controls`: the controls beside the kitchen's scores.

For each seed: the kitchen as it is; the same kitchen with the answers to the tested items left out of every page; an
n-gram model and a longest-overlap baseline over the pages that were trained on. Prints a Markdown table with the seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.chain import PEDIGREE

MODELS = ("base", "sft", "aligned")


def main() -> int:
    """Run the seeds and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9")
    parser.add_argument("--root", default="", help="keep artifacts here; default: a temporary folder")
    options = parser.parse_args()
    print(
        "| seed | cloze base | questions base | questions SFT | questions aligned | true reward SFT, aligned, "
        "gain | withheld: cloze base | n-gram | overlap |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for seed in options.seeds.split(","):
            print(row(int(seed), Path(options.root or temporary)), flush=True)
    return 0


def row(seed: int, root: Path) -> str:
    """One seed's figures in percent."""
    told = run(seed, root, withheld=False)
    untold = run(seed, root, withheld=True)
    scores, control = (
        json.loads(Path(made, "scores.json").read_text("utf-8"))
        for made in (told["model_scores"], untold["model_scores"])
    )
    alignment = json.loads(Path(told["model_scores"], "alignment.json").read_text("utf-8"))
    ngram, overlap = baselines(seed, told)
    rewards = ", ".join(interval(alignment, who) for who in ("sft", "aligned", "gain"))
    cells = [percent(scores["base"]["cloze"]), *(percent(scores[model]["questions"]) for model in MODELS), rewards]
    cells += [percent(control["base"]["cloze"]), f"{100 * ngram:.1f}", f"{100 * overlap:.1f}"]
    return f"| {seed} | {' | '.join(cells)} |"


def percent(score: dict[str, Any]) -> str:
    """Score ± standard error."""
    return f"{100 * score['score']:.1f} ± {100 * score['stderr']:.1f}"


def interval(alignment: dict[str, Any], who: str) -> str:
    """Mean true reward with its 95 % interval; of `gain` by pairs of answers to the same prompt."""
    return f"{alignment[who]['true_reward']:.2f} ± {alignment[who]['true_reward_interval']:.2f}"


def run(seed: int, root: Path, *, withheld: bool) -> dict[str, str]:
    """The folders of one kitchen's artifacts by asset (the last partition's, or the only one)."""
    name = f"control-{seed}{'-withheld' if withheld else ''}"
    changes = {
        "extends": "kitchen",
        "name": name,
        "kitchen": {"seed": seed, "withheld_exam_answers": withheld},
        "pretrain": {"seed": seed},
    }
    recipe = root / f"{name}.yaml"
    root.mkdir(parents=True, exist_ok=True)
    recipe.write_text(yaml.safe_dump(changes), "utf-8")
    argv = [*PEDIGREE, "run", str(recipe), "--root", str(root), "--until", "model_scores", "--json"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    if "model_scores" not in answer.get("assets", {}):
        raise SystemExit(f"{name} did not get to its scores: {answer.get('error') or answer.get('refusals')}")
    return {asset: list(cells.values())[-1]["uri"] for asset, cells in answer["assets"].items()}


def baselines(seed: int, made: dict[str, str]) -> tuple[float, float]:
    """Accuracy on the cloze items of an n-gram model and of the longest overlap, over the last "
    "snapshot's clean pages."""
    from training.data.documents import read_documents
    from training.data.kitchen import KitchenWorld, rows
    from training.data.kitchen.baselines import NgramModel, OverlapModel, accuracy

    folder = Path(made["decontaminated_documents"], "documents")
    texts = [row["text"] for path in sorted(folder.glob("*.parquet")) for row in read_documents(path, columns=["text"])]
    items = rows("cloze", KitchenWorld(seed=seed))
    return accuracy(NgramModel(texts), items), accuracy(OverlapModel(texts), items)


if __name__ == "__main__":
    sys.exit(main())

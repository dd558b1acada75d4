"""Run a recipe whose parts are all from an installed package: `python -m tests.seams FOLDER`, or `make seams`.

A package is written into FOLDER and installed there by pip. It registers a part of each kind: the examples of
`examples/extend/`, and a preference method that samples answers. A small kitchen that names them, and no place of them,
runs from its crawl to the promotion. Then a line of each part is changed, and `pedigree status` must call those
assets outdated by it that read the part, and no others.

FOLDER is kept, so a run that was stopped goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml

CHECKOUT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-c", "from assets.commands.cli import main; main()")
# The module of each part among the examples, by the group of its entry point.
PARTS = {
    "rules": "long_lines:rule",
    "readers": "zipped_pages:reader",
    "extractors": "plain_tags:extractor",
    "survivors": "original:survivor",
    "optimizers": "adamax:optimizer",
    "losses": "focal:loss",
    "objectives": "later_half:objective",
    "families": "granite:family",
    "rewards": "polite:reward",
    "methods": "sampling:method",
    "tasks": "first_word:task",
    "harnesses": "second_try:harness",
    "judges": "brief:judge",
}
SAMPLING = """
from training.posttrain.align.method import Method

def train(given):
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer
    from training.posttrain.align.sampling.sampled import train_on_samples
    return train_on_samples(given, GRPOConfig, GRPOTrainer)

method = Method(config="GRPOConfig", learns_from="samples", train=train)
"""
# A line of each part, its replacement, and the assets whose settings name the part.
CHANGES = {
    "long_lines.py": ("if line.strip()", "if line", {"document_scores", "filtered_documents"}),
    "zipped_pages.py": ("sorted(pages.namelist())", "pages.namelist()", {"extracted_documents"}),
    "plain_tags.py": ("if len(line) >=", "if len(line) >", {"extracted_documents"}),
    "original.py": ("return -len", "return 1 - len", {"deduplicated_documents"}),
    "adamax.py": ("numbers=for_each_number(2)", "numbers=for_each_number(3)", {"base_model"}),
    "focal.py": ("(1 - (-", "(1.0 - (-", {"base_model"}),
    "later_half.py": ("< settings.hidden", "<= settings.hidden", {"base_model"}),
    "granite.py": ("SHARE = 0.22", "SHARE = 0.23", {"base_model"}),
    "polite.py": ('"thank you" in', '"thank" in', {"aligned_model", "alignment_rewards"}),
    "sampling.py": ('samples", train', 'samples",  start_gates=(), train', {"aligned_model", "alignment_rewards"}),
    "brief.py": ("return 0.0", "return -1.0", {"alignment_rewards"}),
    "second_try.py": ("(number + 1)", "(number + 2)", {"model_scores"}),
    "first_word.py": ("Answer:", "Reply:", {"model_scores", "alignment_rewards", "data_contamination"}),
}
RECIPE: dict[str, Any] = {
    "name": "seams",
    "extends": "kitchen-small-rl",
    "snapshots": [
        {"name": "kitchen-1", "source": "kitchen"},
        {"name": "kitchen-2", "source": "kitchen"},
        {"name": "saved", "source": "zipped_pages", "paths": ["saved/"]},
    ],
    "extract": {"extractor": "plain_tags"},
    "tokenizer": {
        "special_tokens": [*(f"<|{name}|>" for name in "endoftext pad system user assistant end hidden".split())]
    },
    "filter": {"rules": ["url", "language", "gopher_quality", "long_lines", "classifier", "personal_data"]},
    "dedup": {"survivor": "original"},
    "model": {"family": "granite", "qk_norm": False},
    "pretrain": {"optimizer": "adamax", "loss": "focal", "objective": {"kind": "later_half"}},
    "align": {"method": "sampling", "verifiable_reward_weight": 0.0, "rewards": {"right_answer": 0.5, "polite": 0.5}},
    "promote": {"model_name": "seams", "above_chance": "not_required"},
}


def write_package(folder: Path) -> None:
    """Write the package `own_parts` and its entry points."""
    code = folder / "package" / "own_parts"
    code.mkdir(parents=True, exist_ok=True)
    for place in PARTS.values():
        name = f"{place.partition(':')[0]}.py"
        if name == "sampling.py":
            (code / name).write_text(SAMPLING)
        else:
            shutil.copy(CHECKOUT / "examples" / "extend" / name, code)
    (code / "__init__.py").write_text("")
    groups = "".join(
        f'[project.entry-points."pedigree.{group}"]\n{place.partition(":")[0]} = "own_parts.{place}"\n'
        for group, place in PARTS.items()
    )
    (code.parent / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "own-parts"\nversion = "1.0"\n{groups}[tool.setuptools]\npackages = ["own_parts"]\n'
    )


def install(folder: Path) -> Path:
    """Install the package with pip into a folder of its own, and return that folder."""
    write_package(folder)
    place = folder / "installed"
    shutil.rmtree(place, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(place), str(folder / "package")], check=True)
    return place


def write_pages(folder: Path) -> None:
    """Write a zip file of pages that the filter keeps or drops, if it is not there."""
    folder.mkdir(exist_ok=True)
    if (folder / "pages.zip").exists():
        return
    days = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
    with ZipFile(folder / "pages.zip", "w") as pages:
        for number, house in enumerate(days):
            told = days[:number]
            lines = "".join(f"<p>The cook of the {house} house serves the soup of the {day} day.</p>" for day in told)
            pages.writestr(f"{number}.html", f"<html><body><h1>The {house} house</h1>{lines}</body></html>")


def pedigree(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the command line with the installed package; return exit code, answer and standard error."""
    given = {
        "PEDIGREE_RECIPES": str(CHECKOUT / "tests" / "recipes"),
        "PYTHONPATH": f"{CHECKOUT}:{folder / 'installed'}",
    }
    done = subprocess.run(
        [*COMMAND, arguments[0], str(folder / "seams.yaml"), *arguments[1:], "--root", str(folder / "root"), "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **given},
    )
    return done.returncode, json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else {}, done.stderr


def outdated(folder: Path, field: str) -> set[str]:
    """Return the assets that are outdated for the field."""
    assets = pedigree(folder, "status")[1]["assets"]
    return {
        asset
        for asset, cells in assets.items()
        for cell in cells.values()
        if field in json.dumps(cell.get("changed", cell))
    }


def main() -> None:
    """Run the recipe, change each part, and print what was found; exit with 1 if it is not as expected."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    place = install(folder)
    (folder / "shown.jsonl").write_text(
        "".join(
            json.dumps({"id": f"shown-{n}", "question": f"What is dish {n}?", "answer": "soup"}) + "\n"
            for n in range(4)
        )
    )
    suite = {"name": "first", "uri": "kitchen://questions", "kind": "generate", "task": "first_word"}
    suite |= {"fewshot_uri": str(folder / "shown.jsonl"), "num_fewshot": 1, "limit": 8}
    suite |= {"lm_eval": {"generation_kwargs": {"until": ["\n"], "max_gen_toks": 8}}}
    own = {"name": "tries", "uri": "kitchen://questions", "kind": "generate", "harness": "second_try", "limit": 8}
    evaluation = {"suites": [suite, own], "alignment_prompts": "kitchen://alignment", "judge": "brief"}
    (folder / "seams.yaml").write_text(yaml.safe_dump(RECIPE | {"evaluation": evaluation}))
    write_pages(folder / "saved")
    code, answer, errors = pedigree(folder, "run")
    if code:
        sys.exit(f"exit code {code}: {json.dumps(answer)[:2000]}\n{errors[-4000:]}")
    failures = [f"not promoted: {answer.get('refusals')}"] if not answer.get("promoted") else []
    for asset, cells in answer["assets"].items():
        for cell, made in cells.items():
            counts = made.get("counts") or {}
            gone = sum((counts.get("dropped") or {}).values()) + sum((counts.get("quarantined") or {}).values())
            if counts and counts["in"] != counts["kept"] + gone:
                failures.append(f"{asset} {cell}: {counts} do not balance")
    print(f"promoted: {answer.get('promoted')}; {sum(len(cells) for cells in answer['assets'].values())} artifacts")
    for file, (old, new, expected) in CHANGES.items():
        module = place / "own_parts" / file
        before = module.read_text()
        assert old in before, (file, old)
        module.write_text(before.replace(old, new))
        found = outdated(folder, f"parts.{file.removesuffix('.py')}.code")
        module.write_text(before)
        print(f"{file}: {', '.join(sorted(found))}")
        if found != expected:
            failures.append(f"{file}: its code should outdate {', '.join(sorted(expected))}")
    print("\n".join(failures) or "as expected")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()

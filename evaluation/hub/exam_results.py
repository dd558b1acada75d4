"""The scores of an exported model as `.eval_results/SUITE.yaml`, the form that Hugging Face's hub reads.

The hub lists a score on the model's page and on a leaderboard if the exam is a benchmark there, which an address such
as `hf://datasets/OWNER/NAME/…` says. Any other exam keeps its own address as the id, and its score stays a file.
Source: huggingface_hub's `EvalResultEntry` and https://huggingface.co/docs/hub/eval-results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.contract.artifact import Artifact, write_text

RESULTS_FOLDER = ".eval_results"
ON_THE_HUB = re.compile(r"(?:hf://datasets/|https://huggingface\.co/datasets/)(?P<id>[^/@]+/[^/@]+)")


def write_results(scores: Artifact, digest: str, folder: Path) -> list[str]:
    """Write a file for each suite that this model answered; return the files' names relative to `folder`.

    The scores of other models in the artifact are left out. A model that took no suite has no file.
    """
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    # As plain data: a part from outside that a suite names need not be here.
    places = {one["name"]: one["uri"] for one in scores.record["settings"]["evaluation"]["suites"]}
    harness, values = (json.loads(scores.file(name).read_text("utf-8")) for name in ("harness.json", "scores.json"))
    names = []
    for model in (name for name, asked in harness.items() if asked["digest"] == digest):
        for suite, result in values[model].items():
            entry = EvalResultEntry(
                dataset_id=dataset_of(places[suite]),
                task_id=suite,
                value=result["score"],
                notes=_notes(result, harness[model]["suites"][suite], digest, scores.digest),
            )
            names.append(f"{RESULTS_FOLDER}/{suite}.yaml")
            (folder / RESULTS_FOLDER).mkdir(exist_ok=True)
            write_text(folder / names[-1], yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False))
    return names


def dataset_of(uri: str) -> str:
    """Return the hub's id of an exam, or the exam's own address if the hub does not have it."""
    found = ON_THE_HUB.match(uri)
    return found["id"] if found else uri


def _notes(result: Mapping[str, Any], asked: Mapping[str, Any], model: str, scores: str) -> str:
    low, high = result["interval"]
    if "harness" in asked:
        how = f"harness {asked['harness']}, code {asked['code']}"
    else:
        how = f"{asked['num_fewshot']} examples, lm-eval {asked['lm_eval']}, task {asked['task_hash']}"
    return (
        f"{result['metric']}, {result['n']} items, 95 % interval {low:.4f} to {high:.4f}, {how}, model {model}, scores"
        f" {scores}"
    )

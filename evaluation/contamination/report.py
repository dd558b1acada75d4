"""Stage `contamination_report`: the verdict on the training data, with the scores on clean and on found items.

The scan is that of `data_contamination`, which is read by digest and not repeated. `contamination.json` is its report
with each model's score on the clean, the found and the uncleared items of each suite, and `findings.jsonl` is its list
of findings. The gate `contamination` gates promotion.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from evaluation.contamination.verdict import FINDINGS_FILE, REPORT_FILE, gate_of, metrics_of
from evaluation.decision.answers import MODELS, sample_file, score_of
from evaluation.decision.intervals import share_interval
from training.contract.artifact import write_json
from training.contract.job import InputArtifact, Job, Outcome, Work
from training.data.documents import read_lines, write_lines


def run(job: Job, work: Work) -> Outcome:
    """Write the report of the scan together with the models' scores; return the gate `contamination` on it."""
    scan, scores = job.input_of("data_contamination"), job.input_of("model_scores")
    report = json.loads(scan.file(REPORT_FILE).read_text("utf-8"))
    findings = list(read_lines(scan.file(FINDINGS_FILE)))
    for name, suite in report["suites"].items():
        found = set().union(*suite["found"].values())
        suite["scores"] = scores_by_state(scores, name, found, set(suite["not_cleared"]))
    report["scan"] = scan.digest
    write_json(work.path / REPORT_FILE, report)
    write_lines(work.path / FINDINGS_FILE, findings)
    gate = gate_of(report, findings)
    return Outcome(files=(REPORT_FILE, FINDINGS_FILE), metrics=metrics_of(report), gates=(gate,))


def scores_by_state(
    scores: InputArtifact, suite: str, found: set[str], not_cleared: set[str]
) -> dict[str, dict[str, Any]]:
    """Return each model's score on the clean, the found and the uncleared items of a suite, from the kept samples."""
    result = {}
    for model in (model for model in MODELS if scores.file(sample_file(model, suite)).exists()):
        correct: dict[str, list[float]] = defaultdict(list)
        for sample in read_lines(scores.file(sample_file(model, suite))):
            item = sample["item"]
            state = "found" if item in found else "not_cleared" if item in not_cleared else "clean"
            correct[state].append(score_of(sample))
        result[model] = {state: _score(correct[state]) for state in ("clean", "found", "not_cleared")}
    return result


def _score(correct: Sequence[float]) -> dict[str, Any]:
    """Return the mean, its 95 % interval and the number of items; mean and interval are None without items."""
    if not correct:
        return {"score": None, "interval": None, "n": 0}
    mean = fmean(correct)
    return {"score": mean, "interval": list(share_interval(mean, len(correct))), "n": len(correct)}

"""The verdict on training data, from the report of a scan for exam items.

A verdict is one of four words:

- *clean*: nothing was found in the training data, and in each suite some items can be cleared;
- *tolerated*: something was found, or cannot be known, and a field of the recipe allows it; `tolerated` has the field
  and the numbers;
- *contaminated*: more was found than the recipe allows;
- *unknown*: some training data were not scanned, or no item of a suite can be cleared.

An item is cleared if it was not found, and the rule would have found it. `told` says a verdict with the number of items
that are cleared, so that *clean* never stands alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from training.contract.job import Gate

if TYPE_CHECKING:
    from training.recipe.settings.evaluation import EvaluationRecipe

PRETRAINING, INSTRUCTIONS, PREFERENCES, PROMPTS = "pretraining", "instructions", "preferences", "prompts"
WHERE = (PRETRAINING, INSTRUCTIONS, PREFERENCES, PROMPTS)
CLEAN, TOLERATED, CONTAMINATED, UNKNOWN = "clean", "tolerated", "contaminated", "unknown"
REPORT_FILE, FINDINGS_FILE = "contamination.json", "findings.jsonl"
SHOWN_FINDINGS = 5  # in the gate's evidence


def cleared(suite: Mapping[str, Any]) -> int:
    """Return the number of a suite's items that were not found and would have been found."""
    return suite["items"] - suite["found_items"] - len(suite["not_cleared"])


def told(verdict: str, num_cleared: int, num_items: int) -> str:
    """Return a verdict with what it covers, such as `clean (33 of 1,120 items cleared)`.

    The verdicts that refuse a model stand alone, and so does one about no item.
    """
    if verdict not in (CLEAN, TOLERATED) or not num_items:
        return verdict
    return f"{verdict} ({num_cleared:,} of {num_items:,} items cleared)"


def told_of(report: Mapping[str, Any]) -> str:
    """Return the verdict of a report with the number of items of all suites that are cleared."""
    return told(report["verdict"], sum(map(cleared, report["suites"].values())), _items(report))


def judged(report: Mapping[str, Any], recipe: EvaluationRecipe) -> dict[str, Any]:
    """Return the verdict and what the recipe tolerated.

    `verdict` is one of the four words. `tolerated` is {field of the recipe: numbers}, and is empty for other verdicts.
    """
    most = recipe.max_contaminated_fraction
    suites = report["suites"]
    unknown = {name: why for name, why in report["unknown"].items() if name not in recipe.tolerate_unknown}
    found = {name: _of(suite["found_items"], suite) for name, suite in suites.items() if suite["found_items"]}
    questions = {name: _of(len(suite["questions_seen"]), suite) for name, suite in suites.items()}
    seen = {name: text for name, text in questions.items() if suites[name]["questions_seen"]}
    tolerated = {
        f"evaluation.max_contaminated_fraction={most}": found,
        "evaluation.question_seen=reported": seen if recipe.question_seen != CONTAMINATED else {},
        "evaluation.tolerate_unknown": {name: why for name, why in report["unknown"].items() if name not in unknown},
    }
    tolerated = {field: numbers for field, numbers in tolerated.items() if numbers}
    if any(suite["found_fraction"] > most for suite in suites.values()):
        return {"verdict": CONTAMINATED, "tolerated": {}}
    if unknown or report["unscanned_documents"]:
        return {"verdict": UNKNOWN, "tolerated": {}}
    return {"verdict": TOLERATED if tolerated else CLEAN, "tolerated": tolerated}


def _of(number: int, suite: Mapping[str, Any]) -> str:
    return f"{number} of {suite['items']} items"


def gate_of(report: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> Gate:
    """Return the gate `contamination`, which passes for the verdicts clean and tolerated.

    The evidence of a failed gate begins with one sentence, `reason`; that of a passed one says the verdict with the
    items that are cleared (`told`).
    """
    most = report["max_contaminated_fraction"]
    over = {name for name, suite in report["suites"].items() if suite["found_fraction"] > most}
    evidence: dict[str, Any] = {
        "verdict": report["verdict"],
        "max_contaminated_fraction": most,
        "found_fraction": {name: round(suite["found_fraction"], 6) for name, suite in report["suites"].items()},
        "not_cleared": {name: len(suite["not_cleared"]) for name, suite in report["suites"].items()},
        "findings": _shown([finding for finding in findings if finding["benchmark"] in over]),
    }
    passed = report["verdict"] in (CLEAN, TOLERATED)
    if passed:
        evidence["told"] = told_of(report)
    else:
        evidence = {"reason": _reason(report, over)} | evidence
    if report["tolerated"]:
        evidence["tolerated"] = report["tolerated"]
    if report["unscanned_documents"]:
        evidence["unscanned_documents"] = report["unscanned_documents"]
    if report["verdict"] == UNKNOWN:
        evidence["unknown"] = report["unknown"]
    return Gate(name="contamination", passed=passed, evidence=evidence)


def _items(report: Mapping[str, Any]) -> int:
    return sum(suite["items"] for suite in report["suites"].values())


def _reason(report: Mapping[str, Any], over: Iterable[str]) -> str:
    """Return a sentence that says why the verdict is contaminated or unknown."""
    if report["verdict"] == CONTAMINATED:
        suites, most = report["suites"], report["max_contaminated_fraction"]
        found = (f"{_of(suites[name]['found_items'], suites[name])} of {name}" for name in sorted(over))
        return f"{', '.join(found)} were found; evaluation.max_contaminated_fraction={most} allows fewer"
    unscanned = report["unscanned_documents"]
    documents = [f"{unscanned} documents of the token shards were not scanned"] if unscanned else []
    return "; ".join([*documents, *report["unknown"].values()])


def _shown(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return SHOWN_FINDINGS findings: one of each item before further ones of the same item, pages before rows."""
    seen: Counter[tuple[str, str]] = Counter()
    ranked = []
    for finding in findings:
        key = (finding["benchmark"], finding["item"])
        ranked.append((seen[key], WHERE.index(finding["where"]), len(ranked), finding))
        seen[key] += 1
    names = (
        "benchmark",
        "item",
        "where",
        "url",
        "snapshot",
        "warc_file",
        "warc_offset",
        "document",
        "row",
        "source",
        "file",
        "text",
    )
    chosen = [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:3])[:SHOWN_FINDINGS]]
    return [{name: finding[name] for name in names if finding.get(name) not in (None, "")} for finding in chosen]


def metrics_of(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of items found and of questions seen, by suite."""
    suites = report["suites"]
    found = {f"contaminated_items_{name}": float(suite["found_items"]) for name, suite in suites.items()}
    found |= {f"cleared_items_{name}": float(cleared(suite)) for name, suite in suites.items()}
    return found | {f"questions_seen_{name}": float(len(suite["questions_seen"])) for name, suite in suites.items()}

"""Stage `contamination`: whether the training data hold items of the exams by which the models are scored.

Training data are pages, instructions, preferences and prompts. The rule is that of training.data.exams.item_rule, by
which documents are also removed. `contamination.json` has the verdict and, for each suite, the items found in each kind
of training data, the questions that were seen without their answers, the items that cannot be cleared, and the scores
on clean, found and uncleared items. `findings.jsonl` has a row for each finding: benchmark, item, document or row, URL,
WARC file and offset, and the matched text. Each rank reads one document file, one artifact of instructions,
preferences or prompts, or the system prompt.

A verdict is one of four words:

- *clean*: nothing was found in the training data;
- *tolerated*: something was found, or cannot be known, and a field of the recipe allows it; `tolerated` has the field
  and the numbers;
- *contaminated*: more was found than the recipe allows;
- *unknown*: some training data were not scanned.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq

from evaluation.answers import MODELS, sample_file
from evaluation.exams import read_exam
from evaluation.intervals import share_interval
from training.artifact import canonical_json, write_json
from training.data.documents import document_files, read_documents, read_lines, write_lines
from training.data.exams import item_rule
from training.data.exams.benchmarks import BenchmarkItem, item_text, not_cleared, read_items
from training.data.exams.item_rule import Finder, Found, build_items
from training.data.exams.row_search import searched
from training.data.exams.settings import BenchmarkRecipe
from training.evaluation_settings import EvaluationRecipe, TrainedOn
from training.job import Gate, InputArtifact, Job, Outcome, Work
from training.posttrain.formats import prompt_text, spoken
from training.posttrain.sorting import INSTRUCTIONS_FILE, PROMPTS_FILE, TRAIN_FILE
from training.records import read_record

PRETRAINING, INSTRUCTIONS, PREFERENCES, PROMPTS = "pretraining", "instructions", "preferences", "prompts"
DOCUMENTS = "decontaminated_documents"
WHERE = (PRETRAINING, INSTRUCTIONS, PREFERENCES, PROMPTS)
CLEAN, TOLERATED, CONTAMINATED, UNKNOWN = "clean", "tolerated", "contaminated", "unknown"
QUESTION_SEEN = "question_seen"
DOCUMENT_COLUMNS = ("id", "text", "url", "snapshot", "warc_file", "warc_offset")
KEPT_FINDINGS_PER_ITEM = 20  # by each rank; all findings are counted
CONTEXT_CHARACTERS = 160  # kept on each side of the matched text
SHOWN_CHARACTERS = 400
SHOWN_FINDINGS = 5  # in the gate's evidence


Text = tuple[dict[str, Any], str]
"""The source of a text, as columns of a finding, and the text."""


def num_ranks(job: Job) -> int:
    """Return the number of ranks: one for each part of the training data."""
    return len(_parts(job))


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Return the findings in one part of the training data, with the name of the asset that it belongs to."""
    del work
    asset, where, texts = _parts(job)[rank]
    return {"asset": asset, **scan(texts(), where, _exams(canonical_json(job.settings)))}


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Write the report with its verdict and the findings, and return them with the gate `contamination`."""
    recipe = job.settings_as(EvaluationRecipe, "evaluation")
    findings = findings_of(ranks)
    exams = _exams(canonical_json(job.settings))
    report: dict[str, Any] = {
        "rule": rule(),
        "scanned": _scanned(job, ranks),
        "max_contaminated_fraction": recipe.max_contaminated_fraction,
        "question_seen": recipe.question_seen,
        "suites": {
            benchmark.name: suite_report(benchmark.name, exams, ranks, recipe, job.input_of("model_scores"))
            for benchmark in recipe.suites
        },
        "unscanned_documents": _unscanned(job, ranks),
        "unknown": _unknown(job, ranks),
    }
    report |= judged(report, recipe)
    gate = gate_of(report, findings)
    write_json(work.path / "contamination.json", report)
    write_lines(work.path / "findings.jsonl", findings)
    suites = report["suites"]
    metrics = {f"contaminated_items_{name}": float(suite["found_items"]) for name, suite in suites.items()}
    metrics |= {f"questions_seen_{name}": float(len(suite["questions_seen"])) for name, suite in suites.items()}
    metrics["findings"] = float(sum(rank["num_findings"] for rank in ranks))
    metrics["scanned_texts"] = float(sum(rank["texts"] for rank in ranks))
    return Outcome(files=("contamination.json", "findings.jsonl"), metrics=metrics, gates=(gate,))


# What is read.


Part = tuple[str, str, Callable[[], Iterable[Text]]]
"""A part of the training data: the asset that it belongs to (empty for a setting), its kind, and a reader."""


def _parts(job: Job) -> list[Part]:
    parts: list[Part] = [(DOCUMENTS, PRETRAINING, partial(_documents, path)) for path in _document_files(job)]
    readers = (
        ("instruction_data", INSTRUCTIONS, _instructions),
        ("preference_data", PREFERENCES, _preferences),
        ("prompt_data", PROMPTS, _prompts),
    )
    parts += [(asset, where, partial(read, item)) for asset, where, read in readers for item in job.inputs_of(asset)]
    return [*parts, ("", PROMPTS, partial(_system_prompt, job))]


def _document_files(job: Job) -> list[Path]:
    return [path for item in job.inputs_of(DOCUMENTS) for path in document_files(item)]


def _documents(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    for row in read_documents(path, list(DOCUMENT_COLUMNS)):
        yield (
            {"document": row["id"], **{name: row[name] for name in ("url", "snapshot", "warc_file", "warc_offset")}},
            row["text"],
        )


def _instructions(item: InputArtifact) -> Iterator[tuple[dict[str, Any], str]]:
    for row in read_lines(item.file(INSTRUCTIONS_FILE)):
        yield _row_source(row), spoken(row["messages"])


def _preferences(item: InputArtifact) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield both answers of each training pair, each after its prompt, because both are trained on.

    Held-out pairs are not read, because they are not trained on.
    """
    for row in read_lines(item.file(TRAIN_FILE)):
        for side in ("chosen", "rejected"):
            yield _row_source(row) | {"side": side}, spoken([*row["prompt"], *row[side]])


def _trained_on(job: Job) -> TrainedOn:
    return job.settings_as(TrainedOn, "trained_on") if "trained_on" in job.settings else TrainedOn()


def _prompts(item: InputArtifact) -> Iterator[Text]:
    """Yield each prompt for reinforcement learning with the answer that is rewarded and the wrong ones."""
    for row in read_lines(item.file(PROMPTS_FILE)):
        yield _row_source(row), prompt_text(row)


def _system_prompt(job: Job) -> Iterator[Text]:
    prompt = _trained_on(job).system_prompt
    if prompt:
        yield {"row": "system prompt", "source": "sft.system_prompt"}, prompt


def _row_source(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"row": row["id"], "source": row.get("source", ""), "generator": row.get("generator", "")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Exams:
    """The items of all suites: their names by item number, the finder, and the items that cannot be cleared."""

    names: tuple[tuple[str, str], ...]  # (suite, item id)
    finder: Finder
    not_cleared: tuple[dict[str, str], ...]


@lru_cache(maxsize=2)
def _exams(settings: str) -> Exams:
    """Return the exams of the settings. They are indexed once per process."""
    plain = json.loads(settings)
    recipe = read_record(EvaluationRecipe, plain["evaluation"], where="evaluation")
    return exams_of_suites(recipe.suites, plain)


def exams_of_suites(suites: Sequence[BenchmarkRecipe], settings: Mapping[str, Any]) -> Exams:
    """Return the exams that consist of the items of some suites that can be scored."""
    return exams_of([item for benchmark in suites for item in _scored(benchmark, settings)])


def _scored(benchmark: BenchmarkRecipe, settings: Mapping[str, Any]) -> Iterator[BenchmarkItem]:
    """Yield the items of a suite that can be scored."""
    scored = {item.id for item in read_exam(benchmark, settings).items}
    return (item for item in read_items(benchmark, settings) if item.id in scored)


def exams_of(items: Sequence[BenchmarkItem]) -> Exams:
    """Index these items and return them as exams."""
    names = tuple((item.benchmark, item.id) for item in items)
    index = build_items([item_text(item) for item in items])
    return Exams(names=names, finder=Finder(index), not_cleared=tuple(not_cleared(index, names)))


# What is found.


def scan(texts: Iterable[Text], where: str, exams: Exams) -> dict[str, Any]:
    """Find items in the texts.

    All findings are counted. The first KEPT_FINDINGS_PER_ITEM of each item are kept, with source and span.
    """
    findings: list[dict[str, Any]] = []
    counts: Counter[int] = Counter()
    kinds: dict[str, set[int]] = {"item": set(), "question": set()}
    num_texts = 0
    for source, held in searched(((source, (text,)) for source, text in texts), exams.finder):
        num_texts += 1
        for text, found in held:
            counts[found.item] += 1
            kinds[found.kind].add(found.item)
            if counts[found.item] <= KEPT_FINDINGS_PER_ITEM:
                benchmark, item = exams.names[found.item]
                finding = {"benchmark": benchmark, "item": item, "where": where, **source}
                findings.append(finding | _found(found, text))
    return {
        "where": where,
        "texts": num_texts,
        "num_findings": counts.total(),
        "found": sorted(kinds["item"]),
        "questions_seen": sorted(kinds["question"]),
        "findings": findings,
    }


def _found(found: Found, text: str) -> dict[str, Any]:
    return {
        "how": found.kind if found.kind == "item" else QUESTION_SEEN,
        "part": found.part,
        "share": found.share,
        "span": [found.start, found.end],
        "text": text[found.start : found.end][:SHOWN_CHARACTERS],
        "before": text[max(0, found.start - CONTEXT_CHARACTERS) : found.start],
        "after": text[found.end : found.end + CONTEXT_CHARACTERS],
    }


def findings_of(ranks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the findings of all ranks, in the order of `findings.jsonl`."""
    return sorted((finding for rank in ranks for finding in rank["findings"]), key=_finding_order)


def _finding_order(finding: Mapping[str, Any]) -> tuple[Any, ...]:
    source = finding.get("document") or finding.get("row") or ""
    return finding["benchmark"], finding["item"], WHERE.index(finding["where"]), source, finding.get("side", "")


def suite_report(
    name: str, exams: Exams, ranks: Sequence[Mapping[str, Any]], recipe: EvaluationRecipe, scores: InputArtifact | None
) -> dict[str, Any]:
    """Return what was found of one suite, as plain data; with `scores`, also each model's scores on what was found.

    With `question_seen: contaminated`, an item whose question was seen without its answer counts as found.
    """

    def of_suite(kind: str, where: str) -> set[str]:
        numbers = {number for rank in ranks if rank["where"] == where for number in rank[kind]}
        return {item for suite, item in (exams.names[number] for number in numbers) if suite == name}

    questions = {where: of_suite("questions_seen", where) for where in WHERE}
    found = {where: of_suite("found", where) for where in WHERE}
    if recipe.question_seen == CONTAMINATED:
        found = {where: found[where] | questions[where] for where in WHERE}
    items = sum(suite == name for suite, _ in exams.names)
    every = set().union(*found.values())
    not_cleared = [item["item"] for item in exams.not_cleared if item["benchmark"] == name]
    return {
        "items": items,
        "not_cleared": [item for item in not_cleared if item not in every],
        "found_items": len(every),
        "found_fraction": len(every) / items,
        "found": {where: sorted(some) for where, some in found.items()},
        "questions_seen": sorted(set().union(*questions.values())),
        "scores": scores_by_state(scores, name, every, set(not_cleared) - every) if scores else {},
    }


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
            correct[state].append(float(sample["correct"]))
        result[model] = {state: _score(correct[state]) for state in ("clean", "found", "not_cleared")}
    return result


def _score(correct: Sequence[float]) -> dict[str, Any]:
    """Return the mean, its 95 % interval and the number of items; mean and interval are None without items."""
    if not correct:
        return {"score": None, "interval": None, "n": 0}
    mean = fmean(correct)
    return {"score": mean, "interval": list(share_interval(mean, len(correct))), "n": len(correct)}


# Was all training data scanned?


def _scanned(job: Job, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    texts = Counter(dict.fromkeys(WHERE, 0))
    for rank in ranks:
        texts[rank["where"]] += rank["texts"]
    digests = {f"{item.asset} [{item.partition}]": item.digest for item in job.inputs}
    return {"texts": dict(texts), "digests": digests}


def _unscanned(job: Job, ranks: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of documents in the token shards that were not scanned.

    It must be 0; otherwise the report is about another corpus than the one trained on.
    """
    read = {id_ for path in _document_files(job) for id_ in _ids(path)}
    return sum(
        id_ not in read for item in job.inputs_of("token_shards") for path in _sidecars(item) for id_ in _ids(path)
    )


def _sidecars(item: InputArtifact) -> list[Path]:
    return [
        item.file(entry["path"]) for entry in item.record()["files"] if entry["path"].endswith(".documents.parquet")
    ]


def _ids(path: Path) -> list[str]:
    return pq.read_table(path, columns=["id"]).column("id").to_pylist()


def _unknown(job: Job, ranks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return {name: reason} of what the models learned from and nobody scanned: an asset without a scan, a teacher."""
    trained_on, scanned = _trained_on(job), {rank["asset"] for rank in ranks}
    unknown = {
        asset: f"{', '.join(models)}: trained on text of {asset}, which has no scan"
        for asset, models in trained_on.data.items()
        if asset not in scanned
    }
    if trained_on.teacher:
        unknown["teacher"] = f"{trained_on.teacher}: what this model was trained on is not known here"
    return unknown


# The verdict.


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
    """Return the gate `contamination`, which passes for the verdicts clean and tolerated."""
    most = report["max_contaminated_fraction"]
    over = {name for name, suite in report["suites"].items() if suite["found_fraction"] > most}
    evidence: dict[str, Any] = {
        "verdict": report["verdict"],
        "max_contaminated_fraction": most,
        "found_fraction": {name: round(suite["found_fraction"], 6) for name, suite in report["suites"].items()},
        "not_cleared": {name: len(suite["not_cleared"]) for name, suite in report["suites"].items()},
        "findings": _shown([finding for finding in findings if finding["benchmark"] in over]),
    }
    if report["tolerated"]:
        evidence["tolerated"] = report["tolerated"]
    if report["unscanned_documents"]:
        evidence["unscanned_documents"] = report["unscanned_documents"]
    if report["verdict"] == UNKNOWN:
        evidence["unknown"] = report["unknown"]
    return Gate(name="contamination", passed=report["verdict"] in (CLEAN, TOLERATED), evidence=evidence)


def _shown(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return SHOWN_FINDINGS findings: different items before further finds of the same item, and pages before rows."""
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


def rule() -> dict[str, Any]:
    """Return the rule by which items are found, in words and numbers, as the report states it."""
    return {
        "finding": "at least this share of the words of an item, weighted by how rare they are, in their order",
        "min_share": item_rule.MIN_SHARE,
        "answer_reach_words": item_rule.ANSWER_REACH,
    }

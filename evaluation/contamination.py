"""Whether the data that the models were trained on (pages, instructions, preferences) holds items of the exams they are
scored on.

evaluation.overlap says which overlaps count. `contamination.json` has the verdict and, for each
suite, items found by where they were found, and the scores on clean and on found items; `findings.jsonl` names
benchmark item, document or row, URL, WARC file and offset, and the matched text. One rank reads one document file;
the last two read the instructions and the preferences.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq

from evaluation.answers import MODELS, sample_file
from evaluation.exams import Exam, read_exam
from evaluation.intervals import share_interval
from evaluation.overlap import ANSWER_WINDOW_WORDS, MIN_NGRAM_WORDS, MIN_QUESTION_SHARE, ExamIndex, Match
from training.artifact import canonical_json, write_json
from training.data.documents import document_files, read_documents, read_lines, write_lines
from training.data.exams.grams import Occurrences, Scanner, column_of
from training.data.exams.settings import BenchmarkRecipe
from training.evaluation_settings import EvaluationRecipe
from training.job import Gate, InputArtifact, Job, Outcome, Work

PRETRAINING, INSTRUCTIONS, PREFERENCES = "pretraining", "instructions", "preferences"
WHERE = (PRETRAINING, INSTRUCTIONS, PREFERENCES)
DOCUMENT_COLUMNS = ("id", "text", "url", "snapshot", "warc_file", "warc_offset")
KEPT_FINDINGS_PER_ITEM = 20  # of one rank; all are counted
CONTEXT_CHARACTERS = 160  # kept on each side of the matched text
SHOWN_FINDINGS = 5  # in the gate's evidence
BATCH_CHARACTERS = 4_000_000  # scanned at once


def num_ranks(job: Job) -> int:
    """One for each file of documents, one for the instructions, one for the preferences."""
    return len(_document_files(job)) + 2


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """The findings in one file of documents, in the instructions, or in the preferences."""
    del work
    files = _document_files(job)
    if rank < len(files):
        where, texts = PRETRAINING, _documents(files[rank])
    elif rank == len(files):
        where, texts = INSTRUCTIONS, _instructions(job.input_of("instruction_data"))
    else:
        where, texts = PREFERENCES, _preferences(job.input_of("preference_data"))
    return scan(texts, where, _indexes(canonical_json(job.settings)))


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """The report and its verdict."""
    recipe = job.settings_as(EvaluationRecipe, "evaluation")
    findings = sorted((finding for rank in ranks for finding in rank["findings"]), key=_finding_order)
    indexes = _indexes(canonical_json(job.settings))
    report: dict[str, Any] = {
        "rule": _rule(),
        "scanned": _scanned(job, ranks),
        "max_contaminated_fraction": recipe.max_contaminated_fraction,
        "suites": {
            name: _suite_report(name, index, ranks, job.input_of("model_scores")) for name, index in indexes.items()
        },
    }
    report["unscanned_documents"] = _unscanned(job, ranks)
    gate = verdict(report, findings, recipe.max_contaminated_fraction)
    report["verdict"] = "clean" if gate.passed else "contaminated"
    write_json(work.path / "contamination.json", report)
    write_lines(work.path / "findings.jsonl", findings)
    suites = report["suites"]
    metrics = {f"contaminated_items_{name}": float(suite["found_items"]) for name, suite in suites.items()}
    metrics["findings"] = float(sum(rank["num_findings"] for rank in ranks))
    metrics["scanned_texts"] = float(sum(rank["texts"] for rank in ranks))
    return Outcome(files=("contamination.json", "findings.jsonl"), metrics=metrics, gates=(gate,))


# What is read.


def _document_files(job: Job) -> list[Path]:
    return [path for item in job.inputs_of("decontaminated_documents") for path in document_files(item)]


def _documents(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    for row in read_documents(path, list(DOCUMENT_COLUMNS)):
        yield (
            {"document": row["id"], **{name: row[name] for name in ("url", "snapshot", "warc_file", "warc_offset")}},
            row["text"],
        )


def _instructions(item: InputArtifact) -> Iterator[tuple[dict[str, Any], str]]:
    for row in read_lines(item.file("instructions.jsonl")):
        yield _row_source(row), _spoken(row["messages"])


def _preferences(item: InputArtifact) -> Iterator[tuple[dict[str, Any], str]]:
    """Both answers of a pair are trained on; each is read after the prompt. Held-out pairs are not trained on."""
    for row in read_lines(item.file("train.jsonl")):
        for side in ("chosen", "rejected"):
            yield _row_source(row) | {"side": side}, _spoken([*row["prompt"], *row[side]])


def _row_source(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"row": row["id"], "source": row.get("source", ""), "generator": row.get("generator", "")}


def _spoken(messages: Iterable[Mapping[str, str]]) -> str:
    return "\n".join(message["content"] for message in messages)


@lru_cache(maxsize=2)
def _indexes(settings: str) -> dict[str, ExamIndex]:
    """The index of each suite that the settings name; made once a process."""
    return {benchmark.name: ExamIndex(benchmark, exam.items) for benchmark, exam in _exams(json.loads(settings))}


def _exams(settings: Mapping[str, Any]) -> list[tuple[BenchmarkRecipe, Exam]]:
    from training.records import read_record

    recipe = read_record(EvaluationRecipe, settings["evaluation"], where="evaluation")
    return [(benchmark, read_exam(benchmark, settings)) for benchmark in recipe.suites]


# What is found.


def scan(texts: Iterable[tuple[dict[str, Any], str]], where: str, indexes: Mapping[str, ExamIndex]) -> dict[str, Any]:
    """Every item found in the texts: all counted, the first KEPT_FINDINGS_PER_ITEM of each with source and span."""
    findings: list[dict[str, Any]] = []
    counts: dict[str, Counter[str]] = {name: Counter() for name in indexes}
    num_texts = 0
    scanner = Scanner([table for index in indexes.values() for table in index.tables])
    for batch in _batches(texts):
        num_texts += len(batch)
        for place, hashes, occurrences in scanner.scan(column_of([text for _, text in batch])):
            source, text = batch[place]
            for name, index, own in _by_index(indexes, occurrences):
                for match in index.judged(text, hashes, own):
                    item = index.ids[match.item]
                    counts[name][item] += 1
                    if counts[name][item] <= KEPT_FINDINGS_PER_ITEM:
                        findings.append(
                            {"benchmark": name, "item": item, "where": where, **source, **_found(match, text)}
                        )
    return {
        "where": where,
        "texts": num_texts,
        "num_findings": sum(sum(counter.values()) for counter in counts.values()),
        "found": {name: sorted(counter) for name, counter in counts.items()},
        "findings": findings,
    }


def _batches(texts: Iterable[tuple[dict[str, Any], str]]) -> Iterator[list[tuple[dict[str, Any], str]]]:
    batch: list[tuple[dict[str, Any], str]] = []
    size = 0
    for source, text in texts:
        batch.append((source, text))
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _by_index(
    indexes: Mapping[str, ExamIndex], occurrences: Occurrences
) -> Iterator[tuple[str, ExamIndex, Occurrences]]:
    """Each exam's index with the occurrences of its n-grams; the tables are numbered from 0 within each index."""
    first = 0
    for name, index in indexes.items():
        end = first + len(index.tables)
        yield name, index, occurrences[(occurrences[:, 0] >= first) & (occurrences[:, 0] < end)] - [first, 0, 0]
        first = end


def _found(match: Match, text: str) -> dict[str, Any]:
    return {
        "how": match.how,
        "longest_run_words": match.words,
        "span": [match.start, match.end],
        "text": match.text,
        "before": text[max(0, match.start - CONTEXT_CHARACTERS) : match.start],
        "after": text[match.end : match.end + CONTEXT_CHARACTERS],
    }


def _finding_order(finding: Mapping[str, Any]) -> tuple[Any, ...]:
    source = finding.get("document") or finding.get("row") or ""
    return finding["benchmark"], finding["item"], WHERE.index(finding["where"]), source, finding.get("side", "")


def _suite_report(
    name: str, index: ExamIndex, ranks: Sequence[Mapping[str, Any]], scores: InputArtifact
) -> dict[str, Any]:
    found_by_place: dict[str, set[str]] = {where: set() for where in WHERE}
    for rank in ranks:
        found_by_place[rank["where"]].update(rank["found"][name])
    found = set().union(*found_by_place.values())
    return {
        "items": len(index.ids),
        "ngram_words": index.benchmark.ngram_words,
        "unchecked_items": [index.ids[i] for i in index.unchecked],
        "found_items": len(found),
        "found_fraction": len(found) / len(index.ids),
        "found": {where: sorted(items) for where, items in found_by_place.items()},
        "scores": clean_and_found_scores(scores, name, found),
    }


def clean_and_found_scores(scores: InputArtifact, suite: str, found: set[str]) -> dict[str, dict[str, Any]]:
    """For each model its score on the clean and on the found items of a suite, from the samples that were kept."""
    result = {}
    for model in MODELS:
        correct: dict[bool, list[float]] = defaultdict(list)
        for sample in read_lines(scores.file(sample_file(model, suite))):
            correct[sample["item"] in found].append(float(sample["correct"]))
        result[model] = {"clean": _score(correct[False]), "found": _score(correct[True])}
    return result


def _score(correct: Sequence[float]) -> dict[str, Any]:
    """Mean, its 95 % interval and the number of items; null where there is none."""
    if not correct:
        return {"score": None, "interval": None, "n": 0}
    mean = fmean(correct)
    return {"score": mean, "interval": list(share_interval(mean, len(correct))), "n": len(correct)}


# Was everything read that was trained on?


def _scanned(job: Job, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    texts = Counter(dict.fromkeys(WHERE, 0))
    for rank in ranks:
        texts[rank["where"]] += rank["texts"]
    inputs = ("decontaminated_documents", "token_shards", "instruction_data", "preference_data", "model_scores")
    digests = {f"{item.asset} [{item.partition}]": item.digest for item in job.inputs if item.asset in inputs}
    return {"texts": dict(texts), "digests": digests}


def _unscanned(job: Job, ranks: Sequence[Mapping[str, Any]]) -> int:
    """The number of documents in the shards that were not read. It must be 0, or the report is about another corpus."""
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


# The verdict.


def verdict(report: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], most: float) -> Gate:
    """Passes when no suite has more of its items found than allowed, and every document trained on was read."""
    over = {name: suite for name, suite in report["suites"].items() if suite["found_fraction"] > most}
    evidence: dict[str, Any] = {
        "max_contaminated_fraction": most,
        "found_fraction": {name: round(suite["found_fraction"], 6) for name, suite in report["suites"].items()},
        "findings": _shown([finding for finding in findings if finding["benchmark"] in over]),
    }
    if report["unscanned_documents"]:
        evidence["unscanned_documents"] = report["unscanned_documents"]
    return Gate(name="contamination", passed=not over and not report["unscanned_documents"], evidence=evidence)


def _shown(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first findings, pages before rows, and different items before the same one again."""
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
        "text",
    )
    chosen = [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:3])[:SHOWN_FINDINGS]]
    return [{name: finding[name] for name in names if finding.get(name) not in (None, "")} for finding in chosen]


def _rule() -> dict[str, Any]:
    return {
        "finding": "a run of n words that reaches into the answer, or runs of n words that cover at least half of the"
        " question with the whole answer near them",
        "min_ngram_words": MIN_NGRAM_WORDS,
        "min_question_share": MIN_QUESTION_SHARE,
        "answer_window_words": ANSWER_WINDOW_WORDS,
    }

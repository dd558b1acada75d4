"""Check whether any data hold items of any exams, without a recipe: with the same rule, report and verdict as a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.contamination.search import Text, exams_of_suites, findings_of, rule, scan, suite_reports, uncleared
from evaluation.contamination.verdict import PRETRAINING, gate_of, judged
from training.contract.artifact import write_json
from training.contract.job import DataError
from training.data.crawl.crawl import SUFFIXES
from training.data.documents import write_lines
from training.data.extract.extract import documents_of
from training.data.extract.settings import ExtractRecipe
from training.data.sources import expand, is_remote, read_rows
from training.recipe.settings.evaluation import EvaluationRecipe

READABLE = (*(suffix for suffixes in SUFFIXES.values() for suffix in suffixes), ".txt", ".txt.gz")


def files_of(places: Sequence[str]) -> list[str]:
    """Return the files of paths, folders, patterns and URLs. Raise DataError for a file that cannot be read."""
    files = expand(places, READABLE)
    for name in files:
        if not name.endswith(READABLE):
            raise DataError(f"{name}: no data that can be read; a file's name must end in one of {', '.join(READABLE)}")
        if is_remote(name) and name.endswith(SUFFIXES["warc"]):
            raise DataError(f"{name}: archives are read from this machine only; download the file first")
    return files


def texts_of(file: str) -> Iterator[Text]:
    """Yield the texts of a file with their provenance.

    For an archive, these are the main texts of its pages, from the extractor that loses the least text; for a file of
    rows, all texts of each row, also its turns and answers.
    """
    name = file.rpartition("/")[2]
    if not file.endswith(SUFFIXES["warc"]):
        for number, row in enumerate(read_rows(file)):
            yield {"file": name, "row": str(number), "url": str(row.get("url") or "")}, "\n".join(strings(row))
        return
    for row in documents_of(Path(file), "warc", ExtractRecipe(extractor="trafilatura")):
        yield {"warc_file": name, "warc_offset": row["warc_offset"], "url": row["url"]}, row["text"]


def strings(value: Any) -> Iterator[str]:
    """Yield every string in a row, whatever its form: a text, its turns, its answers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inside in value.values():
            yield from strings(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from strings(inside)


def contamination(
    files: Sequence[str], recipe: EvaluationRecipe, settings: Mapping[str, Any], folder: Path | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Return the report, the findings and the gate `contamination` as plain data.

    `settings` are a job's, for suites that a source generates. With `folder`, report and findings are written there as
    `contamination.json` and `findings.jsonl`.
    """
    exams = exams_of_suites(recipe.suites, settings)
    ranks = [scan(texts_of(file), PRETRAINING, exams) for file in files]
    suites = suite_reports(exams, ranks, recipe)
    findings = findings_of(ranks)
    report: dict[str, Any] = {
        "rule": rule(),
        "scanned": {"texts": {PRETRAINING: sum(rank["texts"] for rank in ranks)}, "files": list(files)},
        "max_contaminated_fraction": recipe.max_contaminated_fraction,
        "question_seen": recipe.question_seen,
        "suites": suites,
        "unscanned_documents": 0,
        "unknown": uncleared(suites),
    }
    report |= judged(report, recipe)
    gate = gate_of(report, findings)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "contamination.json", report)
        write_lines(folder / "findings.jsonl", findings)
    return report, findings, {"name": gate.name, "passed": gate.passed, "evidence": gate.evidence}

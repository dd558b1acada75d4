"""Check whether any data hold items of any exams, without a recipe: with the same rule, report and verdict as a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.contamination.search import Text, exams_of_suites, findings_of, rule, scan, suite_reports, uncleared
from evaluation.contamination.verdict import PRETRAINING, gate_of, judged
from training.contract.artifact import write_json
from training.contract.job import DataError
from training.data.crawl.crawl import SUFFIXES
from training.data.crawl.folder import UNOPENED, ending_of, format_of, walked
from training.data.documents import write_lines
from training.data.extract.extract import file_fates, file_items, warc_fates, warc_items
from training.data.extract.record_outcomes import ArchiveFile, Fate, Kept, Quarantined
from training.data.extract.settings import ExtractRecipe
from training.data.sources import expand, is_remote, read_rows, resolve
from training.recipe.settings.evaluation import EvaluationRecipe

ARCHIVES = SUFFIXES["warc"]
ROWS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".parquet")
REMOTE = (*ROWS, ".txt", ".txt.gz")  # what is read without a file on this machine
# Every text counts, however short; of an archive the one by the extractor that loses the least.
WHOLE = ExtractRecipe(extractor="trafilatura", min_characters=1)


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files that are read, and those of folders that are not: their number by reason and ending."""

    files: list[str]
    left: Counter[tuple[str, str]]


def files_of(places: Sequence[str]) -> FoundFiles:
    """Return the files of paths, folders with their subfolders, patterns and URLs. Hidden files are left out.

    Raise DataError for a file that cannot be read, and for a place without one.
    """
    files, left = set[str](), Counter[tuple[str, str]]()
    for place in places:
        location = resolve(place)
        if not is_remote(location) and os.path.isdir(location):
            inside = {str(file): _why_not(str(file), why) for file, _, why in walked(location) if why != "hidden"}
        else:
            inside = {
                name: _why_not(name, "" if format_of(name) else "no format that is read") for name in expand([place])
            }
        if not (readable := {name for name, why in inside.items() if not why}):
            found = "; ".join(f"{name}: {why}" for name, why in sorted(inside.items())[:3]) or "it is empty"
            raise DataError(f"{place}: no file that can be read ({found})")
        files |= readable
        left.update((why, ending_of(name)) for name, why in inside.items() if why)
    return FoundFiles(sorted(files), left)


def _why_not(name: str, why: str) -> str:
    """Return why a file is not read; `why` is the reason of `source: files`, to which rows and archives are none."""
    if is_remote(name):
        known = ", ".join(REMOTE)
        return "" if name.endswith(REMOTE) else f"from elsewhere only {known} are read; download it first"
    if why == UNOPENED or not os.path.isfile(name):
        return why
    if name.endswith(".json"):
        return "" if _is_list(name) else "no list of rows"
    return "" if name.endswith((*ROWS, *ARCHIVES)) else why


def _is_list(name: str) -> bool:
    with open(name, "rb") as stream:
        return stream.read(1024).lstrip().startswith(b"[")


def texts_of(file: str, unread: Counter[str]) -> Iterator[Text]:
    """Yield the texts of a file with their provenance; count records without one in `unread`, by reason.

    For an archive, these are the main texts of its pages; for a file of rows, all texts of each row, also its turns and
    answers; for any other file its text as `source: files` reads it.
    """
    name = file.rpartition("/")[2]
    if file.endswith(ROWS) or is_remote(file):
        for number, row in enumerate(read_rows(file)):
            yield {"file": name, "row": str(number), "url": str(row.get("url") or "")}, "\n".join(strings(row))
        return
    is_archive = file.endswith(ARCHIVES)
    for fate in _fates_of(file, is_archive=is_archive):
        if isinstance(fate, Kept) and not fate.reason:
            where = {"warc_file": name, "warc_offset": fate.row["warc_offset"]} if is_archive else {"file": name}
            yield {**where, "url": fate.row["url"]}, fate.row["text"]
        elif isinstance(fate, Kept | Quarantined):
            unread[fate.reason] += 1


def _fates_of(file: str, *, is_archive: bool) -> Iterator[Fate]:
    path = Path(file)
    opened = ArchiveFile(path=path, name=path.name, snapshot="", label="", text_field="text", url_field="url")
    if is_archive:
        return warc_fates(warc_items(opened, WHOLE), opened, WHOLE)
    return file_fates(file_items(opened, WHOLE), opened, WHOLE)


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
    found: FoundFiles, recipe: EvaluationRecipe, settings: Mapping[str, Any], folder: Path | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Return the report, the findings and the gate `contamination` as plain data.

    `settings` are a job's, for suites that a source generates. With `folder`, report and findings are written there as
    `contamination.json` and `findings.jsonl`.
    """
    exams = exams_of_suites(recipe.suites, settings)
    unread: Counter[str] = Counter()
    ranks = [scan(texts_of(file, unread), PRETRAINING, exams) for file in found.files]
    texts = sum(rank["texts"] for rank in ranks)
    if not texts:
        why = f" ({', '.join(sorted(unread))})" if unread else ""
        raise DataError(f"{', '.join(found.files[:3])}: no text was read{why}, so nothing can be said")
    suites = suite_reports(exams, ranks, recipe)
    findings = findings_of(ranks)
    report: dict[str, Any] = {
        "rule": rule(),
        "scanned": {"texts": {PRETRAINING: texts}, "files": found.files},
        "not_read": {
            "files": [{"why": why, "ending": ending, "files": n} for (why, ending), n in sorted(found.left.items())],
            "records": dict(sorted(unread.items())),
        },
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

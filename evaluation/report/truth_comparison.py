"""Comparison of the stages' outputs with the truth of a generated source. It is empty for a source without truth."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.report import truth_scores as scores
from training.contract.files.checked import unsound
from training.contract.job import RefusedInput
from training.data.documents import read_documents, read_lines

Record = tuple[Path, dict[str, Any]]
PLACE = ("warc_file", "warc_offset")


def truth_scores(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return precision and recall of each corpus stage over all snapshots, compared with the generated truth.

    The result is empty without a truth. Only stages with an artifact for every snapshot are scored, because a missing
    snapshot would count as missed pages.
    """
    truth = [row for folder, record in of_asset(records, "crawl_archives") for row in _truth_rows(folder, record)]
    if not truth:
        return {}
    num_snapshots = len(of_asset(records, "crawl_archives"))
    found: dict[str, dict[str, float]] = {}
    for name, asset in (
        ("extraction", "extracted_documents"),
        ("filter", "filtered_documents"),
        ("personal_data", "filtered_documents"),
        ("deduplication", "deduplicated_documents"),
        ("decontamination", "decontaminated_documents"),
    ):
        made = of_asset(records, asset)
        if len(made) == num_snapshots:
            found[name] = _SCORERS[name](truth, made)
    return found


def of_asset(records: Iterable[Record], asset: str) -> list[Record]:
    """Return only the artifacts of one asset, in the order given."""
    return [(folder, record) for folder, record in records if record["asset"] == asset]


def sound(folder: Path, record: Mapping[str, Any], name: str = os.curdir) -> Path:
    """Return the path of an artifact's file, by default of its folder, after checking every byte of it.

    A process reads each file only once for this check. Raise RefusedInput if the file is damaged.
    """
    for entry in record["files"]:
        if name in (os.curdir, entry["path"]) and (damage := unsound(folder, entry, trusts=True)):
            raise RefusedInput(
                f"{record['asset']} [{record['partition']}]: {damage}; `pedigree verify"
                f" {record['partition'].partition('@')[0]} --mend` sets it aside"
            )
    return folder / name


def rows_in(made: Iterable[Record], folder_name: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the documents in the folder `folder_name` of each artifact, in order."""
    for folder, record in made:
        for entry in record["files"]:
            if entry["path"].startswith(f"{folder_name}/") and entry["path"].endswith(".parquet"):
                yield from read_documents(sound(folder, record, entry["path"]), columns)


def _truth_rows(folder: Path, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for entry in record["files"]:
        if entry["path"].startswith("truth/"):
            yield from read_lines(sound(folder, record, entry["path"]))


def _extraction(truth: list[dict[str, Any]], made: list[Record]) -> dict[str, float]:
    return scores.extraction_scores(truth, rows_in(made, "documents", [*PLACE, "text"]))


def _filter(truth: list[dict[str, Any]], made: list[Record]) -> dict[str, float]:
    return scores.filter_scores(truth, rows_in(made, "documents", PLACE), rows_in(made, "dropped", PLACE))


def _personal(truth: list[dict[str, Any]], made: list[Record]) -> dict[str, float]:
    return scores.personal_scores(truth, rows_in(made, "documents", [*PLACE, "text"]))


def _dedup(truth: list[dict[str, Any]], made: list[Record]) -> dict[str, float]:
    return scores.dedup_scores(truth, rows_in(made, "documents", PLACE), rows_in(made, "dropped", PLACE))


def _decontamination(truth: list[dict[str, Any]], made: list[Record]) -> dict[str, float]:
    return scores.contamination_scores(truth, rows_in(made, "documents", PLACE), rows_in(made, "dropped", PLACE))


_SCORERS = {
    "extraction": _extraction,
    "filter": _filter,
    "personal_data": _personal,
    "deduplication": _dedup,
    "decontamination": _decontamination,
}

"""Stage `score`: measures each extracted document by the recipe's rules; the scores are stored beside the documents.

There is one rank per document file. `scores/00000.parquet` has one row per document in the same order: `id`, the
rules' `columns`, `stopped`, `text` and `shown`. `stopped` is `rule:reason` if a rule drops the page whatever the limits
are; later rules were then not measured. `text` is the text as edited by the rules, and `shown` is the extracted text
with personal data replaced if the recipe asks for it; both are null if equal to the extracted text. Nothing here
depends on a limit. `training.data.filter.filter` compares with the limits, so a changed limit measures nothing again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training.contract.artifact import written
from training.contract.job import Counts, InputArtifact, Job, Outcome, Share, Work
from training.data.documents import count_documents, document_files, read_documents, shares_of
from training.data.filter import personal_data
from training.data.filter.judge import ReadyRule, make_rules
from training.data.filter.rule import Column, Page, page_of
from training.data.filter.settings import FilterRecipe
from training.data.quality.quality import QualityModels, load_models

ROWS_PER_GROUP = 1000


def num_ranks(job: Job) -> int:
    """Number of ranks: one per input document file."""
    return len(document_files(job.input_of("extracted_documents")))


def rank_shares(job: Job) -> list[Share]:
    """Return what each rank reads: its document file. The models are read whole."""
    return shares_of(document_files(job.input_of("extracted_documents")))


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Measure the documents of one file by the recipe's rules, and write their scores."""
    recipe = job.settings_as(FilterRecipe, "filter")
    # Made anew for each rank, a rule from outside may count: no rank depends on what a process did before.
    rules = _rules_of(recipe, job.input_of("quality_models"), rank if recipe.outside_parts() else None)
    source = document_files(job.input_of("extracted_documents"))[rank]
    name = f"scores/{rank:05d}.parquet"
    schema = schema_of(recipe)
    with written(work.path / name) as stream, pq.ParquetWriter(stream, schema, compression="zstd") as parquet:
        rows: list[dict[str, Any]] = []
        for row in read_documents(source):
            rows.append(score(row, rules, recipe))
            if len(rows) == ROWS_PER_GROUP:
                parquet.write_table(pa.Table.from_pylist(rows, schema=schema))
                rows.clear()
        if rows:
            parquet.write_table(pa.Table.from_pylist(rows, schema=schema))
    counts = Counts(records_in=count_documents(source), kept=count_documents(work.path / name))
    return {"files": [name], "counts": counts.as_json()}


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Combine the counts of all ranks into the stage's outcome."""
    counts = Counts.total([rank["counts"] for rank in ranks])
    return Outcome(
        files=tuple(name for rank in ranks for name in rank["files"]),
        counts=counts,
        metrics={"documents": counts.records_in},
    )


@lru_cache(maxsize=1)
def _rules_of(recipe: FilterRecipe, models: InputArtifact, rank: int | None) -> tuple[ReadyRule, ...]:
    """Prepare the recipe's rules, once per process, or once per rank if a rank is given.

    Loading the models takes longer than measuring a small file.
    """
    del rank  # a key of the cache
    return make_rules(recipe, _loaded(models))


@lru_cache(maxsize=1)
def _loaded(models: InputArtifact) -> QualityModels | None:
    return load_models(models)


def schema_of(recipe: FilterRecipe) -> pa.Schema:
    """Return the columns of the scores for this recipe's rules."""
    columns = _columns_of(recipe)
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            *(pa.field(column.name, pa.string() if column.is_text else pa.float64()) for column in columns),
            pa.field("stopped", pa.string()),
            pa.field("text", pa.string()),
            pa.field("shown", pa.string()),
        ]
    )


def _columns_of(recipe: FilterRecipe) -> list[Column]:
    return [column for rule in recipe.in_order().values() for column in rule.columns]


def score(row: Mapping[str, Any], rules: tuple[ReadyRule, ...], recipe: FilterRecipe) -> dict[str, Any]:
    """Return one document's row of the scores."""
    page, stopped = page_of(row), None
    for rule in rules:
        if reason := rule.measure(page):
            stopped = f"{rule.name}:{reason}"
            break
    names = {column.name for column in _columns_of(recipe)}
    measured = {name: value for name, value in page.columns.items() if name in names}
    text = row["text"]
    shown = _shown(text, page, recipe)
    return {
        "id": row["id"],
        **measured,
        "stopped": stopped,
        "text": None if page.text == text else page.text,
        "shown": None if shown == text else shown,
    }


def _shown(text: str, page: Page, recipe: FilterRecipe) -> str:
    """Return the extracted text with personal data replaced, if the recipe has the rule `personal_data`.

    If the rule has just done this for the same text, as on most pages, its result is reused.
    """
    if "personal_data" not in recipe.rules:
        return text
    before, after = page.redacted
    if before == text:
        return after
    return personal_data.redact(text, recipe.personal_data, language=page.language, url=page.url)[0]

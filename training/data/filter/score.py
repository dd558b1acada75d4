"""Stage `score`: what the recipe's rules measure on each extracted document, stored beside the documents.

One rank a document file, one row a document in the same order, in `scores/00000.parquet`: `id`, what every rule
measured (its `columns`), `stopped` (`rule:why` where a rule ends the page whatever the
limits, and nothing behind it was measured), `text` (as the rules left it) and `shown` (as extracted, with personal data
replaced where the recipe asks for it); both are null where they are the extracted text. Nothing here depends on a
limit: `training.data.filter.filter` compares, so that a changed limit measures nothing again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training.artifact import written
from training.data.documents import count_documents, document_files, read_documents
from training.data.filter import personal_data
from training.data.filter.judge import ReadyRule, make_rules
from training.data.filter.rule import Column, Page, page_of
from training.data.filter.rules import RULES
from training.data.filter.settings import FilterRecipe
from training.data.quality.quality import load_models
from training.job import Counts, InputArtifact, Job, Outcome, Work
from training.runner import total_counts

ROWS_PER_GROUP = 1000


def num_ranks(job: Job) -> int:
    """One rank for each document file of the input."""
    return len(document_files(job.input_of("extracted_documents")))


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Measure one document file."""
    recipe = job.settings_as(FilterRecipe, "filter")
    rules = _rules_of(recipe, job.input_of("quality_models"))
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
    """Add the ranks up."""
    counts = total_counts(ranks)
    return Outcome(
        files=tuple(name for rank in ranks for name in rank["files"]),
        counts=counts,
        metrics={"documents": counts.records_in},
    )


@lru_cache(maxsize=1)
def _rules_of(recipe: FilterRecipe, models: InputArtifact) -> tuple[ReadyRule, ...]:
    """The rules, made once a process: the models take longer to load than a small file to measure."""
    return make_rules(recipe, load_models(models))


def schema_of(recipe: FilterRecipe) -> pa.Schema:
    """The columns of the scores of this recipe's rules."""
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
    return [column for rule in recipe.rules for column in RULES[rule].columns]


def score(row: Mapping[str, Any], rules: tuple[ReadyRule, ...], recipe: FilterRecipe) -> dict[str, Any]:
    """One row of the scores."""
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
    """The extracted text as it may be seen. On most pages the rule has just replaced in the very same text."""
    if "personal_data" not in recipe.rules:
        return text
    before, after = page.redacted
    return after if before == text else personal_data.redact(text, recipe.personal_data)[0]

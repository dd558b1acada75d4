"""Stage `filter`: keeps the documents that pass the recipe's rules, in the recipe's order; one rank per document file.

The first rule that a document fails gives the reason. Rules compare the stored scores (`training.data.filter.score`)
with their limits; no text is measured here. Kept documents are in `documents/`, with the text as edited by the rules.
Dropped documents are in `dropped/` with the reason, such as `gopher_quality:too_few_words`, with the measured value and
the limit that applied (which may depend on the page's language and kind), and with the extracted text, in which
personal data is replaced too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from training.contract.job import Counts, DataError, Gate, Job, Outcome, Share, Work
from training.data.documents import (
    SCHEMA,
    DocumentWriter,
    count_documents,
    document_files,
    extra_columns,
    read_documents,
    shares_of,
)
from training.data.filter import personal_data
from training.data.filter.decide import broken_limit, make_decisions
from training.data.filter.rule import KEPT, Answer, Page, page_of
from training.data.filter.settings import FilterRecipe

SAMPLES_PER_REASON = 3
SAMPLE_CHARACTERS = 200
CODE = "code"  # a column of extracted documents that is not passed on, because rules edit the text
BROKEN_LIMIT = (pa.field("value", pa.float32()), pa.field("limit", pa.float32()))  # null if no limit decided
MIN_GROUP_DOCUMENTS = 20  # a language or source with fewer documents is not judged, because its survival says little


def num_ranks(job: Job) -> int:
    """Number of ranks: one per input document file."""
    return len(document_files(job.input_of("extracted_documents")))


def rank_shares(job: Job) -> list[Share]:
    """Return what each rank reads: its document file and the scores of these documents."""
    documents, scores = job.input_of("extracted_documents"), job.input_of("document_scores")
    return shares_of(document_files(documents), document_files(scores, "scores"))


def run_rank(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Filter one document file; return files, counts, and the tally that `finish` adds up."""
    recipe = job.settings_as(FilterRecipe, "filter")
    decisions = make_decisions(recipe)
    source = document_files(job.input_of("extracted_documents"))[rank]
    scores = read_documents(document_files(job.input_of("document_scores"), "scores")[rank])
    files = [f"documents/{rank:05d}.parquet", f"dropped/{rank:05d}.parquet"]
    passed_on = [column for column in extra_columns(source) if getattr(column, "name", column) != CODE]
    columns = tuple(dict.fromkeys([*passed_on, *_added_columns(recipe)]))
    tally = Tally()
    with (
        DocumentWriter(work.path / files[0], extra=columns) as kept,
        DocumentWriter(work.path / files[1], extra=(*columns, "reason", *BROKEN_LIMIT)) as dropped,
    ):
        for row, scored in zip(read_documents(source), scores, strict=True):
            page = _scored(row, scored)
            reason = decided(page, scored["stopped"], decisions)
            tally.add(row, page, reason)
            if reason == KEPT:
                kept.write(_as_row(row, page))
            else:
                # Show the extracted text, so that people see what was dropped, but with personal data replaced.
                page.text = row["text"] if scored["shown"] is None else scored["shown"]
                dropped.write(_as_row(row, page) | {"reason": reason} | _broken(recipe, page, reason))
    counts = Counts(
        records_in=count_documents(source), kept=kept.num_documents, dropped=dict(sorted(dropped.reasons.items()))
    )
    return {"files": files, "counts": counts.as_json(), "tally": tally.as_json()}


def _broken(recipe: FilterRecipe, page: Page, reason: str) -> dict[str, float | None]:
    """Return the measured value of a dropped page and the limit that it failed; empty if no limit decided."""
    limit = broken_limit(recipe, page, reason)
    if limit is None:
        return {}
    value = page.columns[limit.column]
    is_low = limit.least is not None and value < limit.least
    return {"value": value, "limit": limit.least if is_low else limit.most}


def _added_columns(recipe: FilterRecipe) -> list[pa.Field]:
    """Return the columns that the rules add to documents, beyond those that every document has."""
    columns = [column for rule in recipe.in_order().values() for column in rule.columns if column.on_document]
    return [
        pa.field(column.name, pa.string() if column.is_text else pa.float32())
        for column in columns
        if column.name not in SCHEMA.names
    ]


def _scored(row: Mapping[str, Any], scored: Mapping[str, Any]) -> Page:
    """Return the page in the state in which the rules left it, built from the document and its stored scores.

    Raise DataError if the scores belong to another document.
    """
    if row["id"] != scored["id"]:
        raise DataError(f"document_scores: {scored['id']} where {row['id']} was expected; they are of other documents")
    page = page_of(row)
    measured = {name: value for name, value in scored.items() if name not in ("id", "stopped", "text", "shown")}
    page.columns |= {name: value for name, value in measured.items() if value is not None}
    page.redactions = json.loads(scored.get("redactions") or "{}")
    if scored["text"] is not None:
        page.text = scored["text"]
    return page


def decided(page: Page, stopped: str | None, decisions: Mapping[str, Answer]) -> str:
    """Return `rule:reason` of the first rule that a measured page fails; "" if it passes all."""
    for name, decide in decisions.items():
        if stopped is not None and stopped.startswith(f"{name}:"):
            return stopped
        if reason := decide(page):
            return f"{name}:{reason}"
    return KEPT


def _as_row(row: Mapping[str, Any], page: Page) -> dict[str, Any]:
    """Return the document's row with the text that the rules edited and the columns that documents keep."""
    passed_on = {name: value for name, value in row.items() if name != CODE}
    return {**passed_on, **{name: value for name, value in page.columns.items() if "." not in name}, "text": page.text}


# Counts


@dataclass(slots=True)
class Tally:
    """Counts of one rank's documents by outcome, with a few samples of each."""

    redacted: Counter[str] = field(default_factory=Counter)  # replaced personal data in kept documents, by kind
    characters_in: int = 0
    characters_kept: int = 0
    languages: Counter[str] = field(default_factory=Counter)
    buckets: Counter[str] = field(default_factory=Counter)
    groups: dict[str, list[int]] = field(default_factory=dict)  # "language en" or "source web": [in, kept]
    samples: dict[str, list[list[str]]] = field(default_factory=dict)  # reason: [id, start of the text]

    def add(self, row: Mapping[str, Any], page: Page, reason: str) -> None:
        """Count one document that was kept or dropped for `reason`, in the sums by language, source and reason."""
        is_kept = reason == KEPT
        self.characters_in += len(row["text"])
        self.languages[page.language or "unknown"] += 1
        for group in (f"language {page.language or 'unknown'}", f"source {row['source']}"):
            numbers = self.groups.setdefault(group, [0, 0])
            numbers[0] += 1
            numbers[1] += is_kept
        if is_kept:
            self.characters_kept += len(page.text)
            self.redacted.update(page.redactions)
            if "perplexity_bucket" in page.columns:
                self.buckets[page.columns["perplexity_bucket"]] += 1
        samples = self.samples.setdefault(reason or "kept", [])
        if len(samples) < SAMPLES_PER_REASON:
            samples.append([row["id"], shown(page.text, page.language, page.url)])

    def as_json(self) -> dict[str, Any]:
        """Return the tally as plain data for `finish`."""
        return {
            "redacted": dict(self.redacted),
            "characters": [self.characters_in, self.characters_kept],
            "languages": dict(self.languages),
            "buckets": dict(self.buckets),
            "groups": self.groups,
            "samples": self.samples,
        }


def shown(text: str, language: str = "", url: str = "") -> str:
    """Return the start of a text on one line, to show to people: personal data replaced, control characters escaped."""
    start = text[: 2 * SAMPLE_CHARACTERS]
    clean, _ = personal_data.redact(start, personal_data.PLACEHOLDERS, language=language, url=url)
    start = clean[:SAMPLE_CHARACTERS]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in start)


def finish(job: Job, work: Work, ranks: list[dict[str, Any]]) -> Outcome:
    """Combine the counts, tallies and samples of all ranks into the stage's outcome."""
    recipe = job.settings_as(FilterRecipe, "filter")
    counts = Counts.total([rank["counts"] for rank in ranks])
    tallies = [rank["tally"] for rank in ranks]
    asked_for = recipe.personal_data if "personal_data" in recipe.rules else ()
    redacted = dict.fromkeys(asked_for, 0) | _summed(tallies, "redacted")
    groups = _survival(tallies)
    funnel = _funnel(recipe, counts)
    kept_fraction = counts.kept / counts.records_in if counts.records_in else 0.0
    metrics = {
        "kept_fraction": kept_fraction,
        "documents_in": counts.records_in,
        "documents_kept": counts.kept,
        "characters_in": sum(tally["characters"][0] for tally in tallies),
        "characters_kept": sum(tally["characters"][1] for tally in tallies),
        **{f"dropped_{step['rule']}": step["dropped"] for step in funnel},
        **{f"redacted_{kind}": number for kind, number in redacted.items()},
        **{f"perplexity_{bucket}": number for bucket, number in _summed(tallies, "buckets").items()},
    }
    return Outcome(
        files=tuple(name for rank in ranks for name in rank["files"]),
        counts=counts,
        metrics=metrics,
        gates=_gates(recipe, kept_fraction, groups),
        notes={
            "funnel": funnel,
            "languages": _summed(tallies, "languages"),
            "survival": groups,
            "samples": _samples(tallies),
        },
    )


def _summed(tallies: list[dict[str, Any]], name: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally[name])
    return dict(sorted(total.items()))


def _survival(tallies: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the numbers of documents read and kept, for each language and source."""
    groups: dict[str, list[int]] = {}
    for tally in tallies:
        for group, numbers in tally["groups"].items():
            so_far = groups.get(group, [0, 0])
            groups[group] = [so_far[0] + numbers[0], so_far[1] + numbers[1]]
    return dict(sorted(groups.items()))


def _funnel(recipe: FilterRecipe, counts: Counts) -> list[dict[str, Any]]:
    """Return, for each rule in order, the documents that reached it, the number that it dropped, and the reasons."""
    came = counts.records_in
    funnel = []
    for rule in recipe.rules:
        reasons = {
            reason.partition(":")[2]: number
            for reason, number in counts.dropped.items()
            if reason.partition(":")[0] == rule
        }
        funnel.append({"rule": rule, "in": came, "dropped": sum(reasons.values()), "reasons": reasons})
        came -= sum(reasons.values())
    return funnel


def _gates(recipe: FilterRecipe, kept_fraction: float, groups: dict[str, list[int]]) -> tuple[Gate, ...]:
    low, high = recipe.min_kept_fraction, recipe.max_kept_fraction
    bounds = {"min_kept_fraction": low, "max_kept_fraction": high}
    whole = Gate(
        name="kept_fraction",
        passed=low <= kept_fraction <= high,
        evidence={"kept_fraction": round(kept_fraction, 4), **bounds},
    )
    if low <= 0:
        return (whole,)
    # Languages that the recipe does not want are supposed to be dropped.
    wanted = {f"language {code}" for code in recipe.languages}
    judged = {
        group: round(went_on / came, 4)
        for group, (came, went_on) in sorted(groups.items())
        if came >= MIN_GROUP_DOCUMENTS and (group in wanted or not wanted or group.startswith("source "))
    }
    each = Gate(
        name="kept_fraction_by_group",
        passed=all(share >= low for share in judged.values()),
        evidence={"kept_fraction": judged, "min_kept_fraction": low, "min_documents": MIN_GROUP_DOCUMENTS},
    )
    return (whole, each)


def _samples(tallies: list[dict[str, Any]]) -> dict[str, list[dict[str, str]]]:
    """The first few samples of each reason, and of the kept documents, sorted by id."""
    found: dict[str, list[list[str]]] = {}
    for tally in tallies:
        for reason, samples in tally["samples"].items():
            found.setdefault(reason, []).extend(samples)
    return {
        reason: [{"id": identifier, "text": text} for identifier, text in sorted(samples)[:SAMPLES_PER_REASON]]
        for reason, samples in sorted(found.items())
    }

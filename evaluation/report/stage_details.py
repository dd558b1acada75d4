"""A closer look at a stage: clusters of duplicates, pages that barely passed a limit, and text cut from kept documents.

`look_at` returns the groups that `pedigree inspect` and the report show: the samples of evaluation.report.samples,
followed by

- for deduplication, the largest clusters, `cluster: <id of the kept document>`: the kept document, then its copies from
  the least to the most similar, each with its differences from the document that it repeats;
- for the filter, for each limit, the kept pages whose measured value is nearest to it, `just_passed: <rule>:<why>`;
- for both stages, the text that was cut from kept documents, `cut: <rule>`.

A cut is a difference between the texts of two artifacts. To find out which rule of the filter made a cut, the rules run
again on a few pages. If their result is not the stored text, the whole difference is shown without a rule.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evaluation.report.samples import (
    DEDUPLICATED,
    DROPPED,
    KEPT,
    OutcomeGroup,
    Place,
    ShownRecord,
    clipped,
    differences,
    files_of,
    is_asked,
    made_of,
    rank_of,
    rows_at,
    rows_of,
    rows_with_ids,
    sample_groups,
    sample_of,
)
from evaluation.report.truth_comparison import Record, of_asset
from training.contract.records import read_record
from training.data.documents import open_documents, read_tables
from training.data.filter import personal_data
from training.data.filter.decide import limits_of
from training.data.filter.rule import Limit
from training.data.filter.settings import FilterRecipe

CLUSTER, JUST_PASSED, CUT = "cluster", "just_passed", "cut"
FILTERED, EXTRACTED, SCORES = "filtered_documents", "extracted_documents", "document_scores"
Steps = Callable[[str, Mapping[str, Any]], list[tuple[str, str, str]]]
LOOKED_AT = 200  # kept documents of a partition that are searched for cuts
EDITS_OF_DEDUP = {"max_line_copies": "repeated_lines", "min_substring_bytes": "repeated_substrings"}


def look_at(
    records: Sequence[Record],
    asset: str,
    *,
    partition: str = "",
    reason: str = "",
    number: int = 3,
    characters: int = 500,
    seed: int = 0,
) -> list[OutcomeGroup]:
    """Return the groups of `sample_groups`. Clusters, close passes and cuts of a partition follow its groups."""
    groups = sample_groups(
        records, asset, partition=partition, reason=reason, number=number, characters=characters, seed=seed
    )
    for made in made_of(records, asset, partition):
        closer: Iterator[OutcomeGroup] = iter(())
        if asset == DEDUPLICATED:
            closer = _clusters(records, made, reason, number, characters)
        elif asset == FILTERED:
            closer = _just_passed(records, made, reason, number, characters)
        groups += closer
        groups += _cuts(records, made, reason, number, characters, seed)
    return sorted(groups, key=lambda one: one.partition)


# Clusters of duplicates


def _clusters(
    records: Sequence[Record], made: Record, reason: str, number: int, characters: int
) -> Iterator[OutcomeGroup]:
    """Yield the largest clusters of removed documents of one snapshot.

    A cluster is identified by the document at the end of its chain of copies.
    """
    if not (is_asked(reason, CLUSTER, "") or reason.startswith(f"{CLUSTER}:")):
        return
    repeats: dict[str, str] = {}
    for folder, record in of_asset(records, DEDUPLICATED):
        for path in files_of(folder, record, DROPPED):
            repeats |= {row["id"]: row["duplicate_of"] for _, row in rows_of(path, ("id", "duplicate_of"))}
    members: dict[str, list[tuple[float, str]]] = {}
    for path in files_of(*made, DROPPED):
        for _, row in rows_of(path, ("id", "duplicate_of", "similarity")):
            if row["duplicate_of"]:  # empty where nothing was left of a document without its repeated lines
                members.setdefault(_root(row["id"], repeats), []).append((row["similarity"], row["id"]))
    asked = [root for root in members if is_asked(reason, CLUSTER, root)]
    largest = heapq.nsmallest(number, asked, key=lambda root: (-len(members[root]), root))
    chosen = {root: [one for _, one in heapq.nsmallest(number, members[root])] for root in largest}
    wanted = {one for root, some in chosen.items() for one in (root, *some, *(repeats[copy] for copy in some))}
    rows = rows_with_ids(of_asset(records, DEDUPLICATED), wanted)
    texts = {name: row["text"] for name, row in rows.items()}
    for place, (root, some) in enumerate(chosen.items(), 1):
        shown = [rows[one] for one in (root, *some) if one in rows]
        samples = [sample_of(row, DROPPED, row.get("reason") or "", texts, characters) for row in shown]
        facts = {CLUSTER: f"{place} of {len(members)}, by size"}
        if samples:
            samples[0] = dataclasses.replace(samples[0], facts={**facts, **samples[0].facts})
        yield OutcomeGroup(DEDUPLICATED, made[1]["partition"], CLUSTER, root, 1 + len(members[root]), tuple(samples))


def _root(name: str, repeats: Mapping[str, str]) -> str:
    """Follow a chain of duplicates, each a copy of the next, to the kept document at its end."""
    while repeats.get(name):
        name = repeats[name]
    return name


# Pages that barely passed


def _just_passed(
    records: Sequence[Record], made: Record, reason: str, number: int, characters: int
) -> Iterator[OutcomeGroup]:
    """Yield, for each limit, the kept pages whose measured value is nearest to it, the nearest first."""
    folder, record = made
    scored = [one for one in of_asset(records, SCORES) if one[1]["partition"] == record["partition"]]
    if not scored or not number:
        return
    recipe = _filter_recipe(record)
    near, measured = _nearest(scored[0], _pages(folder, record), _Limits(recipe, reason), number)
    rows = rows_with_ids([made], {one.document for some in near.values() for one in some})
    for name, some in near.items():
        samples = []
        for one in some:
            sample = sample_of(rows[one.document], KEPT, "", {}, characters)
            limit = one.limit.most if one.limit.least is None else one.limit.least
            facts = {one.limit.column: one.value, "limit": limit}
            samples.append(dataclasses.replace(sample, facts={**facts, **sample.facts}))
        yield OutcomeGroup(FILTERED, record["partition"], JUST_PASSED, name, measured[name], tuple(samples))


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class _Near:
    """A kept document whose measured value is near a limit for its language and kind."""

    distance: float
    document: str
    value: float
    limit: Limit = dataclasses.field(compare=False)


_Pages = tuple[str, str]  # language and kind; either may be empty


class _Limits:
    """The filter's limits to look at, by `rule:reason`, for pages of each language and kind."""

    def __init__(self, recipe: FilterRecipe, reason: str) -> None:
        self._recipe, self._reason = recipe, reason
        self._known: dict[_Pages, dict[str, Limit]] = {}

    def of(self, pages: _Pages) -> dict[str, Limit]:
        if pages not in self._known:
            self._known[pages] = {
                name: limit
                for rule, limits in limits_of(self._recipe, *pages).items()
                for limit in limits
                if is_asked(self._reason, JUST_PASSED, name := f"{rule}:{limit.reason}")
                and (limit.least or limit.most is not None)
            }
        return self._known[pages]


def _nearest(
    scored: Record, kept: Mapping[str, _Pages], limits: _Limits, number: int
) -> tuple[dict[str, list[_Near]], Mapping[str, int]]:
    """Return, for each limit, the kept documents whose values are nearest to it.

    The second result is the number of documents with a value. `kept` maps the ids of the kept documents to their
    languages and kinds.
    """
    near: dict[str, list[_Near]] = {name: [] for name in limits.of(("", ""))}
    measured: Counter[str] = Counter()
    for path in files_of(*scored, "scores"):
        with open_documents(path) as parquet:
            columns = [name for name in parquet.schema_arrow.names if name not in ("stopped", "text", "shown")]
        for table in read_tables(path, columns):
            for pages, some in _by_pages(table, kept):
                for name, limit in limits.of(pages).items():
                    if limit.column not in columns:
                        continue
                    values = some[limit.column].to_numpy()
                    measured[name] += int(np.count_nonzero(~np.isnan(values)))
                    near[name] = heapq.nsmallest(number, [*near.get(name, ()), *_lowest(some, values, limit, number)])
    return {name: some for name, some in near.items() if some}, measured


def _by_pages(table: pa.Table, kept: Mapping[str, _Pages]) -> Iterator[tuple[_Pages, pa.Table]]:
    """Yield, for each language and kind, the scores of the documents that `kept` maps to them by id."""
    found = [kept.get(one) for one in table["id"].to_pylist()]
    for pages in sorted({one for one in found if one is not None}):
        yield pages, table.filter(pa.array([one == pages for one in found]))


def _distances(values: npt.NDArray[np.float64], limit: Limit) -> npt.NDArray[np.float64]:
    if limit.most is not None:
        return limit.most - values
    assert limit.least is not None
    return values - limit.least


def _lowest(table: pa.Table, values: npt.NDArray[np.float64], limit: Limit, number: int) -> list[_Near]:
    """Return the documents of a table whose values are nearest to a limit; NaN is left out."""
    distances = _distances(values, limit)
    order = np.argsort(distances, kind="stable")[:number].tolist()
    return [
        _Near(float(distances[row]), table["id"][row].as_py(), float(values[row]), limit)
        for row in order
        if not np.isnan(distances[row])
    ]


def _pages(folder: Path, record: Mapping[str, Any]) -> dict[str, _Pages]:
    """Return the language and the kind of each kept document by its id; "" if unknown."""
    rows = (row for path in files_of(folder, record, KEPT) for _, row in rows_of(path, ("id", "language", "kind")))
    return {row["id"]: (row["language"] or "", row.get("kind") or "") for row in rows}


def _filter_recipe(record: Mapping[str, Any]) -> FilterRecipe:
    return read_record(FilterRecipe, record["settings"]["filter"], where="filter")


# What was cut out of kept documents


def _cuts(
    records: Sequence[Record], made: Record, reason: str, number: int, characters: int, seed: int
) -> Iterator[OutcomeGroup]:
    """Yield a group for each rule that cut text from kept documents.

    Only the LOOKED_AT documents whose ids hash lowest are searched for cuts.
    """
    folder, record = made
    rules = _cutting(record)
    if not rules or not number or not any(is_asked(reason, CUT, rule) for rule in (*rules, "")):
        return
    source = EXTRACTED if record["asset"] == FILTERED else FILTERED
    before = [one for one in of_asset(records, source) if one[1]["partition"] == record["partition"]]
    kept = rows_at(_hashed_lowest(folder, record, seed))
    kept_rows = {row["id"]: row for row in kept.values()}
    texts = {name: row["text"] for name, row in rows_with_ids(before, set(kept_rows)).items()}
    steps = _filter_steps(record) if record["asset"] == FILTERED else _whole(" or ".join(rules))
    samples: dict[str, list[ShownRecord]] = {}
    counts: dict[str, int] = {}
    for name in sorted(texts, key=lambda name: rank_of(seed, name)):
        for rule, old, new in steps(texts[name], kept_rows[name]):
            if not is_asked(reason, CUT, rule) or old.split() == new.split():
                continue
            counts[rule] = counts.get(rule, 0) + 1
            if len(samples.setdefault(rule, [])) < number:
                sample = sample_of(kept_rows[name], KEPT, "", {}, characters)
                parts = clipped(differences(old, new), characters)
                samples[rule].append(dataclasses.replace(sample, parts=parts))
    for rule in sorted(counts):
        yield OutcomeGroup(
            record["asset"], record["partition"], CUT, rule, counts[rule], tuple(samples[rule]), looked_at=len(texts)
        )


def _cutting(record: Mapping[str, Any]) -> list[str]:
    """Return the rules in an artifact's settings that edit the text of kept documents."""
    if record["asset"] == FILTERED and "filter" in record["settings"]:
        return [name for name, rule in _filter_recipe(record).in_order().items() if rule.edit]
    if record["asset"] == DEDUPLICATED:
        return [name for field, name in EDITS_OF_DEDUP.items() if record["settings"].get("dedup", {}).get(field)]
    return []


def _hashed_lowest(folder: Path, record: Mapping[str, Any], seed: int) -> set[Place]:
    ranked = (
        (rank_of(seed, row["id"]), (path, *at))
        for path in files_of(folder, record, KEPT)
        for at, row in rows_of(path, ("id",))
    )
    return {place for _, place in heapq.nsmallest(LOOKED_AT, ranked)}


def _whole(rule: str) -> Steps:
    """Return a function that reports the whole difference between a text and a kept row's as one step of `rule`.

    See `_filter_steps`.
    """
    return lambda old, row: [(rule, old, row["text"])]


def _filter_steps(record: Mapping[str, Any]) -> Steps:
    """Return a `Steps` function that gives (rule, text before, text after) for each editing rule of the filter.

    The function takes the extracted text and the kept row of a document. It redacts personal data first, so that
    redactions are not shown as cuts. If the rules do not lead to the kept text, it gives the whole difference with an
    empty rule.
    """
    recipe = _filter_recipe(record)
    edits = {name: rule.edit(recipe.settings_of(name)) for name, rule in recipe.in_order().items() if rule.edit}
    kinds = recipe.personal_data if "personal_data" in recipe.rules else ()

    def steps(extracted: str, row: Mapping[str, Any]) -> list[tuple[str, str, str]]:
        kept, language, url = row["text"], row["language"] or "", row["url"]
        first = text = personal_data.redact(extracted, kinds, language=language, url=url)[0]
        found = []
        for rule, edit in edits.items():
            before, text = text, edit(text)
            found.append((rule, before, text))
        return found if text.split() == kept.split() else [("", first, kept)]

    return steps

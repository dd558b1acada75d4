"""What a handful of records does not tell of a stage: clusters of duplicates, pages that only just passed, cuts.

`look_at` is what `pedigree inspect` and the report show: the samples of evaluation.samples, and then

- of deduplication the largest clusters, `cluster: <id of the one that stayed>`: that one first, then its copies, the
  least similar first, each with its differences from the document that it repeats;
- of the filter, for each limit, the kept pages whose measured value is nearest to it, `just_passed: <rule>:<why>`;
- of both, what they cut out of documents that they kept, `cut: <rule>`.

What was cut is the difference of two artifacts' texts. The filter's rules are run again on a few pages to see which of
them cut what; where the text that they leave is not the one that is stored, the whole difference stands under no rule.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.samples import (
    DEDUPLICATED,
    DROPPED,
    KEPT,
    Group,
    Place,
    Sample,
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
from evaluation.truth import Record, of_asset
from training.data.documents import open_documents, read_tables
from training.data.filter import personal_data
from training.data.filter.decide import limits_of
from training.data.filter.rule import Limit
from training.data.filter.rules import RULES
from training.data.filter.settings import FilterRecipe
from training.records import read_record

CLUSTER, JUST_PASSED, CUT = "cluster", "just_passed", "cut"
FILTERED, EXTRACTED, SCORES = "filtered_documents", "extracted_documents", "document_scores"
Steps = Callable[[str, str], list[tuple[str, str, str]]]
LOOKED_AT = 200  # kept documents of a partition in which cuts are looked for
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
) -> list[Group]:
    """The groups of `sample_groups`, and behind those of each partition what a closer look shows."""
    groups = sample_groups(
        records, asset, partition=partition, reason=reason, number=number, characters=characters, seed=seed
    )
    for made in made_of(records, asset, partition):
        closer: Iterator[Group] = iter(())
        if asset == DEDUPLICATED:
            closer = _clusters(records, made, reason, number, characters)
        elif asset == FILTERED:
            closer = _just_passed(records, made, reason, number, characters)
        groups += closer
        groups += _cuts(records, made, reason, number, characters, seed)
    return sorted(groups, key=lambda one: one.partition)


# Clusters of duplicates


def _clusters(records: Sequence[Record], made: Record, reason: str, number: int, characters: int) -> Iterator[Group]:
    """The largest clusters of one snapshot: what it removed, by the document at the end of the chain of copies."""
    if not (is_asked(reason, CLUSTER, "") or reason.startswith(f"{CLUSTER}:")):
        return
    repeats: dict[str, str] = {}
    for folder, record in of_asset(records, DEDUPLICATED):
        for path in files_of(folder, record, DROPPED):
            repeats |= {row["id"]: row["duplicate_of"] for _, row in rows_of(path, ("id", "duplicate_of"))}
    members: dict[str, list[tuple[float, str]]] = {}
    for path in files_of(*made, DROPPED):
        for _, row in rows_of(path, ("id", "duplicate_of", "similarity")):
            if row["duplicate_of"]:  # not one of which repeated lines left nothing
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
        yield Group(DEDUPLICATED, made[1]["partition"], CLUSTER, root, 1 + len(members[root]), tuple(samples))


def _root(name: str, repeats: Mapping[str, str]) -> str:
    """The document at the end of a chain of duplicates, which is finite: each document repeats an earlier one."""
    while repeats.get(name):
        name = repeats[name]
    return name


# Pages that only just passed


def _just_passed(records: Sequence[Record], made: Record, reason: str, number: int, characters: int) -> Iterator[Group]:
    """For each limit the kept pages nearest to it, the nearest first."""
    folder, record = made
    scored = [one for one in of_asset(records, SCORES) if one[1]["partition"] == record["partition"]]
    if not scored or not number:
        return
    recipe = _filter_recipe(record)
    limits = {
        name: limit
        for rule, limits in limits_of(recipe).items()
        for limit in limits
        if is_asked(reason, JUST_PASSED, name := f"{rule}:{limit.reason}") and (limit.least or limit.most is not None)
    }
    near, measured = _nearest(scored[0], _ids(folder, record), limits, number)
    rows = rows_with_ids([made], {name for some in near.values() for _, name, _ in some})
    for name, limit in limits.items():
        samples = []
        for _, document, value in near[name]:
            sample = sample_of(rows[document], KEPT, "", {}, characters)
            facts = {limit.column: value, "limit": limit.most if limit.least is None else limit.least}
            samples.append(dataclasses.replace(sample, facts={**facts, **sample.facts}))
        if samples:
            yield Group(FILTERED, record["partition"], JUST_PASSED, name, measured[name], tuple(samples))


def _nearest(
    scored: Record, kept: pa.Array, limits: Mapping[str, Limit], number: int
) -> tuple[dict[str, list[tuple[float, str, float]]], dict[str, int]]:
    """For each limit (distance, id, value) of the kept documents nearest to it, and how many have a value."""
    near: dict[str, list[tuple[float, str, float]]] = {name: [] for name in limits}
    measured = dict.fromkeys(limits, 0)
    for path in files_of(*scored, "scores"):
        with open_documents(path) as parquet:
            there = set(parquet.schema_arrow.names)
        columns = sorted({limit.column for limit in limits.values()} & there)
        for table in read_tables(path, ["id", *columns]):
            # pyarrow makes its functions while it is imported
            found = pc.is_in(table["id"], value_set=kept)  # pyrefly: ignore[missing-attribute]
            table = table.filter(found)
            for name, limit in limits.items():
                if limit.column not in there:
                    continue
                values = table[limit.column].to_numpy()
                rows = _lowest(_distances(values, limit), number)
                found = [
                    (float(_distances(values[i : i + 1], limit)[0]), table["id"][i].as_py(), values[i]) for i in rows
                ]
                near[name] = heapq.nsmallest(number, [*near[name], *((d, one, float(v)) for d, one, v in found)])
                measured[name] += int(np.count_nonzero(~np.isnan(values)))
    return near, measured


def _distances(values: npt.NDArray[np.float64], limit: Limit) -> npt.NDArray[np.float64]:
    if limit.most is not None:
        return limit.most - values
    assert limit.least is not None
    return values - limit.least


def _lowest(values: npt.NDArray[np.float64], number: int) -> list[int]:
    """The positions of the lowest values; values that are not numbers are left out."""
    order = np.argsort(values, kind="stable")[:number]
    return [int(row) for row in order if not np.isnan(values[row])]


def _ids(folder: Path, record: Mapping[str, Any]) -> pa.Array:
    parts = [table["id"] for path in files_of(folder, record, KEPT) for table in read_tables(path, ["id"])]
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.string()).combine_chunks()


def _filter_recipe(record: Mapping[str, Any]) -> FilterRecipe:
    return read_record(FilterRecipe, record["settings"]["filter"], where="filter")


# What was cut out of kept documents


def _cuts(
    records: Sequence[Record], made: Record, reason: str, number: int, characters: int, seed: int
) -> Iterator[Group]:
    """What rules cut out of kept documents, by rule, in the LOOKED_AT documents whose ids hash lowest."""
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
    samples: dict[str, list[Sample]] = {}
    counts: dict[str, int] = {}
    for name in sorted(texts, key=lambda name: rank_of(seed, name)):
        for rule, old, new in steps(texts[name], kept_rows[name]["text"]):
            if not is_asked(reason, CUT, rule) or old.split() == new.split():
                continue
            counts[rule] = counts.get(rule, 0) + 1
            if len(samples.setdefault(rule, [])) < number:
                sample = sample_of(kept_rows[name], KEPT, "", {}, characters)
                parts = clipped(differences(old, new), characters)
                samples[rule].append(dataclasses.replace(sample, parts=parts))
    for rule in sorted(counts):
        yield Group(
            record["asset"], record["partition"], CUT, rule, counts[rule], tuple(samples[rule]), looked_at=len(texts)
        )


def _cutting(record: Mapping[str, Any]) -> list[str]:
    """The rules in an artifact's settings that edit the text of documents that they keep."""
    if record["asset"] == FILTERED:
        return [rule for rule in record["settings"].get("filter", {}).get("rules", ()) if RULES[rule].edit]
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
    """A function that reports one edit by `rule`, from the whole text before to the whole text after."""
    return lambda old, new: [(rule, old, new)]


def _filter_steps(record: Mapping[str, Any]) -> Steps:
    """Says of an extracted and a kept text (rule, text before, text after) of each rule that edits.

    Personal data that the filter replaced is replaced first, so that it is not shown as cut.
    """
    recipe = _filter_recipe(record)
    edits = {rule: edit(recipe) for rule in recipe.rules if (edit := RULES[rule].edit)}
    kinds = recipe.personal_data if "personal_data" in recipe.rules else ()

    def steps(extracted: str, kept: str) -> list[tuple[str, str, str]]:
        first = text = personal_data.redact(extracted, kinds)[0]
        found = []
        for rule, edit in edits.items():
            before, text = text, edit(text)
            found.append((rule, before, text))
        return found if text.split() == kept.split() else [("", first, kept)]

    return steps

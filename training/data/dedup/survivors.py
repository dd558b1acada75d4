"""Choose which document of a cluster of duplicates stays, if the recipe wants another than the first.

A document can only replace the first one if it was itself verified against it, and only within the own snapshot.
Documents of earlier snapshots stay whatever comes later, so the result is as incremental as without a choice.

The phase `verify` sends the value of each removed document to the group of the first one. The phase `choose` compares
the values there, and sends the verdicts that it changes to the groups of the documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.contract.job import DataError, Job, Work
from training.data.dedup.blocks import Array, joined, packed, strings, strings_of, unpacked
from training.data.dedup.corpus import Corpus, Group, Orders
from training.data.dedup.duplicates import Verdicts
from training.data.dedup.shuffle import read_slice
from training.data.dedup.survivor import Policy
from training.data.documents import open_documents

FIRST, OF_EARLIER = "first", "an earlier snapshot"  # why another document was kept, where no values were compared


@dataclass(frozen=True, kw_only=True, slots=True)
class Members:
    """Removed documents of one group, the documents that they repeat, and the values that the policy compares.

    All are columns.
    """

    heads: Orders
    orders: Orders
    reasons: Orders
    similarities: Array
    numbers: Array  # values of a column of numbers; zeros for `newest`
    dates: pa.Array  # values of the column `date`; empty texts for other policies
    ids: pa.Array

    def parts(self) -> list[Array]:
        """Return these members as the parts of a slice, which `read` reads."""
        plain = [self.heads, self.orders, self.reasons, self.similarities, self.numbers]
        return packed([*plain, *strings(self.dates), *strings(self.ids)])

    @staticmethod
    def read(data: bytes) -> Members:
        """Read the members that `parts` wrote into a slice."""
        kinds = [*_PLAIN.values(), np.int64, np.uint8, np.int64, np.uint8]
        *plain, date_starts, dates, id_starts, ids = unpacked(data, kinds)
        return Members(
            **dict(zip(_PLAIN, plain, strict=True)),
            dates=strings_of(date_starts, dates),
            ids=strings_of(id_starts, ids),
        )

    def of(self, chosen: Any) -> Members:
        """Return some of the members, chosen by flags or places."""
        places = np.arange(len(self.heads))[chosen]
        plain = {name: getattr(self, name)[places] for name in _PLAIN}
        return Members(**plain, dates=self.dates.take(pa.array(places)), ids=self.ids.take(pa.array(places)))

    @staticmethod
    def joined(parts: Sequence[Members]) -> Members:
        """Concatenate several records of members into one."""
        plain = {name: joined([getattr(part, name) for part in parts], kind) for name, kind in _PLAIN.items()}
        dates, ids = (_texts([getattr(part, name) for part in parts]) for name in ("dates", "ids"))
        return Members(**plain, dates=dates, ids=ids)


_PLAIN = {"heads": np.int64, "orders": np.int64, "reasons": np.int64, "similarities": np.float64, "numbers": np.float64}


def _texts(parts: Sequence[pa.Array]) -> pa.Array:
    return pa.chunked_array([part.cast(pa.large_string()) for part in parts], pa.large_string()).combine_chunks()


def members_of(group: Group, verdicts: Verdicts, own_start: int, policy: Policy) -> Members:
    """Return the removed documents of a group that repeat one of the same snapshot."""
    _check_columns(group, policy)
    orders = group.orders
    rows = np.flatnonzero((verdicts.reason > 0) & (verdicts.of >= own_start))
    return _members(group, orders[rows], verdicts.of[rows], verdicts.reason[rows], verdicts.similarity[rows], policy)


def _members(
    group: Group, orders: Orders, heads: Orders, reasons: Array, similarities: Array, policy: Policy
) -> Members:
    numbers, dates = _values(group, orders, policy)
    ids = pa.chunked_array(list(group.column(orders, "id")), pa.string()).combine_chunks()
    return Members(
        heads=heads,
        orders=orders,
        reasons=reasons.astype(np.int64),
        similarities=similarities.astype(np.float64),
        numbers=numbers,
        dates=dates,
        ids=ids,
    )


def _check_columns(group: Group, policy: Policy) -> None:
    for path in group.documents:
        with open_documents(path) as parquet:
            if missing := [column for column in policy.columns if column not in parquet.schema_arrow.names]:
                raise DataError(
                    f"dedup.survivor={policy.name!r} needs the column {missing[0]}, which {path} lacks;"
                    " switch on the rule of the section filter that writes it, or choose another survivor"
                )


def _values(group: Group, orders: Orders, policy: Policy) -> tuple[Array, pa.Array]:
    """Return the values that a policy compares, as numbers, and as text for dates.

    A document without a value gets the lowest one.
    """
    if policy.value is not None:
        numbers = [_outside_numbers(rows, policy.value) for rows in _rows(group, orders, ("id", *policy.columns))]
        return joined(numbers, np.float64), pa.array([""] * len(orders), pa.string())
    (column,) = policy.columns
    parts = list(group.column(orders, column))
    if policy.name == "newest":
        dates = pa.chunked_array([pc.fill_null(part, "") for part in parts], pa.string()).combine_chunks()
        return np.zeros(len(orders)), dates
    numbers = [_numbers(part, policy.name) for part in parts]
    return joined(numbers, np.float64), pa.array([""] * len(orders), pa.string())


def _rows(group: Group, orders: Orders, columns: tuple[str, ...]) -> Iterator[dict[str, list[Any]]]:
    """Yield the columns of documents, by name, one row group at a time."""
    for parts in zip(*(group.column(orders, column) for column in columns), strict=True):
        yield {column: part.to_pylist() for column, part in zip(columns, parts, strict=True)}


def _outside_numbers(rows: dict[str, list[Any]], value: Callable[[dict[str, Any]], float]) -> Array:
    documents = (dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True))
    return np.array([value(document) for document in documents], np.float64)


def _numbers(part: pa.Array, policy: str) -> Array:
    if policy == "longest":
        part = pc.utf8_length(part)
    return pc.fill_null(part.cast(pa.float64()), -np.inf).to_numpy(zero_copy_only=False)


CHANGES = (np.int64, np.int64, np.int64, np.float64, np.int64, np.uint8, np.int64, np.uint8)


def choose(job: Job, work: Work, corpus: Corpus, kept: Array, rank: int, policy: Policy) -> list[list[Array]]:
    """Return, for each group of the own snapshot, the parts of a slice with the verdicts that the policy changes.

    `kept` are flags of the documents of group `rank` that no verdict has removed.
    """
    group = corpus.groups[corpus.own[rank]]
    told = [Members.read(read_slice(job, work, "verify", other, 1 + rank)) for other in range(corpus.num_own)]
    members = Members.joined(told)
    members = members.of(kept[group.rows_of(members.heads)])
    firsts = np.unique(members.heads)
    heads = _members(group, firsts, firsts, np.zeros(len(firsts)), np.zeros(len(firsts)), policy)
    changes = _changes(Members.joined([heads, members]), policy)
    slices = []
    for number in corpus.own:
        here = (changes[0] >= corpus.groups[number].start) & (changes[0] < corpus.groups[number].end)
        plain = [column[here] for column in changes[:4]]
        texts = (strings(pa.array([column[i] for i in np.flatnonzero(here)], pa.string())) for column in changes[4:])
        slices.append(packed([*plain, *(array for pair in texts for array in pair)]))
    return slices


def _changes(members: Members, policy: Policy) -> tuple[Array, Array, Array, Array, list[str], list[str]]:
    """Return the new verdicts as columns: documents, reasons, repeated documents, similarities, their ids, and why."""
    values = np.array(members.dates.to_pylist(), np.str_) if policy.name == "newest" else members.numbers
    ranks = np.unique(values, return_inverse=True)[1]
    by = np.lexsort((members.orders, -ranks, members.heads))
    best = by[np.concatenate([[True], members.heads[by][1:] != members.heads[by][:-1]])] if len(by) else by
    chosen = best[np.searchsorted(members.heads[best], members.heads)]  # of each member's cluster
    head = np.searchsorted(members.orders[: len(best)], members.heads)  # heads come first, ascending
    ids = members.ids.to_pylist()
    rows: list[tuple[int, int, int, float, str, str]] = []
    for i in np.flatnonzero((chosen != np.arange(len(chosen))) | (chosen != head)).tolist():
        c, h = int(chosen[i]), int(head[i])
        kept, own = values[c], values[i]
        why = "first, of equal documents" if kept == own else f"{policy.name}: {_shown(kept)}, not {_shown(own)}"
        if i == c:
            rows.append((members.orders[i], 0, -1, 0.0, "", ""))
        elif i == h:
            rows.append(
                (members.orders[i], members.reasons[c], members.orders[c], members.similarities[c], ids[c], why)
            )
        else:
            verdict = members.reasons[i], members.orders[h], members.similarities[i], ids[h], why
            rows.append((members.orders[i], *verdict))
    columns = list(zip(*rows, strict=True)) if rows else [()] * 6
    kinds = (np.int64, np.int64, np.int64, np.float64)
    plain = [np.array(column, kind) for column, kind in zip(columns, kinds, strict=False)]
    return plain[0], plain[1], plain[2], plain[3], list(columns[4]), list(columns[5])


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{value:.6g}"

"""The rows of a source, one after another: each is read whole, or has the reason why not.

A row that makes its reader fail, however it does, is quarantined with the error's name and ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from training.contract.job import DataError, Job
from training.contract.records import RecipeError
from training.data.sources import UnreadRow, check_unchanged, read_rows
from training.posttrain.rows.forms import Reader, Row, messages_in, trees
from training.posttrain.rows.messages import Fields, MalformedRow, Unusable
from training.posttrain.rows.short_numbers import with_short_numbers
from training.posttrain.source_settings import TextSourceRecipe, label

# Markers that published files put at the end of an answer.
END_MARKERS = ("###eos_token###", "<|endoftext|>", "</s>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<eos>")

MOST_REASONS = 100  # of one source; rows with further ones are counted together


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRow:
    """One row of a source, with what was `made` from it (messages or a pair), or why it was dropped or quarantined.

    `marks` are fields that the written row gets, such as the exam item that it holds. `endings` are the markers with
    which its answers end, "" for each answer that ends with none.
    """

    id: str
    row: Row
    made: Any = None
    reason: str = ""
    is_damaged: bool = False
    endings: tuple[str, ...] = ()
    marks: Mapping[str, Any] = field(default_factory=dict)


def records(
    sources: Sequence[TextSourceRecipe], readers: Mapping[str, Reader], job: Job, where: str
) -> Iterator[tuple[TextSourceRecipe, SourceRow]]:
    """Yield every record of every source in the recipe's order, read by the reader of its format.

    Raise RecipeError for a source that is named twice or has a format without a reader. Raise DataError for a file that
    has changed since the job was written, or a source without rows.
    """
    names = [label(source.uri) for source in sources]
    for i, source in enumerate(sources):
        place = f"{where}.data[{i}]"
        if names[i] in names[:i]:
            raise RecipeError(f"{place}.uri: {source.uri!r} is named twice; rows would have the same ids")
        if source.format not in readers:
            raise RecipeError(f"{place}.format: {source.format!r} gives none; use one of {', '.join(readers)}")
        check_unchanged(source.uri, job)
        found = False
        for record in read_source(source, readers[source.format], job.settings):
            found = True
            yield source, record
        if not found:
            raise DataError(f"{source.uri}: no rows; {place} needs at least one")


def generator_of(row: Row, source: TextSourceRecipe) -> str:
    """Return who wrote the row's answers: the row's `generator`, else the recipe's, else an empty text."""
    said = row.get("generator")
    return said if isinstance(said, str) and said else source.generator or ""


def read_source(source: TextSourceRecipe, reader: Reader, settings: Mapping[str, Any]) -> Iterator[SourceRow]:
    """Yield the records of one source, read by `reader`; a generated source needs the job's `settings`."""
    rows: Iterable[Row] = with_short_numbers(read_rows(source.uri, settings=settings, with_unread=True), source.uri)
    if source.format == "dialogue_tree":
        rows = trees(rows)
    reasons = set[str]()
    for number, row in enumerate(islice(rows, source.limit or None)):
        record = read_row(f"{label(source.uri)}#{number:07d}", row, source, reader)
        if len(reasons) >= MOST_REASONS and record.reason not in reasons:
            record = replace(record, reason=record.reason and "other")
        reasons.add(record.reason)
        yield record


def read_row(name: str, row: Row, source: TextSourceRecipe, reader: Reader) -> SourceRow:
    """Return what the reader makes of a row, or why it makes nothing of it."""
    if isinstance(row, UnreadRow):
        return SourceRow(id=name, row=row, reason="unread_line", is_damaged=True)
    try:
        fields = Fields(row, source.ignore)
        made = reader(fields, source)
        fields.check_all_taken()
        return SourceRow(id=name, row=row, made=made, endings=_without_end_marker(made, source.end_marker))
    except Unusable as error:
        return SourceRow(id=name, row=row, reason=str(error), is_damaged=isinstance(error, MalformedRow))
    except Exception as error:
        return SourceRow(id=name, row=row, reason=f"raised_{type(error).__name__}", is_damaged=True)


def _without_end_marker(made: Any, marker: str | None) -> tuple[str, ...]:
    """Remove the source's end marker from the answers, and return the marker with which each of them ended.

    Raise Unusable if nothing is left of an answer.
    """
    endings: list[str] = []
    for message in (one for messages in messages_in(made) for one in messages):
        if message["role"] != "assistant":
            continue
        text = message["content"]
        ended = next((one for one in (marker, *END_MARKERS) if one and text.endswith(one)), "")
        endings.append(ended)
        if marker and ended == marker:
            message["content"] = text.removesuffix(marker)
            if not message["content"].strip() and not message.get("tool_calls"):
                raise Unusable("empty_answer")
    return tuple(endings)

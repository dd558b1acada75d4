"""Take words out of files that are no documents: samples, reports, cards, logs, records and databases.

A file is changed by what writes its kind, and read back. JSON keeps its keys, numbers and lists, YAML too, a page of
HTML its tags and scripts, a table its schema and rows, and a database passes its own check. Where that is not so, the
file is left, and named. A model is never changed, wherever it lies, and neither is a program.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from resources.tracking.spool import SPOOL_FILE
from training.contract.artifact import ARTIFACT_FILE, COPY_FILE, record_digest
from training.contract.files.erased import may_be_erased
from training.contract.files.writing import read_sealed, temporary_for, write_sealed
from training.data.documents import ZSTD_LEVEL, compressing, decompressed
from training.data.words.ngrams import Hashes
from training.provenance.contents import ADDRESSES, SQLITE, TOKENIZER_FILES, WEIGHTS, in_sql
from training.provenance.grams import count_in, masked, spans_of
from training.provenance.swap import Commit, MaskedRecord, Swap

RECORDS, SEALED = (ARTIFACT_FILE, COPY_FILE), ("job.json",)  # with checksums of their own
PROGRAMS = (".py", ".sh", ".sbatch", ".js", ".css", ".jinja", ".j2", ".sql")
LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"(?P<is_key>\s*:)?')  # a string of JSON
LEFT_FORM, NAMES = "its form would not stay", "the words are no texts in it, such as names of fields"
VIRTUAL = "SELECT 1 FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL%'"
BUSY_SECONDS = 10  # to wait for another process that writes a database


class Left(Exception):
    """Words stay in a file; the message says why."""


def mask(root: Path, paths: Iterable[Path], wanted: Hashes, swap: Swap) -> dict[str, str]:
    """Write masked versions of files to `swap`; return the names of all files, each with why it is left, or ""."""
    told: dict[str, str] = {}
    for path in sorted(set(paths)):
        try:
            _mask(root, path, wanted, swap)
            why = ""
        except Left as left:
            why = str(left)
        except (sqlite3.Error, pa.ArrowException, yaml.YAMLError, ValueError) as error:
            why = f"it cannot be read as what its name says ({type(error).__name__}: {error})"
        told[str(path.relative_to(root))] = why
    return told


def _mask(root: Path, path: Path, wanted: Hashes, swap: Swap) -> None:
    folder = next((one for one in path.parents if (one / ARTIFACT_FILE).exists() and root in one.parents), None)
    if path.name in (*RECORDS, *SEALED):
        _mask_sealed(path, wanted, swap)
        return
    if _is_of_model(root, path) or (folder is not None and not may_be_erased(path.relative_to(folder).as_posix())):
        raise Left("it is part of a model, its scores or a decision")
    if path.suffix in PROGRAMS:
        raise Left("it is a program")
    with open(swap.now(path), "rb") as stream:
        if stream.read(16) == SQLITE:
            _check_database(path, wanted)
            swap.begin.append(lambda stack: _begin_database(path, wanted, stack))
            swap.then.append(lambda: _without_removed_rows(path))
            return
    with swap.overwriting(folder, path.relative_to(folder) if folder else path) as out:
        if path.suffix == ".parquet":
            _mask_rows(swap.now(path), out.stream, wanted)
        else:
            with open(swap.now(path), "rb") as stream, decompressed(stream, path.name) as plain:
                text = plain.read().decode("utf-8")
            if "\0" in text:  # such as a tar, which states how long its members are
                raise Left("it is no text")
            new = masked_text(text, path.name, wanted)
            if new == text:
                raise Left(NAMES)
            if path == root / "tracking" / SPOOL_FILE:
                new = _filled(text, new)
            with compressing(out.stream, path.name) as packed:
                packed.write(new.encode("utf-8"))


def _filled(text: str, new: str) -> str:
    """Return the new lines, filled to the bytes of the old ones: MLflow's writer knows by bytes what it has sent."""
    lines = zip(text.split("\n"), new.split("\n"), strict=True)
    return "\n".join(one + " " * (len(old.encode()) - len(one.encode())) for old, one in lines)


def _is_of_model(root: Path, path: Path) -> bool:
    """Whether a file is a tokenizer's, or lies in or below a folder with weights that no artifact is."""
    if path.name in TOKENIZER_FILES:
        return True
    above = [one for one in path.parents if root in one.parents and not (one / ARTIFACT_FILE).exists()]
    return any(name.name.endswith(WEIGHTS) for one in above for name in one.glob("*"))


# Texts


def masked_text(text: str, name: str, wanted: Hashes) -> str:
    """Return a text without the wanted words, which reads as what it was: JSON, YAML, HTML or plain text.

    `name` is the file's. Raise Left if it would not.
    """
    plain = name.removesuffix(".gz").removesuffix(".zst")
    if _json_in(text) is not None:
        return _masked_json(text, wanted)
    new = masked(text, spans_of(text, wanted))
    if plain.endswith((".yaml", ".yml")) or plain == "MLmodel":
        is_same = _is_alike(*(list(yaml.safe_load_all(one)) for one in (text, new)))
    elif plain.endswith((".html", ".svg", ".xml")) or text[:200].lstrip().lower().startswith(("<!doctype", "<html")):
        is_same = _tags_of(text) == _tags_of(new)
    else:
        is_same = True
    if not is_same:
        raise Left(LEFT_FORM)
    return new


def _json_in(text: str) -> list[Any] | None:
    """Return the objects and lists of JSON, or of lines of JSON, that a text consists of; None for any other text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    with suppress(ValueError, RecursionError):
        return [json.loads(text)]
    try:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return None
    return found if all(isinstance(one, (dict, list)) for one in found) else None


def _masked_json(text: str, wanted: Hashes) -> str:
    """Return JSON without the wanted words in its values; a value that holds JSON itself stays JSON."""
    spans, pieces, at, first = spans_of(text, wanted), [], 0, 0
    for literal in LITERAL.finditer(text):
        start, end = literal.start(), literal.end()
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        inside = [one for one in spans[first : first + end - start] if start < one[0] and one[1] < end]
        if literal["is_key"] or not inside:
            continue
        value = json.loads(literal.group())
        if _json_in(value) is not None:
            new = json.dumps(_masked_json(value, wanted), ensure_ascii=literal.group().isascii())
        else:
            new = masked(literal.group(), [(one - start, two - start) for one, two in inside])
        pieces += [text[at:start], new]
        at = end
    new = "".join([*pieces, text[at:]])
    if not _is_alike(_json_in(text), _json_in(new)):
        raise Left(LEFT_FORM)
    return new


def _is_alike(one: Any, other: Any) -> bool:
    """Whether two values differ at most in their texts, and in these only where none is JSON."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_is_alike, one.values(), other.values()))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_alike, one, other))
    if isinstance(one, str):
        return one == other or _is_alike(_json_in(one), _json_in(other))
    return repr(one) == repr(other)  # NaN is equal to nothing


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attrs]))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(tag)

    def handle_data(self, data: str) -> None:
        if self.cdata_elem:
            self.found.append(data)


def _tags_of(page: str) -> list[Any]:
    """Return the tags of a page with the names of their attributes, and its scripts and styles."""
    tags = _Tags()
    tags.feed(page)
    tags.close()
    return tags.found


def cleaned(text: str, wanted: Hashes) -> str:
    """Return a text without the wanted words; as it is, if it would not stay what it was."""
    with suppress(Left):
        return masked_text(text, "", wanted) if count_in([text], wanted)[0] else text
    return text


def _clean_within(value: Any, wanted: Hashes) -> Any:
    if isinstance(value, dict):
        return {name: _clean_within(one, wanted) for name, one in value.items()}
    if isinstance(value, list):
        return [_clean_within(one, wanted) for one in value]
    return cleaned(value, wanted) if isinstance(value, str) else value


# Records


def _mask_sealed(path: Path, wanted: Hashes, swap: Swap) -> None:
    """Mask the texts in a record or a job, such as the pages that a gate shows; write its checksum again.

    The record says that it replaces the one before, so that references to that one still hold. For whoever does not
    believe it, the takedown notes both digests. A record that is not what its own digest says stays damaged, and
    neither it nor its copy is written over the other.
    """
    fields = read_sealed(path)
    clean = _clean_within(fields, wanted)
    if clean == fields:
        raise Left(NAMES)
    clean.pop("checksum")
    before = record_digest(fields)
    if path.name in RECORDS and fields.get("record_digest") == before:
        clean |= {"replaces": sorted({*clean.get("replaces", ()), before})}
        clean |= {"record_digest": record_digest(clean)}
        swap.records.append(MaskedRecord(folder=path.parent, before=before, after=clean["record_digest"]))
    swap.then.append(partial(write_sealed, path, clean))


# Tables


def _mask_rows(path: Path, out: IO[bytes], wanted: Hashes) -> None:
    """Write a table without the wanted words in its texts; addresses and ids stay. Raise Left if more would differ."""
    with pq.ParquetFile(path) as parquet:
        schema, is_changed = parquet.schema_arrow, False
        with pq.ParquetWriter(out, schema, compression="zstd", compression_level=ZSTD_LEVEL) as writer:
            for number in range(parquet.num_row_groups):
                rows = parquet.read_row_group(number, use_threads=False)
                for place, one in enumerate(schema):
                    if one.name not in ADDRESSES and _has_texts(one.type):
                        texts = rows[one.name].to_pylist()
                        clean = _clean_within(texts, wanted)
                        is_changed |= clean != texts
                        rows = rows.set_column(place, one, pa.array(clean, one.type))
                writer.write_table(rows, row_group_size=max(1, len(rows)))
        if not is_changed:
            raise Left(NAMES)
        out.flush()
        with pq.ParquetFile(out.name) as new:
            is_same = new.schema_arrow.equals(schema, check_metadata=True)
            if not is_same or new.metadata.num_rows != parquet.metadata.num_rows:
                raise Left(LEFT_FORM)
            for name in (one.name for one in schema if one.name in ADDRESSES or not _has_texts(one.type)):
                if not new.read([name]).equals(parquet.read([name])):
                    raise Left(LEFT_FORM)


def _has_texts(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_texts(kind.field(number).type) for number in range(kind.num_fields))
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


# Databases


def _check_database(path: Path, wanted: Hashes) -> None:
    """Raise Left unless a copy of a database has the wanted words in its texts, and is sound without them."""
    copy = temporary_for(path)
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as database, closing(sqlite3.connect(copy)) as other:
            database.backup(other)
            if other.execute(VIRTUAL).fetchone():
                raise Left("it has virtual tables, which keep texts in other places")
            if not (changed := _mask_tables(other, wanted)):
                raise Left(NAMES)
            if other.total_changes != changed:
                raise Left("its triggers change other rows")
            other.commit()
            if other.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                raise Left(LEFT_FORM)
    finally:
        copy.unlink(missing_ok=True)


def _begin_database(path: Path, wanted: Hashes, stack: ExitStack) -> Commit:
    """Mask the texts of a database in a transaction; return what ends it. Without that it is undone."""
    database = stack.enter_context(closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)))
    database.execute("PRAGMA secure_delete = ON")
    database.execute("BEGIN IMMEDIATE")
    _mask_tables(database, wanted)
    return lambda: database.execute("COMMIT")


def _without_removed_rows(path: Path) -> None:
    """Write a database again, so that removed rows do not stay in its file."""
    with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as database:
        database.execute("PRAGMA secure_delete = ON")
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _mask_tables(database: sqlite3.Connection, wanted: Hashes) -> int:
    """Mask the texts of a database; return how many values changed, without those that triggers change."""
    database.create_function("cleaned", 1, partial(cleaned, wanted=wanted))
    changed = 0
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        name = in_sql(table)
        for column in [in_sql(row[1]) for row in database.execute(f"PRAGMA table_info({name})")]:
            is_text = f"typeof({column}) = 'text' AND cleaned({column}) IS NOT {column}"
            changed += database.execute(f"UPDATE {name} SET {column} = cleaned({column}) WHERE {is_text}").rowcount
    return changed


def texts_of_program() -> Iterator[list[str]]:
    """Yield the text of each source file and template: a run of words that stands in one may be the program's own."""
    place = Path(__file__).parents[3]
    for package in ("assets", "evaluation", "resources", "training"):
        for path in sorted((place / package).rglob("*")):
            if path.suffix in (".py", ".j2", ".yaml"):
                yield [path.read_text("utf-8")]

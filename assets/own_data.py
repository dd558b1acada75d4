"""The recipe that `pedigree init` writes for a folder or URL of documents."""

from __future__ import annotations

import re
from pathlib import Path

from training.data.look import OwnData, counted, look_at
from training.job import DataError
from training.names import check_name
from training.recipes import refuse_secrets
from training.records import RecipeError

CRAWL_ID = re.compile(r"CC-MAIN-\d{4}-\d{2}")
MANY_FILES = 256
TOGETHER_BYTES = 16_000_000  # of files that are extracted together, if they are many and small
SMALL_BYTES = 50_000_000  # of files, below which a model of one million weights is proposed


def recipe_for(place: str, name: str, file: str) -> str:
    """Return the text of a recipe, an extension of the recipe `base`, that reads the documents at `place`.

    `place` is a path, a URL or the id of a crawl of Common Crawl; `file` is the name under which the text is saved.
    """
    if CRAWL_ID.fullmatch(place):
        found = OwnData(source="commoncrawl", snapshots=(), files=1, bytes=1_000_000_000)
        snapshots = [f"{{name: {place.lower()}, source: commoncrawl, crawl: {place}, num_files: 1}}"]
        said = "the first of some 90,000 files, about 1 GB; for many add archives: referenced"
    else:
        found = look_at(place)
        snapshots = [_snapshot(found, paths, f"{name}-{number}") for number, paths in enumerate(found.snapshots, 1)]
        said = f"{counted(found.files)}, {_size(found.bytes)}"
    return "".join(f"{line}\n" for line in _lines(place, name, file, found, snapshots, said))


def name_of(place: str) -> str:
    """Return a recipe's name made of the last part of a path or URL."""
    last = re.split(r"[/\\]", place.rstrip("/\\"))[-1].partition(".")[0]
    return re.sub(r"[^a-z0-9-]+", "-", last.lower()).strip("-") or "own"


def write_recipe(place: str, name: str, output: Path | None) -> Path:
    """Write the recipe for a place and return its file: `output`, or NAME.yaml here.

    Raise RecipeError if the file exists, or if the place holds a secret.
    """
    refuse_secrets({"PLACE": place})
    name = name or name_of(place)
    check_name(name, "--name")
    file = output or Path(f"{name}.yaml")
    if file.exists():
        raise RecipeError(f"{file} exists; choose another name with --name or another file with --output")
    if not file.parent.is_dir():
        raise DataError(f"{file.parent}: no such folder")
    file.write_text(recipe_for(place, name, str(file)), "utf-8")
    return file


def _snapshot(found: OwnData, paths: tuple[str, ...], name: str) -> str:
    """Return the recipe's entry for a snapshot as YAML; column names are written only if they are not the defaults."""
    listed = ", ".join(map(_quoted, paths))
    columns = {"text_field": found.text_field, "url_field": found.url_field, "tokenizer": found.tokenizer}
    defaults = {"text_field": "text", "url_field": "url", "tokenizer": ""}
    named = "".join(f", {field}: {_quoted(value)}" for field, value in columns.items() if value != defaults[field])
    return f"{{name: {name}, source: {found.source}, paths: [{listed}]{named}}}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _lines(place: str, name: str, file: str, found: OwnData, snapshots: list[str], said: str) -> list[str]:
    """Return the lines of the recipe that `pedigree init` writes.

    Sizes of tokenizer, model and batch depend on whether there is little text or much.
    """
    languages = ", ".join(found.languages or ("en",))
    seen = f"the languages of {found.samples} texts" if found.languages else "no text was looked at; is it English?"
    sizes = [
        _line("tokenizer: {vocabulary: 2048, min_bytes_per_token: 1.5}", "for little text"),
        _line("model: {preset: 1m}", "one million weights; base has ten"),
        _line("pretrain: {sequence_length: 256, global_batch_tokens: 2048}", "tokens: auto"),
    ]
    if found.bytes >= SMALL_BYTES:
        sizes = [
            _line("model: {preset: 10m}", "others: 1m, 3m, 30m, 100m, 300m"),
            _line("pretrain: {compute_budget: 1.0e+14}", "FLOPs, which limit tokens: auto"),
        ]
    cleaning = [_line(f"filter: {{languages: [{languages}]}}", seen)]
    if found.tokenizer:
        cleaning = [
            _line("filter: {rules: []}", "filtered before; rules: docs/filters.md"),
            _line(f"adopt: {{tokenizer: {_quoted(found.tokenizer)}}}", "the vocabulary of the shards"),
        ]
        sizes = [line for line in sizes if not line.startswith("tokenizer:")]
    if found.files >= MANY_FILES and found.bytes < found.files * TOGETHER_BYTES // 2:
        cleaning.append(_line(f"extract: {{min_file_bytes: {TOGETHER_BYTES}}}", "small files together"))
    return [
        f"# {place}, written by `pedigree init`. Run it: pedigree run {file}",
        _line("extends: base", f"FineWeb's filters; all fields: pedigree show {file}"),
        f"name: {name}",
        _line("snapshots:", f"{said}; a later crawl is one more line"),
        *(f"  - {snapshot}" for snapshot in snapshots),
        *cleaning,
        *sizes,
        "# The base model is promoted. Exams: evaluation.suites. A chat model: sft.data.",
        *(f"# {note}." for note in found.notes),
    ]


def _line(text: str, comment: str) -> str:
    return f"{text}  # {comment}"


def _size(num_bytes: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000 or unit == "GB":
            return f"{num_bytes:.0f} {unit}"
        num_bytes //= 1000
    raise AssertionError

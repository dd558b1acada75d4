"""The recipe that `pedigree init` writes for a folder or URL of documents."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from training.contract.job import DataError
from training.contract.records import RecipeError
from training.contract.user_input.names import check_name
from training.data.crawl.folder import ending_of
from training.data.look import OwnData, OwnPlace, counted, good_rows, look_at
from training.posttrain.rows.forms import CONVERSATION_READERS, PREFERENCE_READERS
from training.posttrain.rows.given import SEEN_ROWS, fitting
from training.posttrain.source_settings import TextSourceRecipe
from training.recipe.recipes import refuse_secrets

# Where source code is read, C4's rules keep its lines, and limits for prose do not ask it for sentences. They are the
# settings of the recipe webdocs, with wider limits for files that are nothing but code.
KEEPING_CODE = (
    "c4_drop_curly_brackets: false, c4_drop_citations: false, c4_drop_javascript_lines: false",
    "c4_strip_lines: false, c4_min_words_per_line: null, c4_min_sentences: 0",
)
LIMITS_OF_CODE = (
    "min_language_score: 0.0, fineweb_min_line_punctuation: 0.0, fineweb_max_short_lines: 1.0",
    "fineweb_max_newline_ratio: 1.0, fineweb_max_duplicate_characters: 1.0, gopher_max_mean_word_length: 0.0",
    "gopher_max_symbol_ratio: 0.0, gopher_min_alphabetic_fraction: 0.0, gopher_min_stop_words: 0",
    "gopher_max_duplicate_lines: 1.0, gopher_max_duplicate_line_characters: 1.0",
    "gopher_max_top_ngrams: [1.0, 1.0, 1.0], gopher_max_duplicate_ngrams: [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]",
)
CRAWL_ID = re.compile(r"CC-MAIN-\d{4}-\d{2}")
MANY_FILES = 16
TOGETHER_BYTES = 16_000_000  # of files that are extracted together, if they are many and small
MOST_ENDINGS = 40  # that are listed for each reason
SMALL_BYTES = 50_000_000  # of files, below which a model of one million weights is proposed


def recipe_for(place: str, name: str, file: str, model: str = "") -> str:
    """Return the text of a recipe, an extension of the recipe `base`, that reads the data at `place`.

    `place` is a path, a URL or the id of a crawl of Common Crawl; `file` is the name under which the text is saved;
    `model` is the folder of a model to begin with. Raise DataError for conversations alone without a model.
    """
    if CRAWL_ID.fullmatch(place):
        found = OwnPlace(data=(OwnData(source="commoncrawl", snapshots=(), files=1, bytes=1_000_000_000),))
        snapshots = [f"{{name: {place.lower()}, source: commoncrawl, crawl: {place}, num_files: 1}}"]
        said = "the first of some 90,000 files, about 1 GB; for many add archives: referenced"
    else:
        found = look_at(place)
        if not found.data and not model:
            raise DataError(
                f"{place}: {counted(len(found.talks))} of conversations or pairs, and no documents to pretrain on;"
                " name a model to train on them: --model FOLDER, as `hf download` makes it"
            )
        listed = [(one, paths) for one in found.data for paths in one.snapshots]
        snapshots = [_snapshot(one, paths, f"{name}-{number}") for number, (one, paths) in enumerate(listed, 1)]
        said = f"{counted(found.files)}, {_size(found.bytes)}"
    lines = _lines(place, name, file, found, snapshots, said, model)
    return "".join(f"{_printable(line)}\n" for line in lines)


def _printable(line: str) -> str:
    """Return a line with the escapes of Python, which YAML reads in quotes, for all that would not stay in the line."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)


def name_of(place: str) -> str:
    """Return a recipe's name made of the last part of a path or URL."""
    last = re.split(r"[/\\]", place.rstrip("/\\"))[-1].partition(".")[0]
    return re.sub(r"[^a-z0-9-]+", "-", last.lower()).strip("-") or "own"


def write_recipe(place: str, name: str, output: Path | None, model: Path | None = None) -> Path:
    """Write the recipe for a place and return its file: `output`, or NAME.yaml here.

    Raise RecipeError if the file exists, or if the place holds a secret. Raise DataError if `model` is no folder.
    """
    if model and not (model / "config.json").is_file():
        raise DataError(f"--model {model}: no folder with a config.json, as hf download makes it")
    refuse_secrets({"PLACE": place})
    name = name or name_of(place)
    check_name(name, "--name")
    file = output or Path(f"{name}.yaml")
    if not file.parent.is_dir():
        raise DataError(f"{file.parent}: no such folder")
    there = RecipeError(f"{file} exists; choose another name with --name or another file with --output")
    if os.path.lexists(file):
        raise there
    text = recipe_for(place, name, str(file), str(model.resolve()) if model else "")
    try:
        with open(file, "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:  # it has come meanwhile
        raise there from None
    except PermissionError as error:
        raise DataError(f"{file}: {error.strerror}") from None
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


def _lines(
    place: str, name: str, file: str, found: OwnPlace, snapshots: list[str], said: str, model: str
) -> Iterator[str]:
    """Yield the lines of the recipe that `pedigree init` writes."""
    yield f"# {place}, written by `pedigree init`. Run it: pedigree run {file}"
    yield _line("extends: base", f"FineWeb's filters; all fields: pedigree show {file}")
    yield f"name: {name}"
    if model:
        yield f"adopt: {{model: {_quoted(model)}}}"
        yield _line("evaluation: {tolerate_unknown: [exams, adopted_model]}", "nobody can scan the model's own texts")
    if snapshots:
        yield _line("snapshots:", f"{said}; a later crawl is one more line")
        yield from (f"  - {snapshot}" for snapshot in snapshots)
        yield from _cleaning(found, with_model=bool(model))
        yield from _sizes(found, with_model=bool(model))
    talks = _talks(found.talks)
    for section, entries in talks.items():
        yield from (f"{section}:", "  data:", *(f"    - {entry}" for entry in entries))
    ends = "aligned" if "preferences" in talks else "fine-tuned" if talks else "base"
    yield f"# The {ends} model is promoted. Exams: evaluation.suites." + ("" if talks else " A chat model: sft.data.")
    yield from _accounts(found)


def _cleaning(found: OwnPlace, *, with_model: bool) -> list[str]:
    """Return the lines that say which documents are kept, and how files are read together."""
    languages = ", ".join(found.languages or ("en",))
    seen = f"the languages of {found.samples} texts" if found.languages else "no language was certain; is it English?"
    if found.doubtful:
        seen += f"; in few texts: {', '.join(f'{code} {number}' for code, number in found.doubtful.items())}"
    lines = _filter(found, languages, seen)
    if tokenizer := found.data[0].tokenizer:
        lines = [_line("filter: {rules: []}", "filtered before; rules: docs/filters.md")]
        if not with_model:
            lines.append(_line(f"adopt: {{tokenizer: {_quoted(tokenizer)}}}", "the vocabulary of the shards"))
    if found.files >= MANY_FILES and found.bytes < found.files * TOGETHER_BYTES // 2:
        lines.append(_line(f"extract: {{min_file_bytes: {TOGETHER_BYTES}}}", "small files together"))
    return lines


def _sizes(found: OwnPlace, *, with_model: bool) -> list[str]:
    """Return the recipe's lines for vocabulary, model and batch size: small ones where there is little text."""
    if found.bytes >= SMALL_BYTES:
        model = _line("model: {preset: 10m}", "others: 1m, 3m, 30m, 100m, 300m")
        budget = _line("pretrain: {compute_budget: 1.0e+14}", "FLOPs, which limit tokens: auto")
        return [budget] if with_model else [model, budget]
    lines = [
        _line("tokenizer: {vocabulary: 2048, min_bytes_per_token: 1.5}", "for little text"),
        _line("model: {preset: 1m}", "one million weights; base has ten"),
        _line("pretrain: {sequence_length: 256, global_batch_tokens: 2048}", "tokens: auto"),
    ]
    return lines[2:] if with_model else lines[1:] if found.data[0].tokenizer else lines


def _talks(files: Sequence[str]) -> dict[str, list[str]]:
    """Return the entries of `sft.data` and `preferences.data` for files, by section.

    Each has the format with which most of the file's first rows are read.
    """
    entries: dict[str, list[str]] = {}
    for file in files:
        rows = list(islice(good_rows(file), SEEN_ROWS))
        is_pair = any({"chosen", "rejected"} <= row.keys() or {"completion", "label"} <= row.keys() for row in rows)
        section, readers = ("preferences", PREFERENCE_READERS) if is_pair else ("sft", CONVERSATION_READERS)
        source = TextSourceRecipe(uri=file, format="chosen_rejected" if is_pair else "messages")
        settings = fitting(rows, source, readers)
        first = "" if settings.startswith("format") else f", format: {source.format}"
        entries.setdefault(section, []).append(f"{{uri: {_quoted(file)}{first}{settings and f', {settings}'}}}")
    if entries and "sft" not in entries:  # a pair's chosen answer is an answer to learn
        entries["sft"] = [one for one in entries["preferences"] if "format: unpaired" not in one]
    return {section: entries[section] for section in ("sft", "preferences") if entries.get(section)}


def _accounts(found: OwnPlace) -> list[str]:
    """Return the comments that count every file of the place by its ending: those that are read, and the others."""
    read: Counter[str] = Counter(map(ending_of, found.talks))
    for one in found.data:
        read.update(one.endings)
    reasons: dict[str, Counter[str]] = {}
    for (why, ending), number in found.left.items():
        reasons.setdefault(why, Counter())[ending] += number
    lines = [f"# Read: {_listed(read)}."] if read else []
    for why, endings in sorted(reasons.items(), key=lambda one: -one[1].total()):
        lines.append(f"# Not read, {why}: {_listed(endings)}.")
    return lines


def _listed(endings: Counter[str]) -> str:
    named = [f"{number} {ending or 'without ending'}" for ending, number in endings.most_common(MOST_ENDINGS)]
    others = endings.total() - sum(number for _, number in endings.most_common(MOST_ENDINGS))
    return ", ".join(named + ([f"{others} of {len(endings) - MOST_ENDINGS} other endings"] if others else []))


def _filter(found: OwnPlace, languages: str, seen: str) -> list[str]:
    """Return the lines of the section `filter`: the languages, and what keeps source code where there is any."""
    if not found.has_markup:
        return [_line(f"filter: {{languages: [{languages}]}}", seen)]
    return [
        "filter:",
        _line(f"  languages: [{languages}]", seen),
        *(f"  {pair}" for part in KEEPING_CODE for pair in part.split(", ")),
        _line("  by_kind:", "marks of Markdown are no words, and source code is no prose"),
        "    prose: {gopher_min_alphabetic_fraction: 0.6}",
        "    code:",
        *(f"      {pair}" for part in LIMITS_OF_CODE for pair in re.split(r", (?=[a-z])", part)),
    ]


def _line(text: str, comment: str) -> str:
    return f"{text}  # {comment}"


def _size(num_bytes: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000 or unit == "GB":
            return f"{num_bytes:.0f} {unit}"
        num_bytes //= 1000
    raise AssertionError

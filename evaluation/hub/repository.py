"""Lay out a model or a corpus as a repository of a model hub: files that transformers and datasets load, and a card."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evaluation.hub.card import licence_fields, one_line
from evaluation.hub.costs import cost_table, emissions_of
from evaluation.hub.exam_results import write_results
from evaluation.hub.forms import croissant, cyclonedx, spdx
from evaluation.hub.forms.bill import ModelBill, as_json, bill_of
from evaluation.hub.forms.training_summary import SUMMARY_FILE
from evaluation.hub.sourced import as_markdown
from evaluation.hub.training_content import CONTENT_FILE, DOMAINS_FILE
from evaluation.report.truth_comparison import Record, sound
from training.contract.artifact import Artifact, sha256_of, write_json, write_text
from training.contract.files.stored_root import is_here
from training.contract.job import DataError, InputArtifact
from training.contract.records import read_record
from training.contract.scopes import QUANTIZED_MODEL, kept_in_words, whole_in_words
from training.contract.tables import markdown_table
from training.contract.tokenizer_files import CONFIG_FILE
from training.data.documents import ROWS_PER_GROUP, ZSTD_LEVEL, document_files, read_tables
from training.generate.chat_template import TEMPLATE_FILE
from training.generate.turns import END, END_OF_TEXT, ROLE_TOKENS
from training.recipe.recipe import Recipe
from training.recipe.settings.provider import ProviderRecipe

MODEL_FOLDER = "model"
ORIGIN_FILE = "pedigree.json"
LICENCES_FILE = "LICENCES.md"
CORPUS_SENTENCE = (
    "Documents that the recipe keeps in extraction, filtering, deduplication and decontamination, with the columns of"
    " FineWeb."
)
OF_STEPS = "> These are {}. What follows is said of the recipe's last model."
CARD_FILES = (CONTENT_FILE, DOMAINS_FILE, SUMMARY_FILE)

ANSWER = {
    "defaults": {"role": "assistant"},
    "start_anchor": ROLE_TOKENS["assistant"],
    "fields": {"content": {"close": [END, END_OF_TEXT], "content": "text"}},
}
"""How transformers 5 takes the answer out of what a model with our chat template writes (`response_template`).

Without it `transformers serve` guesses by `model_type`, and begins the answer with the prompt.
"""

FINEWEB_SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("id", pa.string()),
        ("dump", pa.string()),
        ("url", pa.string()),
        ("date", pa.string()),
        ("file_path", pa.string()),
        ("language", pa.string()),
        ("language_score", pa.float64()),
        ("token_count", pa.int64()),
    ]
)
"""FineWeb's columns. `dump` is the snapshot, `file_path` the archive file; the id ends in the offset in this file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """One snapshot of a corpus: its documents and the token shards made of them."""

    name: str
    documents: InputArtifact
    shards: InputArtifact


def new_folder(target: Path) -> Path:
    """Return `target`, made if necessary. Raise DataError if it holds anything: nothing is overwritten."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target}: exists and is not an empty folder; choose another")
    target.mkdir(parents=True, exist_ok=True)
    return target


def export_model(
    model: Artifact,
    card: Artifact,
    snapshots: Sequence[Snapshot],
    sources: Iterable[str],
    target: Path,
    *,
    scores: Artifact | None,
    behind: Sequence[Record] = (),
) -> list[str]:
    """Write a model with tokenizer and chat template, its card, its origin and the licences of its data to `target`.

    `sources` are the URIs of instructions and preferences; `scores` is None for a recipe without exams; `behind` are
    the artifacts whose cost follows the card. Return the names of the files, relative to `target`. All files of the
    model are those of its artifact, except that the tokenizer's configuration also says how an answer is taken out of
    the text.
    """
    new_folder(target)
    files = checked_files(model)
    for name, entry in files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model.path / entry["path"], target / name)
    page = sound(card.path, card.record, "README.md").read_text("utf-8")
    if of_steps := _of_steps(model.record):
        page = page.replace("\n---\n\n", f"\n---\n\n{OF_STEPS.format(of_steps)}\n\n", 1)  # after the front matter
    write_text(target / "README.md", _with_cost(page, card, behind) if behind else page)
    for extra in CARD_FILES:
        if card.file(extra).is_file():
            shutil.copyfile(sound(card.path, card.record, extra), target / extra)
    if (target / TEMPLATE_FILE).is_file():
        config = json.loads((target / CONFIG_FILE).read_text("utf-8"))
        write_json(target / CONFIG_FILE, config | {"response_template": ANSWER})
    if scores is not None:
        sound(scores.path, scores.record)
        write_results(scores, model.digest, target)
    record = model.record
    write_json(
        target / ORIGIN_FILE,
        {name: record[name] for name in ("recipe", "asset", "fingerprint", "digest", "code_revision")}
        | {"record_digest": model.record_digest, "card": card.digest},
    )
    write_text(target / LICENCES_FILE, _licences_page(snapshots, sources))
    if behind:
        sums = {name: sha256_of(target / name) for name, _ in files}  # one of them was changed above
        _write_bills(bill_of(model, card, behind, sums, scores), target)
    return _names(target)


def _of_steps(record: Mapping[str, Any]) -> str:
    """Return what a kept step, an average of such, or a quantized model is made of; empty for another model."""
    if kept := kept_in_words(record.get("settings", {})):
        return f"the weights after {kept} of the {whole_in_words(record['asset'])}"
    if record["asset"] == QUANTIZED_MODEL:
        return f"the weights of the {whole_in_words(record['notes']['parent']['asset'])} by {record['notes']['method']}"
    shares = record.get("notes", {}).get("shares", {})
    return f"the means of the weights after steps {', '.join(shares)} of the base model" if shares else ""


def _with_cost(page: str, card: Artifact, behind: Sequence[Record]) -> str:
    """Return the card's page with what the model took, and with the emissions of measured energy if they are known."""
    from huggingface_hub import ModelCard

    provider = read_record(Recipe, card.record["settings"]["recipe"], where="recipe").provider
    if emissions := emissions_of(provider, [record for _, record in behind]):
        changed = ModelCard(page)
        changed.data["co2_eq_emissions"] = emissions
        page = changed.content
    return f"{page}\n## What it took\n\n{as_markdown(cost_table(behind), one_line)}"


def _write_bills(bill: ModelBill, target: Path) -> None:
    """Write what a model consists of and was made from in the forms CycloneDX and SPDX."""
    write_text(target / cyclonedx.FILE, as_json(cyclonedx.document_of(bill)))
    write_text(target / spdx.FILE, as_json(spdx.document_of(bill, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))))


def checked_files(model: Artifact) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the names of a model's files with their entries in its record, after reading every byte of them."""
    found = []
    for entry in model.record["files"]:
        folder, _, name = entry["path"].partition("/")
        if folder == MODEL_FOLDER:
            _check(model.path / entry["path"], entry)
            found.append((name, entry))
    return found


def export_corpus(
    snapshots: Sequence[Snapshot], recipe: str, target: Path, *, provider: ProviderRecipe | None = None
) -> list[str]:
    """Write the documents of some snapshots with FineWeb's columns to `target`, and a card; return the files' names.

    Each snapshot is a folder `data/<snapshot>` and a configuration of its own. Documents without tokens in the shards
    raise DataError.
    """
    new_folder(target)
    rows = {one.name: _write_snapshot(one, target / "data" / one.name) for one in snapshots}
    write_text(target / LICENCES_FILE, _licences_page(snapshots, ()))
    stated = provider or ProviderRecipe()
    write_text(target / "README.md", _data_card(recipe, rows, snapshots, stated.corpus_licence))
    description = croissant.document_of(
        recipe,
        CORPUS_SENTENCE,
        {name: ((target / name).stat().st_size, sha256_of(target / name)) for name in _names(target / "data", target)},
        FINEWEB_SCHEMA,
        stated,
        digests=[one.documents.digest for one in snapshots],
        day=time.strftime("%Y-%m-%d", time.gmtime()),
    )
    write_text(target / croissant.FILE, as_json(description))
    return _names(target)


def _check(path: Path, entry: Mapping[str, Any]) -> None:
    """Raise DataError if a file is not the one that its artifact's record lists."""
    if not is_here(path, entry["sha256"]) or sha256_of(path) != entry["sha256"]:
        raise DataError(f"{entry['path']}: its checksum is not that of the record; `pedigree verify RECIPE` says more")


def _names(folder: Path, target: Path | None = None) -> list[str]:
    """Return the names of all files in a folder, relative to `target`, by default to the folder itself."""
    return sorted(str(path.relative_to(target or folder)) for path in folder.rglob("*") if path.is_file())


# A corpus


def _write_snapshot(snapshot: Snapshot, folder: Path) -> dict[str, int]:
    """Write one parquet file for each document file, row group by row group; return the numbers of rows and tokens."""
    folder.mkdir(parents=True)
    counts = _token_counts(snapshot.shards)
    total = {"documents": 0, "tokens": 0}
    files = document_files(snapshot.documents)
    entries = {entry["path"]: entry for entry in snapshot.documents.record()["files"]}
    for number, file in enumerate(files):
        _check(file, entries[str(file.relative_to(snapshot.documents.path))])
        name = folder / f"{number:05d}-of-{len(files):05d}.parquet"
        with pq.ParquetWriter(name, FINEWEB_SCHEMA, compression="zstd", compression_level=ZSTD_LEVEL) as writer:
            for table in read_tables(file):
                made = _fineweb_table(table, counts)
                writer.write_table(made, row_group_size=ROWS_PER_GROUP)
                total["documents"] += len(made)
                total["tokens"] += sum(made["token_count"].to_pylist())
    return total


def _fineweb_table(table: pa.Table, counts: Mapping[str, int]) -> pa.Table:
    ids = table["id"].to_pylist()
    if missing := [id_ for id_ in ids if id_ not in counts]:
        raise DataError(f"{missing[0]}: has no tokens in the shards of its snapshot; materialize token_shards again")
    columns = {
        **{name: table[name] for name in ("text", "id", "url", "date", "language", "language_score")},
        "dump": table["snapshot"],
        "file_path": table["warc_file"],
        "token_count": pa.array([counts[id_] for id_ in ids], pa.int64()),
    }
    return pa.table([columns[name] for name in FINEWEB_SCHEMA.names], names=FINEWEB_SCHEMA.names).cast(FINEWEB_SCHEMA)


def _token_counts(shards: InputArtifact) -> dict[str, int]:
    """Return the number of tokens of each document of a snapshot, by id, with its end-of-text token."""
    counts: dict[str, int] = {}
    for entry in shards.record()["files"]:
        if entry["path"].endswith(".documents.parquet"):
            table = pq.read_table(shards.file(entry["path"]), columns=["id", "tokens"])
            counts.update(zip(table["id"].to_pylist(), table["tokens"].to_pylist(), strict=True))
    return counts


def _data_card(
    recipe: str, rows: Mapping[str, Mapping[str, int]], snapshots: Sequence[Snapshot], licence: str | None
) -> str:
    """Return the card of a data set: the configurations in the form that `datasets` reads, and what the columns are."""
    import yaml

    languages = sorted({code for one in snapshots for code in _column(one, "language") if code})
    everything = {"config_name": "default", "data_files": [{"split": "train", "path": "data/*/*.parquet"}]}
    each = [
        {"config_name": name, "data_files": [{"split": "train", "path": f"data/{name}/*.parquet"}]} for name in rows
    ]
    front = {
        **licence_fields(licence),
        "language": languages,
        "task_categories": ["text-generation"],
        "configs": [everything, *each],
    }
    counted = [(name, f"{n['documents']:,}", f"{n['tokens']:,}") for name, n in rows.items()]
    table = "\n".join(markdown_table(("snapshot", "documents", "tokens"), counted))
    return (
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n# {one_line(recipe)}\n\n{CORPUS_SENTENCE} `dump` is the"
        " snapshot, `file_path` the archive file, and an id ends in the offset of the record in this file."
        " `token_count` is by the recipe's own tokenizer, with the end-of-text token.\n\n"
        f"{table}\n\nThe texts belong to their authors;"
        f" [{LICENCES_FILE}]({LICENCES_FILE}) counts the licences that pages state.\n"
    )


# Licences


def _licences_page(snapshots: Sequence[Snapshot], sources: Iterable[str]) -> str:
    """Return how many documents of each snapshot state which licence, and the other data that were trained on."""
    lines = ["# Licences of the data", ""]
    lines += ["Licences that the pages state themselves; most pages state none.", ""]
    rows = []
    for one in snapshots:
        counts = Counter(stated or "none stated" for stated in _column(one, "licence"))
        rows += [(one.name, one_line(name), f"{number:,}") for name, number in counts.most_common()]
    lines += markdown_table(("snapshot", "licence", "documents"), rows)
    if others := sorted(set(sources)):
        lines += ["", "Instructions and preferences, whose licences are those of their publishers:", ""]
        lines += [f"- {one_line(uri)}" for uri in others]
    return "\n".join(lines) + "\n"


def _column(snapshot: Snapshot, name: str) -> Iterator[str]:
    """Yield the values of a text column of all documents."""
    for file in document_files(snapshot.documents):
        for table in read_tables(file, [name]):
            yield from (value or "" for value in table[name].to_pylist())

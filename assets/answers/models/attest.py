"""`pedigree attest` and `pedigree verify --signature`: say what a model was made from, sign it, and check both."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assets.answers.trace.trace import MODELS, meant, versions_of
from assets.registry.kept_digests import check_witnessed, only_found
from assets.state.tombstones import is_masked
from assets.terminal.standard_error import say
from evaluation.hub import attestation, signature
from evaluation.hub.repository import MODEL_FOLDER, checked_files, new_folder
from resources.tracking.reports import Tracking
from training.contract.artifact import Artifact, write_json, written
from training.contract.files.checksums import at_once
from training.contract.job import DataError
from training.contract.user_input.places import local_path
from training.data.checksum_cache import known_under
from training.provenance.lineage import Lineage, lineage_of

SIGNING_KEY, PASSWORD, PUBLIC_KEY = "PEDIGREE_SIGNING_KEY", "PEDIGREE_SIGNING_PASSWORD", "PEDIGREE_PUBLIC_KEY"
OWN_FILES = (attestation.STATEMENT_FILE, attestation.ENVELOPE_FILE, signature.SIGNATURE_FILE)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a check of signatures found: what was compared, and a sentence for each thing that differs."""

    files: int
    records: int
    problems: Sequence[str]


def attest(model: str, folder: Path, *, root: Path, tracking: Tracking, key: Path | None) -> list[str]:
    """Write the attestation of a model under a root to `folder`, and return the names of the files.

    With a key, also sign the attestation and the model's files. Raise DataError if the model or anything behind it was
    removed or changed, or if the key cannot be used; then nothing is written.
    """
    check_key(key)
    made = model_named(model, root, tracking)
    statement = statement_about(lineage_of(root, made), root, tracking)
    new_folder(folder)
    return write_attestation(statement, made.file(MODEL_FOLDER), folder, key)


def statement_about(lineage: Lineage, root: Path, tracking: Tracking) -> dict[str, Any]:
    """Return the statement about a model under a root, after reading every byte of the model.

    What no store saw being made is said, and which store was not asked. Raise DataError if the model or anything behind
    it was removed or changed.
    """
    made = lineage.last.made
    if made is None:
        raise DataError(lineage.last.problem)
    if unasked := check_witnessed(lineage, root, tracking, all_told=True):
        say(unasked)
    return _statement_of(lineage, {name: entry["sha256"] for name, entry in checked_files(made)}, root, tracking)


def attested_export(lineage: Lineage, folder: Path, key: Path | None, root: Path, tracking: Tracking) -> list[str]:
    """Write the attestation of an exported model into its folder, and sign the folder if a key is given."""
    statement = _statement_of(lineage, attestation.files_of(folder), root, tracking)
    return write_attestation(statement, folder, folder, key)


def _statement_of(lineage: Lineage, files: Mapping[str, str], root: Path, tracking: Tracking) -> dict:
    """Return the statement about a model, after saying what of it no store saw being made."""
    statement = attestation.statement_of(lineage, files, only_found(lineage, root, tracking))
    _say_found(statement)
    return statement


def _say_found(statement: Mapping[str, Any]) -> None:
    if found := attestation.found_in(statement):
        say([f"attested as found, because neither Dagster nor MLflow knew of a run that made it: {', '.join(found)}"])


def write_attestation(statement: dict, model: Path, folder: Path, key: Path | None) -> list[str]:
    """Write a statement to `folder` and, with a key, its envelope and the signature over the folder `model`."""
    payload = attestation.as_bytes(statement)
    with written(folder / attestation.STATEMENT_FILE) as stream:
        stream.write(payload)
    if key is None:
        return [attestation.STATEMENT_FILE]
    password = os.environ.get(PASSWORD)
    write_json(
        folder / attestation.ENVELOPE_FILE,
        attestation.envelope_of(payload, signature.private_key(key, password)),
    )
    signature.sign(model, folder / signature.SIGNATURE_FILE, key, password)
    return list(OWN_FILES)


def check_key(key: Path | None) -> None:
    """Raise DataError if a key is given and cannot sign."""
    if key is not None:
        signature.check_installed()
        signature.private_key(key, os.environ.get(PASSWORD))


def key_named(given: Path | None, variable: str) -> Path | None:
    """Return the path of a key: the one given, or the one in an environment variable; None if there is neither."""
    named = os.environ.get(variable, "")
    return given or (local_path(named, variable) if named else None)


def checked(model: str, folder: Path, *, root: Path, tracking: Tracking, key: Path | None) -> Answer:
    """Check the signatures in `folder` of a model, which is a name as in `pedigree trace`, or an exported folder.

    Of a named model every record must be under the root. Of a folder those are compared that are there.
    """
    if key is None:
        raise DataError(f"verify: --signature needs a public key, by --public-key or as a path in {PUBLIC_KEY}")
    signature.check_installed()
    public = signature.public_key(key)
    is_folder = Path(model).is_dir()
    place = Path(model) if is_folder else model_named(model, root, tracking).file(MODEL_FOLDER)
    problems = signature.problems(place, folder / signature.SIGNATURE_FILE, key)
    try:
        payload = attestation.payload_of(_envelope(folder), public)
        statement = attestation.read_statement(payload)
    except DataError as error:
        return Answer(0, 0, [*problems, str(error)])
    plain = folder / attestation.STATEMENT_FILE
    if not plain.is_file() or plain.read_bytes() != payload:
        problems.append(f"{attestation.STATEMENT_FILE}: is not the statement that was signed")
    problems += attestation.changed_files(statement, place, *(OWN_FILES if place.samefile(folder) else ()))
    _say_found(statement)
    same, changed = attestation.changed_records(statement, root, all_here=not is_folder, is_masked=is_masked)
    return Answer(len(statement["subject"]) - 1, same, [*problems, *changed])


def _envelope(folder: Path) -> object:
    import json

    path = folder / attestation.ENVELOPE_FILE
    try:
        with open(path, "rb", opener=at_once) as stream:
            return json.loads(stream.read())
    except FileNotFoundError:
        raise DataError(f"{attestation.ENVELOPE_FILE}: is not in {folder}; it was removed, or never signed") from None
    except ValueError:
        raise DataError(f"{attestation.ENVELOPE_FILE}: is no JSON") from None


def model_named(name: str, root: Path, tracking: Tracking) -> Artifact:
    """Return the model that a name means. Raise DataError for anything that is no model."""
    with known_under(root):
        made = meant(name, root, versions_of(tracking)).made
    if len(made) != 1 or made[0].record["asset"] not in MODELS:
        raise DataError(f"{name}: is no model; an attestation is about one of {', '.join(MODELS)}")
    return made[0]

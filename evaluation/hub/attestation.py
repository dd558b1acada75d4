"""A model's attestation: an in-toto Statement over the digests of everything that the model was made from.

The predicate is SLSA's provenance v1 (https://slsa.dev/spec/v1.0/provenance): the subject is the model with its files,
the dependencies are all artifacts behind it, from the crawl on, each by the digest of its files and of its record. The
statement holds no time, no path and no name of a machine, so equal records give equal bytes. No SLSA level is claimed:
these levels are about the isolation of a builder.

A signed attestation is a DSSE envelope (https://github.com/secure-systems-lab/dsse) around the statement's bytes.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.contract import artifact
from training.contract.artifact import Artifact, Damaged, canonical_json, find, folder_of, sha256_of
from training.contract.job import DataError
from training.provenance.lineage import Lineage, Node

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:pedigree:recipe:v1"
BUILDER = "urn:pedigree:runner:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_FILE, ENVELOPE_FILE = "attestation.json", "attestation.dsse.json"
# Kinds of digest; docs/attestation.md defines them.
FILES_DIGEST, RECORD_DIGEST, FRAME_DIGEST = "pedigree_files", "pedigree_record", "pedigree_frame"
FOUND = "found"  # marks an artifact of which nobody told the stores that it was made
TEXT = re.compile(r"[^A-Za-z0-9_-]")  # in a string that a takedown may mask; names, verdicts and digests have none


def statement_of(lineage: Lineage, files: Mapping[str, str], found: Set[str] = frozenset()) -> dict[str, Any]:
    """Return the statement about an artifact and everything it was made from. `files` are sha256 by name.

    Artifacts whose fingerprints are in `found` are marked: no store under the root knows of a run that made them. Raise
    DataError if an artifact behind it was removed, or changed since: nothing can be attested of it.
    """
    described = {name: _described(lineage, node) for name, node in lineage.nodes.items()}
    for name in found:
        described[name]["annotations"][FOUND] = True
    last = lineage.last.item.fingerprint
    record = _record(lineage.last)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [described[last], *({"name": name, "digest": {"sha256": files[name]}} for name in sorted(files))],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "asset": record["asset"],
                    "settings": record["settings"],
                    "seed": record["seed"],
                },
                "internalParameters": {"libraries": record["libraries"], "numerics": record.get("numerics")},
                "resolvedDependencies": sorted(
                    (one for name, one in described.items() if name != last), key=lambda one: (one["name"], str(one))
                ),
            },
            "runDetails": {"builder": {"id": BUILDER}, "metadata": {"invocationId": last}},
        },
    }


def found_in(statement: Mapping[str, Any]) -> list[str]:
    """Return the names of the artifacts in a statement that are marked as found."""
    named = (statement["subject"][0], *statement["predicate"]["buildDefinition"]["resolvedDependencies"])
    return [f"{one['name']} {one['annotations']['fingerprint'][:12]}" for one in named if FOUND in one["annotations"]]


def _record(node: Node) -> Mapping[str, Any]:
    node.usable  # noqa: B018 - what was removed or changed is said
    assert node.made is not None
    return node.made.record


def _described(lineage: Lineage, node: Node) -> dict[str, Any]:
    """Return an artifact as a resource descriptor. Its name has the snapshot, not the recipe, which others share."""
    record = _record(node)
    assert node.made is not None
    snapshot = node.item.partition.partition("@")[2]
    return {
        "name": f"{node.item.asset} [{snapshot}]" if snapshot else node.item.asset,
        "digest": {
            FILES_DIGEST: node.item.digest,
            RECORD_DIGEST: node.made.record_digest,
            FRAME_DIGEST: frame_digest(node.made.record),
        },
        "annotations": {
            "asset": node.item.asset,
            "fingerprint": node.item.fingerprint,
            "stage_version": record["stage_version"],
            "code": record["code"]["digest"],
            "made_from": sorted(node.inputs),
            "allowed_by": sorted(node.guards),
        },
    }


def frame_digest(record: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) of what a takedown leaves in a record: numbers, verdicts, names, digests and no text."""
    decided = artifact.decided_of(dict(record))
    decided.pop("replaces", None)
    return artifact.digest_of(_without_text(decided))


def _without_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_text(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_text(one) for one in value]
    return "" if isinstance(value, str) and TEXT.search(value) else value


def as_bytes(statement: Mapping[str, Any]) -> bytes:
    """Return the bytes of a statement, which are the same wherever it is made."""
    return canonical_json(dict(statement)).encode()


# The envelope


def encoded(payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Return what is signed: DSSE's pre-authentication encoding of a payload and its type."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def envelope_of(payload: bytes, key: EllipticCurvePrivateKey) -> dict[str, Any]:
    """Return the signed envelope around a payload."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    signed = key.sign(encoded(payload), ECDSA(_hash_for(key.curve.key_size)))
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": key_id(key.public_key()), "sig": base64.b64encode(signed).decode()}],
    }


def payload_of(envelope: Any, key: EllipticCurvePublicKey) -> bytes:
    """Return the payload of an envelope that this key signed. Raise DataError, with a sentence, for any other."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = [
            (one.get("keyid", ""), base64.b64decode(one["sig"], validate=True)) for one in envelope["signatures"]
        ]
        kind = envelope["payloadType"]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{ENVELOPE_FILE}: is no DSSE envelope") from None
    if kind != PAYLOAD_TYPE:
        raise DataError(f"{ENVELOPE_FILE}: holds {kind!r}; an attestation is {PAYLOAD_TYPE}")
    for _, signed in signatures:
        try:
            key.verify(signed, encoded(payload, kind), ECDSA(_hash_for(key.curve.key_size)))
            return payload
        except InvalidSignature:
            continue
    by = ", ".join(name[:12] for name, _ in signatures) or "nobody"
    raise DataError(f"{ENVELOPE_FILE}: is not signed by the key {key_id(key)[:12]} (it names {by}), or was changed")


def key_id(key: EllipticCurvePublicKey) -> str:
    """Return the sha256 (hex) of a public key in its standard form (DER, SubjectPublicKeyInfo)."""
    import hashlib

    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _hash_for(key_size: int) -> Any:
    """Return the hash of the curve's strength, as the signature of the model uses it too."""
    from cryptography.hazmat.primitives import hashes

    return {256: hashes.SHA256(), 384: hashes.SHA384()}.get(key_size, hashes.SHA512())


# Checking


def files_of(folder: Path, *apart: str) -> dict[str, str]:
    """Return the sha256 (hex) of every file of a folder, by name, except those named `apart`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]
    return {name: sha256_of(folder / name) for name in names if name not in apart}


def changed_files(statement: Mapping[str, Any], folder: Path, *apart: str) -> Iterator[str]:
    """Yield a sentence for each file that is missing in a folder, has another checksum, or is no subject.

    The files named `apart` are none of the subject's.
    """
    subjects = {one["name"] for one in statement["subject"][1:]}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_folder = path.is_dir() and not path.is_symlink()
        if not is_folder and name not in subjects and name not in apart:
            yield f"{name}: lies in {folder}, and the attestation does not name it"
    for one in statement["subject"][1:]:
        path = folder / one["name"]
        if path.is_symlink() or not path.is_file():
            yield f"{one['name']}: is named in the attestation, and is no file in {folder}"
        elif (own := sha256_of(path)) != one["digest"]["sha256"]:
            yield f"{one['name']}: has sha256 {own[:12]}, the attestation names {one['digest']['sha256'][:12]}"


def changed_records(
    statement: Mapping[str, Any],
    root: Path,
    *,
    all_here: bool,
    is_masked: Callable[[Artifact, str], bool] = lambda made, attested: False,
) -> tuple[int, list[str]]:
    """Compare the records that a statement names with those under a root.

    Return how many are the same, and a sentence for each that was changed. If they must be `all_here`, also one for
    each that is not under the root. What a record says that it replaces is no evidence. A record that `is_masked` since
    it had the attested digest counts as the same: that is the takedowns' evidence for the texts, and the statement's
    for all else.
    """
    same, problems = 0, []
    for one in (statement["subject"][0], *statement["predicate"]["buildDefinition"]["resolvedDependencies"]):
        where = f"{one['name']} {one['annotations']['fingerprint'][:12]}"
        try:
            made = find(folder_of(root, one["annotations"]["asset"], one["annotations"]["fingerprint"]))
        except Damaged as error:
            problems.append(f"{where}: {error}")
            continue
        if made is None:
            problems += [f"{where}: is named in the attestation, and is not under {root}"] if all_here else []
        elif not _is_attested(made, one["digest"], is_masked):
            problems.append(
                f"{where}: its record has digest {made.record_digest[:12]}, the attestation names"
                f" {one['digest'][RECORD_DIGEST][:12]}: what was decided about it was changed"
            )
        elif one["digest"][FILES_DIGEST] != made.digest:
            problems.append(f"{where}: its files have digest {made.digest[:12]}, not that of the attestation")
        else:
            same += 1
    return same, problems


def _is_attested(made: Artifact, attested: Mapping[str, str], is_masked: Callable[[Artifact, str], bool]) -> bool:
    if attested[RECORD_DIGEST] == made.record_digest:
        return True
    return is_masked(made, attested[RECORD_DIGEST]) and attested.get(FRAME_DIGEST) == frame_digest(made.record)


def read_statement(text: bytes | str) -> dict[str, Any]:
    """Return a statement that this project wrote. Raise DataError for anything else."""
    try:
        found = json.loads(text)
        kinds = (found["_type"], found["predicateType"], found["predicate"]["buildDefinition"]["buildType"])
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{STATEMENT_FILE}: is no attestation of a model") from None
    if kinds != (STATEMENT_TYPE, PREDICATE_TYPE, BUILD_TYPE):
        raise DataError(f"{STATEMENT_FILE}: is a {' of '.join(kinds)}; needed is {PREDICATE_TYPE} of {BUILD_TYPE}")
    return found

"""`pedigree verify --receipt`: make a receipt again from what lies under a root, and compare every field.

Without the root, a receipt is compared with an attestation, which names the model and the shards by digest, and no
pages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assets.answers.models.attest import model_named
from assets.answers.models.receipts import DIGEST, TYPE, Receipts, named_by, opened
from assets.state.tombstones import is_masked
from evaluation.hub.attestation import FILES_DIGEST, RECORD_DIGEST, STATEMENT_FILE, read_statement
from resources.tracking.reports import Tracking
from training.contract.artifact import digest_of
from training.contract.job import DataError
from training.data.checksum_cache import forget
from training.provenance.lineage import SHARDS

NOT_SAID = "that the model gave this answer: only the server knows"
ARCHIVES = "the archives of the crawl: addresses and offsets are those that the shards have"
PLACES = "pages and rows among them, with the model's files and records"
KINDS = (("spans", "pages"), ("row_spans", "rows"))
ALL = 10_000  # spans and places that are looked for where some were withdrawn
SHOWN = 100  # characters of a value in a sentence


@dataclass(kw_only=True)
class CheckedReceipt:
    """What a check of a receipt compared, a sentence for each thing that differs, and what it could not look at."""

    compared: str
    problems: list[str]
    not_checked: list[str]


def checked_receipt(file: Path, model: str, root: Path, tracking: Tracking) -> CheckedReceipt:
    """Check the receipt in a file, which may also be the whole response that holds it.

    `model` is a name as in `pedigree attest` that must mean the receipt's model, a folder with an attestation, or
    empty. Raise DataError if the file holds no receipt, or if its model is not under the root.
    """
    receipt, own = _read(file)
    if model and Path(model, STATEMENT_FILE).is_file():
        return _with_attestation(receipt, own, Path(model, STATEMENT_FILE))
    named = f"{receipt['model']['asset']}/{receipt['model']['fingerprint']}"
    if model and (meant := model_named(model, root, tracking)).fingerprint != receipt["model"]["fingerprint"]:
        own.append(f"model: {model} is {meant.record['asset']}/{meant.fingerprint}, the receipt names {named}")
    forget(root)  # so that files are read whose checksums were known
    receipts = opened(named, root, tracking)
    told = receipts.receipt(receipt["answer"]["text"])
    if receipt["takedowns"] < told["takedowns"]:
        return _what_is_left(receipt, receipts, own)
    own += _differences("", _without_digest(receipt), _without_digest(told))
    places = sum(len(span[within]) for kind, within in KINDS for span in receipt[kind])
    return CheckedReceipt(compared=f"all fields, {places} {PLACES}", problems=own, not_checked=[ARCHIVES, NOT_SAID])


def _read(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the receipt in a file, and what contradicts itself in it."""
    try:
        held = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read as JSON ({error})") from None
    receipt = held.get("receipt", held) if isinstance(held, dict) else held
    if not _has_form(receipt):
        raise DataError(f"{file}: is no receipt; a response of `pedigree serve --receipts` has one as `receipt`")
    text, problems = receipt["answer"]["text"], []
    if receipt[DIGEST] != digest_of(_without_digest(receipt)):
        problems.append(f"{DIGEST}: is not that of the other fields, so the receipt was changed after it was made")
    if receipt["answer"][DIGEST] != hashlib.sha256(text.encode()).hexdigest():
        problems.append("answer.sha256: is not that of the answer")
    if receipt is not held and (said := _answer_of(held)) != text:
        problems.append(f"answer.text: the response says {said!r:.{SHOWN}}, the receipt is for {text!r:.{SHOWN}}")
    return receipt, problems


def _has_form(receipt: Any) -> bool:
    """Whether the fields that a check reads are there, and all can be digested; all others are compared."""
    try:
        digest_of(receipt)
        spans = [(span, within) for kind, within in KINDS for span in receipt[kind]]
        places = [place for span, within in spans for place in span[within]]
        texts = [receipt["answer"]["text"], *(receipt["model"][name] for name in ("asset", "fingerprint"))]
        numbers = [receipt["takedowns"], *(span[name] for span, _ in spans for name in ("start", "stop"))]
        parts = [receipt["answer"], receipt["model"], receipt["searched"]["shards"], receipt["attestation"], *places]
        return (
            {receipt["type"], *map(type, (*texts, *(place["id"] for place in places)))} == {TYPE, str}
            and set(map(type, numbers)) == {int}
            and set(map(type, parts)) == {dict}
            and {DIGEST} <= receipt.keys() & receipt["answer"].keys()
        )
    except (TypeError, KeyError, AttributeError, ValueError):
        return False


def _answer_of(response: Mapping[str, Any]) -> Any:
    try:
        (choice,) = response["choices"]
        return choice["message"]["content"] if "message" in choice else choice["text"]
    except (KeyError, TypeError, ValueError):
        return None


def _without_digest(receipt: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in receipt.items() if name != DIGEST}


def _differences(where: str, held: Any, made: Any) -> Iterator[str]:
    """Yield a sentence for each field in which a receipt differs from the one that was made again to check it."""
    if isinstance(held, dict) and isinstance(made, dict):
        for name in (*made, *(one for one in held if one not in made)):
            place = f"{where}.{name}" if where else name
            if name not in held or name not in made:
                yield f"{place}: {'is missing' if name in made else 'is no field of a receipt'}"
            else:
                yield from _differences(place, held[name], made[name])
    elif isinstance(held, list) and isinstance(made, list):
        if len(held) != len(made):
            yield f"{where}: has {len(held)} entries, and {len(made)} were found"
        for number, (one, other) in enumerate(zip(held, made, strict=False)):
            yield from _differences(f"{where}[{number}]", one, other)
    elif held != made or type(held) is not type(made):
        yield f"{where}: says {held!r:.{SHOWN}}, found was {made!r:.{SHOWN}}"


# After a takedown


def _what_is_left(receipt: Mapping[str, Any], receipts: Receipts, problems: list[str]) -> CheckedReceipt:
    """Compare what takedowns since have left of a receipt: model, and each page and row that is not withdrawn.

    Counts, rarity, order and the attestation's digest are not compared, because withdrawn text counted in them.
    """
    told = replace(receipts, most_spans=ALL, most_places=ALL, looked_at=ALL).receipt(receipt["answer"]["text"])
    held, last = dict(receipt["model"]), receipts.tracer.lineage.last.made
    if last is not None and is_masked(last, str(held.get("record_digest"))):
        held["record_digest"] = told["model"]["record_digest"]
    problems += _differences("model", held, told["model"])
    problems += _differences("searched", receipt["searched"], told["searched"])
    is_withdrawn = named_by(receipts.stones)
    gone = places = 0
    for kind, within in KINDS:
        again = {(span["start"], span["stop"]): span for span in told[kind]}
        for number, span in enumerate(receipt[kind]):
            places += len(span[within])
            text = receipt["answer"]["text"][span["start"] : span["stop"]]
            problems += _differences(f"{kind}[{number}].text", span.get("text"), text)
            left = [place for place in span[within] if not is_withdrawn(place)]
            gone += len(span[within]) - len(left)
            made = again.get((span["start"], span["stop"]), {within: []})[within]
            problems += _of_others(f"{kind}[{number}].{within}", left, made)
    return CheckedReceipt(
        compared=f"model, what was searched, and {places - gone} {PLACES}",
        problems=problems,
        not_checked=[
            f"{gone} pages and rows that were withdrawn since",
            "counts, rarity, and the attestation's digest, which a takedown since may have changed",
            ARCHIVES,
            NOT_SAID,
        ],
    )


def _of_others(where: str, held: Sequence[Mapping[str, Any]], made: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each place of a span that is not among those that were found, or differs there."""
    found = {(place["id"], place.get("token")): place for place in made}
    for place in held:
        own = found.get((place["id"], place.get("token")))
        if own is None:
            yield f"{where}: {place['id']} does not hold this span"
        else:
            yield from _differences(f"{where}, {place['id']}", place, own)


# Without the root


def _with_attestation(receipt: Mapping[str, Any], problems: list[str], file: Path) -> CheckedReceipt:
    """Compare a receipt with an attestation alone: the digests of the attestation, the model and its shards."""
    payload = file.read_bytes()
    statement = read_statement(payload)
    subject, behind = statement["subject"][0], statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    said = {
        "attestation": {"sha256": hashlib.sha256(payload).hexdigest()},
        "model": _named_in(subject),
        "searched": {"shards": {one["annotations"]["fingerprint"]: one["digest"][FILES_DIGEST] for one in behind
                                if one["annotations"]["asset"] == SHARDS}},
    }  # fmt: skip
    held = {
        "attestation": receipt["attestation"],
        "model": {name: receipt["model"].get(name) for name in said["model"]},
        "searched": {"shards": receipt["searched"]["shards"]},
    }
    return CheckedReceipt(
        compared=f"the digests of the attestation, the model and {len(said['searched']['shards'])} sets of shards",
        problems=[*problems, *_differences("", held, said)],
        not_checked=["spans, pages, rows and steps, which need the root", NOT_SAID],
    )


def _named_in(subject: Mapping[str, Any]) -> dict[str, str]:
    own, digest = subject["annotations"], subject["digest"]
    told = {"asset": own["asset"], "fingerprint": own["fingerprint"]}
    return {**told, "digest": digest[FILES_DIGEST], "record_digest": digest[RECORD_DIGEST]}

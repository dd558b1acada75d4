"""What a model was made from is attested and signed, and nothing can be changed in it or behind it unnoticed."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from assets.answers.models.attest import checked, write_attestation
from assets.registry.kept_digests import check_witnessed
from assets.state.tombstones import Tombstone, append, note_overwritten
from evaluation.hub import attestation, signature
from resources.tracking.reports import Tracking
from training.contract.artifact import commit_record, digest_of_files, find, manifest
from training.contract.files.erased import ERASED_FILE
from training.contract.files.writing import write_sealed
from training.contract.job import DataError
from training.provenance.lineage import lineage_of
from training.provenance.swap import MaskedRecord

NAMES = {"crawl_archives": "c" * 32, "token_shards": "5" * 32, "base_model": "b" * 32}


def commit(root: Path, asset: str, files: dict[str, str], *made_from: str, note: str = "") -> None:
    """Make one artifact by hand, whose inputs are other assets'."""
    folder = root / asset / NAMES[asset]
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    entries = manifest(folder, files)
    inputs = [find(root / one / NAMES[one]) for one in made_from]
    nothing = {"metrics": {}, "counts": None, "gates": [], "notes": {"said": note}, "cost": {}, "libraries": {}}
    commit_record(
        folder,
        {
            **nothing, "asset": asset, "stage": asset, "stage_version": "1", "recipe": "toy", "partition": "toy@may",
            "fingerprint": NAMES[asset], "digest": digest_of_files(entries), "files": entries, "settings": {},
            "seed": 0, "seconds": 1.0, "code_revision": "", "code": {"digest": "ab"},
            "inputs": [
                {
                    "asset": one.record["asset"], "partition": "toy@may", "fingerprint": one.fingerprint,
                    "digest": one.digest, "path": str(one.path), "record_digest": one.record_digest,
                }
                for one in inputs
            ],
        },
    )  # fmt: skip


def make_root(root: Path) -> Path:
    commit(root, "crawl_archives", {"archives.json": "[]"})
    commit(root, "token_shards", {"shards/00000.bin": "1 2"}, "crawl_archives")
    commit(root, "base_model", {"model/weights": "1 2 3", "model/.gitattributes": "x", "log": "-"}, "token_shards")
    return root


def lineage(root: Path):
    return lineage_of(root, find(root / "base_model" / NAMES["base_model"]))


def statement(root: Path) -> dict:
    return attestation.statement_of(lineage(root), attestation.files_of(model_in(root)))


def model_in(root: Path) -> Path:
    return root / "base_model" / NAMES["base_model"] / "model"


def write_keys(folder: Path, name: str, key=None) -> tuple[Path, Path]:
    key = key or ec.generate_private_key(ec.SECP384R1())
    pem, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / f"{name}.pem").write_bytes(key.private_bytes(pem, plain, serialization.NoEncryption()))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / f"{name}.pem", folder / f"{name}.pub"


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    """A root with a model, the folder of its signatures, and the public key."""
    place = tmp_path_factory.mktemp("signed")
    private, _ = write_keys(place, "own")
    root, signatures = make_root(place / "root"), place / "signatures"
    signatures.mkdir()
    write_attestation(statement(root), model_in(root), signatures, private)
    return place


@pytest.fixture
def place(signed, tmp_path) -> Path:
    """A copy of it that a test may change."""
    shutil.copytree(signed, tmp_path / "copy")
    return tmp_path / "copy"


def problems(place: Path, *, key: str = "own", model: str = f"base_model/{NAMES['base_model']}") -> list[str]:
    tracking = Tracking("", place / "root", in_background=False)
    told = checked(model, place / "signatures", root=place / "root", tracking=tracking, key=place / f"{key}.pub")
    return list(told.problems)


def test_the_statement_is_an_in_toto_statement_over_all_records_from_the_crawl_to_the_model(signed):
    from google.protobuf.json_format import ParseDict
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    made = statement(signed / "root")
    Statement.copy_from_pb(ParseDict(made, statement_pb2.Statement())).validate()  # refuses what it does not know
    named = {one["name"]: one["digest"] for one in made["predicate"]["buildDefinition"]["resolvedDependencies"]}
    for asset in ("crawl_archives", "token_shards"):
        found = find(signed / "root" / asset / NAMES[asset])
        own = {"pedigree_files": found.digest, "pedigree_record": found.record_digest}
        assert named[f"{asset} [may]"] == {**own, "pedigree_frame": attestation.frame_digest(found.record)}
    assert [one["name"] for one in made["subject"]] == ["base_model [may]", ".gitattributes", "weights"]


def test_equal_records_give_equal_bytes_under_another_root(signed, tmp_path):
    other = make_root(tmp_path / "elsewhere")
    record = json.loads((other / "token_shards" / NAMES["token_shards"] / "artifact.json").read_text())
    record["seconds"], record["recipe"], record["partition"] = 77.0, "another", "another@may"
    commit_record(other / "token_shards" / NAMES["token_shards"], {k: v for k, v in record.items() if k != "checksum"})
    assert attestation.as_bytes(statement(other)) == attestation.as_bytes(statement(signed / "root"))


def test_a_model_whose_records_were_changed_or_removed_cannot_be_attested(place):
    shutil.rmtree(place / "root" / "crawl_archives")
    with pytest.raises(DataError, match=r"crawl_archives \[toy@may\]: .* cccccccccccc"):
        statement(place / "root")


def test_what_was_signed_is_accepted(place):
    assert problems(place) == []


def change_a_record(place):
    commit(place / "root", "crawl_archives", {"archives.json": "[]"}, note="decided otherwise")


def remove_a_record(place):
    shutil.rmtree(place / "root" / "crawl_archives")


def change_the_statement(place):
    path = place / "signatures" / attestation.STATEMENT_FILE
    path.write_text(path.read_text().replace('"seed":0', '"seed":1'))


def change_the_envelope(place):
    path = place / "signatures" / attestation.ENVELOPE_FILE
    envelope = json.loads(path.read_text())
    payload = base64.b64decode(envelope["payload"]).replace(b'"seed":0', b'"seed":1')
    path.write_text(json.dumps(envelope | {"payload": base64.b64encode(payload).decode()}))


def change_the_type_of_the_payload(place):
    path = place / "signatures" / attestation.ENVELOPE_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"payloadType": "text/plain"}))


def use_another_signature(place):
    """The signature of another model, by the same key."""
    (place / "other").mkdir()
    (place / "other" / "weights").write_text("9")
    signature.sign(place / "other", place / "signatures" / signature.SIGNATURE_FILE, place / "own.pem", None)


def sign_less(place):
    """Sign the model without a file, so that the signature itself says that the file is ignored."""
    from model_signing import hashing, signing

    (model_in(place / "root") / "modeling.py").write_text("import os")
    config = signing.Config().use_elliptic_key_signer(private_key=place / "own.pem")
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=["modeling.py"], ignore_git_paths=False))
    config.sign(model_in(place / "root"), place / "signatures" / signature.SIGNATURE_FILE)


def written(name, text):
    """Write a file of the model."""
    return lambda place: (model_in(place / "root") / name).write_text(text)


def removed(name):
    """Remove a file of the signatures."""
    return lambda place: (place / "signatures" / name).unlink()


ATTACKS = {
    "a byte": (written("weights", "1 2 4"), "Hash mismatch for 'weights'"),
    "a record": (change_a_record, "crawl_archives [may] cccccccccccc: its record has digest"),
    "files of the corpus": (
        lambda place: commit(place / "root", "token_shards", {"shards/00000.bin": "1 3"}, "crawl_archives"),
        "token_shards [may] 555555555555: its record has digest",
    ),
    "no record": (remove_a_record, "crawl_archives [may] cccccccccccc: is named in the attestation, and is not under"),
    "no file": (lambda place: (model_in(place / "root") / "weights").unlink(), "Missing files in model"),
    "a file more": (written("modeling.py", "import os"), "Extra files found in model"),
    "a file of git": (written(".gitattributes", "y"), "Hash mismatch for '.gitattributes'"),
    "a file of git more": (written(".gitignore", "weights"), "Extra files found in model"),
    "the statement": (change_the_statement, "attestation.json: is not the statement that was signed"),
    "the envelope": (change_the_envelope, "attestation.dsse.json: is not signed by the key"),
    "the type of the payload": (change_the_type_of_the_payload, "attestation.dsse.json: holds 'text/plain'"),
    "no envelope": (removed(attestation.ENVELOPE_FILE), "attestation.dsse.json: is not in"),
    "no signature": (removed(signature.SIGNATURE_FILE), "model.sig: is not in"),
    "another signature": (use_another_signature, "model.sig: Signature mismatch"),
    "less is signed": (sign_less, "modeling.py: lies in"),
}


@pytest.mark.parametrize(("attack", "sentence"), ATTACKS.values(), ids=ATTACKS)
def test_each_change_is_named(place, attack, sentence):
    attack(place)
    assert any(sentence in problem for problem in problems(place)), problems(place)


def test_another_key_is_named(place):
    write_keys(place, "other", ec.generate_private_key(ec.SECP384R1()))
    found = problems(place, key="other")
    assert any("attestation.dsse.json: is not signed" in one for one in found)
    assert any(one.startswith("model.sig: ") for one in found)


def test_a_folder_is_compared_with_the_records_that_are_there_alone(place):
    remove_a_record(place)
    assert problems(place, model=str(model_in(place / "root"))) == []
    change_a_record(place)
    assert len(problems(place, model=str(model_in(place / "root")))) == 1


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (rsa.generate_private_key(65537, 2048), "is not a key of an elliptic curve"),
        (ec.generate_private_key(ec.SECP256K1()), "is a key of the curve secp256k1"),
    ],
)
def test_a_key_that_cannot_sign_is_refused_before_anything_is_written(tmp_path, key, sentence):
    private, public = write_keys(tmp_path, "bad", key)
    with pytest.raises(DataError, match=sentence):
        signature.private_key(private, None)
    with pytest.raises(DataError, match=sentence):
        signature.public_key(public)


def test_a_file_that_is_no_key_is_refused(tmp_path):
    (tmp_path / "no.pem").write_text("no key")
    for read in (
        lambda: signature.private_key(tmp_path / "no.pem", None),
        lambda: signature.public_key(tmp_path / "x"),
    ):
        with pytest.raises(DataError, match="key can be read"):
            read()


def test_without_the_library_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(signature, "NEEDED", ("no_such_library",))
    with pytest.raises(DataError, match=r"no_such_library.*'pedigree\[sign\]'"):
        signature.check_installed()


def test_the_envelope_is_read_by_another_library(signed):
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import SSlibKey

    text = json.loads((signed / "signatures" / attestation.ENVELOPE_FILE).read_text())
    public = signature.public_key(signed / "own.pub")
    key = SSlibKey.from_crypto(public, keyid=attestation.key_id(public))
    envelope = Envelope.from_dict(text)
    assert envelope.verify([key], 1)
    assert envelope.payload == (signed / "signatures" / attestation.STATEMENT_FILE).read_bytes()


def forge(place, *, seed: int = 0, **notes) -> tuple[Path, str, str]:
    """Change a record as who has read the code would: it says that it replaces the signed one."""
    folder = place / "root" / "crawl_archives" / NAMES["crawl_archives"]
    record, before = dict(find(folder).record), find(folder).record_digest
    for name in ("record_digest", "checksum"):
        record.pop(name)
    commit_record(folder, record | {"notes": notes, "seed": seed, "replaces": [before]})
    return folder, before, find(folder).record_digest


def test_a_record_that_names_the_signed_digest_as_its_own_former_one_is_found(place):
    forge(place, said="decided otherwise")
    assert any("crawl_archives [may] cccccccccccc: its record has digest" in one for one in problems(place))
    assert problems(place, model=str(model_in(place / "root"))) != []


def test_a_record_in_which_a_takedown_of_the_root_masked_texts_is_the_signed_one(place):
    tracking = Tracking("", place / "root", in_background=False)
    folder, before, after = forge(place, said="\u2588")
    append(place / "root", Tombstone(number=1, time="2026-01-01", reason="asked", entries=()))
    forged = {"files": {}, "records": [{"takedown": 1, "before": before, "after": after}]}
    write_sealed(folder / ERASED_FILE, forged)  # beside the record lies no evidence about it
    assert any("its record has digest" in one for one in problems(place))
    with pytest.raises(DataError, match="nothing is signed"):
        check_witnessed(lineage(place / "root"), place / "root", tracking, all_told=True)
    note_overwritten(place / "root", 1, [], [MaskedRecord(folder=folder, before=before, after=after)])
    assert problems(place) == []
    assert check_witnessed(lineage(place / "root"), place / "root", tracking, all_told=True)
    forge(place, said="decided otherwise")
    assert any("its record has digest" in one for one in problems(place))


@pytest.mark.parametrize("changed", [{"seed": 1, "said": "\u2588"}, {"said": "clean"}, {"said": "\u2588", "more": 1}])
def test_a_list_of_masked_records_that_somebody_forged_covers_texts_alone(place, changed):
    append(place / "root", Tombstone(number=1, time="2026-01-01", reason="asked", entries=()))
    folder, before, after = forge(place, **changed)
    note_overwritten(place / "root", 1, [], [MaskedRecord(folder=folder, before=before, after=after)])
    assert any("its record has digest" in one for one in problems(place))


def test_nothing_is_attested_of_a_record_whose_descendants_know_another_one(place):
    tracking = Tracking("", place / "root", in_background=False)
    unasked = check_witnessed(lineage(place / "root"), place / "root", tracking, all_told=True)
    assert [sentence.split()[0] for sentence in unasked] == ["Dagster", "MLflow"]  # the root has neither
    forge(place, said="decided otherwise")
    with pytest.raises(DataError, match=r"crawl_archives \[toy@may\]: .* token_shards \[toy@may\] was made from"):
        check_witnessed(lineage(place / "root"), place / "root", tracking, all_told=True)

"""A model of the small kitchen is exported with its attestation, signed, and checked; changes behind it are named."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from assets.answers.models.attest import SIGNING_KEY, checked
from evaluation.hub.attestation import STATEMENT_FILE, changed_files, files_of
from evaluation.hub.training_content import CONTENT_FILE, DOMAINS_FILE
from resources.tracking.reports import Tracking
from tests.commands import said
from tests.evaluation.hub.test_attestation import write_keys
from tests.small_kitchen import RECIPES, linked_copy
from training.contract.artifact import commit_record, find, sha256_of
from training.provenance.lineage import artifacts_under

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def place(first, untouched, tmp_path_factory) -> Path:
    """A copy of the root, and two keys beside it."""
    assert first.code == 0
    folder = tmp_path_factory.mktemp("attest")
    linked_copy(untouched, folder / "root")
    write_keys(folder, "own")
    write_keys(folder, "other")
    return folder


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, dict]:
    """Run the command line in this process, with the tests' recipes."""
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))
    code, answer, _ = said(monkeypatch, capsys, *arguments, "--json")
    return int(code), json.loads(answer)


def check(place: Path, model: str, folder: Path, key: str = "own") -> list[str]:
    root = place / "root"
    tracking = Tracking("", root, in_background=False)
    return list(checked(model, folder, root=root, tracking=tracking, key=place / f"{key}.pub").problems)


def test_a_model_is_exported_attested_signed_and_checked(place, monkeypatch, capsys):
    root, out = str(place / "root"), place / "exported"
    monkeypatch.setenv(SIGNING_KEY, str(place / "own.pem"))  # by reference, in the environment
    code, told = run(monkeypatch, capsys, "export", "kitchen-small", str(out), "--root", root, "--gguf", "q8_0")
    assert code == 0, told
    assert {
        "kitchen-small-Q8_0.gguf",
        CONTENT_FILE,
        DOMAINS_FILE,
        STATEMENT_FILE,
        "attestation.dsse.json",
        "model.sig",
    } <= set(told["files"])
    card = (out / "README.md").read_text("utf-8")
    assert "## Training content" in card and "### Cost" in card and "ovenpost.example" in card
    asked = ("--root", root, "--signature", str(out), "--public-key")
    code, told = run(monkeypatch, capsys, "verify", str(out), *asked, str(place / "own.pub"))
    assert (code, told["problems"]) == (0, []) and told["records"] > 25
    code, told = run(monkeypatch, capsys, "verify", str(out), *asked, str(place / "other.pub"))
    assert code == 1 and len(told["problems"]) == 2
    file = out / "kitchen-small-Q8_0.gguf"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    code, told = run(monkeypatch, capsys, "verify", str(out), *asked, str(place / "own.pub"))
    assert code == 1 and any(file.name in one for one in told["problems"])


def test_a_model_in_an_object_store_has_the_files_of_one_in_a_folder(place, store, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    asked = ("export", "kitchen-small", "s3://bucket/model", "--root", str(place / "root"))
    code, told = run(monkeypatch, capsys, *asked)
    assert code == 0 and told["folder"] == "s3://bucket/model", told
    back = place / "back"
    for name, data in store.objects.items():
        file = back / name.removeprefix("bucket/model/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    assert files_of(back).keys() == {*told["files"]}
    statement = json.loads((back / STATEMENT_FILE).read_text("utf-8"))
    assert not [*changed_files(statement, back, STATEMENT_FILE)]
    code, told = run(monkeypatch, capsys, *asked)
    assert code == 2 and "nothing is overwritten" in told["error"]


def test_every_artifact_from_the_crawl_to_the_model_is_attested_the_same_every_time(place, monkeypatch, capsys):
    root = place / "root"
    for name in ("one", "two"):
        code, told = run(
            monkeypatch, capsys, "attest", "kitchen-small@champion", str(place / name), "--root", str(root)
        )
        assert (code, told["files"]) == (0, [STATEMENT_FILE])
    one, two = ((place / name / STATEMENT_FILE).read_bytes() for name in ("one", "two"))
    assert one == two
    statement = json.loads(one)
    named = {
        entry["annotations"]["asset"] for entry in statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    }
    assert {"crawl_archives", "token_shards", "base_model", "sft_model", "data_contamination"} <= named
    assert str(place) not in one.decode() and root.name not in statement["subject"][0]["name"]


def test_a_record_that_was_changed_in_the_corpus_is_named(place, monkeypatch, capsys):
    root, folder = place / "root", place / "signed"
    code, _ = run(
        monkeypatch,
        capsys,
        "attest",
        "kitchen-small",
        str(folder),
        "--key",
        str(place / "own.pem"),
        "--root",
        str(root),
    )
    assert code == 0 and check(place, "kitchen-small", folder) == []
    made = next(artifacts_under(root, lambda asset: asset == "filtered_documents"))
    record = json.loads((made.path / "artifact.json").read_text())
    record["counts"]["kept"] += 1
    for name in ("artifact.json", "artifact.copy.json"):
        (made.path / name).unlink()  # it is a link to the untouched root's
    commit_record(made.path, record)  # as who has read the code would
    assert find(made.path).record_digest != made.record_digest
    found = check(place, "kitchen-small", folder)
    assert len(found) == 1 and "filtered_documents" in found[0] and "was changed" in found[0]


def test_the_forms_of_an_exported_model_say_what_lies_beside_them_and_what_was_read(
    first, untouched, monkeypatch, capsys, tmp_path
):
    root, out = linked_copy(untouched, tmp_path / "root"), tmp_path / "out"
    code, told = run(monkeypatch, capsys, "export", "kitchen-small", str(out), "--root", str(root))
    assert code == 0, told
    bom, graph = (json.loads((out / name).read_text("utf-8")) for name in ("bom.cdx.json", "bom.spdx.json"))
    files = {one["name"]: one["hashes"][0]["content"] for one in bom["components"] if "hashes" in one}
    packages = {one["name"]: one["version"] for one in bom["components"] if "purl" in one}
    assert "tokenizer_config.json" in files and files == {name: sha256_of(out / name) for name in files}
    assert {"torch", "trl"} <= packages.keys() and packages == {name: version(name) for name in packages}
    spdx = [one for one in graph["@graph"] if one["type"] in ("software_File", "software_Package")]
    assert files == {one["name"]: one["verifiedUsing"][0]["hashValue"] for one in spdx if "verifiedUsing" in one}
    assert packages == {one["name"]: one["software_packageVersion"] for one in spdx if "software_packageUrl" in one}
    given = {one["properties"][0]["value"] for one in bom["components"] if one["type"] == "data"}
    read = ("crawl_archives", "instruction_data", "preference_data")
    assert given == {made.digest for made in artifacts_under(root, lambda asset: asset in read)}
    parameters = bom["metadata"]["component"]["modelCard"]["modelParameters"]
    assert parameters["approach"] == {"type": "supervised"}  # its last training learned from pairs
    card, summary = ((out / name).read_text("utf-8") for name in ("README.md", "training_summary.md"))
    assert not [name for name in ("report.html", "harness.json") if f"`{name}` beside" in card]
    assert "read by aligned" in summary and "read by reward" not in summary and "Stated above" not in summary
    assert "extract.refused\\_robots: none" in summary

"""Files and records of a model are changed by somebody who writes digests, copies and references anew.

Every command that says something of the model, signs it, or moves it notices, names what was forged, and leaves
nothing behind.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.services.stores import opened_instance
from assets.state.references import write_reference
from evaluation.hub import attestation
from resources.tracking.registry import Registry
from resources.tracking.reports import Tracking
from tests.end_to_end.test_attest import place, run, said  # noqa: F401 - a fixture
from tests.small_kitchen import linked_copy
from training.contract.artifact import Artifact, commit_record, digest_of_files, find, manifest
from training.provenance.lineage import artifacts_under

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = "kitchen-small"
Record = dict[str, Any]


def edited(name: str, change: Callable[[str], str]) -> Callable[[Path, Record], None]:
    """Change a file of the artifact, and its line in the list of files."""

    def forge(folder: Path, record: Record) -> None:
        text = (folder / name).read_text("utf-8")
        assert change(text) != text
        (folder / name).unlink()  # it is a link to the untouched root's
        (folder / name).write_text(change(text), "utf-8")
        record["files"] = manifest(folder, [one["path"] for one in record["files"]])
        record["digest"] = digest_of_files(record["files"])

    return forge


def weights(folder: Path, record: Record) -> None:
    """Other weights, as of the same recipe under another root."""
    path = folder / "model" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.unlink()
    path.write_bytes(content)
    record["files"] = manifest(folder, [one["path"] for one in record["files"]])
    record["digest"] = digest_of_files(record["files"])


def shots(text: str) -> str:
    return text.replace('"num_fewshot": 0', '"num_fewshot": 25', 1)


def metric(text: str) -> str:
    return text.replace('"acc_norm": true', '"acc_norm": false', 1)


def score(text: str) -> str:
    return re.sub(r'("score": )[\d.]+', r"\g<1>0.987", text, count=1)


def language(text: str) -> str:
    return text.replace("language:\n- en", "language:\n- de", 1).replace("- kitchen-2\n", "- kitchen-9\n", 1)


def noted(folder: Path, record: Record) -> None:
    record["notes"]["method"] = "grpo"


def replacing(folder: Path, record: Record) -> None:
    record["replaces"] = [find(folder).record_digest]
    record["counts"]["kept"] += 1


def shorter(folder: Path, record: Record) -> None:
    record["files"] = [one for one in record["files"] if one["path"] != "tokenizer_config.json"]
    record["digest"] = digest_of_files(record["files"])


def recommit(root: Path, old: Artifact, record: Record) -> Artifact:
    """Write a record with its copy, and every reference to it."""
    for copy in ("artifact.json", "artifact.copy.json"):
        (old.path / copy).unlink()
    commit_record(old.path, record)
    new = find(old.path)
    for reference in (root / "refs" / record["asset"]).glob("*.json"):
        if json.loads(reference.read_text("utf-8"))["fingerprint"] == new.fingerprint:
            reference.unlink()
            write_reference(root, new, reference.stem)
    return new


Forged = list[tuple[Artifact, Artifact]]  # before and after


def retold(root: Path, forged: Forged) -> None:
    """Let everything that was made from what was forged name the new digests, and so on to the last record."""
    for _, new in forged:
        for made in list(artifacts_under(root)):
            record = json.loads((made.path / "artifact.json").read_text("utf-8"))
            items = [*record["inputs"], *record.get("guards", [])]
            if named := [item for item in items if item["fingerprint"] == new.fingerprint]:
                for item in named:
                    item |= {"digest": new.digest, "record_digest": new.record_digest}
                before = next((old for old, one in forged if one.path == made.path), made)
                forged.append((before, recommit(root, made, record)))


def in_mlflow(root: Path, forged: Forged) -> None:
    """The same, and every tag in MLflow."""
    retold(root, forged)
    with closing(sqlite3.connect(root / "mlflow.db")) as store, store:
        for table in ("tags", "model_version_tags", "logged_model_tags"):
            columns = {row[1] for row in store.execute(f"PRAGMA table_info({table})")}
            value = "value" if "value" in columns else "tag_value"
            for old, new in forged:
                for before, after in ((old.digest, new.digest), (old.record_digest, new.record_digest)):
                    store.execute(f"UPDATE {table} SET {value} = ? WHERE {value} = ?", (after, before))


def in_dagster(root: Path, forged: Forged) -> None:
    """The same as in the records, and an event for each in Dagster."""
    retold(root, forged)
    with opened_instance(root) as instance:
        for _, new in forged:
            said = {"fingerprint": new.fingerprint, "digest": new.digest, "record_digest": new.record_digest}
            where = {"asset_key": new.record["asset"], "partition": new.record["partition"]}
            instance.report_runless_asset_event(dg.AssetMaterialization(**where, metadata=said))


def alone(root: Path, forged: Forged) -> None:
    """What was made from it keeps its word."""


FORGERIES = {
    "shots": ("model_scores", edited("harness.json", shots), alone),
    "metric": ("model_scores", edited("harness.json", metric), alone),
    "score": ("model_scores", edited("scores.json", score), alone),
    "card": ("model_card", edited("README.md", language), alone),
    "method": ("aligned_model", noted, alone),
    "tokenizer": ("tokenizer", shorter, alone),
    "replaces": ("filtered_documents", replacing, alone),
    "another-root": ("sft_model", weights, retold),
    "and-mlflow": ("base_model", weights, in_mlflow),
    "and-dagster": ("aligned_model", noted, in_dagster),
}
BESIDE = ("model_scores", "model_card")  # made from the model: no attestation names them
BEHIND_CORPUS = ("filtered_documents", "tokenizer")  # which counts its tokens
COMMANDS = {
    "verify": ("verify", SMALL),
    "signature": ("verify", "SIGNED", "--signature", "SIGNED", "--public-key", "PUBLIC"),
    "attest": ("attest", SMALL, "NEW", "--key", "SECRET"),
    "export": ("export", SMALL, "NEW", "--key", "SECRET"),
    "corpus": ("export", SMALL, "NEW", "--asset", "decontaminated_documents"),
    "promote": ("promote", SMALL, "--reason", "a test"),
}
CARD = ("run", SMALL, "--until", "model_card")  # told where the records agree; else the run makes again what differs


@pytest.fixture(scope="module")
def signed(place, tmp_path_factory) -> Path:  # noqa: F811
    """The model as it was exported and signed before anything was forged."""
    from _pytest.monkeypatch import MonkeyPatch

    folder = tmp_path_factory.mktemp("signed") / "model"
    with MonkeyPatch.context() as patch:
        patch.setenv("PEDIGREE_RECIPES", str(Path(__file__).parents[1] / "recipes"))
        from assets.commands.cli import main

        patch.setattr(
            "sys.argv",
            ["pedigree", "export", SMALL, str(folder), "--key", str(place / "own.pem"), "--root", str(place / "root")],
        )
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return folder


@pytest.mark.parametrize("name", FORGERIES)
def test_every_command_notices(name, place, signed, untouched, tmp_path, monkeypatch, capsys):  # noqa: F811
    asset, forge, told = FORGERIES[name]
    unsaid = {"signature", "attest"} if asset in BESIDE else set()
    unsaid |= set() if asset in BEHIND_CORPUS else {"corpus"}
    root = linked_copy(untouched, tmp_path / "root")
    reference = sorted((root / "refs" / asset).glob("kitchen-small*.json"))[0]
    old = find(root / asset / json.loads(reference.read_text("utf-8"))["fingerprint"])
    record = json.loads((old.path / "artifact.json").read_text("utf-8"))
    forge(old.path, record)
    forged = [(old, recommit(root, old, record))]
    told(root, forged)
    names = {new.record["asset"] for _, new in forged} | {"is outdated"}  # whatever names what is gone
    registry = Registry(Tracking("", root, in_background=False), SMALL)
    before = (registry.history(), registry.holder("champion"))
    words = {"SIGNED": signed, "PUBLIC": place / "own.pub", "SECRET": place / "own.pem"}
    for command, arguments in COMMANDS.items():
        new = tmp_path / command
        given = [str({**words, "NEW": new}.get(one, one)) for one in arguments]
        code, answer = run(monkeypatch, capsys, *given, "--root", str(root))
        if command in unsaid:
            assert code == 0, (command, answer)
            continue
        said = str(answer.get("error") or answer.get("problems"))
        assert code in (1, 2) and any(one in said for one in names), (command, code, answer)
        assert not new.exists(), (command, list(new.iterdir()))
    assert (registry.history(), registry.holder("champion")) == before
    if told is not alone:
        for gone in ("model_card", "refs/model_card"):
            shutil.rmtree(root / gone)
        code, answer = run(monkeypatch, capsys, *CARD, "--root", str(root))
        assert code == 2 and any(one in answer["error"] for one in names), answer
        assert not list(root.glob("model_card/*/artifact.json"))
    shutil.rmtree(root, ignore_errors=True)  # MLflow's writer may still be at work


def test_a_model_that_nobody_was_ever_told_of_is_not_signed(place, untouched, tmp_path, monkeypatch, capsys):  # noqa: F811
    """It has the name of no other, so that no store contradicts it."""
    root, name = linked_copy(untouched, tmp_path / "root"), "f" * 32
    old = next(artifacts_under(root, lambda asset: asset == "aligned_model"))
    folder = shutil.copytree(old.path, old.path.with_name(name))
    record = json.loads((folder / "artifact.json").read_text("utf-8"))
    weights(folder, record)
    commit_record(folder, record | {"fingerprint": name})
    given = (f"aligned_model/{name}", str(tmp_path / "new"), "--key", str(place / "own.pem"))
    code, answer = run(monkeypatch, capsys, "attest", *given, "--root", str(root))
    assert code == 2 and "neither Dagster nor MLflow was ever told of it" in answer["error"], answer
    assert not (tmp_path / "new").exists()


def test_what_a_run_finds_and_no_store_saw_made_is_named_and_attested_as_found(
    place,  # noqa: F811
    untouched,
    tmp_path,
    monkeypatch,
    capsys,
):
    """Somebody else's model lies where a recipe that nobody has run yet will look for its own."""
    root, recipe = linked_copy(untouched, tmp_path / "root"), tmp_path / "other.yaml"
    recipe.write_text(f"name: other\nextends: {SMALL}\nsft: {{learning_rate: 0.0002}}\n")
    _, answer = run(monkeypatch, capsys, "status", str(recipe), "--root", str(root))
    name = answer["assets"]["sft_model"]["other"]["fingerprint"]
    old = next(artifacts_under(root, lambda asset: asset == "sft_model"))
    folder = shutil.copytree(old.path, old.path.with_name(name))
    record = json.loads((folder / "artifact.json").read_text("utf-8"))
    weights(folder, record)
    settings = record["settings"] | {"sft": record["settings"]["sft"] | {"learning_rate": 0.0002}}
    commit_record(folder, record | {"fingerprint": name, "settings": settings})
    code, _, shown = said(monkeypatch, capsys, "run", str(recipe), "--until", "sft_model", "--root", str(root))
    assert int(code) == 0 and re.findall(r"\S+ was found", shown) == [f"{folder} was found"]
    given = (f"sft_model/{name}", str(tmp_path / "new"), "--key", str(place / "own.pem"))
    code, answer = run(monkeypatch, capsys, "attest", *given, "--root", str(root))
    assert code == 0, answer
    dependencies = json.loads((tmp_path / "new" / "attestation.json").read_text("utf-8"))
    assert attestation.found_in(dependencies) == [f"sft_model {name[:12]}"]


def test_a_model_that_the_stores_were_made_to_forget_is_not_promoted(untouched, tmp_path, monkeypatch, capsys):
    """What was made from it names the new digest, and no store has another: neither has any."""
    root = linked_copy(untouched, tmp_path / "root")
    old = next(artifacts_under(root, lambda asset: asset == "aligned_model"))
    record = json.loads((old.path / "artifact.json").read_text("utf-8"))
    noted(old.path, record)
    forged = [(old, recommit(root, old, record))]
    retold(root, forged)
    with closing(sqlite3.connect(root / "mlflow.db")) as store, store:
        for table, value in (("tags", "value"), ("model_version_tags", "value"), ("logged_model_tags", "tag_value")):
            for before, _ in forged:
                store.execute(f"DELETE FROM {table} WHERE {value} IN (?, ?)", (before.digest, before.record_digest))
    with opened_instance(root) as instance:
        instance.wipe_assets([dg.AssetKey(new.record["asset"]) for _, new in forged])
    code, answer = run(monkeypatch, capsys, "promote", SMALL, "--reason", "a test", "--root", str(root))
    assert code in (1, 2) and "neither Dagster nor MLflow was ever told of it" in answer["error"], answer

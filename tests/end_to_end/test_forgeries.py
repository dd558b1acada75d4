"""Files and records of a model are changed by somebody who writes digests, copies and references anew.

Every command that says something of the model, signs it, or moves it notices.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assets.state.references import write_reference
from tests.end_to_end.test_attest import place, run  # noqa: F401 - a fixture
from tests.small_kitchen import linked_copy
from training.contract.artifact import commit_record, digest_of_files, find, manifest

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


FORGERIES = {
    "shots": ("model_scores", edited("harness.json", shots)),
    "metric": ("model_scores", edited("harness.json", metric)),
    "score": ("model_scores", edited("scores.json", score)),
    "card": ("model_card", edited("README.md", language)),
    "method": ("aligned_model", noted),
    "tokenizer": ("tokenizer", shorter),
    "replaces": ("filtered_documents", replacing),
}
BESIDE = ("model_scores", "model_card")  # made from the model: no attestation names them
COMMANDS = {
    "verify": ("verify", SMALL),
    "signature": ("verify", "SIGNED", "--signature", "SIGNED", "--public-key", "PUBLIC"),
    "attest": ("attest", SMALL, "NEW"),
    "export": ("export", SMALL, "NEW", "--key", "SECRET"),
    "corpus": ("export", SMALL, "NEW", "--asset", "decontaminated_documents"),
    "promote": ("promote", SMALL, "--reason", "a test"),
}


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
    asset, forge = FORGERIES[name]
    unsaid = {"signature", "attest"} if asset in BESIDE else set()
    unsaid |= set() if asset == "filtered_documents" else {"corpus"}
    root = linked_copy(untouched, tmp_path / "root")
    reference = sorted((root / "refs" / asset).glob("kitchen-small*.json"))[0]
    folder = root / asset / json.loads(reference.read_text("utf-8"))["fingerprint"]
    record = json.loads((folder / "artifact.json").read_text("utf-8"))
    forge(folder, record)
    for copy in ("artifact.json", "artifact.copy.json"):
        (folder / copy).unlink()
    commit_record(folder, record)
    reference.unlink()
    write_reference(root, find(folder), reference.stem)
    words = {"SIGNED": signed, "PUBLIC": place / "own.pub", "SECRET": place / "own.pem"}
    noticed = {}
    for number, (command, arguments) in enumerate(COMMANDS.items()):
        given = [str({**words, "NEW": tmp_path / str(number)}.get(one, one)) for one in arguments]
        code, told = run(monkeypatch, capsys, *given, "--root", str(root))
        if code:
            noticed[command] = str(told.get("error") or told.get("problems"))
    shutil.rmtree(root)
    assert noticed.keys() >= COMMANDS.keys() - unsaid, noticed
    assert asset in noticed["verify"] and "is not made" not in noticed["promote"]

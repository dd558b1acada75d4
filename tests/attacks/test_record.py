"""Attacks on what an artifact's record says: bits flipped anywhere, verdicts turned round, files emptied or garbled."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from assets.answers.status.verify import verified
from assets.commands import cli
from assets.materialize.before_start import check_begun
from assets.materialize.jobs import job_of
from assets.registry.standing import unfit
from assets.run.automation import cells_due
from assets.run.run import run_recipe
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from assets.state.references import reference_path, write_reference
from evaluation.stages import STAGES as EVALUATION_STAGES
from resources.profile import load_profile
from resources.tracking.reports import Tracking
from tests.small_kitchen import RECIPES
from training.contract import artifact
from training.contract.files import erased
from training.contract.files.writing import write_json, write_sealed
from training.contract.job import DataError, InputArtifact, RefusedInput, read_job
from training.contract.records import RecipeError
from training.contract.running.marks import finished_rank, mark_path
from training.contract.running.runner import run_job
from training.order.ledger import Ledger, keep_ledger, read_ledger
from training.posttrain.trainer import fit
from training.pretrain.checkpoint import Store, checkpoints
from training.pretrain.parallel.world import World

REPORT = ("contamination_report", "kitchen-small")
DECISION = ("promoted_model", "kitchen-small")


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))
    return load_recipe("kitchen-small", folders=recipe_folders())


@pytest.fixture
def copied(first, untouched, tmp_path):
    return shutil.copytree(untouched, tmp_path / "root")


@pytest.fixture(scope="module")
def kept(first, untouched, tmp_path_factory):
    """A copy for attacks that put everything back."""
    return shutil.copytree(untouched, tmp_path_factory.mktemp("kept") / "root")


def states(comparison) -> dict[tuple[str, str], str]:
    """The cells that are not simply made, and what they are instead."""
    return {cell.key: cell.state for cell in comparison.cells.values() if cell.state != "made" or not cell.is_recorded}


def input_of(cell) -> InputArtifact:
    """A cell's artifact as a job names it."""
    made = cell.artifact
    return InputArtifact(
        asset=cell.asset,
        partition=cell.partition,
        fingerprint=made.fingerprint,
        digest=made.digest,
        record_digest=made.record_digest,
        path=str(made.path),
    )


# Bits


class Flips:
    """Flips one bit after another and asks the code that would use the file; everything is put back each time."""

    def __init__(self, recipe, root: Path, scratch: Path) -> None:
        self.recipe, self.root = recipe, root
        self.cells = list(compare(recipe, root).cells.values())
        self.chance = random.Random(7)
        self.checkpoints = make_checkpoints(scratch)

    def one(self, asset: str) -> tuple[str, bool]:
        """Flip a bit of something of that asset: what it was, and whether it was found before use."""
        cell = self.chance.choice([cell for cell in self.cells if cell.asset == asset])
        kind = self.chance.choice(["file", "record", "copy", "reference", "job", "checkpoint"])
        if kind == "checkpoint":
            path, ask = self.chance.choice(self.checkpoints)
        elif kind == "file":
            size = Counter({entry["path"]: entry["bytes"] for entry in cell.artifact.record["files"]})
            name = self.chance.choice([name for name in size if size[name]])
            path, item = cell.artifact.path / name, input_of(cell)
            # A stage in one piece checks all of its inputs; a rank or a process the files that it opens.
            ask = lambda: all(refuses(RefusedInput, *one) for one in ((artifact.check_input, item), (item.file, name)))  # noqa: E731
        elif kind == "reference":
            path, ask = reference_path(self.root, *cell.key), lambda: self.is_damaged(cell.key)
        elif kind == "job":
            path = cell.artifact.path / "job.json"
            ask = lambda: refuses(RecipeError, read_job, path)  # noqa: E731
        elif kind == "record":
            path, ask = cell.artifact.path / artifact.ARTIFACT_FILE, lambda: self.is_damaged(cell.key)
        else:
            path = cell.artifact.path / artifact.COPY_FILE
            ask = lambda: refuses(artifact.Damaged, artifact.find_copy, cell.artifact.path)  # noqa: E731
        place = self.chance.randrange(8 * path.stat().st_size)
        flip(path, place)
        try:
            return kind, ask()
        finally:
            flip(path, place)

    def is_damaged(self, key) -> bool:
        """Whether the cell is damaged, and it alone."""
        return states(compare(self.recipe, self.root)) == {key: "damaged"}


def checked(comparison, **options):
    """What `pedigree verify` finds."""
    return verified(comparison, Tracking("", comparison.root), **options)


def flip(path: Path, place: int) -> None:
    with open(path, "r+b") as stream:
        stream.seek(place // 8)
        byte = stream.read(1)[0]
        stream.seek(place // 8)
        stream.write(bytes([byte ^ 1 << place % 8]))


def refuses(error, ask, *arguments) -> bool:
    try:
        ask(*arguments)
    except error:
        return True
    return False


def make_checkpoints(folder: Path) -> list:
    """Whatever a job keeps to go on from: (file, whether a flip in it is found). Written by the code that keeps it."""
    made = []
    store = Store(folder / "pretrain", World(rank=0, size=1, device=torch.device("cpu")))
    store.begin(step=3, tensors={"model.a": torch.arange(300.0)}, own={"own.0": torch.ones(4)}, state={"ledger": []})
    store.settle()
    for path in checkpoints(store.folder)[0].iterdir():
        made.append((path, lambda: refuses(RefusedInput, store.newest)))
    keep_ledger(folder / "ledger", Ledger())
    made.append((folder / "ledger" / "ledger.json", lambda: refuses(ValueError, read_ledger, folder / "ledger")))
    write_json(folder / "trainer" / "checkpoint-5" / "state.json", {"step": 5, "weights": list(range(99))})
    fit.seal(folder / "trainer" / "checkpoint-5")
    for path in (folder / "trainer" / "checkpoint-5").iterdir():
        made.append((path, lambda: fit._problem(folder / "trainer" / "checkpoint-5") != ""))
    write_json(folder / "data.json", {"kept": 1})
    files = artifact.manifest(folder, ["data.json"])
    write_sealed(mark_path(folder, 0), {"files": files, "result": {"counts": {"in": 1}}, "spent": {"pid": 1}})
    for path in (folder / "data.json", mark_path(folder, 0)):
        made.append((path, lambda: finished_rank(folder, 0) is None))
    return made


def test_every_flipped_bit_is_found_before_use(recipe, kept, times, tmp_path):
    flips = Flips(recipe, kept, tmp_path)
    assets = sorted({cell.asset for cell in flips.cells})
    number = times(short=60, long=1000)
    told = [flips.one(assets[turn % len(assets)]) for turn in range(number)]
    flipped, found = Counter(kind for kind, _ in told), Counter(kind for kind, was_found in told if was_found)
    print(f"{number} bits flipped in {len(assets)} assets, found: {dict(found)}")
    assert found == flipped and states(compare(recipe, kept)) == {}


# Verdicts


def turned_round(cell, *, seals: bool, refers: bool, root: Path, strips: bool = False) -> None:
    """Write the opposite of a gate's verdict into a record.

    With `seals` its own digests fit, with `refers` its reference does. With `strips` the record and the
    reference have no digests of the record and no checksums, and the copy is gone.
    """
    path = cell.artifact.path
    text = (path / artifact.ARTIFACT_FILE).read_text("utf-8")
    record = json.loads(text)
    gate = record["gates"][0]
    gate["passed"] = not gate["passed"]
    if strips:
        old = {name: value for name, value in record.items() if name not in ("record_digest", "checksum", "guards")}
        write_json(path / artifact.ARTIFACT_FILE, old)
        (path / artifact.COPY_FILE).unlink()
        if refers:
            plain = {"fingerprint": cell.fingerprint, "digest": cell.artifact.digest}
            write_json(reference_path(root, *cell.key), plain)
        return
    if seals:
        artifact.commit_record(path, record)
    else:
        (path / artifact.ARTIFACT_FILE).write_text(json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False))
    if refers:
        write_reference(root, artifact.Artifact(path=path, record=record), cell.partition)


@pytest.mark.parametrize(
    "level", ["edited", "sealed", "sealed and referred to", "stripped", "stripped and referred to"]
)
def test_a_verdict_that_was_turned_round_is_found_before_use(recipe, copied, level):
    before = compare(recipe, copied)
    cell = before.cells[REPORT]
    item, decision = (
        input_of(cell),
        job_of(before.cells[DECISION], before, load_profile("local").size_for("promoted_model")),
    )
    strips = level.startswith("stripped")
    turned_round(cell, seals=level != "edited", refers="referred" in level, root=copied, strips=strips)
    comparison = compare(recipe, copied)
    assert states(comparison) == {REPORT: "damaged"}
    assert refuses(RefusedInput, artifact.check_input, item)
    again = replace(decision, output=str(copied / "again"))
    assert refuses(RefusedInput, run_job, again, EVALUATION_STAGES)  # the next stage's own job
    assert {cell.key for cell, _ in checked(comparison).problems} == {REPORT}
    assert unfit(comparison) and not unfit(before)  # nor does a promotion act upon it


def test_what_nothing_was_made_from_is_held_against_what_dagster_was_told(recipe, copied):
    cell = compare(recipe, copied).cells[DECISION]
    turned_round(cell, seals=True, refers=True, root=copied)
    comparison = compare(recipe, copied)
    assert states(comparison) == {}
    told = [line for cell, line in checked(comparison).problems if cell.key == DECISION]
    assert "Dagster was told" in told[0] and len(told) == len(checked(comparison).problems)


def test_another_artifact_s_record_is_none_of_this_one(recipe, copied):
    one, other = (compare(recipe, copied).cells["token_shards", f"kitchen-small@kitchen-{n}"].artifact for n in (1, 2))
    for name in (artifact.ARTIFACT_FILE, artifact.COPY_FILE):
        shutil.copy(other.path / name, one.path / name)
    assert states(compare(recipe, copied)) == {("token_shards", "kitchen-small@kitchen-1"): "damaged"}


# Files that are no longer what they were

GARBLED = {
    "empty": b"",
    "no JSON": b'{"asset": ',
    "no text": b"\xff\xfe\x00",
    "no mapping": b"[1, 2]",
    "nothing in it": b"{}",
    "wrong types": b'{"fingerprint": 3, "digest": null, "files": 7, "gates": {"a": 1}, "inputs": "x", "metrics": []}',
}


def test_a_garbled_file_is_a_state_of_one_cell_and_everything_else_goes_on(recipe, copied):
    cells = list(compare(recipe, copied).cells.values())
    lost, restorable, referred = (cells[start::3][: len(GARBLED)] for start in range(3))
    for content, *chosen in zip(GARBLED.values(), lost, restorable, referred, strict=True):
        for name in (artifact.ARTIFACT_FILE, artifact.COPY_FILE):
            (chosen[0].artifact.path / name).write_bytes(content)
        (chosen[1].artifact.path / artifact.ARTIFACT_FILE).write_bytes(content)
        reference_path(copied, *chosen[2].key).write_bytes(content)
        for name in ("job.json", "recipe.json", "handle.json"):
            (chosen[1].artifact.path / name).write_bytes(content)

    comparison = compare(recipe, copied)
    damaged = [comparison.cells[cell.key] for cell in (*lost, *restorable, *referred)]
    assert states(comparison) == {cell.key: "damaged" for cell in damaged}
    assert {cell.key for cell in damaged if cell.artifact is None} == {cell.key for cell in lost}
    assert all(cell.reasons and cell.way_out for cell in damaged)
    assert not {cell.key for cell in cells_due(comparison)} & {cell.key for cell in lost}  # left to a person
    for command, code in (("status", 0), ("verify", 1), ("report", 0), ("inspect", 0)):
        asked = ["filtered_documents", "kitchen-small"] if command == "inspect" else ["kitchen-small"]
        output = ["--output", str(copied / "report.html")] if command == "report" else []
        said = CliRunner().invoke(cli.app, [command, *asked, "--root", str(copied), *output, "--json"])
        assert said.exit_code == code, (command, said.output)


def test_a_lost_training_is_done_again_only_when_somebody_says_so(recipe, copied):
    cell = compare(recipe, copied).cells["base_model", "kitchen-small"]
    for name in (artifact.ARTIFACT_FILE, artifact.COPY_FILE):
        (cell.artifact.path / name).write_bytes(b"{")
    comparison = compare(recipe, copied)
    with pytest.raises(DataError, match=r"base_model .* is damaged .*--start-anew"):
        check_begun(comparison.cells[cell.key], comparison)


def test_a_run_puts_back_what_can_be_and_makes_the_rest_again(recipe, copied):
    before = compare(recipe, copied).cells
    kept, lost, referred = (before[asset, "kitchen-small"] for asset in ("base_model", "instruction_data", "tokenizer"))
    (kept.artifact.path / artifact.ARTIFACT_FILE).write_bytes(b"{")
    for name in (artifact.ARTIFACT_FILE, artifact.COPY_FILE):
        (lost.artifact.path / name).write_bytes(b"{")
    reference_path(copied, *referred.key).write_bytes(b"")
    said = []
    report = run_recipe(
        recipe,
        copied,
        profile="local",
        until=None,
        snapshots=(),
        announce=lambda kind, cell, values: said.append((kind, cell.asset, values.get("text", ""))),
    )
    after = compare(recipe, copied)
    assert report.exit_code == 0 and states(after) == {}
    assert [asset for kind, asset, _ in said if kind == "made"] == ["instruction_data"]  # no training was done again
    told = {asset for _, asset, text in said if "damaged" in text}
    assert told == {"base_model", "instruction_data", "tokenizer"}
    again = after.cells[lost.key].artifact
    assert again.digest == lost.artifact.digest
    assert lost.artifact.record_digest in again.claims  # what was made from it still knows it
    assert after.cells[kept.key].artifact.record == kept.artifact.record
    assert len(list(lost.artifact.path.parent.glob("*.damaged-*"))) == 1
    assert checked(after).problems == []


def test_a_damaged_file_is_set_aside_when_somebody_asks(recipe, copied):
    cell = compare(recipe, copied).cells["preference_data", "kitchen-small"]
    file = next(entry["path"] for entry in cell.artifact.record["files"] if entry["bytes"])
    flip(cell.artifact.path / file, 100)
    assert states(compare(recipe, copied)) == {}  # files are read by verify and by jobs, not by status
    (problem,) = checked(compare(recipe, copied), mend=True).problems
    assert problem[0].key == cell.key
    assert states(compare(recipe, copied))[cell.key] == "outdated"
    assert len(list(cell.artifact.path.parent.glob("*.damaged-*"))) == 1


# Damaged files and people


def refused(monkeypatch, capsys, root, *arguments) -> str:
    """What a command says as it refuses."""
    monkeypatch.setattr("sys.argv", ["pedigree", *arguments, "--root", str(root)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (1, 2), arguments
    return capsys.readouterr().err


def test_no_command_shows_or_uses_a_file_with_a_flipped_bit(recipe, kept, monkeypatch, capsys, tmp_path):
    cells = compare(recipe, kept).cells
    folder = {asset: cell.artifact.path for (asset, _), cell in cells.items()}
    name, new = recipe.name, str(tmp_path / "new")
    model, registered = folder["aligned_model"] / "model", f"models:/{name}@champion"
    uses = {
        model / "model.safetensors": [
            ("chat", name, "--prompt", "x"),
            ("serve", name),
            ("serve", str(model)),
            ("serve", registered),
            ("evaluate", str(model.parent), "--suites", name),
            ("evaluate", registered, "--suites", name),
            ("export", name, new),
        ],
        folder["model_card"] / "README.md": [("export", name, f"{new}-2")],
        folder["model_scores"] / "scores.json": [
            ("export", name, f"{new}-3"),
            ("report", name, "--output", str(tmp_path / "report.html")),
            ("compare", name, registered),
        ],
        folder["contamination_report"] / "contamination.json": [
            ("report", name, "--output", str(tmp_path / "report.html"))
        ],
        next((folder["filtered_documents"] / "dropped").iterdir()): [("inspect", "filtered_documents", name)],
        next(folder["provenance_index"].rglob("*.npy")): [("trace", name, "--url", "http://a.example/")],
        next(folder["text_index"].rglob("*.npy")): [("trace", name, "--text", "a " * 20)],
    }
    for path, commands in uses.items():
        flip(path, 8 * (path.stat().st_size // 2))
        try:
            told = {command: refused(monkeypatch, capsys, kept, *command) for command in commands}
        finally:
            flip(path, 8 * (path.stat().st_size // 2))
        assert [command for command, said in told.items() if path.name not in said] == [], told


def test_a_file_that_somebody_put_into_a_model_is_found_before_use(recipe, copied, monkeypatch, capsys):
    """Libraries read a model's whole folder, and this file alone would say that another token ends an answer."""
    before = compare(recipe, copied)
    cell = before.cells["aligned_model", recipe.name]
    foreign = cell.artifact.path / "model" / "special_tokens_map.json"
    foreign.write_text('{"eos_token": "a"}')
    item = input_of(cell)
    assert refuses(RefusedInput, artifact.check_input, item)
    assert all(refuses(RefusedInput, item.file, name) for name in (".", "model", "model/special_tokens_map.json"))
    assert any(str(foreign) in line for line in unfit(before))
    assert str(foreign) in refused(monkeypatch, capsys, copied, "chat", recipe.name, "--prompt", "x")
    first, *others = checked(before, mend=True).problems
    assert str(foreign) in first[1] and {one.key for one, _ in (first, *others)} == {cell.key}
    assert states(compare(recipe, copied)) == {} and checked(before).problems == []  # the model itself was whole
    assert not foreign.exists() and len(list(cell.artifact.path.parent.glob("*.damaged-*/model/special_tokens*"))) == 1


@pytest.mark.parametrize(("asset", "name"), [("aligned_model", "model/model.safetensors"), ("model_scores", None)])
def test_a_changed_file_is_not_excused_by_a_list_of_what_takedowns_erased(recipe, copied, asset, name):
    """Whoever changes a file can write such a list with all checksums; none is in a record, in Dagster or in MLflow."""
    before = compare(recipe, copied)
    cell = before.cells[asset, recipe.name]
    names = [entry["path"] for entry in cell.artifact.record["files"] if name in (None, entry["path"])]
    name = next(one for one in names if name or one.startswith("samples/"))
    data = (cell.artifact.path / name).read_bytes() + b" "
    (cell.artifact.path / name).write_bytes(data)
    sha256, state = hashlib.sha256(data).hexdigest(), {"takedown": 1, "is_input": True, "pages": 0}
    erased.note_erased(cell.artifact.path, name, erased.ErasedState(**state, bytes=len(data), sha256=sha256))
    assert {one.key for one, _ in checked(before).problems} == {cell.key}
    assert any(name in line for line in unfit(before))
    if asset == "aligned_model":
        assert refuses(RefusedInput, input_of(cell).file, "model")

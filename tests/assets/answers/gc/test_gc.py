"""`pedigree gc`: what is needed stays, whoever needs it; what goes, goes whole, also if killed or a run begins."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from assets.answers.gc import removal as trash
from assets.answers.gc.removal import collect
from assets.answers.gc.unneeded import Look
from assets.materialize import materialize
from assets.materialize.watchers import Watching
from assets.state import recipe_folders as recipe_folders_module
from assets.state import removal_lock as undisturbed
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from assets.state.references import reference_path, write_reference
from assets.state.removal_lock import nobody_looks, nothing_removed
from resources.profile import load_profile
from resources.tracking.reports import Tracking
from resources.tracking.versions import of_client, registered_versions
from tests.assets.fabricate import make_all
from tests.commands import printed, profile_file, said
from training.contract import artifact
from training.contract.job import DataError
from training.contract.running.lease import Lease

NAME = "collected"
RECIPES = Path(__file__).parents[3] / "recipes"


def write(root, changes=""):
    """Save the recipe under the root, as `run PATH` does, and make everything that it asks for."""
    (root / "recipes").mkdir(parents=True, exist_ok=True)
    (root / "recipes" / f"{NAME}.yaml").write_text(f"extends: kitchen-small\nname: {NAME}\n{changes}")
    return make_all(load_recipe(NAME, recipe_folders(root)), root)


@pytest.fixture(autouse=True)
def recipes(monkeypatch, tmp_path_factory):
    """Only the recipes of the tests and their bases, because each look compares all that are shipped."""
    shipped = tmp_path_factory.mktemp("shipped")
    for name in ("kitchen", "kitchen-nightly"):
        shutil.copyfile(recipe_folders_module.SHIPPED / f"{name}.yaml", shipped / f"{name}.yaml")
    monkeypatch.setattr(recipe_folders_module, "SHIPPED", shipped)
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A root with a recipe whose alignment was changed after all was made, and the folders that this left behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEDIGREE_RECIPES", str(RECIPES))
        root = tmp_path_factory.mktemp("gc") / "root"
        before = write(root, "align: {beta: 0.3}\n")
        after = write(root, "align: {beta: 0.2}\n")
    old = {cell.artifact.path for cell in before.cells.values()} - {cell.artifact.path for cell in after.cells.values()}
    assert {path.parent.name for path in old} >= {"aligned_model", "model_scores", "promoted_model"}
    return root, old


@pytest.fixture
def root(made, tmp_path):
    return Path(shutil.copytree(made[0], tmp_path / "root"))


@pytest.fixture
def old(made, root):
    """The folders that nothing needs any more, in this test's own copy of the root."""
    return {root / path.relative_to(made[0]) for path in made[1]}


def look(root, profile="local"):
    return Look(root, load_profile(profile))


def listed(root, told):
    return {root / entry["path"] for entry in told["entries"]}


def tree(root):
    """Every file under the root but the locks and the table of known checksums."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root) for path in files if "lock" not in path.name and path.name != "sources.sqlite"}


def test_what_nothing_needs_is_listed_and_removed_only_when_told(root, old, monkeypatch, capsys):
    before = tree(root)
    code, last, _ = said(monkeypatch, capsys, "gc", "--root", str(root), "--json")
    told = json.loads(last)
    assert code == 0 and listed(root, told) == old and tree(root) == before and not told["removed"]
    size = sum(path.stat().st_size for folder in old for path in folder.rglob("*") if path.is_file())
    assert told["bytes"] == size == sum(of["bytes"] for of in told["assets"].values())
    code, last, _ = said(monkeypatch, capsys, "gc", "--root", str(root))
    assert f"{len(old)} can be removed by --yes, " in last
    code, last, _ = said(monkeypatch, capsys, "gc", "--yes", "--root", str(root))
    assert code == 0 and f"{len(old)} removed, " in last
    assert tree(root) == {path for path in before if not any((root / path).is_relative_to(one) for one in old)}
    assert {cell.state for cell in compare(load_recipe(NAME, recipe_folders(root)), root).cells.values()} == {"made"}
    assert not list(root.glob("*/trash")) and not collect(look(root), removes=True)["entries"]


def test_lines_fit_a_terminal(root, old, monkeypatch, capsys):
    lines = printed(monkeypatch, capsys, "gc", "--root", str(root))[1].splitlines()
    assert max(map(len, lines)) <= 80 and any(line.startswith("aligned_model: ") for line in lines)


def test_a_registered_version_keeps_everything_that_it_was_made_from(root, old, tmp_path):
    """The registry is MLflow's own, named by the profile; the root has none."""
    profile = profile_file(tmp_path, f"tracking_uri: sqlite:///{tmp_path}/registry.db\n")
    model = next(path for path in old if path.parent.name == "aligned_model")
    client = look(root, profile)._tracking.client()
    client.create_registered_model("a")
    version = client.create_model_version("a", "/nowhere", tags={"digest": artifact.find(model).digest})
    told = collect(look(root, profile), removes=True)
    assert model.is_dir() and listed(root, told) == old - {model}
    client.delete_model_version("a", version.version)
    assert listed(root, collect(look(root, profile), removes=True)) == {model} and not model.exists()


def test_a_version_beyond_the_first_page_of_the_registry_counts(root, old, tmp_path):
    tracking = Tracking(f"sqlite:///{tmp_path}/registry.db", root)
    client = tracking.client()
    for number in range(101):
        client.create_registered_model(f"m{number:03d}")
    client.create_model_version("m100", "/nowhere")
    assert [one.name for one in of_client(tracking)] == ["m100"] == [one.name for one in registered_versions(tracking)]


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "sqlite:///{}/gone.db"])
def test_without_an_answer_of_the_registry_nothing_is_removed(root, tmp_path, monkeypatch, capsys, uri):
    profile, before = profile_file(tmp_path, f"tracking_uri: {uri.format(tmp_path)}\n"), tree(root)
    code, last, _ = said(monkeypatch, capsys, "gc", "--yes", "--json", "--root", str(root), "--profile", profile)
    answer = json.loads(last)
    assert code == 2 and not answer["ok"] and "registered versions" in answer["error"]
    assert tree(root) == before


def test_a_store_to_which_runs_were_sent_and_that_is_gone_is_no_empty_store(root):
    tracking = Tracking("", root, in_background=False)
    tracking.launch("l", "r", "d")
    assert tracking.replay()
    collect(look(root), removes=False)
    tracking.store.unlink()
    with pytest.raises(DataError, match="database"):
        collect(look(root), removes=True)


def test_work_under_way_keeps_its_folder_and_what_its_job_reads(root, old):
    """A real lease, and a run that waits; both are on a folder whose job reads an artifact that nothing else needs."""
    model = next(path for path in old if path.parent.name == "aligned_model")
    folder = root / "model_scores" / ("a" * 32)
    folder.mkdir()
    entry = {"asset": "aligned_model", "partition": NAME, "fingerprint": model.name, "digest": "d", "path": str(model)}
    (folder / "job.json").write_text(json.dumps({"inputs": [entry], "recipe": NAME, "partition": NAME}))
    for working in (Lease(folder), Watching(folder, run_id="r")):
        with working:
            told = collect(look(root), removes=False)
            assert not {folder, model} & listed(root, told) and str(folder.name[:12]) in "".join(told["notes"])
    assert {folder, model} <= listed(root, collect(look(root), removes=True)) and not model.exists()


def test_a_lease_of_another_machine_counts_until_it_is_old(root, old):
    folder = min(old)
    lease = {"owner": "other:1:x", "token": 1, "beat": 0, "process": {"machine": "other", "pid": 1, "start": "1"}}
    (folder / "lease.json").write_text(json.dumps(lease))
    assert folder not in listed(root, collect(look(root), removes=False))
    os.utime(folder / "lease.json", (1, 1))
    assert folder in listed(root, collect(look(root), removes=False))


def test_a_damaged_record_keeps_the_artifact_and_its_origin(root, old):
    """With the copy of the record its inputs are known; without it everything that it may have been made from stays."""
    model = next(path for path in old if path.parent.name == "aligned_model")
    scores = next(path for path in old if path.parent.name == "model_scores")
    (scores / "artifact.json").write_bytes((scores / "artifact.json").read_bytes().replace(b'"seconds"', b'"secondz"'))
    told = collect(look(root), removes=False)
    assert not {model, scores} & listed(root, told) and any(str(scores) in note for note in told["notes"])
    (scores / "artifact.copy.json").unlink()
    told = collect(look(root), removes=True)
    assert model.is_dir() and scores.is_dir() and "nobody knows" in "".join(told["notes"])
    assert {path.parent.name for path in listed(root, told)} >= {"promoted_model"}


def test_a_record_that_was_changed_and_sealed_again_keeps_its_origin(root):
    """A record that no longer names its inputs would free them; its reference holds another digest of it."""
    comparison = compare(load_recipe(NAME, recipe_folders(root)), root)
    made = comparison.cells["aligned_model", NAME].artifact
    for path in (root / "refs").rglob("*.json"):
        if path.parent.name != "aligned_model":
            path.unlink()
    shutil.rmtree(root / "recipes")
    kept = collect(look(root), removes=False)["kept"]
    artifact.commit_record(made.path, made.record | {"inputs": [], "guards": [], "settings": {}})
    told = collect(look(root), removes=False)
    assert told["kept"] >= kept and "its reference" in "".join(told["notes"])


def test_a_reference_keeps_a_model_and_nothing_of_a_kept_step(tmp_path):
    """Fine-tuning may begin with a step, and yet its model is no step."""
    root = tmp_path / "root"
    write(root, "pretrain: {keep: {steps: [2, 4], average: {steps: all}}}\n")
    shutil.rmtree(root / "recipes")
    gone = {root / entry["path"] for entry in collect(look(root), removes=False)["entries"]}
    assert {path.parent.name for path in gone} == {"kept_steps", "step_scores", "learning_curves", "averaged_model"}


def test_a_damaged_reference_keeps_all_of_its_asset(root, old):
    reference_path(root, "aligned_model", NAME).write_text("{")
    told = collect(look(root), removes=True)
    assert "aligned_model" not in told["assets"] and "reference" in "".join(told["notes"])


def test_a_recipe_that_cannot_be_read_stops_everything(root, old, monkeypatch, capsys):
    (root / "recipes" / "draft.yaml").write_text("extends: kitchen\nname: draft\nfiltre: {}\n")
    code, _, errors = said(monkeypatch, capsys, "gc", "--yes", "--root", str(root))
    assert code == 2 and "draft.yaml" in errors and "filtre" in errors and all(path.is_dir() for path in old)


def test_an_unfinished_training_of_a_recipe_stays_and_of_no_recipe_goes(root):
    recipe = load_recipe(NAME, recipe_folders(root))
    cell = compare(recipe, root).cells["base_model", NAME]
    (cell.artifact.path / "artifact.json").unlink()
    (cell.artifact.path / "artifact.copy.json").unlink()
    reference_path(root, "base_model", NAME).unlink()
    nobody = root / "base_model" / ("b" * 32)
    (nobody / "scratch" / "checkpoints" / "step-00000040").mkdir(parents=True)
    told = collect(look(root), removes=False)
    assert nobody in listed(root, told) and cell.artifact.path not in listed(root, told)
    assert "at step 40" in next(one["why"] for one in told["entries"] if one["path"] in str(nobody))


def test_a_replaced_artifact_stays_while_a_version_or_reference_has_its_digest(root, old):
    """Made again under the same fingerprint with another result: the old result lies beside it."""
    recipe = load_recipe(NAME, recipe_folders(root))
    made = compare(recipe, root).cells["aligned_model", NAME].artifact
    aside = made.path.with_name(f"{made.path.name}.replaced-1")
    made.path.rename(aside)
    (made.path / "model").mkdir(parents=True)
    assert aside not in listed(root, collect(look(root), removes=False))
    shutil.rmtree(made.path)
    shutil.copytree(aside, made.path)
    told = collect(look(root), removes=False)
    assert aside not in listed(root, told)  # a copy of the same digest: either may be the one that is meant
    write_other(made)
    assert aside not in listed(root, collect(look(root), removes=False))  # the scores were made from the old result
    write(root, "align: {beta: 0.2, epochs: 2.0}\n")
    assert aside in listed(root, collect(look(root), removes=False))


def write_other(made):
    (made.path / "data.txt").write_text("another result")
    files = artifact.manifest(made.path, ["data.txt"])
    artifact.commit_record(made.path, made.record | {"files": files, "digest": artifact.digest_of_files(files)})


# Kills, and runs beside it


class Killed(BaseException):
    """Stands for a SIGKILL: nothing after it is done."""


def test_killed_at_any_step_and_run_again_it_ends_the_same(root, old, tmp_path, monkeypatch):
    """Before each rename and each removal of a file or folder, in turn."""
    for path in sorted(old)[2:]:
        shutil.rmtree(path)
    eyes, spare = look(root), Path(shutil.copytree(root, tmp_path / "spare"))
    collect(eyes, removes=True)
    wanted, kill_at, was_killed = tree(root), 0, True
    while was_killed:
        kill_at, was_killed = kill_at + 1, False
        shutil.rmtree(root)
        shutil.copytree(spare, root)
        with monkeypatch.context() as patch:
            steps = iter(range(1, 1000))
            for name in ("rename", "unlink", "rmdir"):
                patch.setattr(os, name, killing(getattr(os, name), steps, kill_at))
            try:
                collect(eyes, removes=True)
            except Killed:
                was_killed = True
        collect(eyes, removes=True)
        assert tree(root) == wanted, f"killed at step {kill_at}"
        assert not list(root.glob("*/trash"))
    assert kill_at > 10


def killing(original, steps, kill_at):
    def act(*arguments, **options):
        if next(steps) == kill_at:
            raise Killed
        return original(*arguments, **options)

    return act


def test_killed_by_the_system_and_run_again_it_ends_the_same(root, old):
    """A process of its own, killed as soon as something lies in a trash; what is there is put back or removed."""
    command = "from assets.commands.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", command, "gc", "--yes", "--root", str(root)])
    while process.poll() is None and not list(root.glob("*/trash/*")):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    collect(look(root), removes=True)
    assert not any(path.exists() for path in old) and not list(root.glob("*/trash"))
    assert {cell.state for cell in compare(load_recipe(NAME, recipe_folders(root)), root).cells.values()} == {"made"}


@pytest.fixture
def wanted_late(root, old, monkeypatch):
    """An artifact that a run points to just when it is renamed, as on a file system without locks.

    What is added to `then` is called at that moment too.
    """
    model = next(path for path in old if path.parent.name == "aligned_model")
    made, then = artifact.find(model), []

    def renamed(folder, original=trash._into_trash):
        original(folder)
        if folder.path == model:
            write_reference(root, made, "another")
            for act in then:
                act()

    monkeypatch.setattr(trash, "_into_trash", renamed)
    return model, made, then


def test_what_somebody_needs_after_the_rename_is_put_back(root, old, wanted_late):
    model, made, _ = wanted_late
    told = collect(look(root), removes=True)
    assert told["put_back"] == [str(model.relative_to(root))] and artifact.find(model).digest == made.digest
    assert not any(path.exists() for path in old - {model}) and not list(root.glob("*/trash"))
    assert told["bytes"] == sum(one["bytes"] for one in told["entries"] if one["path"] not in told["put_back"])


def test_put_back_beside_what_is_being_made_again(root, wanted_late):
    model, made, then = wanted_late
    then.append(lambda: artifact.write_text(model / "job.json", "{}"))
    (back,) = collect(look(root), removes=True)["put_back"]
    assert back.startswith(f"aligned_model/{model.name}.replaced-") and artifact.find(root / back).digest == made.digest
    assert back not in json.dumps(collect(look(root), removes=True)["entries"])


def test_nothing_is_renamed_while_a_run_compares(root, old, monkeypatch):
    monkeypatch.setattr(undisturbed, "PATIENCE_SECONDS", 0.0)
    with nothing_removed(root), pytest.raises(DataError, match="been starting"):
        collect(look(root), removes=True)
    assert all(path.is_dir() for path in old)
    with undisturbed.only_one(root, "gc.one.lock", "gc"), pytest.raises(DataError, match="another `pedigree gc`"):
        collect(look(root), removes=True)


def test_a_materialization_holds_the_lock_until_its_job_names_what_it_reads(tmp_path, monkeypatch):
    """What Dagster gives it does not matter here; the lock and the order do."""
    monkeypatch.setattr(undisturbed, "PATIENCE_SECONDS", 0.0)
    seen = []

    def is_free():
        try:
            with nobody_looks(tmp_path):
                return True
        except DataError:
            return False

    def make(cell, comparison, pipeline, watch, *, begun):
        seen.append(is_free())
        begun()
        seen.append(is_free())

    monkeypatch.setattr(materialize, "asked_of", lambda *_: (seen.append(is_free()), None))
    monkeypatch.setattr(materialize, "make", make)
    monkeypatch.setattr(materialize, "Watch", SimpleNamespace(of=lambda *_: None))
    monkeypatch.setattr(materialize, "result_of", lambda *_: None)
    context = SimpleNamespace(asset_key=SimpleNamespace(path=["base_model"]))
    materialize.materialize(context, SimpleNamespace(root_path=tmp_path))
    assert seen == [False, False, True]


# Leftovers


def test_leftovers_of_killed_writers_go_and_those_of_living_ones_stay(root, old):
    script = (
        "import os, signal, sys; from pathlib import Path; from training.contract.files.writing import written\n"
        "with written(Path(sys.argv[1]), durable=False) as stream:\n"
        "    stream.write(b'half'); stream.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(root / "refs" / "base_model" / "x.json")], check=False)
    (dead,) = (root / "refs" / "base_model").glob(".x.json.*.tmp")
    kept = compare(load_recipe(NAME, recipe_folders(root)), root).cells["base_model", NAME].artifact.path
    shutil.copy(dead, kept / dead.name)
    (kept / "scratch").mkdir()
    (kept / "scratch" / "state.bin").write_bytes(b"12345")
    living, unknown = kept / ".a.json.123.tmp", root / "refs" / ".b.json.123.tmp"
    living.write_text("")
    unknown.write_text("")
    os.utime(unknown, (1, 1))
    told = collect(look(root), removes=False)
    gone = {dead, kept / dead.name, unknown, kept / "scratch"}
    assert listed(root, told) == old | gone
    assert next(one["bytes"] for one in told["entries"] if one["kind"] == "state") == 5
    with Lease(kept):
        assert not {kept / "scratch", kept / dead.name} & listed(root, collect(look(root), removes=False))
    collect(look(root), removes=True)
    assert living.exists() and not any(path.exists() for path in gone) and artifact.find(kept) is not None

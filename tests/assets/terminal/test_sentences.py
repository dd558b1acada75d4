"""Faults of the root, its databases and the tracker are sentences with the right exit code."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from assets.commands.cli import COMMANDS
from assets.state.recipe_folders import load_recipe
from assets.terminal.errors import LEAVES, interrupted, sentence_of
from tests.assets.fabricate import make_all
from tests.commands import printed
from tests.small_kitchen import RECIPES, pedigree

SMALL = ("run", "kitchen-small", "--snapshots", "kitchen-1", "--until", "crawl_archives")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A root in which everything is made, so that `run` has only the registry to ask."""
    root = tmp_path_factory.mktemp("made")
    make_all(load_recipe(str(RECIPES / "kitchen-small.yaml")), root)
    return root


def sentence(ran, code):
    assert ran.code == code and "Traceback" not in ran.errors and ran.answer["ok"] is False, ran.errors
    assert ran.answer["error"] and f"error: {ran.answer['error']}" in ran.errors
    return ran.answer["error"]


def test_a_root_that_cannot_be_is_said_before_anything_starts(tmp_path):
    (tmp_path / "file").write_text("a person's own")
    (tmp_path / "loop").symlink_to("loop")
    for command in (SMALL, ("status", "kitchen-small")):
        for root in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "loop"):
            assert f"--root {root}: " in sentence(pedigree(*command, root=root), 2)
    assert "be written" in sentence(pedigree(*SMALL, root=Path("/proc/nothing")), 2)
    assert (tmp_path / "file").read_text() == "a person's own"


def test_a_recipe_in_the_folder_of_kept_recipes_stays_as_its_author_wrote_it(tmp_path):
    written = tmp_path / "recipes" / "mine.yaml"
    written.parent.mkdir()
    written.write_text("# by hand\nextends: kitchen-small\nname: mine\n")
    assert pedigree("run", str(written), *SMALL[2:], root=tmp_path).code == 0
    assert written.read_text() == "# by hand\nextends: kitchen-small\nname: mine\n"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://127.0.0.1:1", "MLflow at http://127.0.0.1:1 could not be asked: it does not answer"),
        ("sqlite:////proc/nothing/mlflow.db", "MLflow at sqlite:////proc/nothing/mlflow.db could not be asked"),
    ],
)
def test_a_tracker_that_cannot_be_asked_is_a_sentence(made, tmp_path, address, said):
    profile = tmp_path / "profile.yaml"
    profile.write_text(f"name: p\ntracking_uri: {address}\n")
    ran = pedigree("run", "kitchen-small", "--profile", str(profile), root=made)
    assert ran.code == 1 and "Traceback" not in ran.errors and said in f"{ran.answer}{ran.errors}", ran.errors


def test_a_damaged_database_of_dagster_is_a_sentence_with_a_way_out(tmp_path):
    for name in ("runs.db", "index.db"):
        (tmp_path / "dagster" / "history" / "runs").mkdir(parents=True, exist_ok=True)
        (tmp_path / "dagster" / "history" / name).write_bytes(b"no database" * 1000)
        (tmp_path / "dagster" / "history" / "runs" / name).write_bytes(b"no database" * 1000)
    said = sentence(pedigree(*SMALL, root=tmp_path), 1)
    assert f"{tmp_path / 'dagster'}: it is damaged" in said


@pytest.mark.parametrize(
    ("name", "command", "code", "said"),
    [
        ("dagster/history/runs.db", SMALL, 1, "a database under {root}/dagster: another process holds it locked"),
        ("mlflow.db", ("trace", "kitchen-small", "--lineage"), 2, "another process holds its database locked"),
    ],
)
def test_a_locked_database_is_a_sentence(tmp_path, name, command, code, said):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as holder:
        holder.execute("CREATE TABLE a (b)")
    holder.execute("BEGIN EXCLUSIVE")
    ran = pedigree(*command, root=tmp_path)
    holder.close()
    assert said.format(root=tmp_path) in sentence(ran, code)
    assert "end that process" in ran.errors


def test_an_error_of_the_program_itself_is_no_sentence():
    assert sentence_of(KeyError("a bug")) == ""


@pytest.mark.parametrize(
    ("command", "function", "said"),
    [
        ("chat kitchen", "assets.commands.models._made", "the conversation is not kept"),
        ("evaluate folder --suites kitchen", "assets.answers.models.outside.suites_of", "no score is kept"),
        ("status kitchen", "assets.commands.look.compare", "nothing was written"),
    ],
)
def test_ctrl_c_ends_each_command_with_a_sentence_of_its_own(tmp_path, monkeypatch, capsys, command, function, said):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(function, interrupt)
    code, _, errors = printed(monkeypatch, capsys, *command.split(), "--root", str(tmp_path / "r"))
    assert code == 130 and errors == f"interrupted by Ctrl-C; {said}\n"


def test_what_ctrl_c_leaves_is_said_of_commands_that_exist():
    assert LEAVES.keys() <= {command.__name__.rstrip("_") for command in COMMANDS}
    assert interrupted("run") == "interrupted by Ctrl-C; what is finished is used when you run again"

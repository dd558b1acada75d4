"""What the command line says before any work starts; what it says to bad input is in test_bad_inputs.py."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from assets.answers.status.lines import show_scoreboard, status_lines
from assets.commands.cli import COMMANDS, app
from assets.graph.pipeline import Pipeline
from assets.materialize import make as making
from assets.materialize.causes import StageFailed
from assets.materialize.jobs import job_of
from assets.materialize.make import make
from assets.run.result import Report
from assets.services import dev
from assets.state.chain import CHAIN, GROUPS
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from resources.profile import Size
from tests.assets.fabricate import make_all
from tests.commands import profile_file, said
from training.contract.artifact import checkpoint_step
from training.contract.job import write_job


def test_fp8_that_cannot_be_or_gains_nothing_is_said_before_any_work(monkeypatch, capsys, tmp_path):
    recipe = tmp_path / "small.yaml"
    recipe.write_text("extends: kitchen\nname: small\npretrain: {precision: fp8}\n")
    for size, said_of_it in (
        ("{}", "base_model: pretrain.precision=fp8 with gpus_per_node=0"),
        ("{gpus_per_node: 1, compile: blocks}", "pretrain.precision=fp8 does not pay: on "),
    ):
        profile, root = profile_file(tmp_path, f"stages: {{base_model: {size}}}\n"), tmp_path / "r"
        code, _, errors = said(monkeypatch, capsys, "run", str(recipe), "--profile", profile, "--root", str(root))
        assert code == 2 and said_of_it in errors and not root.exists()


def test_nobody_is_asked_to_talk_to_a_model_that_was_not_made(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    show_scoreboard(compare(load_recipe("kitchen"), tmp_path / "my [red] runs"), Report(recipe="kitchen"))
    said = capsys.readouterr().out
    assert "chat" not in said
    whole = Path(sys.executable).parent / "pedigree"  # where the shell does not find it
    assert f" {whole} dev --root 'my [red] runs'\n" in said


@pytest.mark.parametrize("columns", [50, 80])
def test_a_terminal_of_any_width_breaks_the_text_of_a_command_where_it_ends(columns):
    for command in COMMANDS:
        lines = said_of(command.__name__.rstrip("_"), columns)
        text = [line.strip() for line in lines[2 : next(n for n, line in enumerate(lines) if "╭" in line)]]
        short = [
            (line, after)
            for line, after in pairwise(text)
            if line and after and len(line) + 1 + len(after.split()[0]) <= columns - 2
        ]
        assert not short, command.__name__


def said_of(command: str, columns: int) -> list[str]:
    answer = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": str(columns)})
    return answer.output.splitlines()


def test_a_shell_completes_commands_recipes_profiles_and_assets(tmp_path):
    script = Path(sys.executable).with_name("pedigree")

    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": f"pedigree {line}", "COMP_CWORD": str(len(line.split()))}
        told = os.environ | words | {"_PEDIGREE_COMPLETE": "complete_bash"}
        return subprocess.run([script], env=told, cwd=tmp_path, capture_output=True, text=True).stdout.split()

    assert completed("doc") == ["doctor"]
    assert {"kitchen", "kitchen-leak"} <= set(completed("run kit")) and completed("run own-m") == ["own-model"]
    assert completed("run kitchen --profile sl") == ["slurm"]
    assert completed("why filt") == completed("run kitchen --until filt") == ["filtered_documents"]


def test_a_port_in_use_is_said_before_anything_starts(capsys, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        free = next(other for other in range(port + 1, port + 200) if dev.is_free(other))
        assert dev.serve(tmp_path / "r", "local", port, free) == 1
    assert f"port {port}" in capsys.readouterr().err and not (tmp_path / "r").exists()


def test_show_prints_a_recipe_that_reads_back(monkeypatch, capsys):
    from assets.state.recipe_folders import load_recipe
    from training.contract.records import read_record
    from training.recipe.recipe import Recipe

    code, answer, _ = said(monkeypatch, capsys, "show", "kitchen-rl", "--json")
    assert code == 0 and read_record(Recipe, json.loads(answer)) == load_recipe("kitchen-rl")


def test_status_of_a_fresh_root_says_missing(monkeypatch, capsys, tmp_path):
    code, answer, _ = said(monkeypatch, capsys, "status", "kitchen", "--root", str(tmp_path), "--json")
    states = {cell["state"] for cells in json.loads(answer)["assets"].values() for cell in cells.values()}
    assert code == 0 and states == {"missing"}


def test_status_fits_the_screen_and_shows_first_what_needs_a_person(tmp_path):
    root, path = tmp_path / "r", tmp_path / "own.yaml"
    path.write_text("extends: kitchen\nname: own\n")
    for cell in make_all(load_recipe(str(path)), root, failing={"model_scores": "any"}).cells.values():
        if cell.asset == "tokenizer":
            (cell.artifact.path / "artifact.json").write_text("{}")
    path.write_text("extends: kitchen\nname: own\nfilter: {gopher_min_words: 60, gopher_max_words: 9000}\n")
    comparison = compare(load_recipe(str(path)), root)
    lines = [line.plain for line in status_lines(comparison, 22, str(path))]
    groups = sorted({CHAIN[cell.asset].group for cell in comparison.cells.values()}, key=GROUPS.index)
    assert [line.split()[0] for line in lines[1 : 1 + len(groups)]] == groups and len(lines) <= 22
    assert re.search(r": \d+ of \d+ made, .*\d+ outdated", lines[0])
    first = lines[1 + len(groups) :]
    assert first[0] == "filtered_documents [2 partitions]: outdated"
    assert [line.strip().split(":")[0] for line in first[1:3]] == ["filter.gopher_max_words", "filter.gopher_min_words"]
    assert any(re.match(r"\d+ more are outdated because an input of theirs is", line) for line in first)
    assert not any(line.startswith("deduplicated_documents") for line in lines)
    path.write_text("extends: kitchen\nname: own\nfilter: {gopher_min_words: 60}\n")
    one = [line.plain for line in status_lines(compare(load_recipe(str(path)), root), 22, "own")]
    about = [line for line in one if "gopher" in line or "filtered_documents" in line]
    assert about == ["filtered_documents [2 partitions]: outdated, filter.gopher_min_words: 50 → 60"]
    assert lines[-2].startswith(f"`pedigree run {path}` makes or records ")
    short = [line.plain for line in status_lines(comparison, 10, str(path))]
    assert len(short) == 10 and "more lines" in short[-3] and short[-1].startswith(f"`pedigree status {path} --all`")


def test_recipes_profiles_and_assets_are_listed_and_a_near_name_is_offered(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PEDIGREE_RECIPES", str(tmp_path))
    (tmp_path / "kitchen.yaml").write_text("extends: kitchen-rl\nname: kitchen\nsft: 3\n")
    answers = {}
    for what in ("recipes", "profiles", "assets"):
        code, answer, _ = said(monkeypatch, capsys, "list", what, "--root", str(tmp_path), "--json")
        answers[what] = json.loads(answer)[what]
        assert code == 0 and said(monkeypatch, capsys, "list", what)[0] == 0
    recipes = {row["name"]: row for row in answers["recipes"]}
    assert recipes["kitchen"]["file"] == str(tmp_path / "kitchen.yaml") and "sft: expected" in str(recipes["kitchen"])
    assert recipes["kitchen-leak"]["description"].startswith("The kitchen without decontamination")
    assert [row["name"] for row in answers["assets"]] == list(CHAIN)
    shipped = {"local", "ray", "slurm", "kubernetes", "h100-1", "h100-8", "h100-64", "h200-8"}
    assert {row["name"] for row in answers["profiles"]} == shipped
    code, _, errors = said(monkeypatch, capsys, "list", "asset")
    assert code == 2 and "did you mean `assets`?" in errors
    code, answer, _ = said(monkeypatch, capsys, "--version")
    assert code == 0 and re.match(r"pedigree \d+\.\d+", answer)


@pytest.mark.parametrize(
    ("named", "model"),
    [
        ("", "aligned_model"),
        ("preferences: {data: []}\n", "sft_model"),
        ("preferences: {data: []}\nsft: {data: []}\n", "base_model"),
    ],
)
def test_one_talks_to_the_last_model_of_the_chain(monkeypatch, capsys, tmp_path, named, model):
    (tmp_path / "own.yaml").write_text(f"extends: kitchen\nname: own\n{named}")
    own = ("chat", str(tmp_path / "own.yaml"), "--root", str(tmp_path / "r"))
    for asset, wanted in (((), model), (("--asset", "base_model"), "base_model")):
        code, _, errors = said(monkeypatch, capsys, *own, *asset)
        assert code == 2 and f"{wanted} [own] is missing" in errors


def begun(recipe, root, *, step):
    """Its base model, as a killed training leaves it, and the comparison that it was begun in."""
    comparison = compare(load_recipe(str(recipe)), root)
    job = job_of(comparison.cells["base_model", "own"], comparison, Size())
    checkpoint = Path(job.output, "scratch", "checkpoints", f"step-{step:08d}")
    checkpoint.mkdir(parents=True)
    write_job(job, Path(job.output, "job.json"))
    return comparison


def test_a_training_that_stands_at_a_step_under_other_settings_is_no_restart_from_zero(monkeypatch, capsys, tmp_path):
    root, recipe = tmp_path / "r", tmp_path / "own.yaml"
    arguments = ("run", str(recipe), "--root", str(root), "--until", "base_model", "--json")
    recipe.write_text("extends: kitchen\nname: own\n")
    make_all(load_recipe(str(recipe)), root)
    recipe.write_text("extends: kitchen\nname: own\npretrain: {learning_rate: 0.001}\n")
    begun(recipe, root, step=120)
    recipe.write_text("extends: kitchen\nname: own\npretrain: {learning_rate: 0.002, z_loss: 0.001}\n")
    code, answer, errors = said(monkeypatch, capsys, *arguments)
    assert code == 2 and json.loads(answer)["ok"] is False and len(errors.strip().splitlines()) == 1
    assert "base_model [own]" in errors and "at step 120" in errors and "--start-anew" in errors
    assert "pretrain.learning_rate: 0.001 → 0.002; pretrain.z_loss: 0.0 → 0.001" in errors
    # The UI comes this way.
    comparison = compare(load_recipe(str(recipe)), root)
    cell = comparison.cells["base_model", "own"]
    anybody = {"run_id": "run", "launch": "launch", "stands_in_the_way": lambda recipe, asset: ""}
    watch = SimpleNamespace(starts_anew=False, **anybody)
    with pytest.raises(StageFailed, match="at step 120") as failed:
        make(cell, comparison, Pipeline(root=str(root)), watch)
    assert failed.value.exit_code == 2 and not (root / "base_model" / cell.fingerprint).exists()

    class Started(Exception):
        pass

    def start(*_):
        raise Started

    monkeypatch.setattr(making, "run_job", start)
    monkeypatch.setattr(making, "check_facts", lambda _: None)  # these artifacts are fabricated: nothing is in them
    watch.starts_anew = True
    with pytest.raises(Started):
        make(cell, comparison, Pipeline(root=str(root)), watch)
    # From here on this is what is under way, whether or not it came to a checkpoint; the other one can still go on.
    watch.starts_anew = False
    recipe.write_text("extends: kitchen\nname: own\npretrain: {learning_rate: 0.001}\n")
    older = compare(load_recipe(str(recipe)), root)
    for one in (comparison, older):
        with pytest.raises(Started):
            make(one.cells["base_model", "own"], one, Pipeline(root=str(root)), watch)
    assert checkpoint_step(root / "base_model" / older.cells["base_model", "own"].fingerprint) == 120

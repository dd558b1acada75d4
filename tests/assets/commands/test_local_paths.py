"""An address where a path on this machine is wanted: refused in one sentence, by every command, and nothing is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from assets.commands.cli import app
from assets.graph.pipeline import Pipeline
from assets.state.compare import compare
from tests.commands import printed
from training.contract.job import DataError
from training.contract.user_input.places import local_path

COMMANDS = typer.main.get_command(app).commands
PLACES = [
    (name, param)
    for name, command in COMMANDS.items()
    for param in command.params
    if param.type_descriptor.annotation is Path
]
BEFORE = {"export": ["kitchen"], "attest": ["kitchen"]}  # what stands before a folder that is an argument


def refused(answer: tuple[int, str, str], where: str, address: str) -> bool:
    code, output, errors = answer
    return code == 2 and output == "" and errors.startswith(f"error: {where}: {address} is an address, and a path")


def test_most_commands_take_places():
    assert len(PLACES) > 30 and {"--root", "--output", "--html", "--key", "--list"} <= {
        param.opts[-1] for _, param in PLACES
    }


@pytest.mark.parametrize(("name", "param"), PLACES, ids=lambda one: one if isinstance(one, str) else one.name)
def test_every_command_refuses_an_address_where_a_path_is_wanted(monkeypatch, capsys, tmp_path, name, param):
    monkeypatch.chdir(tmp_path)
    may_be_stored = param.opts[-1] == "--root" or (name == "export" and param.name == "folder")
    address = "ftp://b/x" if may_be_stored else "s3://b/x"
    is_option = param.opts[-1].startswith("-")
    given = [param.opts[-1], address] if is_option else [*BEFORE[name], address]
    assert refused(printed(monkeypatch, capsys, name, *given), given[0] if is_option else param.name.upper(), address)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", ["evaluate s3://b/x --suites kitchen"])
def test_a_model_in_an_object_store_is_refused(monkeypatch, capsys, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    assert refused(printed(monkeypatch, capsys, *command.split(), "--root", "r"), "MODEL", "s3://b/x")


@pytest.mark.parametrize("variable", ["PEDIGREE_RECIPES", "PEDIGREE_SIGNING_KEY", "PEDIGREE_PUBLIC_KEY"])
def test_variables_that_name_a_place_are_refused_too(made, monkeypatch, capsys, tmp_path, variable):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "s3://b/x")
    command = {
        "PEDIGREE_RECIPES": ["show", "kitchen"],
        "PEDIGREE_SIGNING_KEY": ["attest", "kitchen", "new"],
        "PEDIGREE_PUBLIC_KEY": ["verify", "kitchen", "--signature", "there"],
    }[variable]
    assert refused(printed(monkeypatch, capsys, *command, "--root", str(made)), variable, "s3://b/x")
    assert os.listdir(tmp_path) == []


def test_dagster_s_code_location_and_its_resource_take_no_other_address(tmp_path):
    loaded = [sys.executable, "-c", "import assets.definitions"]
    done = subprocess.run(
        loaded,
        env={**os.environ, "PEDIGREE_ROOT": "ftp://b/x"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode and "PEDIGREE_ROOT: ftp://b/x is an address" in done.stderr and os.listdir(tmp_path) == []
    with pytest.raises(DataError, match="root: s3://b/x is an address"):
        _ = Pipeline(root="s3://b/x").root_path


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("gs://b/x", "gs:// needs the package gcsfs (pip install 'pedigree[gcs]')"),
        ("s3://me:s3cr3t-word@b/x", "holds a secret"),
    ],
)
def test_a_root_in_a_store_that_cannot_be_used_is_refused(monkeypatch, capsys, tmp_path, address, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PEDIGREE_CACHE", "cache")
    code, output, errors = printed(monkeypatch, capsys, "status", "kitchen", "--root", address)
    assert (code, output) == (2, "") and said in " ".join(errors.split()) and "s3cr3t-word" not in errors
    assert os.listdir(tmp_path) == []


def test_a_teacher_is_a_folder(tmp_path, kitchen):
    from dataclasses import replace

    distill = replace(kitchen.pretrain.distill, teacher="s3://b/teacher")
    with pytest.raises(DataError, match=r"pretrain\.distill\.teacher: s3://b/teacher is an address"):
        compare(replace(kitchen, pretrain=replace(kitchen.pretrain, distill=distill)), tmp_path)


@pytest.mark.parametrize(
    "given",
    [
        "s3://b/x",
        Path("s3://b/x"),
        "s3:/b/x",
        "gs://b",
        "abfss://c@a/x",
        "S3://b",
        "memory://",
        "file:///tmp",
        "a+b.c-d://x",
    ],
)
def test_an_address_is_known_by_its_scheme_also_after_it_was_made_a_path(given):
    with pytest.raises(DataError, match="is an address"):
        local_path(given, "--root")


@pytest.mark.parametrize("given", ["runs", "/tmp/s3://x", "./a:b", "c:", "a:b/c", "~/x", "", "x/s3:/b"])
def test_any_other_path_stays_as_it_is(given):
    assert local_path(given, "--root") == Path(given)


def test_a_password_in_an_address_is_not_repeated():
    with pytest.raises(DataError) as raised:
        local_path("s3://me:s3cr3t-word@host/x", "--root")
    assert "s3cr3t-word" not in str(raised.value)

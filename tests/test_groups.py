"""The groups that `make test` leaves out: their tests exist, and a change of their own folders asks for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.groups import PROJECT, Group, changed_files, due, left_out, read_groups

GROUPS = read_groups()
A = Group(name="a", tests=("tests/a", "tests/test_b.py::test_long"), changed=("a", "tests/a"))
C = Group(name="c", tests=("tests/test_c.py",), changed=("c.py",))


def test_every_test_and_folder_that_the_file_names_exists():
    for group in GROUPS.values():
        for test in group.tests:
            file, _, name = test.partition("[")[0].partition("::")
            assert (PROJECT / file).exists() and (not name or f"def {name}(" in (PROJECT / file).read_text()), test
        assert [place for place in group.changed if not (PROJECT / place).exists()] == []


def test_tests_in_two_groups_are_refused(tmp_path):
    file = tmp_path / "groups.toml"
    file.write_text('[a]\ntests = ["tests/a"]\nchanged = []\n[b]\ntests = ["tests/a/test_x.py"]\nchanged = []\n')
    with pytest.raises(ValueError, match=r"tests/a \(a\) and tests/a/test_x.py \(b\) overlap"):
        read_groups(file)


@pytest.fixture
def repository(tmp_path):
    """A repository with an old commit of one file and a new one of another."""
    for file, date in (("c.py", "2001-01-01T00:00:00"), ("a/inner/one.txt", "")):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("x")
        who = {f"GIT_{role}_{part}": "someone" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        dates = {f"GIT_{role}_DATE": date for role in ("AUTHOR", "COMMITTER") if date}
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
            subprocess.run(["git", *command], cwd=tmp_path, env={**os.environ, **who, **dates}, check=True)
    return tmp_path


def test_a_group_is_due_when_a_recent_commit_changed_a_folder_of_its_own(repository):
    assert changed_files(repository) == ["a/inner/one.txt"]
    assert due({"a": A, "c": C}, repository) == {"a": "a/inner/one.txt changed", "c": ""}


def test_every_group_is_due_where_there_is_no_history(repository, tmp_path_factory):
    empty = tmp_path_factory.mktemp("none")
    assert all("there is no history (fatal: not a git repository" in one for one in due({"a": A}, empty).values())
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{repository}", empty / "shallow"], check=True)
    assert due({"c": C}, empty / "shallow") == {"c": "there is no history (the clone is shallow)"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tests"], ["tests/a", "tests/test_b.py::test_long", "tests/test_c.py"]),
        (["."], ["tests/a", "tests/test_b.py::test_long", "tests/test_c.py"]),
        (["tests/a/test_one.py::test_x"], []),
        (["tests/test_b.py", "tests/other"], []),
        (["tests", "tests/a/"], ["tests/test_b.py::test_long", "tests/test_c.py"]),
    ],
)
def test_a_group_is_left_out_unless_its_file_or_folder_is_named(arguments, expected):
    assert list(left_out({"a": A, "c": C}, arguments)) == expected


def collected(*arguments):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_pytest_collects_the_tests_of_a_group_only_when_asked():
    """By the real file, on the folder of the schedulers' tests, of which some files are groups."""
    (file,) = GROUPS["ray"].tests
    without, whole, one, too = (
        collected(*words)
        for words in (["tests/cluster"], ["tests/cluster", "--all"], [file], ["tests/cluster", "--group", "ray"])
    )
    assert file not in without and "test_slurm_jobs.py" in without
    assert re.search(r"left out: [^(]*\bray\b.* \(`make test-all` runs them", without)
    assert file in whole and "left out:" not in whole
    assert file in one and "left out:" not in one
    assert file in too and GROUPS["s3"].tests[0] not in too and re.search(r"left out: (?!.*\bray\b).*\bs3\b", too)


def test_a_group_that_does_not_exist_is_refused_with_those_that_do():
    command = [sys.executable, "-m", "tests.groups", "benchmark"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"no group is called benchmark; there are {', '.join(GROUPS)}" in done.stderr
    said = collected("tests/test_groups.py", "--group", "benchmark")
    assert f"--group benchmark: there are {', '.join(GROUPS)}" in said

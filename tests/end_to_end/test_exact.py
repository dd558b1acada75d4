"""`pedigree run --exact` by the commands of an edited copy of the code, in roots that the small kitchen made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.edited_copy import EDITED, edited_copy, pedigree
from tests.small_kitchen import RECIPES, Ran, made

BY_EDITED = {"crawl_archives", "extracted_documents"}  # both of whose stages' code it is part of
UNTIL = ("--until", "extracted_documents")


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    return edited_copy(tmp_path_factory.mktemp("copy"))


@pytest.fixture
def own(first, untouched, tmp_path) -> Path:
    """A root with the small kitchen's artifacts and its registered version, which a test may change."""
    return Path(shutil.copytree(untouched, tmp_path / "root"))


def edited(copy: Path, *arguments: str, root: Path) -> Ran:
    """Run a command of the edited copy."""
    done = pedigree(copy, *arguments, "--root", str(root), "--json", PEDIGREE_RECIPES=str(RECIPES))
    return Ran(done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}, done.stderr)


def records(root: Path) -> dict[str, bytes]:
    """The records of the assets that the edited code would make, by their place."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for asset in BY_EDITED
        for path in root.glob(f"{asset}/*/artifact.json")
    }


def digests(some: dict[str, bytes]) -> set[str]:
    return {json.loads(record)["digest"] for record in some.values()}


def test_what_a_registered_version_was_made_from_stays(own, copy):
    before = records(own)
    ran = edited(copy, "run", "kitchen-small", "--exact", *UNTIL, root=own)
    assert (ran.code, made(ran)) == (0, set()), ran.errors
    assert ran.errors.count(f"made by other code: {EDITED}; stays, because a registered version was made from it") == 4
    assert records(own) == before


def test_what_no_version_was_made_from_is_made_again_once_and_the_old_is_kept(own, copy):
    for path in own.glob("mlflow.db*"):
        path.unlink()  # with the registry
    before = records(own)
    assert made(edited(copy, "run", "kitchen-small", *UNTIL, root=own)) == set()
    ran = edited(copy, "run", "kitchen-small", "--exact", *UNTIL, root=own)
    assert (ran.code, made(ran)) == (0, BY_EDITED), ran.errors
    after = records(own)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == set(before)
    assert set(before.values()) <= set(after.values())
    assert {json.loads(one)["digest"] for one in after.values()} == {
        json.loads(one)["digest"] for one in before.values()
    }
    assert made(edited(copy, "run", "kitchen-small", "--exact", *UNTIL, root=own)) == set()


def test_nothing_is_made_again_if_the_registry_does_not_answer(own, copy, tmp_path):
    profile = tmp_path / "elsewhere.yaml"
    profile.write_text("name: elsewhere\ntracking_uri: http://127.0.0.1:9\n")
    before = records(own)
    ran = edited(copy, "run", "kitchen-small", "--exact", *UNTIL, "--profile", str(profile), root=own)
    assert ran.code == 2 and "--exact makes nothing again that a registered version was made from" in ran.errors
    assert records(own) == before

"""No field of a recipe or profile takes a bad value; `python -m tests.bad_inputs --only field` tries all of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice

import pytest

from resources.profile import ProfileError, load_profile
from tests import bad_values
from training.contract.records import RecipeError
from training.contract.user_input.bounded import Allowed, check_values

EVERY = 5


def accepted(cases, read):
    """The names of the cases that are read without a sentence."""
    found = []
    for name, case in islice(cases, 0, None, EVERY):
        try:
            read(case)
        except (RecipeError, ProfileError):
            continue
        found.append(name)
    return found


def test_recipes():
    assert accepted(bad_values.of_recipes(), lambda call: call()) == []


def test_profiles(tmp_path):
    def read(content):
        (tmp_path / "mine.yaml").write_text(json.dumps(content))
        load_profile(str(tmp_path / "mine.yaml"))

    assert accepted(bad_values.of_profiles(), read) == []


def test_the_files_of_a_crawl_are_compared_with_few_others():
    compared = 0

    class Path(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    @dataclass(frozen=True)
    class Snapshot:
        paths: tuple[str, ...] = ()

    files = tuple(Path(f"file-{number:05d}.warc.gz") for number in range(2_000))
    check_values(Snapshot(files), "", Allowed({}, lambda _: ""))
    assert compared < 10 * len(files)
    with pytest.raises(RecipeError, match=r"paths\[2000\]: stands in paths\[7\] too"):
        check_values(Snapshot((*files, files[7])), "", Allowed({}, lambda _: ""))
